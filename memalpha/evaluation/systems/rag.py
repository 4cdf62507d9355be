"""Retrieval over raw chunks: the input is kept in pieces, a question gets the pieces found for it. No model writes anything.

| kind | ranks by |
| --- | --- |
| rag_bm25 | BM25 (Robertson and Zaragoza, 2009) |
| rag_dense | cosine of sentence embeddings (MiniLM by default) |
| rag_two_layer | layer 1: which chunks; layer 2: their pieces, BM25 and embeddings fused by reciprocal rank |

The retriever is the agent's own (``memalpha.retrieval``), the number of pieces is the common ``retrieve_k`` and the reader's budget
the common one, so what differs is what is searched. A piece is some neighbouring lines or sentences (``piece_tokens``; by default
as many as make ``retrieve_k`` pieces fill the reader's budget), each with its chunk's time.

Departures from retrieval as the published comparison has it (Mem-alpha, arXiv 2509.25911: BM25, two chunks of the input): pieces of
chunks, since a whole chunk is often longer than the budget; the same text at the same time is kept once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from memalpha.agent.rollout import StepCallback
from memalpha.errors import InputError
from memalpha.evaluation.pieces import UNIT_TOKENS, Piece, pieces
from memalpha.evaluation.systems.base import Kept, PlainSystem, Setting, searched
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import RetrieverFactory, TokenCounter
from memalpha.retrieval.config import RetrievalConfig, RetrievalMode
from memalpha.retrieval.two_layer import retriever_factory
from memalpha.types import Instance, Operation, OperationKind


@dataclass(frozen=True, slots=True)
class RagOptions:
    """What is searched and how.

    Attributes:
        piece_tokens: Most tokens of a piece of several lines or sentences (0 = the reader's budget over ``retrieve_k``; 1 = each
            line or sentence apart). A line or sentence of more stays whole up to the greater of this and 48.
        embedder: Embedder of ``rag_dense`` and ``rag_two_layer``.
        chunks_kept: ``rag_two_layer``: how many chunks layer 1 keeps (0 = all).
    """

    piece_tokens: int = 0
    embedder: str = "minilm"
    chunks_kept: int = 8

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("piece_tokens", "chunks_kept"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}", expected="0 or more")


class Rag(PlainSystem):
    """Retrieval over pieces of the input; a ``System``.

    Args:
        setting: The protocol.
        options: What is searched.
        mode: How pieces are ranked.
        by_chunk: Whether layer 1 chooses chunks first.
    """

    def __init__(self, setting: Setting, options: RagOptions, mode: RetrievalMode, by_chunk: bool = False) -> None:
        self.setting, self.by_chunk = setting, by_chunk
        self.pack = options.piece_tokens or max(1, setting.reader_tokens // setting.retrieve_k)
        kept = options.chunks_kept if by_chunk else 0
        self._make_retriever = _factory(RetrievalConfig(mode=mode, embedder=options.embedder, sections_kept=kept))

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Index the inputs."""
        return [self._keep(instance) for instance in instances]

    def _keep(self, instance: Instance) -> Kept:
        count = self.setting.count
        found = pieces(instance.chunks, self.pack, max(self.pack, UNIT_TOKENS), count)
        memory = piece_memory(found, count, by_chunk=self.by_chunk)
        retriever = self._make_retriever(memory)
        return Kept(searched(memory, retriever, self.setting.retrieve_k), memory_tokens=memory.tokens)


def piece_memory(found: Sequence[Piece], count: TokenCounter, *, by_chunk: bool = False) -> Memory:
    """Return a memory without limits that holds the pieces: in one section, or in one a chunk.

    Args:
        found: The pieces; the same text at the same time is held once, where it stands first.
        count: Counts tokens.
        by_chunk: Whether each chunk is a section.
    """

    def section_of(piece: Piece) -> str:
        return f"chunk_{piece.chunk}" if by_chunk else "pieces"

    first: dict[tuple[str, str | None], Piece] = {}
    for piece in found:
        first.setdefault((piece.text, piece.time), piece)
    names = dict.fromkeys(section_of(piece) for piece in first.values()) or {"pieces": None}
    schema = MemorySchema("pieces", tuple(Section(name, SectionKind.LIST, timestamps=True) for name in names))
    memory = Memory(schema, count)
    for piece in first.values():
        memory.apply(Operation(OperationKind.INSERT, section_of(piece), piece.text, timestamp=piece.time), chunk=piece.chunk)
    return memory


@lru_cache(maxsize=8)
def _factory(config: RetrievalConfig) -> RetrieverFactory:
    """One embedder for all sets and systems that use it in the same way."""
    return retriever_factory(config)


def rag_bm25(setting: Setting, options: RagOptions) -> Rag:
    """Rank pieces by BM25."""
    return Rag(setting, options, RetrievalMode.LEXICAL)


def rag_dense(setting: Setting, options: RagOptions) -> Rag:
    """Rank pieces by the cosine of embeddings."""
    return Rag(setting, options, RetrievalMode.DENSE)


def rag_two_layer(setting: Setting, options: RagOptions) -> Rag:
    """Choose chunks, then rank their pieces by BM25 and embeddings together."""
    return Rag(setting, options, RetrievalMode.HYBRID, by_chunk=True)


__all__ = ["Rag", "RagOptions", "piece_memory", "rag_bm25", "rag_dense", "rag_two_layer"]
