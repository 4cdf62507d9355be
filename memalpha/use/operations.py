"""The endpoints of a server, shared by the HTTP API and MCP, with their JSON.

Each method of ``Endpoints`` marked ``_endpoint`` is one: its parameters are the request, its
result the answer, its docstring the description. Of server errors (5xx) the client gets only the
kind; the log has the message, which may hold files and addresses.
"""

import inspect
import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from http import HTTPStatus
from typing import Annotated, Any, NamedTuple

from pydantic import (
    AliasPath,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    create_model,
    model_validator,
)

from memalpha import errors
from memalpha.errors import InputError, JournalError, MemAlphaError, ServiceError
from memalpha.types import Hit, JsonObject
from memalpha.use.access import Caller, Problem
from memalpha.use.agent import AddResult, MemoryAgent

_LOG = logging.getLogger(__name__)

_Time = Annotated[str, BeforeValidator(datetime.isoformat)]
_Count = Annotated[int, BeforeValidator(len)]


# ------------------------------------------------------------------------------------------------
# answers
class ApiAnswer(BaseModel):
    """Output of an endpoint; fields are read from the package's own records."""

    model_config = ConfigDict(from_attributes=True)


class EntryModel(ApiAnswer):
    """One entry of a memory; ``created`` and ``updated`` are numbers of operations."""

    id: str
    section: str
    content: str
    timestamp: str | None
    created: int
    updated: int


class FoundModel(EntryModel):
    """A found entry; scores are comparable only within one answer."""

    score: float


class ResultModel(ApiAnswer):
    """Result of one tool call of the model; a mistake of the model is a result too."""

    ok: bool
    code: str
    message: str
    entry: str | None = Field(validation_alias="entry_id")


class AddAnswer(ApiAnswer):
    """Result of reading a text; all of it is on disk."""

    operations: list[int] = Field(
        description="Numbers of the operations, which undo takes. For each piece they are "
        "those of the model or, if it changed nothing, those of its lines; "
        "empty if nothing was stored."
    )
    lines: _Count = Field(
        description="The number of lines of the text that were archived as they were said; "
        "search finds them."
    )
    results: list[ResultModel]
    pieces: _Count = Field(
        validation_alias="steps", description="The number of pieces in which the text was read."
    )
    left_out: list[str] = Field(
        description="Parts that were not read, since they were tagged as recalled from a memory."
    )
    removed: int = Field(
        0, description="The number of secrets that a guard took out of the text before it was read."
    )


class SearchAnswer(ApiAnswer):
    """Found entries, best first."""

    entries: list[FoundModel]


class PassageModel(ApiAnswer):
    """A passage that fits a question, as it was said: a whole turn, or an entry."""

    entry: EntryModel = Field(description="The entry or line that was found.")
    score: float
    text: str = Field(description="The turn of the line as it was said, or the entry.")
    fits: tuple[int, int] = Field(
        description="Begin and end, in characters, of the sentence in text that fits best."
    )
    before: str = Field(description="The previous turn; empty if there is none, or text is long.")
    after: str = Field(description="The next turn; empty if there is none, or text is long.")
    time: str = Field(
        description="The time at which it was said, or else the day on which it was written."
    )
    source: str = Field(
        description="The name of its text; for an import it is PROGRAM/CONVERSATION/MESSAGE."
    )
    chunk: int | None = Field(description="The number of the text from which it comes.")
    newer: EntryModel | None = Field(
        description="A newer result that says nearly the same; null if there is none."
    )


class AskAnswer(SearchAnswer):
    """An answer, the passages that it is from, and all that was found, best first."""

    answer: str = Field(
        description="The answer of the reader. Without a reader, or if it is not sure, it "
        "is passages as they were said, one on each line; `unknown` if the "
        "memory does not say."
    )
    known: bool = Field(
        description="Whether the memory knows an answer, so that answer is not `unknown`."
    )
    by_reader: bool = Field(
        description="Whether a reader gave the answer; if not, it is text as it was said."
    )
    probability: float | None = Field(
        description="The probability from 0 to 1 that a local reader gives to its own "
        "answer, shown or not."
    )
    passages: list[PassageModel] = Field(
        description="At most three fitting passages, best first; if the memory does not "
        "say, the nearest ones."
    )
    source: EntryModel | None = Field(
        description="The entry or line read that has most of the answer's words (without a "
        "reader, the"
        " best one found); null if none has any."
    )
    searches: list[str] = Field(
        description="The words for which an asker searched, besides the question."
    )


