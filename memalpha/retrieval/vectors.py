"""Where vectors are kept and searched, chosen by URL: FAISS in this process, or a vector database behind its client.

(empty)              FAISS, the default
qdrant:memory        Qdrant's client in its local mode, in this process; needs the extra ``qdrant``
http(s)://host:port  a Qdrant server
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from numpy.typing import ArrayLike

from memalpha.errors import InputError
from memalpha.retrieval.ranking import Ranking
from memalpha.retrieval.unit import Vectors


class VectorStore(Protocol):
    """Unit vectors by id; ``memalpha.retrieval.index.VectorIndex`` says what each method does and what always holds."""

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids."""
        ...

    def __len__(self) -> int:
        """Number of vectors."""
        ...

    def __contains__(self, key: object) -> bool:
        """Whether a vector has that id."""
        ...

    def add(self, key: str, vector: ArrayLike) -> None:
        """Add a vector."""
        ...

    def update(self, key: str, vector: ArrayLike) -> None:
        """Replace a vector."""
        ...

    def remove(self, key: str) -> None:
        """Remove a vector."""
        ...

    def vectors(self, keys: Sequence[str]) -> Vectors:
        """Return the unit vectors of these ids, shape (len(keys), dimension)."""
        ...

    def search(self, vector: ArrayLike, k: int, allowed: Collection[str] | None = None) -> Ranking:
        """Return at most ``k`` ids by cosine, best first."""
        ...


def make_vectors(url: str, dimension: int, exact_limit: int) -> VectorStore:
    """Return an empty store of vectors.

    Args:
        url: Which; see above.
        dimension: Length of a vector.
        exact_limit: Up to how many candidates a search compares with every one of them.

    Raises:
        InputError: If the URL is none of these.
        MissingExtraError: If its client is not installed.
        ServiceError: If its server does not answer.
    """
    if not url:
        from memalpha.retrieval.index import VectorIndex

        return VectorIndex(dimension, exact_limit=exact_limit)
    if url == "qdrant:memory" or url.startswith(("http://", "https://")):
        from memalpha.retrieval.qdrant import QdrantVectors

        return QdrantVectors(url, dimension, exact_limit=exact_limit)
    raise InputError(f"vectors at {url!r}", expected="empty for FAISS, 'qdrant:memory', or http(s)://host:port of a Qdrant server")
