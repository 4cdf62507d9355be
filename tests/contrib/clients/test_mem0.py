"""Mem0's routes: the real client where it is installed, the same requests by hand, and the rights
of tokens."""

from urllib.parse import quote

import httpx
import pytest

from memalpha.contrib.benchmarks.server import MemoryServer, ServerOptions
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.store.exchange import export_journal, import_journal
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Chunk, Operation, OperationKind
from tests.helpers.servers import bearer, client, line, running, tokens_file


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
    result, kept = added["results"]  # the fact, and the line that says it
    assert (result["event"], result["memory"]) == ("ADD", "User: I live in Oslo")
    assert kept["memory"] == result["memory"] and kept["metadata"] == {"a": 1}
    assert result["created_at"].startswith("2024-03-05T12:00")
    mine.add([{"role": "user", "content": "I like tea"}], user_id="zoë", infer=False)
    found = mine.search("tea", filters={"AND": [{"user_id": "zoë"}]}, top_k=1)["results"]
    assert memories(found) == ["User: I like tea"] and found[0]["user_id"] == "zoë"
    listed = mine.get_all(filters={"user_id": "zoë"}, page=1, page_size=2)
    assert (listed["count"], len(listed["results"]), listed["next"]) == (3, 2, "?page=2")
    assert mine.get(result["id"])["memory"] == "User: I live in Oslo"
    mine.update(result["id"], text="Zoë lives in Rome", metadata={"b": [2]})
    assert mine.get(result["id"])["metadata"] == {"a": 1, "b": [2]}
    first, second = mine.history(result["id"])
    assert (first["event"], second["event"]) == ("ADD", "UPDATE")
    assert (second["old_memory"], second["new_memory"]) == (
        "User: I live in Oslo",
        "Zoë lives in Rome",
    )
    by_metadata = mine.get_all(filters={"user_id": "zoë", "metadata": {"a": {"gte": 1}}})
    assert memories(by_metadata["results"]) == ["Zoë lives in Rome"]  # the line went with the fact
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
    added = backend.post(add, json={"messages": told, "user_id": user}).json()["results"]
    assert memories(added) == ["[2024-03-05T10:00] User: Marta lives in Oslo"] * 2
    backend.post(add, json={"messages": [{"role": "user", "content": "= 1 Rome"}], "user_id": user})
    backend.post(add, json={"messages": "tea", "user_id": user, "run_id": "s2"})
    asked = {"query": "Where is Marta?", "filters": {"user_id": user}, "top_k": 5}
    found = backend.post(search, json=asked).json()["results"]
    assert memories(added)[0] in memories(found) and "User: tea" not in memories(found)
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
    for path in ("/v1/entities", "/v2/entities/user/ivan", "/v1/batch"):
        assert httpx.get(f"{server.url}{path}", trust_env=False).status_code == 401
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
        ("/memories", {"messages": "", "user_id": "a"}, 400, "has no word"),
        (
            "/memories",
            {"messages": [{"role": "pirate", "content": "x"}], "user_id": "a"},
            400,
            "message 0",
        ),
        ("/memories", {"messages": "word " * 20_000, "user_id": "a"}, 413, "tokens"),
        ("/memories", {"messages": "fail now", "user_id": "a"}, 502, "the model"),
        ("/memories", [1], 400, "no JSON object"),
        ("/search", {"query": "x", "filters": {"OR": []}}, 400, "the filters: OR"),
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


def test_an_event_is_known_by_the_number_of_an_operation(backend):
    known = backend.post("/memories", json={"messages": "I ski", "user_id": "ev"}).json()
    name, _, number = known["event_id"].rpartition(":")
    assert backend.get(f"/v1/event/{name}:{number}").json()["status"] == "SUCCEEDED"
    for other in ("9" * 5000, f"{int(number) + 1}", "x", "-1", "²", "٢", f" {number}", "~"):
        refused = backend.get(f"/v1/event/{name}:{other}")
        assert refused.status_code == 404, refused.text


def test_without_an_archive_nothing_is_kept_word_for_word(tmp_path):
    with running(store=tmp_path / "s.db", user="marta") as server:
        body = {"messages": "x", "infer": False}
        refused = httpx.post(
            f"{server.url}/memories", json=body, headers=bearer("x"), trust_env=False
        )
    assert refused.status_code == 400 and "no archive" in refused.json()["what"]


