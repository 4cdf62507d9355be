"""The OpenAI-compatible proxy: the real client against a server in front of a chat server over
HTTP."""

import gzip
import json
import zlib
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from openai import APIStatusError, OpenAI

from memalpha.contrib.clients.proxy import ProxyOptions, _without
from memalpha.errors import InputError
from tests.helpers.servers import ENVIRONMENT, client, line, running, tokens_file
from tests.helpers.stub_server import Fault, StubServer, completion, error

HISTORY = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Earlier question"},
    {"role": "assistant", "content": "Earlier answer"},
]


def sse(texts):
    chunks = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    head = {"id": "s", "object": "chat.completion.chunk", "created": 0, "model": "stub"}
    events = [json.dumps({**head, **chunk}) for chunk in chunks]
    return "".join(f"data: {event}\r\n\r\n" for event in [*events, "[DONE]"]).encode()


@pytest.fixture(scope="module")
def upstream():
    server = StubServer()
    server.reply = lambda body: f"Noted {len(server.bodies)}."
    yield server
    server.close()


@pytest.fixture(scope="module")
def server(upstream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxy")
    ENVIRONMENT["MEMALPHA_API_KEY"] = "key-of-upstream"
    tokens = tokens_file(folder / "tokens.yaml", line("marta"), line("backend", any_user=True))
    options = {"upstream": upstream.url, "upstream_model": "real-model", "archive": True}
    with running(store=folder / "s.db", tokens=tokens, **options) as server:
        del ENVIRONMENT["MEMALPHA_API_KEY"]
        yield server


def openai_of(server, name, **headers):
    url = f"{server.url}/v1"
    return OpenAI(base_url=url, api_key=f"token-of-{name}", max_retries=0, default_headers=headers)


def held(server, name, **headers):
    with client(server, name, **headers) as http:
        entries = http.get("/v1/memory").json()["entries"]
        return [entry["content"] for entry in entries]


def test_the_real_client_gets_answers_and_what_was_said_is_remembered(server, upstream):
    marta = openai_of(server, "marta")
    asked = [*HISTORY, {"role": "user", "content": "I live in Oslo"}]
    answer = marta.chat.completions.create(model="any", messages=asked, temperature=0.5)
    assert answer.choices[0].message.content.startswith("Noted")
    sent = upstream.bodies[-1]
    assert (sent["model"], sent["temperature"], sent["messages"]) == ("real-model", 0.5, asked)
    assert upstream.headers[-1]["Authorization"] == "Bearer key-of-upstream"
    assert "token-of-marta" not in json.dumps(upstream.headers[-1])
    # the scripted model keeps the last line of what it reads: the assistant's
    assert held(server, "marta") == [f"Assistant: {answer.choices[0].message.content}"]
    upstream.script = [
        Fault(200, sse(["You told me: ", "I live in Oslo"]), {"Content-Type": "text/event-stream"})
    ]
    turn = [{"role": "user", "content": "Where is it, Oslo?"}]
    stream = marta.chat.completions.create(model="any", messages=turn, stream=True)
    text = "".join(chunk.choices[0].delta.content for chunk in stream)
    assert text == "You told me: I live in Oslo"
    system = upstream.bodies[-1]["messages"][0]
    assert system["role"] == "system" and "User: I live in Oslo" in system["content"]
    # of the answer, which restated what was recalled, nothing is learnt
    assert held(server, "marta")[1:] == ["User: Where is it, Oslo?"]
    with client(server, "marta") as http:
        found = http.post("/v1/search", json={"query": "Oslo", "k": 50}).json()["entries"]
    assert sum("live in Oslo" in entry["content"] for entry in found) == 1
    assert "recalled_memory" not in json.dumps(found)


def test_each_user_has_a_memory_of_his_own_by_token_and_header(server, upstream):
    for user in ("ivan", "zoë"):
        name = {"Memalpha-User": "zo%C3%AB" if user == "zoë" else user}
        other = openai_of(server, "backend", **name)
        said = [{"role": "user", "content": f"My name is {user}"}]
        other.chat.completions.create(model="any", messages=said)
        assert len(upstream.bodies[-1]["messages"]) == 1  # nothing of another user's
        assert len(held(server, "backend", **name)) == 1
    with pytest.raises(APIStatusError) as refused:
        openai_of(server, "marta", **{"Memalpha-User": "ivan"}).models.list()
    assert refused.value.status_code == 403
    with pytest.raises(APIStatusError) as refused:
        openai_of(server, "nobody").models.list()
    assert refused.value.status_code == 401


def test_what_the_upstream_says_passes_and_what_fails_is_told(server, upstream):
    marta = openai_of(server, "marta")
    before = held(server, "marta")
    upstream.page = lambda: Fault(
        200, b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
    )
    assert [model.id for model in marta.models.list()] == ["m"]
    said = [{"role": "user", "content": "nothing of this is kept"}]
    upstream.script = [error(429, "too many", Retry_After="7")]
    with pytest.raises(APIStatusError) as refused:
        marta.chat.completions.create(model="any", messages=said)
    assert (refused.value.status_code, refused.value.response.headers["retry-after"]) == (429, "7")
    assert "too many" in str(refused.value)
    upstream.script = [Fault(body=b"{", cut=True)]
    with pytest.raises(APIStatusError) as refused:
        marta.chat.completions.create(model="any", messages=said)
    assert refused.value.status_code == 502 and "does not answer" in str(refused.value)
    with client(server, "marta") as http:
        for body, status in (({"messages": [{"role": "x"}]}, 400), ([], 400), ({}, 400)):
            assert http.post("/v1/chat/completions", json=body).status_code == status
        body = {"model": "any", "messages": [{"role": "user", "content": "fail now"}]}
        upstream.reply = lambda body: "fail now"
        kept = http.post("/v1/chat/completions", json=body)
    assert kept.status_code == 200 and kept.headers["Memalpha-Remembered"] == "no"
    assert kept.json()["choices"][0]["message"]["content"] == "fail now"
    assert held(server, "marta") == before


@pytest.mark.parametrize(
    ("method", "route"),
    [
        ("POST", "chat/completions"),
        ("POST", "responses"),
        ("POST", "embeddings"),
        ("GET", "models"),
    ],
)
def test_an_error_that_repeats_the_key_of_the_upstream_shows_it_to_nobody(
    server, upstream, method, route
):
    told = "Bearer key-of-upstream is no key, nor is key-of-up"
    fault = error(401, told, X_Key="key-of-upstream")
    upstream.script = [fault]
    upstream.page = lambda: fault
    body = {"messages": [{"role": "user", "content": "Hello"}], "input": "Hello"}
    with client(server, "marta") as http:
        answer = http.request(method, f"/v1/{route}", json=body if method == "POST" else None)
    assert answer.status_code == 401 and answer.headers["X-Key"] == "***"
    assert answer.json()["error"]["message"] == "Bearer *** is no key, nor is key-of-up"


@pytest.mark.anyio
@pytest.mark.parametrize("size", [1, 2, 5, 100])
async def test_a_key_is_blanked_wherever_it_is_cut(size):
    async def pieces(data):
        for start in range(0, len(data), size):
            yield data[start : start + size]

    data = b"sk-sk-1sk-1, sk-"
    assert b"".join([each async for each in _without(b"sk-1", pieces(data))]) == b"sk-******, sk-"


@pytest.mark.parametrize(
    ("form", "cut"), [("text/event-stream", 16), ("text/event-stream", 4), ("application/json", 0)]
)
def test_a_stream_is_remembered_however_it_ends(server, upstream, form, cut):
    body = {"stream": True, "messages": [{"role": "user", "content": f"Lima {form} {cut}"}]}
    if cut:  # without the last event, or the end of its line
        upstream.script = [Fault(200, sse(["Noted."])[:-cut], {"Content-Type": form})]
    with client(server, "marta") as http:
        before = held(server, "marta")
        assert http.post("/v1/chat/completions", json=body).status_code == 200
    assert len(held(server, "marta")) > len(before)


def test_odd_requests_are_refused_and_a_crash_loses_no_answer(server, upstream):
    upstream.reply = lambda body: "Fine."
    with client(server, "marta") as http:
        url = "/v1/chat/completions"
        message = '"messages": [{"role": "user", "content": "Hello, Oslo"}]'
        odd = http.post(url, content=f'{{"temperature": NaN, {message}}}')
        assert odd.status_code == 400 and "no chat request" in odd.json()["what"]
        assert http.post(url, content=f'{{"user": "\\ud800", {message}}}').status_code == 200
        assert upstream.bodies[-1]["user"] == "\ud800"
        body = {"messages": [{"role": "user", "content": "crash now"}]}
        answer = http.post(url, json=body)
    assert answer.status_code == 200 and answer.headers["Memalpha-Remembered"] == "no"


def test_an_upstream_that_is_gone_is_told_and_one_that_is_no_url_refused(tmp_path):
    with running(store=tmp_path / "s.db", user="marta", upstream="http://127.0.0.1:9/v1") as server:
        url = f"{server.url}/v1/chat/completions"
        body = {"messages": [{"role": "user", "content": "x"}]}
        assert httpx.post(url, json=body, trust_env=False).status_code == 502
    with pytest.raises(InputError, match="endpoint 'localhost:8000'"):
        ProxyOptions(upstream="localhost:8000")


@pytest.mark.parametrize(
    "place", ["u:SECRET@h/v1", "u:S/@SECRET@h/v1", "h/v1?key=SECRET", "h#SECRET"]
)
def test_a_url_that_is_refused_is_shown_without_what_may_be_secret(place):
    with pytest.raises(InputError, match="endpoint 'https://") as refused:
        ProxyOptions(upstream=f"https://{place}")
    assert "SECRET" not in str(refused.value)


# ------------------------------------------------------------------------------------------------
# the other API, and all that passes
def raw(server, name, method, path, **more):
    with client(server, name) as http:
        return http.request(method, path, **more)


def test_the_responses_api_through_the_real_client(server, upstream):
    ivan = openai_of(server, "backend", **{"Memalpha-User": "responses"})
    part = {"type": "output_text", "text": "Ahoy.", "annotations": []}
    message = {"id": "o", "type": "message", "role": "assistant", "status": "completed"}
    done = {"id": "r", "object": "response", "status": "completed", "model": "m"}
    done["output"] = [{**message, "content": [part]}]
    kind = {"Content-Type": "application/json"}
    upstream.script = [Fault(200, json.dumps(done).encode(), kind)]
    answer = ivan.responses.create(model="any", input="My boat is red.", instructions="Be kind.")
    assert answer.output_text == "Ahoy." and upstream.paths[-1] == "/v1/responses"
    sent = upstream.bodies[-1]
    assert sent == {"model": "real-model", "input": "My boat is red.", "instructions": "Be kind."}
    place = {"item_id": "o", "output_index": 0, "content_index": 0}
    data = [
        {"type": "response.output_text.delta", **place, "delta": "Ahoy.", "logprobs": []},
        {"type": "response.completed", "response": done},
    ]
    text = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in data)
    upstream.script = [Fault(200, text.encode(), {"Content-Type": "text/event-stream"})]
    item = {"role": "user", "content": [{"type": "input_text", "text": "Is my boat fast?"}]}
    stream = ivan.responses.create(model="any", input=[item], stream=True)
    assert [each.type for each in stream] == [each["type"] for each in data]
    sent = upstream.bodies[-1]
    assert sent["input"] == [item] and "My boat is red" in sent["instructions"]
    memory = held(server, "backend", **{"Memalpha-User": "responses"})
    assert memory == ["Assistant: Ahoy.", "User: Is my boat fast?"]  # an answer twice says nothing
    refused = raw(server, "marta", "POST", "/v1/responses", json={"input": "x", "background": True})
    assert refused.status_code == 400 and "background" in refused.json()["error"]["message"]


