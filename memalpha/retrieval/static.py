"""Static vectors: a text is the mean of vectors that its tokens have in every text, so that a large
archive is embedded in seconds (model2vec's way: Tulkens and van Dongen, 2024).

The vectors are distilled once from an embedder: each token of its vocabulary is read alone, the
rows are centred, cut to ``DIMENSIONS`` by singular value decomposition, and weighted against
frequent tokens (smooth inverse frequency, Arora et al., ICLR 2017, with Zipf's law for the
frequencies, since a vocabulary is in their order). They are kept in the user's cache folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from memalpha.files import cache_folder, replacing
from memalpha.retrieval.vectors import Vectors, unit_rows

DIMENSIONS = 256
_RARE = 1e-4  # a token's weight is _RARE / (_RARE + its share of all tokens)
_WORDS = 200_000  # that are kept with their tokens
_BATCH = 1024  # tokens that are read at once
_VERSION = 1  # of the vectors; another one is distilled anew
_logger = logging.getLogger(__name__)


class TokenReader(Protocol):
    """An embedder that reads single tokens of its vocabulary (``MiniLMEmbedder``)."""

    def token_vectors(self, batch: int) -> Vectors:
        """Return the vector of each token, read alone, of shape (vocabulary, dimension)."""


class StaticEmbedder:
    """Means of the ``table``'s vectors, of shape (vocabulary, dimension), over a text's tokens.

    ``tokenizer`` is the fast tokenizer (of the library tokenizers) whose ids are its rows.
    """

    quick = True

    def __init__(self, tokenizer: Any, table: Vectors, name: str = "static") -> None:
        self.name = name
        self.dimension = table.shape[1]
        self._tokenizer = tokenizer
        self._table = table
        self._tokens: dict[str, list[int]] = {}  # of words

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return float32 of shape (len(texts), dimension), rows of norm 1; zeros for a text
        without tokens.
        """
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        words = [text.split() for text in texts]
        self._learn(set(chain.from_iterable(words)))
        for row, of_text in zip(sums, words, strict=True):
            tokens = list(chain.from_iterable(map(self._tokens.__getitem__, of_text)))
            if tokens:
                row[:] = self._table[tokens].sum(0)
        return unit_rows(sums)

    def _learn(self, words: set[str]) -> None:
        """Cut words to tokens that were not; a text has the tokens of what stands between its
        spaces, and most of that is seen again and again.
        """
        if len(self._tokens) > _WORDS:
            self._tokens.clear()
        new = [word for word in words if word not in self._tokens]
        encoded = self._tokenizer.encode_batch_fast(new, add_special_tokens=False)
        self._tokens.update((word, row.ids) for word, row in zip(new, encoded, strict=True))

    def forget_texts(self) -> None:
        """Drop the words of texts."""
        self._tokens.clear()


def distil(model: TokenReader) -> Vectors:
    """Return the vectors of an embedder's tokens, float32 of shape (vocabulary, DIMENSIONS)."""
    rows = model.token_vectors(_BATCH)
    rows = rows - rows.mean(0)
    rows = rows @ np.linalg.svd(rows, full_matrices=False)[2][:DIMENSIONS].T
    share = 1 / np.arange(2, len(rows) + 2)
    weights = _RARE / (_RARE + share / share.sum())
    table: Vectors = (rows * weights[:, None]).astype(np.float32)
    return table


class LazyStaticEmbedder:
    """A ``StaticEmbedder`` of ``DIMENSIONS`` that is opened at its first text."""

    quick = True
    dimension = DIMENSIONS

    def __init__(self, name: str, load: Callable[[], StaticEmbedder]) -> None:
        self.name = f"static:{name}-{_VERSION}"
        self._load = load

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return what ``StaticEmbedder.embed`` returns."""
        if not texts:
            return np.zeros((0, self.dimension), dtype=np.float32)
        return self._load().embed(texts)


def static_of(name: str, tokenizer: Any, load: Callable[[], TokenReader]) -> StaticEmbedder:
    """Return the static embedder of the model that ``load`` gives: the vectors that were kept under
    this ``name``, else new ones.
    """
    place = cache_folder() / f"static-{name}-{_VERSION}.npy"
    try:
        table = np.load(place)
        if len(table) != tokenizer.get_vocab_size() or table.dtype != np.float16:
            raise ValueError(f"a table of {len(table)} rows")
    except (OSError, ValueError, EOFError, TypeError):
        _logger.warning(
            "the static vectors of %s are computed once, which takes about half a minute", name
        )
        table = distil(load()).astype(np.float16)
        _keep(place, table)
    return StaticEmbedder(tokenizer, table.astype(np.float32), f"static:{name}-{_VERSION}")


def _keep(place: Path, table: NDArray[np.float16]) -> None:
    """Write a table, so that no other process sees half of it; a warning where that is refused."""
    try:
        with replacing(place) as temporary, temporary.open("wb") as file:
            np.save(file, table)
    except OSError as error:
        _logger.warning("%s cannot be stored and will be computed again: %s", place, error)
