"""What the clients of chat servers and memory servers share: requests that are tried again.

Timeouts, lost connections, 408, 429, 5xx and malformed or huge replies are repeated with backoff,
not before ``Retry-After``; at last they are a ServiceError. A wrong key or address and redirects
raise InputError. The key comes from an environment variable, is in no message and no ``repr``, and
goes to no other host. Ctrl-C ends a call at once.

A client's connections, and the thread in which they are used, last as long as the client: another
call uses them again. No cookie is kept.
"""

import asyncio
import json
import logging
import os
import random
import re
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from memalpha.errors import InputError, ServiceError
from memalpha.types import JsonMapping

if TYPE_CHECKING:
    import httpx2

_logger = logging.getLogger(__name__)

HIDDEN = "***"
"""What stands in a message in place of a secret."""

_RETRIED = {408, 429}
_SECRET_IN_URL = re.compile(r"(?<=//).*@|(?<=[?#]).+", re.DOTALL)
_URL = re.compile(
    r"https?://([\w.-]+|\[[0-9a-f:.]+\])(:[1-9][0-9]{0,4})?(/[!-~]*)?", re.ASCII | re.IGNORECASE
)
_SECONDS = re.compile(r"\s*\d+(\.\d*)?\s*")
_SHOWN = 300  # characters of a server's message that an error shows
_MAX_BODY = 2**24  # longest reply in bytes
_WARN_EVERY = 10.0  # seconds between warnings about one server
_LEAST_SECRET = 6  # characters; shorter texts stand anywhere
_IDLE = 4.0  # seconds that an unused connection is kept: uvicorn and llama.cpp close it after 5

_Result = TypeVar("_Result")
_Shape = TypeVar("_Shape", bound=BaseModel)


class Transient(Exception):
    """A failure that may pass; the server asks for ``retry_after`` seconds before the next try."""

    retry_after = 0.0


class RequestRefused(ServiceError):
    """A server refused a request because of its content, with a ``status`` and a ``reply``."""

    status = 0
    reply = b""


