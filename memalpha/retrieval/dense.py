"""Dense retrieval: search of entries (layer 2) and ranking of sections (layer 1); centroids follow every write at once.

Layer 1 uses section descriptions and first entries as in the second public system named Mem-alpha, but the mean of all entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Embedder
from memalpha.retrieval.config import RetrievalConfig
from memalpha.retrieval.faiss_index import VectorIndex, Vectors
from memalpha.retrieval.ranking import Ranking
from memalpha.types import Entry

_CLOSE = 1e-3  # rounding differs between batch sizes
_DESCRIPTION, _CENTROID = "description", "centroid"


class SectionAnchors:
    """Ranks list sections by the nearer of two vectors: that of name and description, and the mean of the entries."""

    def __init__(self, schema: MemorySchema, embedder: Embedder) -> None:
        self._names = [section.name for section in schema.lists]
        self._index = VectorIndex(embedder.dimension)
        self._sums = {name: np.zeros(embedder.dimension) for name in self._names}
        self._counts = dict.fromkeys(self._names, 0)
        self._stale: set[str] = set()
        texts = [f"{section.name.replace('_', ' ')}: {section.description}" for section in schema.lists]
        for name, vector in zip(self._names, embedder.embed(texts), strict=True):
            self._index.add(f"{name}/{_DESCRIPTION}", vector)

    def write(self, section: str, vector: Vectors) -> None:
        """Add a vector of shape (dimension,)."""
        self._sums[section] += vector
        self._counts[section] += 1
        self._stale.add(section)

    def remove(self, section: str, vector: Vectors) -> None:
        """Subtract a vector of shape (dimension,)."""
        self._sums[section] -= vector
        self._counts[section] -= 1
        self._stale.add(section)

    def rank(self, query: Vectors) -> list[str]:
        """Return all list sections, nearest first; ties in schema order."""
        self._refresh()
        ranking = self._index.search(query, len(self._index))
        best: dict[str, float] = {}
        for key, score in zip(ranking.ids, ranking.scores, strict=True):
            best.setdefault(key.partition("/")[0], score)
        return sorted(self._names, key=lambda name: -best[name])

    def _refresh(self) -> None:
        for name in self._stale:
            key = f"{name}/{_CENTROID}"
            if self._counts[name] == 0:
                self._sums[name][:] = 0.0  # remove the rounding error
                if key in self._index:
                    self._index.remove(key)
            elif key in self._index:
                self._index.update(key, self._sums[name])
            else:
                self._index.add(key, self._sums[name])
        self._stale.clear()


class DenseSide:
    """The dense part of the two-layer retriever; one index per section. ``config``: only ``sections_kept`` is used."""

    def __init__(self, schema: MemorySchema, embedder: Embedder, config: RetrievalConfig) -> None:
        self._embedder = embedder
        self._indexes = {section.name: VectorIndex(embedder.dimension) for section in schema.lists}
        self._anchors = SectionAnchors(schema, embedder) if config.sections_kept else None

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors, float32 of shape (len(texts), dimension)."""
        return self._embedder.embed(texts)

    def write(self, entry: Entry, vector: Vectors) -> None:
        """Add an entry or replace its vector of shape (dimension,)."""
        index = self._indexes[entry.section]
        if entry.id in index:
            self._uncount(entry)
            index.update(entry.id, vector)
        else:
            index.add(entry.id, vector)
        if self._anchors:
            self._anchors.write(entry.section, index.vectors([entry.id])[0])

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        self._uncount(entry)
        self._indexes[entry.section].remove(entry.id)

    def faults(self, entries: Sequence[Entry]) -> list[str]:
        """Return the differences between the vectors and these entries, one line each."""
        wanted: dict[str, dict[str, str]] = {name: {} for name in self._indexes}
        for entry in entries:
            wanted[entry.section][entry.id] = entry.content
        found = []
        for section, texts in wanted.items():
            index, keys = self._indexes[section], list(texts)
            if set(index.ids) != texts.keys():
                found.append(f"{section}: vectors of {sorted(set(index.ids) ^ texts.keys())} are missing or left over")
            elif keys and (far := np.abs(index.vectors(keys) - self.embed(list(texts.values()))).max(axis=1) > _CLOSE).any():
                found.append(f"{section}: vectors of {[key for key, bad in zip(keys, far, strict=True) if bad]} are of other texts")
        return found

    def search(self, query: Vectors, k: int, sections: Iterable[str]) -> list[Ranking]:
        """Return per section at most ``k`` entry ids by cosine with ``query``, shape (dimension,)."""
        return [self._indexes[section].search(query, k) for section in sections]

    def rank_sections(self, query: Vectors) -> list[str]:
        """Return all list sections, nearest first; needs ``sections_kept``."""
        assert self._anchors is not None
        return self._anchors.rank(query)

    def _uncount(self, entry: Entry) -> None:
        if self._anchors:
            self._anchors.remove(entry.section, self._indexes[entry.section].vectors([entry.id])[0])
