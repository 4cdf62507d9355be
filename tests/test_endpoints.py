"""The chat client against a real server on this machine: faults, hostile bytes, keys, batches;
options that name servers."""

import asyncio
import copy
import dataclasses
import gc
import json
import pickle
import re
import signal
import socketserver
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from memalpha.agent.codecs import CODECS, make_codec
from memalpha.agent.step import system_text
from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, MemAlphaError, PartialServiceError, ServiceError
from memalpha.memory.schema import MemorySchema
from memalpha.qa import judges, readers
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.text.quoting import break_marks
from memalpha.training.config import RunOptions
from memalpha.types import Answer, AnswerRequest, Completion, Question, Sampling, StopReason
from tests.helpers.stub_server import Fault, completion, error

GREEDY = Sampling(max_new_tokens=5)


def chat(text: str):
    return [{"role": "user", "content": text}]


def complete(client: ChatClient, messages, sampling: Sampling) -> Completion:
    """One reply, or the request's own error."""
    try:
        return client.complete_many([messages], sampling)[0]
    except PartialServiceError as error:
        raise error.outcomes[0] from error


@pytest.fixture
def client(chat_server):
    return ChatClient(chat_server.url, "m", timeout=5, retries=3, backoff=0)


def test_a_reply_and_what_was_asked(chat_server, client):
    assert complete(client, chat("héllo<|im_end|>"), GREEDY) == Completion(
        (), "HÉLLO< |IM_END|>", StopReason.END
    )
    assert chat_server.paths == ["/v1/chat/completions"]
    assert chat_server.bodies == [
        {
            "model": "m",
            "messages": chat("héllo< |im_end|>"),
            "max_tokens": 5,
            "temperature": 0.0,
            "top_p": 1.0,
        }
    ]
    chat_server.finish = "length"
    assert complete(client, chat("x"), GREEDY).stop is StopReason.LENGTH
    for finish in ("eos", "eos_token", "stop_sequence"):  # as some servers call an end
        chat_server.finish = finish
        assert complete(client, chat("x"), GREEDY).stop is StopReason.END


# ------------------------------------------------------------------------------------------------
# faults that pass, and that last
@pytest.mark.parametrize(
    "fault",
    [
        error(500),
        error(429),
        error(408),
        Fault(200, b"not json"),
        Fault(200, b"[" * 100_000),
        Fault(200, completion(None)),
        Fault(200, completion("x", "content_filter")),
        Fault(200, completion("\ud800")),
        Fault(200, completion(" \n", "length")),
        Fault(200, completion("x"), cut=True),
        Fault(200, completion("x" * 2**24)),
    ],
)
def test_a_passing_fault_is_retried(chat_server, client, fault):
    chat_server.script = [fault, fault]
    assert complete(client, chat("x"), GREEDY).text == "X"
    assert len(chat_server.bodies) == 3


# ------------------------------------------------------------------------------------------------
# replies of all shapes
PARTS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": "Rome?"}]},
    {"type": "reasoning", "text": "Rome?"},
    {"type": "text", "text": "Oslo"},
]


@pytest.mark.parametrize(
    ("reply", "text"),
    [
        (completion("<think>Rome?</think>\n\nOslo"), "\n\nOslo"),
        (completion("Rome?\n</think>Oslo"), "Oslo"),
        (completion("Oslo", reasoning_content="Rome?"), "Oslo"),
        (completion("Oslo", reasoning="<think>Rome?"), "Oslo"),
        (completion(PARTS), "Oslo"),
        (completion("<think>Nothing to keep.</think>"), ""),
        (completion(None, reasoning_content="Nothing to keep."), ""),
        (completion("", reasoning="Nothing to keep."), ""),
    ],
)
def test_a_reply_is_what_is_said_and_may_be_empty_after_thinking(chat_server, client, reply, text):
    chat_server.script = [Fault(200, reply)]
    assert complete(client, chat("x"), GREEDY) == Completion((), text, StopReason.END)
    assert len(chat_server.bodies) == 1