ROUTES = [
    ("POST", "embeddings"),
    ("POST", "completions"),
    ("POST", "audio/speech"),
    ("POST", "images/generations"),
    ("POST", "moderations"),
    ("GET", "models/m"),
    ("GET", "models/Qwen%2FQwen3-4B"),
    ("GET", "models"),
]


@pytest.mark.parametrize(("method", "route"), ROUTES)
def test_routes_without_a_memory_pass_whole(server, upstream, method, route):
    headers = {
        "Content-Type": "audio/x",
        "x-request-id": "req_1",
        "x-ratelimit-remaining-tokens": "5",
        "openai-processing-ms": "7",
        "retry-after-ms": "9",
        "Set-Cookie": "who=alice",
        "Connection": "x-hop",
        "x-hop": "1",
        "Access-Control-Allow-Origin": "*",
        "Memalpha-Remembered": "yes",
    }
    body = b"\x00\xff" * 100
    upstream.script = [Fault(201, body, headers)]
    upstream.page = lambda: Fault(201, body, headers)
    before = held(server, "marta")
    sent = {"content": b'{"input": "x",  "model": "e"}'} if method == "POST" else {}
    answer = raw(server, "marta", method, f"/v1/{route}?limit=2&after=a%20b", **sent)
    assert (answer.status_code, answer.content) == (201, body)
    assert upstream.asked[-1] == (method, f"/v1/{route}?limit=2&after=a%20b")
    if method == "POST":
        assert upstream.bodies[-1] == {"input": "x", "model": "e"}  # the name of its own model
    named = {"content-type": "audio/x", "x-request-id": "req_1", "openai-processing-ms": "7"}
    named |= {"x-ratelimit-remaining-tokens": "5", "retry-after-ms": "9"}
    assert {name: answer.headers.get(name) for name in named} == named
    left_out = {"set-cookie", "x-hop", "access-control-allow-origin", "memalpha-remembered"}
    assert left_out.isdisjoint(answer.headers)
    assert held(server, "marta") == before


