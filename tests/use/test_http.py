"""The HTTP API over a real socket: what it does, what it refuses, what it says when something
fails."""

import json

import httpx
import pytest

from memalpha.conversation.recalled import CLOSE, OPEN
from tests.helpers.servers import client, line, running, tokens_file


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("http")
    lines = (
        line("marta"),
        line("ivan"),
        line("backend", any_user=True, agent="chat"),
        line("zoe", user="zoë"),
    )
    tokens = tokens_file(folder / "tokens.yaml", *lines)
    with running(
        store=folder / "store.db", tokens=tokens, max_text_tokens=200, max_body_bytes=20_000
    ) as server:
        yield server


@pytest.fixture
def marta(server, request):
    with client(
        server,
        "marta",
        **{"Memalpha-Session": request.node.name.replace("[", "-").replace("]", "")},
    ) as http:
        yield http


def problem(response):
    assert response.headers["content-type"] == "application/problem+json"
    body = response.json()
    assert body["status"] == response.status_code and body["title"] and body["what"]
    return body


def test_a_story(marta):
    assert marta.get("/v1/memory").json() == {"entries": [], "total": 0, "lines": 0}
    text = {"text": "Marta lives in Oslo", "time": "2024-03-05", "source": "letter 1"}
    added = marta.post("/v1/add", json=text).json()
    result = {"ok": True, "code": "applied", "message": "insert 1", "entry": "1"}
    assert added == {**added, "operations": [1], "pieces": 1, "results": [result]}
    marta.post("/v1/add", json={"text": "Ivan is a nurse"})
    page = marta.get("/v1/memory", params={"offset": 1, "limit": 1}).json()
    assert page["total"] == 2 and [entry["id"] for entry in page["entries"]] == ["2"]
    found = marta.post("/v1/search", json={"query": "nurse", "k": 1}).json()["entries"]
    assert [(entry["id"], entry["content"]) for entry in found] == [("2", "Ivan is a nurse")]
    reply = marta.post("/v1/ask", json={"question": "Where does Marta live?"}).json()
    assert reply["answer"] == "[2024-03-05] Marta lives in Oslo"
    assert (reply["source"]["id"], reply["source"]["timestamp"]) == ("1", "2024-03-05")
    assert (reply["known"], reply["by_reader"], reply["probability"]) == (True, False, None)
    (first, *_) = reply["passages"]
    assert (first["text"], first["fits"], first["entry"]["id"]) == (
        "Marta lives in Oslo",
        [0, 19],
        "1",
    )
    assert (first["time"], first["source"], first["newer"]) == ("2024-03-05", "letter 1", None)
    unknown = {"answer": "unknown", "source": None, "entries": [], "searches": []}
    unknown |= {"known": False, "by_reader": False, "probability": None, "passages": []}
    assert marta.post("/v1/ask", json={"question": "?"}).json() == unknown
    assert marta.post("/v1/undo", json={"operation": 2}).json()["after"] is None
    events = marta.get("/v1/history", params={"entry": "2"}).json()["operations"]
    told = [(event["operation"], event["kind"], event["agent"]) for event in events]
    assert told == [(2, "apply", "scripted"), (3, "undo", "marta's client")]
    mistake = marta.post("/v1/add", json={"text": "make a mistake"}).json()
    assert mistake["results"][0]["code"] == "unknown_id"  # of the model: no problem
    assert problem(marta.post("/v1/undo", json={"operation": 2}))["status"] == 409
    assert marta.get("/v1/history", params={"limit": 1}).json()["total"] == 3
    receipt = marta.post("/v1/forget", json={"entry": "1", "also": None}).json()
    assert receipt == {**receipt, "operations": 1, "said_by": [], "scrubbed": True}
    assert "Oslo" not in marta.get("/v1/history").text
    assert problem(marta.post("/v1/undo", json={"operation": 1}))["status"] == 410
    assert marta.delete("/v1/memory").json()["operations"] == 4
    assert marta.get("/v1/history").json() == {"operations": [], "total": 0}


BLOCK = f"{OPEN}\n- Marta lives in Oslo\n{CLOSE}"


@pytest.mark.parametrize(
    ("text", "left_out"), [(BLOCK, BLOCK), (f"{BLOCK}\n", BLOCK), (f" {CLOSE}\n", CLOSE)]
)
def test_a_text_of_nothing_but_what_was_recalled_is_left_out_and_no_failure(marta, text, left_out):
    answer = marta.post("/v1/add", json={"text": text})
    assert answer.status_code == 200
    nothing = {"operations": [], "lines": 0, "results": [], "pieces": 0, "removed": 0}
    assert answer.json() == {**nothing, "left_out": [left_out]}
    assert marta.get("/v1/history").json()["total"] == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/add", {"txt": "a"}, 422, "body.txt: Extra inputs are not permitted"),
        ("POST", "/v1/add", {"text": " \n"}, 400, "has no word"),
        ("POST", "/v1/add", {"text": "a\ud800"}, 422, "body.text"),
        (
            "POST",
            "/v1/add",
            {"text": "a", "time": "yesterday"},
            400,
            "the time of a text is 'yesterday'",
        ),
        ("POST", "/v1/add", {"text": "word " * 300}, 413, "tokens"),
        ("POST", "/v1/add", {"text": "word " * 10_000}, 413, "the request's body"),
        ("POST", "/v1/add", {"text": "fail now"}, 502, "the model"),
        ("POST", "/v1/add", {"text": "crash now"}, 500, "the server failed"),
        ("POST", "/v1/undo", {"operation": 1}, 400, "operation 1 cannot be undone"),
        ("POST", "/v1/undo", {"operation": True}, 422, "body.operation"),
        ("POST", "/v1/forget", {"entry": "1"}, 400, "has no entry or line '1'"),
        ("DELETE", "/v1/memory", None, 400, "no namespace"),
        ("GET", "/v1/history?entyr=1", None, 422, "query.entyr: Extra inputs"),
        ("POST", "/v1/search?k=1", {"query": "a"}, 422, "POST /v1/search with a query"),
        ("POST", "/v1/add?time=2024", {"text": "a"}, 422, "POST /v1/add with a query"),
        ("GET", "/v1/memory", {"offset": 5}, 422, "GET /v1/memory with a body"),
        ("GET", "/v1/nothing", None, 404, "Not Found"),
        ("GET", "/mcp", None, 405, "Method Not Allowed"),
    ],
)
def test_what_is_refused_is_told_and_nothing_is_written(marta, method, path, body, status, says):
    content = None if body is None else json.dumps(body)
    said = problem(
        marta.request(method, path, content=content, headers={"Content-Type": "application/json"})
    )
    assert said["status"] == status and says in said["what"]
    assert "/secret" not in json.dumps(said) and "Traceback" not in json.dumps(said)
    assert marta.get("/v1/history").json()["total"] == 0


