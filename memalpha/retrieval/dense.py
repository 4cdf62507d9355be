"""Entries in vector space: the search among them (layer 2), and the ranking of sections and clusters of entries (layer 1).

Layer 1 follows the idea of routing by category descriptions and first entries of the second public system of that name, with the
mean of all entries in place of the first few. What always holds: centroids follow every write at once. Clusters are made by
k-means when a section has grown large and made anew when it has doubled; in between, entries join the cluster whose centroid is
nearest, so which cluster an entry is in depends on the history.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Embedder
from memalpha.retrieval.config import RetrievalConfig
from memalpha.retrieval.index import VectorIndex, centroids
from memalpha.retrieval.ranking import Ranking
from memalpha.types import Entry

Vectors = NDArray[np.float32]

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
        vectors: Where the entries' vectors are; ids handed to this class must be in it.
        size: Entries a cluster, about.
    """

    def __init__(self, vectors: VectorIndex, size: int) -> None:
        self._vectors = vectors
        self._size = size
        self._centroids: Vectors | None = None
        self._built_at = 0
        self._cluster_of: dict[str, int] = {}

    def nearest(self, query: Vectors, keys: Sequence[str], kept: int) -> Sequence[str]:
        """Return the ids of the ``kept`` clusters nearest to ``query`` (fewer than two clusters' worth: all ids).

        Args:
            query: Unit vector of shape (dimension,).
            keys: Ids of the section's entries now.
            kept: How many clusters.
        """
        if len(keys) < 2 * self._size:
            return keys
        centres = self._follow(keys)
        best = set(np.argsort(-(centres @ query), kind="stable")[:kept].tolist())
        return [key for key in keys if self._cluster_of[key] in best]

    def forget(self, key: str) -> None:
        """Drop what is known of an entry that was removed or rewritten."""
        self._cluster_of.pop(key, None)

    def _follow(self, keys: Sequence[str]) -> Vectors:
        if self._centroids is None or len(keys) >= 2 * self._built_at:
            self._centroids = centroids(self._vectors.vectors(keys), math.ceil(len(keys) / self._size))
            self._built_at = len(keys)
            self._cluster_of = {}
        if new := [key for key in keys if key not in self._cluster_of]:
            nearest = (self._vectors.vectors(new) @ self._centroids.T).argmax(axis=1)  # (new,)
            self._cluster_of.update(zip(new, nearest.tolist(), strict=True))
        return self._centroids


class DenseSide:
    """Everything the two-layer retriever knows in vector space.

    Args:
        schema: Schema of the memory that is searched.
        embedder: Embeds entries, descriptions and queries.
        config: Reads ``sections_kept``, ``clusters_kept``, ``cluster_size`` and ``exact_limit``.
    """

    def __init__(self, schema: MemorySchema, embedder: Embedder, config: RetrievalConfig) -> None:
        self._embedder = embedder
        self._kept = config.clusters_kept
        self._entries = VectorIndex(embedder.dimension, exact_limit=config.exact_limit)
        self._anchors = SectionAnchors(schema, embedder) if config.sections_kept else None
        self._clusters = {section.name: SectionClusters(self._entries, config.cluster_size) for section in schema.lists}

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return the texts' vectors, float32 of shape (len(texts), dimension)."""
        return self._embedder.embed(texts)

    def write(self, entry: Entry, vector: Vectors) -> None:
        """Add an entry, or replace the vector of one that is there; ``vector`` has shape (dimension,)."""
        if entry.id in self._entries:
            self._forget(entry)
            self._entries.update(entry.id, vector)
        else:
            self._entries.add(entry.id, vector)
        if self._anchors:
            self._anchors.write(entry.section, self._entries.vectors([entry.id])[0])

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        self._forget(entry)
        self._entries.remove(entry.id)

    def search(self, query: Vectors, k: int, allowed: Collection[str] | None) -> Ranking:
        """Return at most ``k`` entry ids by cosine with ``query``, shape (dimension,)."""
        return self._entries.search(query, k, allowed)

    def rank_sections(self, query: Vectors) -> list[str]:
        """Return all list sections, nearest first; only where ``sections_kept`` is set."""
        assert self._anchors is not None
        return self._anchors.rank(query)

    def near(self, query: Vectors, section: str, keys: Sequence[str]) -> Sequence[str]:
        """Return those of a section's entry ids that lie in the clusters kept for ``query``."""
        return self._clusters[section].nearest(query, keys, self._kept) if self._kept else keys

    def _forget(self, entry: Entry) -> None:
        self._clusters[entry.section].forget(entry.id)
        if self._anchors:
            self._anchors.remove(entry.section, self._entries.vectors([entry.id])[0])
