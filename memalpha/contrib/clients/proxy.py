"""An OpenAI-compatible server with a memory: a proxy in front of another one.

``POST /v1/chat/completions`` and ``/v1/responses``, streamed or not, recall, ask the server
``upstream`` and remember, as ``memalpha.wrap`` does (``exchange.Exchange``). The routes of
``_PASSED``, which keep nothing of anybody there, pass without the memory. All others are 404:
files, batches and stored responses are kept under the one key of that server, for all users alike.

The namespace is that of the caller's token and headers. Body, query and answer pass as they are,
with headers that are not of one connection; the caller's token stays here, the key of the server is
$MEMALPHA_API_KEY, which is blanked in an error that repeats it, and no cookie is kept or passed. An
answer passes piece by piece, and at most ``MAX_HEARD`` bytes of it are held. It ends when its turn
is on disk; if something of the turn was not remembered the log says why, and an answer that is not
streamed has the header ``Memalpha-Remembered: no``. A stream that its reader leaves before the end
is not remembered.
"""

import json
import logging
import zlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httpx2
from anyio import to_thread
from pydantic import PositiveInt
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Send

from memalpha.config import Options
from memalpha.contrib.clients.chatting import ChatMemory
from memalpha.contrib.clients.exchange import (
    CHAT,
    MAX_HEARD,
    REFUSALS,
    RESPONSES,
    ApiForm,
    Exchange,
)
from memalpha.endpoints import ChatClient
from memalpha.errors import InputError
from memalpha.http import HIDDEN, key_from_environment, open_client
from memalpha.types import JsonObject
from memalpha.use.access import CALLER, Caller, Callers, Problem, ServeConfig
from memalpha.use.agent import MemoryAgent
from memalpha.use.api import respond
from memalpha.use.operations import Endpoints, problem_of

_LOG = logging.getLogger(__name__)
_ROOT = "/v1/"
_FORMS = {form.route: form for form in (CHAT, RESPONSES)}
_PASSED = frozenset(
    """
    audio/speech audio/transcriptions audio/translations completions embeddings images/edits
    images/generations images/variations moderations rerank responses/input_tokens score
    """.split()
)
_MODELS = "models"  # and each below
_UP = {"", ".", ".."}
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
# headers of a request that are passed; not those that could bring the answer of another user, such
# as Idempotency-Key: the upstream knows one key for all
_SENT = ("accept", "content-type", "openai-beta", "x-client-request-id")
# headers of an answer that are of one connection, or of the upstream's own site
_NOT_PASSED = frozenset(
    b"""
    alt-svc clear-site-data connection date keep-alive location memalpha-remembered
    proxy-authenticate proxy-authorization proxy-connection server set-cookie set-cookie2
    strict-transport-security te trailer transfer-encoding upgrade
    """.split()
)
_OF_ORIGINS = b"access-control-"
_SHOWN = 65_536  # most bytes of a refusal that are read
_BEGINNINGS = (b",", b"[", b"{")  # of a value in JSON
_MOST_VALUES = (
    1_000_000  # of a chat, as each takes up to 100 times its bytes: photos are long texts
)
_GZIP = ("gzip", "x-gzip", "deflate")


@dataclass(frozen=True, slots=True)
class ProxyOptions(Options):
    """Options of the proxy in front of an OpenAI-compatible server.

    Attributes:
        upstream: The server offers ``/v1/chat/completions`` and ``/v1/responses`` with the memory
            in front of this OpenAI-compatible server. The URL ends with the version, and
            $MEMALPHA_API_KEY holds its key; an empty text turns this off.
        upstream_model: Every request uses this chat model of ``upstream``, whichever model it
            names. An empty text uses the model that the request names.
        upstream_seconds: The server waits at most this many seconds for each piece of an answer of
            ``upstream``.
        upstream_bytes: The body of a request to ``upstream`` has at most this many bytes. The limit
            is large because photos and sound are in the body.
    """

    upstream: str = ""
    upstream_model: str = ""
    upstream_seconds: PositiveInt = 300
    upstream_bytes: PositiveInt = 33_554_432

    def check(self) -> None:
        """Raise InputError for a wrong URL of the upstream, or a key that cannot be one."""
        if self.upstream:
            ChatClient(self.upstream, self.upstream_model or "any")


