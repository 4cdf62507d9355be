"""The settings of a retriever, as frozen data a run folder can hold."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from memalpha.errors import InputError


class RetrievalMode(StrEnum):
    """How entries are ranked."""

    LEXICAL = "lexical"
    """BM25 alone: no model, no faiss; entries that share no word with the query are not found."""
    DENSE = "dense"
    """Cosine of embeddings alone."""
    HYBRID = "hybrid"
    """Both, fused by reciprocal rank."""


@dataclass(frozen=True, slots=True)
class RetrievalConfig:
    """How a memory is searched.

    Attributes:
        mode: How entries are ranked; a plain string is taken too.
        embedder: Name of the embedder (``memalpha.retrieval.embedders.EMBEDDERS``); not loaded in lexical mode.
        sections_kept: Layer 1: how many sections to look into (0 = all).
        clusters_kept: Layer 1: how many clusters of entries to look into inside a large section (0 = all); not in lexical mode.
        cluster_size: Entries a cluster, about; a section of fewer than two clusters' worth is not divided.
        fusion_depth: Hybrid: how many entries of each ranking are fused (at least the number asked for).
        exact_limit: Up to how many candidates of a section vectors are compared one by one.
        stem_plurals: Whether BM25 takes English plurals and singulars for the same word.
        router: Layer 1: path of a trained section router, which then ranks the sections (empty = the built-in ranking).
    """

    mode: RetrievalMode = RetrievalMode.LEXICAL
    embedder: str = "minilm"
    sections_kept: int = 0
    clusters_kept: int = 0
    cluster_size: int = 256
    fusion_depth: int = 100
    exact_limit: int = 50_000
    stem_plurals: bool = False
    router: str = ""

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            InputError: If the mode is unknown or a number is out of range.
        """
        try:
            object.__setattr__(self, "mode", RetrievalMode(self.mode))
        except ValueError as error:
            raise InputError(f"retrieval mode {self.mode!r}", expected=f"one of {', '.join(RetrievalMode)}") from error
        least = {"sections_kept": 0, "clusters_kept": 0, "cluster_size": 2, "fusion_depth": 1, "exact_limit": 1}
        for name, minimum in least.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise InputError(f"retrieval setting {name} is {value!r}", expected=f"an integer of at least {minimum}")