# ------------------------------------------------------------------------------------------------
# whose memory: the token's and the header's
def naming(user):
    """Requests that name a user, in each place where one can be named."""
    query = {"query": "cat"}
    for route in ("/memories", "/v1/memories", "/v3/memories/add"):
        yield "POST", route, {"json": {"messages": "x", "user_id": user}}
        yield "POST", route, {"json": {"messages": "x", "filters": {"user_id": user}}}
        yield "POST", route, {"json": {"messages": "x"}, "params": {"user_id": user}}
    for filters in (
        {"user_id": user},
        {"AND": [{"user_id": user}]},
        {"OR": [{"user_id": "alice"}, {"user_id": user}]},
        {"NOT": [{"user_id": user}]},
        {"AND": [{"OR": [{"NOT": {"user_id": user}}]}]},
        {"user_id": {"in": ["alice", user]}},
        {"user_id": {"nin": [user]}},
        {"user_id": {"ne": user}},
    ):
        for route in ("/search", "/v1/memories/search", "/v2/memories/search"):
            yield "POST", route, {"json": {**query, "filters": filters}}
        yield "POST", "/v3/memories", {"json": {"filters": filters}}
    yield "POST", "/search", {"json": {**query, "user_id": user}}
    yield "POST", "/v3/memories/search", {"json": query, "params": {"user_id": user}}
    for route in ("/memories", "/v1/memories"):
        for method in ("GET", "DELETE"):
            yield method, route, {"params": {"user_id": user}}
            yield method, route, {"params": {"filters": f'{{"user_id": "{user}"}}'}}
    yield "DELETE", f"/v1/entities/user/{user}", {}
    yield "DELETE", f"/v2/entities/user/{user}/", {}


def of_memory(name):
    """Requests about one memory, by its id."""
    yield "GET", f"/v1/memories/{name}/", {}
    yield "GET", f"/memories/{name}", {}
    yield "GET", f"/v1/memories/{name}/history/", {}
    yield "GET", f"/memories/{name}/history", {}
    yield "PUT", f"/v1/memories/{name}/", {"json": {"text": "hacked"}}
    yield "PUT", f"/memories/{name}", {"json": {"metadata": {"a": 1}}}
    for method in ("PUT", "DELETE"):
        yield method, "/v1/batch", {"json": {"memories": [{"memory_id": name}]}}
    yield "DELETE", f"/memories/{name}", {}


@pytest.fixture(scope="module")
def bob(server):
    """The id of a memory of bob."""
    with client(server, "backend") as http:
        body = {"messages": "Bob has a cat", "user_id": "bob", "infer": False}
        return http.post("/memories", json=body).json()["results"][0]["id"]


@pytest.mark.parametrize("kind", ["header", "token"])
def test_no_request_names_another_user_than_its_header_or_token(server, bob, kind):
    name, more = ("backend", {"Memalpha-User": "alice"}) if kind == "header" else ("marta", {})
    with client(server, name, **more) as http:
        for method, path, sent in (*naming("bob"), *of_memory(bob)):
            refused = http.request(method, path, **sent)
            assert refused.status_code == 403, (method, path, sent, refused.text)
            assert "cat" not in refused.text
        assert http.get("/v1/entities").json()["results"] == []
        everybody = {"filters": {"user_id": "*"}}
        assert http.post("/v3/memories", json=everybody).json()["count"] == 0
        by_id = {"filters": {"memory_ids": [bob]}}
        assert http.post("/v3/memories", json=by_id).json()["count"] == 0
    with client(server, "backend") as http:
        assert http.get(f"/memories/{bob}").json()["memory"] == "User: Bob has a cat"
        assert len(http.get(f"/memories/{bob}/history").json()) == 1
        assert http.get("/memories", params={"user_id": "alice"}).json()["count"] == 0


@pytest.mark.parametrize("part", ["agent", "session"])
def test_nor_another_agent_or_session(server, part):
    field = {"agent": "agent_id", "session": "run_id"}[part]
    header = {f"Memalpha-{part.capitalize()}": "mine"}
    with client(server, "backend", **header) as http:
        body = {"query": "x", "filters": {"user_id": "u", field: "other"}}
        assert http.post("/search", json=body).status_code == 403
        assert http.delete("/memories", params={"user_id": "u", field: "x"}).status_code == 403
        added = http.post("/memories", json={"messages": "I like tea", "user_id": f"u-{part}"})
        assert added.json()["results"][0][field] == "mine"
        same = http.post("/v3/memories", json={"filters": {"user_id": f"u-{part}", field: "mine"}})
        assert same.json()["count"] == 2


