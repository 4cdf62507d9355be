"""Routes in Mem0's shape: its clients (``MemoryClient(api_key=TOKEN, host=URL)``) use this memory.

The routes of Mem0's platform (``/v1`` to ``/v3/memories``) and of its open-source server
(``/memories``, ``/search``): ping, add, search, get_all, get, delete, delete_all. ``user_id``,
``agent_id`` and ``run_id`` are the user, agent and session of a namespace, within the reach of the
token; each combination is a memory of its own, and ``delete_all`` erases all that are named. An
answer means that all is on disk: there are no events to wait for. Entries and, with an archive,
lines are memories. ``delete`` forgets for good, with the lines that say it. ``infer=false`` keeps
messages as lines without the model. A message's time is ``timestamp``, or stands before it in
brackets. Not supported: ``app_id``, other filters, ``update``, history, entities; metadata and
whatever else is not read is listed under ``ignored``.
"""

import json
import re
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from anyio import to_thread
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from memalpha.errors import InputError
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval.archive import archive_chunk
from memalpha.store.journal import Namespace, Origin
from memalpha.text import to_iso
from memalpha.types import Change, Entry, JsonObject
from memalpha.use.access import HEADERS, Caller, Callers, Problem
from memalpha.use.operations import ENDPOINTS, Operations, invalid, problem_of

_PATH = re.compile(r"/(?:v[123]/)?memories(?:/.*)?|/search|/v1/ping")
_FOUND = 10  # memories that a search finds, unless it says how many
_TIME = re.compile(r"\[([^\[\]\n]{4,40})\] *")
_PARTS = {"user_id": "user", "agent_id": "agent", "run_id": "session"}
_REQUESTS = {endpoint.name: endpoint.request for endpoint in ENDPOINTS}


class Mem0Request(BaseModel):
    """The fields of requests that are read."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)

    user_id: str | None = None
    agent_id: str | None = None
    run_id: str | None = None
    filters: JsonObject = Field(default_factory=dict)
    messages: str | JsonObject | list[JsonObject] = ""
    infer: bool = True
    timestamp: int | None = Field(None, ge=0, lt=1 << 35)  # seconds since 1970
    query: str = ""
    top_k: int | None = Field(None, ge=1, le=1000)
    threshold: float | None = None
    page: int = Field(1, ge=1)
    page_size: int = Field(100, ge=1, le=1000)

    def named(self) -> dict[str, str]:
        """Return the parts of the namespace that are named; Problem (400) for other filters."""
        both = self.filters.get("AND")
        filters = both if isinstance(both, list) else [self.filters]
        known = [each for each in filters if isinstance(each, dict)]
        flat = {name: value for each in known for name, value in each.items()}
        wrong = [name for name, value in flat.items() if not isinstance(value, str)]
        wrong += [name for name in flat if name not in _PARTS]
        if wrong or len(known) < len(filters) or (both is not None and len(self.filters) > 1):
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"the filters {json.dumps(self.filters)}",
                "user_id, agent_id and run_id, each with one name, or a list of them under AND",
            )
        given = {name: getattr(self, name) for name in _PARTS if getattr(self, name)}
        return {_PARTS[name]: value for name, value in {**flat, **given}.items()}


class _Asked(NamedTuple):
    request: Mem0Request
    caller: Caller
    named: dict[str, str]  # parts of the namespace that the token, the request or a header names
    entry: str  # of a path that names one


_Answer = Callable[[_Asked], JsonObject]


def is_mem0(path: str) -> bool:
    """Whether a path is one of Mem0's, whose requests name their user in body, query or id."""
    return _PATH.fullmatch(path) is not None


