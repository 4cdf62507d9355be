"""A process that serves an agent: the gate, then the HTTP API and MCP; or MCP over stdio.

A server that others can reach needs tokens. On SIGTERM or Ctrl-C it takes no new requests, finishes running ones within
``stop_seconds`` and closes the store. Every answered write is on disk.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import h11
import uvicorn
from fastapi import FastAPI
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from memalpha.errors import InputError
from memalpha.use.access import Caller, Callers, Grant, ServeConfig
from memalpha.use.agent import AsyncMemoryAgent, MemoryAgent
from memalpha.use.gate import Gate
from memalpha.use.http_api import build_api
from memalpha.use.mcp_tools import build_mcp
from memalpha.use.operations import Operations

log = logging.getLogger(__name__)

_CONNECTIONS_PER_REQUEST = 8
_LEAST_CONNECTIONS = 512
"""Minimum of the limit on open connections."""
_BACKLOG = 128
"""Connections that the kernel queues."""
_IDLE_SECONDS = 5
"""Time limit of an idle connection, and of a request's header."""
_UNREAD_SECONDS = 30
"""Time limit for a client that does not read its answer."""
_LOG_SECONDS = 60
"""Interval between log lines about missing file descriptors."""


class _Connection(H11Protocol):
    """A connection with time limits.

    In addition to uvicorn's limit, it closes a connection without a request or a complete header in time, with body data after the
    answer, or whose client does not read. At the maximum number, it closes the one idle longest, never one with a running request.
    """

    _since = 0.0
    _sending: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(_IDLE_SECONDS, self.timeout_keep_alive_handler)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            ours = [each for each in self.connections if isinstance(each, _Connection)]
            waiting = [each for each in ours if each.cycle is None or each.cycle.response_complete]
            oldest = min(waiting, key=lambda each: each._since)  # this one waits too
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for timer in (self._sending, self._unread):
            if timer:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE or self.conn.our_state is h11.DONE:  # incomplete header, or body after the answer
            self._sending = self._sending or self.loop.call_later(_IDLE_SECONDS, self.transport.abort)
        elif self._sending:
            self._sending.cancel()
            self._sending = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)  # closing waits until the client has read everything

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(_UNREAD_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread:
            self._unread.cancel()


def check_reach(config: ServeConfig, callers: Callers) -> None:
    """Raise InputError if others could reach a server without a token."""
    if not config.loopback and not callers.by_token:
        what = f"a server at {config.host} that anybody on the network could use"
        fix = "--tokens FILE (memalpha token NAME --user USER makes one), or --host 127.0.0.1"
        raise InputError(what, expected="tokens, off loopback", fix=fix)


def build_app(
    agent: AsyncMemoryAgent, config: ServeConfig, callers: Callers, on_ready: Callable[[], None] = lambda: None
) -> ASGIApp:
    """Return the application, which closes the agent when it ends; InputError if others could reach it without a token."""
    check_reach(config, callers)
    operations = Operations(agent, config)
    mcp = build_mcp(operations)
    mcp.streamable_http_app(
        stateless_http=True,  # no sessions, no open streams
        json_response=True,
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the gate checks all paths
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        asyncio.get_running_loop().set_exception_handler(_log_seldom())
        async with mcp.session_manager.run():
            on_ready()
            yield
        await agent.aclose()

    app = build_api(operations, lifespan)
    app.add_route("/mcp", StreamableHTTPASGIApp(mcp.session_manager), methods=["POST"], include_in_schema=False)  # type: ignore[arg-type]
    return Gate(app, config, callers)


def _log_seldom() -> Callable[[asyncio.AbstractEventLoop, dict[str, Any]], None]:
    """Return an exception handler that logs a lack of file descriptors at most once a minute."""
    said = -float("inf")

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said
        if "out of system resource" not in context.get("message", ""):
            loop.default_exception_handler(context)
        elif loop.time() - said > _LOG_SECONDS:
            said = loop.time()
            log.error("no connection can be taken: %s", context.get("exception"))

    return handle


def serve_http(
    agent: MemoryAgent, config: ServeConfig, callers: Callers, on_ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve an agent until stopped, then close it; ``on_ready`` gets the URL. InputError for no tokens or a bad address."""
    connections = _most_connections(config)
    sock = _listening(config)
    port = sock.getsockname()[1]
    url = f"http://{f'[{config.host}]' if ':' in config.host else config.host}:{port}"
    app = build_app(AsyncMemoryAgent(agent, config.max_requests + 1), config, callers, lambda: on_ready(url))
    settings = uvicorn.Config(
        app,
        http=_Connection,
        lifespan="on",
        log_level="error",  # clients could fill the log with its warnings
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=connections,
        backlog=min(_BACKLOG, connections // 4 + 1),
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=config.stop_seconds,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again after it has stopped
    uvicorn.Server(settings).run(sockets=[sock])


def _most_connections(config: ServeConfig) -> int:
    """Return the limit on open connections: at most half of the file descriptors."""
    wanted = max(_LEAST_CONNECTIONS, _CONNECTIONS_PER_REQUEST * config.max_requests)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < 2 * wanted:
        soft = 2 * wanted if hard == resource.RLIM_INFINITY else min(2 * wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, soft // 2)


def _listening(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family)
    except OSError as error:
        what, fix = f"{config.host}:{config.port} cannot be listened at: {error.strerror}", "--port with another number, or 0"
        raise InputError(what, expected="a free port of this machine", fix=fix) from error


def serve_stdio(agent: MemoryAgent, config: ServeConfig, grant: Grant) -> None:
    """Serve one MCP client over standard input and output, with the memory of the grant's user."""
    caller = Caller(grant.name, grant.namespace({}))

    async def run() -> None:
        async with AsyncMemoryAgent(agent, config.max_requests) as served:
            await build_mcp(Operations(served, config), caller).run_stdio_async()

    anyio.run(run)


__all__ = ["build_app", "check_reach", "serve_http", "serve_stdio"]
