"""Memories on disk, one per namespace: what ``MemoryAgent``, the clients, imports, audits and
``memalpha journal`` share. Nothing above this module opens a journal.

What always holds: a search sees every acknowledged write of its own namespace, of any process, and
nothing of another namespace. No namespace waits for another's index; an index stays when another
entry is forgotten, or a write fails.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Protocol, Self, runtime_checkable
from weakref import WeakValueDictionary

from memalpha.errors import InputError
from memalpha.files import can_write
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.embedders import forget_texts
from memalpha.retrieval.ranking import ReadableMemory
from memalpha.retrieval.two_layer import RetrieverFactory, RetrieverMaker, retriever_factory
from memalpha.store import records as log
from memalpha.store.durable import DurableMemory
from memalpha.store.history import events_of, shape
from memalpha.store.index import IndexProgress, StoredSearch
from memalpha.store.journal import IN_MEMORY, Event, Journal, Namespace, Origin, Receipt
from memalpha.store.records import Registration
from memalpha.text.quoting import is_text
from memalpha.types import Change, Entry, Hit, Retriever, TokenCounter

INDEXED = 250  # operations of a memory that is searched by an index on disk
LOCAL = Namespace("local")  # of a store that is kept in memory


@runtime_checkable
class Rebindable(Retriever, Protocol):
    """A retriever whose index outlives the memory that it follows."""

    def rebind(self, memory: Memory) -> None:
        """Follow another memory from now on; the one before is not used again."""


@dataclass
class _Open:
    """A namespace in use: its durable memory and, once it was searched, the memory that its
    retriever follows.
    """

    durable: DurableMemory
    memory: Memory | None = None
    retriever: Retriever | None = None
    index: StoredSearch | None = None  # of a large one

    def current(self, make: RetrieverFactory) -> tuple[Memory, Retriever]:
        """Return the current memory and its retriever; what the index has of the memory before
        stays.
        """
        memory = self.durable.memory
        if self.retriever is None or memory is not self.memory:
            if isinstance(self.retriever, Rebindable):
                self.retriever.rebind(memory)
            else:
                self.retriever = make(memory)
            self.memory = memory
        return memory, self.retriever

    def close_index(self) -> None:
        """Close the file of the index; the next search opens it again."""
        if self.index is not None:
            self.index.close()
            self.index = None


class MemoryStore(AbstractContextManager["MemoryStore"]):
    """Durable, searchable memories, one per namespace; thread-safe.

    ``store`` is a path or URL (``Journal.open``, with ``key`` and ``wait``) or a journal, which the
    caller closes; None keeps all in memory, lost with the process, in one namespace that need not
    be named. Elsewhere a str ``namespace`` names the user. ``schema`` is that of new memories, and
    of those that there are unless ``adopts`` says of a recorded schema that it is taken instead;
    without a schema each memory has the sections that are recorded, without limits, and none is
    begun. The ``in_memory`` namespaces last used stay in this process, others are read again on
    use.
    """

    def __init__(
        self,
        store: str | Path | Journal | None,
        schema: MemorySchema | None = None,
        make_retriever: RetrieverFactory | None = None,
        count_tokens: TokenCounter = count_words,
        *,
        key: bytes | None = None,
        wait: float = 30.0,
        in_memory: int = 64,
        adopts: Callable[[MemorySchema], bool] = lambda _: False,
    ) -> None:
        opened = IN_MEMORY if store is None else store
        self._owned = not isinstance(opened, Journal)
        self.journal = (
            opened if isinstance(opened, Journal) else Journal.open(opened, key=key, wait=wait)
        )
        self._default = LOCAL if store is None else None
        self._schema = schema
        self._adopts = adopts
        self._make_retriever = make_retriever or retriever_factory()
        self._count_tokens = count_tokens
        self._in_memory = in_memory
        self._lock = threading.Lock()  # of the three below; held for moments
        self._open: OrderedDict[Namespace, _Open] = OrderedDict()
        self._locks: WeakValueDictionary[Namespace, Any] = WeakValueDictionary()
        self._turns: WeakValueDictionary[Namespace, threading.Lock] = WeakValueDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the journal, unless the caller gave it; no data is lost without it."""
        with self._lock:
            for each in self._open.values():
                each.close_index()
        if self._owned:
            self.journal.close()

    # --------------------------------------------------------------------------------------------
    # one call
    def namespaces(self) -> tuple[Namespace, ...]:
        """Return all namespaces of all users, in order of their beginning."""
        return self.journal.namespaces()

    def memory(self, namespace: Namespace | str | None = None) -> tuple[Entry, ...]:
        """Return all entries, written blocks included, in order of creation."""
        with self.durable(namespace) as durable:
            return tuple(durable.memory)

    def counted(self, namespace: Namespace | str | None = None) -> tuple[tuple[Entry, ...], int]:
        """Return all entries, as ``memory`` does, and the number of lines of the archive."""
        with self.durable(namespace) as durable:
            memory = durable.memory
            return tuple(memory), memory.section_size(ARCHIVE.name)

    def blocks(self, namespace: Namespace | str | None = None) -> tuple[Entry, ...]:
        """Return the written blocks of a memory."""
        with self.durable(namespace) as durable:
            memory = durable.memory
            blocks = {section.name for section in memory.schema.blocks}
            return tuple(entry for entry in memory if entry.section in blocks)

    def search(self, query: str, k: int, *, namespace: Namespace | str | None = None) -> list[Hit]:
        """Return at most ``k`` entries and lines for a query, best first."""
        need_text("query", query)
        with self.searching(namespace) as (_, retriever):
            return retriever.search(query, k)[:k]

    def history(
        self, entry: str | None = None, *, namespace: Namespace | str | None = None
    ) -> list[Event]:
        """Return the operations on an entry, or on the whole namespace, in order."""
        with self.durable(namespace) as durable:
            return durable.history(entry)

    def events_at(
        self, numbers: Sequence[int], *, namespace: Namespace | str | None = None
    ) -> dict[int, Event]:
        """Return some operations by their numbers, of which those that there are alone are read:
        ``before`` of an event is None. JournalDamagedError if one is damaged.
        """
        with self.journal.reading():
            registered = self.journal.registered.get(self.namespace(namespace))
            if registered is None:
                return {}
            records = self.journal.database.holding(registered.entry, numbers)
        log.check_seals(records, self.journal.key, self.journal.database.name)
        events = (event for event in events_of(records) if event.seq in numbers)
        return {event.seq: replace(event, before=None) for event in events}

    def as_of(
        self, at: int | datetime, *, namespace: Namespace | str | None = None
    ) -> tuple[Entry, ...]:
        """Return all entries as they were after an operation or at a time (``DurableMemory.as_of``,
        also for the errors).
        """
        with self.durable(namespace) as durable:
            return tuple(durable.as_of(at))

    def undo(
        self, operation: int, *, namespace: Namespace | str | None = None, by: str = "user"
    ) -> Change:
        """Undo operation number ``operation`` (or an earlier undo); ``by`` is who asks. Raises as
        ``DurableMemory.undo``.
        """
        with self.turn(namespace), self.durable(namespace) as durable:
            return durable.undo(operation, Origin(by))

    def forget(
        self,
        entry: str,
        also: Sequence[str] = (),
        *,
        namespace: Namespace | str | None = None,
        keep: Collection[str] = (),
    ) -> Receipt:
        """Erase an entry, and ``also`` others and lines, for good, from log, files, indexes and
        caches; ``said_by`` lists what still has words of it.

        See ``DurableMemory.forget``, also for what to ``keep``.
        """
        also = [also] if isinstance(also, str) else also
        for each in (entry, *also):
            need_text("entry", each)
        with self._forgetting(namespace) as opened:
            return opened.durable.forget(entry, also, keep)

    def forget_all(self, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase a whole namespace and its name permanently; also one that was begun with another
        schema.
        """
        with self._forgetting(namespace) as opened:
            return self.journal.forget(opened.durable.namespace)

    @contextmanager
    def _forgetting(self, namespace: Namespace | str | None) -> Iterator[_Open]:
        with self.turn(namespace), self._using(namespace) as opened:
            try:
                yield opened
            finally:
                opened.close_index()
                if opened.retriever is not None:
                    opened.current(self._make_retriever)  # refers to nothing that was erased
                self.drop_caches()

    def drop_caches(self) -> None:
        """Drop the texts that caches of this process keep; called when something was erased."""
        with self._lock:
            memories = [each.memory for each in self._open.values()]
        entries = [each.snapshot().entries for each in memories if each is not None]
        forget_texts({entry.content for entry in chain.from_iterable(entries)})

    # --------------------------------------------------------------------------------------------
    # several calls of one namespace
    @contextmanager
    def durable(self, namespace: Namespace | str | None = None) -> Iterator[DurableMemory]:
        """Give the durable memory of a namespace, to one thread at a time."""
        with self._using(namespace) as opened:
            yield opened.durable

    @contextmanager
    def reading(
        self, namespace: Namespace | str | None = None
    ) -> Iterator[tuple[Memory, Retriever]]:
        """Give a namespace's current memory and its retriever; no thread changes them inside the
        block.
        """
        with self._using(namespace) as opened:
            yield opened.current(self._make_retriever)

    @contextmanager
    def searching(
        self, namespace: Namespace | str | None = None
    ) -> Iterator[tuple[ReadableMemory, Retriever]]:
        """Give what can be read and searched of a namespace: its memory, or of one with
        ``INDEXED`` operations or more its index on disk.
        """
        with self._using(namespace) as opened:
            index = self._index_of(opened)
            if index is not None:
                with index.reading() as memory:
                    yield memory, index
            else:
                yield opened.current(self._make_retriever)

    def index(
        self,
        namespace: Namespace | str | None = None,
        *,
        anew: bool = False,
        embed: bool = False,
        progress: IndexProgress | None = None,
    ) -> bool:
        """Bring the index of a namespace on disk to its present state, or make it ``anew``; return
        whether it has one. ``embed``: let the embedder read every line now. ``progress`` is told
        how many operations (then, how many lines) are done, and of how many.
        """
        with self._using(namespace) as opened:
            index = self._index_of(opened)
            if index is not None:
                index.update(progress, anew=anew)
                if embed:
                    index.embed_lines(progress)
            return index is not None

    def _index_of(self, opened: _Open) -> StoredSearch | None:
        """The index of a large memory; None if it is small, or its index cannot be written."""
        if opened.index is not None:
            return opened.index
        name = opened.durable.namespace
        maker = self._make_retriever
        folder = self.journal.database.index_folder
        if not isinstance(maker, RetrieverMaker) or folder is None:
            return None
        with self.journal.reading():
            registered = self.journal.registered.get(name)
            if registered is None:
                return None
            chain = registered.entry
            if self.journal.database.head(chain).seq < INDEXED:
                return None
            if registered.read(Registration).shape != shape(opened.durable.schema):
                return None  # what may be done with it, the memory says
        file = self.journal.database.index_file(chain)
        assert file is not None
        if not can_write(folder) or file.is_dir():
            return None
        opened.index = StoredSearch(self.journal, chain, opened.durable.schema, file, maker)
        return opened.index

    @contextmanager
    def writing(
        self,
        origin: Origin,
        metadata: str | None = None,
        *,
        namespace: Namespace | str | None = None,
    ) -> Iterator[Memory]:
        """Give a namespace's memory to write to (``DurableMemory.writing``); its searches wait
        meanwhile.
        """
        with self.durable(namespace) as durable, durable.writing(origin, metadata) as memory:
            yield memory

    def turn(self, namespace: Namespace | str | None = None) -> threading.Lock:
        """Return the lock of those who read texts into a namespace, undo or forget there: one after
        the other. Searches and questions do not wait for it.
        """
        with self._lock:
            return self._turns.setdefault(self.namespace(namespace), threading.Lock())

    def namespace(self, name: Namespace | str | None) -> Namespace:
        """Return the namespace that is meant; InputError if none is."""
        whose = Namespace(name) if isinstance(name, str) else name or self._default
        if not isinstance(whose, Namespace):
            raise InputError(
                "no namespace is given" if name is None else f"the namespace is {name!r}",
                expected="Namespace(user, agent, session), or the name of the user",
            )
        return whose

    def _schema_of(self, whose: Namespace) -> MemorySchema:
        if self._schema is None:
            return self.journal.schema(whose)
        if self._adopts(self._schema):
            schema = self.journal.schema_or(self._schema, whose)
            return schema if self._adopts(schema) else self._schema
        return self._schema

    @contextmanager
    def _using(self, namespace: Namespace | str | None) -> Iterator[_Open]:
        """Give a namespace to one thread at a time."""
        whose = self.namespace(namespace)
        with self._lock:
            own = self._locks.setdefault(whose, threading.RLock())
        with own:
            schema = self._schema_of(whose)
            with self._lock:
                opened = self._open.get(whose)
                if opened is None or opened.durable.schema != schema:
                    memory = self.journal.memory(whose, schema, self._count_tokens)
                    opened = self._open[whose] = _Open(memory)
                self._open.move_to_end(whose)
                while len(self._open) > self._in_memory:
                    self._open.popitem(last=False)[1].close_index()
            yield opened


def need_text(what: str, value: object) -> str:
    """Return a value that is Unicode text, InputError if it is none."""
    if not isinstance(value, str) or not is_text(value):
        raise InputError(
            f"{what} is {ascii(value)[:80]}, of type {type(value).__name__}",
            expected="Unicode text (str)",
        )
    return value
