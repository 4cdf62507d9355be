"""One request with a memory, without a server: which answers are remembered, what is said again,
and where what is recalled stands."""

import json
import threading
import time

import pytest

from memalpha.contrib.clients.chatting import ChatMemory
from memalpha.contrib.clients.exchange import CHAT, MAX_HEARD, RESPONSES, Exchange
from memalpha.errors import InputError
from memalpha.memory.schema import ARCHIVE
from memalpha.use.agent import MemoryAgent


@pytest.fixture
def memory():
    with MemoryAgent.without_model(retrieval="lexical") as agent:
        yield ChatMemory(agent)


def held(memory):
    with memory.agent.reading() as (entries, _):
        return [line.content for line in entries.entries(ARCHIVE.name)]


def user(text):
    return {"role": "user", "content": text}


def chat(*messages, **more):
    return {"model": "m", "messages": list(messages), **more}


def completion(content, **more):
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, **more}
    return json.dumps({"choices": [choice]}).encode()


def chunk(text, reason=None):
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": reason}]}


def sse(*events, end="\n\n"):
    texts = [each if isinstance(each, str) else f"data: {json.dumps(each)}" for each in events]
    return "".join(f"{text}{end}" for text in texts).encode()


def response(text, **more):
    part = {"type": "output_text", "text": text}
    return {"output": [{"type": "message", "role": "assistant", "content": [part]}], **more}


def delta(text):
    return {"type": "response.output_text.delta", "delta": text}


def talk(memory, form, body, data, size=None):
    """Ask, hear the answer in pieces, and return what was left out."""
    exchange = Exchange(memory, form, body)
    size = size or max(1, len(data))
    for start in range(0, len(data), size):
        exchange.feed(data[start : start + size])
    exchange.end()
    return exchange.remember()


DONE = "data: [DONE]"
TORN = {
    "an error event": (CHAT, sse(chunk("torn"), {"error": {"message": "overloaded"}}, DONE)),
    "an error by name": (CHAT, sse(chunk("torn"), "event: error\ndata: it broke", DONE)),
    "an error of another type": (CHAT, sse(chunk("torn"), {"type": "error", "message": "x"})),
    "no end": (CHAT, sse(chunk("torn"), chunk(" off"))),
    "cut amid an event": (CHAT, sse(chunk("torn"), chunk("off", "stop"))[:-40]),
    "too many tokens": (CHAT, sse(chunk("torn"), chunk("", "length"), DONE)),
    "a filter": (CHAT, completion("torn", finish_reason="content_filter")),
    "an error of a gateway": (CHAT, sse(chunk("torn"), chunk("", "error"), DONE)),
    "an error with 200": (CHAT, b'{"error": {"message": "torn"}}'),
    "a page": (CHAT, b"<html>torn: maintenance</html>"),
    "nothing": (CHAT, b""),
    "white space": (CHAT, b" \r\n\n "),
    "half of an object": (CHAT, completion("torn")[:-3]),
    "no completion": (CHAT, b'{"detail": "torn"}'),
    "odd choices": (CHAT, b'{"choices": [["torn"]]}'),
    "an odd message": (CHAT, b'{"choices": [{"message": "torn"}]}'),
    "no object": (CHAT, b'["torn"]'),
    "deep": (CHAT, b'{"choices": ' + b"[" * 100_000),
    "not UTF-8": (CHAT, b'{"choices": "\xff"}'),
    "a failed response": (
        RESPONSES,
        sse(delta("torn"), {"type": "response.failed", "response": {"error": {"code": "x"}}}),
    ),
    "an incomplete response": (
        RESPONSES,
        sse(delta("torn"), {"type": "response.incomplete", "response": response("torn")}),
    ),
    "an error of responses": (RESPONSES, sse(delta("torn"), {"type": "error", "code": "x"})),
    "a response without end": (RESPONSES, sse(delta("torn"), delta(" off"))),
    "a failed object": (RESPONSES, json.dumps(response("torn", status="failed")).encode()),
    "an incomplete object": (RESPONSES, json.dumps(response("torn", status="incomplete")).encode()),
    "an object with an error": (RESPONSES, json.dumps(response("torn", error={})).encode()[:-4]),
}


@pytest.mark.parametrize("kind", TORN)
@pytest.mark.parametrize("size", [None, 1])
def test_of_what_is_no_whole_answer_the_users_words_alone_are_remembered(memory, kind, size):
    form, data = TORN[kind]
    if size and len(data) > 10_000:
        size = 999
    body = chat(user("I sail.")) if form is CHAT else {"input": "I sail."}
    assert "not remembered" in talk(memory, form, body, data, size)
    assert held(memory) == ["User: I sail."]
    whole = completion("Noted.") if form is CHAT else json.dumps(response("Noted.")).encode()
    assert talk(memory, form, body, whole) == ""  # a retry adds the answer alone
    assert held(memory) == ["User: I sail.", "Assistant: Noted."]