def test_no_cookie_goes_from_one_user_to_another(server, upstream):
    for user in ("alice", "bob"):
        upstream.script = [Fault(200, b"{}", {"Set-Cookie": f"session={user}; Path=/"})]
        other = {"Memalpha-User": user, "Cookie": "mine=1"}
        with client(server, "backend", **other) as http:
            answer = http.post("/v1/embeddings", json={"input": "x"})
        assert answer.status_code == 200 and "set-cookie" not in answer.headers
        assert "Cookie" not in upstream.headers[-1]


@pytest.mark.parametrize(
    "route",
    [
        "files",
        "batches",
        "responses/r_1",
        "fine_tuning/jobs",
        "models/..%2ffiles",
        "models/%2e%2e/files",
        "models/x/../../files",
        "organization/users",
    ],
)
def test_what_is_kept_for_all_users_alike_is_refused(server, upstream, route):
    asked = len(upstream.asked)
    answer = raw(server, "marta", "GET", f"/v1/{route}")
    assert answer.status_code == 404 and len(upstream.asked) == asked
    assert "no GET /v1/" in answer.json()["error"]["message"]


def test_a_photo_passes_and_what_is_longer_is_told(server, upstream):
    upstream.reply = lambda body: "A cat."
    photo = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 3_000_000}"}}
    content = [{"type": "text", "text": "What is on my photo?"}, photo]
    body = {"messages": [{"role": "user", "content": content}]}
    answer = raw(server, "marta", "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200 and "Memalpha-Remembered" not in answer.headers
    assert upstream.bodies[-1]["messages"][-1]["content"] == content
    long = raw(server, "marta", "POST", "/v1/embeddings", content=b"x" * 33_554_433)
    assert long.status_code == 413 and "33554432" in long.json()["error"]["message"]
    assert raw(server, "marta", "POST", "/v1/add", content=b"x" * 1_048_577).status_code == 413


def test_no_header_of_a_request_brings_the_answer_of_another_user(server, upstream):
    sent = {"Idempotency-Key": "1", "Cookie": "who=ann", "X-Client-Request-Id": "mine"}
    for path in ("/v1/embeddings", "/v1/chat/completions", "/v1/responses"):
        body = {"model": "m", "input": "tea", "messages": []}
        raw(server, "marta", "POST", path, json=body, headers=sent)
        passed = {name.lower() for name in upstream.headers[-1]}
        assert passed.isdisjoint({"idempotency-key", "cookie"})


@pytest.mark.parametrize("part", ["[],", '{"a":1},', "1,", '"b",'])
def test_a_long_body_of_many_values_is_refused(server, upstream, part):
    before = len(upstream.bodies)
    body = '{"messages": [], "x": [' + part * 1_048_600 + "0]}"
    refused = raw(server, "marta", "POST", "/v1/chat/completions", content=body)
    assert refused.status_code == 413 and "values" in refused.json()["error"]["message"]
    assert len(upstream.bodies) == before


def test_deep_and_packed_bodies_are_refused_or_pass(server, upstream):
    before = held(server, "marta")
    url = "/v1/chat/completions"
    deep = b'{"messages": ' + b"[" * 100_000
    assert raw(server, "marta", "POST", url, content=deep).status_code == 400
    packed = gzip.compress(json.dumps({"messages": HISTORY}).encode())
    given = {"content": packed, "headers": {"Content-Encoding": "gzip"}}
    assert raw(server, "marta", "POST", url, **given).status_code == 415
    assert held(server, "marta") == before
    for number, body in enumerate((deep, b"<html>maintenance</html>", b"")):
        said = {"messages": [{"role": "user", "content": f"My number is {number}."}]}
        upstream.script = [Fault(200, body, {"Content-Type": "text/html"})]
        answer = raw(server, "marta", "POST", url, json=said)
        assert (answer.status_code, answer.content) == (200, body)
        assert answer.headers["Memalpha-Remembered"] == "no"
        assert held(server, "marta")[-1] == f"User: My number is {number}."
    answer = completion("Quite heavy.")
    said = {"messages": [{"role": "user", "content": "Is it packed?"}]}
    for kind, data in (("gzip", gzip.compress(answer)), ("deflate", zlib.compress(answer))):
        upstream.script = [Fault(200, data, {"Content-Encoding": kind})]
        assert raw(server, "marta", "POST", url, json=said).json() == json.loads(answer)
        assert upstream.headers[-1]["Accept-Encoding"] == "identity"
    assert held(server, "marta")[-1] == "Assistant: Quite heavy."


def memory_of(server):
    """The most memory that a server has held, in bytes."""
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("packed", [False, True])
def test_a_long_answer_passes_in_little_memory_and_is_not_remembered(
    server, upstream, stream, packed
):
    data = b'data: {"choices": [{"index": 0, "delta": {"content": "' + b"long " * 12_000_000
    if packed:
        data = gzip.compress(data * 4, 1)
    headers = {"Content-Encoding": "gzip"} if packed else {}
    upstream.script = [Fault(200, data, headers)]
    said = {"messages": [{"role": "user", "content": f"Long {stream} {packed}"}], "stream": stream}
    before = memory_of(server)
    length = 0
    with (
        client(server, "marta") as http,
        http.stream("POST", "/v1/chat/completions", json=said) as answer,
    ):
        for piece in answer.iter_raw():
            length += len(piece)
    assert length == len(data)
    assert memory_of(server) - before < 110_000_000
    assert held(server, "marta")[-1] == f"User: Long {stream} {packed}"


def test_a_model_that_refuses_system_messages(server, upstream):
    refusal = error(400, "System role not supported")
    upstream.reply = lambda body: "Fine."
    upstream.fault_for = lambda body: (
        refusal if any(each["role"] == "system" for each in body["messages"]) else None
    )
    try:
        zoe = openai_of(server, "backend", **{"Memalpha-User": "zoe"})
        for text in ("I live in Porto.", "Where is Porto?", "And is Porto warm?"):
            said = [{"role": "user", "content": text}]
            answer = zoe.chat.completions.create(model="any", messages=said, stream=False)
            assert answer.choices[0].message.content == "Fine."
        sent = upstream.bodies[-3:]
        roles = [[each["role"] for each in body["messages"]] for body in sent]
        assert roles == [["system", "user"], ["user"], ["user"]]
        assert "I live in Porto" in sent[-1]["messages"][0]["content"]
        own = [{"role": "system", "content": "Be kind."}, *said]
        with pytest.raises(APIStatusError, match="System role not supported"):
            zoe.chat.completions.create(model="any", messages=own)
    finally:
        upstream.fault_for = lambda body: None


@pytest.mark.parametrize(
    "end",
    [
        b'data: {"error": {"message": "overloaded"}}\n\n',
        b"event: error\ndata: {}\n\n",
        b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}\n\n',
        b"",
    ],
)
@pytest.mark.parametrize("cut", [False, True])
def test_of_a_stream_that_breaks_the_users_words_alone_are_remembered(server, upstream, end, cut):
    data = sse(["torn"]).removesuffix(b"data: [DONE]\r\n\r\n") + end
    upstream.script = [Fault(200, data, {"Content-Type": "text/event-stream"}, cut=cut)]
    text = f"I said {len(upstream.bodies)}"
    body = {"stream": True, "messages": [{"role": "user", "content": text}]}
    got = b""
    with (
        client(server, "marta") as http,
        suppress(httpx.RemoteProtocolError),
        http.stream("POST", "/v1/chat/completions", json=body) as answer,
    ):
        for piece in answer.iter_bytes():
            got += piece
    assert got == data and held(server, "marta")[-1] == f"User: {text}"


def test_what_has_too_many_tokens_passes_and_is_not_remembered(server, upstream):
    before = held(server, "marta")
    upstream.reply = lambda body: "Read."
    body = {"messages": [{"role": "user", "content": "word " * 20_000}]}
    answer = raw(server, "marta", "POST", "/v1/chat/completions", json=body)
    assert answer.status_code == 200 and answer.headers["Memalpha-Remembered"] == "no"
    assert held(server, "marta") == before


def test_problems_have_the_message_that_clients_show(server):
    for name, path, status in (("nobody", "responses", 401), ("nobody", "embeddings", 401)):
        answer = raw(server, name, "POST", f"/v1/{path}", json={})
        assert answer.status_code == status and answer.headers["WWW-Authenticate"] == "Bearer"
        assert "no token that this server knows" in answer.json()["error"]["message"]
    assert "error" not in raw(server, "nobody", "POST", "/v1/ask", json={}).json()
