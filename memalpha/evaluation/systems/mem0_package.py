"""The door to the package mem0: no other module imports it, and it is imported when it is first needed.

What always holds: it is imported with its telemetry off, leaves no folder in the user's home, and is of a release whose code was
read; a memory made here lies in this process's memory alone and asks nobody but the model and embedder it is given.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from memalpha.errors import InputError, MissingExtraError
from memalpha.memory.tools import is_text
from memalpha.protocols import Embedder
from memalpha.types import Message

RELEASE = "2.2."
"""How the versions begin that were read and tried."""


class Model(Protocol):
    """What Mem0 takes for its language model."""

    def generate_response(self, messages: Sequence[Message], response_format: Any = None) -> str:
        """Return the reply to a chat."""
        ...


class Reply(NamedTuple):
    """What a model's reply asks Mem0 to remember.

    Attributes:
        texts: The memories.
        failed: Items that are none; 1 for a reply that is no list of items.
    """

    texts: tuple[str, ...]
    failed: int


@lru_cache(maxsize=1)
def load_mem0() -> None:
    """Import mem0 with its telemetry off; it reads that, and where its folder is to be, once, and makes the folder at once.

    Raises:
        MissingExtraError: If it is not installed.
        InputError: If it is another release, was imported before with telemetry on, or would search by downloaded models.
    """
    with tempfile.TemporaryDirectory(prefix="memalpha-") as folder, _environment(MEM0_DIR=folder, MEM0_TELEMETRY="False"):
        try:
            import mem0
        except ImportError as error:
            raise MissingExtraError("mem0", "mem0") from error
        from mem0.memory import telemetry
    if telemetry.MEM0_TELEMETRY:
        raise InputError(
            "mem0 was imported before, with its telemetry on", expected="it off", fix="export MEM0_TELEMETRY=False and start again"
        )
    if not mem0.__version__.startswith(RELEASE):
        raise InputError(f"mem0ai is {mem0.__version__}", expected=f"{RELEASE}*", fix="pip install 'memalpha[mem0]'")
    if extra := next((name for name in ("fastembed", "spacy") if find_spec(name)), None):
        raise InputError(
            f"{extra} is installed, for which Mem0 downloads a model and ranks otherwise",
            expected="the same Mem0 wherever it is compared",
            fix=f"evaluate it in an environment without {extra}",
        )
    for hint in ("mem0.vector_stores.qdrant", "mem0.utils.spacy_models"):  # each memory would say that those are missing
        logging.getLogger(hint).setLevel(logging.ERROR)


def new_memory(model: Model, embedder: Embedder) -> Any:
    """Return an empty ``mem0.Memory`` in this process's memory (Qdrant's local mode, SQLite's ``:memory:``).

    The model and embedder that its configuration makes are placeholders, which ask nobody until they are called, and are replaced.
    """
    import mem0

    size = embedder.dimension
    memory = mem0.Memory.from_config(
        {
            "history_db_path": ":memory:",
            "llm": {"provider": "openai", "config": {"api_key": "unused"}},
            "embedder": {"provider": "openai", "config": {"api_key": "unused", "embedding_dims": size}},
            "vector_store": {
                "provider": "qdrant",
                "config": {"path": ":memory:", "collection_name": "memalpha", "embedding_model_dims": size},
            },
        }
    )
    memory.llm, memory.embedding_model = model, _Embeddings(embedder)
    return memory


def mem0_error() -> type[Exception]:
    """Return the base of Mem0's own errors; one for a failed model has the model's error as its cause."""
    from mem0.exceptions import MemoryError as Mem0Error

    return Mem0Error  # type: ignore[no-any-return]


def read_reply(text: str) -> Reply:
    """Read a reply as Mem0 does, by its own helpers, and say what of it is no memory."""
    from mem0.memory.utils import extract_json, remove_code_blocks

    bare = remove_code_blocks(text)
    try:
        try:
            items = json.loads(bare, strict=False)["memory"]
        except json.JSONDecodeError:
            items = json.loads(extract_json(bare), strict=False)["memory"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return Reply((), 1)
    if not isinstance(items, list):
        return Reply((), 1)
    texts = tuple(item["text"] for item in items if isinstance(item, Mapping) and _is_memory(item.get("text")))
    return Reply(texts, len(items) - len(texts))


def _is_memory(text: Any) -> bool:
    return isinstance(text, str) and bool(text) and is_text(text)


class _Embeddings:
    """What Mem0 takes for its embedder."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder

    def embed(self, text: str, memory_action: str | None = None) -> list[float]:
        """Return one vector."""
        return self.embed_batch([text])[0]

    def embed_batch(self, texts: Sequence[str], memory_action: str = "add") -> list[list[float]]:
        """Return a vector a text."""
        return [[float(value) for value in row] for row in self._embedder.embed(texts)]


@contextmanager
def _environment(**values: str) -> Iterator[None]:
    """Set environment variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


__all__ = ["Model", "Reply", "load_mem0", "mem0_error", "new_memory", "read_reply"]
