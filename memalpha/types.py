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
    """One piece of the input, which the agent reads in one step.

    Attributes:
        text: The text of the chunk.
        time: The time at which it was said or written, as ISO 8601; None if it is unknown.
    """

    text: str
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question about an instance, asked after its last chunk.

    Attributes:
        text: The text of the question.
        answers: The accepted answers, none where nobody knows. Some metrics need all of them.
        metric: The metric that scores an answer, one of ``memalpha.qa.metrics.metric_names`` or a
            judged one.
        kind: The kind of question, e.g. ``single``, ``latest``, ``removed``, ``time`` or ``count``;
            any other name is allowed.
        subject: The person or thing to which the answer must belong. For ``recall_at_5`` it is the
            file of all titles.
        stale: Earlier values that are wrong by then.
        evidence: Indices of the chunks that hold the answer; None if they are unknown.
        id: A name that is unique in its instance.
        outdated: For an update, indices of the evidence chunks that say only what no longer holds.
    """

    text: str
    answers: tuple[str, ...] = ()
    metric: str = "substring"
    kind: str = "single"
    subject: str | None = None
    stale: tuple[str, ...] = ()
    evidence: tuple[int, ...] | None = None
    id: str = ""
    outdated: tuple[int, ...] = ()


class FactAction(StrEnum):
    """The action of a chunk on a fact: state it, change it or retract it."""

    STATE = "state"
    CHANGE = "change"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True)
class Fact:
    """One fact that a chunk states, changes or retracts. Facts are known for annotated data only,
    and the policy never sees them.

    Attributes:
        chunk: Index of the chunk.
        action: The action of the chunk on the fact.
        subject: The person or thing that the fact is about.
        attribute: The attribute of the subject, such as ``city``.
        value: The value that is stated, changed to, or retracted.
        previous: The value that a change replaces; else None.
        note: The text that a good agent would write, with subject and value as they are here. An
            empty text stands for subject, attribute and value.
        sections: Names of the sections in which the fact belongs, best first. The first that a
            schema has is taken.
    """

    chunk: int
    action: FactAction
    subject: str
    attribute: str
    value: str
    previous: str | None = None
    note: str = ""
    sections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Instance:
    """One long input and the questions about it.

    Attributes:
        id: A name that is unique in its data set.
        source: The name of the data set.
        chunks: The chunks in reading order, at least one.
        questions: The questions; for inference there may be none.
        facts: The annotated facts of generated data.
        begin: Index of the first chunk that the policy reads. In training a teacher may have read
            the earlier ones; no file holds this number.
        initial_entries: The entries, archived lines included, that the teacher kept of the earlier
            chunks.
    """

    id: str
    source: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]
    facts: tuple[Fact, ...] = ()
    begin: int = 0
    initial_entries: tuple[Entry, ...] = ()


class OperationKind(StrEnum):
    """The kind of an operation on a memory.

    ``insert``, ``update`` and ``delete`` act on one entry of a list. ``replace`` writes the whole
    text of a block section, such as the core memory of the published system.
    """

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    # the whole text of a block section (the core memory of the published system)
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Operation:
    """One requested change of a memory, as plain data.

    Attributes:
        kind: The kind of operation.
        section: The name of a section of the schema.
        content: The new text; None for a deletion.
        entry_id: The id of the entry to update or delete; else None.
        timestamp: The time at which the content was true, as ISO 8601. With None it is the chunk's
            time if the section keeps times.
    """

    kind: OperationKind
    section: str
    content: str | None = None
    entry_id: str | None = None
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
    """The outcome of one call, or of one operation of a call of your own tool.

    Attributes:
        ok: Whether the operation succeeded; a repeated one does.
        code: The reason for success or failure.
        message: One sentence for people and for the model.
        operation: The operation; None if the call could not be read as one.
        entry_id: The id of the entry that was written or deleted, or of the existing entry of a
            duplicate.
        part: Whether it belongs to the same call as the result in front of it.
    """

    ok: bool
    code: ResultCode
    message: str
    operation: Operation | None = None
    entry_id: str | None = None
    part: bool = False

    @property
    def changed(self) -> bool:
        """Whether the operation changed the content of the memory."""
        return self.code is ResultCode.APPLIED

    @property
    def repeated(self) -> bool:
        """Whether the memory held the content already."""
        return self.code in (ResultCode.DUPLICATE, ResultCode.RENEWED)

    @property
    def logged(self) -> bool:
        """Whether the operation is one of the memory's ``changes``."""
        return self.code in (ResultCode.APPLIED, ResultCode.RENEWED)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a memory.

    Attributes:
        id: A name that is unique in its memory, stays the same over updates, and is never used
            again.
        section: The name of its section. A block section is one entry whose id is the section's
            name.
        content: The text of the entry.
        timestamp: The time at which the content was true, as ISO 8601; None if the section keeps no
            times.
        source_chunk: Index of the chunk of the last write; None if there was no chunk.
        created: Number of the change that created it. Numbers only grow, also across a restore.
        updated: Number of the last change.
        metadata: JSON that a client keeps with the entry, such as Mem0's metadata. The policy does
            not see it.
    """

    id: str
    section: str
    content: str
    timestamp: str | None = None
    source_chunk: int | None = None
    created: int = 0
    updated: int = 0
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
    """One prompt, as messages (for chat APIs) and as token ids (for the policy).

    Attributes:
        messages: The chat messages.
        ids: The token ids. Special tokens are included, but none that comes from the text of chunk
            or memory.
        shared: Number of leading ids that are equal for all rollouts of the chunk: system text,
            chunk, and the view up to where it differs.
    """

    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings with which completions are drawn.

    Attributes:
        max_new_tokens: The most tokens of a completion, with the end token.
        temperature: The sampling temperature; 0 = greedy.
        top_p: The share of probability from which tokens are drawn; 1 = off.
        top_k: The number of most probable tokens from which one is drawn; 0 = off.
        seed: The seed of this call alone. None continues the generator's own random state.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class StopReason(StrEnum):
    """The reason for which a completion ended: the model wrote its end token, or the limit of
    tokens was reached.
    """

    END = "end"  # the model wrote its end token
    LENGTH = "length"  # cut off at ``max_new_tokens``


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion of a model.

    Attributes:
        ids: The token ids, with the end token if there is one; empty if the backend returns only
            text.
        text: The text without special tokens.
        stop: The reason for which it ended.
        logprobs: The log-probability (nats) of each id under the sampling distribution; None if the
            backend returns none.
    """

    ids: tuple[int, ...]
    text: str
    stop: StopReason
    logprobs: tuple[float, ...] | None = None

    @property
    def cut_off(self) -> bool:
        """Whether the completion reached the limit of tokens."""
        return self.stop is StopReason.LENGTH


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call that was read from a completion and is not checked yet.

    Attributes:
        name: The name of the tool.
        arguments: The arguments by name.
        start: Offset in the completion's text at which the call begins.
        end: Offset at which it ends.
    """

    name: str
    arguments: JsonObject
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class CallError:
    """A part of a completion that is not a valid call.

    Attributes:
        message: The fault.
        start: Offset in the completion's text at which the part begins.
        end: Offset at which it ends.
    """

    message: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a reader.

    Attributes:
        text: The text of the answer. A reader that only retrieves gives its passages, one on each
            line.
        passages: The retrieved passages, if they are the answer; else None. Some metrics check each
            passage alone.
        read: For an asker, the notes from which it answered; else None.
        searches: For an asker, the words for which it searched before its answer.
    """

    text: str
    passages: tuple[str, ...] | None = None
    read: tuple[str, ...] | None = None
    searches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """One scored question.

    Attributes:
        question: The question.
        entry_ids: Ids of the retrieved entries that the reader got, best first.
        answer: The answer; None if the reader failed.
        score: The score from 0 to 1; NaN (masked) if the reader or judge failed.
        error: The reason of the failure; None without one.
        graded: The probability from 0 to 1 that the reader gave to the right answer; NaN if it was
            not asked.
    """

    question: Question
    entry_ids: tuple[str, ...]
    answer: Answer | None
    score: float
    error: str | None = None
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
    """The input of a content judge: one chunk and the writes during it."""

    instance_id: str
    chunk_index: int
    chunk: Chunk
    # the writes to judge, in order: those applied, or every text (``judge_all``)
    results: tuple[OperationResult, ...]
    before: tuple[Entry | None, ...]  # the touched entry before each write; None for an insert
    kept: tuple[Entry, ...]  # all entries after the writes of the chunk


class ContentJudge(Protocol):
    """A judge that decides whether each applied write or deletion of a chunk is right."""

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
