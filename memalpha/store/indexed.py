"""The durable store with retrievers, for servers and agents.

What always holds: a search sees every acknowledged write of its own namespace, of any process, and
nothing of another namespace. No namespace waits for another's index; an index stays when another
entry is forgotten, or a write fails.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakValueDictionary

from memalpha.memory.memory import count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Hit, Retriever, TokenCounter
from memalpha.retrieval.embedders import forget_texts
from memalpha.retrieval.two_layer import RetrieverFactory, TwoLayerRetriever
from memalpha.store.journal import DurableMemory, Journal, Namespace, Origin, Receipt
from memalpha.store.memory import JournalMemory
from memalpha.types import Change, Operation, OperationResult


class _Open:
    """A namespace in use: its durable memory and, once it was searched, the memory that its
    retriever follows.
    """

    def __init__(self, durable: DurableMemory) -> None:
        self.durable = durable
        self.memory: JournalMemory | None = None
        self.retriever: Retriever | None = None

    def current(self, make: RetrieverFactory) -> tuple[JournalMemory, Retriever]:
        """Return the current memory and its retriever; what the index has of the memory before
        stays.
        """
        memory = self.durable.memory
        if self.retriever is None or memory is not self.memory:
            if isinstance(self.retriever, TwoLayerRetriever):
                self.retriever.rebind(memory)
            else:
                self.retriever = make(memory)
            self.memory = memory
        return memory, self.retriever


class IndexedStore:
    """Durable searchable memories, one per namespace; the ``keep`` last used stay in this process,
    others are rebuilt on use.
    """

    def __init__(
        self,
        journal: Journal,
        schema: MemorySchema,
        make: RetrieverFactory,
        count: TokenCounter = count_words,
        *,
        keep: int = 64,
    ) -> None:
        self.journal, self.schema = journal, schema
        self._make, self._count, self._keep = make, count, keep
        self._lock = threading.Lock()  # of the two below; held for moments
        self._open: OrderedDict[Namespace, _Open] = OrderedDict()
        self._locks: WeakValueDictionary[Namespace, Any] = WeakValueDictionary()

    def durable(self, namespace: Namespace) -> DurableMemory:
        """Return the durable memory of a namespace."""
        with self._using(namespace) as opened:
            return opened.durable

    def memory(self, namespace: Namespace) -> JournalMemory:
        """Return the current memory of a namespace, to read."""
        return self.durable(namespace).memory

    def retriever(self, namespace: Namespace) -> Retriever:
        """Return the retriever of ``memory(namespace)``; get a new one for each prompt."""
        with self.reading(namespace) as (_, retriever):
            return retriever

    @contextmanager
    def reading(self, namespace: Namespace) -> Iterator[tuple[JournalMemory, Retriever]]:
        """Give a namespace's current memory and retriever; no thread changes them inside the
        block.
        """
        with self._using(namespace) as opened:
            yield opened.current(self._make)

    def search(
        self, namespace: Namespace, query: str, k: int, sections: Sequence[str] | None = None
    ) -> list[Hit]:
        """Return at most ``k`` entries and lines of a namespace, best first."""
        with self.reading(namespace) as (_, retriever):
            return retriever.search(query, k, sections)[:k]

    @contextmanager
    def writing(self, namespace: Namespace, origin: Origin) -> Iterator[JournalMemory]:
        """Give a namespace's memory to write to (``DurableMemory.writing``); its searches wait
        meanwhile.
        """
        with self._using(namespace) as opened, opened.durable.writing(origin) as memory:
            yield memory

    def apply(self, namespace: Namespace, operation: Operation, origin: Origin) -> OperationResult:
        """Apply one operation (``DurableMemory.apply``)."""
        with self.writing(namespace, origin) as memory:
            return memory.apply(operation)

    def undo(self, namespace: Namespace, seq: int, origin: Origin) -> Change:
        """Take one operation back (``DurableMemory.undo``)."""
        with self._using(namespace) as opened:
            return opened.durable.undo(seq, origin)

    def forget(
        self, namespace: Namespace, entry_id: str | None = None, also: Sequence[str] = ()
    ) -> Receipt:
        """Erase entries (``DurableMemory.forget``), or the whole namespace, from log, files,
        indexes and caches.
        """
        with self._using(namespace) as opened:
            try:
                return (
                    self.journal.forget(namespace)
                    if entry_id is None
                    else opened.durable.forget(entry_id, also)
                )
            finally:
                if opened.retriever is not None:
                    opened.current(self._make)  # refers to nothing that was erased
                with self._lock:
                    memories = [
                        other.memory for other in self._open.values() if other.memory is not None
                    ]
                forget_texts(
                    {entry.content for memory in memories for entry in memory.snapshot().entries}
                )

    @contextmanager
    def _using(self, namespace: Namespace) -> Iterator[_Open]:
        """Give a namespace to one thread at a time."""
        with self._lock:
            mine = self._locks.setdefault(namespace, threading.RLock())
        with mine:
            with self._lock:
                opened = self._open.get(namespace)
                if opened is None:
                    opened = self._open[namespace] = _Open(
                        self.journal.memory(namespace, self.schema, self._count)
                    )
                self._open.move_to_end(namespace)
                while len(self._open) > self._keep:
                    self._open.popitem(last=False)
            yield opened
