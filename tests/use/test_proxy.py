"""The OpenAI-compatible proxy: the real client against a server in front of a chat server over
HTTP."""

import json

import httpx
import pytest
from openai import APIStatusError, OpenAI
from servers import ENVIRONMENT, client, line, running, tokens_file
from stub_server import Fault, StubServer, error

from memalpha.errors import InputError
from memalpha.use.access import ServeConfig

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
        ServeConfig(upstream="localhost:8000")
