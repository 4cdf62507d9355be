"""Entries in vector space: the search among them (layer 2), and the ranking of sections and clusters of entries (layer 1).

Layer 1 follows the idea of routing by category descriptions and first entries of the second public system of that name, with the
mean of all entries in place of the first few. What always holds: centroids follow every write at once. Clusters are made by
k-means when a section has grown large and made anew when it has doubled; in between, entries join the cluster whose centroid is
nearest, so which cluster an entry is in depends on the history.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Embedder
from memalpha.retrieval.config import RetrievalConfig
from memalpha.retrieval.index import VectorIndex, centroids
from memalpha.retrieval.ranking import Ranking
from memalpha.types import Entry

Vectors = NDArray[np.float32]

_CLOSE = 1e-3  # two embeddings of one text may differ by rounding, in batches of other sizes
_DESCRIPTION, _CENTROID = "description", "centroid"


class SectionAnchors:
    """Ranks list sections by the nearer of two anchors: the embedding of their name and description, and their entries' mean.

    Args:
        schema: Whose list sections are ranked.
        embedder: Embeds the descriptions, once.
    """

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
        """Count a vector of shape (dimension,) in."""
        self._sums[section] += vector
        self._counts[section] += 1
        self._stale.add(section)

    def remove(self, section: str, vector: Vectors) -> None:
        """Count a vector of shape (dimension,) out again."""
        self._sums[section] -= vector
        self._counts[section] -= 1
        self._stale.add(section)

    def rank(self, query: Vectors) -> list[str]:
        """Return all list sections, nearest first; those as near as each other in the schema's order."""
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
                self._sums[name][:] = 0.0  # what rounding left behind is not a direction
                if key in self._index:
                    self._index.remove(key)
            elif key in self._index:
                self._index.update(key, self._sums[name])
            else:
                self._index.add(key, self._sums[name])
        self._stale.clear()


class SectionClusters:
    """Clusters of the entries of one section.

    Args:
        vectors: The section's vectors; ids handed to this class must be in it.
        size: Entries a cluster, about.
    """

    def __init__(self, vectors: VectorIndex, size: int) -> None:
        self._vectors = vectors
        self._size = size
        self._built_at = 0
        self._centroids: Vectors = np.zeros((0, 0), dtype=np.float32)
        self._members: list[dict[str, None]] = []
        self._cluster_of: dict[str, int] = {}
        self._new: dict[str, None] = {}

    def nearest(self, query: Vectors, kept: int) -> list[str] | None:
        """Return the ids of the ``kept`` clusters nearest to ``query``; None for all (fewer than two clusters' worth of entries).

        A cluster whose entries are all gone is passed over.

        Args:
            query: Unit vector of shape (dimension,).
            kept: How many clusters.
        """
        if len(self._vectors) < 2 * self._size:
            return None
        self._follow()
        best = np.argsort(-(self._centroids @ query), kind="stable").tolist()
        held = [self._members[cluster] for cluster in best if self._members[cluster]]
        return [key for members in held[:kept] for key in members]

    def write(self, key: str) -> None:
        """Note that an entry was added or rewritten."""
        self.forget(key)
        self._new[key] = None

    def forget(self, key: str) -> None:
        """Drop what is known of an entry."""
        self._new.pop(key, None)
        if (cluster := self._cluster_of.pop(key, None)) is not None:
            del self._members[cluster][key]

    def _follow(self) -> None:
        if not self._members or len(self._vectors) >= 2 * self._built_at:
            self._built_at = len(self._vectors)
            keys = self._vectors.ids
            self._centroids = centroids(self._vectors.vectors(keys), math.ceil(self._built_at / self._size))
            self._members = [{} for _ in self._centroids]
            self._cluster_of, self._new = {}, dict.fromkeys(keys)
        if not self._new:
            return
        new = list(self._new)
        nearest = (self._vectors.vectors(new) @ self._centroids.T).argmax(axis=1).tolist()  # (new,)
        for key, cluster in zip(new, nearest, strict=True):
            self._cluster_of[key] = cluster
            self._members[cluster][key] = None
        self._new = {}


class DenseSide:
    """Everything the two-layer retriever knows in vector space; each section has an index of its own.

    Args:
        schema: Schema of the memory that is searched.
        embedder: Embeds entries, descriptions and queries.
        config: Reads ``sections_kept``, ``clusters_kept``, ``cluster_size`` and ``exact_limit``.
    """

    def __init__(self, schema: MemorySchema, embedder: Embedder, config: RetrievalConfig) -> None:
        self._embedder = embedder
        self._kept = config.clusters_kept
        names = [section.name for section in schema.lists]
        self._indexes = {name: VectorIndex(embedder.dimension, exact_limit=config.exact_limit) for name in names}
        self._anchors = SectionAnchors(schema, embedder) if config.sections_kept else None
        self._clusters = {name: SectionClusters(self._indexes[name], config.cluster_size) for name in names if self._kept}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors, float32 of shape (len(texts), dimension)."""
        return self._embedder.embed(texts)

    def write(self, entry: Entry, vector: Vectors) -> None:
        """Add an entry, or replace the vector of one that is there; ``vector`` has shape (dimension,)."""
        index = self._indexes[entry.section]
        if entry.id in index:
            self._uncount(entry)
            index.update(entry.id, vector)
        else:
            index.add(entry.id, vector)
        if self._anchors:
            self._anchors.write(entry.section, index.vectors([entry.id])[0])
        if self._kept:
            self._clusters[entry.section].write(entry.id)

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        self._uncount(entry)
        if self._kept:
            self._clusters[entry.section].forget(entry.id)
        self._indexes[entry.section].remove(entry.id)

    def faults(self, entries: Sequence[Entry]) -> list[str]:
        """Return where the vectors are not those of these entries, one line each."""
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

    def search(self, query: Vectors, k: int, where: Mapping[str, Collection[str] | None]) -> list[Ranking]:
        """Return, for each section of ``where``, at most ``k`` entry ids by cosine with ``query``, shape (dimension,).

        Args:
            query: What to compare with.
            k: How many ids a section at most.
            where: Sections, and the ids in each to choose from; None for all of its entries.
        """
        return [self._indexes[section].search(query, k, allowed) for section, allowed in where.items()]

    def rank_sections(self, query: Vectors) -> list[str]:
        """Return all list sections, nearest first; only where ``sections_kept`` is set."""
        assert self._anchors is not None
        return self._anchors.rank(query)

    def near(self, query: Vectors, section: str) -> Collection[str] | None:
        """Return the ids of a section's entries in the clusters kept for ``query``; None for all of them."""
        return self._clusters[section].nearest(query, self._kept) if self._kept else None

    def _uncount(self, entry: Entry) -> None:
        if self._anchors:
            self._anchors.remove(entry.section, self._indexes[entry.section].vectors([entry.id])[0])