CALL = {"type": "function", "function": {"name": "memory_insert", "arguments": "{}"}}
TAKEN, ENDLESS = "took the tool calls out of the text", "did not end its thinking in 5 tokens"


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (completion(None, tool_calls=[CALL]), TAKEN),
        (completion("I will store this.", tool_calls=[CALL]), TAKEN),
        (completion("<think>Rome"), ENDLESS),
        (completion("[THINK]Rome", "length"), ENDLESS),
        (completion("Well. <think>Rome"), ENDLESS),
        (completion(None, "length", reasoning_content="Rome"), ENDLESS),
        (completion("<think>Rome</think>", "length"), ENDLESS),
    ],
)
def test_a_reply_that_says_nothing_is_an_error_and_not_asked_for_again(
    chat_server, client, reply, said
):
    chat_server.script = [Fault(200, reply)]
    with pytest.raises(ServiceError, match=said):
        complete(client, chat("x"), GREEDY)
    assert len(chat_server.bodies) == 1


def test_attempts_wait_longer_each_time_or_as_long_as_the_server_asks_but_no_hour(chat_server):
    client = ChatClient(chat_server.url, "m", retries=3, backoff=0.1, max_wait=0.15)
    worn_out = [error(503)] * 3 + [error(503, "worn out")]
    for script, least, said in (
        (worn_out, 0.05 + 2 * 0.075, r"worn out.*\(after 4 attempts\)"),
        ([error(429, Retry_After="0.15"), error(400, "then")], 0.15, "then"),
        ([error(429, Retry_After="3600")], 0, "asks to wait 3600 s"),
    ):
        chat_server.script = script
        began = time.monotonic()
        with pytest.raises(ServiceError, match=said):
            complete(client, chat("a"), GREEDY)
        assert least <= time.monotonic() - began < 3


# ------------------------------------------------------------------------------------------------
# hostile bytes, one attempt's time
OK = b"HTTP/1.1 200 OK\r\n"
HOSTILE = {
    "silence": (b"", b"", 0),
    "a dripped status line": (b"", b"HTTP/1.1 200 " + b"O" * 10_000, 0.05),
    "dripped headers": (OK, b"X-A: b\r\n" * 10_000, 0.05),
    "a dripped body": (OK + b"Content-Length: 100000\r\n\r\n", b"x" * 100_000, 0.05),
    "a dripped body of a 500": (
        b"HTTP/1.1 500 Oh\r\nContent-Length: 100000\r\n\r\n",
        b"x" * 100_000,
        0.05,
    ),
    "a body without an end": (OK + b"\r\n", b" " * 100_000, 0.05),
    "a dripped chunk size": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"0" * 100_000, 0.05),
    "dripped chunks": (OK + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 10_000, 0.05),
    "dripped trailers": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n",
        b"X-A: b\r\n" * 10_000,
        0.05,
    ),
    "100 Continue for ever": (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 10_000, 0.02),
    "megabytes of headers": (OK + b"X-A: b\r\n" * 200_000, b"", 0),
    "no HTTP at all": (b"\x00\xff" * 1000, b"", 0),
}


@pytest.fixture(params=HOSTILE)
def hostile(request):
    """The URL of a server that answers each connection with some bytes at once, then others one
    after the other."""
    stop = threading.Event()
    at_once, dripped, pause = HOSTILE[request.param]

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            with suppress(OSError):
                self.request.recv(65536)
                self.request.sendall(at_once)
                for byte in dripped:
                    if stop.wait(pause):
                        return
                    self.request.sendall(bytes([byte]))
                stop.wait()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
        stop.set()
        server.shutdown()


def test_one_attempt_ends_in_time_whatever_the_server_sends(hostile):
    client = ChatClient(hostile, "m", timeout=1, retries=0)
    began = time.monotonic()
    with pytest.raises(ServiceError):
        complete(client, chat("x"), GREEDY)
    assert time.monotonic() - began < 6


# ------------------------------------------------------------------------------------------------
# refusals
# ------------------------------------------------------------------------------------------------
# what a server does not take
def openai(name, said="is not supported with this model.", code="unsupported_parameter"):
    message = f"Unsupported parameter: '{name}' {said}"
    return {"error": {"message": message, "type": "x", "param": name, "code": code}}


