"""The nouns every layer shares: frozen data, no behaviour beyond validation, no imports from this package.

Instance = chunks + questions            what a data set is made of
Operation, OperationResult, Change       what is done to a memory and what came of it
Prompt, Sampling, Completion             what a generator takes and gives
ToolCall, CallError, ParsedCompletion    what a codec reads out of a completion
Answer, QuestionRecord                   what a reader says and how it scored
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

Message = Mapping[str, Any]
"""One chat message, ``{"role": ..., "content": ...}``."""


# ------------------------------------------------------------------------------------------------ data sets
@dataclass(frozen=True, slots=True)
class Chunk:
    """One piece of the input, read in one step.

    Attributes:
        text: The text as the agent sees it.
        time: When it was said or written (ISO 8601 where the source allows), or None.
    """

    text: str
    time: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """One question about an instance, asked after its last chunk.

    Attributes:
        text: The question.
        answers: Accepted answers. Metrics that need *all* of them (``bound_all``, ``keywords``) say so.
        metric: Name of the metric in ``memalpha.qa.metrics.METRICS``.
        kind: What is asked for, e.g. ``single``, ``latest``, ``removed``, ``time``, ``count``; free for other sources.
        subject: Who or what the answer must be bound to, where the source says so.
        stale: Values that were true once and must no longer be given.
        evidence: Indices of the chunks that hold the answer; None where the source does not say.
        id: Identifier inside its instance.
    """

    text: str
    answers: tuple[str, ...]
    metric: str = "substring"
    kind: str = "single"
    subject: str | None = None
    stale: tuple[str, ...] = ()
    evidence: tuple[int, ...] | None = None
    id: str = ""


class FactAction(StrEnum):
    """What a chunk does to a fact."""

    STATE = "state"
    CHANGE = "change"
    RETRACT = "retract"


@dataclass(frozen=True, slots=True)
class Fact:
    """An annotation of what one chunk says; known for generated data only, never shown to the policy.

    Attributes:
        chunk: Index of the chunk that says it.
        action: ``state`` (new), ``change`` (replaces ``previous``) or ``retract`` (``value`` no longer holds).
        subject: Who it is about.
        attribute: Which attribute of the subject.
        value: The value stated, changed to, or retracted.
        previous: The value replaced by a change, else None.
    """

    chunk: int
    action: FactAction
    subject: str
    attribute: str
    value: str
    previous: str | None = None


@dataclass(frozen=True, slots=True)
class Instance:
    """One long input and its questions.

    Attributes:
        id: Unique inside its data set.
        source: Name of the data set.
        chunks: The input, in reading order; at least one.
        questions: What is asked after the last chunk; may be empty for inference.
        facts: Annotations of the chunks, for generated data.
    """

    id: str
    source: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]
    facts: tuple[Fact, ...] = ()


# ------------------------------------------------------------------------------------------------ memory operations
class OperationKind(StrEnum):
    """What an operation does."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    REPLACE = "replace"
    """Replace the whole text of a block section (the published system's core memory)."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One change asked of a memory, as plain data that a log can hold.

    Attributes:
        kind: What to do.
        section: Name of a section of the schema.
        content: New text (insert, update, replace); None for delete.
        entry_id: Which entry (update, delete); None for insert and replace.
        timestamp: When the content was true, as given by the model; None takes the chunk's time where the section keeps times.
        importance: Weight of the entry; None takes the schema's default.
    """

    kind: OperationKind
    section: str
    content: str | None = None
    entry_id: str | None = None
    timestamp: str | None = None
    importance: float | None = None


class ResultCode(StrEnum):
    """Why an operation succeeded or failed."""

    APPLIED = "applied"
    DUPLICATE = "duplicate"
    """The very same content is there already: a success that changes nothing."""
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    UNKNOWN_SECTION = "unknown_section"
    NOT_ALLOWED = "not_allowed"
    UNKNOWN_ID = "unknown_id"
    EMPTY = "empty"
    TOO_LONG = "too_long"
    SECTION_FULL = "section_full"
    UNPARSED = "unparsed"
    """A stretch of the completion that is not a call."""


