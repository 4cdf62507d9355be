"""The MCP server: the same operations as tools, over stdio or streamable HTTP.

Over HTTP the caller is the one the gate settled for the request; over stdio it is the one the server was started for. Without
either, a tool refuses. A problem comes back as a tool result marked as an error, with the same JSON as over HTTP. Erasing a whole
namespace is not offered here: a model should not be able to.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Annotated, Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import Field, ValidationError

from memalpha.serve.callers import Caller
from memalpha.serve.gate import CALLER
from memalpha.serve.models import (
    MAX_PAGE,
    AddAnswer,
    AddRequest,
    AskAnswer,
    AskRequest,
    ChangeAnswer,
    ForgetAnswer,
    ForgetRequest,
    HistoryAnswer,
    MemoryAnswer,
    SearchAnswer,
    SearchRequest,
    UndoRequest,
)
from memalpha.serve.operations import Operations
from memalpha.serve.problems import Problem, Refused, problem_of
from memalpha.version import __version__

INSTRUCTIONS = (
    "A long-term memory. Call add with what was said and should be remembered; the memory's own model decides what to keep, "
    "correct or delete. Call ask or search before you answer from memory. undo takes one operation back, forget erases an entry "
    "for good."
)
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)


def build_mcp(operations: Operations, local: Caller | None = None) -> MCPServer:
    """Return the server.

    Args:
        operations: What it offers.
        local: The caller of a connection without requests of HTTP (stdio).
    """
    server = MCPServer("memalpha", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING", subscriptions=False)
    _add_writing(server, operations, local)
    _add_reading(server, operations, local)
    return server


def _add_writing(server: MCPServer, operations: Operations, local: Caller | None) -> None:
    @server.tool(annotations=_WRITES)
    @_telling
    async def add(context: Context, text: str, time: str | None = None, source: str = "") -> AddAnswer:
        """Read a text and remember what matters in it. `time`: when it was said (ISO 8601). `source`: its name in the history."""
        return await operations.add(_caller(context, local), AddRequest(text=text, time=time, source=source))

    @server.tool(annotations=_WRITES)
    @_telling
    async def undo(context: Context, operation: int) -> ChangeAnswer:
        """Take one operation back, by the number that add and history give it."""
        return await operations.undo(_caller(context, local), UndoRequest(operation=operation))

    @server.tool(annotations=_WRITES)
    @_telling
    async def forget(context: Context, entry: str) -> ForgetAnswer:
        """Erase an entry for good, by its id; this cannot be undone. Do it only when asked to."""
        return await operations.forget(_caller(context, local), ForgetRequest(entry=entry))


def _add_reading(server: MCPServer, operations: Operations, local: Caller | None) -> None:
    @server.tool(annotations=_READS)
    @_telling
    async def ask(context: Context, question: str) -> AskAnswer:
        """Answer a question from the memory alone; says which entries the answer was read from."""
        return await operations.ask(_caller(context, local), AskRequest(question=question))

    @server.tool(annotations=_READS)
    @_telling
    async def search(context: Context, query: str, k: int = 5) -> SearchAnswer:
        """Find at most k entries for a query, best first."""
        return await operations.search(_caller(context, local), SearchRequest(query=query, k=k))

    @server.tool(annotations=_READS)
    @_telling
    async def memory(
        context: Context, offset: Annotated[int, Field(ge=0)] = 0, limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    ) -> MemoryAnswer:
        """List the entries of the memory in order of creation."""
        return await operations.memory(_caller(context, local), offset, limit)

    @server.tool(annotations=_READS)
    @_telling
    async def history(
        context: Context, entry: str | None = None, limit: Annotated[int, Field(ge=1, le=MAX_PAGE)] = 100
    ) -> HistoryAnswer:
        """List the newest operations, of one entry or of all: what they did, when, by whom and from which text."""
        return await operations.history(_caller(context, local), entry, limit)


def _caller(context: Context, local: Caller | None) -> Caller:
    request = context.request_context.request
    caller: Caller | None = local if request is None else request.scope.get(CALLER)
    if caller is None:
        raise Refused(Problem(HTTPStatus.UNAUTHORIZED, "nobody is known to have sent this"))
    return caller


def _telling(tool: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Let a tool answer with a problem where it raises."""

    @functools.wraps(tool)
    async def telling(*arguments: Any, **options: Any) -> Any:
        try:
            return await tool(*arguments, **options)
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, found, "what the tool's schema says")
        except Exception as error:  # noqa: BLE001 - the boundary to the client, which is told a problem; problem_of logs the rest
            problem = problem_of(error)
        return CallToolResult(content=[TextContent(type="text", text=json.dumps(problem.body()))], is_error=True)

    return telling


__all__ = ["build_mcp"]