LITELLM = "UnsupportedParamsError: gpt-5 models don't support temperature=0.0. Only 1 is supported."
REFUSALS = [  # the server's words, and what it is asked without
    (openai("max_tokens", "Use 'max_completion_tokens' instead."), "max_tokens"),
    (openai("temperature", "does not support 0.0. Only the default (1).", "x"), "temperature"),
    ({"error": {"message": "Unsupported parameter: \\u0027top_p\\u0027"}}, "top_p"),
    ({"error": {"message": "Unrecognized request argument supplied: top_k"}}, "top_k"),
    ({"error": {"message": LITELLM, "param": None}}, "temperature"),
    ([{"error": {"message": 'Invalid JSON. Unknown name "seed": Cannot find field.'}}], "seed"),
    ({"error": {"message": "property 'topK' is unsupported, see temperature"}}, "top_k"),
    ({"error": {"message": "`temperature` and `top_p` cannot both be specified"}}, "top_p"),
    ({"message": "invalid temperature: only 1 is allowed for this model"}, "temperature"),
    ({"error": {"message": "该模型不支持 temperature 参数"}}, "temperature"),
    ({"error": {"message": "Unknown parameter: 'seed'. Known: model, temperature"}}, "seed"),
    (
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "top_k"], "msg": "Extra inputs"},
                {"type": "extra_forbidden", "loc": ["body", "n"], "input": {"top_p": 1}},
            ]
        },
        "top_k",
    ),
    (
        {"error": {"message": "Provider error", "metadata": {"raw": str(openai("max_tokens"))}}},
        "max_tokens",
    ),
    ({"error": {"message": "System role not supported"}}, "system"),
    ({"error": {"message": "Developer instruction is not enabled for models/x"}}, "system"),
    ({"error": {"message": "Conversation roles must alternate user/assistant"}}, "system"),
    (openai("messages[0].role", "does not support 'system' with this model."), "system"),
]


@pytest.mark.parametrize("status", [400, 422])
@pytest.mark.parametrize(("refusal", "name"), REFUSALS)
def test_what_a_server_refuses_is_left_out_once_with_one_warning(
    chat_server, caplog, status, refusal, name
):
    def refuses(body):
        old = body["messages"][0]["role"] == "system" if name == "system" else name in body
        return Fault(status, json.dumps(refusal, ensure_ascii=False).encode()) if old else None

    chat_server.fault_for = refuses
    client = ChatClient(chat_server.url, "m", retries=0, concurrency=1)
    messages = [{"role": "system", "content": "Be brief."}, *chat("Yes?")]
    sampling = Sampling(16, 0.0, 1.0, 5, 7)
    replies = client.complete_many([messages, messages], sampling)
    assert [reply.text.rpartition("\n")[2] for reply in replies] == ["YES?"] * 2
    refused, *taken = chat_server.bodies
    assert len(taken) == 2 and len(caplog.records) == 1 and f"without {name}" in caplog.text
    left = {key: value for key, value in refused.items() if key not in (name, "seed")}
    if name == "max_tokens":
        left["max_completion_tokens"] = 16
    if name == "system":
        left["messages"] = chat("Be brief.\n\nYes?")
    for body in taken:
        body.pop("seed", None)
        assert body == left


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 5000. This model supports at most 4096 completion tokens",
        "'max_tokens' or 'max_completion_tokens' is too large: 600. This model's maximum context "
        "length is 512 tokens and your request has 100 input tokens (parameter=max_tokens)",
        "temperature must be between 0 and 1",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 8192]",
        "the system is overloaded",
        "this model does not support images",
    ],
)
def test_a_value_that_does_not_fit_is_an_error_and_changes_nothing(chat_server, message):
    chat_server.fault_for = lambda body: error(400, message)
    client = ChatClient(chat_server.url, "m", retries=0)
    for _ in range(2):
        with pytest.raises(ServiceError, match=re.escape(message[:40])):
            complete(client, chat("x"), GREEDY)
    assert chat_server.bodies[0] == chat_server.bodies[1] and len(chat_server.bodies) == 2


def test_a_field_that_the_user_gives_is_not_left_out_and_what_does_not_help_is_not_kept(
    chat_server, caplog
):
    chat_server.fault_for = lambda body: error(400, "Unsupported parameter: 'temperature'")
    given = ChatClient(chat_server.url, "m", retries=0, extra={"temperature": 0.3})
    for client in (given, ChatClient(chat_server.url, "m", retries=0)):
        with pytest.raises(ServiceError, match="Unsupported parameter: 'temperature'"):
            complete(client, chat("x"), GREEDY)
    sent = [body.get("temperature") for body in chat_server.bodies]
    assert sent == [0.3, 0.0, None] and not caplog.records


