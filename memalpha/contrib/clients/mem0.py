"""Routes in Mem0's shape: its clients (``MemoryClient(api_key=TOKEN, host=URL)``) use this memory.

The routes of Mem0's platform (``/v1`` to ``/v3``) and of its open-source server (``/memories``,
``/search``): ping, add, search, get_all, get, update, history, delete, delete_all, batches,
entities. ``user_id``, ``agent_id`` and ``run_id`` are the user, agent and session of a namespace,
within the reach of the token and of the headers, which no request exceeds; each combination is a
memory of its own. A part that nobody names is none; ``delete_all`` erases any. An answer means that
all is on disk: an event is done when its id is given. Entries and, with an archive, lines are
memories. ``delete`` forgets for good, with the lines that say it. ``infer=false`` keeps messages as
lines without the model. A message's time is ``timestamp``, or stands before it in brackets.
``metadata`` and ``app_id`` are kept with what is written (``Entry.metadata``). Each route has its
fields; of others only ``_NO_EFFECT`` are accepted, and all else is refused (400).
"""

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote, unquote

from anyio import to_thread
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from memalpha.contrib.clients.filters import (
    ENTITIES,
    NONE,
    Filter,
    every,
    read_filters,
    timestamp_of,
)
from memalpha.errors import InputError, JournalDamagedError
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import ARCHIVE, SectionKind
from memalpha.retrieval.archive import archive_chunk
from memalpha.store.journal import Event, Namespace, Origin
from memalpha.text.quoting import is_text
from memalpha.text.times import to_iso
from memalpha.types import Change, Chunk, Entry, JsonObject, Operation, OperationKind
from memalpha.use.access import (
    HEADERS,
    Caller,
    Callers,
    Problem,
    ServeConfig,
    check_namespace_parts,
)
from memalpha.use.api import respond
from memalpha.use.operations import ENDPOINTS, Endpoints, invalid, problem_of, read_json

_PATH = re.compile(
    r"/(?:v[123]/)?memories(?:/.*)?|/search|/v1/(?:ping|batch|event/.*)|/v[12]/entities(?:/.*)?"
)
_FOUND = 10  # memories that a search finds, unless it says how many
_MOST_METADATA = 10_000  # characters; each line of a text has it
_TIME = re.compile(r"\[([^\[\]\n]{4,40})\] *")
_NUMBER = re.compile(r"[0-9]{1,18}")  # of an operation
_PARTS = {"user_id": "user", "agent_id": "agent", "run_id": "session"}
_REQUESTS = {endpoint.name: endpoint.request for endpoint in ENDPOINTS}
_DONE = "SUCCEEDED"
_OWN = "memalpha"  # organisation and project that a ping names: the client wants some
_BOTH = ("true", "false")
# Fields of Mem0 that change nothing here: the values that are accepted, and why they are harmless.
_NO_EFFECT: Mapping[str, tuple[Sequence[str], str]] = {
    "version": (("v1", "v2", "v3"), "of Mem0's own pipeline"),
    "output_format": (("v1.1",), "the form of every answer"),
    "async_mode": (_BOTH, "an answer means that all is on disk"),
    "rerank": (_BOTH, "there is one ranking"),
    "keyword_search": (_BOTH, "words always count, beside the meaning"),
    "show_expired": (_BOTH, "nothing expires"),
    "org_id": ((_OWN,), "what a ping says"),
    "project_id": ((_OWN,), "what a ping says"),
    "immutable": (("false",), "as it is"),
    "enable_graph": (("false",), "there is no graph"),
    "filter_memories": (("false",), "as it is"),
    "only_metadata_based_search": (("false",), "as it is"),
    "latest_only": (("false",), "as it is"),
    "explain": (("false",), "as it is"),
    "temporal_reasoning": (("false",), "as it is"),
    "delete_linked": (("false",), "as it is"),
}
_OWNERS = (*ENTITIES, "filters")
_CHOICE = (*_OWNERS, "metadata", "fields")
_PAGES = ("page", "page_size", "top_k", "limit")
_ADD = (*_OWNERS, "messages", "infer", "timestamp", "metadata")
_SEARCH = (*_CHOICE, "query", "top_k", "limit", "threshold")
_LIST = (*_CHOICE, *_PAGES, "start_date", "end_date", "keywords")
_ERASE = (*_OWNERS, "metadata")
_UPDATE = ("text", "metadata", "timestamp")


def _object(value: Any) -> Any:
    """An object; in a query, its JSON."""
    return _load_json(value) if isinstance(value, str) else value


def _number(value: Any) -> Any:
    return str(value) if isinstance(value, bool) else value  # pydantic takes true for 1


