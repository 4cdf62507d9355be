"""The JSON of requests and answers, the same for the HTTP API and for MCP tools; unknown fields of a request are refused."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from memalpha.protocols import Hit
from memalpha.store.journal import Event, Receipt
from memalpha.types import Change, Entry, OperationResult

MAX_PAGE = 1000
"""Most entries or operations in one answer."""


class Request(BaseModel):
    """A request's body."""

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


class MemoryRequest(Request):
    """Which entries to list."""

    offset: int = Field(0, ge=0, description="Entries to leave out at the beginning.")
    limit: int = Field(100, ge=1, le=MAX_PAGE, description="Most entries to list.")


class HistoryRequest(Request):
    """Which operations to list."""

    entry: str | None = Field(None, description="Id of the one entry they are about; all if there is none.")
    limit: int = Field(100, ge=1, le=MAX_PAGE, description="Most operations to list: the newest.")


class EntryModel(BaseModel):
    """One entry of a memory."""

    id: str
    section: str
    content: str
    timestamp: str | None
    importance: float
    created: int = Field(description="Number of the operation that created it.")
    updated: int = Field(description="Number of the operation that wrote it last.")

    @classmethod
    def of(cls, entry: Entry) -> EntryModel:
        """Return an entry as JSON."""
        return cls(**{name: getattr(entry, name) for name in cls.model_fields})


class ResultModel(BaseModel):
    """What came of one call of the model; a mistake of the model is a result too."""

    ok: bool
    code: str
    message: str
    entry: str | None

    @classmethod
    def of(cls, result: OperationResult) -> ResultModel:
        """Return a result as JSON."""
        return cls(ok=result.ok, code=result.code.value, message=result.message, entry=result.entry_id)


class AddAnswer(BaseModel):
    """What reading a text did; all of it is on disk."""

    operations: list[int] = Field(description="Numbers of the operations, which undo takes; empty if nothing was changed.")
    results: list[ResultModel]
    pieces: int = Field(description="In how many pieces the text was read.")


class FoundModel(EntryModel):
    """A found entry; scores order one answer and mean nothing beyond it."""

    score: float

    @classmethod
    def of_hit(cls, hit: Hit) -> FoundModel:
        """Return a hit as JSON."""
        return cls(**EntryModel.of(hit.entry).model_dump(), score=hit.score)


class AskAnswer(BaseModel):
    """An answer and the entries it was read from, best first."""

    answer: str
    entries: list[FoundModel]


class SearchAnswer(BaseModel):
    """Found entries, best first."""

    entries: list[FoundModel]


class MemoryAnswer(BaseModel):
    """Entries in order of creation."""

    entries: list[EntryModel]
    total: int


class EventModel(BaseModel):
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
        by = event.origin
        return cls(
            operation=event.seq,
            kind=event.kind.value,
            time=event.time.isoformat(),
            agent=by.agent if by else None,
            source=by.source if by else None,
            prompt_hash=by.prompt_hash if by else None,
            before=EntryModel.of(event.before) if event.before else None,
            after=EntryModel.of(event.after) if event.after else None,
            forgotten=event.forgotten,
        )


class HistoryAnswer(BaseModel):
    """Operations in order, the newest of them where not all were asked for."""

    operations: list[EventModel]
    total: int


class ChangeAnswer(BaseModel):
    """An entry before and after; null where there is none."""

    before: EntryModel | None
    after: EntryModel | None

    @classmethod
    def of(cls, change: Change) -> ChangeAnswer:
        """Return a change as JSON."""
        before, after = (EntryModel.of(entry) if entry else None for entry in change)
        return cls(before=before, after=after)


class ForgetAnswer(BaseModel):
    """The receipt of an erasure; says nothing of what was erased."""

    entry: str = Field(description="The entry's id; for a namespace, the id of its chain.")
    time: str
    operations: int = Field(description="How many records lost their content.")
    said_by: list[str] = Field(description="Other entries that say the very same and were left alone.")
    backups_erased: int
    backups_missing: int = Field(description="Backups that are no longer where they were written, and were not erased.")

    @classmethod
    def of(cls, receipt: Receipt) -> ForgetAnswer:
        """Return a receipt as JSON."""
        return cls(
            entry=receipt.entry,
            time=receipt.time.isoformat(),
            operations=receipt.operations,
            said_by=list(receipt.said_by),
            backups_erased=len(receipt.backups),
            backups_missing=len(receipt.missing),
        )


class ProblemModel(BaseModel):
    """What went wrong (RFC 9457)."""

    title: str
    status: int
    what: str
    expected: str = ""
    fix: str = ""
