"""A client of memory servers in Mem0's shape: its open-source server, its platform, and others.

The routes are those of mem0ai/mem0 ``server/main.py`` and of the package ``mem0ai`` 2.2. A chunk is
one message, its time in front (Mem0 has no field for it), and its index goes along as metadata,
which comes back with what is found: so it is known where a memory is from. Failures that may pass
are tried again; at last they are a ServiceError. A wrong key or address is an InputError.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple
from uuid import uuid4

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt
from typing_extensions import override

from memalpha.agent.rollout import StepCallback
from memalpha.config import Options
from memalpha.errors import ServiceError
from memalpha.http import HTTPClient, Transient, message_in
from memalpha.measure.systems import Setting, System
from memalpha.record.measure import IngestedMemory
from memalpha.types import Chunk, Instance, JsonMapping, Question

_CHUNK = "memalpha_chunk"  # key of the metadata
_ROLES = ("user", "assistant")
_MOST = 1000  # memories of a user that are listed: Mem0's own limit
_DONE = "SUCCEEDED"
_ENDS = (_DONE, "FAILED")  # last states of an event of the platform
_POLL = 0.5  # seconds between looks at it
_SHOWN = 300  # characters of a reply that an error shows


class _Routes(NamedTuple):
    add: str
    search: str
    memories: str  # GET in the open-source server
    delete: str
    header: str
    key: str  # what stands in the header


SHAPES: Mapping[str, _Routes] = {
    "oss": _Routes("/memories", "/search", "/memories", "/memories", "X-API-Key", "{}"),
    "platform": _Routes(
        "/v3/memories/add/",
        "/v3/memories/search/",
        "/v3/memories/",
        "/v1/memories/",
        "Authorization",
        "Token {}",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions(Options):
    """Address and protocol of a memory server.

    Attributes:
        url: The server has this URL, such as http://localhost:8888.
        top_k: The server is asked for at most this many memories at once.
        shape: The server has the routes of Mem0's open-source server (``oss``) or of its hosted
            platform (``platform``).
        api_key_env: This environment variable holds the key; if it is not set, no key is sent.
        timeout: A request, or the platform's work on one, may take this many seconds.
        retries: A failed request is repeated at most this many times.
        backoff: The client waits this many seconds before the first repetition, and each further
            wait is twice as long.
    """

    url: str
    top_k: PositiveInt = 100
    shape: Literal["oss", "platform"] = "oss"
    api_key_env: str = "MEM0_API_KEY"
    timeout: PositiveFloat = 120.0
    retries: NonNegativeInt = 4
    backoff: PositiveFloat = 1.0


class MemoryServer(HTTPClient):
    """Adds, searches and deletes the memories of users at a server."""

    wrong_setup: ClassVar[Mapping[int, str]] = {
        **HTTPClient.wrong_setup,
        405: "the URL is of something else",
    }

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._routes = SHAPES[options.shape]
        self.base_url = options.url
        self.api_key_env = options.api_key_env
        self.timeout = options.timeout
        self.retries = options.retries
        self.backoff = options.backoff
        self.key_header = self._routes.header
        self.key_format = self._routes.key
        self.check()

    @override
    def advice(self) -> str:
        return f"check the url, the shape of the server and ${self.api_key_env}"

    def add(self, user: str, chunk: Chunk, index: int) -> None:
        """Add a chunk as one message; ServiceError if the platform fails to read it in time."""
        role, colon, said = chunk.text.partition(": ")
        if not colon or role.lower() not in _ROLES:
            role, said = "user", chunk.text
        content = f"[{chunk.time}] {said}" if chunk.time else said
        message = {"role": role.lower(), "content": content}
        body = {"messages": [message], "user_id": user, "metadata": {_CHUNK: index}}
        reply = self._call("POST", self._routes.add, body)
        if self._options.shape == "platform" and reply.get("event_id"):
            self._wait(str(reply["event_id"]))

    def search(self, user: str, query: str) -> list[tuple[str, int | None]]:
        """Return at most ``top_k`` memories, best first, each with the index of its chunk.

        It is None where the server does not give back the metadata.
        """
        k = self._options.top_k
        body = {"query": query, "filters": {"user_id": user}, "top_k": k}
        if self._options.shape == "oss":
            body["user_id"] = user  # servers before 2026 take it here alone
        found = []
        for result in self._results("POST", self._routes.search, body)[:k]:
            chunk = (result.get("metadata") or {}).get(_CHUNK)
            found.append((str(result["memory"]), None if chunk is None else int(chunk)))
        return found

    def memories(self, user: str) -> list[str]:
        """Return the memories of a user, of many the first 1,000."""
        if self._options.shape == "oss":
            asked: dict[str, str | int] = {"user_id": user, "top_k": _MOST}
            results = self._results("GET", self._routes.memories, query=asked)
        else:
            body = {"filters": {"user_id": user}}
            pages = {"page": 1, "page_size": _MOST}
            results = self._results("POST", self._routes.memories, body, pages)
        return [str(result["memory"]) for result in results]

    def delete(self, user: str) -> None:
        """Delete all memories of a user."""
        self._call("DELETE", self._routes.delete, query={"user_id": user})

    def _wait(self, event: str) -> None:
        end = time.monotonic() + self._options.timeout
        state = ""
        while state not in _ENDS and time.monotonic() < end:
            state = str(self._call("GET", f"/v1/event/{event}/").get("status"))
            if state not in _ENDS:
                time.sleep(_POLL)
        if state != _DONE:
            raise ServiceError(
                f"{self._options.url}: event {event} is {state} after {self._options.timeout:g} s",
                fix="set a longer timeout, or look into the server's log",
            )

    def _results(
        self,
        method: str,
        route: str,
        body: JsonMapping | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> list[JsonMapping]:
        """Return the memories in a reply, which is a list or has it under ``results``."""
        reply = self._call(method, route, body, query)
        results = reply.get("results") if isinstance(reply, Mapping) else reply
        if not isinstance(results, list) or not all("memory" in each for each in results):
            raise ServiceError(
                f"{self._options.url}{route} replied {str(reply)[:_SHOWN]}",
                expected='{"results": [{"memory": ...}, ...]}',
            )
        return results

    def _call(
        self,
        method: str,
        route: str,
        body: JsonMapping | None = None,
        query: Mapping[str, str | int] | None = None,
    ) -> Any:
        """Send a request, again if it failed in passing, and return the JSON of the reply."""

        async def ask() -> Any:
            raw = await self.fetch(method, route, body, query)
            try:
                return json.loads(raw) if raw else {}
            except (ValueError, RecursionError) as error:
                raise Transient(f"the reply is no JSON: {message_in(raw)}") from error

        return self.run(lambda: self.with_retries(route, ask))


# ------------------------------------------------------------------------------------------------
# a server as a system that is compared
_SPOKEN = re.compile(r"^(?:\[[^]]*\] )?(?:(?:user|assistant): )?", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedMemory(IngestedMemory):
    """The memories that a server keeps of one input, under a user of its own.

    If the server does not give back where one is from, it is of the last chunk with its words.
    """

    server: MemoryServer
    user: str
    chunks: tuple[Chunk, ...]

    @override
    def passages(self, question: Question, budget: int) -> tuple[str, ...]:
        return tuple(text for text, _ in self.sourced(question, budget))

    @override
    def sourced(self, question: Question, budget: int) -> list[tuple[str, int | None]]:
        sourced = []
        for text, chunk in self.server.search(self.user, question.text):
            said = _SPOKEN.sub("", text)
            with_it = [index for index, each in enumerate(self.chunks) if said in each.text]
            sourced.append((text, with_it[-1] if chunk is None and with_it else chunk))
        return sourced

    @override
    def close(self) -> None:
        self.server.delete(self.user)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mem0Server(ServerOptions, System):
    """Any server in Mem0's shape: a chunk is added as a message, a question is searched.

    Each input has a user of its own, who is deleted once all questions are asked.
    """

    writes_counted = False

    @override
    def check_fits(self, setting: Setting, instances: Sequence[Instance]) -> None:
        MemoryServer(self).search(_new_user(), "Does the server answer?")

    @override
    def ingest_all(
        self,
        setting: Setting,
        instances: Sequence[Instance],
        seed: int,
        on_step: StepCallback | None = None,
    ) -> list[IngestedMemory]:
        server = MemoryServer(self)
        memories: list[IngestedMemory] = []
        try:
            for instance in instances:
                user = _new_user()
                empty = ServedMemory(
                    memory_tokens=0, server=server, user=user, chunks=instance.chunks
                )
                memories.append(empty)
                for index, chunk in enumerate(instance.chunks):
                    server.add(user, chunk, index)
                    if on_step:
                        on_step(index + 1, len(instance.chunks))
                entries = tuple(server.memories(user))
                tokens = sum(map(setting.count, entries))
                memories[-1] = replace(empty, memory_tokens=tokens, entries=entries)
        except BaseException:
            for memory in memories:
                memory.close()
            raise
        return memories


def _new_user() -> str:
    return f"memalpha-{uuid4().hex}"
