"""Nearest neighbours through Qdrant's client; no other module imports it.

Only vectors and numbers go there, never a text. What always holds is what holds for ``memalpha.retrieval.index``: a removed id
is never returned, a write is seen by the next search, equal scores (at 6 decimals) put the id added last first. The collection
belongs to this object and is dropped with it: like every index here it is made from the memory, and the journal is the truth. A
process that is killed leaves its collection (``memalpha-...``) on the server; drop it there.
"""

from __future__ import annotations

import uuid
import weakref
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from memalpha.errors import InputError, MissingExtraError, ServiceError
from memalpha.retrieval.ranking import Ranking
from memalpha.retrieval.unit import Vectors, unit_vector

try:
    from qdrant_client import QdrantClient, models
    from qdrant_client.http.exceptions import ApiException, ResponseHandlingException
except ImportError as _error:  # pragma: no cover
    raise MissingExtraError("qdrant_client", "qdrant") from _error

_DECIMALS = 6


class QdrantVectors:
    """Unit vectors by id, in a collection of their own.

    Args:
        url: ``qdrant:memory`` for the client's local mode, or the address of a server.
        dimension: Length of a vector.
        exact_limit: Up to how many candidates a search is exact; beyond, the server's own graph answers.

    Raises:
        ServiceError: If the server does not answer (any method).
    """

    def __init__(self, url: str, dimension: int, *, exact_limit: int = 50_000) -> None:
        self.dimension, self.exact_limit = dimension, exact_limit
        self._local = url == "qdrant:memory"
        self._client = QdrantClient(":memory:") if self._local else QdrantClient(url=url, check_compatibility=False)
        self._name = f"memalpha-{uuid.uuid4().hex}"
        self._points: dict[str, int] = {}  # the number of a point is its age
        self._keys: dict[int, str] = {}
        self._next = 0
        self._call(
            "create_collection",
            vectors_config=models.VectorParams(size=dimension, distance=models.Distance.DOT),
        )
        weakref.finalize(self, _drop, self._client, self._name)

    def _call(self, method: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, method)(collection_name=self._name, **arguments)
        except (ApiException, ResponseHandlingException, OSError) as error:
            raise ServiceError(f"the vector database failed in {method}: {error}") from error

    def __len__(self) -> int:
        """Number of vectors."""
        return len(self._points)

    def __contains__(self, key: object) -> bool:
        """Whether a vector has that id."""
        return key in self._points

    @property
    def ids(self) -> tuple[str, ...]:
        """All ids, in order of adding."""
        return tuple(self._points)

    def add(self, key: str, vector: ArrayLike) -> None:
        """Add a vector of shape (dimension,); InputError if the id is taken or the vector does not fit."""
        if key in self._points:
            raise InputError(f"{key!r} is in the vector index already", expected="a new id", fix="use update")
        self._put(self._next, vector)
        self._points[key], self._keys[self._next] = self._next, key
        self._next += 1

    def update(self, key: str, vector: ArrayLike) -> None:
        """Replace a vector, which keeps its place among ties; InputError if there is none of that id."""
        self._put(self._point(key), vector)

    def remove(self, key: str) -> None:
        """Remove a vector; InputError if there is none of that id."""
        point = self._point(key)
        self._call("delete", points_selector=models.PointIdsList(points=[point]), wait=True)
        del self._points[key], self._keys[point]

    def vectors(self, keys: Sequence[str]) -> Vectors:
        """Return the unit vectors of these ids, shape (len(keys), dimension)."""
        points = [self._point(key) for key in keys]
        found = {record.id: record.vector for record in self._call("retrieve", ids=points, with_vectors=True)}
        return np.array([found[point] for point in points], dtype=np.float32).reshape(len(points), self.dimension)

    def search(self, vector: ArrayLike, k: int, allowed: Collection[str] | None = None) -> Ranking:
        """Return at most ``k`` ids by cosine with ``vector``, best first.

        Args:
            vector: Shape (dimension,), of any length but zero vectors score 0 everywhere.
            k: How many ids at most.
            allowed: Ids to choose from; None for all. Unknown ids are not found, not an error.
        """
        query = unit_vector(vector, self.dimension).tolist()
        points = None if allowed is None else [self._points[key] for key in allowed if key in self._points]
        count = len(self._points) if points is None else len(points)
        k = min(k, count)
        if k < 1:
            return Ranking.empty()
        condition = None if points is None else models.Filter(must=[models.HasIdCondition(has_id=list(points))])
        settings = None if self._local else models.SearchParams(exact=count <= self.exact_limit)  # local mode is always exact
        wanted = min(count, k + 8)
        while True:
            response = self._call("query_points", query=query, limit=wanted, query_filter=condition, search_params=settings)
            pairs = [(round(float(point.score), _DECIMALS), int(point.id)) for point in response.points]
            if wanted == count or len(pairs) < wanted or pairs[-1][0] < pairs[k - 1][0]:
                break
            wanted = min(count, 2 * wanted)  # a tie runs over the edge
        best = sorted(pairs, key=lambda pair: (-pair[0], -pair[1]))[:k]
        return Ranking(tuple(self._keys[point] for _, point in best), tuple(score for score, _ in best))

    def _put(self, point: int, vector: ArrayLike) -> None:
        self._call("upsert", points=[models.PointStruct(id=point, vector=unit_vector(vector, self.dimension).tolist())], wait=True)

    def _point(self, key: str) -> int:
        if key not in self._points:
            raise InputError(f"{key!r} is not in the vector index", expected="an id that was added and not removed")
        return self._points[key]


def _drop(client: QdrantClient, name: str) -> None:
    try:
        client.delete_collection(name)
    except (ApiException, ResponseHandlingException, OSError, RuntimeError):
        return  # the server is gone, and the collection with it or left to it
