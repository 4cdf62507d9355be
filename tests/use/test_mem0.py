"""Mem0's routes: the real client where it is installed, the same requests by hand, and the rights
of tokens."""

from urllib.parse import quote

import httpx
import pytest
from servers import bearer, client, line, running, tokens_file

from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Operation, OperationKind


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mem0")
    lines = (
        line("marta"),
        line("backend", any_user=True),
        line("chat", any_user=True, agent="chat"),
    )
    tokens = tokens_file(folder / "tokens.yaml", *lines)
    with running(store=folder / "store.db", tokens=tokens, archive=True) as server:
        yield server


@pytest.fixture
def backend(server):
    headers = {"Authorization": "Token token-of-backend"}  # as Mem0's client sends it
    with httpx.Client(base_url=server.url, headers=headers, timeout=30, trust_env=False) as http:
        yield http


def memories(items):
    return [item["memory"] for item in items]


def test_the_real_client(server, monkeypatch, tmp_path, request):
    monkeypatch.setenv("MEM0_TELEMETRY", "False")
    monkeypatch.setenv("MEM0_DIR", str(tmp_path))
    mem0 = pytest.importorskip("mem0", reason="mem0ai is not installed: pip install mem0ai")
    mine = mem0.MemoryClient(api_key="token-of-backend", host=server.url)
    added = mine.add("I live in Oslo", user_id="zoë", timestamp=1709640000, metadata={"a": 1})
    assert added["ignored"] == ["metadata"]
    (result,) = added["results"]
    assert (result["event"], result["memory"]) == ("ADD", "User: I live in Oslo")
    assert result["created_at"].startswith("2024-03-05T12:00")
    mine.add([{"role": "user", "content": "I like tea"}], user_id="zoë", infer=False)
    found = mine.search("tea", filters={"AND": [{"user_id": "zoë"}]}, top_k=1)["results"]
    assert memories(found) == ["User: I like tea"] and found[0]["user_id"] == "zoë"
    listed = mine.get_all(filters={"user_id": "zoë"}, page=1, page_size=2)
    assert (listed["count"], len(listed["results"]), listed["next"]) == (3, 2, "?page=2")
    assert mine.get(result["id"])["memory"] == "User: I live in Oslo"
    mine.delete(result["id"])  # with the line that says it
    assert memories(mine.get_all(filters={"user_id": "zoë"})["results"]) == ["User: I like tea"]
    with pytest.raises(Exception, match="no memory"):
        mine.get(result["id"])
    mine.delete_all(user_id="zoë")
    assert mine.get_all(filters={"user_id": "zoë"})["count"] == 0
    with pytest.raises(ValueError, match="401"):
        mem0.MemoryClient(api_key="nonsense", host=server.url)


@pytest.mark.parametrize("shape", ["v3", "v1", "open"])
def test_a_story_on_each_kind_of_routes(backend, shape):
    user = f"user-{shape}"
    add, search, some = {
        "v3": ("/v3/memories/add/", "/v3/memories/search/", "/v1/memories"),
        "v1": ("/v1/memories/", "/v2/memories/search/", "/v1/memories"),
        "open": ("/memories", "/search", "/memories"),
    }[shape]
    told = [{"role": "user", "content": "[2024-03-05 10:00] Marta lives in Oslo"}]
    body = {"messages": told, "user_id": user, "custom_instructions": "all"}
    added = backend.post(add, json=body).json()
    assert added["ignored"] == ["custom_instructions"]
    backend.post(add, json={"messages": [{"role": "user", "content": "= 1 Rome"}], "user_id": user})
    backend.post(add, json={"messages": "tea", "user_id": user, "run_id": "s2"})
    asked = {"query": "Where is Marta?", "filters": {"user_id": user}, "top_k": 5}
    found = backend.post(search, json=asked).json()["results"]
    assert "User: Marta lives in Oslo" in memories(found) and "User: tea" not in memories(found)
    assert {item["created_at"] for item in found if "Marta" in item["memory"]} == {
        "2024-03-05T10:00"
    }
    best = max(item["score"] for item in found)
    few = backend.post(search, json={**asked, "threshold": best}).json()["results"]
    assert 0 < len(few) < len(found)
    listed = backend.get(some, params={"user_id": user}).json()["results"]
    one = backend.get(f"{some}/{listed[0]['id']}").json()
    assert one == listed[0]
    assert backend.delete(f"{some}/{one['id']}").status_code == 200
    assert backend.delete(f"{some}/{one['id']}").status_code == 404
    assert backend.delete(some, params={"user_id": user}).status_code == 200
    for session in ({}, {"run_id": "s2"}):
        left = backend.get(some, params={"user_id": user, **session}).json()
        assert left["results"] == []


