"""Memories on disk, one per namespace, which ``MemoryAgent``, the clients, imports, audits and
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
        """Follow another memory from then on; the previous one is not used again."""


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
    """Durable memories that can be searched, one for each namespace; it is safe for threads.

    A method takes a namespace, or the name of its user. The store needs none if it keeps all in
    this process.

    Args:
        store: Path or URL of the store (``Journal.open``), or a journal that the caller closes.
            None keeps all in this process, in one namespace without a name.
        schema: The schema of new memories, and of existing ones unless ``adopts`` takes the
            recorded one. None takes the recorded sections of each memory, without limits, and
            begins no memory.
        make_retriever: The function that makes the retriever of a memory.
        count_tokens: The function that counts the tokens of a text for the limits.
        key: The key of a keyed store.
        wait: Seconds to wait for another writer.
        in_memory: The number of namespaces that stay in this process; others are read again when
            they are used.
        adopts: A function that tells whether a recorded schema is taken instead of ``schema``.
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
        """Close the store, unless the caller gave a journal; nothing is lost without it."""
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
        """Return all entries, with written blocks, in order of creation.

        Args:
            namespace: The namespace, or the name of its user.
        """
        with self.durable(namespace) as durable:
            return tuple(durable.memory)

    def counted(self, namespace: Namespace | str | None = None) -> tuple[tuple[Entry, ...], int]:
        """Return all entries, as ``memory`` does, and the number of archived lines.

        Args:
            namespace: The namespace, or the name of its user.
        """
        with self.durable(namespace) as durable:
            memory = durable.memory
            return tuple(memory), memory.section_size(ARCHIVE.name)

    def blocks(self, namespace: Namespace | str | None = None) -> tuple[Entry, ...]:
        """Return the written blocks of a memory.

        Args:
            namespace: The namespace, or the name of its user.
        """
        with self.durable(namespace) as durable:
            memory = durable.memory
            blocks = {section.name for section in memory.schema.blocks}
            return tuple(entry for entry in memory if entry.section in blocks)

    def search(self, query: str, k: int, *, namespace: Namespace | str | None = None) -> list[Hit]:
        """Return the best entries and archived lines for a query.

        Args:
            query: The query.
            k: The most results.
            namespace: The namespace, or the name of its user.

        Returns:
            The hits, best first.
        """
        need_text("query", query)
        with self.searching(namespace) as (_, retriever):
            return retriever.search(query, k)[:k]

    def history(
        self, entry: str | None = None, *, namespace: Namespace | str | None = None
    ) -> list[Event]:
        """Return the operations on an entry, or on the whole namespace, in order.

        Args:
            entry: The id of the entry; None takes all.
            namespace: The namespace, or the name of its user.
        """
        with self.durable(namespace) as durable:
            return durable.history(entry)

    def events_at(
        self, numbers: Sequence[int], *, namespace: Namespace | str | None = None
    ) -> dict[int, Event]:
        """Return operations by their numbers, without reading the others.

        ``before`` of such an event is None.

        Args:
            numbers: The numbers; those that do not exist are left out.
            namespace: The namespace, or the name of its user.

        Raises:
            JournalDamagedError: One of the operations is damaged.
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
        """Return all entries as they were after an operation or at a time.

        Args:
            at: The number of the operation, or a time with a time zone.
            namespace: The namespace, or the name of its user.

        Raises:
            InputError: There is no such operation, or the time has no time zone.
        """
        with self.durable(namespace) as durable:
            return tuple(durable.as_of(at))

    def undo(
        self, operation: int, *, namespace: Namespace | str | None = None, by: str = "user"
    ) -> Change:
        """Undo an operation, or an earlier undo.

        Args:
            operation: The number of the operation.
            namespace: The namespace, or the name of its user.
            by: The name that the journal records for the undo.

        Returns:
            The change that the undo made.

        Raises:
            InputError: There is no such operation.
            JournalConflictError: The entry was written again afterwards.
            ForgottenError: The operation was forgotten.
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
        """Erase an entry for good, from log, files, indexes and caches.

        Args:
            entry: The id of the entry or line.
            also: Ids of other entries and lines to erase with it.
            namespace: The namespace, or the name of its user.
            keep: Ids of lines to keep, as in ``DurableMemory.forget``.

        Returns:
            The receipt, whose ``said_by`` lists entries and lines that still have words of it.

        Raises:
            InputError: There is no such entry.
        """
        also = [also] if isinstance(also, str) else also
        for each in (entry, *also):
            need_text("entry", each)
        with self._forgetting(namespace) as opened:
            return opened.durable.forget(entry, also, keep)

    def forget_all(self, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase a whole namespace and its name for good, also one that has another schema.

        Args:
            namespace: The namespace, or the name of its user.

        Returns:
            The receipt.
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
        """Drop the texts in the caches of this process; this is called after an erasure."""
        with self._lock:
            memories = [each.memory for each in self._open.values()]
        entries = [each.snapshot().entries for each in memories if each is not None]
        forget_texts({entry.content for entry in chain.from_iterable(entries)})

    # --------------------------------------------------------------------------------------------
    # several calls of one namespace
    @contextmanager
    def durable(self, namespace: Namespace | str | None = None) -> Iterator[DurableMemory]:
        """Give the durable memory of a namespace to one thread at a time.

        Args:
            namespace: The namespace, or the name of its user.
        """
        with self._using(namespace) as opened:
            yield opened.durable

    @contextmanager
    def reading(
        self, namespace: Namespace | str | None = None
    ) -> Iterator[tuple[Memory, Retriever]]:
        """Give the current memory of a namespace and its retriever; no thread changes them inside
        the block.

        Args:
            namespace: The namespace, or the name of its user.
        """
        with self._using(namespace) as opened:
            yield opened.current(self._make_retriever)

    @contextmanager
    def searching(
        self, namespace: Namespace | str | None = None
    ) -> Iterator[tuple[ReadableMemory, Retriever]]:
        """Give the readable memory of a namespace and its search.

        With ``INDEXED`` operations or more, both are the index on disk.

        Args:
            namespace: The namespace, or the name of its user.
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
        """Bring the index of a namespace on disk up to date.

        Args:
            namespace: The namespace, or the name of its user.
            anew: Whether the index is rebuilt.
            embed: Whether the embedder reads every line at once, so that no question waits for it.
            progress: A function that is told how many operations, and then lines, are done, and of
                how many.

        Returns:
            Whether the namespace has an index.
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
        """Give the memory of a namespace for writing (``DurableMemory.writing``); its searches wait
        for the end of the block.

        Args:
            origin: The origin of the operations.
            metadata: JSON that is kept with every entry that is written.
            namespace: The namespace, or the name of its user.
        """
        with self.durable(namespace) as durable, durable.writing(origin, metadata) as memory:
            yield memory

    def turn(self, namespace: Namespace | str | None = None) -> threading.Lock:
        """Return the lock of all who read texts into a namespace, undo or forget there, one after
        the other.

        Searches and questions do not wait for it.

        Args:
            namespace: The namespace, or the name of its user.
        """
        with self._lock:
            return self._turns.setdefault(self.namespace(namespace), threading.Lock())

    def namespace(self, name: Namespace | str | None) -> Namespace:
        """Return the namespace that a caller means.

        Args:
            name: The namespace, the name of its user, or None.

        Raises:
            InputError: None is given, and the store is on disk.
        """
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
    """Return a value that is Unicode text; InputError if it is not."""
    if not isinstance(value, str) or not is_text(value):
        raise InputError(
            f"{what} is {ascii(value)[:80]}, of type {type(value).__name__}",
            expected="Unicode text (str)",
        )
    return value