class MemoryAnswer(ApiAnswer):
    """Entries in order of creation."""

    entries: list[EntryModel]
    total: int
    lines: int = Field(
        0, description="The number of archived lines besides the entries; search finds them."
    )


class ChangeAnswer(ApiAnswer):
    """An entry before and after a change; null if it did not exist."""

    before: EntryModel | None
    after: EntryModel | None


class EventModel(ChangeAnswer):
    """One operation with its effect, its writer, and the text and prompt from which it came."""

    operation: int = Field(validation_alias="seq")
    kind: str
    time: _Time
    agent: str | None = Field(None, validation_alias=AliasPath("origin", "agent"))
    source: str | None = Field(None, validation_alias=AliasPath("origin", "source"))
    prompt_hash: str | None = Field(None, validation_alias=AliasPath("origin", "prompt_hash"))
    forgotten: bool
    undoes: int | None = Field(description="Number of the operation that it undid.")
    sources: _Count = Field(
        0, description="The number of texts that an import had read by then, if kind is read."
    )


class HistoryAnswer(ApiAnswer):
    """Operations in order; the newest ones if there is a limit."""

    operations: list[EventModel]
    total: int


class ForgetAnswer(ApiAnswer):
    """The receipt of an erasure, without the erased content."""

    entry: str = Field(description="The entry's id; for a namespace, the id of its chain.")
    time: _Time
    operations: int = Field(description="The number of records whose content was erased.")
    said_by: list[EntryModel] = Field(
        description="Entries and lines that still have words of it; to erase them, give "
        "their ids to forget in also."
    )
    scrubbed: bool = Field(
        description="Whether the bytes are erased from the files; if not, the store tries "
        "again by itself."
    )


# ------------------------------------------------------------------------------------------------
# problems: the status of each error, and the text shown instead of its message (empty: the
# message); the first match counts
_STATUS: tuple[tuple[type[Exception], HTTPStatus, str], ...] = (
    (errors.ForgottenError, HTTPStatus.GONE, ""),
    (errors.JournalConflictError, HTTPStatus.CONFLICT, ""),
    (
        errors.JournalBusyError,
        HTTPStatus.SERVICE_UNAVAILABLE,
        "the store is busy; nothing was written",
    ),
    (
        errors.JournalDamagedError,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the store is damaged; nothing is answered from it",
    ),
    (
        JournalError,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        "the store could not do this; it was not acknowledged",
    ),
    (ServiceError, HTTPStatus.BAD_GATEWAY, "the model, or the reader of answers, failed"),
    (InputError, HTTPStatus.BAD_REQUEST, ""),
    (Exception, HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed"),
)


def problem_of(error: Exception) -> Problem:
    """Return the problem to report for an exception; hidden details are logged."""
    if isinstance(error, Problem):
        return error
    status, told = next((status, told) for kind, status, told in _STATUS if isinstance(error, kind))
    notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
    if isinstance(error, MemAlphaError) and not told:
        return Problem(status, (error.what or str(error)) + notes, error.expected, error.fix)
    _LOG.error(
        "%s: %s%s",
        type(error).__name__,
        error,
        notes,
        exc_info=None if isinstance(error, MemAlphaError) else error,
    )
    return Problem(
        status,
        told + notes,
        fix="try again; if the error remains, the server's log gives the reason",
    )


def invalid(error: Any, expected: str) -> Problem:
    """Return the problem for a validation error of pydantic or FastAPI."""
    lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
    return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, "; ".join(lines), expected)