# ------------------------------------------------------------------------------------------------
# what is not understood
REFUSED = {
    "POST /memories": {
        "custom_instructions": "all",
        "custom_categories": [{"a": "b"}],
        "expiration_date": "2030-01-01",
        "immutable": True,
        "includes": "food",
        "memory_type": "procedural_memory",
        "prompt": "p",
        "output_format": "v1.0",
        "org_id": "acme",
        "enable_graph": True,
        "user": "a",
        "userId": "a",
        "top_k": 3,
    },
    "POST /v3/memories/search": {
        "categories": ["food"],
        "reference_date": "2024-01-01",
        "latest_only": True,
        "explain": "true",
        "project_id": "mine",
        "messages": "x",
        "rerank": "often",
        "page": 2,
    },
    "POST /v3/memories": {"categories": ["food"], "query": "x", "show_expired": 7, "limits": 3},
    "GET /v1/memories": {"categories": "food", "sort": "desc"},
    "DELETE /v1/memories": {"page": 1, "before": "2024", "infer": True},
}


@pytest.mark.parametrize(
    ("route", "field"), [(route, field) for route in REFUSED for field in REFUSED[route]]
)
def test_a_field_that_would_be_ignored_is_refused(backend, route, field):
    method, path = route.split()
    body = {"user_id": "strict", field: REFUSED[route][field]}
    body |= {"messages": "x"} if path == "/memories" else {}
    body |= {"query": "x"} if path.endswith("search") else {}
    sent = {"json": body} if method == "POST" else {"params": body}
    refused = backend.request(method, path, **sent)
    assert refused.status_code == 400, refused.text
    assert f"the field {field} is not understood" in refused.json()["what"]
    assert backend.get("/memories", params={"user_id": "strict"}).json()["count"] == 0


def test_what_changes_nothing_is_accepted_and_each_id_takes_no_field(backend):
    body = {
        "query": "x",
        "filters": {"user_id": "strict"},
        "rerank": True,
        "keyword_search": False,
        "output_format": "v1.1",
        "version": "v2",
        "org_id": "memalpha",
        "latest_only": False,
        "categories": None,
    }
    assert backend.post("/v2/memories/search", json=body).json() == {"results": []}
    added = backend.post("/memories", json={"messages": "tea", "user_id": "one"}).json()
    name = added["results"][0]["id"]
    for method in ("GET", "DELETE"):
        refused = backend.request(method, f"/memories/{name}", params={"user_id": "one"})
        assert refused.status_code == 400 and "user_id" in refused.json()["what"]
    refused = backend.delete(f"/v1/memories/{name}", params={"delete_linked": "true"})
    assert refused.status_code == 400 and "delete_linked" in refused.json()["what"]
    assert backend.get(f"/memories/{name}").status_code == 200


