"""The seams: what the layers ask of each other. Any object of the right shape fits; nothing here needs torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from memalpha.types import Answer, Chunk, Completion, Entry, OperationResult, Prompt, Question, Sampling

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from memalpha.memory.memory import Memory

TokenCounter = Callable[[str], int]
"""Number of tokens of a text, by the policy's tokenizer, special tokens not added."""


@runtime_checkable
class Generator(Protocol):
    """Draws one completion a prompt. Prompts of one call are independent; order is kept."""

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[Completion]:
        """Return one completion for each prompt, in order."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors of unit length."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        ...

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 of shape (len(texts), dimension), each row of Euclidean norm 1 (or all zero for an empty text)."""
        ...


class Hit(NamedTuple):
    """A retrieved entry and its score; scores order one result list and mean nothing across lists."""

    entry: Entry
    score: float


class Retriever(Protocol):
    """Finds entries of the one memory it was made for; sees every change of that memory at once."""

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries of list sections, best first; ``sections`` restricts layer 1."""
        ...


RetrieverFactory = Callable[["Memory"], Retriever]
"""Makes the retriever of one memory."""


class ReadRequest(NamedTuple):
    """A question and what was found for it, best first, core text before everything else."""

    question: Question
    passages: tuple[str, ...]


class Reader(Protocol):
    """Answers questions from passages. Raises ServiceError when its infrastructure fails; never answers for it.

    Readers and judges that can answer some requests of a batch raise PartialServiceError, which holds those answers.
    """

    def read(self, requests: Sequence[ReadRequest]) -> list[Answer]:
        """Return one answer a request, in order."""
        ...


class AnswerRequest(NamedTuple):
    """What an answer judge looks at."""

    question: Question
    answer: Answer


class AnswerJudge(Protocol):
    """Decides whether answers are right where no string metric can."""

    def judge(self, requests: Sequence[AnswerRequest]) -> list[bool]:
        """Return for each request, in order, whether the answer is right; raises ServiceError when the judge cannot tell."""
        ...


class WriteRequest(NamedTuple):
    """What a content judge looks at: one chunk, the applied results of its writes, and the memory before and after.

    Attributes:
        instance_id: Id of the instance.
        chunk_index: Index of the chunk.
        chunk: What was read.
        results: The applied writes, in order.
        before: For each of them the entry that it touched, as it was; None for an insert.
        kept: All entries of the memory after the chunk's writes.
    """

    instance_id: str
    chunk_index: int
    chunk: Chunk
    results: tuple[OperationResult, ...]
    before: tuple[Entry | None, ...]
    kept: tuple[Entry, ...]


class ContentJudge(Protocol):
    """Judges each applied write of a chunk: is what was written (or removed) right, given the chunk?"""

    def judge(self, requests: Sequence[WriteRequest]) -> list[list[bool]]:
        """Return one verdict for each result of each request, in order; raises ServiceError when the judge cannot tell."""
        ...


@runtime_checkable
class SilenceJudge(Protocol):
    """What a content judge may know besides: whether a chunk after which nothing changed was one after which nothing had to."""

    def nothing_due(self, request: WriteRequest) -> bool | None:
        """Whether the memory, as ``request.kept`` has it, is right about what the chunk says; None if the judge cannot tell."""
        ...
