"""A LangGraph store over a journal: items are entries of one namespace, on disk when put.

    store = JournalStore("memories.db", "marta")  # also graph.compile(store=store)
    store.put(("marta", "facts"), "city", {"text": "Marta lives in Oslo"})
    store.search(("marta",), query="Where does she live?")

Supported: put, get, delete, search with filters and a query, list_namespaces, batches, and all of
them awaited. Values are JSON objects. As in LangGraph's own stores a batch reads before it writes,
the last put of a key counts, and search without a query begins with what was put last. A query
ranks by the retriever of ``retrieval``, over the item's whole JSON; what shares no word with it
comes last, with the score None, and what was put with ``index=False`` among it. Filters order
numbers by value, also those beyond 2**53, texts as texts (ISO dates of one form), and dates given
as such by their moment, one without a zone as UTC. Not supported:
``index`` as a list of fields (InputError), and ``ttl`` (NotImplementedError). Deleted items stay in
the history, for undo, until they are forgotten (``memalpha journal forget``).
"""

from __future__ import annotations

import asyncio
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, time
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
)

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.store.journal import Journal, Namespace, Origin
from memalpha.types import Change, Entry, JsonObject, Operation, OperationKind, Retriever
from memalpha.use.store import MemoryStore

ITEMS = MemorySchema("items", (Section("items", description="items of a LangGraph store"),))
_SEARCHED = "searched"  # field of an entry's JSON, beside those of an Item
_ESCAPE = re.compile(r"\\(.)")  # in JSON
_Place = tuple[tuple[str, ...], str]  # namespace and key
_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


class _StoredItem(NamedTuple):
    """An entry and what it holds, which nobody changes."""

    entry: Entry
    data: JsonObject
    namespace: tuple[str, ...]