# ------------------------------------------------------------------------------------------------
# requests
class ApiRequest(BaseModel):
    """The input of an endpoint, over HTTP and MCP. Optional fields may be null; numbers may be sent
    as strings, and ids as numbers.
    """

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    @model_validator(mode="before")
    @classmethod
    def _given(cls, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        optional = {name for name, field in cls.model_fields.items() if not field.is_required()}
        return {
            name: value
            for name, value in fields.items()
            if value is not None or name not in optional
        }


def read_json(text: str | bytes) -> Any:
    """Read JSON in which no name stands twice and all numbers are finite; ValueError if it is
    none.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_once, parse_constant=_finite, parse_float=_finite
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _once(pairs: Sequence[tuple[str, Any]]) -> JsonObject:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a name occurs twice")
    return fields


def _finite(number: str) -> float:
    if not math.isfinite(float(number)):
        raise ValueError(f"{number[:40]} is not a finite number")
    return float(number)


def _no_truth(value: object) -> object:
    return str(value) if isinstance(value, bool) else value  # pydantic takes true for 1


_NUMBER = BeforeValidator(_no_truth)


# ------------------------------------------------------------------------------------------------
# operations
class Endpoint(NamedTuple):
    """One endpoint: its messages, HTTP route below ``/v1``, description, and whether it writes and
    is an MCP tool.
    """

    name: str
    request: type[ApiRequest]
    answer: type[ApiAnswer]
    method: str
    path: str
    description: str
    writes: bool
    tool: bool


ENDPOINTS: list[Endpoint] = []
_Call = Callable[..., ApiAnswer]


def _endpoint(
    method: str, path: str, *, writes: bool = False, tool: bool = True
) -> Callable[[_Call], _Call]:
    """Make a method of ``Endpoints`` one of ``ENDPOINTS``: its signature becomes the request's
    model.
    """

    def listed(call: _Call) -> _Call:
        name = call.__name__
        signature = inspect.signature(call, eval_str=True)
        fields: JsonObject = {
            each.name: (each.annotation, ... if each.default is each.empty else each.default)
            for each in list(signature.parameters.values())[2:]
        }
        request = create_model(
            f"{name.title().replace('_', '')}Request", __base__=ApiRequest, **fields
        )
        ENDPOINTS.append(
            Endpoint(
                name,
                request,
                signature.return_annotation,
                method,
                path,
                description=" ".join((call.__doc__ or "").split()),
                writes=writes,
                tool=tool,
            )
        )
        return call

    return listed


_Question = Annotated[str, Field(min_length=1, max_length=10_000)]
_Most = Annotated[
    int,
    Field(ge=1, le=1000, description="The most items to list; of operations these are the newest."),
    _NUMBER,
]
_Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\S")]


_CLIENT = ("undo", "forget", "forget_all")  # whose InputErrors are the client's


class Endpoints:
    """Carries out operations with an agent; a text to add has ``max_text_tokens`` at most."""

    def __init__(self, agent: MemoryAgent, max_text_tokens: int) -> None:
        self.agent = agent
        self._max_text_tokens = max_text_tokens

    def call(self, name: str, caller: Caller, request: BaseModel) -> ApiAnswer:
        """Run one of ``ENDPOINTS``; every error is a Problem."""
        schema_fits = name == "forget_all"  # which asks for none
        try:
            schema_fits = schema_fits or self.agent.memory(caller.namespace) is not None
            answer: ApiAnswer = getattr(self, name)(caller, **dict(request))
            return answer
        except InputError as error:  # shown only if the client can have caused it
            if not schema_fits:  # the namespace was begun with another schema
                raise problem_of(JournalError(str(error))) from error
            raise problem_of(error if name in _CLIENT else ServiceError(str(error))) from error
        except Exception as error:  # the model and its libraries may raise anything
            raise problem_of(error) from error

    @_endpoint("POST", "/add", writes=True)
    def add(
        self,
        caller: Caller,
        text: Annotated[str, Field(min_length=1, description="The text to read and remember.")],
        time: Annotated[
            str | None,
            Field(
                max_length=64,
                description="The time at which it was said, as ISO 8601; blank if it is unknown.",
            ),
        ] = None,
        source: Annotated[
            str,
            Field(
                max_length=200,
                description="Your name for the text in the history; an empty one becomes its "
                "SHA-256.",
            ),
        ] = "",
    ) -> AddAnswer:
        """Read a text and remember what matters in it; on disk when this is answered."""
        return AddAnswer.model_validate(self.read(caller, text, time, source))

    def read(
        self,
        caller: Caller,
        text: str | list[JsonObject],
        time: str | None = None,
        source: str = "",
        metadata: str | None = None,
    ) -> AddResult:
        """Let the agent read a text or chat messages; Problem for a text that is too long or wrong,
        else errors as ``MemoryAgent.add``.
        """
        self.check_length(text)
        try:
            self.agent.pieces(text, time)
        except InputError as error:
            raise problem_of(error) from error
        return self.agent.add(
            text, time, namespace=caller.namespace, source=source, metadata=metadata
        )

    def check_length(self, text: str | list[JsonObject]) -> None:
        """Raise a Problem (413) for a text, or chat messages, of too many tokens."""
        tokens = self.agent.step.encoder.count(text if isinstance(text, str) else str(text))
        if tokens > self._max_text_tokens:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the text has {tokens} tokens",
                f"at most {self._max_text_tokens}",
                "send it in parts",
            )

    @_endpoint("POST", "/ask")
    def ask(self, caller: Caller, question: _Question) -> AskAnswer:
        """Answer a question from the memory alone. passages are fitting texts as they were said,
        with context, day and source, and with a newer statement if there is one.
        """
        reply = self.agent.ask(question, namespace=caller.namespace)
        return AskAnswer.model_validate(
            {
                "answer": reply.text,
                "source": reply.source,
                "entries": _found_models(reply.entries),
                "searches": reply.searches,
                "known": reply.known,
                "by_reader": reply.by_reader,
                "probability": reply.probability,
                "passages": reply.passages,
            }
        )

    @_endpoint("POST", "/search")
    def search(
        self,
        caller: Caller,
        query: _Question,
        k: Annotated[
            int, Field(ge=1, le=100, description="The most entries to find."), _NUMBER
        ] = 5,
    ) -> SearchAnswer:
        """Find at most k entries for a query, best first."""
        return SearchAnswer(
            entries=_found_models(self.agent.search(query, k, namespace=caller.namespace))
        )

    @_endpoint("GET", "/memory")
    def memory(
        self,
        caller: Caller,
        offset: Annotated[
            int,
            Field(ge=0, description="The number of entries to leave out at the beginning."),
            _NUMBER,
        ] = 0,
        limit: _Most = 100,
    ) -> MemoryAnswer:
        """List the entries of the memory in order of creation, and count the lines beside them."""
        entries, lines = self.agent.counted(caller.namespace)
        return MemoryAnswer.model_validate(
            {"entries": entries[offset : offset + limit], "total": len(entries), "lines": lines}
        )

    @_endpoint("GET", "/history")
    def history(
        self,
        caller: Caller,
        entry: Annotated[
            _Id | None,
            Field(description="Id of the entry whose operations are listed; without it, all are."),
        ] = None,
        limit: _Most = 100,
    ) -> HistoryAnswer:
        """List the newest operations, of one entry or of all: what they did, when, by whom and from
        which text.
        """
        events = self.agent.history(entry, namespace=caller.namespace)
        return HistoryAnswer.model_validate({"operations": events[-limit:], "total": len(events)})

    @_endpoint("POST", "/undo", writes=True)
    def undo(
        self,
        caller: Caller,
        operation: Annotated[
            int,
            Field(ge=1, description="The number of the operation, as add and history give it."),
            _NUMBER,
        ],
    ) -> ChangeAnswer:
        """Undo one operation, by the number that add and history give it."""
        return ChangeAnswer.model_validate(
            self.agent.undo(operation, namespace=caller.namespace, by=caller.name)
        )

    @_endpoint("POST", "/forget", writes=True)
    def forget(
        self,
        caller: Caller,
        entry: Annotated[
            _Id, Field(description="The id of the entry, as memory and search give it.")
        ],
        also: Annotated[
            list[_Id] | None,
            Field(
                max_length=1000, description="Ids of other entries and passages to erase with it."
            ),
        ] = None,
    ) -> ForgetAnswer:
        """Erase an entry for good, by its id: from the log and every file of the store, with the
        passages that say it.

        This cannot be undone. Do it only when asked to. said_by lists what still has words of it:
        ask whether that should go, too.
        """
        return ForgetAnswer.model_validate(
            self.agent.forget(entry, also or (), namespace=caller.namespace)
        )

    @_endpoint("DELETE", "/memory", writes=True, tool=False)  # a model must not do this
    def forget_all(self, caller: Caller) -> ForgetAnswer:
        """Erase the whole namespace for good."""
        return ForgetAnswer.model_validate(self.agent.forget_all(namespace=caller.namespace))


def _found_models(hits: Iterable[Hit]) -> list[FoundModel]:
    return [
        FoundModel(**EntryModel.model_validate(hit.entry).model_dump(), score=hit.score)
        for hit in hits
    ]