_Object = Annotated[JsonObject, BeforeValidator(_object)]
_Count = Annotated[int, BeforeValidator(_number), Field(ge=1, le=1000)]


class Mem0Request(BaseModel):
    """The fields of requests that have an effect."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    app_id: str | None = None
    filters: _Object = Field(default_factory=dict)
    messages: str | JsonObject | list[JsonObject] = ""
    infer: bool = True
    timestamp: Annotated[int | float | str, BeforeValidator(_number)] | None = None
    metadata: _Object | None = None
    query: str = ""
    top_k: _Count | None = None
    limit: _Count | None = None
    threshold: Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)] | None = None
    page: Annotated[int, BeforeValidator(_number), Field(ge=1, lt=1 << 31)] = 1
    page_size: _Count = 100
    fields: list[str] | None = None
    start_date: str | None = None
    end_date: str | None = None
    keywords: str | None = None
    text: str | None = None
    memories: Annotated[list[JsonObject], Field(min_length=1, max_length=1000)] | None = None

    def owners(self) -> Filter:
        """Return whose memory is meant; Problem (400) for what is not understood."""
        named = {name: getattr(self, name) for name in ENTITIES if getattr(self, name) is not None}
        return every(read_filters(named, "the request"), read_filters(self.filters))

    def wanted(self) -> Filter:
        """Return what the fields ask of a memory; Problem (400) for what is not understood."""
        dates = {"gte": self.start_date, "lte": self.end_date}
        asked = {
            "metadata": self.metadata,
            "keywords": self.keywords,
            "created_at": {kind: date for kind, date in dates.items() if date is not None} or None,
        }
        given = {name: value for name, value in asked.items() if value is not None}
        return every(self.owners(), read_filters(given, "the request"))


class About(BaseModel):
    """The JSON that is kept with an entry, in ``Entry.metadata``.

    ``dated``: times of what was said stood before it in brackets.
    """

    model_config = ConfigDict(extra="forbid")

    metadata: JsonObject | None = None
    app_id: str | None = None
    dated: Literal[True] | None = None

    @classmethod
    def of(cls, entry: Entry) -> "About":
        """Return what is kept with an entry; JournalDamagedError if it cannot be read."""
        try:
            return cls.model_validate_json(entry.metadata or "{}")
        except ValidationError as error:
            raise JournalDamagedError(f"the metadata of {entry.id} cannot be read") from error

    def text(self) -> str | None:
        """Return the JSON; None if nothing is kept. Problem (400) if it could not be read again."""
        given = {name: value for name, value in self if value is not None}
        text = json.dumps(given)
        try:
            whole = len(text) <= _MOST_METADATA and About.model_validate_json(text) == self
        except ValidationError:  # it is nested too deeply
            whole = False
        if not whole:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"metadata of {len(text)} characters of JSON",
                f"at most {_MOST_METADATA}, in a few levels",
            )
        return text if given else None


class _Mem0Call(NamedTuple):
    """A request: its fields, those that are null, the parts of its path, the name of its token, and
    the parts of the namespace that token and headers set.
    """

    fields: Mem0Request
    nulls: frozenset[str]
    path: Mapping[str, str]
    who: str
    pinned: Mapping[str, str]


_Answer = Callable[[_Mem0Call], Any]
_Route = tuple[_Answer, tuple[str, ...]]  # with the fields that have an effect


class Mem0Routes:
    """The routes of Mem0's clients, which a server always has."""

    options = None
    names_user = True

    def __init__(self, endpoints: Endpoints, callers: Callers, config: ServeConfig) -> None:
        self._mem0 = _Mem0(endpoints, callers)
        self._callers = callers
        self.max_body_bytes = config.max_body_bytes

    @classmethod
    def build(
        cls, endpoints: Endpoints, callers: Callers, config: ServeConfig, options: None
    ) -> "Mem0Routes":
        """Return the routes."""
        return cls(endpoints, callers, config)

    def owns(self, path: str) -> bool:
        """Whether the path of a request is one of these."""
        return _PATH.fullmatch(path) is not None

    def respond(self, problem: Problem) -> Response:
        """Return the response for a problem, as of the server's own routes."""
        return respond(problem)

    def add_to(self, app: Starlette) -> None:
        """Add the routes to an application behind a ``Gate``."""
        for paths, methods in _routes(self._mem0).items():
            for path in paths:
                for method, (answer, fields) in methods.items():
                    app.add_route(path, self._endpoint(answer, fields), methods=[method])
        app.add_route("/v1/ping", _ping, methods=["GET"])

    def _endpoint(
        self, answer: _Answer, fields: Sequence[str]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            sent, nulls = _fields_of(request, await request.body(), fields)
            grant = self._callers.granted(request.headers)
            pinned = self._callers.pinned(request.headers)
            asked = _Mem0Call(sent, nulls, request.path_params, grant.name, pinned)
            return JSONResponse(await to_thread.run_sync(self._mem0.guarded, answer, asked))

        return handle


async def _ping(_: Request) -> Response:
    own = {"org_id": _OWN, "project_id": _OWN}
    return JSONResponse({"status": "ok", "user_email": None, **own})


def _routes(routes: "_Mem0") -> dict[tuple[str, ...], dict[str, _Route]]:
    """The paths of Mem0's platform and of its server; by method, the answer and its fields."""
    add = (routes.add, _ADD)
    search = (routes.search, _SEARCH)
    get_all = (routes.get_all, _LIST)
    delete_all = (routes.delete_all, _ERASE)
    one: dict[str, _Route] = {
        "GET": (routes.get, ()),
        "PUT": (routes.update, _UPDATE),
        "DELETE": (routes.delete, ()),
    }
    return {
        ("/v3/memories/add",): {"POST": add},
        ("/v1/memories", "/memories"): {"POST": add, "GET": get_all, "DELETE": delete_all},
        ("/v2/memories", "/v3/memories"): {"POST": get_all},
        (*(f"/v{number}/memories/search" for number in (1, 2, 3)), "/search"): {"POST": search},
        ("/v1/memories/{id}", "/memories/{id}"): one,
        ("/v1/memories/{id}/history", "/memories/{id}/history"): {"GET": (routes.history, ())},
        ("/v1/event/{id}",): {"GET": (routes.event, ())},
        ("/v1/batch",): {
            "PUT": (routes.update_many, ("memories",)),
            "DELETE": (routes.delete_many, ("memories",)),
        },
        ("/v1/entities",): {"GET": (routes.entities, ("page", "page_size"))},
        ("/v1/entities/{type}/{name:path}", "/v2/entities/{type}/{name:path}"): {
            "DELETE": (routes.delete_entity, ())
        },
    }


# ------------------------------------------------------------------------------------------------
# requests
def _fields_of(
    request: Request, body: bytes, known: Sequence[str]
) -> tuple[Mem0Request, frozenset[str]]:
    """Return the fields of body and query, and those that are null; Problem for what is not
    understood (400) or of a wrong type (422).
    """
    asked = _in_query(request)
    try:
        given = _load_json(body) if body else {}
        if not isinstance(given, dict):
            raise ValueError(f"it is a {type(given).__name__}")
    except ValueError as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is no JSON object: {error}") from error
    for name in sorted(asked.keys() & given.keys()):
        if str(asked[name]) != str(given[name]):
            raise _twice(name)
    fields = {name: value for name, value in {**asked, **given}.items() if value is not None}
    for name in sorted(set(fields) - set(known)):
        values, why = _NO_EFFECT.get(name, ((), ""))
        if str(fields.pop(name)).lower() not in values:
            wanted = f"{' or '.join(values)} ({why})" if values else ", ".join(known) or "no field"
            raise Problem(HTTPStatus.BAD_REQUEST, f"the field {name} is not understood", wanted)
    try:
        return Mem0Request.model_validate(fields), frozenset(given) - set(fields)
    except ValidationError as error:
        raise invalid(error, "what Mem0's clients send") from error


def _in_query(request: Request) -> JsonObject:
    """The fields of a query; ``fields`` may stand there more than once."""
    asked: JsonObject = {}
    for name, value in request.query_params.multi_items():
        if name == "fields":
            asked[name] = [*asked.get(name, []), value]
        elif asked.setdefault(name, value) != value:
            raise _twice(name)
    return asked


def _twice(name: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, f"the field {name} stands there twice", "one value")


def _load_json(text: str | bytes) -> Any:
    """Read JSON of Unicode text, in which no name stands twice; ValueError if it is none."""
    value = read_json(text)
    try:
        written = json.dumps(value, ensure_ascii=False)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not is_text(written):
        raise ValueError("it holds characters that are not Unicode text")
    return value


def _quote(part: str) -> str:
    """A part of an id, in characters that no client and no server changes in a path."""
    return quote(part, safe="").replace("~", "%7E").replace("%", "~")


def _unquote(part: str) -> str:
    return unquote(part.replace("~", "%"))


def _unknown(entry: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"no memory {entry!r}", "an id that add or search gave")


# ------------------------------------------------------------------------------------------------
# answers
class _Space(NamedTuple):
    """A namespace that a request is about, and which of its memories; ``whole``: all of them."""

    namespace: Namespace
    wanted: Filter
    whole: bool

    def fits(self, entry: Entry) -> bool:
        """Whether a memory is meant."""
        return self.whole or self.wanted.holds(_record(self.namespace, entry)) is True


class _Mem0:
    """Answers requests with the server's own endpoints, and their errors."""

    def __init__(self, endpoints: Endpoints, callers: Callers) -> None:
        self._endpoints = endpoints
        self._agent = endpoints.agent
        self._callers = callers

    def _call(self, name: str, caller: Caller, **fields: Any) -> Any:
        try:
            request = _REQUESTS[name].model_validate(fields)
        except ValidationError as error:
            raise invalid(error, "what Mem0's clients send") from error
        return self._endpoints.call(name, caller, request)

    def guarded(self, answer: _Answer, asked: _Mem0Call) -> Any:
        """Return an answer; every error is a Problem."""
        try:
            return answer(asked)
        except Exception as error:  # the model and its libraries may raise anything
            raise problem_of(error) from error

    # --------------------------------------------------------------------------------------------
    # whose memory
    def _namespace(self, asked: _Mem0Call, parts: Mapping[str, str]) -> Caller:
        """Return the namespace of some parts, which this agent can read and the caller may."""
        check_namespace_parts(parts, asked.pinned, asked.who)
        whole = {**parts, **asked.pinned}
        if "user" not in whole:
            raise _no_user()
        caller = Caller(asked.who, Namespace(**whole))
        self._call("memory", caller, limit=1)  # it has the agent's schema
        return caller

    def _named(self, asked: _Mem0Call, name: str) -> tuple[Caller, str]:
        """Return the namespace that an id names, and what in it."""
        *names, last = map(_unquote, name.split(":"))
        if len(names) != len(_PARTS):
            raise _unknown(name)
        return self._namespace(asked, dict(zip(_PARTS.values(), names, strict=True))), last

    def _entry(self, asked: _Mem0Call, name: str) -> tuple[Caller, Entry]:
        """Return a memory by its id."""
        caller, entry_id = self._named(asked, name)
        with self._agent.durable(caller.namespace) as durable:
            entry = durable.memory.get(entry_id)
        if entry is None:
            raise _unknown(entry_id)
        return caller, entry

    def _spaces(self, asked: _Mem0Call, wanted: Filter, *, any_part: bool = False) -> list[_Space]:
        """Return the namespaces that a request is about, of those that exist within its reach; the
        parts that nobody names are none, or any.
        """
        for field, part in _PARTS.items():
            for name in sorted(wanted.names(field)):
                check_namespace_parts({part: name}, asked.pinned, asked.who)
        if "user" not in asked.pinned and not wanted.mentions("user_id"):
            raise _no_user()
        equal = wanted.exact()
        known = {part: equal[field] for field, part in _PARTS.items() if field in equal}
        known |= asked.pinned
        for field, part in _PARTS.items():
            if part not in known and not any_part and not wanted.mentions(field):
                known[part] = NONE
        if len(known) == len(_PARTS):
            spaces = [self._namespace(asked, known).namespace]
        else:
            parts = known.items()
            spaces = [each for each in self._existing() if parts <= _parts_of(each).items()]
            spaces = [each for each in spaces if self._is_own(each)]
        verdicts = [(each, wanted.holds(_owners_of(each))) for each in spaces]
        return [_Space(each, wanted, bool(holds)) for each, holds in verdicts if holds is not False]

    def _existing(self) -> tuple[Namespace, ...]:
        return self._agent.namespaces()

    def _is_own(self, whose: Namespace) -> bool:
        """Whether a namespace is one that this agent reads: of its schema, or of lines alone."""
        try:
            with self._agent.durable(whose) as durable:
                return durable.memory is not None
        except InputError:  # such as the files of Claude's memory tool
            return False

    def _memories(self, space: _Space) -> list[Entry]:
        """The memories that are meant, in order of creation, entries before lines."""
        with self._agent.durable(space.namespace) as durable:
            entries = self._all(durable.memory)
        return [entry for entry in entries if space.fits(entry)]

    def _all(self, memory: Memory) -> tuple[Entry, ...]:
        lines = memory.entries(ARCHIVE.name) if self._agent.step.config.archive else ()
        return (*memory, *lines)

    # --------------------------------------------------------------------------------------------
    # writing
    def add(self, asked: _Mem0Call) -> JsonObject:
        """Read messages and remember what matters in them, or keep all, as lines; the memories that
        this made, changed and deleted.
        """
        fields = asked.fields
        owners = fields.owners()
        if not owners.only_names():
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "the filters of add do not say whose memory it is",
                "user_id, agent_id, run_id and app_id, each with one name",
            )
        named = owners.exact()
        parts = {part: named[field] for field, part in _PARTS.items() if field in named}
        caller = self._namespace(asked, parts)
        messages = [fields.messages] if isinstance(fields.messages, dict) else fields.messages
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        dated = [_date_message(message) for message in messages]
        about = About(
            metadata=fields.metadata or None,
            app_id=named.get("app_id"),
            dated=True if dated != messages else None,
        )
        metadata = self._checked(about)
        stamp = fields.timestamp
        now = datetime.now(UTC).isoformat(timespec="seconds")
        time = now if stamp is None else timestamp_of(_seconds(stamp), "the timestamp")
        if fields.infer:
            changes = self._read(caller, dated, time, metadata)
        else:
            changes = self._keep(caller.namespace, dated, time, metadata)
        with self._agent.durable(caller.namespace) as durable:
            last = durable.memory.clock - 1
        return {
            "event_id": _id(caller.namespace, str(last)),
            "status": _DONE,
            "results": [_result(change, caller.namespace) for change in changes],
        }

    def _checked(self, about: About) -> str | None:
        """The JSON of what is kept with an entry; Problem (400) if a guard finds a secret in it."""
        text = about.text()
        if text is not None and self._agent.guards.masked(text)[1]:
            raise Problem(
                HTTPStatus.BAD_REQUEST, "the metadata holds a secret", "metadata without it"
            )
        return text

    def _read(
        self, caller: Caller, messages: list[JsonObject], time: str, metadata: str | None
    ) -> list[Change]:
        """Let the agent read messages; what it changed, and the lines that were kept."""
        added = self._endpoints.read(caller, messages, time, metadata=metadata)
        changes = [change for step in added.steps for change in step.outcome.changes]
        chunks = {step.chunk_index for step in added.steps}
        with self._agent.durable(caller.namespace) as durable:
            lines = durable.memory.entries(ARCHIVE.name)
        return changes + [Change(None, line) for line in lines if line.source_chunk in chunks]

    def _keep(
        self, whose: Namespace, messages: list[JsonObject], time: str, metadata: str | None
    ) -> list[Change]:
        """Archive messages without the model."""
        agent = self._agent
        if not agent.step.config.archive:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "infer is false, but this agent has no archive that could keep lines",
                fix="start the server with memalpha serve --archive true",
            )
        self._endpoints.check_length(messages)
        chunks = agent.labelled(agent.guards.masked(messages)[0], time)
        origin = Origin("mem0", "infer=false")
        with agent.durable(whose) as durable, durable.writing(origin, metadata) as memory:
            start = len(memory.changes)
            for chunk, labels in chunks:
                archive_chunk(memory, memory.clock, chunk, (), labels)
            return memory.changes[start:]

    def update(self, asked: _Mem0Call) -> JsonObject:
        """Change the text, the time and the metadata of a memory."""
        (item,) = self._update(asked, [(asked.path["id"], asked.fields)])
        return item

    def _update(
        self, asked: _Mem0Call, wanted: Sequence[tuple[str, Mem0Request]]
    ) -> list[JsonObject]:
        """Change memories, each with its fields, in order: those of one namespace all or none."""
        spaces: dict[Caller, list[tuple[str, Mem0Request]]] = {}
        for name, fields in wanted:
            caller, entry_id = self._named(asked, name)
            spaces.setdefault(caller, []).append((entry_id, self._readable(asked, fields)))
        items = []
        for caller, changes in spaces.items():
            origin = Origin(caller.name, "mem0 update")
            with (
                self._agent.durable(caller.namespace) as durable,
                durable.writing(origin) as memory,
            ):
                for entry_id, fields in changes:
                    after = self._change(memory, entry_id, fields)
                    items.append(_item(after, caller.namespace))
        return items

    def _readable(self, asked: _Mem0Call, fields: Mem0Request) -> Mem0Request:
        """The fields of an update, without secrets if a guard looks for them; Problem or InputError
        if they can change nothing.
        """
        given = (fields.text, fields.metadata, fields.timestamp)
        if given == (None, None, None) and "expiration_date" not in asked.nulls:
            raise Problem(
                HTTPStatus.BAD_REQUEST, "nothing to update", "text, metadata or timestamp"
            )
        text = self._agent.guards.masked(fields.text)[0]
        if text is not None:
            self._endpoints.check_length(text)
            self._agent.pieces(text)
        self._checked(_update_about(About(), fields))
        stamp = fields.timestamp
        time = None if stamp is None else timestamp_of(_seconds(stamp), "the timestamp")
        return fields.model_copy(update={"text": text, "timestamp": time})

    def _change(self, memory: Memory, entry_id: str, fields: Mem0Request) -> Entry:
        """Change one memory by readable fields, and return it."""
        entry = memory.get(entry_id)
        if entry is None:
            raise _unknown(entry_id)
        time = None if fields.timestamp is None else str(fields.timestamp)
        about = self._checked(_update_about(About.of(entry), fields))
        self._rewrite(memory, entry, fields.text, time, about)
        after = memory.get(entry_id)
        if after is None:
            raise _unknown(entry_id)
        return after

    def _rewrite(
        self, memory: Memory, entry: Entry, text: str | None, time: str | None, about: str | None
    ) -> None:
        """Write an entry anew; lines that said what it said before leave the archive."""
        is_line = entry.section == ARCHIVE.name
        is_block = memory.schema[entry.section].kind is SectionKind.BLOCK
        content = entry.content if text is None else text.strip()
        if time is not None and not memory.schema[entry.section].timestamps:
            raise Problem(
                HTTPStatus.BAD_REQUEST, f"memory {entry.id} keeps no time", "no timestamp"
            )
        if content != entry.content or time not in (None, entry.timestamp):
            start = len(memory.changes)
            index = memory.clock
            operation = Operation(
                OperationKind.REPLACE if is_block else OperationKind.UPDATE,
                entry.section,
                content,
                None if is_block else entry.id,
                time or entry.timestamp,
            )
            memory.metadata = about
            result = memory.apply(operation, chunk=entry.source_chunk if is_line else index)
            memory.metadata = None
            if not result.ok or memory.get(entry.id) is None:
                raise Problem(HTTPStatus.CONFLICT, f"memory {entry.id}: {result.message}")
            if self._agent.step.config.archive and not is_line:
                archive_chunk(memory, index, Chunk("", time), memory.changes[start:])
        written = memory.get(entry.id)
        if written is not None and about and written.metadata != about:
            memory.annotate(entry.id, about)

    def delete(self, asked: _Mem0Call) -> JsonObject:
        """Forget one memory for good."""
        self._delete(asked, asked.path["id"])
        return {"message": "Memory deleted successfully!"}

    def _delete(self, asked: _Mem0Call, name: str) -> None:
        caller, entry = self._entry(asked, name)
        self._call("forget", caller, entry=entry.id)

    def delete_all(self, asked: _Mem0Call) -> JsonObject:
        """Forget all memories of a user, or of the agent, session, app or metadata beside it."""
        return self._delete_all(asked, asked.fields.wanted())

    def _delete_all(self, asked: _Mem0Call, wanted: Filter) -> JsonObject:
        for field in ENTITIES:
            if wanted.mentions(field, "*"):
                raise Problem(
                    HTTPStatus.BAD_REQUEST,
                    f'{field} is "*", which would erase more than is named',
                    "one name",
                )
        if "user" not in asked.pinned and wanted.mentions("user_id") != wanted.bounds("user_id"):
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "user_id says whose memories stay, and not whose are erased",
                "the names of users",
            )
        existing = set(self._existing())
        for space in self._spaces(asked, wanted, any_part=True):
            if space.namespace not in existing:
                continue
            if space.whole:
                self._call("forget_all", Caller(asked.who, space.namespace))
                continue
            ids = [entry.id for entry in self._memories(space)]
            with self._agent.durable(space.namespace) as durable:
                others = {entry.id for entry in self._all(durable.memory)}.difference(ids)
            if ids:
                self._agent.forget(ids[0], ids[1:], namespace=space.namespace, keep=others)
        return {"message": "Memories deleted successfully!"}

    def update_many(self, asked: _Mem0Call) -> JsonObject:
        """Update several memories, in order; none if one of them is not there or cannot be read,
        and those of one namespace none if one of them cannot be done.
        """
        batch = _Batch.of(asked.fields)
        for each in batch:
            self._entry(asked, each.memory_id)
        wanted = [(b.memory_id, Mem0Request(text=b.text, metadata=b.metadata)) for b in batch]
        self._update(asked, wanted)
        return {"message": f"Successfully updated {len(batch)} memories"}

    def delete_many(self, asked: _Mem0Call) -> JsonObject:
        """Forget several memories for good; none if one of them is not there."""
        batch = _Batch.of(asked.fields)
        found = [self._entry(asked, each.memory_id) for each in batch]
        for caller, entry in dict.fromkeys(found):
            with self._agent.durable(caller.namespace) as durable:
                gone = durable.memory.get(entry.id) is None  # with one before it
            if not gone:
                self._call("forget", caller, entry=entry.id)
        return {"message": f"Successfully deleted {len(batch)} memories"}

    # --------------------------------------------------------------------------------------------
    # reading
    def search(self, asked: _Mem0Call) -> JsonObject:
        """Find memories, best first; scores compare within one answer."""
        fields = asked.fields
        if not fields.query.strip():
            raise Problem(HTTPStatus.BAD_REQUEST, "no query", "what to look for")
        most = _one_of(fields.top_k, fields.limit, "top_k and limit") or _FOUND
        found = []
        for space in self._spaces(asked, fields.wanted()):
            with self._agent.durable(space.namespace) as durable:
                size = most if space.whole else max(1, len(self._all(durable.memory)))
            hits = self._agent.search(fields.query, size, namespace=space.namespace)
            found += [(hit, space.namespace) for hit in hits if space.fits(hit.entry)]
        found.sort(key=lambda each: -each[0].score)
        least = float("-inf") if fields.threshold is None else fields.threshold
        results = [
            {**_item(hit.entry, whose), "score": hit.score}
            for hit, whose in found[:most]
            if hit.score >= least
        ]
        return {"results": _with_fields(results, fields.fields)}

    def get_all(self, asked: _Mem0Call) -> JsonObject:
        """List memories in order of creation, entries before lines, by pages."""
        spaces = self._spaces(asked, asked.fields.wanted())
        items = [(entry, space.namespace) for space in spaces for entry in self._memories(space)]
        page = _page(items, asked.fields)
        shown = [_item(entry, whose) for entry, whose in page["results"]]
        return {**page, "results": _with_fields(shown, asked.fields.fields)}

    def get(self, asked: _Mem0Call) -> JsonObject:
        """Return one memory."""
        caller, entry = self._entry(asked, asked.path["id"])
        return _item(entry, caller.namespace)

    def event(self, asked: _Mem0Call) -> JsonObject:
        """Say of what ``add`` has answered that it is done; its id names the last operation."""
        caller, number = self._named(asked, asked.path["id"])
        with self._agent.durable(caller.namespace) as durable:
            there = _NUMBER.fullmatch(number) and int(number) < durable.memory.clock
        if not there:
            raise _unknown(asked.path["id"])
        return {"id": asked.path["id"], "event_type": "ADD", "status": _DONE}

    def history(self, asked: _Mem0Call) -> list[JsonObject]:
        """Return what became of one memory, also of one that was deleted and not forgotten."""
        caller, entry_id = self._named(asked, asked.path["id"])
        events = self._agent.history(entry_id, namespace=caller.namespace)
        told = [event for event in events if event.before or event.after]
        if not told:
            raise _unknown(entry_id)
        return [_past(event, caller.namespace) for event in told]

    def entities(self, asked: _Mem0Call) -> JsonObject:
        """List the users within reach, by pages."""
        parts = asked.pinned.items()
        spaces = [each for each in self._existing() if parts <= _parts_of(each).items()]
        users = sorted({space.user for space in spaces})
        named = [{"id": user, "name": user, "type": "user"} for user in users]
        return _page(named, asked.fields)

    def delete_entity(self, asked: _Mem0Call) -> JsonObject:
        """Forget all memories of a user, or of an agent, session or app of the caller's user."""
        field = f"{asked.path['type']}_id"
        if field not in ENTITIES:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"an entity of the type {asked.path['type']!r}",
                "user, agent, run or app",
            )
        self._delete_all(asked, every(read_filters({field: asked.path["name"]}, "the path")))
        return {"message": "Entity deleted successfully!"}


