"""The settings of a retriever."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import Options


class RetrievalMode(StrEnum):
    """How entries are ranked."""

    LEXICAL = "lexical"
    """BM25 alone: no model, no faiss; entries that share no word with the query are not found."""
    DENSE = "dense"
    """Cosine of embeddings alone."""
    HYBRID = "hybrid"
    """Both, fused by reciprocal rank."""


@dataclass(frozen=True)
class RetrievalConfig(Options):
    """How a memory is searched.

    Attributes:
        mode: How entries are ranked.
        embedder: Name of the embedder (``memalpha.retrieval.embedders.EMBEDDERS``); not loaded in lexical mode.
        sections_kept: Layer 1: how many sections to look into (0 = all).
        fusion_depth: Hybrid: how many entries of each ranking are fused (at least the number asked for).
        stem_plurals: Whether BM25 takes English plurals and singulars for the same word.
        router: Layer 1: path of a trained section router, which then ranks the sections (empty = the built-in ranking).
    """

    mode: RetrievalMode = RetrievalMode.LEXICAL
    embedder: str = "minilm"
    sections_kept: NonNegativeInt = 0
    fusion_depth: PositiveInt = 100
    stem_plurals: bool = False
    router: str = ""