@pytest.mark.parametrize(
    ("method", "path", "content", "kind", "says"),
    [
        ("POST", "/v1/forget", '{"entry": "1", "entry": "2"}', "json", "a name occurs twice"),
        ("POST", "/v1/add", '{"text": "one", "text": "two"}', "json", "a name occurs twice"),
        ("POST", "/v1/add", '{"text": NaN}', "json", "NaN is not a finite number"),
        ("POST", "/v1/add", '{"text": 1e999}', "json", "1e999 is not a finite number"),
        ("POST", "/v1/add", '{"text": "one"}', "x-www-form-urlencoded", "'application/x-www-form"),
        ("GET", "/v1/history?entry=1&entry=2", "", "json", "a field of the query stands there twi"),
        ("GET", "/v1/memory?limit=1&limit=1", "", "json", "a field of the query stands there twi"),
    ],
)
def test_fields_that_stand_twice_or_are_no_json_are_refused(
    marta, method, path, content, kind, says
):
    for text in ("Marta lives in Oslo", "Bob likes tea"):
        marta.post("/v1/add", json={"text": text})
    headers = {"Content-Type": f"application/{kind}"}
    refused = problem(marta.request(method, path, content=content, headers=headers))
    assert refused["status"] == 422 and says in refused["what"]
    assert marta.get("/v1/memory").json()["total"] == 2


def test_a_deletion_whose_body_names_one_entry_does_not_erase_all(marta):
    marta.post("/v1/add", json={"text": "Marta lives in Oslo"})
    for body in ({"entry": "1"}, {"user": "bob"}, [], None, "1"):
        content = json.dumps(body)
        refused = problem(marta.request("DELETE", "/v1/memory", content=content))
        assert refused["status"] == 422 and "DELETE /v1/memory with a body" in refused["what"]
    assert marta.get("/v1/memory").json()["total"] == 1
    assert marta.request("DELETE", "/v1/memory", content=" {} ").json()["operations"] == 1


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic token-of-marta"}]
)
def test_no_token_no_answer(server, headers):
    with client(server, None, **headers) as http:
        for path in ("/v1/memory", "/mcp", "/no/such/path"):
            refused = http.get(path)
            assert problem(refused)["status"] == 401
            assert refused.headers["www-authenticate"] == "Bearer"
        assert http.get("/health").status_code == http.get("/ready").status_code == 200


def test_a_backend_names_its_user_and_keeps_to_its_agent(server):
    with client(server, "backend") as backend, client(server, "zoe") as zoe:
        headers = {"Memalpha-User": "zo%C3%AB"}
        backend.post("/v1/add", json={"text": "zoë likes tea"}, headers=headers)
        assert zoe.get("/v1/memory").json()["total"] == 0
        assert zoe.get("/v1/memory", headers={"Memalpha-Agent": "chat"}).json()["total"] == 1
        for caller, status, asked in (
            (zoe, 403, {"Memalpha-User": "marta"}),
            (backend, 403, {**headers, "Memalpha-Agent": "other"}),
            (backend, 400, {}),
            *((backend, 400, {"Memalpha-User": raw}) for raw in ("zo%FF", "%20", "a%00b")),
        ):
            assert problem(caller.get("/v1/memory", headers=asked))["status"] == status


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ([("Host", "localhost:80")], 200),
        ([("Host", "[::1]")], 200),
        ([("Host", "evil.example:8080")], 421),
        ([("Host", "127.0.0.1.evil.example")], 421),
        ([("Host", "evil@127.0.0.1")], 421),
        ([("Origin", "http://localhost:3000")], 200),
        ([("Origin", "https://evil.example")], 403),
        ([("Origin", "null")], 403),
        ([("Origin", "http://127.0.0.1.evil.example")], 403),
        ([("Authorization", "Bearer token-of-ivan")], 400),  # what decides may not come twice
        ([("Memalpha-User", "marta"), ("Memalpha-User", "marta")], 400),
    ],
)
def test_names_of_this_machine_its_pages_and_headers_that_decide(server, more, status):
    headers = [("Authorization", "Bearer token-of-marta"), *more]
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as http:
        assert http.get("/v1/memory").status_code == status
        assert status == 200 or http.post("/mcp", json={}).status_code == status
