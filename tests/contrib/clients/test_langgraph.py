"""The LangGraph store does what the library's own store does, on random operations, and keeps it."""

import asyncio
import json
import random
from datetime import UTC, date, datetime, timedelta, timezone

import pytest
from langgraph.store.base import InvalidNamespaceError, MatchCondition, PutOp
from langgraph.store.memory import InMemoryStore

from memalpha.clients import JournalStore
from memalpha.errors import InputError
from memalpha.store.journal import Origin

NAMESPACES = [("a",), ("a", "b"), ("a", "c", "v1"), ("b",), ("b", "v1")]
KEYS = ["k1", "k2", "k3"]
VALUES = [
    {"text": "tea", "score": 1, "tags": ["x", 2], "in": {"deep": True}},
    {"text": 'Oslo "quoted"\nand a line ß', "score": 4.5, "in": {"deep": False, "more": None}},
    {"score": "7", "text": None},
    {},
]
FILTERS = [
    None,
    {"text": "tea"},
    {"score": {"$gt": 1}},
    {"score": {"$gte": 1, "$lt": 5}},
    {"score": {"$ne": 1}},
    {"score": {"$eq": "7"}},
    {"in": {"deep": True}},
    {"tags": ["x", 2]},
    {"tags": ["x"]},
    {"missing": None},
]


def plain(items):
    found = [(item.namespace, item.key, item.value) for item in items]
    return sorted(found, key=lambda item: item[:2])


def has_scores(item):
    return item.value.get("score") is not None


@pytest.mark.parametrize("seed", range(4))
def test_random_operations_give_what_the_librarys_own_store_gives(tmp_path, seed):
    draw = random.Random(seed)
    ours = JournalStore(tmp_path / "m.db", "marta")
    theirs = InMemoryStore()
    for step in range(250):
        namespace, key = draw.choice(NAMESPACES), draw.choice(KEYS)
        kind = draw.choice(["put", "put", "put", "get", "delete", "search", "list", "batch"])
        if kind == "put":
            value = {**draw.choice(VALUES), "step": step}
            for store in (ours, theirs):
                store.put(namespace, key, value)
        elif kind == "get":
            one, other = (store.get(namespace, key) for store in (ours, theirs))
            assert (one and (one.key, one.namespace, one.value)) == (
                other and (other.key, other.namespace, other.value)
            )
        elif kind == "delete":
            for store in (ours, theirs):
                store.delete(namespace, key)
        elif kind == "search":
            prefix, wanted = draw.choice([(), *NAMESPACES]), draw.choice(FILTERS)
            if "$g" in str(wanted):  # theirs raises for what is no number
                items = theirs.search(prefix, limit=99)
                bound = wanted["score"]
                low = float(bound.get("$gt", bound.get("$gte")))
                expected = [
                    item
                    for item in items
                    if has_scores(item)
                    and (
                        float(item.value["score"]) > low
                        or ("$gte" in bound and float(item.value["score"]) == low)
                    )
                    and float(item.value["score"]) < float(bound.get("$lt", "inf"))
                ]
            else:
                expected = theirs.search(prefix, filter=wanted, limit=99)
            mine = ours.search(prefix, filter=wanted, limit=99)
            assert plain(mine) == plain(expected), wanted
            assert [item.value["step"] for item in mine] == sorted(
                (item.value["step"] for item in mine), reverse=True
            )
            assert ours.search(prefix, filter=wanted, limit=2, offset=1) == mine[1:3]
        elif kind == "list":
            conditions = draw.choice(
                [{}, {"prefix": ("a",)}, {"suffix": ("v1",)}, {"prefix": ("*", "c")}]
            )
            depth = draw.choice([None, 1, 2])
            listed = ours.list_namespaces(max_depth=depth, **conditions)
            # theirs lists namespaces without items, too
            used = {item.namespace for item in theirs.search((), limit=99)}
            for name in list(theirs._data):
                if name not in used:
                    del theirs._data[name]
            assert listed == theirs.list_namespaces(max_depth=depth, **conditions)
            page = ours.list_namespaces(limit=1, offset=1)
            assert page == theirs.list_namespaces(limit=1, offset=1)
        else:
            ops = [PutOp(namespace, key, {"step": step}), PutOp(namespace, key, None)][
                : draw.choice([1, 2])
            ]
            assert ours.batch(ops) == theirs.batch(ops)
    again = JournalStore(tmp_path / "m.db", "marta")  # another process sees the same
    assert plain(again.search((), limit=99)) == plain(theirs.search((), limit=99))
    assert again.search((), limit=99) == ours.search((), limit=99)


def test_a_query_ranks_and_what_it_does_not_find_comes_last_without_a_score(tmp_path):
    store = JournalStore(tmp_path / "m.db", "marta")
    texts = {"city": "Marta lives in Oslo", "drink": "Marta\\drinks:\ntea", "pet": "Ivan has a cat"}
    for key, text in texts.items():
        store.put(("facts",), key, {"text": text}, index=False if key == "pet" else None)
    found = store.search(("facts",), query="What tea does she drink?")
    assert [item.key for item in found] == ["drink", "pet", "city"]
    assert [item.score is None for item in found] == [False, True, True]
    assert [item.score for item in store.search(("facts",), query="cat")] == [None] * 3
    assert store.search(("facts",), query="tea", filter={"text": texts["city"]})[0].key == "city"


