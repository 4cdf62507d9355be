"""ASGI middleware in front of the HTTP API and MCP: checks host, origin, token, load and body size of each request.

A request that passes has its caller in ``scope[CALLER]`` and its whole body; any other gets a problem response and is not
processed. ``/health``, ``/ready`` and ``/openapi.json`` need no token. Against DNS rebinding and blind posts from a browser,
``Host`` must name this machine on loopback, and ``Origin`` must be allowed. The MCP SDK's own check is off: it covers only its own
path.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memalpha.use.access import HEADERS, Callers, ServeConfig
from memalpha.use.messages import Problem, Refused

CALLER = "memalpha.caller"
"""Key of the ``Caller`` in an ASGI scope."""
_ONCE = ("Host", "Origin", "Authorization", *HEADERS.values())
_OPEN = frozenset({"/health", "/ready", "/openapi.json"})
_LATER = {"Retry-After": "1"}
_ALWAYS = {401: {"WWW-Authenticate": "Bearer"}, 429: _LATER, 503: _LATER}


class Gate:
    """Passes requests to an application, or answers with the reason why not."""

    def __init__(self, app: ASGIApp, config: ServeConfig, callers: Callers) -> None:
        self._app, self._config, self._callers = app, config, callers
        self._active: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        if "content-length" in headers and "transfer-encoding" in headers:  # request smuggling
            problem = Problem(HTTPStatus.BAD_REQUEST, "Content-Length beside Transfer-Encoding", "one of the two")
            await problem_response(problem, {"Connection": "close"})(scope, receive, send)
            return
        try:
            self._check_place(headers)
            if scope["path"] in _OPEN:
                await self._app(scope, receive, send)
                return
            caller = self._callers.identify(headers)
            with self._admitted(caller.name):
                body = await self._body(headers, receive)
                await self._app({**scope, CALLER: caller}, _replay(body, receive), send)
        except Refused as refused:
            await problem_response(refused.problem)(scope, receive, send)

    def _check_place(self, headers: Headers) -> None:
        for name in _ONCE:  # a proxy may have read the other one
            if len(headers.getlist(name)) > 1:
                raise Refused(Problem(HTTPStatus.BAD_REQUEST, f"the header {name} comes twice", "once"))
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self._config.knows_host(host):
            raise Refused(Problem(HTTPStatus.MISDIRECTED_REQUEST, f"this server is not {host!r}", fix="--allow-host NAME"))
        if origin is not None and not self._config.knows_origin(origin):
            raise Refused(Problem(HTTPStatus.FORBIDDEN, f"pages of {origin!r} may not call this", fix="--allow-origin ORIGIN"))

    @contextmanager
    def _admitted(self, name: str) -> Iterator[None]:
        if self._active.total() >= (most := self._config.max_requests):
            raise Refused(Problem(HTTPStatus.SERVICE_UNAVAILABLE, f"{most} requests are under way", fix="try again later"))
        if self._callers.by_token and self._active[name] >= (most := self._config.max_requests_per_token):
            what = f"{most} requests of {name} are under way"
            raise Refused(Problem(HTTPStatus.TOO_MANY_REQUESTS, what, fix="wait for their answers"))
        self._active[name] += 1
        try:
            yield
        finally:
            self._active[name] -= 1
            self._active += Counter()  # drops names with a count of zero

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit, seconds = self._config.max_body_bytes, self._config.body_seconds
        too_long = Refused(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request's body", f"at most {limit} bytes"))
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_long
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            what = f"the request's body took more than {seconds} s to arrive"
            raise Refused(Problem(HTTPStatus.REQUEST_TIMEOUT, what)) from error


def problem_response(problem: Problem, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """Return the HTTP response for a problem."""
    headers = {**_ALWAYS.get(problem.status, {}), **(headers or {})}
    return JSONResponse(problem.body(), problem.status, headers, media_type="application/problem+json")


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a receiver that gives the body in one message."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


__all__ = ["CALLER", "Gate", "problem_response"]
