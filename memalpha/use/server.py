"""One process that serves an agent: the gate in front, the HTTP API and MCP behind it; or MCP over stdio.

What always holds: a server that others can reach does not start without tokens. Told to stop (SIGTERM, Ctrl-C) it takes nothing
new, answers what is under way for at most ``stop_seconds``, waits for threads that write, and closes the store. Whatever ends it,
each write that was answered is on disk.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
import uvicorn
from fastapi import FastAPI
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from memalpha.errors import InputError
from memalpha.use.agent import MemoryAgent
from memalpha.use.aio import AsyncMemoryAgent
from memalpha.use.callers import Caller, Callers, Grant
from memalpha.use.gate import Gate
from memalpha.use.http_api import build_api
from memalpha.use.mcp_tools import build_mcp
from memalpha.use.operations import Operations
from memalpha.use.serve_config import ServeConfig

MCP_PATH = "/mcp"
_CONNECTIONS_PER_REQUEST = 8
"""Open connections for each request that may be under way; beyond them it is the HTTP library that answers."""
_LEAST_CONNECTIONS = 512
"""Open connections that are taken however few requests may be under way: most of them wait."""
_IDLE_SECONDS = 5
"""Seconds after which a connection that says nothing is closed."""


class _Connection(H11Protocol):
    """A connection that is closed if nothing comes, also before its first request, and not only between two."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)


class _Mcp:
    """MCP's streamable HTTP, each request for itself: no sessions to keep, no streams that stay open."""

    def __init__(self, operations: Operations) -> None:
        server = build_mcp(operations)
        server.streamable_http_app(
            stateless_http=True,
            json_response=True,
            transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the gate's, for all paths
        )
        self.manager = server.session_manager

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.manager.handle_request(scope, receive, send)


def check_reach(config: ServeConfig, callers: Callers) -> None:
    """Raise InputError if others could reach a server without a token."""
    if not config.loopback and not callers.by_token:
        raise InputError(
            f"a server at {config.host} that anybody on the network could use",
            expected="tokens, off loopback",
            fix="--tokens FILE (memalpha token NAME --user USER makes one), or --host 127.0.0.1",
        )


def build_app(
    agent: AsyncMemoryAgent, config: ServeConfig, callers: Callers, on_ready: Callable[[], None] = lambda: None
) -> ASGIApp:
    """Return the whole application; it closes the agent when it ends.

    Args:
        agent: What is served.
        config: Limits.
        callers: Tells who sends a request.
        on_ready: Called when requests are taken.

    Raises:
        InputError: If others could reach it without a token.
    """
    check_reach(config, callers)
    operations = Operations(agent, config)
    mcp = _Mcp(operations)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with mcp.manager.run():
            on_ready()
            yield
        await agent.aclose()

    app = build_api(operations, lifespan)
    app.add_route(MCP_PATH, mcp, methods=["POST"], include_in_schema=False)  # type: ignore[arg-type]
    return Gate(app, config, callers)


def serve_http(
    agent: MemoryAgent, config: ServeConfig, callers: Callers, on_ready: Callable[[str], None] = lambda url: None
) -> None:
    """Serve until told to stop.

    Args:
        agent: What is served; closed at the end.
        config: Where and how much.
        callers: Tells who sends a request.
        on_ready: Called with the server's URL when requests are taken.

    Raises:
        InputError: If others could reach it without a token, or the address cannot be used.
    """
    sock = _listening(config)
    port = sock.getsockname()[1]
    url = f"http://{f'[{config.host}]' if ':' in config.host else config.host}:{port}"
    app = build_app(AsyncMemoryAgent(agent, config.max_requests + 1), config, callers, lambda: on_ready(url))
    settings = uvicorn.Config(
        app,
        http=_Connection,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=max(_LEAST_CONNECTIONS, _CONNECTIONS_PER_REQUEST * config.max_requests),
        timeout_keep_alive=_IDLE_SECONDS,
        timeout_graceful_shutdown=config.stop_seconds,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises them again once it has stopped; stopping was the answer
    uvicorn.Server(settings).run(sockets=[sock])


def _listening(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    try:
        return socket.create_server((config.host, config.port), family=family, backlog=1024)
    except OSError as error:
        raise InputError(
            f"{config.host}:{config.port} cannot be listened at: {error.strerror}",
            expected="a free port of this machine",
            fix="--port with another number, or 0 for any free one",
        ) from error


def serve_stdio(agent: MemoryAgent, config: ServeConfig, grant: Grant) -> None:
    """Serve one MCP client over standard input and output until it closes them.

    Args:
        agent: What is served; closed at the end.
        config: The limit on texts.
        grant: Whose memory; its user has to be one.
    """
    caller = Caller(grant.name, grant.namespace({}))

    async def run() -> None:
        async with AsyncMemoryAgent(agent, config.max_requests) as served:
            await build_mcp(Operations(served, config), caller).run_stdio_async()

    anyio.run(run)


__all__ = ["MCP_PATH", "build_app", "check_reach", "serve_http", "serve_stdio"]
