"""The HTTP API over a real socket: what it does, what it refuses, what it says when something
fails."""

import json
import sqlite3
import time

import httpx
import pytest
from servers import client, line, running, tokens_file


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
    assert marta.get("/v1/memory").json() == {"entries": [], "total": 0}
    added = marta.post(
        "/v1/add", json={"text": "Marta lives in Oslo", "time": "2024-03-05", "source": "letter 1"}
    ).json()
    assert added["operations"] == [1] and added["pieces"] == 1
    assert added["results"] == [
        {"ok": True, "code": "applied", "message": "insert 1", "entry": "1"}
    ]
    marta.post("/v1/add", json={"text": "Ivan is a nurse"})
    page = marta.get("/v1/memory", params={"offset": 1, "limit": 1}).json()
    assert page["total"] == 2 and [entry["id"] for entry in page["entries"]] == ["2"]
    found = marta.post("/v1/search", json={"query": "nurse", "k": 1}).json()["entries"]
    assert [(entry["id"], entry["content"]) for entry in found] == [("2", "Ivan is a nurse")]
    reply = marta.post("/v1/ask", json={"question": "Where does Marta live?"}).json()
    assert (
        reply["answer"] == "[2024-03-05] Marta lives in Oslo"
        and reply["entries"][0]["timestamp"] == "2024-03-05"
    )
    assert (reply["source"]["id"], reply["source"]["timestamp"]) == ("1", "2024-03-05")
    assert marta.post("/v1/ask", json={"question": "?"}).json() == {
        "answer": "unknown",
        "source": None,
        "entries": [],
    }
    assert marta.post("/v1/undo", json={"operation": 2}).json()["after"] is None
    events = marta.get("/v1/history", params={"entry": "2"}).json()["operations"]
    told = [(event["operation"], event["kind"], event["agent"]) for event in events]
    assert told == [(2, "apply", "scripted"), (3, "undo", "marta's client")]
    assert all(event["time"].endswith("+00:00") and event["prompt_hash"] for event in events[:1])
    mistake = marta.post(
        "/v1/add", json={"text": "make a mistake"}
    ).json()  # of the model: no problem
    assert mistake["operations"] == [] and mistake["results"][0]["code"] == "unknown_id"
    assert problem(marta.post("/v1/undo", json={"operation": 2}))["status"] == 409
    assert marta.get("/v1/history", params={"limit": 1}).json()["total"] == 3
    forgotten = marta.post("/v1/forget", json={"entry": "1", "also": None}).json()
    assert (
        forgotten["entry"],
        forgotten["operations"],
        forgotten["said_by"],
        forgotten["scrubbed"],
    ) == ("1", 1, [], True)
    assert marta.get("/v1/memory").json()["total"] == 0
    assert "Oslo" not in marta.get("/v1/history").text
    assert problem(marta.post("/v1/undo", json={"operation": 1}))["status"] == 410
    assert marta.delete("/v1/memory").json()["operations"] == 4
    assert marta.get("/v1/history").json() == {"operations": [], "total": 0}


def test_forget_tells_what_else_has_its_words_and_is_true_while_somebody_reads(tmp_path):
    with (
        running(store=tmp_path / "m.db", user="marta", archive=True) as server,
        client(server) as http,
    ):
        for text in ("Ann: gold!\nAnn has gold", "Ben: gold?\nBen asks"):
            assert http.post("/v1/add", json={"text": text}).json()["pieces"] == 1
        reader = sqlite3.connect(tmp_path / "m.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM log").fetchall()
        response = http.post("/v1/forget", json={"entry": "1"})
        receipt = response.json()
        assert (
            response.status_code == 200 and not receipt["scrubbed"] and receipt["operations"] == 2
        )
        assert {entry["content"] for entry in receipt["said_by"]} == {"Ann: gold!", "Ben: gold?"}
        first, *others = [entry["id"] for entry in receipt["said_by"]]
        assert (
            http.post("/v1/forget", json={"entry": first, "also": [*others, "99"]}).status_code
            == 400
        )
        assert (
            http.post("/v1/forget", json={"entry": first, "also": others}).json()["operations"] == 2
        )
        assert http.post("/v1/ask", json={"question": "gold"}).json()["answer"] == "unknown"
        assert b"gold" in (tmp_path / "m.db-wal").read_bytes()
        reader.close()
        end = time.monotonic() + 20
        while any(b"gold" in path.read_bytes() for path in tmp_path.glob("m.db*")):
            assert time.monotonic() < end  # the server tries again by itself
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/v1/add", {"txt": "a"}, 422, "body.txt: Extra inputs are not permitted"),
        ("POST", "/v1/add", {"text": " \n"}, 400, "without a word"),
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
        ("POST", "/v1/forget", {"entry": "1"}, 400, "nothing of an entry '1'"),
        ("DELETE", "/v1/memory", None, 400, "no namespace"),
        ("GET", "/v1/history?entyr=1", None, 422, "query.entyr: Extra inputs"),
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
    "headers", [{}, {"Authorization": "Bearer nonsense"}, {"Authorization": "Basic token-of-marta"}]
)
def test_no_token_no_answer(server, headers):
    with client(server, None, **headers) as http:
        for response in (
            http.get("/v1/memory"),
            http.post("/mcp", json={}),
            http.get("/no/such/path"),
        ):
            assert (
                problem(response)["status"] == 401
                and response.headers["www-authenticate"] == "Bearer"
            )
        assert http.get("/health").json()["status"] == "running" and http.get("/ready").json() == {
            "status": "ready"
        }