class _Batch(BaseModel):
    """One memory of a batch."""

    model_config = ConfigDict(extra="forbid")

    memory_id: str
    text: str | None = None
    metadata: JsonObject | None = None

    @classmethod
    def of(cls, fields: Mem0Request) -> "list[_Batch]":
        """Return the memories of a request; Problem (400) if there is none."""
        if fields.memories is None:
            raise Problem(HTTPStatus.BAD_REQUEST, "no memories", "a list of them in memories")
        return [cls.read(each, place) for place, each in enumerate(fields.memories)]

    @classmethod
    def read(cls, fields: JsonObject, place: int) -> "_Batch":
        """Return it; Problem (400) for what is not understood."""
        try:
            return cls.model_validate(fields)
        except ValidationError as error:
            problem = invalid(error, "memory_id, and text or metadata")
            what = f"memories.{place}.{problem.what}"
            raise Problem(HTTPStatus.BAD_REQUEST, what, problem.expected) from error


def _no_user() -> Problem:
    return Problem(
        HTTPStatus.BAD_REQUEST,
        "no user named",
        f"whose memory it is: user_id, or {HEADERS['user']}",
    )


def _one_of(first: int | None, second: int | None, names: str) -> int | None:
    if first and second and first != second:
        raise Problem(HTTPStatus.BAD_REQUEST, f"{names} are {first} and {second}", "one of them")
    return first or second