def test_a_null_takes_a_field_out_and_the_limit_is_called_what_it_is(chat_server):
    extra = {"max_tokens": None, "max_completion_tokens": 64, "temperature": None, "top_p": None}
    client = ChatClient(chat_server.url, "m", retries=0, extra=extra)
    assert complete(client, chat("x"), GREEDY).text == "X"
    assert chat_server.bodies == [
        {"model": "m", "messages": chat("x"), "max_completion_tokens": 64}
    ]
    chat_server.script = [Fault(200, completion("", "length"))]
    with pytest.raises(ServiceError, match=r"in 64 tokens(.|\n)*raise max_completion_tokens"):
        complete(client, chat("x"), GREEDY)


@pytest.mark.parametrize("status", [401, 403, 404, 302])
def test_a_wrong_setup_or_a_redirect_is_an_input_error_at_once(chat_server, client, status):
    chat_server.script = [
        error(status, "no such thing", Location=chat_server.url + "/elsewhere")
    ] * 9
    with pytest.raises(InputError, match="no such thing"):
        client.complete_many([chat("x")] * 9, GREEDY)
    assert len(chat_server.bodies) <= client.concurrency and set(chat_server.paths) == {
        "/v1/chat/completions"
    }


def test_a_refused_request_is_a_service_error_at_once_on_one_printable_line(chat_server, client):
    chat_server.script = [error(400, "\x1b[31mtoo\nlong\ud800!")]
    with pytest.raises(ServiceError) as caught:
        complete(client, chat("x"), GREEDY)
    assert str(caught.value).endswith("HTTP 400: [31mtoo long !") and str(caught.value).encode()
    assert len(chat_server.bodies) == 1


# ------------------------------------------------------------------------------------------------
# the key
@pytest.mark.parametrize(
    "fault",
    [
        error(401, "bad key: s3cret."),
        error(500, "x" * 285 + " s3cret"),
        Fault(200, b'{"detail": "bad key: s3cret."}'),
    ],
)
def test_the_key_is_sent_and_shown_nowhere(chat_server, monkeypatch, fault):
    monkeypatch.setenv("SOME_KEY", "s3cret ")
    client = ChatClient(chat_server.url, "m", "SOME_KEY", retries=0)
    chat_server.script = [fault]
    with pytest.raises(MemAlphaError) as caught:
        complete(client, chat("x"), GREEDY)
    assert "s3c" not in str(caught.value) + repr(client) and "***" in str(caught.value)
    complete(ChatClient(chat_server.url, "m"), chat("x"), GREEDY)  # without a key none is sent
    sent = [headers.get("Authorization") for headers in chat_server.headers]
    assert sent == ["Bearer s3cret", None]


@pytest.mark.parametrize(
    ("url", "options"),
    [
        *(
            (url, {})
            for url in (
                "",
                "ftp://x/v1",
                "http://x:99999999",
                "http://u:p@x",
                "http://x/v1?version=2",
                "http://x\t/v1",
            )
        ),
        *(("http://x/v1", {name: -1}) for name in ("timeout", "retries", "concurrency")),
        *(("http://x/v1", {"extra": extra}) for extra in ({"stream": True}, {"a": {1}})),
    ],
)
def test_options_that_cannot_be_are_input_errors(url, options):
    with pytest.raises(InputError):
        ChatClient(url, "m", **options)


# ------------------------------------------------------------------------------------------------
# batches
def test_a_batch_runs_at_once_and_keeps_its_order(chat_server):
    chat_server.delay = 0.05
    client = ChatClient(chat_server.url, "m", concurrency=4)
    replies = client.complete_many([chat(f"q{i}") for i in range(12)], GREEDY)
    assert [reply.text for reply in replies] == [f"Q{i}" for i in range(12)]
    assert 2 <= chat_server.most_active <= 4


def test_an_outage_ends_a_batch_early(chat_server):
    client = ChatClient(chat_server.url, "m", retries=0, concurrency=2)
    chat_server.fault_for = lambda body: error(500, "down")
    with pytest.raises(PartialServiceError) as caught:
        client.complete_many([chat(f"q{i}") for i in range(100)], GREEDY)
    assert 8 <= len(chat_server.bodies) <= 10  # eight failures, and what was under way
    unsent = [outcome for outcome in caught.value.outcomes if "was not sent" in str(outcome)]
    assert len(unsent) == 100 - len(chat_server.bodies)