def add_mem0_routes(app: Starlette, operations: Operations, callers: Callers) -> None:
    """Add the routes to an application behind a ``Gate``."""
    routes = _Mem0(operations)

    def endpoint(answer: _Answer) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            asked = await _asked(request, callers)
            return JSONResponse(await to_thread.run_sync(routes.guarded, answer, asked))

        return handle

    async def ping(_: Request) -> Response:
        own = {"org_id": "memalpha", "project_id": "memalpha"}  # the client wants some
        return JSONResponse({"status": "ok", "user_email": None, **own})

    for method, path, answer in (
        ("POST", "/v3/memories/add", routes.add),
        ("POST", "/v1/memories", routes.add),
        ("POST", "/memories", routes.add),
        ("POST", "/v3/memories/search", routes.search),
        ("POST", "/v2/memories/search", routes.search),
        ("POST", "/v1/memories/search", routes.search),
        ("POST", "/search", routes.search),
        ("POST", "/v3/memories", routes.get_all),
        ("POST", "/v2/memories", routes.get_all),
        ("GET", "/v1/memories", routes.get_all),
        ("GET", "/memories", routes.get_all),
        ("DELETE", "/v1/memories", routes.delete_all),
        ("DELETE", "/memories", routes.delete_all),
        ("GET", "/v1/memories/{id}", routes.get),
        ("GET", "/memories/{id}", routes.get),
        ("DELETE", "/v1/memories/{id}", routes.delete),
        ("DELETE", "/memories/{id}", routes.delete),
    ):
        app.add_route(path, endpoint(answer), methods=[method])
    app.add_route("/v1/ping", ping, methods=["GET"])


async def _asked(request: Request, callers: Callers) -> _Asked:
    body = await request.body()
    try:
        fields = json.loads(body) if body else {}
        asked = Mem0Request.model_validate({**request.query_params, **fields})
    except ValidationError as error:
        raise invalid(error, "what Mem0's clients send") from error
    except (ValueError, TypeError) as error:
        raise Problem(HTTPStatus.BAD_REQUEST, f"the body is no JSON object: {error}") from error
    entry = ""
    named = asked.named()
    if "id" in request.path_params:
        *names, entry = map(_unquoted, str(request.path_params["id"]).split(":"))
        if len(names) != len(_PARTS):
            raise _unknown(entry)
        named = dict(zip(_PARTS.values(), names, strict=True))
    caller = callers.identify(request.headers, named)
    chosen = {"user", *named, *callers.granted(request.headers).fixed}
    chosen |= {part for part, header in HEADERS.items() if header in request.headers}
    whole = {part: getattr(caller.namespace, part) for part in sorted(chosen)}
    return _Asked(asked, caller, whole, entry)


def _quoted(part: str) -> str:
    """A part of an id, in characters that no client and no server changes in a path."""
    return quote(part, safe="").replace("~", "%7E").replace("%", "~")


def _unquoted(part: str) -> str:
    return unquote(part.replace("~", "%"))


def _unknown(entry: str) -> Problem:
    return Problem(HTTPStatus.NOT_FOUND, f"no memory {entry!r}", "an id that add or search gave")