@pytest.mark.parametrize(
    ("form", "data"),
    [
        (CHAT, completion("Fair winds.")),  # some servers give no reason
        (CHAT, b"\xef\xbb\xbf \n" + completion("Fair winds.", finish_reason="stop")),
        (CHAT, completion([{"type": "text", "text": "Fair "}, {"type": "text", "text": "winds."}])),
        (CHAT, completion([{"type": "thinking", "thinking": []}, {"text": "Fair winds."}])),
        (CHAT, sse(": wait", chunk("Fair "), chunk("winds."), chunk(None, "stop"))),
        (CHAT, sse(chunk("Fair "), chunk("winds."), DONE, end="\r\n\r\n")),
        (CHAT, sse(chunk("Fair "), chunk([{"type": "text", "text": "winds."}]), DONE)[:-2]),
        (CHAT, sse(chunk("Fair winds.", "eos_token"), {"choices": [], "usage": {}}, DONE)),
        (CHAT, sse(chunk("Fair ", "stop"), chunk("winds.", "stop"), DONE)),  # a reason with each
        (CHAT, sse(chunk("Fair ", "stop"), chunk("winds.", "stop"))),
        (RESPONSES, json.dumps(response("Fair winds.", status="completed")).encode()),
        (
            RESPONSES,
            sse(
                {"type": "response.created", "response": {"status": "in_progress", "output": []}},
                delta("Fair "),
                delta("winds."),
                {"type": "response.completed", "response": {"output": []}},
            ),
        ),
        (
            RESPONSES,
            sse(delta("x"), {"type": "response.completed", "response": response("Fair winds.")}),
        ),
    ],
)
@pytest.mark.parametrize("size", [None, 1])
def test_whole_answers_are_remembered_in_whatever_form_and_pieces(memory, form, data, size):
    body = chat(user("I sail.")) if form is CHAT else {"input": [user("I sail.")]}
    assert talk(memory, form, body, data, size) == ""
    assert held(memory) == ["User: I sail.", "Assistant: Fair winds."]


EXAMPLE = [user("I am Bo."), {"role": "assistant", "content": "Hi Bo."}]
PREFILL = [{"role": "assistant", "content": "Well,"}]


@pytest.mark.parametrize(("before", "after"), [([], []), (EXAMPLE, []), ([], PREFILL)])
def test_the_same_words_after_others_are_said_again_and_a_retry_is_not(memory, before, after):
    texts = ["I am in Porto.", "I am in Porto.", "I am in Gdansk.", "I am in Porto."]
    for text in texts:
        talk(memory, CHAT, chat(*before, user(text), *after), completion("Fine."))
    said = [line for line in held(memory) if line.startswith("User")]
    assert said == [f"User: {text}" for text in texts[1:]]


def test_the_same_words_in_a_conversation_that_the_server_keeps(memory):
    data = json.dumps(response("Fine.")).encode()
    for text in ("red", "blue", "red"):
        talk(memory, RESPONSES, {"input": text, "conversation": {"id": "c"}}, data)
    for number in (1, 2):  # each at a place of its own
        talk(memory, RESPONSES, {"input": "green", "previous_response_id": f"r{number}"}, data)
    said = [line for line in held(memory) if line.startswith("User")]
    assert said == [f"User: {text}" for text in ("red", "blue", "red", "green", "green")]


def test_tools_go_on_with_a_turn_though_another_came_between(memory):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    asks = completion(None, finish_reason="tool_calls")
    outputs = [
        {"role": "assistant", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "14 degrees"},
    ]
    talk(memory, CHAT, chat(user("I sail."), tools=[call]), asks)
    talk(memory, CHAT, chat(user("I row.")), completion("So?"))
    talk(memory, CHAT, chat(user("I sail."), *outputs), completion("It is cold."))
    items = [
        user("I ski."),
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "snow"},
    ]
    cold = json.dumps(response("It snows.")).encode()
    talk(memory, RESPONSES, {"input": items[:1]}, json.dumps({"output": items[1:2]}).encode())
    talk(memory, CHAT, chat(user("I walk.")), completion("Far?"))
    talk(memory, RESPONSES, {"input": items}, cold)
    # the answers before stand there as references
    kept = [user("I ski."), {"type": "item_reference", "id": "msg_1"}, user("I rest.")]
    talk(memory, RESPONSES, {"input": kept}, json.dumps(response("Good.")).encode())
    assert held(memory) == [
        "User: I sail.",
        "User: I row.",
        "Assistant: So?",
        "Assistant: It is cold.",
        "User: I ski.",
        "User: I walk.",
        "Assistant: Far?",
        "Assistant: It snows.",
        "User: I rest.",
        "Assistant: Good.",
    ]


def test_words_whose_answer_failed_are_not_read_again_with_the_next_ones(memory):
    talk(memory, CHAT, chat(user("I sail.")), b"")
    talk(memory, CHAT, chat(user("I sail."), user("I row.")), completion("Both?"))
    assert held(memory) == ["User: I sail.", "User: I row.", "Assistant: Both?"]


