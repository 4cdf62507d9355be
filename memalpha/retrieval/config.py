"""The settings of a retriever."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import NonNegativeInt

from memalpha.config import Options


class RetrievalMode(StrEnum):
    """How entries are ranked: BM25 (no model, no faiss), cosine of embeddings, or both fused by reciprocal rank."""

    LEXICAL = "lexical"
    DENSE = "dense"
    HYBRID = "hybrid"


@dataclass(frozen=True)
class RetrievalConfig(Options):
    """How a memory is searched.

    Attributes:
        mode: How entries are ranked.
        embedder: Name of the embedder (``memalpha.retrieval.embedders.EMBEDDERS``); not loaded in lexical mode.
        sections_kept: Layer 1: how many sections are searched (0 = all).
        router: Layer 1: path of a trained section router that ranks the sections (empty = the built-in ranking).
    """

    mode: RetrievalMode = RetrievalMode.LEXICAL
    embedder: str = "minilm"
    sections_kept: NonNegativeInt = 0
    router: str = ""
