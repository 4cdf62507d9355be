"""A process that serves an agent: the gate, then the HTTP API and MCP; or MCP over stdio.

A server that others can reach needs tokens. On SIGTERM or Ctrl-C it takes no new requests, finishes
running ones within ``stop_seconds`` and closes the store; requests that are not done by then get
503, and the process ends amid them: a write is whole or absent. Every answered write is on disk. A
request takes a place once its body is there. Slow connections are left to a proxy in front: this
process bounds requests, and the bytes of bodies that still arrive, not connections.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from fastapi import FastAPI
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memalpha.config import Options
from memalpha.errors import InputError
from memalpha.use.access import API_KEY, CALLER, HEADERS, Callers, Problem, ServeConfig
from memalpha.use.agent import MemoryAgent
from memalpha.use.api import PAGE, build_api, build_mcp, respond
from memalpha.use.operations import Endpoints
from memalpha.use.routes import Routes, build_routes

_ONCE = ("Host", "Origin", "Authorization", API_KEY, *HEADERS.values())
_OPEN = frozenset({"/health", "/ready", "/openapi.json", *PAGE})  # need no token
_IDLE_SECONDS = 5  # of a connection between two requests
_LAST_SECONDS = 0.5  # for the answers to requests that are cut off when the server stops
_UPLOADS = 8  # bodies of the longest kind that may arrive at once
_METHODS = "GET, POST, PUT, PATCH, DELETE"
_ASKED = f"Authorization, Content-Type, {API_KEY}, Mcp-Session-Id, Mcp-Protocol-Version"
_EXPOSED = (
    "Mcp-Session-Id, Mcp-Protocol-Version, Memalpha-Remembered, Retry-After, WWW-Authenticate"
)
_PREFLIGHT_SECONDS = 600  # that a browser may keep the answer to a preflight


class Gate:
    """ASGI middleware: checks host and origin (DNS rebinding, blind posts), token, load and body
    size of each request, and lets pages of the allowed origins read the answers (CORS).

    A request that passes has its caller in ``scope[CALLER]`` and its whole body. ``active`` is the
    number of those under way.
    """

    def __init__(
        self, app: ASGIApp, config: ServeConfig, callers: Callers, routes: Sequence[Routes] = ()
    ) -> None:
        self._app = app
        self._config = config
        self._callers = callers
        self._routes = routes
        self.active = 0
        self._arriving: dict[asyncio.Timeout, int] = {}  # bytes of bodies, the oldest first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # clients are given /mcp and /mcp/
        scope = {**scope, "path": scope["path"].removesuffix("/") or "/"}
        headers = Headers(scope=scope)
        origin = headers.get("origin", "")
        send = _with_cors(send, origin if self._config.knows_origin(origin) else "")
        routes = next((each for each in self._routes if each.owns(scope["path"])), None)
        most = routes.max_body_bytes if routes else self._config.max_body_bytes
        try:
            self._check_place(headers)
            if origin and scope["method"] == "OPTIONS":
                await _preflight(headers)(scope, receive, send)
            elif scope["path"] in _OPEN:
                await self._app(scope, receive, send)
            elif routes and routes.names_user:
                self._callers.granted(headers)
                await self._admitted(scope, receive, send, most)
            else:
                caller = self._callers.identify(headers)
                await self._admitted({**scope, CALLER: caller}, receive, send, most)
        except ClientDisconnect:
            pass
        except Problem as problem:
            response = routes.respond(problem) if routes else respond(problem)
            await response(scope, receive, send)

    async def _admitted(self, scope: Scope, receive: Receive, send: Send, most: int) -> None:
        body = await self._body(scope, receive, most)
        if self.active >= self._config.max_requests:
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE,
                f"the server is busy with {self.active} requests",
                fix="try again later",
            )
        self.active += 1
        first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        begun = cut = False

        async def replay() -> Message:
            return first.pop() if first else await receive()

        async def answer(message: Message) -> None:
            nonlocal begun
            if not cut:
                begun = True
                await send(message)

        task = asyncio.ensure_future(self._app(scope, replay, answer))
        task.add_done_callback(self._end)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:  # the server stops; the thread at work cannot be stopped
            cut = True
            if begun:
                raise
            raise Problem(
                HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping", fix="try again later"
            ) from None

    def _end(self, task: asyncio.Future[None]) -> None:
        self.active -= 1
        if not task.cancelled():
            task.exception()  # asyncio logs one that nobody asked for

    def _check_place(self, headers: Headers) -> None:
        if {"content-length", "transfer-encoding"} <= set(headers.keys()):  # request smuggling
            raise Problem(
                HTTPStatus.BAD_REQUEST, "Content-Length beside Transfer-Encoding", "one of the two"
            )
        for name in _ONCE:  # a proxy may have read the other one
            if len(headers.getlist(name)) > 1:
                raise Problem(HTTPStatus.BAD_REQUEST, f"the header {name} comes twice", "once")
        host = headers.get("host", "")
        origin = headers.get("origin")
        if not self._config.knows_host(host):
            raise Problem(
                HTTPStatus.MISDIRECTED_REQUEST,
                f"this server is not {host!r}",
                fix="start the server with --allow-host NAME",
            )
        if origin is not None and not self._config.knows_origin(origin):
            raise Problem(
                HTTPStatus.FORBIDDEN,
                f"pages of {origin!r} may not call this server",
                fix="start the server with --allow-origin ORIGIN",
            )

    async def _body(self, scope: Scope, receive: Receive, most: int) -> bytes:
        body = bytearray()
        declared = Headers(scope=scope).get("content-length", "0")
        too_long = Problem(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request's body", f"at most {most} bytes"
        )
        if not declared.isdecimal() or int(declared) > most:
            raise too_long
        limit = asyncio.timeout(self._config.body_seconds)
        try:
            async with limit:
                async for part in Request(scope, receive).stream():
                    body += part
                    if len(body) > most:
                        raise too_long
                    self._arriving[limit] = len(body)
                    self._make_room()
        except TimeoutError as error:
            raise Problem(
                HTTPStatus.REQUEST_TIMEOUT,
                f"the request's body took more than {self._config.body_seconds} s to arrive, or "
                "too many others arrived meanwhile",
            ) from error
        finally:
            self._arriving.pop(limit, None)
        return bytes(body)

    def _make_room(self) -> None:
        """Give up the bodies that began to arrive first while all are more than places hold."""
        config = self._config
        longest = max((routes.max_body_bytes for routes in self._routes), default=0)
        long = min(_UPLOADS, config.max_requests) * longest
        most = max(config.max_requests * config.max_body_bytes, long)
        while sum(self._arriving.values()) > most:
            oldest = next(iter(self._arriving))
            del self._arriving[oldest]
            oldest.reschedule(asyncio.get_running_loop().time())


def _with_cors(send: Send, origin: str) -> Send:
    """Return ``send`` with the headers that let pages of an origin, if any, read the answer."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = [("Vary", "Origin")]
            if origin:
                given += [("Access-Control-Allow-Origin", origin)]
                given += [("Access-Control-Expose-Headers", _EXPOSED)]
            raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in given]
            message = {**message, "headers": [*message.get("headers", ()), *raw]}
        await send(message)

    return answer