@pytest.mark.parametrize(
    ("fault", "failing"), [(error(400, "too long"), range(99)), (error(500, "this one"), range(25))]
)
def test_refused_requests_or_a_few_failures_keep_the_others(chat_server, fault, failing):
    client = ChatClient(chat_server.url, "m", retries=0, concurrency=2)
    chat_server.fault_for = lambda body: (
        fault if int(body["messages"][0]["content"]) in failing else None
    )
    with pytest.raises(PartialServiceError, match=f"{len(failing)} of 100 requests") as caught:
        client.complete_many([chat(str(i)) for i in range(100)], GREEDY)
    good = [i for i, each in enumerate(caught.value.outcomes) if isinstance(each, Completion)]
    assert good == [i for i in range(100) if i not in failing]


# ------------------------------------------------------------------------------------------------
# connections
def test_batches_of_a_client_use_one_connection_also_in_a_running_loop_and_keep_no_cookie(
    chat_server, client, monkeypatch
):
    monkeypatch.setattr("memalpha.http._IDLE", 60.0)
    chat_server.keep_alive = True

    async def in_a_notebook():
        return complete(client, chat("x"), GREEDY).text

    chat_server.script = [Fault(200, completion("first"), {"Set-Cookie": "user=1"})]
    texts = [complete(client, chat("x"), GREEDY).text for _ in range(2)]
    assert [*texts, asyncio.run(in_a_notebook())] == ["first", "X", "X"]
    assert chat_server.connections == 1 and len(chat_server.bodies) == 3
    assert not [headers for headers in chat_server.headers if "Cookie" in headers]


def test_copies_have_connections_of_their_own_which_end_with_them(chat_server, client):
    chat_server.keep_alive = True
    complete(client, chat("x"), GREEDY)
    copies = [copy.copy(client), copy.deepcopy(client), pickle.loads(pickle.dumps(client))]
    copies.append(dataclasses.replace(client, model="n"))
    assert [complete(each, chat("y"), GREEDY).text for each in copies] == ["Y"] * 4
    assert chat_server.connections == 5
    threads = [each._connections.thread for each in copies]
    copies.clear()
    gc.collect()
    for thread in threads:
        thread.join(10)
    assert [thread.is_alive() for thread in threads] == [False] * 4
    assert complete(client, chat("x"), GREEDY).text == "X"


def test_threads_share_a_client_and_each_gets_its_own_replies(chat_server, client):
    chat_server.keep_alive = True

    def ask(thread):
        chats = [chat(f"t{thread} q{i}") for i in range(10)]
        return [reply.text for reply in client.complete_many(chats, GREEDY)]

    with ThreadPoolExecutor(4) as pool:
        replies = list(pool.map(ask, range(4)))
    assert replies == [[f"T{thread} Q{i}" for i in range(10)] for thread in range(4)]
    assert chat_server.connections <= 4 * client.concurrency


def test_more_than_a_hundred_requests_are_at_the_server_at_once(chat_server):
    def release(body):
        if chat_server.most_active > 100:
            chat_server.released.set()

    chat_server.delay = 20
    chat_server.fault_for = release
    client = ChatClient(chat_server.url, "m", concurrency=110)
    client.complete_many([chat("x")] * 110, GREEDY)
    assert chat_server.most_active > 100


INTERRUPTED = """
import sys, time
from memalpha.endpoints import ChatClient
from memalpha.types import Sampling

client = ChatClient(sys.argv[1], "m", retries=0)
began = time.monotonic()
try:
    client.complete_many([[{"role": "user", "content": "wait"}]] * 20, Sampling(5))
except KeyboardInterrupt:
    print(time.monotonic() - began)
client.retries = 1  # the server may be closing a connection that was kept
(reply,) = client.complete_many([[{"role": "user", "content": "after"}]], Sampling(5))
print(reply.text)
"""


def test_ctrl_c_ends_a_batch_at_once_the_client_is_usable_and_the_process_ends(chat_server):
    sent = []

    def interrupt(body):
        if body["messages"][0]["content"] != "wait":
            return None
        if not sent:
            sent.append(process.send_signal(signal.SIGINT))
        return Fault(hang=True)

    chat_server.fault_for = interrupt
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", INTERRUPTED, chat_server.url]
    with chat_server.lock:  # no reply before ``process`` is known
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=60)
    assert errors == b"" and process.returncode == 0
    seconds, text = output.decode().split()
    assert float(seconds) < 8 and text == "AFTER"  # the server holds a request for 10 seconds