class JournalStore(BaseStore):
    """A ``BaseStore`` of LangGraph in one namespace of a store, which holds only its items.

    Args:
        store: Path or URL of the store (``Journal.open``), or a journal that the caller closes.
        namespace: The namespace; a str is the user of ``Namespace(user, "langgraph")``.
        retrieval: The settings of the search; None takes the defaults.

    Raises:
        InputError: A value is not a JSON object, or a filter is invalid.
        JournalError: The store failed.
    """

    supports_ttl = False
    __slots__ = ("_cursor", "_memory", "_stored", "namespace", "store")

    def __init__(
        self,
        store: str | Path | Journal,
        namespace: Namespace | str,
        retrieval: RetrievalConfig | None = None,
    ) -> None:
        if isinstance(namespace, str):
            namespace = Namespace(namespace, "langgraph")
        self.namespace = namespace
        self.store = MemoryStore(store, ITEMS, retriever_factory(retrieval, archive=False))
        self._memory: Memory | None = None
        self._cursor = 0
        self._stored: dict[_Place, _StoredItem] = {}

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Return the result of each operation, in order; all puts are written together.

        Args:
            ops: The operations of LangGraph.
        """
        wanted = list(ops)
        puts = {(op.namespace, op.key): op for op in wanted if isinstance(op, PutOp)}
        for op in puts.values():
            if op.ttl is not None:
                raise NotImplementedError(
                    "items of a journal have no time to live, so leave ttl out"
                )
            if isinstance(op.index, list):
                raise InputError(
                    f"index is {op.index!r}",
                    expected="None (the whole item is searched) or False (it is not)",
                )
        with self.store.reading(self.namespace) as (memory, retriever):
            self._follow(memory)
            results = [self._read(op, retriever) for op in wanted]
            if puts:
                self._put(puts)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """Do the same as ``batch`` in a thread.

        Args:
            ops: The operations of LangGraph.
        """
        return await asyncio.to_thread(self.batch, list(ops))

    def _put(self, puts: Mapping[_Place, PutOp]) -> None:
        origin = Origin("langgraph", "put")
        with self.store.writing(origin, namespace=self.namespace) as memory:
            self._follow(memory)
            for place, op in puts.items():
                change = _operation(op, self._stored.get(place))
                if change is not None:
                    result = memory.apply(change)
                    if not result.ok:
                        raise InputError(f"{place} was not stored: {result.message}")

    def _follow(self, memory: Memory) -> None:
        """Take up the changes since the last call; of another memory, all."""
        if memory is not self._memory:
            self._memory = memory
            self._cursor = 0
            self._stored = {}
        for before, after in memory.changes[self._cursor :]:
            self._take(Change(before, after))
        self._cursor = len(memory.changes)

    def _take(self, change: Change) -> None:
        if change.before is not None:
            data = _data(change.before)
            self._stored.pop((tuple(data["namespace"]), data["key"]), None)
        if change.after is not None:
            data = _data(change.after)
            namespace = tuple(data["namespace"])
            self._stored[namespace, data["key"]] = _StoredItem(change.after, data, namespace)

    def _read(self, op: Op, retriever: Retriever) -> Result:
        if isinstance(op, GetOp):
            stored = self._stored.get((op.namespace, op.key))
            return Item(**_fields(stored.entry)) if stored else None
        if isinstance(op, SearchOp):
            return self._search(op, retriever)
        if isinstance(op, ListNamespacesOp):
            return _list_namespaces(op, {namespace for namespace, _ in self._stored})
        return None

    def _search(self, op: SearchOp, retriever: Retriever) -> list[SearchItem]:
        newest = sorted(self._stored.values(), key=_last_write, reverse=True)
        scores: dict[str, float] = {}
        if op.query:
            searched = {each.entry.id for each in newest if each.data[_SEARCHED]}
            hits = retriever.search(op.query, len(newest))
            scores = {hit.entry.id: hit.score for hit in hits if hit.entry.id in searched}
            newest.sort(key=lambda each: -scores.get(each.entry.id, float("-inf")))  # stable
        depth = len(op.namespace_prefix)
        wanted = op.filter or {}
        matching = (
            each.entry
            for each in newest
            if each.namespace[:depth] == op.namespace_prefix
            and _matches(each.data["value"], wanted)
        )
        # parsed anew, as the caller may change what it gets
        return [
            SearchItem(**_fields(entry), score=scores.get(entry.id))
            for entry in islice(matching, op.offset, op.offset + op.limit)
        ]


def _last_write(stored: _StoredItem) -> int:
    return stored.entry.updated


# ------------------------------------------------------------------------------------------------
# items and entries
def _operation(op: PutOp, stored: _StoredItem | None) -> Operation | None:
    """The operation of a put; None for the deletion of what is not there."""
    if op.value is None:
        if stored is None:
            return None
        return Operation(OperationKind.DELETE, "items", entry_id=stored.entry.id)
    now = datetime.now(UTC).isoformat()
    data = {
        "namespace": op.namespace,
        "key": op.key,
        "value": dict(op.value),
        "created_at": stored.data["created_at"] if stored else now,
        "updated_at": now,
        _SEARCHED: op.index is not False,
    }
    try:
        content = json.dumps(data, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the value of {op.key!r} is not JSON: {error}",
            expected="an object of texts, numbers, truth values, null, lists and objects",
        ) from error
    content = _ESCAPE.sub(_unescape, content)
    if stored is None:
        return Operation(OperationKind.INSERT, "items", content)
    return Operation(OperationKind.UPDATE, "items", content, stored.entry.id)


def _unescape(escape: re.Match[str]) -> str:
    """A line break as it is, so that the next word is searched without the "n" of the escape."""
    return "\n" if escape[1] == "n" else escape[0]


def _data(entry: Entry) -> JsonObject:
    data: JsonObject = json.loads(entry.content, strict=False)
    return data


def _fields(entry: Entry) -> JsonObject:
    data = _data(entry)
    del data[_SEARCHED]
    return {**data, "namespace": tuple(data["namespace"])}


# ------------------------------------------------------------------------------------------------
# filters and namespaces
def _matches(value: Any, wanted: Mapping[str, Any]) -> bool:
    """Whether an object has all the fields of a filter."""
    return isinstance(value, dict) and all(
        _equals(value.get(name), expected) for name, expected in wanted.items()
    )


def _equals(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str | int | float):  # most filters; quicker than Mapping's test
        return bool(value == wanted)
    if isinstance(wanted, Mapping):
        if any(name.startswith("$") for name in wanted):
            return all(_compares(value, name, other) for name, other in wanted.items())
        return _matches(value, wanted)
    if isinstance(wanted, list | tuple):
        return (
            isinstance(value, list)
            and len(value) == len(wanted)
            and all(map(_equals, value, wanted))
        )
    if isinstance(wanted, date):
        return _compares(value, "$eq", wanted)
    return bool(value == wanted)


def _compares(value: Any, name: str, other: Any) -> bool:
    """Compare as LangGraph's stores do: numbers by value, texts as texts; what is no such thing has
    no order. A date is compared with texts that say one.
    """
    if name not in _COMPARISONS:
        raise InputError(
            f"a filter uses the unknown comparison {name!r}",
            expected=f"one of {', '.join(_COMPARISONS)}",
        )
    compare = _COMPARISONS[name]
    if isinstance(other, date):
        moment = _moment(value)
        return name == "$ne" if moment is None else compare(moment, _moment(other))
    if name in ("$eq", "$ne"):
        return compare(value, other)
    if not isinstance(other, str | int | float):
        raise InputError(
            f"a filter compares {name} with {other!r}",
            expected="a number, a text, a date or a datetime, since only these have an order",
        )
    if isinstance(other, str) and isinstance(value, str):
        return compare(value, other)
    numbers = (_number(value), _number(other))
    return None not in numbers and compare(*numbers)


def _number(value: Any) -> int | float | None:
    """The number that a value is or says; whole ones keep all digits."""
    if isinstance(value, int | float):
        return value
    for kind in (int, float) if isinstance(value, str) else ():
        try:
            return kind(value)
        except ValueError:
            continue
    return None


def _moment(value: Any) -> datetime | None:
    """The moment that a value is or says in ISO's form; of a day its beginning, in UTC."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, datetime):
        return None
    return value if value.tzinfo else value.replace(tzinfo=UTC)


def _list_namespaces(
    op: ListNamespacesOp, namespaces: Iterable[tuple[str, ...]]
) -> list[tuple[str, ...]]:
    conditions = op.match_conditions or ()
    matching = {
        namespace[: op.max_depth]
        for namespace in namespaces
        if all(_fits(namespace, condition) for condition in conditions)
    }
    return sorted(matching)[op.offset : op.offset + op.limit]


def _fits(namespace: Sequence[str], condition: MatchCondition) -> bool:
    path = condition.path
    if len(path) > len(namespace):
        return False
    part = namespace[: len(path)]
    if condition.match_type == "suffix":
        part = namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))
