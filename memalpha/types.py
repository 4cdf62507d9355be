"""Data types that every layer shares, frozen data classes, and the interfaces between the layers.

This module imports nothing from this package, and no torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

JsonObject = dict[str, Any]
"""An object of JSON or YAML, or options by name."""
JsonMapping = Mapping[str, Any]
"""The same, only read."""
Message = Mapping[str, Any]
"""One chat message, ``{"role": ..., "content": ...}``."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of the input, read in one step."""

    text: str
    time: str | None = None  # when it was said or written: ISO 8601


@dataclass(frozen=True, slots=True)
class Question:
    """One question about an instance, asked after its last chunk."""

    text: str
    # accepted answers, none where nobody knows; some metrics need all of them
    answers: tuple[str, ...] = ()
    metric: str = "substring"  # one of ``memalpha.qa.metrics.metric_names``, or a judged one
    # e.g. ``single``, ``latest``, ``removed``, ``time``, ``count``; any other name is allowed
    kind: str = "single"
    # who or what the answer must belong to; for ``recall_at_5`` the file of all titles
    subject: str | None = None
    stale: tuple[str, ...] = ()  # earlier values that are now wrong
    # indices of the chunks that hold the answer; None if unknown
    evidence: tuple[int, ...] | None = None
    id: str = ""  # unique inside its instance
    # of an update: the chunks of the evidence that say only what no longer holds
    outdated: tuple[int, ...] = ()


class FactAction(StrEnum):
    """What a chunk does to a fact."""

    STATE = "state"
    CHANGE = "change"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True)
class Fact:
    """What one chunk says. Known for annotated data only; the policy never sees it."""

    chunk: int  # index of the chunk
    action: FactAction
    subject: str
    attribute: str
    value: str  # the value stated, changed to, or retracted
    previous: str | None = None  # the value that a change replaces
    # how a good agent would write it down, with subject and value as they are here; "" = the three
    # words
    note: str = ""
    # sections it belongs in, best first: the first that a schema has is taken
    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """One long input and its questions."""

    id: str  # unique inside its data set
    source: str  # name of the data set
    chunks: tuple[Chunk, ...]  # in reading order; at least one
    questions: tuple[Question, ...]  # may be empty for inference
    facts: tuple[Fact, ...] = ()  # generated data only
    # training only, in no file: the chunks before this one were read by a teacher,
    begin: int = 0
    # and these are the entries, archived lines included, that it kept of them
    initial_entries: tuple[Entry, ...] = ()