# ------------------------------------------------------------------------------------------------
# marks of chat templates
MARKS = [
    "<|im_start|>",
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|channel|>",
    "<|reserved_special_token_0|>",
    "<｜begin▁of▁sentence｜>",
    "<｜User｜>",
    "<s>",
    "</s>",
    "<bos>",
    "<eos>",
    "<pad>",
    "<unk>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<unused12>",
    "<extra_id_0>",
    "[INST]",
    "[/INST]",
    "<<SYS>>",
    "<</SYS>>",
    "[TOOL_CALLS]",
    "[/AVAILABLE_TOOLS]",
    "[SYSTEM_PROMPT]",
    "[gMASK]",
    "<sop>",
    "[|assistant|]",
    "[BOS]",
]
ORDINARY = [
    "",
    "a < b and c > d",
    "x <- y",
    "if (a<b || c>d)",
    "a <|> b",
    "f <| g x |> h",
    "[1] see [INSTALL]",
    "<b>bold</b> <span>",
    "<chunk>\nMarta: I moved.\n</chunk>",
    '<tool_call>{"name": "x"}</tool_call>',
    "| a | b |",
    "<3",
    "p(x|y)",
    "[ ] to do",
    "héllo \u200b 世界 🎈",
    "<S>",
    "INST",
    "[inst]",
    "5<s",
    "s>",
    "<| im_start |>",
    "<https://x.org>",
    "<|" * 100_000,
    "[" * 200_000,
]


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_is_broken_and_reads_the_same(mark):
    assert (
        break_marks(f"a{mark}b {mark}{mark}")
        == f"a{mark[0]} {mark[1:]}b {mark[0]} {mark[1:]}{mark[0]} {mark[1:]}"
    )


def test_ordinary_text_and_our_own_instructions_are_left_alone():
    own = [readers.SYSTEM, readers.TAGGED, readers.READER_PROMPT]
    own += [judges.ANSWER_SYSTEM, *judges.ANSWER_SYSTEMS.values(), judges.CONTENT_SYSTEM]
    for preset in ("facts", "mem_alpha", "nine_categories"):
        schema = MemorySchema.load(preset)
        own += [system_text(make_codec(codec, schema), schema, True) for codec in CODECS]
    assert [text for text in [*ORDINARY, *own] if break_marks(text) != text] == []


# ------------------------------------------------------------------------------------------------
# options
OWN = {"judge_model": "strict", "judge_extra": {"b": 2}}


@pytest.mark.parametrize(
    ("other", "given", "model", "key", "extra"),
    [
        (False, {}, "m", "for-the-reader", {"a": 1}),
        (False, {"judge_model": "strict"}, "strict", "for-the-reader", {"a": 1}),
        (True, {}, "m", "for-the-judge", {"a": 1}),
        (True, OWN, "strict", "for-the-judge", {"b": 2}),
        (True, {**OWN, "judge_extra": {}}, "strict", "for-the-judge", {}),
    ],
)
def test_the_judges_ask_the_readers_server_unless_they_have_their_own(
    chat_server, monkeypatch, other, given, model, key, extra
):
    monkeypatch.setenv("MEMALPHA_API_KEY", "for-the-reader")
    monkeypatch.setenv("MEMALPHA_JUDGE_API_KEY", "for-the-judge")
    chat_server.reply = lambda body: "yes"
    own = {"endpoint_url": chat_server.url, "endpoint_model": "m", "endpoint_extra": {"a": 1}}
    if other:
        given = {**given, "judge_url": chat_server.url}
        own["endpoint_url"] = "http://localhost:1/v1"
    judge = EndpointAnswerJudge(RunOptions(reader="endpoint", **own, **given).judge_client())
    assert judge.judge([AnswerRequest(Question("was it seen?", ("x",)), Answer("x"))]) == [True]
    (body,) = chat_server.bodies
    assert body["model"] == model and {name: body[name] for name in "ab" if name in body} == extra
    assert chat_server.headers[0]["Authorization"] == f"Bearer {key}"


URL = {"endpoint_url": "http://localhost:1/v1", "endpoint_model": "m"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reader": "endpoint"}, "endpoint_url"),
        ({"content_judge": "endpoint"}, "judge_url"),
        ({**URL, "judge_url": "ftp://x/v1"}, "endpoint 'ftp://x/v1'"),
        ({"endpoint_timeout": 0}, "timeout is 0"),
        ({**URL, "judge_extra": {"stream": True}}, "'stream'"),
    ],
)
def test_options_that_do_not_fit_are_named_before_anything_is_loaded(given, said):
    with pytest.raises(InputError) as caught:
        RunOptions(**given)
    assert said in str(caught.value)