@pytest.mark.parametrize(
    ("filters", "says"),
    [
        ({"usr_id": "a"}, "the filters: usr_id"),
        ({"user_id": "a", "categories": {"in": ["x"]}}, "the filters: categories"),
        ({"user_id": "a", "expiration_date": {"lte": "2024"}}, "the filters: expiration_date"),
        ({"user_id": {"like": "a%"}}, "the filters: user_id"),
        ({"user_id": {"in": "a"}}, "the filters: user_id.in"),
        ({"user_id": {"in": ["a", "*"]}}, "the filters: user_id.in"),
        ({"user_id": {"gt": "a"}}, "the filters: user_id"),
        ({"user_id": None}, "the filters: user_id"),
        ({"user_id": True}, "the filters: user_id"),
        ({"user_id": ""}, "the filters: user_id"),
        ({"AND": [{"user_id": "a"}, {"and": []}]}, "the filters: AND: and"),
        ({"user_id": "a", "NOT": []}, "the filters: NOT"),
        ({"user_id": "a", "created_at": {"gte": "soon"}}, "created_at.gte"),
        ({"user_id": "a", "created_at": {"contains": "2024"}}, "created_at"),
        ({"user_id": "a", "metadata": {}}, "the filters: metadata"),
        ({"user_id": "a", "metadata": "x"}, "the filters: metadata"),
        ({"user_id": "a", "metadata": {"k": {"gt": [1]}}}, "metadata.k.gt"),
        ({"user_id": "a", "metadata": {"k": {"gt": 1, "near": 2}}}, "metadata.k"),
        ({"user_id": "a", "keywords": {"eq": "x"}}, "the filters: keywords"),
        ({"user_id": "a", "metadata": {"k": {"in": [*range(1000)]}}}, "the filters: 1001 values"),
        ({"user_id": "a", "OR": [{"app_id": "x"}] * 1000}, "the filters: 1001 values"),
        ({"user_id": "a", "NOT": {"AND": [{"text": "x"}] * 2000}}, "the filters: 2001 values"),
    ],
)
@pytest.mark.parametrize("route", ["/v3/memories", "/search"])
def test_a_filter_that_is_not_understood_is_refused(backend, route, filters, says):
    body = {"filters": filters} | ({"query": "x"} if route == "/search" else {})
    refused = backend.post(route, json=body)
    assert refused.status_code == 400, refused.text
    assert says in refused.json()["what"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b'{"query": "x", "user_id": "alice", "user_id": "bob"}', 400),
        (b'{"query": "x", "user_id": "alice", "threshold": NaN}', 400),
        (b'{"query": "x", "filters": ' + b"[" * 100_000, 400),
        (b'{"query": "x", "filters": ' + b'{"AND": [' * 50 + b"{}" + b"]}" * 50 + b"}", 400),
        (b'{"query": "x", "user_id": "alice", "top_k": true}', 422),
        (b"\xff", 400),
        (b'{"query": "x", "user_id": "alice", "threshold": 1e999}', 400),
        (b'{"query": "x", "filters": {"\\ud800": 1}}', 400),
    ],
)
def test_a_body_that_can_be_read_in_two_ways_is_refused(backend, content, status):
    refused = backend.post("/search", content=content)
    assert refused.status_code == status, refused.text
    twice = backend.get("/memories?user_id=alice&user_id=bob")
    assert twice.status_code == 400 and "user_id" in twice.json()["what"]
    body = {"query": "x", "user_id": "bob"}
    assert backend.post("/search?user_id=alice", json=body).status_code == 400
    both = {"messages": "x", "user_id": "alice", "filters": {"user_id": "bob"}}
    assert backend.post("/memories", json=both).status_code == 400


@pytest.mark.parametrize(
    "metadata",
    [
        b'{"a": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"a": "' + b"x" * 10_000 + b'"}',
    ],
)
def test_metadata_that_could_not_be_read_again_is_refused(backend, metadata):
    content = b'{"user_id": "deep", "messages": "x", "metadata": ' + metadata + b"}"
    assert backend.post("/memories", content=content).status_code == 400
    assert backend.get("/memories", params={"user_id": "deep"}).json()["count"] == 0


# ------------------------------------------------------------------------------------------------
# apps, metadata, dates
@pytest.fixture(scope="module")
def kitchen(tmp_path_factory):
    """A server without model answers, whose one user has memories of two apps and three days."""
    place = tmp_path_factory.mktemp("mem0") / "k.db"
    with running(store=place, user="marta", archive=True) as server, client(server) as http:
        for number, (app, text, day) in enumerate(
            (
                ("kitchen", "I must not eat walnuts", "2024-07-01"),
                ("kitchen", "I like jazz", "2024-07-31T14:00:00"),
                ("radio", "I like jazz", "2024-08-02"),
            )
        ):
            body = {
                "messages": text,
                "app_id": app,
                "timestamp": day,
                "infer": False,
                "metadata": {"number": number, "place": {"room": app}, "tags": ["a", app]},
            }
            assert http.post("/v1/memories", json=body).status_code == 200
        yield http