class ProxyRoutes:
    """The routes of ``memalpha serve --upstream URL``."""

    options = ProxyOptions
    names_user = False

    def __init__(self, agent: MemoryAgent, config: ServeConfig, options: ProxyOptions) -> None:
        self._proxy = _Proxy(agent, config, options)
        self.max_body_bytes = options.upstream_bytes

    @classmethod
    def build(
        cls, endpoints: Endpoints, callers: Callers, config: ServeConfig, options: ProxyOptions
    ) -> "ProxyRoutes | None":
        """Return the routes; None without an upstream."""
        return cls(endpoints.agent, config, options) if options.upstream else None

    def owns(self, path: str) -> bool:
        """Whether the path of a request is one that is passed on to the upstream."""
        return _is_proxied(path)

    def add_to(self, app: Starlette) -> None:
        """Add the routes to an application behind a ``Gate``, after all other ones."""
        for form in _FORMS.values():
            app.add_route(f"{_ROOT}{form.route}", self._proxy.endpoint(form), methods=["POST"])
        for route in _PASSED:
            app.add_route(f"{_ROOT}{route}", self._proxy.endpoint(None), methods=["POST"])
        for route in (_MODELS, f"{_MODELS}/{{name:path}}"):
            app.add_route(f"{_ROOT}{route}", self._proxy.endpoint(None), methods=["GET"])
        app.add_route(f"{_ROOT}{{route:path}}", _refuse, methods=list(_METHODS))

    def respond(self, problem: Problem) -> Response:
        """Return the response for a problem with the message that clients of OpenAI show."""
        return _error_response(problem)


def _is_proxied(path: str) -> bool:
    route = path.removeprefix(_ROOT) if path.startswith(_ROOT) else ""
    return route in _FORMS or route in _PASSED or _names_models(route)


def _error_response(problem: Problem) -> Response:
    parts = [part for part in (problem.what, problem.expected, problem.fix) if part]
    error = {"message": "; ".join(parts), "type": "memalpha", "param": None, "code": None}
    return respond(problem, more={"error": error})


async def _refuse(request: Request) -> Response:
    return _error_response(
        Problem(
            HTTPStatus.NOT_FOUND,
            f"no {request.method} {request.url.path}",
            f"POST {', '.join(sorted({*_FORMS, *_PASSED}))}, GET {_MODELS} below {_ROOT}",
        )
    )