def test_a_request_that_is_sent_again_while_its_first_is_read(memory, monkeypatch):
    add = memory.agent.add

    def slow(*arguments, **options):
        time.sleep(0.2)
        return add(*arguments, **options)

    monkeypatch.setattr(memory.agent, "add", slow)
    threads = [
        threading.Thread(target=talk, args=(memory, CHAT, chat(user("I sail.")), completion("So?")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert held(memory) == ["User: I sail.", "Assistant: So?"]


@pytest.mark.parametrize(
    ("status", "told", "moves"),
    [
        (400, "System role not supported", True),
        (400, "Conversation roles must alternate user/assistant/user/assistant/...", True),
        (400, "Developer instruction is not enabled for models/gemma-3-4b-it", True),
        (422, "Template error", True),
        (500, "Jinja Exception: Only user and assistant roles are supported!", True),
        (500, "out of memory", False),
        (429, "the system is busy", False),
    ],
)
def test_a_refused_system_message_goes_beside_the_users_for_that_model(memory, status, told, moves):
    memory.agent.add("User: I live in Porto.")
    photo = {"type": "image_url", "image_url": {"url": "data:,"}}
    where = {"type": "text", "text": "Where is Porto?"}
    exchange = Exchange(memory, CHAT, chat(user([where, photo]), model="gemma"))
    assert exchange.body["messages"][0]["role"] == "system"
    assert exchange.moves_block(status, told) is moves
    if not moves:
        return
    (message,) = exchange.body["messages"]
    assert "I live in Porto" in message["content"][0]["text"]
    assert message["role"] == "user" and message["content"][1:] == [where, photo]
    assert not exchange.moves_block(status, told)  # once
    exchange.accepted()
    later = Exchange(memory, RESPONSES, {"model": "gemma", "input": "Where is Porto?"})
    assert later.body["input"].endswith("</recalled_memory>\n\nWhere is Porto?")
    assert "instructions" not in later.body
    other = Exchange(memory, CHAT, chat(user("Where is Porto?"), model="other"))
    assert [each["role"] for each in other.body["messages"]] == ["system", "user"]


def test_instructions_of_the_caller_are_kept_where_they_are(memory):
    memory.agent.add("User: I live in Porto.")
    asked = user("Where is Porto?")
    developer = {"role": "developer", "content": "Be kind."}
    exchange = Exchange(memory, CHAT, chat(*EXAMPLE, developer, asked))
    messages = exchange.body["messages"]
    assert messages[:2] == EXAMPLE and messages[3] == asked and len(messages) == 4
    assert messages[2]["content"].startswith("Be kind.\n\n<recalled_memory>")
    assert not exchange.moves_block(400, "System role not supported")  # it is the caller's own
    exchange = Exchange(memory, RESPONSES, {"input": [asked], "instructions": "Be kind."})
    assert exchange.body["instructions"].startswith("Be kind.\n\n<recalled_memory>")
    for body in ({"input": "x", "background": True}, {"input": "x", "instructions": [1]}):
        with pytest.raises(InputError):
            Exchange(memory, RESPONSES, body)
    for messages in (None, "x", {"a": 1}, 7):
        with pytest.raises(InputError):
            Exchange(memory, CHAT, {"messages": messages})


def test_an_answer_without_an_end_is_held_up_to_a_limit_in_linear_time(memory):
    exchange = Exchange(memory, CHAT, chat(user("I sail.")))
    piece = b"data: {" + b" " * 1017
    start = time.process_time()
    most = 0
    for _ in range(2 * MAX_HEARD // len(piece)):
        exchange.feed(piece)
        most = max(most, len(exchange._held))
    assert time.process_time() - start < 5
    assert most <= MAX_HEARD + len(piece) and len(exchange._held) == 0
    exchange.feed(sse(chunk("Fine.", "stop")))  # of what is too long nothing more is heard
    exchange.end()
    assert f"longer than {MAX_HEARD} bytes" in exchange.remember()
    assert held(memory) == ["User: I sail."]


def test_a_long_conversation_is_looked_through_in_linear_time(memory):
    start = time.process_time()
    for asked in (
        [user("a")] * 20_000,
        [user("a"), {"role": "assistant", "content": "b"}] * 20_000 + [user("c")],
    ):
        Exchange(memory, CHAT, chat(*asked))
    assert time.process_time() - start < 10


def test_what_has_too_many_tokens_is_not_remembered(memory):
    short = ChatMemory(memory.agent, max_text_tokens=20)
    assert "more than 20 tokens" in talk(short, CHAT, chat(user("a " * 100)), completion("Fine."))
    assert "more than 20 tokens" in talk(short, CHAT, chat(user("b" * 10_000)), completion("Fine."))
    assert held(memory) == []
    long = completion("so " * 100)
    assert "an answer of more than 20 tokens" in talk(short, CHAT, chat(user("I row.")), long)
    assert held(memory) == ["User: I row."]