def _preflight(headers: Headers) -> Response:
    """The answer to a browser that asks whether a page may send a request; what the page asks for
    it may send, as the request is checked when it comes.
    """
    given = {
        "Access-Control-Allow-Methods": _METHODS,
        "Access-Control-Allow-Headers": headers.get("access-control-request-headers", _ASKED),
        "Access-Control-Max-Age": str(_PREFLIGHT_SECONDS),
    }
    if headers.get("access-control-request-private-network") == "true":
        given["Access-Control-Allow-Private-Network"] = "true"
    return Response(status_code=HTTPStatus.NO_CONTENT, headers=given)


def check_reach(config: ServeConfig, callers: Callers) -> None:
    """Raise InputError if other machines could reach a server without a token."""
    if not config.loopback and callers.local is not None:
        raise InputError(
            f"a server at {config.host} without tokens could be used by anybody on the network",
            expected="tokens, unless the server listens to this machine alone",
            fix="give --tokens FILE, or --host 127.0.0.1",
        )


def build_app(
    agent: MemoryAgent,
    config: ServeConfig,
    callers: Callers,
    on_ready: Callable[[], None] = lambda: None,
    options: Sequence[Options] = (),
) -> Gate:
    """Return the application, which closes the agent when it ends; InputError if others could reach
    it without a token. ``options`` are those of the routes that other packages add.
    """
    check_reach(config, callers)
    endpoints = Endpoints(agent, config.max_text_tokens)
    # no sessions, no open streams
    mcp = StreamableHTTPSessionManager(build_mcp(endpoints), json_response=True, stateless=True)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        threads = anyio.to_thread.current_default_thread_limiter()
        threads.total_tokens = config.max_requests + 1  # one for /ready
        async with mcp.run():
            on_ready()
            yield
        await anyio.to_thread.run_sync(agent.close)  # waits for what is under way

    app = build_api(endpoints, lifespan)
    mcp_app: Any = StreamableHTTPASGIApp(mcp)
    app.add_route("/mcp", mcp_app, methods=["POST"], include_in_schema=False)
    routes = build_routes(endpoints, callers, config, options)
    for added in routes:
        added.add_to(app)
    return Gate(app, config, callers, routes)