def test_a_backend_names_its_user_and_keeps_to_its_agent(server):
    with client(server, "backend") as backend, client(server, "zoe") as zoe:
        assert problem(zoe.get("/v1/memory", headers={"Memalpha-User": "marta"}))["status"] == 403
        assert problem(backend.get("/v1/memory"))["status"] == 400
        assert (
            problem(
                backend.get("/v1/memory", headers={"Memalpha-User": "x", "Memalpha-Agent": "other"})
            )["status"]
            == 403
        )
        for raw in ("zo%FF", "%20", "a%00b", "x" * 300):
            assert (
                problem(backend.get("/v1/memory", headers={"Memalpha-User": raw}))["status"] == 400
            )
        backend.post(
            "/v1/add", json={"text": "zoë likes tea"}, headers={"Memalpha-User": "zo%C3%AB"}
        )
        assert zoe.get("/v1/memory").json()["total"] == 0
        assert (
            zoe.get("/v1/memory", headers={"Memalpha-Agent": "chat"}).json()["entries"][0][
                "content"
            ]
            == "zoë likes tea"
        )


@pytest.mark.parametrize("name", ["Authorization", "Memalpha-User"])
def test_a_header_that_decides_may_not_come_twice(server, name):
    headers = {"Authorization": "Bearer token-of-marta", "Memalpha-User": "marta"}
    twice = [
        *headers.items(),
        (name, "Bearer token-of-ivan" if name == "Authorization" else "marta"),
    ]
    assert httpx.get(f"{server.url}/v1/memory", headers=twice, trust_env=False).status_code == 400


@pytest.mark.parametrize(
    "host", ["evil.example:8080", "127.0.0.1.evil.example", "evil@127.0.0.1", "", "[::1"]
)
def test_a_name_that_is_not_this_machine_is_refused(server, host):
    with client(server, "marta", Host=host) as http:
        for response in (http.get("/health"), http.get("/v1/memory")):
            assert response.status_code in (400, 421) and (
                not host or problem(response)["status"] == 421
            )


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "http://127.0.0.1.evil.example", "http://evil.example:80@x"],
)
def test_a_page_from_elsewhere_is_refused(server, origin):
    with client(server, "marta", Origin=origin) as http:
        assert problem(http.post("/v1/add", json={"text": "planted"}))["status"] == 403
        assert problem(http.post("/mcp", json={}))["status"] == 403


def test_this_machine_may_be_called_by_its_names_and_pages(server):
    for more in (
        {"Host": f"localhost:{server.port}"},
        {"Host": "[::1]"},
        {"Origin": "http://localhost:3000"},
    ):
        with client(server, "marta", **more) as http:
            assert http.get("/v1/memory").status_code == 200


def test_the_description_names_every_operation_and_its_problems(server):
    with client(server) as http:
        described = http.get("/openapi.json").json()
    assert {
        (path, method) for path, methods in described["paths"].items() for method in methods
    } == {
        ("/health", "get"),
        ("/ready", "get"),
        ("/v1/add", "post"),
        ("/v1/ask", "post"),
        ("/v1/search", "post"),
        ("/v1/memory", "get"),
        ("/v1/memory", "delete"),
        ("/v1/history", "get"),
        ("/v1/undo", "post"),
        ("/v1/forget", "post"),
    }
    add = described["paths"]["/v1/add"]["post"]
    problems = {"400", "401", "403", "408", "409", "410", "413", "421", "422", "500", "502", "503"}
    assert set(add["responses"]) == {"200", *problems} and add["security"] == [{"HTTPBearer": []}]
    assert {each["name"] for each in add["parameters"]} == {
        "Memalpha-User",
        "Memalpha-Agent",
        "Memalpha-Session",
    }