def test_history_undo_and_times(tmp_path):
    store = JournalStore(tmp_path / "m.db", "marta")
    store.put(("a",), "k", {"v": 1})
    first = store.get(("a",), "k")
    store.put(("a",), "k", {"v": 2})
    second = store.get(("a",), "k")
    assert first.created_at == first.updated_at == second.created_at < second.updated_at
    with store.store.durable(store.namespace) as durable:
        durable.undo(2, Origin("marta"))
    assert store.get(("a",), "k") == first
    store.delete(("a",), "k")
    assert store.get(("a",), "k") is None and store.list_namespaces() == []


def test_what_is_not_supported_says_so_and_writes_nothing(tmp_path):
    store = JournalStore(tmp_path / "m.db", "marta")
    with pytest.raises(NotImplementedError):
        store.put(("a",), "k", {}, ttl=5)
    with pytest.raises(NotImplementedError, match="ttl"):
        store.batch([PutOp(("a",), "k", {}, ttl=5)])
    for error, put in (
        (InputError, lambda: store.put(("a",), "k", {"x": {1, 2}})),
        (InputError, lambda: store.put(("a",), "k", {"x": float("nan")})),
        (InputError, lambda: store.put(("a",), "k", {}, index=["x"])),
        (InputError, lambda: store.batch([PutOp(("a",), "ok", {}), PutOp(("a",), "k", {"x": 1j})])),
        (InvalidNamespaceError, lambda: store.put((), "k", {})),
        (InvalidNamespaceError, lambda: store.put(("a.b",), "k", {})),
    ):
        with pytest.raises(error):
            put()
    store.put(("a",), "k", {"x": 1})
    with pytest.raises(InputError, match=r"\$near"):
        store.search(("a",), filter={"x": {"$near": 1}})
    assert [item.key for item in store.search(())] == ["k"]


def test_awaited_calls_do_the_same(tmp_path):
    store = JournalStore(tmp_path / "m.db", "marta")

    async def use():
        await asyncio.gather(*(store.aput(("a",), f"k{i}", {"i": i}) for i in range(8)))
        found = await store.asearch(("a",), filter={"i": {"$gte": 6}})
        await store.adelete(("a",), "k0")
        return (
            {item.key for item in found},
            await store.aget(("a",), "k0"),
            await store.alist_namespaces(),
        )

    assert asyncio.run(use()) == ({"k6", "k7"}, None, [("a",)])
    prefix = MatchCondition("prefix", ("b",))
    assert store.list_namespaces(prefix=prefix.path) == []


DAYS = {
    "a": {"day": "2023-01-01", "at": "2023-01-01T23:30:00-02:00", "id": 5},
    "b": {"day": "2024-05-01", "at": "2024-05-01T00:00:00Z", "id": 2**53},
    "c": {"day": "2024-05-02", "at": "2024-05-02T09:00:00", "id": 2**53 + 1},
    "d": {"day": "soon", "at": None, "id": "9007199254740994"},
}
ORDERED = [
    ({"day": {"$gte": "2024-05-01", "$lt": "2024-06-01"}}, "bc"),
    ({"day": {"$eq": "2024-05-01"}}, "b"),
    ({"day": {"$ne": "2024-05-01"}}, "acd"),
    ({"day": {"$lte": date(2024, 5, 1)}}, "ab"),
    ({"day": {"$gt": datetime(2024, 5, 1, 12)}}, "c"),
    ({"day": date(2024, 5, 1)}, "b"),
    ({"at": {"$lt": datetime(2023, 1, 2, 1, tzinfo=UTC)}}, ""),
    ({"at": {"$eq": datetime(2023, 1, 2, 3, 30, tzinfo=timezone(timedelta(hours=2)))}}, "a"),
    ({"at": {"$ne": datetime(2024, 5, 1)}}, "acd"),
    ({"id": {"$gt": 2**53}}, "cd"),
    ({"id": {"$lt": 2**53 + 1}}, "ab"),
    ({"id": {"$lte": 2**53}}, "ab"),
    ({"id": 2**53 + 1}, "c"),
    ({"day": {"$gt": 5}}, ""),
]


@pytest.mark.parametrize(("wanted", "keys"), ORDERED)
def test_dates_and_large_numbers_have_their_order(wanted, keys):
    store = JournalStore(":memory:", "marta")
    for key, value in DAYS.items():
        store.put(("a",), key, value)
    assert sorted(item.key for item in store.search(("a",), filter=wanted)) == list(keys)


def test_what_has_no_order_is_refused():
    store = JournalStore(":memory:", "marta")
    store.put(("a",), "k", {"x": 1})
    for other in (None, [1]):
        with pytest.raises(InputError, match="since only these have an order"):
            store.search(("a",), filter={"x": {"$gt": other}})


def test_a_search_parses_what_it_returns_alone(monkeypatch):
    store = JournalStore(":memory:", "marta")
    store.batch([PutOp(("a",), f"k{i}", {"n": i}) for i in range(300)])
    store.search(("a",), filter={"n": 7})[0].value["n"] = 8  # the caller's own
    parsed = []
    loads = json.loads
    monkeypatch.setattr(json, "loads", lambda *a, **k: parsed.append(1) or loads(*a, **k))
    assert store.search(("a",), filter={"n": 7})[0].value == {"n": 7}
    assert len(parsed) == 1
