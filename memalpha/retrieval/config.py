"""The settings of a retriever."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pydantic import NonNegativeInt, PositiveInt

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
        fusion_depth: Hybrid: how many entries of each ranking are fused (at least the number asked for).
        stem_plurals: Whether BM25 treats English plurals and singulars as one word.
        router: Layer 1: path of a trained section router that ranks the sections (empty = the built-in ranking).
    """

    mode: RetrievalMode = RetrievalMode.LEXICAL
    embedder: str = "minilm"
    sections_kept: NonNegativeInt = 0
    fusion_depth: PositiveInt = 100
    stem_plurals: bool = False
    router: str = ""
