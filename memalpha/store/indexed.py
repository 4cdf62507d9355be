"""The durable store with retrievers, for servers and agents.

What always holds: a search sees every acknowledged write of its own namespace, of any process, and
nothing of another namespace. No namespace waits for another's index; an index stays when another
entry is forgotten, or a write fails.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.retrieval.dense import forget_texts
from memalpha.retrieval.two_layer import RetrieverFactory, TwoLayerRetriever
from memalpha.store.durable import DurableMemory
from memalpha.store.journal import Journal, Namespace, Origin, Receipt
from memalpha.types import Retriever, TokenCounter


@dataclass
class _Open:
    """A namespace in use: its durable memory and, once it was searched, the memory that its
    retriever follows.
    """

    durable: DurableMemory
    memory: Memory | None = None
    retriever: Retriever | None = None

    def current(self, make: RetrieverFactory) -> tuple[Memory, Retriever]:
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
    """Durable searchable memories, one per namespace; the ``in_memory`` last used stay in this
    process, others are rebuilt on use. A namespace that was begun with another schema is opened
    with that one if ``adopts`` says so.
    """

    def __init__(
        self,
        journal: Journal,
        schema: MemorySchema,
        make: RetrieverFactory,
        count: TokenCounter = count_words,
        *,
        in_memory: int = 64,
        adopts: Callable[[MemorySchema], bool] = lambda _: False,
    ) -> None:
        self.journal = journal
        self._adopts = adopts
        self.schema = schema
        self._make = make
        self._count = count
        self._in_memory = in_memory
        self._lock = threading.Lock()  # of the two below; held for moments
        self._open: OrderedDict[Namespace, _Open] = OrderedDict()
        self._locks: WeakValueDictionary[Namespace, Any] = WeakValueDictionary()

    @contextmanager
    def durable(self, namespace: Namespace) -> Iterator[DurableMemory]:
        """Give the durable memory of a namespace, to one thread at a time."""
        with self._using(namespace) as opened:
            yield opened.durable

    @contextmanager
    def reading(self, namespace: Namespace) -> Iterator[tuple[Memory, Retriever]]:
        """Give a namespace's current memory and its retriever; no thread changes them inside the
        block.
        """
        with self._using(namespace) as opened:
            yield opened.current(self._make)

    @contextmanager
    def writing(self, namespace: Namespace, origin: Origin) -> Iterator[Memory]:
        """Give a namespace's memory to write to (``DurableMemory.writing``); its searches wait
        meanwhile.
        """
        with self._using(namespace) as opened, opened.durable.writing(origin) as memory:
            yield memory

    def forget(
        self,
        namespace: Namespace,
        entry_id: str | None = None,
        also: Sequence[str] = (),
        keep: Collection[str] = (),
    ) -> Receipt:
        """Erase entries (``DurableMemory.forget``), or the whole namespace, from log, files,
        indexes and caches.
        """
        with self._using(namespace) as opened:
            try:
                if entry_id is None:
                    return self.journal.forget(namespace)
                return opened.durable.forget(entry_id, also, keep)
            finally:
                if opened.retriever is not None:
                    opened.current(self._make)  # refers to nothing that was erased
                with self._lock:
                    memories = [each.memory for each in self._open.values()]
                entries = [each.snapshot().entries for each in memories if each is not None]
                forget_texts({entry.content for entry in chain.from_iterable(entries)})

    def _schema_of(self, namespace: Namespace) -> MemorySchema:
        if self._adopts(self.schema):
            schema = self.journal.schema_or(self.schema, namespace)
            return schema if self._adopts(schema) else self.schema
        return self.schema

    @contextmanager
    def _using(self, namespace: Namespace) -> Iterator[_Open]:
        """Give a namespace to one thread at a time."""
        with self._lock:
            own = self._locks.setdefault(namespace, threading.RLock())
        with own:
            schema = self._schema_of(namespace)
            with self._lock:
                opened = self._open.get(namespace)
                if opened is None or opened.durable.schema != schema:
                    opened = _Open(self.journal.memory(namespace, schema, self._count))
                    self._open[namespace] = opened
                self._open.move_to_end(namespace)
                while len(self._open) > self._in_memory:
                    self._open.popitem(last=False)
            yield opened