def _seconds(stamp: float | str) -> float | str:
    """A timestamp; in a text, as of a query, may stand a number."""
    try:
        return float(stamp)
    except ValueError:
        return stamp


def _page(items: Sequence[Any], fields: Mem0Request) -> JsonObject:
    size = _one_of(fields.top_k, fields.limit, "top_k and limit") or fields.page_size
    start = (fields.page - 1) * size
    shown = items[start : start + size]
    return {
        "count": len(items),
        "next": None if start + len(shown) >= len(items) else f"?page={fields.page + 1}",
        "previous": f"?page={fields.page - 1}" if fields.page > 1 else None,
        "results": list(shown),
    }


def _update_about(about: About, fields: Mem0Request) -> About:
    """What is kept with an entry after an update, whose keys come on top of those before."""
    metadata = {**(about.metadata or {}), **(fields.metadata or {})}
    dated = about.dated if fields.text is None else None
    return About(metadata=metadata or None, app_id=about.app_id, dated=dated)


def _date_message(message: JsonObject) -> JsonObject:
    """A message whose text begins with a time in brackets, with the time in its field."""
    content = message.get("content")
    written = _TIME.match(content) if isinstance(content, str) else None
    time = to_iso(written[1]) if written else None
    if written is None or time is None:
        return message
    return {"time": time, **message, "content": str(content)[written.end() :]}


