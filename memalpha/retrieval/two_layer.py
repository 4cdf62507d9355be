"""The two-layer retriever of a memory in this process (``retrieval.ranking`` has the rules).

All applied changes are seen; results depend only on the memory's present state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.archive import turn_of
from memalpha.retrieval.dense import DenseSide
from memalpha.retrieval.embedders import make_embedder, quick_embedder
from memalpha.retrieval.lexical import LexicalIndex
from memalpha.retrieval.ranking import RankedSearch
from memalpha.types import Embedder, Entry, Retriever

RetrieverFactory = Callable[[Memory], Retriever]
_BATCH = 1024  # entries embedded at once


class TwoLayerRetriever(RankedSearch):
    """Searches the list sections of one memory (a ``Retriever``).

    ``quick`` embeds every line of the archive, of which ``embedder`` then reads the best; None:
    ``embedder`` reads all. InputError in dense and hybrid mode without ``embedder``.
    """

    def __init__(
        self,
        memory: Memory,
        config: RetrievalConfig | None = None,
        embedder: Embedder | None = None,
        archive: bool = True,
        quick: Embedder | None = None,
    ) -> None:
        super().__init__(memory.schema, config or RetrievalConfig(), archive=archive)
        self._memory = memory
        self._embedder = embedder
        self._quick = quick
        self._cursor: int | None = None  # of the memory's changes; None until the first search
        if self.config.retrieval != "lexical" and embedder is None:
            raise InputError(
                f"the retrieval mode {self.config.retrieval} needs an embedder",
                expected="embedder=make_embedder(name)",
            )

    def view(self) -> Memory:
        """Follow the memory, and return it."""
        self._follow()
        return self._memory

    def turn_of(self, line: Entry) -> str | None:
        """Return the id of the first line of its turn (``archive.turn_of``)."""
        return turn_of(line, self._memory)

    def rebind(self, memory: Memory) -> None:
        """Follow another memory from now on, and index what differs.

        The one before must not be used again.
        """
        if self._cursor is not None:
            self._memory.restore(memory.snapshot())
            self._follow()
            self._cursor = len(memory.changes)
        self._memory = memory

    # --------------------------------------------------------------------------------------------
    # following the memory
    def _reset(self) -> None:
        mode = self.config.retrieval
        self._cursor = None  # if the embedder fails below, the next search retries
        self._entries: dict[str, Entry] = {}  # in order of creation
        self._lexical = self.words = LexicalIndex() if mode != "dense" else None
        self._dense = self.meaning = None
        if mode != "lexical" and self._embedder is not None:
            schema = self._memory.schema
            self._dense = self.meaning = DenseSide(schema, self._embedder, self._quick)
        lines = self._memory.entries(ARCHIVE.name) if ARCHIVE.name in self.sections else ()
        self._write([*self._memory.entries(), *lines])
        self._cursor = len(self._memory.changes)

    def _follow(self) -> None:
        """Apply the net effect of the changes since the last search."""
        changes = self._memory.changes
        if self._cursor is None:
            self._reset()
            return
        if self._cursor == len(changes):
            return
        touched = dict.fromkeys(
            entry.id for change in changes[self._cursor :] for entry in change if entry is not None
        )
        written = []
        for key in touched:
            before = self._entries.get(key)
            after = self._memory.get(key)
            if before is not None and (after is None or _place(after) != _place(before)):
                self._remove(before)
            if after is not None and after.section in self.sections and after != before:
                written.append(after)
        new = [entry.created for entry in written if entry.id not in self._entries]
        last = next((entry.created for entry in reversed(self._entries.values())), -1)
        if min(new, default=last + 1) <= last:
            # a restore brought back an older entry; indexes break ties by order of adding
            self._reset()
        else:
            self._write(written)
        self._cursor = len(changes)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.id]
        if self._lexical is not None:
            self._lexical.remove(entry.id)
        if self._dense is not None:
            self._dense.remove(entry)

    def _write(self, entries: Sequence[Entry]) -> None:
        ordered = sorted(entries, key=attrgetter("created"))
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            if self._dense is not None:
                self._dense.write(batch)
            for entry in batch:
                if self._lexical is not None:
                    self._lexical.write(entry.id, entry.content, entry.section)
                self._entries[entry.id] = entry


@dataclass(frozen=True)
class RetrieverMaker:
    """Makes the retrievers of memories, with one embedder for all; see ``retriever_factory``."""

    config: RetrievalConfig
    embedder: Embedder | None
    quick: Embedder | None
    archive: bool

    def __call__(self, memory: Memory) -> TwoLayerRetriever:
        """Return the retriever of a memory in this process."""
        return TwoLayerRetriever(memory, self.config, self.embedder, self.archive, self.quick)


def retriever_factory(
    config: RetrievalConfig | None = None, *, archive: bool = True
) -> RetrieverMaker:
    """Return a function that makes the retriever of a memory.

    All retrievers of the process share one embedder.

    Args:
        config: The settings of the search; None takes the defaults.
        archive: Whether archived lines are found, too.

    Returns:
        A function from a memory to a retriever that follows it.
    """
    config = config or RetrievalConfig()
    if config.retrieval == "lexical":
        return RetrieverMaker(config, None, None, archive)
    embedder = make_embedder(config.embedder)
    return RetrieverMaker(config, embedder, quick_embedder(embedder), archive)


def _place(entry: Entry) -> tuple[str, int]:
    return entry.section, entry.created