class _Mem0:
    """Answers requests with the server's own operations, and their errors."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._agent = operations.agent

    def _call(self, name: str, caller: Caller, **fields: Any) -> Any:
        try:
            request = _REQUESTS[name].model_validate(fields)
        except ValidationError as error:
            raise invalid(error, "what Mem0's clients send") from error
        return self._operations.call(name, caller, request)

    def guarded(self, answer: _Answer, asked: _Asked) -> JsonObject:
        """Return an answer; every error is a Problem."""
        try:
            if answer != self.delete_all:  # which asks for no schema
                self._call("memory", asked.caller, limit=1)
            return answer(asked)
        except Exception as error:  # the model and its libraries may raise anything
            raise problem_of(error) from error

    def add(self, asked: _Asked) -> JsonObject:
        """Read messages and remember what matters in them, or keep all, as lines."""
        request = asked.request
        given = request.messages
        messages = [given] if isinstance(given, dict) else given
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        messages = [_dated(message) for message in messages]
        stamp = request.timestamp
        said = datetime.now(UTC) if stamp is None else datetime.fromtimestamp(stamp, UTC)
        time = said.isoformat(timespec="seconds")
        if request.infer:
            added = self._operations.read(asked.caller, messages, time)
            changes = [change for step in added.steps for change in step.outcome.changes]
        else:
            changes = self._keep(asked.caller.namespace, messages, time)
        return {
            "status": "SUCCEEDED",
            "results": [_result(change, asked.caller.namespace) for change in changes],
            "ignored": sorted(request.model_extra or ()),
        }

    def _keep(
        self, whose: Namespace, messages: Sequence[JsonObject], time: str | None
    ) -> list[Change]:
        """Archive messages without the model."""
        agent = self._agent
        if not agent.step.config.archive:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                "infer=false, and this agent has no archive to keep lines in",
                fix="memalpha serve --archive true",
            )
        chunks = agent.labelled(agent.guards.masked(list(messages))[0], time)
        origin = Origin("mem0", "infer=false")
        with agent.durable(whose) as durable, durable.writing(origin) as memory:
            start = len(memory.changes)
            for chunk, labels in chunks:
                archive_chunk(memory, memory.clock, chunk, (), labels)
            return memory.changes[start:]

    def search(self, asked: _Asked) -> JsonObject:
        """Find memories, best first; scores compare within one answer."""
        request = asked.request
        whose = asked.caller.namespace
        if not request.query.strip():
            raise Problem(HTTPStatus.BAD_REQUEST, "no query", "what to look for")
        found = self._agent.search(request.query, request.top_k or _FOUND, namespace=whose)
        least = float("-inf") if request.threshold is None else request.threshold
        results = [
            {**_item(hit.entry, whose), "score": hit.score} for hit in found if hit.score >= least
        ]
        return {"results": results, "ignored": sorted(request.model_extra or ())}

    def get_all(self, asked: _Asked) -> JsonObject:
        """List memories in order of creation, entries before lines, by pages."""
        request = asked.request
        whose = asked.caller.namespace
        with self._agent.durable(whose) as durable:
            memory = durable.memory
            lines = memory.entries(ARCHIVE.name) if self._agent.step.config.archive else ()
            entries = (*memory, *lines)
        size = request.top_k or request.page_size
        start = (request.page - 1) * size
        shown = entries[start : start + size]
        return {
            "count": len(entries),
            "next": None if start + len(shown) >= len(entries) else f"?page={request.page + 1}",
            "previous": f"?page={request.page - 1}" if request.page > 1 else None,
            "results": [_item(entry, whose) for entry in shown],
        }

    def get(self, asked: _Asked) -> JsonObject:
        """Return one memory."""
        with self._agent.durable(asked.caller.namespace) as durable:
            entry = durable.memory.get(asked.entry)
        if entry is None:
            raise _unknown(asked.entry)
        return _item(entry, asked.caller.namespace)

    def delete(self, asked: _Asked) -> JsonObject:
        """Forget one memory for good."""
        self.get(asked)
        self._call("forget", asked.caller, entry=asked.entry)
        return {"message": "Memory deleted successfully!"}

    def delete_all(self, asked: _Asked) -> JsonObject:
        """Forget all memories of a user, or of the agent or session that is named beside."""
        for whose in self._agent.journal.namespaces():
            parts = {part: getattr(whose, part) for part in _PARTS.values()}
            if parts.items() >= asked.named.items() and self._is_own(whose):
                self._call("forget_all", Caller(asked.caller.name, whose))
        return {"message": "Memories deleted successfully!"}

    def _is_own(self, whose: Namespace) -> bool:
        """Whether a namespace is one that this agent reads: of its schema, or of lines alone."""
        try:
            with self._agent.durable(whose) as durable:
                return durable.memory is not None
        except InputError:  # such as the files of Claude's memory tool
            return False


def _dated(message: JsonObject) -> JsonObject:
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
    kind = "UPDATE" if before and after else "ADD" if after else "DELETE"
    return {**_item(entry, whose), "event": kind, "data": {"memory": entry.content}}


def _item(entry: Entry, whose: Namespace) -> JsonObject:
    """A memory as Mem0 shows it; its id names the namespace, too."""
    parts = (whose.user, whose.agent, whose.session, entry.id)
    ids = {name: getattr(whose, part) for name, part in _PARTS.items()}
    return {
        "id": ":".join(map(_quoted, parts)),
        "memory": entry.content,
        **{name: None if value == "default" else value for name, value in ids.items()},
        "metadata": None,
        "created_at": entry.timestamp,
        "updated_at": entry.timestamp,
    }