@dataclass(frozen=True, slots=True)
class OperationResult:
    """What came of one call.

    Attributes:
        ok: Whether it succeeded. A duplicate is a success.
        code: Why.
        message: One sentence for people and for the model.
        operation: The operation, or None if the call never became one.
        entry_id: The entry written or deleted, or the entry a duplicate repeats.
    """

    ok: bool
    code: ResultCode
    message: str
    operation: Operation | None = None
    entry_id: str | None = None

    @property
    def changed(self) -> bool:
        """Whether the memory is different afterwards."""
        return self.code is ResultCode.APPLIED


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a memory.

    Attributes:
        id: Unique in its memory, stable over updates and never used again after a delete.
        section: The section that holds it. A block section is one entry whose id is the section's name.
        content: Its text.
        timestamp: When the content was true, or None where the section keeps no times.
        importance: Weight, 1.0 unless given.
        source_chunk: Index of the chunk during which it was last written, or None.
        created: Number of the change that created it; numbers grow over a memory's life, also across a restore.
        updated: Number of the change that wrote it last.
    """

    id: str
    section: str
    content: str
    timestamp: str | None = None
    importance: float = 1.0
    source_chunk: int | None = None
    created: int = 0
    updated: int = 0


class Change(NamedTuple):
    """One applied operation: the entry before (None for an insert) and after (None for a delete)."""

    before: Entry | None
    after: Entry | None


# ------------------------------------------------------------------------------------------------ generation
@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as messages and as the token ids the policy sees.

    Attributes:
        messages: For generators behind a chat API.
        ids: Token ids, special tokens included; chunk and memory text never yields a special token.
        shared: How many leading ids are the same for every rollout that reads the same chunk (system text and chunk).
    """

    messages: tuple[Message, ...]
    ids: tuple[int, ...]
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw completions.

    Attributes:
        max_new_tokens: Upper bound on a completion's length, in tokens, its end token included.
        temperature: 0 = greedy.
        top_p: Nucleus mass, 1 = off.
        top_k: 0 = off.
        seed: Seeds this call alone; None goes on with the generator's own random state.
    """

    max_new_tokens: int
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None


class StopReason(StrEnum):
    """Why a completion ended."""

    END = "end"
    """The model wrote its end token."""
    LENGTH = "length"
    """Cut off at ``max_new_tokens``."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion.

    Attributes:
        ids: The sampled token ids as sampled, the end token included when there is one. Empty if the backend gives only text.
        text: Their text without special tokens.
        stop: Why it ended.
        logprobs: Log-probability of each id under the sampling distribution's model, or None if the backend gives none.
    """

    ids: tuple[int, ...]
    text: str
    stop: StopReason
    logprobs: tuple[float, ...] | None = None

    @property
    def cut_off(self) -> bool:
        """Whether it ended at its limit, wherever it was."""
        return self.stop is StopReason.LENGTH


# ------------------------------------------------------------------------------------------------ tool calls
@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call read out of a completion; not yet checked against a schema.

    Attributes:
        name: Tool name as the model wrote it.
        arguments: Its arguments, of any JSON type.
        start: Offset of its first character in the completion's text.
        end: Offset after its last character.
    """

    name: str
    arguments: Mapping[str, Any]
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True)
class CallError:
    """A stretch of a completion that should have been a call and is not.

    Attributes:
        message: What is wrong with it.
        start: Offset of its first character in the completion's text.
        end: Offset after its last character.
    """

    message: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ParsedCompletion:
    """What a codec read: calls in order and located errors; both may be empty (the model kept silent)."""

    calls: tuple[ToolCall, ...]
    errors: tuple[CallError, ...]


# ------------------------------------------------------------------------------------------------ question answering
@dataclass(frozen=True, slots=True)
class Answer:
    """What a reader said.

    Attributes:
        text: The answer. For a reader that only retrieves: its passages, one a line.
        passages: The passages themselves when the answer *is* what was retrieved, else None. Metrics that bind an answer to its
            subject look inside one passage at a time.
    """

    text: str
    passages: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """One scored question.

    Attributes:
        question: What was asked.
        entry_ids: Retrieved entries given to the reader, best first.
        answer: What the reader said; None if it failed.
        score: Score in [0, 1]; NaN if the reader or judge failed (masked, never a zero).
        error: Why it failed, else None.
    """

    question: Question
    entry_ids: tuple[str, ...]
    answer: Answer | None
    score: float
    error: str | None = None


__all__ = [
    "Answer", "CallError", "Change", "Chunk", "Completion", "Entry", "Fact", "FactAction", "Instance", "Message", "Operation",
    "OperationKind", "OperationResult", "ParsedCompletion", "Prompt", "Question", "QuestionRecord", "ResultCode",
    "Sampling", "StopReason", "ToolCall",
]  # fmt: skip
