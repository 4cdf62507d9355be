"""JSON of requests, answers and problems (RFC 9457), shared by the HTTP API and MCP; unknown request fields are refused.

Client errors (4xx) are reported in full. For server errors (5xx) the client gets only the kind; the log has the message, which may
contain files and addresses. A mistake of the model is a recorded result, not a problem.
"""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from memalpha.errors import (
    ForgottenError,
    InputError,
    JournalBusyError,
    JournalConflictError,
    JournalDamagedError,
    JournalError,
    MemAlphaError,
    ServiceError,
)
from memalpha.store.journal import Event, Receipt
from memalpha.types import OperationResult

log = logging.getLogger(__name__)


# ------------------------------------------------------------------------------------------------ requests
class Request(BaseModel):
    """Input of an operation."""

    model_config = ConfigDict(extra="forbid")


class AddRequest(Request):
    """A text to read."""

    text: str = Field(min_length=1, description="What to read and remember.")
    time: str | None = Field(None, max_length=64, description="When it was said (ISO 8601); a blank one is none.")
    source: str = Field("", max_length=200, description="Your name for the text, for the history; its SHA-256 if empty.")


class AskRequest(Request):
    """A question."""

    question: str = Field(min_length=1, max_length=10_000)


class SearchRequest(Request):
    """A query."""

    query: str = Field(min_length=1, max_length=10_000)
    k: int = Field(5, ge=1, le=100, strict=True, description="Most entries to find.")


class UndoRequest(Request):
    """An operation to take back."""

    operation: int = Field(ge=1, strict=True, description="Its number, as add and history give it.")


class ForgetRequest(Request):
    """An entry to erase for good."""

    entry: str = Field(min_length=1, max_length=200, description="Its id, as memory and search give it.")


class ForgetAllRequest(Request):
    """Erase the whole namespace; no fields."""


class MemoryRequest(Request):
    """Which entries to list."""

    offset: int = Field(0, ge=0, description="Entries to leave out at the beginning.")
    limit: int = Field(100, ge=1, le=1000, description="Most entries to list.")


class HistoryRequest(Request):
    """Which operations to list."""

    entry: str | None = Field(None, description="Id of the one entry they are about; all if there is none.")
    limit: int = Field(100, ge=1, le=1000, description="Most operations to list: the newest.")


# ------------------------------------------------------------------------------------------------ answers
class Answer(BaseModel):
    """Output of an operation; fields of the same name come from the package's own records."""

    model_config = ConfigDict(from_attributes=True)


class EntryModel(Answer):
    """One entry of a memory."""

    id: str
    section: str
    content: str
    timestamp: str | None
    importance: float
    created: int = Field(description="Number of the operation that created it.")
    updated: int = Field(description="Number of the operation that wrote it last.")


class ResultModel(Answer):
    """Result of one tool call of the model; a mistake of the model is a result too."""

    ok: bool
    code: str
    message: str
    entry: str | None

    @classmethod
    def of(cls, result: OperationResult) -> ResultModel:
        """Return a result as JSON."""
        return cls(ok=result.ok, code=result.code.value, message=result.message, entry=result.entry_id)


class AddAnswer(Answer):
    """Result of reading a text; all of it is on disk."""

    operations: list[int] = Field(description="Numbers of the operations, which undo takes; empty if nothing was changed.")
    results: list[ResultModel]
    pieces: int = Field(description="In how many pieces the text was read.")


class FoundModel(EntryModel):
    """A found entry; scores are comparable only within one answer."""

    score: float


class AskAnswer(Answer):
    """An answer and the entries it was read from, best first."""

    answer: str
    entries: list[FoundModel]


class SearchAnswer(Answer):
    """Found entries, best first."""

    entries: list[FoundModel]


class MemoryAnswer(Answer):
    """Entries in order of creation."""

    entries: list[EntryModel]
    total: int


class EventModel(Answer):
    """One operation: what it did, by whom, from which text and prompt."""

    operation: int
    kind: str
    time: str
    agent: str | None
    source: str | None
    prompt_hash: str | None
    before: EntryModel | None
    after: EntryModel | None
    forgotten: bool

    @classmethod
    def of(cls, event: Event) -> EventModel:
        """Return an event as JSON."""
        found = {name: getattr(event.origin, name, None) for name in ("agent", "source", "prompt_hash")}
        found |= {name: getattr(event, name) for name in ("before", "after", "forgotten")}
        found |= {"operation": event.seq, "kind": event.kind.value, "time": event.time.isoformat()}
        return cls.model_validate(found)


class HistoryAnswer(Answer):
    """Operations in order; the newest ones if there is a limit."""

    operations: list[EventModel]
    total: int


class ChangeAnswer(Answer):
    """An entry before and after; null where there is none."""

    before: EntryModel | None
    after: EntryModel | None


class ForgetAnswer(Answer):
    """The receipt of an erasure, without the erased content."""

    entry: str = Field(description="The entry's id; for a namespace, the id of its chain.")
    time: str
    operations: int = Field(description="How many records lost their content.")
    said_by: list[str] = Field(description="Other entries that say the very same and were left alone.")

    @classmethod
    def of(cls, receipt: Receipt) -> ForgetAnswer:
        """Return a receipt as JSON."""
        found = {name: getattr(receipt, name) for name in ("entry", "operations", "said_by")}
        return cls.model_validate({**found, "time": receipt.time.isoformat()})


# ------------------------------------------------------------------------------------------------ problems
@dataclass(frozen=True, slots=True)
class Problem:
    """What went wrong (RFC 9457): status and title, what, what was expected, how to fix it."""

    status: int
    what: str
    expected: str = ""
    fix: str = ""
    title: str = ""

    def body(self) -> dict[str, Any]:
        """Return the JSON object."""
        given = {name: value for name, value in asdict(self).items() if value}
        return {"title": HTTPStatus(self.status).phrase, **given, "status": int(self.status)}


class Refused(Exception):
    """A request that is not carried out."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.what)
        self.problem = problem


_STATUS: tuple[tuple[type[Exception], HTTPStatus, str], ...] = (
    (ForgottenError, HTTPStatus.GONE, ""),
    (JournalConflictError, HTTPStatus.CONFLICT, ""),
    (JournalBusyError, HTTPStatus.SERVICE_UNAVAILABLE, "the store is busy; nothing was written"),
    (JournalDamagedError, HTTPStatus.INTERNAL_SERVER_ERROR, "the store is damaged; nothing is answered from it"),
    (JournalError, HTTPStatus.INTERNAL_SERVER_ERROR, "the store could not do this; it was not acknowledged"),
    (ServiceError, HTTPStatus.BAD_GATEWAY, "the model, or the reader of answers, failed"),
    (InputError, HTTPStatus.BAD_REQUEST, ""),
    (Exception, HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed"),
)
"""Status of each error and the text shown instead of its message (empty: the message). The first match counts."""


def problem_of(error: Exception) -> Problem:
    """Return the problem to report for an exception; hidden details are logged."""
    if isinstance(error, Refused):
        return error.problem
    status, told = next((status, told) for kind, status, told in _STATUS if isinstance(error, kind))
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, MemAlphaError) and not told:
        return Problem(status, (error.what or str(error)) + notes, error.expected, error.fix)
    log.error("%s: %s%s", type(error).__name__, error, notes, exc_info=None if isinstance(error, MemAlphaError) else error)
    return Problem(status, told + notes, fix="try again; if it stays, the server's log says why")


def invalid(error: Any, expected: str) -> Problem:
    """Return the problem for a validation error of pydantic or FastAPI."""
    found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, found, expected)