class OperationKind(StrEnum):
    """What an operation does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    # the whole text of a block section (the core memory of the published system)
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Operation:
    """One requested change of a memory, as plain data."""

    kind: OperationKind
    section: str  # name of a section of the schema
    content: str | None = None  # new text; None for delete
    entry_id: str | None = None  # for update and delete; else None
    # when the content was true, ISO 8601; None: the chunk's time if the section keeps times
    timestamp: str | None = None


class ResultCode(StrEnum):
    """Why an operation succeeded or failed."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"  # the same content exists: a success that changes nothing
    RENEWED = "renewed"  # the same, said again later: the entry takes the new time and chunk
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_SECTION = "unknown_section"
    NOT_ALLOWED = "not_allowed"
    UNKNOWN_ID = "unknown_id"
    OUTDATED = "outdated"  # the entry is of a later time than the text that would change it
    EMPTY = "empty"
    TOO_LONG = "too_long"
    SECTION_FULL = "section_full"
    GUARDED = "guarded"  # a guard of the agent in use refused it
    UNPARSED = "unparsed"  # a part of the completion that is not a call
    SEARCHED = "searched"  # of an asker: it looked for more notes
    ANSWERED = "answered"  # of an asker


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The outcome of one call, or of one of the operations of a call of a tool of one's own."""

    ok: bool  # True for a repeated one too
    code: ResultCode
    message: str  # one sentence for people and for the model
    operation: Operation | None = None  # None if the call could not be read as an operation
    # the entry written or deleted, or the existing entry of a duplicate
    entry_id: str | None = None
    part: bool = False  # whether it is of the same call as the result before it

    @property
    def changed(self) -> bool:
        """Whether the operation changed what the memory says."""
        return self.code is ResultCode.APPLIED

    @property
    def repeated(self) -> bool:
        """Whether the memory said so already."""
        return self.code in (ResultCode.DUPLICATE, ResultCode.RENEWED)

    @property
    def logged(self) -> bool:
        """Whether it made one of the memory's ``changes``."""
        return self.code in (ResultCode.APPLIED, ResultCode.RENEWED)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a memory."""

    id: str  # unique in its memory, stable over updates, never reused
    section: str  # a block section is one entry whose id is the section's name
    content: str
    # when the content was true, ISO 8601; None if the section keeps no times
    timestamp: str | None = None
    source_chunk: int | None = None  # index of the chunk of the last write
    # number of the change that created it; numbers only grow, also across a restore
    created: int = 0
    updated: int = 0  # number of the last change
    # JSON of what a client keeps with it, such as Mem0's metadata; no policy sees it
    metadata: str | None = None


class Span(NamedTuple):
    """A slice of a text in characters: ``text[start:end]``."""

    start: int
    end: int


class Change(NamedTuple):
    """One applied operation: the entry before (None: an insert) and after (None: a delete)."""

    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as messages (for chat APIs) and as token ids (for the policy)."""

    messages: tuple[Message, ...]
    ids: tuple[int, ...]  # special tokens included, but none from chunk or memory text
    # leading ids equal for all rollouts of the chunk: system text, chunk, and the view up to where
    # it differs
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw completions."""

    max_new_tokens: int  # end token included
    temperature: float = 0.0  # 0 = greedy
    top_p: float = 1.0  # 1 = off
    top_k: int = 0  # 0 = off
    seed: int | None = None  # for this call only; None continues the generator's own random state


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"  # the model wrote its end token
    LENGTH = "length"  # cut off at ``max_new_tokens``


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion."""

    # with the end token if there is one; empty if the backend returns only text
    ids: tuple[int, ...]
    text: str  # without special tokens
    stop: StopReason
    # of each id under the sampling distribution; None if the backend returns none
    logprobs: tuple[float, ...] | None = None

    @property
    def cut_off(self) -> bool:
        """Whether it reached the length limit."""
        return self.stop is StopReason.LENGTH


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call read from a completion, not yet checked.

    ``start`` and ``end`` are offsets in the completion's text.
    """

    name: str  # of the tool
    arguments: JsonObject
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class CallError:
    """A part of a completion that is not a valid call.

    ``start`` and ``end`` are offsets in the completion's text.
    """

    message: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Answer:
    """A reader's answer."""

    text: str  # for a reader that only retrieves: its passages, one per line
    # set if the answer is the retrieved passages; some metrics check each passage alone
    passages: tuple[str, ...] | None = None
    # of an asker: the notes that it answered from, and what it searched for before
    read: tuple[str, ...] | None = None
    searches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """One scored question."""

    question: Question
    entry_ids: tuple[str, ...]  # retrieved entries given to the reader, best first
    answer: Answer | None  # None if the reader failed
    score: float  # in [0, 1]; NaN (masked) if the reader or judge failed
    error: str | None = None  # why it failed
    # how probable the right answer was to the reader, in [0, 1]; NaN if that was not asked
    graded: float = math.nan


# ------------------------------------------------------------------------------------------------
# interfaces

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


@runtime_checkable
class AdapterEngine(Generator, Protocol):
    """A generator with base weights of its own, here or at a server, that is given the policy's
    adapter after each update. An adapter's name tells its weights.
    """

    concurrent: bool  # whether it can draw while this process updates

    def awake(self) -> AbstractContextManager[None]:
        """Hold what it needs for the block, in which it loads and draws."""

    def load(self, name: str, folder: Path) -> None:
        """Draw with the adapter in ``folder`` from now on; the main process calls it.

        InputError if it is refused.
        """

    def use(self, name: str, folder: Path) -> None:
        """Draw with an adapter that the main process has loaded; every process calls it."""


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors of unit length.

    ``name`` tells kind, model and weights: embedders of one name give the same vectors.
    """

    name: str
    dimension: int

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 (len(texts), dimension).

        Each row has Euclidean norm 1, or is all zero for an empty text.
        """


@runtime_checkable
class QueryEmbedder(Embedder, Protocol):
    """An embedder that reads queries otherwise than passages, for which its ``embed`` is."""

    def embed_queries(self, queries: Sequence[str]) -> NDArray[np.float32]:
        """Return float32 (len(queries), dimension), as ``embed`` does."""


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


Search = Callable[[str, str], Sequence[str]]
"""Returns the passages for words and the beginning of a date (empty: of any time), best first."""


class ReadRequest(NamedTuple):
    """A question and its retrieved passages: core text first, then best first.

    With ``search`` a reader may look for more (``contrib/asker``).
    """

    question: Question
    passages: tuple[str, ...]
    search: Search | None = None


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
