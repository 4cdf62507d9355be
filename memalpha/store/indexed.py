"""The durable store with retrievers, for servers and agents.

What always holds: a search sees every acknowledged write of its own namespace, of any process, and nothing of another namespace.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from memalpha.memory.memory import count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Hit, Retriever, RetrieverFactory, TokenCounter
from memalpha.retrieval.lexical import tokenize
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.store.journal import DurableMemory, Journal, Namespace, Origin, Receipt
from memalpha.store.memory import JournalMemory
from memalpha.types import Change, Operation, OperationResult


class _Open(NamedTuple):
    durable: DurableMemory
    memory: JournalMemory
    retriever: Retriever


class IndexedStore:
    """Durable searchable memories, one per namespace; the ``keep`` last used stay in this process, others are rebuilt on use."""

    def __init__(
        self, journal: Journal, schema: MemorySchema, make: RetrieverFactory, count: TokenCounter = count_words, *, keep: int = 64
    ) -> None:
        self.journal, self.schema = journal, schema
        self._make, self._count, self._keep = make, count, keep
        self._lock = threading.RLock()
        self._open: OrderedDict[Namespace, _Open] = OrderedDict()

    def durable(self, namespace: Namespace) -> DurableMemory:
        """Return the durable memory of a namespace."""
        return self._current(namespace).durable

    def memory(self, namespace: Namespace) -> JournalMemory:
        """Return the current memory of a namespace, to read."""
        return self._current(namespace).memory

    def retriever(self, namespace: Namespace) -> Retriever:
        """Return the retriever of ``memory(namespace)``; get a new one for each prompt."""
        return self._current(namespace).retriever

    @contextmanager
    def reading(self, namespace: Namespace) -> Iterator[tuple[JournalMemory, Retriever]]:
        """Give a namespace's current memory and retriever; no thread changes them inside the block."""
        with self._lock:
            _, memory, retriever = self._current(namespace)
            yield memory, retriever

    def search(self, namespace: Namespace, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries and lines of a namespace, best first."""
        with self.reading(namespace) as (_, retriever):
            return retriever.search(query, k, sections)[:k]

    @contextmanager
    def writing(self, namespace: Namespace, origin: Origin) -> Iterator[JournalMemory]:
        """Give a namespace's memory to write to (``DurableMemory.writing``); searches wait meanwhile."""
        with self._lock, self._current(namespace).durable.writing(origin) as memory:
            yield memory

    def apply(self, namespace: Namespace, operation: Operation, origin: Origin) -> OperationResult:
        """Apply one operation (``DurableMemory.apply``)."""
        with self.writing(namespace, origin) as memory:
            return memory.apply(operation)

    def undo(self, namespace: Namespace, seq: int, origin: Origin) -> Change:
        """Take one operation back (``DurableMemory.undo``)."""
        with self._lock:
            return self._current(namespace).durable.undo(seq, origin)

    def forget(self, namespace: Namespace, entry_id: str | None = None, also: Sequence[str] = ()) -> Receipt:
        """Erase entries (``DurableMemory.forget``), or the whole namespace, from log, files and indexes."""
        with self._lock:
            durable, _, retriever = self._current(namespace)
            try:
                return self.journal.forget(namespace) if entry_id is None else durable.forget(entry_id, also)
            finally:
                self._open.pop(namespace, None)
                tokenize.cache_clear()  # the cache holds texts
                if isinstance(retriever, TwoLayerRetriever):
                    retriever.forget_texts()

    def _current(self, namespace: Namespace) -> _Open:
        with self._lock:
            known = self._open.get(namespace)
            durable = known.durable if known else self.journal.memory(namespace, self.schema, self._count)
            memory = durable.memory
            if known is None or known.memory is not memory:
                known = self._open[namespace] = _Open(durable, memory, self._make(memory))
            self._open.move_to_end(namespace)
            while len(self._open) > self._keep:
                self._open.popitem(last=False)
            return known
