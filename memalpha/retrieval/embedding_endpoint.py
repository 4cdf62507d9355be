"""Embeddings of an OpenAI-compatible server, at ``/v1/embeddings``: ``http://host:8000/v1#model``.

``HTTPClient`` says what is tried again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from memalpha.config import Options
from memalpha.errors import InputError, ServiceError
from memalpha.http import ModelClient, Transient, check_url, parse_reply
from memalpha.retrieval.local_models import prompts_of_e5

_ROUTE = "embeddings"


@dataclass(eq=False)
class EmbeddingClient(ModelClient, Options):
    """A client that asks one model of one server for vectors.

    The texts of E5's models get their prefixes here.

    Attributes:
        batch: A request holds at most this many texts; some servers take no more than 32.
    """

    base_url: str
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = "MEMALPHA_EMBEDDER_API_KEY"
    timeout: Annotated[float, Field(gt=0)] = 60.0
    retries: NonNegativeInt = 4
    backoff: NonNegativeFloat = 1.0
    concurrency: PositiveInt = 4
    batch: PositiveInt = 32

    def rows(self, texts: Sequence[str]) -> list[list[float]]:
        """Return one vector for each text, in order, all of one length.

        ServiceError if the server fails or its vectors do not fit; InputError if it refuses key,
        model or URL.
        """
        starts = range(0, len(texts), self.batch)

        async def ask(index: int) -> list[list[float]]:
            batch = texts[starts[index] : starts[index] + self.batch]
            return await self.with_retries(_ROUTE, lambda: self._reply(batch))

        outcomes = self.run(lambda: self.run_all(ask, len(starts), self.concurrency))
        rows: list[list[float]] = []
        for outcome in outcomes:
            if isinstance(outcome, ServiceError):
                raise outcome
            rows += outcome
        return rows

    async def _reply(self, texts: Sequence[str]) -> list[list[float]]:
        body = {"model": self.model, "input": list(texts)}
        reply = parse_reply(_Embeddings, await self.fetch("POST", _ROUTE, body))
        rows = sorted(reply.data, key=attrgetter("index"))
        if [row.index for row in rows] != list(range(len(texts))):
            raise Transient(f"the reply has {len(rows)} vectors, and not one for each text")
        return [row.embedding for row in rows]


class _Row(BaseModel):
    index: int
    embedding: Annotated[list[float], Field(min_length=1)]


class _Embeddings(BaseModel):
    data: list[_Row]


class EndpointEmbedder:
    """The vectors of a model of a server, all of the length of the first one."""

    def __init__(self, client: EmbeddingClient) -> None:
        self._client = client
        self._query, self._passage = prompts_of_e5(client.model)
        self.name = f"endpoint:{client.base_url.rstrip('/')}#{client.model}"
        self.dimension = len(client.rows(["one"])[0])

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each passage."""
        return self._rows(texts, self._passage)

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return a row for each query."""
        return self._rows(queries, self._query)

    def _rows(self, texts: Sequence[str], prompt: str) -> NDArray[np.float32]:
        rows = self._client.rows([f"{prompt}{text}" for text in texts])
        for row in rows:
            if len(row) != self.dimension:
                raise ServiceError(
                    f"{self._client.describe(_ROUTE)} gave a vector of {len(row)} numbers, "
                    f"but others of {self.dimension}",
                    fix="serve a single model under this name, and start again",
                )
        return np.array(rows, dtype=np.float32)


def open_endpoint(address: str) -> EndpointEmbedder:
    """Return the embedder of an address such as ``http://localhost:8000/v1#bge-m3``.

    InputError if it is none; errors as ``EmbeddingClient.rows``, since the server is asked once.
    """
    url, _, model = address.partition("#")
    check_url(url)
    if not model:
        raise InputError(
            f"the embedder {url!r} names no model",
            expected=f"{url}#MODEL",
        )
    return EndpointEmbedder(EmbeddingClient(url, model))
