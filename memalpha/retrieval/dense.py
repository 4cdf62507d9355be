"""Exact nearest neighbours of embedded texts with FAISS.

Scores are rounded to 6 decimals; of equal scores the id added last is first (an updated id keeps
its rank). A search compares all candidates. No other module imports faiss.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.embedders import embed_queries
from memalpha.retrieval.ranking import READ, ROUGH, FoundEntries, read_best
from memalpha.retrieval.vectors import Vectors, unit_vector
from memalpha.types import Embedder, Entry

_DECIMALS = 6


class VectorIndex:
    """Unit vectors of length ``dimension``, by id, and their ``sum``.

    KeyError for an id that is not there.
    """

    def __init__(self, dimension: int) -> None:
        import faiss

        self.dimension = dimension
        self.sum = np.zeros(dimension)
        self._index: Any = faiss.IndexIDMap2(faiss.IndexFlatIP(dimension))
        self._numbers: dict[str, int] = {}  # what FAISS calls them: the last added is the highest
        self._ids: list[str] = []  # by number, of all that were ever added

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, key: object) -> bool:
        return key in self._numbers

    def keys(self) -> Collection[str]:
        """Return the ids."""
        return self._numbers.keys()

    def write(self, key: str, vector: ArrayLike) -> None:
        """Add a vector of shape (dimension,), or replace it, which keeps its rank among ties."""
        unit = unit_vector(vector, self.dimension)
        if key in self:
            self._take_out(key)
        else:
            self._numbers[key] = len(self._ids)
            self._ids.append(key)
        self._index.add_with_ids(unit[None], np.array([self._numbers[key]]))
        self.sum += unit

    def remove(self, key: str) -> None:
        """Remove a vector."""
        self._take_out(key)
        del self._numbers[key]
        if not self._numbers:
            self.sum[:] = 0.0  # remove the rounding error

    def vector(self, key: str) -> Vectors:
        """Return the unit vector of an id, shape (dimension,)."""
        return np.asarray(self._index.reconstruct(self._numbers[key]))

    def search(self, vector: ArrayLike, k: int) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by cosine with ``vector``, shape (dimension,), best first.

        A zero vector scores 0 everywhere.
        """
        query = unit_vector(vector, self.dimension)
        k = min(k, len(self))
        if k < 1:
            return []
        wanted = min(len(self), k + 8)
        while True:
            scores, numbers = self._index.search(query[None], wanted)
            rounded = np.round(scores[0], _DECIMALS)
            if wanted == len(self) or rounded[-1] < rounded[k - 1]:
                break
            wanted = min(len(self), 2 * wanted)  # ties at the cut need all tied ids
        best = np.lexsort((-numbers[0], -rounded))[:k]
        ids = [self._ids[number] for number in numbers[0][best]]
        return list(zip(ids, rounded[best].tolist(), strict=True))

    def cosines(self, vector: Vectors, keys: Sequence[str]) -> dict[str, float]:
        """Return the cosines of ids with the unit ``vector``."""
        return {key: float(self.vector(key) @ vector) for key in keys}

    def _take_out(self, key: str) -> None:
        self.sum -= self.vector(key)
        self._index.remove_ids(np.array([self._numbers[key]]))


class CodeIndex:
    """Unit vectors in a byte a component (a cosine is off by some .002), by slot, from 0 on."""

    SCALE = 200.0  # a component above 127 / SCALE is cut

    def __init__(self, dimension: int) -> None:
        import faiss

        self.dimension = dimension
        kind = faiss.ScalarQuantizer.QT_8bit_direct_signed
        self._index: Any = faiss.IndexScalarQuantizer(dimension, kind, faiss.METRIC_INNER_PRODUCT)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @classmethod
    def codes(cls, vectors: Vectors) -> NDArray[np.int8]:
        """Return the codes of vectors, of shape (vectors, dimension)."""
        codes: NDArray[np.int8] = np.clip(np.rint(vectors * cls.SCALE), -127, 127).astype(np.int8)
        return codes

    def add(self, codes: NDArray[np.int8]) -> None:
        """Add vectors by their codes, at the next slots."""
        self._index.add(codes.astype(np.float32))

    def search(self, vector: Vectors, k: int) -> tuple[list[int], list[float]]:
        """Return the slots of the nearest ``k`` vectors and their cosines, best first."""
        k = min(k, len(self))
        if k < 1:
            return [], []
        codes = self.codes(vector[None]).astype(np.float32)  # FAISS compares codes with codes
        scores, slots = self._index.search(codes, k)
        return slots[0].tolist(), (scores[0] / self.SCALE**2).tolist()

    def vectors(self, slots: Sequence[int]) -> Vectors:
        """Return the vectors at some slots, of shape (slots, dimension)."""
        rows = self._index.reconstruct_batch(np.array(slots, dtype=np.int64))
        vectors: Vectors = rows / np.float32(self.SCALE)
        return vectors