@pytest.mark.parametrize(
    ("filters", "numbers"),
    [
        ({}, [0, 1, 2]),
        ({"app_id": "radio"}, [2]),
        ({"app_id": {"ne": "radio"}}, [0, 1]),
        ({"app_id": "*"}, [0, 1, 2]),
        ({"run_id": "*"}, []),
        ({"user_id": "*", "app_id": {"in": ["bath", "radio"]}}, [2]),
        ({"OR": [{"app_id": "radio"}, {"metadata": {"number": 0}}]}, [0, 2]),
        ({"NOT": {"app_id": "radio"}}, [0, 1]),
        ({"NOT": [{"app_id": "radio"}, {"metadata": {"number": 1}}]}, [0]),
        ({"AND": [{"app_id": "kitchen"}, {"NOT": {"keywords": {"icontains": "JAZZ"}}}]}, [0]),
        ({"keywords": {"contains": "JAZZ"}}, []),
        ({"keywords": "Jazz"}, [1, 2]),
        ({"metadata": {"number": {"gt": 0, "lt": 2}}}, [1]),
        ({"metadata": {"number": {"in": [0, 2]}}}, [0, 2]),
        ({"metadata": {"number": True}}, []),
        ({"metadata": {"number": {"gt": "0"}}}, []),
        ({"metadata": {"place": {"room": "radio"}}}, [2]),
        ({"metadata": {"tags": {"contains": "kitchen"}}}, [0, 1]),
        ({"metadata": {"tags": {"contains": "kitch"}}}, []),
        ({"metadata": {"colour": "*"}}, []),
        ({"metadata": {"colour": {"ne": "red"}}}, [0, 1, 2]),
        ({"created_at": {"gte": "2024-07-01", "lte": "2024-07-31"}}, [0, 1]),
        ({"created_at": {"gt": "2024-07-31"}}, [2]),
        ({"updated_at": {"lt": "2024-07-31T14:00:00Z"}}, [0]),
        ({"timestamp": {"gte": 1722556800}}, [2]),
        ({"created_at": "2024-07-31"}, [1]),
    ],
)
def test_filters_find_what_they_say(kitchen, filters, numbers):
    listed = kitchen.post("/v3/memories", json={"filters": filters}).json()
    assert [item["metadata"]["number"] for item in listed["results"]] == numbers
    assert listed["count"] == len(numbers)
    body = {"query": "Do I eat walnuts, and like jazz?", "filters": filters}
    found = kitchen.post("/v3/memories/search", json=body).json()["results"]
    assert sorted(item["metadata"]["number"] for item in found) == numbers


def test_dates_keywords_and_fields_of_get_all(kitchen):
    dated = {"start_date": "2024-07-02", "end_date": "2024-07-31"}
    asked = kitchen.get("/v1/memories", params={**dated, "fields": ["memory", "app_id"]}).json()
    (one,) = asked["results"]
    assert (one["memory"], one["app_id"]) == ("User: I like jazz", "kitchen")
    assert set(one) == {"id", "memory", "app_id"}
    none = kitchen.post("/v3/memories", json={"start_date": "2030-01-01"}).json()
    assert (none["count"], none["results"]) == (0, [])
    by_metadata = kitchen.get("/v1/memories", params={"metadata": '{"number": 1}'}).json()
    assert by_metadata["count"] == 1
    assert kitchen.get("/v1/memories", params={"keywords": "walnut"}).json()["count"] == 1
    assert kitchen.get("/v1/memories", params={"fields": "colour"}).status_code == 400


@pytest.mark.parametrize(
    ("params", "numbers"),
    [
        ({"app_id": "radio"}, [0, 1, 3]),  # what another app said in the same words stays
        ({"metadata": '{"place": {"room": "kitchen"}}'}, [2, 3]),
        ({"filters": '{"created_at": {"gte": "2024-07-31"}}'}, [0]),
        ({"app_id": "bath"}, [0, 1, 2, 3]),
        ({"run_id": "s"}, [0, 1, 2]),
        ({}, []),
    ],
)
def test_delete_all_erases_what_it_names_and_no_more(backend, params, numbers):
    user = {"user_id": f"erase {sorted(params.items())}"}
    for number, (text, more) in enumerate(
        (
            ("I must not eat walnuts", {"app_id": "kitchen", "timestamp": 1719835200}),
            ("I like jazz", {"app_id": "kitchen", "timestamp": 1722434400}),
            ("I like jazz", {"app_id": "radio", "timestamp": 1722556800}),
            ("I like tea", {"run_id": "s", "timestamp": 1722556800}),
        )
    ):
        about = {"number": number, "place": {"room": more.get("app_id", "")}}
        body = {"messages": text, "metadata": about, "infer": False, **user, **more}
        assert backend.post("/memories", json=body).status_code == 200
    assert backend.delete("/v1/memories", params={**user, **params}).status_code == 200
    both = {"filters": {**user, "OR": [{"run_id": "s"}, {"run_id": {"ne": "s"}}]}}
    left = backend.post("/v3/memories", json=both).json()["results"]
    assert [item["metadata"]["number"] for item in left] == numbers