class HTTPClient:
    """Sends requests to one server; subclasses say which, and are usable from several threads.

    Attributes:
        base_url: The URL in front of every route, e.g. ``http://localhost:8000/v1``.
        api_key_env: This environment variable holds the key; if it is empty, no key is sent.
        timeout: One attempt may take this many seconds.
        retries: A failed attempt is repeated at most this many times.
        backoff: The client waits this many seconds before the first repetition. Each further wait
            is twice as long, times a random factor from 0.5 to 1.
        max_wait: The client waits at most this many seconds between attempts; a request whose
            ``Retry-After`` is longer fails.
        key_header: The header that holds the key.
        key_format: The value of that header, with ``{}`` for the key.
        wrong_setup: Statuses that mean a wrong key or address, with what a message adds.
    """

    base_url: str
    api_key_env: str
    timeout: float
    retries: int
    backoff: float
    max_wait = 60.0
    key_header = "Authorization"
    key_format = "Bearer {}"
    wrong_setup: ClassVar[Mapping[int, str]] = {
        401: "the server does not accept the key",
        403: "the key may not do this",
        404: "no such URL",
    }
    _key = ""
    _quiet_until = 0.0
    _connections: "_Connections | None" = None

    def check(self) -> None:
        """Check the URL, and read the key from the environment."""
        check_url(self.base_url)
        self._key = key_from_environment(self.api_key_env)

    def __getstate__(self) -> dict[str, Any]:
        """A copy has connections of its own."""
        return {name: value for name, value in vars(self).items() if name != "_connections"}

    def url(self, route: str) -> str:
        """Return the URL of a route."""
        return f"{self.base_url.rstrip('/')}/{route.lstrip('/')}"

    def describe(self, route: str) -> str:
        """Return how an error names what was asked."""
        return self.url(route)

    def advice(self) -> str:
        """Return how a wrong setup is mended."""
        return f"check these and ${self.api_key_env}"

    def secrets(self) -> Iterator[str]:
        """Yield what no message shows."""
        yield self._key

    def hidden(self, text: str) -> str:
        """Return a message without the secrets, which a server may echo."""
        for secret in self.secrets():
            text = text.replace(secret, HIDDEN) if len(secret) >= _LEAST_SECRET else text
        return text

    def run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        """Await a coroutine of requests in the thread of the connections, and return its result."""
        connections = self._open()
        future = asyncio.run_coroutine_threadsafe(work(), connections.loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C among them
            future.cancel()
            raise

    def _open(self) -> "_Connections":
        with _OPENING:
            connections = self._connections
            if connections is None or connections.process != os.getpid():  # those before a fork
                key = {self.key_header: self.key_format.format(self._key)} if self._key else {}
                connections = _Connections(key)
                weakref.finalize(self, connections.close).atexit = False
                self._connections = connections
            return connections

    async def run_all(
        self, work: Callable[[int], Awaitable[_Result]], size: int, concurrency: int
    ) -> list[_Result | ServiceError]:
        """Await ``work`` of 0 to ``size`` - 1, so many at once; ServiceErrors are results.

        After ``max(8, 2 * concurrency)`` failures in a row the server counts as down.
        """
        outcomes: dict[int, _Result | ServiceError] = {}
        waiting = iter(random.Random(size).sample(range(size), size))
        down = max(8, 2 * concurrency)
        failures = 0  # in a row
        last = ""  # of them

        async def ask() -> None:
            nonlocal failures, last
            for index in waiting:
                if failures >= down:
                    outcomes[index] = ServiceError(
                        f"{last}; {failures} requests in a row failed, so the server seems to "
                        "be down, and this request was not sent"
                    )
                    continue
                try:
                    outcomes[index] = await work(index)
                    failures = 0
                except ServiceError as error:  # a refusal means that the server is up
                    outcomes[index] = error
                    if isinstance(error.__cause__, Transient):
                        failures += 1
                        last = str(error)

        tasks = [asyncio.create_task(ask()) for _ in range(min(size, concurrency))]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return [outcomes[index] for index in range(size)]

    async def with_retries(self, route: str, attempt: Callable[[], Awaitable[_Result]]) -> _Result:
        """Return what an attempt gives, repeated while it fails in passing."""
        url = self.url(route)
        step = self.backoff
        number = 0
        while True:
            number += 1
            try:
                return await attempt()
            except Transient as failure:
                wait = max(step * random.Random().uniform(0.5, 1.0), failure.retry_after)
                step = min(self.max_wait, 2 * step)
                if number > self.retries or wait > self.max_wait:
                    asks = f"; it asks to wait {wait:.0f} s" if wait > self.max_wait else ""
                    message = f"{url}: {failure} (after {number} attempts{asks})"
                    raise ServiceError(self.hidden(message)) from failure
                if time.monotonic() >= self._quiet_until:
                    self._quiet_until = time.monotonic() + _WARN_EVERY
                    _logger.warning(
                        "%s; attempt %d follows in %.1f s",
                        self.hidden(f"{url}: {failure}"),
                        number + 1,
                        wait,
                    )
                await asyncio.sleep(wait)

    async def fetch(
        self,
        method: str,
        route: str,
        body: JsonMapping | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> bytes:
        """Send one request in at most ``timeout`` seconds; the bytes of a reply of success.

        Transient, RequestRefused, or InputError for a wrong setup.
        """
        import httpx2

        http = self._open().http
        raw = b""
        try:
            async with (
                asyncio.timeout(self.timeout),
                http.stream(method, self.url(route), json=body, params=query) as response,
            ):
                async for piece in response.aiter_raw():  # packed, a few bytes could be gigabytes
                    raw += piece
                    if len(raw) > _MAX_BODY:
                        raise Transient(f"the reply is longer than {_MAX_BODY} bytes")
        except TimeoutError as error:
            raise Transient(f"timed out: the reply did not end in {self.timeout:g} s") from error
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise Transient(f"{type(error).__name__}: {error}") from error
        if self._key:
            raw = raw.replace(self._key.encode(), HIDDEN.encode())  # some servers echo the key
        if not response.is_success:
            raise self._failure(response, route, raw)
        return raw

    def _failure(self, response: "httpx2.Response", route: str, raw: bytes) -> Exception:
        """Return the error of a reply whose status is not one of success."""
        status = response.status_code
        message = self.hidden(f"HTTP {status}: {message_in(raw)}")
        if status in _RETRIED or status >= 500:
            failure = Transient(message)
            retry_after = response.headers.get("Retry-After", "")
            if _SECONDS.fullmatch(retry_after):
                failure.retry_after = float(retry_after)
            return failure
        where = f"{self.describe(route)}: {message}"
        if status in self.wrong_setup or status < 400:
            why = self.wrong_setup.get(status, "it redirects")
            return InputError(f"{where}: {why}", fix=self.advice())
        refusal = RequestRefused(where)
        refusal.status = status
        refusal.reply = raw
        return refusal


class ModelClient(HTTPClient):
    """An ``HTTPClient`` of one model of a server.

    Attributes:
        model: The server knows the model by this name.
        concurrency: At most this many requests of a batch run in parallel.
    """

    model: str
    concurrency: int
    wrong_setup: ClassVar[Mapping[int, str]] = {
        **HTTPClient.wrong_setup,
        403: "the key may not use this model",
        404: "no such model or URL",
    }

    def describe(self, route: str) -> str:
        """Return the URL of a route and the model."""
        return f"{self.url(route)} (model {self.model!r})"


def check_url(url: str) -> None:
    """Raise InputError for a text that is no base URL; what may be secret in it is not shown."""
    if not _URL.fullmatch(url) or {"?", "#", "@"} & set(url):
        raise InputError(
            f"the endpoint {_SECRET_IN_URL.sub(HIDDEN, url)!r} is no usable URL",
            expected="a URL such as http://localhost:8000/v1, without a user name, '?' or '#'",
        )


def key_from_environment(variable: str) -> str:
    """Return the key in an environment variable, empty if it is not set; InputError if the value
    cannot be a key.
    """
    key = os.environ.get(variable, "").strip()
    if not key.isascii() or not key.isprintable():
        raise InputError(
            f"the value of ${variable} cannot be sent as a key",
            expected="printable ASCII characters",
        )
    return key


def open_client(headers: Mapping[str, str], **options: Any) -> "httpx2.AsyncClient":
    """Return a client that keeps no cookie and wants replies that are not packed."""
    import httpx2

    return httpx2.AsyncClient(
        headers={"Accept-Encoding": "identity", **headers},
        cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
        **options,
    )


def parse_reply(shape: type[_Shape], raw: bytes) -> _Shape:
    """Read the fields of a reply; Transient if one is missing or of another type."""
    try:
        return shape.model_validate_json(raw, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise Transient(
            f"the reply is not as expected ({where} {first['msg']}): {message_in(raw)!r}"
        ) from None


def message_in(raw: bytes) -> str:
    """Return the beginning of what a server says, on one printable line."""
    text = raw.decode("utf-8", "replace")
    with suppress(ValueError, LookupError, TypeError, RecursionError):
        text = str(json.loads(raw)["error"]["message"])
    return "".join(char if char.isprintable() else " " for char in text[:_SHOWN]).strip()


# ------------------------------------------------------------------------------------------------
# connections
_OPENING = threading.Lock()


class _Connections:
    """The connections of a client, with the thread and event loop in which they are used.

    The thread holds up no process that ends, and the connections end with it.
    """

    def __init__(self, headers: Mapping[str, str]) -> None:
        import httpx2

        limits = httpx2.Limits(max_connections=None, keepalive_expiry=_IDLE)
        self.process = os.getpid()
        self.http = open_client(headers, timeout=None, limits=limits)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._serve, name="memalpha-http", daemon=True)
        self.thread.start()

    def _serve(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            runner.get_loop().run_forever()
            runner.run(self.http.aclose())

    def close(self) -> None:
        """Begin to close them, after which the thread ends."""
        if self.process == os.getpid():
            with suppress(RuntimeError):  # it has ended
                self.loop.call_soon_threadsafe(self.loop.stop)