class LineIndex(Protocol):
    """Quick vectors of the lines of an archive, by id (``VectorIndex``)."""

    def search(self, vector: ArrayLike, k: int) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by cosine with ``vector``, best first."""

    def cosines(self, vector: Vectors, keys: Sequence[str]) -> dict[str, float]:
        """Return the cosines of lines with the unit ``vector``, by id."""


class DenseSide:
    """The dense part of the two-layer retriever: an index for each list section and the archive.

    With ``quick`` the index of the archive has its vectors, and ``embedder`` reads the best lines
    of a question (``ranking.read_best``). ``lines`` is that index if somebody else keeps it; else
    ``quick`` embeds no line while there are so few that all are read.
    """

    def __init__(
        self,
        schema: MemorySchema,
        embedder: Embedder,
        quick: Embedder | None = None,
        lines: LineIndex | None = None,
    ) -> None:
        self._schema = schema
        self._embedder = embedder
        self._quick = quick
        self._indexes = {section.name: VectorIndex(embedder.dimension) for section in schema.lists}
        if lines is None:
            lines = VectorIndex((quick or embedder).dimension)
            self._indexes[ARCHIVE.name] = lines
        self._lines = lines
        self._waiting: dict[str, Entry] = {}  # lines that ``quick`` has not embedded yet

    def write(self, entries: Sequence[Entry]) -> None:
        """Add entries or replace their vectors."""
        lines = [entry for entry in entries if self._staged(entry)]
        self._waiting.update((line.id, line) for line in lines)
        self._write([entry for entry in entries if not self._staged(entry)], self._embedder)

    def _write(self, entries: Sequence[Entry], embedder: Embedder) -> None:
        vectors = embedder.embed([entry.content for entry in entries])
        for entry, vector in zip(entries, vectors, strict=True):
            self._indexes[entry.section].write(entry.id, vector)

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        waited = self._waiting.pop(entry.id, None) is not None
        if not waited or entry.id in self._indexes[entry.section]:
            self._indexes[entry.section].remove(entry.id)

    def search(
        self,
        query: str,
        k: int,
        sections: Sequence[str],
        entries: FoundEntries,
        best_first: Callable[[Mapping[str, float]], list[str]],
    ) -> dict[str, float]:
        """Return the cosines with ``query``, by id (``ranking.MeaningSide``)."""
        vector = self._unit(query)
        found = tuple(entries.values())
        cosines: dict[str, float] = {}
        for section in sections:
            if self._quick is not None and section == ARCHIVE.name:
                rough = self._rough(query, [entry.id for entry in found if self._staged(entry)])

                def read(keys: Sequence[str]) -> Vectors:
                    return self._vectors([entries[key] for key in keys]) @ vector

                cosines.update(read_best(rough, best_first(rough), read))
            else:
                cosines.update(self._indexes[section].search(vector, k))
        others = [entry for entry in found if entry.id not in cosines]
        rest = np.round(self._vectors(others) @ vector, _DECIMALS).tolist()
        cosines.update(zip([entry.id for entry in others], rest, strict=True))
        return cosines

    def _staged(self, entry: Entry) -> bool:
        """Whether the index has the quick vector of an entry."""
        return self._quick is not None and entry.section == ARCHIVE.name

    def _rough(self, query: str, also: Sequence[str]) -> dict[str, float]:
        """The quick cosines of the nearest lines, and of others."""
        assert self._quick is not None
        known = self._indexes.get(ARCHIVE.name)
        if known is not None and len({*self._waiting, *known.keys()}) <= READ:
            return dict.fromkeys((*self._waiting, *known.keys()), 0.0)  # all are read
        self._write(list(self._waiting.values()), self._quick)
        self._waiting.clear()
        vector = unit_vector(embed_queries(self._quick, [query])[0], self._quick.dimension)
        rough = dict(self._lines.search(vector, ROUGH))
        return rough | self._lines.cosines(vector, [key for key in also if key not in rough])

    def cosines(self, entries: Sequence[Entry]) -> Vectors:
        """Return the cosines of entries with each other, shape (entries, entries)."""
        vectors = self._vectors(entries)
        return vectors @ vectors.T

    def nearness(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the cosine of each text, which need not be of the memory, with ``query``."""
        cosines: list[float] = (self._embedder.embed(texts) @ self._unit(query)).tolist()
        return cosines

    def rank_sections(self, query: str) -> dict[str, float]:
        """Return the cosine of each list section with ``query``.

        That of the nearer of two vectors: name and description, and mean of entries.
        """
        vector = self._unit(query)
        ranks = {}
        for name, described in self._descriptions.items():
            index = self._indexes[name]
            anchors: list[ArrayLike] = [described, index.sum] if len(index) else [described]
            units = np.stack([unit_vector(anchor, len(vector)) for anchor in anchors])
            ranks[name] = round(float((units @ vector).max()), _DECIMALS)
        return ranks

    def _unit(self, query: str) -> Vectors:
        return unit_vector(embed_queries(self._embedder, [query])[0], self._embedder.dimension)

    def _vectors(self, entries: Sequence[Entry]) -> Vectors:
        """Unit vectors of these entries, shape (len(entries), dimension)."""
        lines = [entry.content for entry in entries if self._staged(entry)]
        of_lines = dict(zip(lines, self._embedder.embed(lines), strict=True))
        rows = [
            of_lines[entry.content]
            if self._staged(entry)
            else self._indexes[entry.section].vector(entry.id)
            for entry in entries
        ]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self._embedder.dimension)

    @cached_property
    def _descriptions(self) -> dict[str, Vectors]:
        lists = self._schema.lists
        texts = [f"{section.name.replace('_', ' ')}: {section.description}" for section in lists]
        names = [section.name for section in lists]
        return dict(zip(names, self._embedder.embed(texts), strict=True))