@pytest.mark.parametrize("field", ["user_id", "agent_id", "run_id", "app_id"])
def test_delete_all_takes_no_star(backend, field):
    user = f"star-{field}"
    backend.post("/memories", json={"messages": "tea", "user_id": user, "infer": False})
    params = {"user_id": user, field: "*"}
    for asked in (params, {"user_id": user, "filters": f'{{"NOT": {{"{field}": "*"}}}}'}):
        refused = backend.delete("/v1/memories", params=asked)
        assert refused.status_code == 400 and field in refused.json()["what"]
    assert backend.delete("/v1/memories", params={"user_id": user, "metadata": "{}"}).is_error
    assert backend.delete("/v2/entities/user/*").status_code == 400
    assert backend.get("/memories", params={"user_id": user}).json()["count"] == 1


def test_delete_all_erases_only_users_who_are_named(backend):
    users = ("named-1", "named-2", "unnamed")
    for user in users:
        backend.post("/memories", json={"messages": "tea", "user_id": user, "infer": False})

    def counts():
        return [
            backend.get("/memories", params={"user_id": each}).json()["count"] for each in users
        ]

    one = {"user_id": "named-1"}
    for filters in (
        {"user_id": {"ne": "named-1"}},
        {"user_id": {"nin": ["named-1"]}},
        {"NOT": one},
        {"NOT": [{"NOT": [one]}]},
        {"OR": [one, {"agent_id": {"ne": "x"}}]},
        {"AND": [{"NOT": one}, {"metadata": {"user_id": "named-1"}}]},
    ):
        refused = backend.request("DELETE", "/memories", json={"filters": filters})
        assert refused.status_code == 400 and "user_id" in refused.json()["what"], filters
    assert counts() == [1, 1, 1]
    both = {"OR": [one, {"AND": [{"user_id": {"in": ["named-2"]}}, {"run_id": {"ne": "x"}}]}]}
    assert backend.request("DELETE", "/memories", json={"filters": both}).status_code == 200
    assert counts() == [0, 0, 1]


def test_a_star_finds_sessions_and_users(backend):
    for user, session in (("s1", {}), ("s1", {"run_id": "r1"}), ("s2", {"run_id": "r2"})):
        body = {"messages": f"{user} likes tea", "user_id": user, **session, "infer": False}
        backend.post("/memories", json={**body, "app_id": "stars"})
    ask = {"query": "tea", "top_k": 5}
    for owners, runs in (
        ({"user_id": "s1"}, [None]),
        ({"user_id": "s1", "run_id": "*"}, ["r1"]),
        ({"user_id": "*", "run_id": "*"}, ["r1", "r2"]),
        ({"user_id": {"in": ["s1", "s2"]}, "run_id": {"ne": "r1"}}, [None, "r2"]),
    ):
        filters = {"AND": [owners, {"app_id": "stars"}]}
        for route, body in (("/v3/memories", {}), ("/v3/memories/search", ask)):
            found = backend.post(route, json={"filters": filters, **body}).json()["results"]
            assert sorted({item["run_id"] for item in found}, key=str) == sorted(runs, key=str)


# ------------------------------------------------------------------------------------------------
# the day of a message
@pytest.mark.parametrize("infer", [True, False])
def test_the_day_of_a_message_is_in_its_text_and_in_created_at(backend, infer):
    user = f"day-{infer}"
    long = " ".join(f"Then we talked for hours about plan number {n} of her." for n in range(12))
    told = [
        {"role": "user", "content": f"[2023-05-08T13:56:00] I went to Ann yesterday. {long}"},
        {"role": "assistant", "content": "[2023/05/09 (Tue) 10:00] How was it?"},
        {"role": "user", "content": "[laughs] Nice"},
    ]
    body = {"messages": told, "user_id": user, "infer": infer, "timestamp": 1684152000}
    added = backend.post("/memories", json=body).json()["results"]
    assert added
    for item in backend.get("/memories", params={"user_id": user}).json()["results"]:
        text = item["memory"]
        day = item["created_at"][:10]
        if "laughs" in text:
            assert day == "2023-05-15"
        elif "How was it" in text:
            assert (day, text) == ("2023-05-09", "[2023-05-09T10:00] Assistant: How was it?")
        else:
            assert day == "2023-05-08" and text.startswith("[2023-05-08T13:56] User: ")