class _UpstreamResponse(StreamingResponse):
    """A response that is cut where the upstream's answer breaks."""

    async def stream_response(self, send: Send) -> None:
        """Send it; without its end the server closes the connection."""
        headers = self.raw_headers
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        try:
            async for data in self.body_iterator:
                await send({"type": "http.response.body", "body": data, "more_body": True})
        except httpx2.HTTPError as error:
            _LOG.error(
                "the answer of the upstream server broke off: %s: %s", type(error).__name__, error
            )
            return
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class _Answer:
    """An answer of the upstream, of which a beginning may be read before it is passed on.

    Some servers repeat the ``key`` in an error; no caller sees it.
    """

    def __init__(self, response: httpx2.Response, key: bytes) -> None:
        self.response = response
        self.status = response.status_code
        self.first: list[bytes] = []
        self.is_whole = False  # whether ``first`` is all of it
        self._hidden = key if self.status >= HTTPStatus.BAD_REQUEST else b""
        pieces = response.aiter_raw()
        self._pieces = _without(key, pieces) if self._hidden else pieces

    async def begin(self, limit: int) -> bytes:
        """Return at least ``limit`` bytes, or all; raises as httpx2."""
        size = 0
        async for data in self._pieces:
            self.first.append(data)
            size += len(data)
            if size >= limit:
                break
        else:
            self.is_whole = True
        return b"".join(self.first)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield all of it, as it comes, and close it."""
        try:
            for data in self.first:
                yield data
            async for data in self._pieces:
                yield data
        finally:
            await self.response.aclose()

    def passed(self, pieces: AsyncIterator[bytes] | None = None) -> Response:
        """Return the response to the caller, with status and headers."""
        response = _UpstreamResponse(pieces or self.pieces(), self.status)
        headers = [(name.lower(), value) for name, value in self.response.headers.raw]
        named = b",".join(value for name, value in headers if name == b"connection")
        left_out = {*_NOT_PASSED, *(name.strip().lower() for name in named.split(b","))}
        if self._hidden:
            left_out.add(b"content-length")
        response.raw_headers = [
            (name, value.replace(self._hidden, HIDDEN.encode()) if self._hidden else value)
            for name, value in headers
            if name not in left_out and not name.startswith(_OF_ORIGINS)
        ]
        return response


class _Proxy:
    def __init__(self, agent: MemoryAgent, config: ServeConfig, options: ProxyOptions) -> None:
        key = key_from_environment(ChatClient.api_key_env)
        self._key = key.encode()
        self._url = options.upstream.rstrip("/")
        self._model = options.upstream_model
        self._memory = ChatMemory(agent, max_text_tokens=config.max_text_tokens)
        self._http = open_client(
            {"Authorization": f"Bearer {key}"} if key else {}, timeout=options.upstream_seconds
        )

    def endpoint(self, form: ApiForm | None) -> Callable[[Request], Any]:
        """Return the handler of a route; without a form it has no memory."""

        async def handle(request: Request) -> Response:
            if not _is_proxied(request.scope["path"]):
                return await _refuse(request)
            try:
                packed = request.headers.get("content-encoding", "identity")
                if packed != "identity":
                    raise Problem(
                        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
                        f"a body with Content-Encoding {packed!r}",
                        "one that is not packed",
                    )
                if form is None:
                    return await self._pass(request)
                return await self._complete(form, request)
            except Problem as problem:
                return _error_response(problem)

        return handle

    async def _pass(self, request: Request) -> Response:
        names = [name for name in _SENT if name in request.headers]
        headers = {name: request.headers[name] for name in names}
        answer = await self._send(request, await request.body(), headers)
        return answer.passed()

    async def _complete(self, form: ApiForm, request: Request) -> Response:
        caller: Caller = request.scope[CALLER]
        data = await request.body()
        exchange, body, streams = await to_thread.run_sync(self._exchange, form, caller, data)
        answer = await self._ask(request, exchange, body)
        if answer.status != HTTPStatus.OK:
            return answer.passed()
        exchange.accepted()
        if streams:
            return answer.passed(self._stream(answer, exchange))
        await self._begin(answer, MAX_HEARD)
        is_remembered = await to_thread.run_sync(self._read, answer, exchange)
        response = answer.passed()
        if not is_remembered:
            response.headers["Memalpha-Remembered"] = "no"
        return response

    def _exchange(self, form: ApiForm, caller: Caller, data: bytes) -> tuple[Exchange, bytes, bool]:
        """Return the exchange that a request begins, its body for the upstream, and whether it asks
        for a stream.
        """
        if sum(map(data.count, _BEGINNINGS)) > _MOST_VALUES:
            raise Problem(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                "the values in the request's body",
                f"at most {_MOST_VALUES} commas and opening brackets",
            )
        try:
            body: JsonObject = json.loads(data)
            model = {"model": self._model} if self._model else {}
            exchange = Exchange(self._memory, form, {**body, **model}, caller.namespace)
            return exchange, _pack(exchange), bool(body.get("stream"))
        except InputError as error:  # of its messages
            raise problem_of(error) from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise Problem(
                HTTPStatus.BAD_REQUEST,
                f"the body is no chat request: {type(error).__name__}: {error}",
                "a JSON object with messages",
            ) from error
        except Exception as error:  # the store, the embedder
            raise problem_of(error) from error

    async def _ask(self, request: Request, exchange: Exchange, body: bytes) -> _Answer:
        """Send a request, once more if a system message was refused."""
        headers = {"content-type": "application/json"}
        answer = await self._send(request, body, headers)
        if answer.status not in REFUSALS:
            return answer
        refusal = (await self._begin(answer, _SHOWN)).decode(errors="replace")
        if not exchange.moves_block(answer.status, refusal):
            return answer
        body = await to_thread.run_sync(_pack, exchange)
        other = await self._send(request, body, headers)
        left = answer if other.status == HTTPStatus.OK else other
        await left.response.aclose()
        return other if left is answer else answer

    async def _send(self, request: Request, body: bytes, headers: dict[str, str]) -> _Answer:
        # as it was sent: the name of a model may hold a slash that is escaped
        path = (request.scope.get("raw_path") or request.scope["path"].encode()).decode("latin-1")
        query = request.scope["query_string"].decode("latin-1")
        url = f"{self._url}/{path.removeprefix(_ROOT).rstrip('/')}" + (f"?{query}" if query else "")
        method = request.method
        try:
            sent = self._http.build_request(method, url, content=body or None, headers=headers)
            return _Answer(await self._http.send(sent, stream=True), self._key)
        except httpx2.InvalidURL as error:
            raise Problem(HTTPStatus.BAD_REQUEST, f"the path or the query: {error}") from error
        except httpx2.HTTPError as error:
            raise self._failed(error) from error

    async def _begin(self, answer: _Answer, limit: int) -> bytes:
        try:
            return await answer.begin(limit)
        except httpx2.HTTPError as error:
            await answer.response.aclose()
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> Problem:
        _LOG.error("%s: %s: %s", self._url, type(error).__name__, error)
        what = "the model's server does not answer"
        return Problem(HTTPStatus.BAD_GATEWAY, what, fix="try again later")

    async def _stream(self, answer: _Answer, exchange: Exchange) -> AsyncIterator[bytes]:
        """Pass the pieces on as they come, and end when the turn is remembered; a failure of the
        server cuts the stream.
        """
        feed = _feeding(answer, exchange)
        try:
            async for data in answer.pieces():
                feed(data)
                if exchange.ended or exchange.problem:
                    await to_thread.run_sync(self._remember, exchange)
                yield data
            exchange.end()
            await to_thread.run_sync(self._remember, exchange)
        except httpx2.HTTPError as error:
            exchange.fail(f"{type(error).__name__}: {error}")
            await to_thread.run_sync(self._remember, exchange)
            raise
        finally:
            await answer.response.aclose()

    def _read(self, answer: _Answer, exchange: Exchange) -> bool:
        """Read and remember an answer that has come; whether all of the turn is remembered."""
        feed = _feeding(answer, exchange)
        for data in answer.first:
            feed(data)
        if answer.is_whole:
            exchange.end()
        else:
            exchange.fail(f"it is longer than {MAX_HEARD} bytes")
        return self._remember(exchange)

    def _remember(self, exchange: Exchange) -> bool:
        """Remember a turn; log what fails, and return whether nothing did."""
        try:
            left_out = exchange.remember()
        except Exception as error:  # noqa: BLE001 - the answer is not lost
            _LOG.error("a chat was not remembered: %s: %s", type(error).__name__, error)
            return False
        if left_out:
            _LOG.warning("%s: %s", self._url, left_out)
        return not left_out


async def _without(key: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces with a key blanked, also one that is cut between two; only what may begin the
    key waits for the next piece.
    """
    held = b""
    async for data in pieces:
        held = (held + data).replace(key, HIDDEN.encode())
        begun = next(size for size in reversed(range(len(key))) if held.endswith(key[:size]))
        end = len(held) - begun
        yield held[:end]
        held = held[end:]
    yield held


def _names_models(route: str) -> bool:
    """Whether a route is that of all models, or of one: no way to other routes."""
    root, _, name = route.partition("/")
    return route == _MODELS or (root == _MODELS and _UP.isdisjoint(unquote(name).split("/")))


def _pack(exchange: Exchange) -> bytes:
    return json.dumps(exchange.body, allow_nan=False).encode()


def _feeding(answer: _Answer, exchange: Exchange) -> Callable[[bytes], None]:
    """Return what feeds pieces of an answer to an exchange, unpacked to at most ``MAX_HEARD``."""
    packed = answer.response.headers.get("content-encoding", "").strip().lower()
    if packed in ("", "identity"):
        return exchange.feed
    if packed not in _GZIP:
        exchange.fail(f"it is packed ({packed!r:.40})")
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)

    def feed(data: bytes) -> None:
        if exchange.problem:
            return
        try:
            exchange.feed(unpack.decompress(data, MAX_HEARD))
        except zlib.error as error:
            exchange.fail(f"it cannot be unpacked: {error}")
        if unpack.unconsumed_tail:
            exchange.fail(f"it is longer than {MAX_HEARD} bytes")

    return feed