def _result(change: Change, whose: Namespace) -> JsonObject:
    before, after = change
    entry = after or before
    assert entry is not None
    item = _item(entry, whose)
    return {**item, "event": _kind(before, after), "data": {"memory": item["memory"]}}


def _kind(before: Entry | None, after: Entry | None) -> str:
    return "UPDATE" if before and after else "ADD" if after else "DELETE"


def _past(event: Event, whose: Namespace) -> JsonObject:
    """One row of a history in Mem0's form."""
    entry = event.after or event.before
    assert entry is not None
    item = _item(entry, whose)
    time = event.time.isoformat()
    return {
        "id": f"{item['id']}:{event.seq}",
        "memory_id": item["id"],
        "input": [],
        "old_memory": event.before and _text_of(event.before),
        "new_memory": event.after and _text_of(event.after),
        "user_id": item["user_id"],
        "metadata": item["metadata"],
        "categories": None,
        "event": _kind(event.before, event.after),
        "is_deleted": event.after is None,
        "created_at": time,
        "updated_at": time,
    }


def _parts_of(whose: Namespace) -> dict[str, str]:
    return {part: getattr(whose, part) for part in _PARTS.values()}


def _owners_of(whose: Namespace) -> JsonObject:
    """What filters read of a namespace."""
    return {field: getattr(whose, part) for field, part in _PARTS.items()}