@pytest.mark.parametrize("shape", ["oss", "platform"])
def test_the_client_of_the_scoreboard_gets_days_and_metadata_back(server, monkeypatch, shape):
    monkeypatch.setenv("MEM0_API_KEY", "token-of-backend")
    peer = MemoryServer(ServerOptions(url=server.url, shape=shape))
    user = f"peer-{shape}"
    peer.add(user, Chunk("User: I live in Oslo", "2024-03-05"), 7)
    told = "[2024-03-05] User: I live in Oslo"
    assert peer.search(user, "Where do I live?") == [(told, 7)] * 2  # a fact and its line
    assert peer.memories(user) == [told] * 2
    peer.delete(user)
    assert peer.memories(user) == []


# ------------------------------------------------------------------------------------------------
# update, history
def test_update_history_and_undo(tmp_path):
    place = tmp_path / "s.db"
    with running(store=place, user="marta", archive=True) as server, client(server) as http:
        body = {"messages": "Marta lives in Oslo", "metadata": {"by": "a"}, "timestamp": 1709640000}
        fact, line = http.post("/memories", json=body).json()["results"]
        path = f"/v1/memories/{fact['id']}"
        updated = http.put(path, json={"text": "Marta lives in Rome"}).json()
        assert (updated["memory"], updated["metadata"]) == ("Marta lives in Rome", {"by": "a"})
        assert updated["created_at"][:10] == "2024-03-05"
        assert memories(http.get("/memories").json()["results"]) == ["Marta lives in Rome"]
        http.put(path, json={"metadata": {"by": "b", "n": 1}})
        http.put(path, json={"timestamp": "2024-04-01"})
        assert http.get(path).json()["created_at"] == "2024-04-01"
        events = http.get(f"{path}/history").json()
        assert [(e["event"], e["old_memory"], e["new_memory"], e["metadata"]) for e in events] == [
            ("ADD", None, "User: Marta lives in Oslo", {"by": "a"}),
            ("UPDATE", "User: Marta lives in Oslo", "Marta lives in Rome", {"by": "a"}),
            ("UPDATE", "Marta lives in Rome", "Marta lives in Rome", {"by": "b", "n": 1}),
            ("UPDATE", "Marta lives in Rome", "Marta lives in Rome", {"by": "b", "n": 1}),
        ]
        assert all(event["memory_id"] == fact["id"] for event in events)
        gone = http.get(f"/v1/memories/{line['id']}/history").json()
        assert [event["event"] for event in gone] == ["ADD", "DELETE"]
        operations = [each["operation"] for each in http.get("/v1/history").json()["operations"]]
        numbers = [n for n in reversed(operations) if n > 2]
        for number in numbers:  # the last first; that of the line goes with that of the fact
            http.post("/v1/undo", json={"operation": number})
        now = {item["id"]: item for item in http.get("/memories").json()["results"]}
        assert now[fact["id"]] == {k: v for k, v in fact.items() if k not in ("event", "data")}
        assert now[line["id"]]["memory"] == "User: Marta lives in Oslo"
    with Journal.open(place) as journal:
        assert journal.verify().ok


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({}, 400, "nothing to update"),
        ({"text": "  "}, 400, "has no word"),
        ({"text": "word " * 60}, 409, "tokens"),
        ({"text": "word " * 20_000}, 413, "tokens"),
        ({"data": "x"}, 400, "the field data"),
        ({"expiration_date": "2030-01-01"}, 400, "the field expiration_date"),
        ({"timestamp": "2020-01-01"}, 409, "later time"),
        ({"timestamp": "soon"}, 400, "the timestamp"),
        ({"text": "User: I like tea"}, 409, "says so already"),
        ({"metadata": {"x": "y" * 20_000}}, 400, "metadata"),
        ({"metadata": [1]}, 422, "metadata"),
    ],
)
def test_an_update_that_cannot_be_done_changes_nothing(backend, body, status, says):
    user = {"user_id": "upd"}
    backend.post("/memories", json={"messages": "I like tea", **user})
    mine = {"messages": "I like rain", "metadata": {"a": 1}, **user}
    name = backend.post("/memories", json=mine).json()["results"][0]["id"]
    before = backend.get(f"/memories/{name}").json()
    refused = backend.put(f"/memories/{name}", json=body)
    assert refused.status_code == status, refused.text
    assert says in refused.json()["what"]
    assert backend.get(f"/memories/{name}").json() == before
    assert backend.put(f"/memories/{name}", json={"expiration_date": None}).json() == before
    backend.delete("/memories", params=user)


