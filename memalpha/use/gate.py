"""What every request passes before anything is done: where it comes from, who sends it, how much is under way, how long it is.

An ASGI middleware in front of the HTTP API and of MCP, so both have the same rules. What always holds: a request that is let in has
its caller in ``scope[CALLER]``, its body whole, and a place among the requests under way; any other is answered with a problem, and
nothing of it was read or done. ``/health``, ``/ready`` and the API's description need no token and no place.

A page in a browser can reach a server on loopback under a name of its own (DNS rebinding) or by posting blindly. So there ``Host``
must name this machine, and ``Origin``, which only browsers send, must be allowed everywhere.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memalpha.use.callers import HEADERS, Callers
from memalpha.use.problems import MEDIA_TYPE, RETRY_SECONDS, Problem, Refused
from memalpha.use.serve_config import ServeConfig, is_loopback

CALLER = "memalpha.caller"
"""Key of an ASGI scope that holds the ``Caller``."""
_DECIDING = ("Host", "Origin", "Authorization", *HEADERS.values())
OPEN = frozenset({"/health", "/ready", "/openapi.json"})


class Gate:
    """Lets requests through, or says why not.

    Args:
        app: What stands behind it.
        config: The limits.
        callers: Tells who sends a request.
    """

    def __init__(self, app: ASGIApp, config: ServeConfig, callers: Callers) -> None:
        self._app, self._config, self._callers = app, config, callers
        self._under_way: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one connection event."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            _check_once(headers)
            self._check_place(headers)
            if scope["path"] in OPEN:
                await self._app(scope, receive, send)
                return
            caller = self._callers.identify(headers)
            with self._admitted(caller.name):
                body = await self._body(headers, receive)
                await self._app({**scope, CALLER: caller}, _replay(body, receive), send)
        except Refused as refused:
            await problem_response(refused.problem)(scope, receive, send)

    # -------------------------------------------------------------------------------------------- where from
    def _check_place(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        name = _name(f"//{host}")
        allowed = {self._config.host.lower(), *self._config.hosts}
        if (
            (self._config.loopback or self._config.hosts)
            and name not in allowed
            and not (self._config.loopback and is_loopback(name))
        ):
            raise Refused(Problem(HTTPStatus.MISDIRECTED_REQUEST, f"this server is not {host!r}", fix="--allow-host NAME"))
        local_page = self._config.loopback and is_loopback(_name(origin or ""))
        if origin is not None and origin not in self._config.origins and not local_page:
            raise Refused(Problem(HTTPStatus.FORBIDDEN, f"pages of {origin!r} may not call this", fix="--allow-origin ORIGIN"))

    # -------------------------------------------------------------------------------------------- how much
    @contextmanager
    def _admitted(self, name: str) -> Iterator[None]:
        again = {"Retry-After": str(RETRY_SECONDS)}
        if self._under_way.total() >= self._config.max_requests:
            what = f"{self._config.max_requests} requests are under way"
            raise Refused(Problem(HTTPStatus.SERVICE_UNAVAILABLE, what, fix="try again later", headers=again))
        if self._callers.by_token and self._under_way[name] >= self._config.max_requests_per_token:
            what = f"{self._config.max_requests_per_token} requests of {name} are under way"
            raise Refused(Problem(HTTPStatus.TOO_MANY_REQUESTS, what, fix="wait for their answers", headers=again))
        self._under_way[name] += 1
        try:
            yield
        finally:
            self._under_way[name] -= 1
            if not self._under_way[name]:
                del self._under_way[name]

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._config.max_body_bytes
        too_long = Refused(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "the request's body", f"at most {limit} bytes"))
        declared = headers.get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            raise too_long
        body = bytearray()
        try:
            async with asyncio.timeout(self._config.body_seconds):
                while True:
                    message = await receive()
                    body += message.get("body", b"")
                    if len(body) > limit:
                        raise too_long
                    if message["type"] != "http.request" or not message.get("more_body", False):
                        return bytes(body)
        except TimeoutError as error:
            what = f"the request's body took more than {self._config.body_seconds} s to arrive"
            raise Refused(Problem(HTTPStatus.REQUEST_TIMEOUT, what)) from error


def problem_response(problem: Problem) -> JSONResponse:
    """Return the HTTP response that tells a problem."""
    return JSONResponse(problem.body(), problem.status, headers=dict(problem.headers or {}), media_type=MEDIA_TYPE)


def _check_once(headers: Headers) -> None:
    """Refuse a header that decides who or where and comes twice: something on the way may have read the other one."""
    for name in _DECIDING:
        if len(headers.getlist(name)) > 1:
            raise Refused(Problem(HTTPStatus.BAD_REQUEST, f"the header {name} comes twice", "once"))


def _name(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _replay(body: bytes, receive: Receive) -> Receive:
    """Give the body in one message, then what follows on it."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


__all__ = ["CALLER", "Gate", "problem_response"]
