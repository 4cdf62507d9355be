"""``wrap``: OpenAI's client with a memory.

    client = memalpha.wrap(OpenAI(), agent, "marta")
    client.chat.completions.create(model=..., messages=[...])

Supported, synchronous and asynchronous: ``chat.completions.create`` and ``parse``, with ``stream``
and ``with_raw_response``, ``chat.completions.stream``, ``responses.create`` and ``parse``; clients
of ``with_options`` have the memory, too. All else of the client is as before. Of several choices
the first is remembered. Not supported, and without memory: ``with_streaming_response``, raw
streams, ``responses.stream``, realtime and assistants.

A memory that cannot be searched raises before the model is asked. What cannot be remembered
afterwards is a RuntimeWarning and stands in ``client.not_remembered``: the answer is returned. A
call returns when its turn is on disk; a stream ends then, and remembers what was heard of it when
it is closed before its end. A stream that failed, or was left without closing, is not remembered.
"""

from __future__ import annotations

import asyncio
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from memalpha.store.journal import Namespace
from memalpha.types import JsonObject
from memalpha.use.agent import MemoryAgent
from memalpha.use.chatting import RECALL_TOKENS, ChatMemory, ChatTurn, answer_of, with_block

if TYPE_CHECKING:
    from openai import AsyncOpenAI, OpenAI

_Client = TypeVar("_Client", "OpenAI", "AsyncOpenAI")
_RAW = "X-Stainless-Raw-Response"  # header by which the client asks for a response as it is


def wrap(
    client: _Client,
    agent: MemoryAgent,
    namespace: Namespace | str | None = None,
    *,
    recall_tokens: int = RECALL_TOKENS,
) -> _Client:
    """Return a client of OpenAI like ``client``, which stays as it is, with the memory of an agent.

    ``recall_tokens``: most tokens of passages that a request gets. InputError without a namespace
    if the agent has a store. See ``memalpha.clients.openai``.
    """
    agent.memory(namespace)  # raises what a call would raise later
    return _wrapped(client.copy(), ChatMemory(agent, recall_tokens), namespace, [])


def _wrapped(
    client: _Client,
    memory: ChatMemory,
    namespace: Namespace | str | None,
    failures: list[Exception],
) -> _Client:
    from openai import AsyncOpenAI

    for resource, kind in ((client.chat.completions, _Chat), (client.responses, _Responses)):
        for name in ("create", "parse"):
            remembering = _async if isinstance(client, AsyncOpenAI) else _sync
            call = getattr(resource, name)
            start = functools.partial(kind, memory, namespace, failures)
            setattr(resource, name, functools.wraps(call)(remembering(call, start)))
    copy = client.copy

    def derived(**options: Any) -> _Client:
        return _wrapped(copy(**options), memory, namespace, failures)

    for name in ("copy", "with_options"):
        setattr(client, name, derived)
    setattr(client, "not_remembered", failures)  # noqa: B010, which mypy would not let pass
    return client


# ------------------------------------------------------------------------------------------------
# one call
@dataclass
class _Call:
    """One request with its turn, and what was heard of the answer."""

    memory: ChatMemory
    namespace: Namespace | str | None
    failures: list[Exception]
    options: JsonObject
    turn: ChatTurn | None = None
    heard: list[str] = field(default_factory=list)

    def recall(self) -> JsonObject:
        """Return the options of the request with what was recalled."""
        raise NotImplementedError

    def hear(self, data: Any) -> None:
        """Take up an answer, or an event of a stream."""
        raise NotImplementedError

    def remember(self) -> None:
        """Let the memory read the turn, once."""
        turn = self.turn
        self.turn = None
        if turn is None:
            return
        try:
            self.memory.remember(turn, "".join(self.heard))
        except Exception as error:  # noqa: BLE001 - the answer is not lost
            self.failures.append(error)
            told = f"a chat went on and was not remembered: {error}"
            warnings.warn(told, RuntimeWarning, stacklevel=3)


class _Chat(_Call):
    def recall(self) -> JsonObject:
        messages = [_plain(message) for message in self.options["messages"]]
        self.turn = self.memory.recall(messages, self.namespace)
        return {**self.options, "messages": with_block(messages, self.turn.block)}

    def hear(self, data: Any) -> None:
        self.heard.append(answer_of(_plain(data)))


class _Responses(_Call):
    def recall(self) -> JsonObject:
        items = self.options.get("input") or []
        if isinstance(items, str):
            items = [{"role": "user", "content": items}]
        messages = [message for message in map(_plain, items) if message.get("role")]
        names = ("previous_response_id", "conversation")
        thread = " ".join(str(self.options.get(name) or "") for name in names)
        self.turn = self.memory.recall(messages, self.namespace, thread)
        instructions = self.options.get("instructions") or ""
        both = f"{instructions}\n\n{self.turn.block}".strip()
        return {**self.options, "instructions": both} if self.turn.block else self.options

    def hear(self, data: Any) -> None:
        if getattr(data, "type", "") == "response.output_text.delta":
            self.heard.append(data.delta)
        self.heard.append(getattr(data, "output_text", ""))


def _plain(message: Any) -> Any:
    """A message, chunk or completion as a mapping: programs append what the client returned."""
    dump = getattr(message, "model_dump", None)
    return dump(exclude_unset=True) if dump else message


def _is_unread(options: JsonObject) -> bool:
    """Whether a response is wanted as it is, in a form that cannot be read twice."""
    raw = (options.get("extra_headers") or {}).get(_RAW)
    return raw == "stream" or (raw is not None and bool(options.get("stream")))


_Start = Callable[[JsonObject], _Call]


def _sync(create: Callable[..., Any], start: _Start) -> Callable[..., Any]:
    def remembering(**options: Any) -> Any:
        if _is_unread(options):
            return create(**options)
        call = start(options)
        answer = create(**call.recall())
        if hasattr(answer, "__next__"):
            return _Heard(answer, call)
        call.hear(answer.parse() if hasattr(answer, "parse") else answer)
        call.remember()
        return answer

    return remembering


def _async(create: Callable[..., Any], start: _Start) -> Callable[..., Any]:
    async def remembering(**options: Any) -> Any:
        if _is_unread(options):
            return await create(**options)
        call = start(options)
        answer = await create(**await asyncio.to_thread(call.recall))
        if hasattr(answer, "__anext__"):
            return _Heard(answer, call)
        call.hear(answer.parse() if hasattr(answer, "parse") else answer)
        await asyncio.to_thread(call.remember)
        return answer

    return remembering


class _Heard:
    """A stream of the client, synchronous or not, that is remembered when it ends or is closed."""

    def __init__(self, stream: Any, call: _Call) -> None:
        self._stream = stream
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> _Heard:
        return self

    def __next__(self) -> Any:
        try:
            event = next(self._stream)
        except StopIteration:
            self._call.remember()
            raise
        self._call.hear(event)
        return event

    def __enter__(self) -> _Heard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> Any:
        """Close the stream and remember what was heard; awaited of an asynchronous client."""
        if hasattr(self._stream, "__anext__"):
            return self._aclose()
        self._stream.close()
        self._call.remember()
        return None

    def __aiter__(self) -> _Heard:
        return self

    async def __anext__(self) -> Any:
        try:
            event = await anext(self._stream)
        except StopAsyncIteration:
            await asyncio.to_thread(self._call.remember)
            raise
        self._call.hear(event)
        return event

    async def __aenter__(self) -> _Heard:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._aclose()

    async def _aclose(self) -> None:
        await self._stream.close()
        await asyncio.to_thread(self._call.remember)
