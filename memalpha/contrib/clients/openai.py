"""``wrap``: OpenAI's client with a memory.

    client = memalpha.wrap(OpenAI(), agent, "marta")
    client.chat.completions.create(model=..., messages=[...])

Supported, synchronous and asynchronous: ``create``, ``parse`` and ``stream`` of
``chat.completions``, ``beta.chat.completions`` and ``responses`` (``beta.responses``: ``create``),
with ``with_raw_response`` and ``with_streaming_response``; clients of ``with_options`` have the
memory, too. All else of the client is as before, without memory: ``responses.connect``, realtime,
assistants, ``post``. Of several choices the first is remembered.

A memory that cannot be searched raises before the model is asked. What cannot be remembered
afterwards is a RuntimeWarning and stands in ``client.not_remembered``, which keeps the last
``_FAILURES``: the answer is returned. A call returns when its turn is on disk; a stream ends then,
and remembers what was heard of it when it is closed before its end. A stream in
``with_streaming_response`` and one that is raw is remembered at its end. Of an answer that failed,
was cut off or is none the user's words alone are remembered. A stream that was left without closing
is not remembered.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from memalpha.contrib.clients.chatting import RECALL_TOKENS, ChatMemory
from memalpha.contrib.clients.exchange import CHAT, RESPONSES, ApiForm, Exchange
from memalpha.errors import ServiceError
from memalpha.store.journal import Namespace
from memalpha.types import JsonObject
from memalpha.use.agent import MemoryAgent

if TYPE_CHECKING:
    from openai import APIStatusError, AsyncOpenAI, OpenAI

_Client = TypeVar("_Client", "OpenAI", "AsyncOpenAI")
_FAILURES = 100  # last ones that a client keeps: each holds its conversation
_RAW = "X-Stainless-Raw-Response"  # header by which the client asks for a response as it is


def wrap(
    client: _Client,
    agent: MemoryAgent,
    namespace: Namespace | str | None = None,
    *,
    recall_tokens: int = RECALL_TOKENS,
) -> _Client:
    """Return a client of OpenAI that remembers, with the memory of an agent.

    ``client`` itself is not changed. See ``memalpha.contrib.clients.openai`` for the calls that
    remember.

    Args:
        client: The client of the package ``openai``, synchronous or not.
        agent: The agent whose memory is used.
        namespace: The namespace of the memory, or the name of its user.
        recall_tokens: The most tokens of passages that a request gets.

    Returns:
        A client with the same methods.

    Raises:
        InputError: No namespace is given, and the agent has a store on disk.
    """
    agent.memory(namespace)  # raises what a call would raise later
    return _wrap_client(client.copy(), ChatMemory(agent, recall_tokens), namespace, [])


def _wrap_client(
    client: _Client,
    memory: ChatMemory,
    namespace: Namespace | str | None,
    failures: list[Exception],
) -> _Client:
    from openai import AsyncOpenAI

    remembering = _async if isinstance(client, AsyncOpenAI) else _sync
    for resource, form in (
        (client.chat.completions, CHAT),
        (client.beta.chat.completions, CHAT),
        (client.responses, RESPONSES),
        (client.beta.responses, RESPONSES),
    ):
        start = functools.partial(_Call, memory, form, namespace, failures)
        for name in ("create", "parse"):
            call = getattr(resource, name, None)
            if call is not None:
                setattr(resource, name, functools.wraps(call)(remembering(call, start)))
    copy = client.copy

    def derived(**options: Any) -> _Client:
        return _wrap_client(copy(**options), memory, namespace, failures)

    for name in ("copy", "with_options"):
        setattr(client, name, derived)
    setattr(client, "not_remembered", failures)  # noqa: B010, which mypy would not let pass
    return client


# ------------------------------------------------------------------------------------------------
# one call
class _Call:
    """One request with its exchange, and how it is asked for."""

    def __init__(
        self,
        memory: ChatMemory,
        form: ApiForm,
        namespace: Namespace | str | None,
        failures: list[Exception],
        options: JsonObject,
    ) -> None:
        self.exchange = Exchange(memory, form, options, namespace)
        self._failures = failures
        self._headers = dict(options.get("extra_headers") or {})
        self.is_raw = _RAW in self._headers  # the caller wants the response as it is

    @property
    def options(self) -> JsonObject:
        """The options of the request: with what was recalled, for a response as it is."""
        return {**self.exchange.body, "extra_headers": {_RAW: "true", **self._headers}}

    def pieces(self, data: bytes) -> list[bytes]:
        """Return what is to be heard in turn: lines, so that no event is before it is taken."""
        return [data] if self.is_raw else data.splitlines(keepends=True)

    def hear(self, response: Any) -> None:
        """Take up a response that was read."""
        self.exchange.feed(response.content)
        self.exchange.end()

    def remember(self, *, closed: bool = False) -> None:
        """Let the memory read the turn, once."""
        try:
            left_out = self.exchange.remember(closed=closed)
            if not left_out:
                return
            problem: Exception = ServiceError(left_out)
        except Exception as error:  # noqa: BLE001 - the answer is not lost
            problem = error
        self._failures.append(problem)
        del self._failures[:-_FAILURES]
        told = f"a chat was answered but not remembered: {problem}"
        warnings.warn(told, RuntimeWarning, stacklevel=3)


_Start = Callable[[JsonObject], _Call]


def _is_refused(error: APIStatusError, call: _Call) -> bool:
    """Whether a request is to be sent once more, since a system message was refused."""
    return call.exchange.moves_block(error.status_code, error.response.text)


def _sync(create: Callable[..., Any], start: _Start) -> Callable[..., Any]:
    from openai import APIStatusError

    def asked(call: _Call) -> Any:
        try:
            return create(**call.options)
        except APIStatusError as error:
            if not _is_refused(error, call):
                raise
            with suppress(APIStatusError):
                return create(**call.options)
            raise

    def remembering(**options: Any) -> Any:
        call = start(options)
        answer = asked(call)
        call.exchange.accepted()
        response = answer.http_response
        if not response.is_stream_consumed:
            _tap(response, call)
            return answer if call.is_raw else _RememberedStream(answer.parse(), call)
        call.hear(response)
        call.remember()
        return answer if call.is_raw else answer.parse()

    return remembering


def _async(create: Callable[..., Any], start: _Start) -> Callable[..., Any]:
    from openai import APIStatusError

    async def asked(call: _Call) -> Any:
        try:
            return await create(**call.options)
        except APIStatusError as error:
            if not _is_refused(error, call):
                raise
            with suppress(APIStatusError):
                return await create(**call.options)
            raise

    async def remembering(**options: Any) -> Any:
        call = await asyncio.to_thread(start, options)
        answer = await asked(call)
        call.exchange.accepted()
        response = answer.http_response
        if not response.is_stream_consumed:
            _tap_async(response, call)
            return answer if call.is_raw else _RememberedStream(answer.parse(), call)
        call.hear(response)
        await asyncio.to_thread(call.remember)
        return answer if call.is_raw else answer.parse()

    return remembering


def _tap(response: Any, call: _Call) -> None:
    """Let an exchange hear the bytes of a response as they are read."""
    read = response.iter_bytes
    exchange = call.exchange

    def heard(*arguments: Any, **options: Any) -> Iterator[bytes]:
        try:
            for data in read(*arguments, **options):
                for piece in call.pieces(data):
                    exchange.feed(piece)
                    if exchange.ended or exchange.problem:
                        call.remember()
                    yield piece
        except Exception as error:
            exchange.fail(f"{type(error).__name__}: {error}")
            call.remember()
            raise
        exchange.end()
        call.remember()

    response.iter_bytes = heard


def _tap_async(response: Any, call: _Call) -> None:
    """Let an exchange hear the bytes of a response as they are read."""
    read = response.aiter_bytes
    exchange = call.exchange

    async def heard(*arguments: Any, **options: Any) -> AsyncIterator[bytes]:
        try:
            async for data in read(*arguments, **options):
                for piece in call.pieces(data):
                    exchange.feed(piece)
                    if exchange.ended or exchange.problem:
                        await asyncio.to_thread(call.remember)
                    yield piece
        except Exception as error:
            exchange.fail(f"{type(error).__name__}: {error}")
            await asyncio.to_thread(call.remember)
            raise
        exchange.end()
        await asyncio.to_thread(call.remember)

    response.aiter_bytes = heard


class _RememberedStream:
    """A stream of the client, synchronous or not, that is remembered when it is closed, too."""

    def __init__(self, stream: Any, call: _Call) -> None:
        self._stream = stream
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> _RememberedStream:
        return self

    def __next__(self) -> Any:
        return next(self._stream)

    def __enter__(self) -> _RememberedStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> Any:
        """Close the stream and remember what was heard; awaited of an asynchronous client."""
        if hasattr(self._stream, "__anext__"):
            return self._aclose()
        self._stream.close()
        self._call.remember(closed=True)
        return None

    def __aiter__(self) -> _RememberedStream:
        return self

    async def __anext__(self) -> Any:
        return await anext(self._stream)

    async def __aenter__(self) -> _RememberedStream:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._aclose()

    async def _aclose(self) -> None:
        await self._stream.close()
        await asyncio.to_thread(self._call.remember, closed=True)
