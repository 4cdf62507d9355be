"""The agent in use for asyncio: the same calls, awaited, each in a thread of its own.

What always holds: the event loop is never held up by a model or a disk; calls that wait for the model are generated together
(``memalpha.generation.batching``). A call that is cancelled while it runs goes on to its end in its thread: a write is then done,
and nobody was told. ``aclose`` waits for those.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import TracebackType
from typing import ParamSpec, TypeVar

from memalpha.errors import InputError, JournalError
from memalpha.protocols import Hit
from memalpha.store.journal import Event, Namespace, Receipt
from memalpha.types import Change, Entry
from memalpha.use.agent import MemoryAgent
from memalpha.use.records import Added, Reply

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class AsyncMemoryAgent:
    """A ``MemoryAgent`` to be awaited.

    Args:
        agent: Does the work; closed by ``aclose``.
        threads: Calls under way at once; more wait.
    """

    def __init__(self, agent: MemoryAgent, threads: int = 64) -> None:
        if threads < 1:
            raise InputError(f"threads is {threads}", expected="at least 1")
        self.agent = agent
        self._closed = False
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="memalpha")

    async def run(self, call: Callable[Parameters, Result], /, *arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        """Run a function in one of the agent's threads and return what it returns; JournalError once the agent was closed."""
        if self._closed:
            raise JournalError("the agent was closed", fix="make another one")
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(call, *arguments, **options))

    async def add(self, text: str, time: str | None = None, *, namespace: Namespace | str | None = None, source: str = "") -> Added:
        """Let the agent read a text (``MemoryAgent.add``)."""
        return await self.run(self.agent.add, text, time, namespace=namespace, source=source)

    async def ask(self, question: str, *, namespace: Namespace | str | None = None) -> Reply:
        """Answer a question (``MemoryAgent.ask``)."""
        return await self.run(self.agent.ask, question, namespace=namespace)

    async def search(self, query: str, k: int | None = None, *, namespace: Namespace | str | None = None) -> list[Hit]:
        """Return the entries found for a query (``MemoryAgent.search``)."""
        return await self.run(self.agent.search, query, k, namespace=namespace)

    async def memory(self, namespace: Namespace | str | None = None) -> tuple[Entry, ...]:
        """Return all entries (``MemoryAgent.memory``)."""
        return await self.run(self.agent.memory, namespace)

    async def history(self, entry: str | None = None, *, namespace: Namespace | str | None = None) -> list[Event]:
        """Return what happened (``MemoryAgent.history``)."""
        return await self.run(self.agent.history, entry, namespace=namespace)

    async def undo(self, operation: int, *, namespace: Namespace | str | None = None, by: str = "user") -> Change:
        """Take one operation back (``MemoryAgent.undo``)."""
        return await self.run(self.agent.undo, operation, namespace=namespace, by=by)

    async def forget(self, entry: str, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase an entry for good (``MemoryAgent.forget``)."""
        return await self.run(self.agent.forget, entry, namespace=namespace)

    async def forget_all(self, *, namespace: Namespace | str | None = None) -> Receipt:
        """Erase a namespace for good (``MemoryAgent.forget_all``)."""
        return await self.run(self.agent.forget_all, namespace=namespace)

    async def aclose(self) -> None:
        """Wait for the calls under way, then close the agent; a later call raises JournalError."""
        self._closed = True
        await asyncio.get_running_loop().run_in_executor(None, self._pool.shutdown)
        self.agent.close()

    async def __aenter__(self) -> AsyncMemoryAgent:
        """Return itself; it is closed at the end of the block."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        await self.aclose()


__all__ = ["AsyncMemoryAgent"]
