"""Interfaces between the layers. Nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from memalpha.types import (
    Answer,
    Chunk,
    Completion,
    Entry,
    OperationResult,
    Prompt,
    Question,
    Sampling,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TokenCounter = Callable[[str], int]
"""Number of tokens of a text, by the policy's tokenizer, special tokens not added."""


EventReport = Callable[[str, dict[str, Any]], None]
"""Is told the name of an event (``load``, ``evaluate``, ``step``, ``done``) and its data."""


def silent(event: str, data: dict[str, Any]) -> None:
    """Report nothing."""


class Generator(Protocol):
    """Draws one completion per prompt. The prompts of one call are independent."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion for each prompt, in order."""


class Embedder(Protocol):
    """Turns texts into vectors of unit length."""

    dimension: int

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 (len(texts), dimension).

        Each row has Euclidean norm 1, or is all zero for an empty text.
        """


class Hit(NamedTuple):
    """A retrieved entry and its score. Compare scores only inside one result list."""

    entry: Entry
    score: float


class Retriever(Protocol):
    """Finds entries of one memory. It sees every change of that memory at once."""

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries of list sections and ``k`` lines of the archive, best first.

        ``sections`` restricts both.
        """


class ReadRequest(NamedTuple):
    """A question and its retrieved passages: core text first, then best first."""

    question: Question
    passages: tuple[str, ...]


class Reader(Protocol):
    """Answers questions from passages.

    Readers and judges raise ServiceError, or PartialServiceError for some of a batch.
    """

    def fitting(self, request: ReadRequest) -> Sequence[int]:
        """Return the positions of the passages that are read: those that fit the budget."""

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer per request, in order."""


class AnswerRequest(NamedTuple):
    """A question and the answer to judge."""

    question: Question
    answer: Answer


class AnswerJudge(Protocol):
    """Decides whether answers are right where no string metric can."""

    def judge(self, requests: Sequence[AnswerRequest]) -> list[bool]:
        """Return for each request, in order, whether the answer is right.

        ServiceError if the judge cannot tell.
        """


class WriteRequest(NamedTuple):
    """What a content judge sees: one chunk and what was written during it."""

    instance_id: str
    chunk_index: int
    chunk: Chunk
    # the writes to judge, in order: those applied, or every text (``judge_all``)
    results: tuple[OperationResult, ...]
    before: tuple[Entry | None, ...]  # the touched entry before each write; None for an insert
    kept: tuple[Entry, ...]  # all entries after the writes of the chunk


class ContentJudge(Protocol):
    """Judges each applied write of a chunk: is what was written or deleted right?"""

    def judge(self, requests: Sequence[WriteRequest]) -> list[list[bool]]:
        """Return one verdict per result of each request, in order.

        ServiceError if the judge cannot tell.
        """


@runtime_checkable
class SilenceJudge(Protocol):
    """Optional for a content judge: was it right that a chunk changed nothing?"""

    def nothing_due(self, request: WriteRequest) -> bool | None:
        """Whether ``request.kept`` already agrees with what the chunk says.

        None if the judge cannot tell.
        """