def test_a_token_stays_within_its_reach(server, backend):
    backend.post("/memories", json={"messages": "Ivan has a cat", "user_id": "ivan"})
    chat = {"messages": "Ivan has a dog", "user_id": "ivan", "agent_id": "chat"}
    added = backend.post("/memories", json=chat).json()["results"][0]
    with client(server, "marta") as marta:
        for refused in (
            marta.post("/memories", json={"messages": "x", "user_id": "ivan"}),
            marta.post("/search", json={"query": "cat", "filters": {"user_id": "ivan"}}),
            marta.get("/memories", params={"user_id": "ivan"}),
            marta.delete("/memories", params={"user_id": "ivan"}),
            marta.get(f"/v1/memories/{added['id']}/"),
            marta.delete(f"/memories/{added['id']}"),
        ):
            assert refused.status_code == 403, refused.text
        assert marta.get("/memories").json()["count"] == 0  # her own, without a name
        assert marta.get("/v1/ping/").json()["status"] == "ok"
    with client(server, "chat") as http:  # may erase what its one agent knows, and no more
        assert http.delete("/memories", params={"user_id": "ivan"}).status_code == 200
        assert http.get("/memories", params={"user_id": "ivan"}).json()["count"] == 0
    assert memories(backend.get("/memories", params={"user_id": "ivan"}).json()["results"]) == [
        "User: Ivan has a cat",
        "User: Ivan has a cat",
    ]
    for path in ("/memories", "/v1/ping", "/search"):
        assert httpx.get(f"{server.url}{path}", trust_env=False).status_code == 401


@pytest.mark.parametrize("user", ["org:marta", "a/b?c#d", "50%3A", "ma~b", "zoë@x.org"])
@pytest.mark.parametrize("quoted", [True, False])
def test_an_id_leads_back_to_any_user_in_any_clients_path(backend, user, quoted):
    added = backend.post("/memories", json={"messages": "I like tea", "user_id": user}).json()
    name = added["results"][0]["id"]
    path = f"/v1/memories/{quote(name, safe='') if quoted else name}"
    assert backend.get(path).json()["user_id"] == user
    assert backend.delete(path).status_code == 200


def test_delete_all_erases_what_the_caller_named_and_lines_of_any_schema(tmp_path):
    place = tmp_path / "s.db"
    line = Operation(OperationKind.INSERT, ARCHIVE.name, "User: I have a dog")
    with Journal.open(place) as journal:  # as an import without a model
        core = journal.memory(Namespace("marta"), MemorySchema.load("small_core"))
        core.apply(line, Origin("import"), chunk=1)
    with (
        running(store=place, user="marta", archive=True) as server,
        client(server) as http,
    ):
        for session in ("one", "two"):
            http.post("/memories", json={"messages": "I like tea", "run_id": session})
        http.delete("/memories", headers={"Memalpha-Session": "one"})
        left = [http.get("/memories", params=each).json()["count"] for each in SESSIONS]
        assert left == [1, 0, 2]
        http.delete("/memories")
        assert [http.get("/memories", params=each).json()["count"] for each in SESSIONS] == [0] * 3


SESSIONS = ({}, {"run_id": "one"}, {"run_id": "two"})


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/memories", {"messages": "x"}, 400, "no user named"),
        ("/memories", {"messages": "", "user_id": "a"}, 400, "without a word"),
        (
            "/memories",
            {"messages": [{"role": "pirate", "content": "x"}], "user_id": "a"},
            400,
            "message 0",
        ),
        ("/memories", {"messages": "word " * 20_000, "user_id": "a"}, 413, "tokens"),
        ("/memories", {"messages": "fail now", "user_id": "a"}, 502, "the model"),
        ("/memories", [1], 400, "no JSON object"),
        ("/search", {"query": "x", "filters": {"OR": [{"user_id": "a"}]}}, 400, "the filters"),
        ("/search", {"query": "x", "filters": {"user_id": "a", "app_id": "b"}}, 400, "the filters"),
        ("/search", {"query": "x", "filters": {"AND": 5}}, 400, "the filters"),
        ("/search", {"query": "x", "filters": {"AND": [None]}}, 400, "the filters"),
        ("/search", {"query": " ", "user_id": "a"}, 400, "no query"),
        ("/search", {"query": "x", "user_id": "a", "top_k": 0}, 422, "top_k"),
        ("/memories", {"messages": "x", "user_id": " "}, 400, "user of a namespace"),
        ("/v3/memories/none", {}, 404, "Not Found"),
    ],
)
def test_what_cannot_be_done_is_told(backend, path, body, status, says):
    refused = backend.post(path, json=body)
    assert refused.status_code == status, refused.text
    assert says in refused.json()["what"] and "/secret" not in refused.text


def test_without_an_archive_nothing_is_kept_word_for_word(tmp_path):
    with running(store=tmp_path / "s.db", user="marta") as server:
        body = {"messages": "x", "infer": False}
        refused = httpx.post(
            f"{server.url}/memories", json=body, headers=bearer("x"), trust_env=False
        )
    assert refused.status_code == 400 and "no archive" in refused.json()["what"]