def test_a_line_is_a_memory_that_can_be_updated_and_batches_are_all_or_none(backend):
    user = {"user_id": "batch"}
    names = [
        backend.post("/memories", json={"messages": text, "infer": False, **user}).json()[
            "results"
        ][0]["id"]
        for text in ("I like tea", "I like rain", "I like snow")
    ]
    new = [{"memory_id": name, "text": f"New {n}"} for n, name in enumerate(names[:2])]
    unknown = {"memory_id": names[0].replace("line-", "line-9"), "text": "x"}
    last = {"memory_id": names[2]}
    for wrong, status in (
        (unknown, 404),
        ({**last, "txt": "x"}, 400),
        ({**last, "text": " "}, 400),
        (last, 400),
        ({**last, "text": "word " * 20_000}, 413),
        ({**last, "metadata": {"a": "b" * 20_000}}, 400),
        ({**new[0], "text": "x", "metadata": {"a": "b" * 20_000}}, 400),
    ):
        refused = backend.put("/v1/batch/", json={"memories": [*new, wrong]})
        assert refused.status_code == status, refused.text
        unchanged = backend.get("/memories", params=user).json()["results"]
        assert memories(unchanged) == ["User: I like tea", "User: I like rain", "User: I like snow"]
    parts = [{**last, "metadata": {key: "b" * 6000}} for key in "ab"]  # too long together
    assert backend.put("/v1/batch/", json={"memories": [*new, *parts]}).status_code == 400
    unchanged = backend.get("/memories", params=user).json()["results"]
    assert [(item["memory"][:4], item["metadata"]) for item in unchanged] == [("User", None)] * 3
    assert backend.put("/v1/batch/", json={"memories": new}).status_code == 200
    listed = backend.get("/memories", params=user).json()["results"]
    assert memories(listed) == ["New 0", "New 1", "User: I like snow"]
    found = backend.post("/search", json={"query": "New 1", "top_k": 1, **user}).json()["results"]
    assert memories(found) == ["New 1"]
    both = {"memories": [{"memory_id": names[0]}, {"memory_id": names[2]}]}
    assert backend.request("DELETE", "/v1/batch/", json=both).status_code == 200
    assert memories(backend.get("/memories", params=user).json()["results"]) == ["New 1"]


def test_forgotten_metadata_leaves_no_byte_and_exports_keep_what_stays(tmp_path):
    place = tmp_path / "s.db"
    with running(store=place, user="marta", archive=True) as server, client(server) as http:
        for word in ("walnut", "cherry"):
            body = {"messages": f"I like {word}", "metadata": {"key": f"{word}secret"}}
            http.post("/memories", json={**body, "app_id": f"{word}app"})
        name = http.post("/search", json={"query": "walnut"}).json()["results"][0]["id"]
        http.put(f"/memories/{name}", json={"metadata": {"also": "walnutsecond"}})
        assert http.delete("/v1/memories", params={"app_id": "walnutapp"}).status_code == 200
    files = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"walnut" not in files and b"cherrysecret" in files and b"cherryapp" in files
    export_journal_and_read(place, tmp_path)


def export_journal_and_read(place, folder):
    with Journal.open(place) as journal:
        export_journal(journal, folder / "e.jsonl")
    with Journal.open(folder / "t.db") as other:
        import_journal(other, folder / "e.jsonl")
        assert other.verify().ok
    with (
        running(store=folder / "t.db", user="marta", archive=True) as server,
        client(server) as http,
    ):
        left = http.get("/memories").json()["results"]
    assert [(item["app_id"], item["metadata"]) for item in left] == [
        ("cherryapp", {"key": "cherrysecret"})
    ] * 2


def test_entities(backend):
    for user in ("e 1", "e/2"):
        backend.post("/memories", json={"messages": "tea", "user_id": user, "agent_id": "a"})
    named = [each["name"] for each in backend.get("/v1/entities/").json()["results"]]
    assert {"e 1", "e/2"} <= set(named)
    assert backend.delete(f"/v2/entities/user/{quote('e/2', safe='')}/").status_code == 200
    named = [each["name"] for each in backend.get("/v1/entities/").json()["results"]]
    assert "e 1" in named and "e/2" not in named
    assert backend.delete("/v2/entities/agent/a/").status_code == 400  # of which user?
    assert backend.delete("/v2/entities/colour/red/").status_code == 400
