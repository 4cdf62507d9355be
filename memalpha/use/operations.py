"""The operations of a server, shared by the HTTP API and MCP.

The client sees an InputError only if the client can have caused it. A namespace begun with another schema becomes a JournalError,
any other internal InputError a ServiceError.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

from memalpha.errors import InputError, JournalError, MemAlphaError, ServiceError
from memalpha.protocols import Hit
from memalpha.use import messages
from memalpha.use.access import Caller, ServeConfig
from memalpha.use.agent import AsyncMemoryAgent
from memalpha.use.messages import Answer, Problem, Refused, Request, problem_of


class Operation(NamedTuple):
    """One operation: its messages, HTTP route below ``/v1``, description, and whether it writes and is an MCP tool."""

    request: type[Request]
    answer: type[Answer]
    method: str
    path: str
    description: str
    writes: bool = False
    tool: bool = True


OPERATIONS: Mapping[str, Operation] = {
    "add": Operation(
        messages.AddRequest, messages.AddAnswer, "POST", "/add",
        "Read a text and remember what matters in it; on disk when this is answered.", writes=True,
    ),
    "ask": Operation(
        messages.AskRequest, messages.AskAnswer, "POST", "/ask",
        "Answer a question from the memory alone; says which entries the answer was read from.",
    ),
    "search": Operation(
        messages.SearchRequest, messages.SearchAnswer, "POST", "/search", "Find at most k entries for a query, best first."
    ),
    "memory": Operation(
        messages.MemoryRequest, messages.MemoryAnswer, "GET", "/memory", "List the entries of the memory in order of creation."
    ),
    "history": Operation(
        messages.HistoryRequest, messages.HistoryAnswer, "GET", "/history",
        "List the newest operations, of one entry or of all: what they did, when, by whom and from which text.",
    ),
    "undo": Operation(
        messages.UndoRequest, messages.ChangeAnswer, "POST", "/undo",
        "Take one operation back, by the number that add and history give it.", writes=True,
    ),
    "forget": Operation(
        messages.ForgetRequest, messages.ForgetAnswer, "POST", "/forget",
        "Erase an entry for good, by its id: from the log and every file of the store. This cannot be undone. Do it "
        "only when asked to.", writes=True,
    ),
    "forget_all": Operation(
        messages.ForgetAllRequest, messages.ForgetAnswer, "DELETE", "/memory", "Erase the whole namespace for good.",
        writes=True, tool=False,  # a model must not do this
    ),
}  # fmt: skip
"""Every operation by method name."""


class Operations:
    """Carries out operations with an agent, within the limit on text length."""

    def __init__(self, agent: AsyncMemoryAgent, config: ServeConfig) -> None:
        self.agent, self._config = agent, config

    async def ready(self) -> None:
        """Raise unless the store can be read."""
        await self.agent.run(self.agent.agent.journal.namespaces)

    async def call(self, name: str, caller: Caller, request: Any) -> Answer:
        """Run one of ``OPERATIONS``; InputError for client errors, another MemAlphaError or Refused for failures."""
        try:
            answer: Answer = await getattr(self, f"_{name}")(caller, request)
            return answer
        except InputError as error:
            try:
                await self.agent.memory(caller.namespace)
            except InputError as other:
                raise JournalError(str(other)) from other
            if name in ("undo", "forget", "forget_all"):
                raise
            raise ServiceError(str(error)) from error
        except (MemAlphaError, Refused):
            raise
        except Exception as error:  # the model and its libraries may raise anything
            raise Refused(problem_of(error)) from error

    async def _add(self, caller: Caller, request: messages.AddRequest) -> Answer:
        await self.agent.run(self._check_text, request)
        added = await self.agent.add(request.text, request.time, namespace=caller.namespace, source=request.source)
        results = list(map(messages.ResultModel.of, added.results))
        return messages.AddAnswer(operations=list(added.operations), results=results, pieces=len(added.steps))

    def _check_text(self, request: messages.AddRequest) -> None:
        agent, limit = self.agent.agent, self._config.max_text_tokens
        if (tokens := agent.step.encoder.count(request.text)) > limit:
            what = f"the text has {tokens} tokens"
            raise Refused(Problem(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what, f"at most {limit}", "send it in parts"))
        try:
            agent.pieces(request.text, request.time)
        except InputError as error:
            raise Refused(problem_of(error)) from error

    async def _ask(self, caller: Caller, request: messages.AskRequest) -> Answer:
        reply = await self.agent.ask(request.question, namespace=caller.namespace)
        return messages.AskAnswer(answer=reply.text, entries=_found(reply.entries))

    async def _search(self, caller: Caller, request: messages.SearchRequest) -> Answer:
        return messages.SearchAnswer(entries=_found(await self.agent.search(request.query, request.k, namespace=caller.namespace)))

    async def _memory(self, caller: Caller, request: messages.MemoryRequest) -> Answer:
        entries = await self.agent.memory(caller.namespace)
        page = entries[request.offset : request.offset + request.limit]
        return messages.MemoryAnswer(entries=[messages.EntryModel.model_validate(each) for each in page], total=len(entries))

    async def _history(self, caller: Caller, request: messages.HistoryRequest) -> Answer:
        events = await self.agent.history(request.entry, namespace=caller.namespace)
        return messages.HistoryAnswer(operations=list(map(messages.EventModel.of, events[-request.limit :])), total=len(events))

    async def _undo(self, caller: Caller, request: messages.UndoRequest) -> Answer:
        change = await self.agent.undo(request.operation, namespace=caller.namespace, by=caller.name)
        return messages.ChangeAnswer.model_validate(change)

    async def _forget(self, caller: Caller, request: messages.ForgetRequest) -> Answer:
        return messages.ForgetAnswer.of(await self.agent.forget(request.entry, namespace=caller.namespace))

    async def _forget_all(self, caller: Caller, request: messages.ForgetAllRequest) -> Answer:
        return messages.ForgetAnswer.of(await self.agent.forget_all(namespace=caller.namespace))


def _found(hits: Sequence[Hit]) -> list[messages.FoundModel]:
    same = messages.EntryModel.model_validate
    return [messages.FoundModel(**same(hit.entry).model_dump(), score=hit.score) for hit in hits]
