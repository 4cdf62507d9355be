"""Other memories of the same messages, with the same embedder: a plain vector database and Mem0.

Each has a function that keeps the messages of an export in a folder, and one that opens the folder
and returns a search for the texts that are nearest to a question. Nothing of memalpha but its
embedder is used. ``NEEDS`` has the packages of each, which memalpha does not depend on.

* ``sqlite-vec``: each line is a row of an SQLite table with its vector, and a search compares the
  question's vector with all of them. apsw brings an SQLite that loads extensions, which many builds
  of Python lack.
* ``mem0``: Mem0's library adds each message as a whole without a language model (``infer=False``),
  which is its own way, to Qdrant in the process, its default. Its search by words and its links by
  names need spaCy, fastembed and their models, and are left off, as where these are not installed.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from memalpha.retrieval.embedders import make_embedder

Search = Callable[[str, int], list[str]]

NEEDS = {  # modules that are imported, by the names of their packages
    "sqlite-vec": {"sqlite-vec": "sqlite_vec", "apsw": "apsw"},
    "mem0": {"mem0ai": "mem0", "qdrant-client": "qdrant_client"},
}
BATCH = 512  # lines of one transaction
DIMENSION = 384


def missing_packages(name: str) -> list[str]:
    """The packages of a memory that are not installed."""
    return [package for package, module in NEEDS[name].items() if find_spec(module) is None]


def installed_versions() -> dict[str, str]:
    """The versions of the packages that are installed."""
    return {
        package: version(package)
        for packages in NEEDS.values()
        for package, module in packages.items()
        if find_spec(module) is not None
    }


def keep_messages(name: str, export: Path, folder: Path) -> None:
    """Keep the messages of an export in an empty folder."""
    KEEP[name](json.loads(export.read_text()), folder)


def open_search(name: str, folder: Path) -> Search:
    """Return a search of the memory in a folder."""
    return OPEN[name](folder)


# ------------------------------------------------------------------------------------------------
# sqlite-vec
def vector_table(folder: Path) -> Any:
    import apsw
    import sqlite_vec

    database = apsw.Connection(str(folder / "lines.db"))
    database.enable_load_extension(True)
    database.load_extension(sqlite_vec.loadable_path())
    return database


def keep_lines(messages: list[dict[str, str]], folder: Path) -> None:
    embedder = make_embedder("minilm")
    database = vector_table(folder)
    database.execute(
        "create virtual table lines using vec0("
        f"vector float[{DIMENSION}] distance_metric=cosine, +text text)"
    )
    lines = (line for message in messages for line in message["content"].splitlines() if line)
    while batch := list(islice(lines, BATCH)):
        rows = zip(embedder.embed(batch), batch, strict=True)
        with database:
            database.executemany(
                "insert into lines (vector, text) values (?, ?)",
                [(vector.tobytes(), text) for vector, text in rows],
            )
    database.close()


def search_lines(folder: Path) -> Search:
    embedder = make_embedder("minilm")
    database = vector_table(folder)

    def search(question: str, k: int) -> list[str]:
        (vector,) = embedder.embed([question])
        query = "select text from lines where vector match ? and k = ? order by distance"
        return [text for (text,) in database.execute(query, (vector.tobytes(), k))]

    return search


# ------------------------------------------------------------------------------------------------
# Mem0
def open_mem0(folder: Path) -> Any:
    # before its import: what it would send, and where it would write
    os.environ |= {"MEM0_TELEMETRY": "False", "MEM0_DIR": str(folder)}
    from mem0 import Memory
    from mem0.embeddings.base import EmbeddingBase

    class OurEmbedding(EmbeddingBase):
        def embed(self, text: str, memory_action: str | None = None) -> list[float]:
            (vector,) = make_embedder("minilm").embed([text])
            return list(vector.tolist())

    never_called = {"provider": "openai", "config": {"api_key": "none"}}
    config = {
        "vector_store": {
            "provider": "qdrant",
            "config": {"path": str(folder / "qdrant"), "embedding_model_dims": DIMENSION},
        },
        "history_db_path": str(folder / "history.db"),
        "llm": never_called,
        "embedder": never_called,
    }
    memory = Memory.from_config(config)
    memory.embedding_model = OurEmbedding()
    return memory


def keep_in_mem0(messages: list[dict[str, str]], folder: Path) -> None:
    memory = open_mem0(folder)
    memory.add(messages, user_id="me", infer=False)
    memory.vector_store.client.close()
    memory.close()


def search_mem0(folder: Path) -> Search:
    memory = open_mem0(folder)
    atexit.register(memory.vector_store.client.close)

    def search(question: str, k: int) -> list[str]:
        found = memory.search(question, top_k=k, filters={"user_id": "me"})
        return [hit["memory"] for hit in found["results"]]

    return search


KEEP = {"sqlite-vec": keep_lines, "mem0": keep_in_mem0}
OPEN = {"sqlite-vec": search_lines, "mem0": search_mem0}