def _record(whose: Namespace, entry: Entry) -> JsonObject:
    """What filters read of a memory."""
    about = About.of(entry)
    times = dict.fromkeys(("created_at", "updated_at", "timestamp"), entry.timestamp)
    texts = dict.fromkeys(("keywords", "text"), entry.content)
    own = {"app_id": about.app_id, "metadata": about.metadata or {}}
    return {**_owners_of(whose), **own, **times, **texts, "memory_ids": _id(whose, entry.id)}


def _id(whose: Namespace, name: str) -> str:
    """The id of a memory, or of an event, which names the namespace, too."""
    return ":".join(map(_quote, (whose.user, whose.agent, whose.session, name)))


def _text_of(entry: Entry) -> str:
    """The text of a memory; with its time in brackets, if what was said began so."""
    return render_entry(entry) if About.of(entry).dated else entry.content


def _item(entry: Entry, whose: Namespace) -> JsonObject:
    """A memory as Mem0 shows it."""
    about = About.of(entry)
    owners = _owners_of(whose).items()
    return {
        "id": _id(whose, entry.id),
        "memory": _text_of(entry),
        **{field: None if name == NONE else name for field, name in owners},
        "app_id": about.app_id,
        "metadata": about.metadata,
        "categories": None,
        "created_at": entry.timestamp,
        "updated_at": entry.timestamp,
    }


def _with_fields(items: Sequence[JsonObject], names: Sequence[str] | None) -> list[JsonObject]:
    """Items with the fields that are wanted; Problem (400) for one that there is not."""
    known = {*_item(Entry("1", "", ""), Namespace(_OWN)), "score"}
    unknown = sorted(set(names or ()) - known)
    if unknown:
        raise Problem(HTTPStatus.BAD_REQUEST, f"fields: {unknown}", ", ".join(sorted(known)))
    wanted = known if names is None else {"id", *names}
    return [{name: each[name] for name in each if name in wanted} for each in items]