def serve_http(
    agent: MemoryAgent,
    config: ServeConfig,
    callers: Callers,
    on_ready: Callable[[str], None] = lambda url: None,
    options: Sequence[Options] = (),
) -> None:
    """Serve an agent until stopped, then close it; ``on_ready`` gets the URL. InputError for no
    tokens or a bad address.
    """
    is_ipv6 = ":" in config.host
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    try:
        sock = socket.create_server((config.host, config.port), family=family)
        # asyncio sets it only on sockets of its own
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as error:
        raise InputError(
            f"the server cannot listen at {config.host}:{config.port}: {error.strerror}",
            expected="a free port of this machine",
            fix="give --port 0, which takes a free port",
        ) from error
    host = f"[{config.host}]" if is_ipv6 else config.host
    url = f"http://{host}:{sock.getsockname()[1]}"
    gate = build_app(agent, config, callers, lambda: on_ready(url), options)
    settings = uvicorn.Config(
        gate,
        http="h11",
        lifespan="on",
        log_level="error",  # clients could fill the log with its warnings
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=config.stop_seconds,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again after it has stopped
    _Server(settings, gate).run(sockets=[sock])


class _Server(uvicorn.Server):
    """Uvicorn's server, which ends in time also if a thread is at work that cannot be stopped."""

    def __init__(self, settings: uvicorn.Config, gate: Gate) -> None:
        super().__init__(settings)
        self._gate = gate

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop; the process ends here if requests are still under way after their time."""
        stopping = asyncio.ensure_future(super().shutdown(sockets))
        wait = (self.config.timeout_graceful_shutdown or 0) + _LAST_SECONDS
        await asyncio.wait({stopping}, timeout=wait)
        if self._gate.active:
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # an open transaction is rolled back, as after a kill
        await stopping


def serve_stdio(agent: MemoryAgent, config: ServeConfig, callers: Callers) -> None:
    """Serve one MCP client over standard input and output, with the memory of the local caller."""
    mcp = build_mcp(Endpoints(agent, config.max_text_tokens), callers.identify({}))

    async def run() -> None:
        async with stdio_server() as (reading, writing):
            await mcp.run(reading, writing, mcp.create_initialization_options())

    with agent:
        anyio.run(run)
