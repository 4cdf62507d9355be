"""What can be asked of a server, once for the HTTP API and for MCP.

Each operation takes the caller, whose namespace the gate has settled, and answers with a model of ``serve.models``. An InputError
of the machinery is not the client's: a namespace begun with another schema becomes a JournalError, anything else (a reader's
endpoint with a wrong key) a ServiceError.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus

from memalpha.errors import InputError, JournalError, MemAlphaError, ServiceError
from memalpha.use.aio import AsyncMemoryAgent
from memalpha.use.callers import Caller
from memalpha.use.messages import (
    AddAnswer,
    AddRequest,
    AskAnswer,
    AskRequest,
    ChangeAnswer,
    EntryModel,
    EventModel,
    ForgetAnswer,
    ForgetRequest,
    FoundModel,
    HistoryAnswer,
    HistoryRequest,
    MemoryAnswer,
    MemoryRequest,
    ResultModel,
    SearchAnswer,
    SearchRequest,
    UndoRequest,
)
from memalpha.use.problems import Problem, Refused, problem_of
from memalpha.use.serve_config import ServeConfig


class Operations:
    """What a server does.

    Args:
        agent: Does it.
        config: The limit on texts.
    """

    def __init__(self, agent: AsyncMemoryAgent, config: ServeConfig) -> None:
        self.agent, self._config = agent, config

    async def ready(self) -> int:
        """Return how many namespaces the store has; raises if it cannot be read."""
        return len(await self.agent.run(self.agent.agent.journal.namespaces))

    async def add(self, caller: Caller, request: AddRequest) -> AddAnswer:
        """Read a text; on disk when this returns."""
        async with self._boundary(caller, clients=True):
            await self.agent.run(self._check, request)
        async with self._boundary(caller):
            added = await self.agent.add(request.text, request.time, namespace=caller.namespace, source=request.source)
        results = [ResultModel.of(result) for result in added.results]
        return AddAnswer(operations=list(added.operations), results=results, pieces=len(added.steps))

    def _check(self, request: AddRequest) -> None:
        agent, limit = self.agent.agent, self._config.max_text_tokens
        if (tokens := agent.step.encoder.count(request.text)) > limit:
            what = f"the text has {tokens} tokens"
            raise Refused(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what, f"at most {limit}", "send it in parts"))
        agent.pieces(request.text, request.time)

    async def ask(self, caller: Caller, request: AskRequest) -> AskAnswer:
        """Answer a question from the memory alone."""
        async with self._boundary(caller):
            reply = await self.agent.ask(request.question, namespace=caller.namespace)
        return AskAnswer(answer=reply.text, entries=[FoundModel.of_hit(hit) for hit in reply.entries])

    async def search(self, caller: Caller, request: SearchRequest) -> SearchAnswer:
        """Find entries."""
        async with self._boundary(caller):
            hits = await self.agent.search(request.query, request.k, namespace=caller.namespace)
        return SearchAnswer(entries=[FoundModel.of_hit(hit) for hit in hits])

    async def memory(self, caller: Caller, request: MemoryRequest) -> MemoryAnswer:
        """List entries."""
        async with self._boundary(caller):
            entries = await self.agent.memory(caller.namespace)
        page = entries[request.offset : request.offset + request.limit]
        return MemoryAnswer(entries=[EntryModel.of(entry) for entry in page], total=len(entries))

    async def history(self, caller: Caller, request: HistoryRequest) -> HistoryAnswer:
        """List what happened."""
        async with self._boundary(caller):
            events = await self.agent.history(request.entry, namespace=caller.namespace)
        return HistoryAnswer(operations=[EventModel.of(event) for event in events[-request.limit :]], total=len(events))

    async def undo(self, caller: Caller, request: UndoRequest) -> ChangeAnswer:
        """Take one operation back."""
        async with self._boundary(caller, clients=True):
            return ChangeAnswer.of(await self.agent.undo(request.operation, namespace=caller.namespace, by=caller.name))

    async def forget(self, caller: Caller, request: ForgetRequest) -> ForgetAnswer:
        """Erase an entry for good."""
        async with self._boundary(caller, clients=True):
            return ForgetAnswer.of(await self.agent.forget(request.entry, namespace=caller.namespace))

    async def forget_all(self, caller: Caller) -> ForgetAnswer:
        """Erase the whole namespace for good."""
        async with self._boundary(caller, clients=True):
            return ForgetAnswer.of(await self.agent.forget_all(namespace=caller.namespace))

    @asynccontextmanager
    async def _boundary(self, caller: Caller, clients: bool = False) -> AsyncIterator[None]:
        """Let nothing out but what can be told to a client.

        Args:
            caller: Whose memory it is about.
            clients: Whether an InputError is about what the client said; else there is nothing left that could be.
        """
        try:
            yield
        except InputError as error:
            await self._check_schema(caller)
            if clients:
                raise
            raise ServiceError(str(error)) from error
        except (MemAlphaError, Refused):
            raise
        except Exception as error:  # the boundary to whatever the model and its libraries raise
            raise Refused(problem_of(error)) from error

    async def _check_schema(self, caller: Caller) -> None:
        """Raise JournalError if the namespace was begun with another schema: that is no mistake of the client's or the model's."""
        try:
            await self.agent.memory(caller.namespace)
        except InputError as error:
            raise JournalError(str(error)) from error


__all__ = ["Operations"]
