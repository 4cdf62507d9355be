"""The MCP server: the same operations as tools, over stdio or streamable HTTP.

Over HTTP the caller is the one the gate settled for the request; over stdio it is the one the server was started for. Without
either, a tool refuses. A problem comes back as a tool result marked as an error, with the same JSON as over HTTP. Erasing a whole
namespace is not offered here: a model should not be able to.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any, get_type_hints

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ConfigDict, ValidationError

from memalpha.use.callers import Caller
from memalpha.use.gate import CALLER
from memalpha.use.messages import Request
from memalpha.use.operations import Operations
from memalpha.use.problems import Problem, Refused, problem_of
from memalpha.version import __version__

Offered = Callable[[Caller, Any], Awaitable[Any]]
"""What a tool does: an operation, from a caller and a request to an answer; its annotations name their models."""
INSTRUCTIONS = (
    "A long-term memory. Call add with what was said and should be remembered; the memory's own model decides what to keep, "
    "correct or delete. Call ask or search before you answer from memory. undo takes one operation back, forget erases an entry "
    "for good."
)
_READS = ToolAnnotations(read_only_hint=True, open_world_hint=False)
_WRITES = ToolAnnotations(read_only_hint=False, destructive_hint=True, open_world_hint=False)
_TOOLS = (
    ("add", _WRITES, "Read a text and remember what matters in it."),
    ("undo", _WRITES, "Take one operation back, by the number that add and history give it."),
    ("forget", _WRITES, "Erase an entry for good, by its id; this cannot be undone. Do it only when asked to."),
    ("ask", _READS, "Answer a question from the memory alone; says which entries the answer was read from."),
    ("search", _READS, "Find at most k entries for a query, best first."),
    ("memory", _READS, "List the entries of the memory in order of creation."),
    ("history", _READS, "List the newest operations, of one entry or of all: what they did, when, by whom and from which text."),
)
"""The tools by the names of the operations they are, with what a client is told of them."""


def build_mcp(operations: Operations, local: Caller | None = None) -> MCPServer:
    """Return the server.

    Args:
        operations: What it offers.
        local: The caller of a connection without requests of HTTP (stdio).
    """
    tools = [_tool(getattr(operations, name), told, annotations, local) for name, annotations, told in _TOOLS]
    return MCPServer(
        "memalpha", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING", subscriptions=False, tools=tools
    )


class _AsSent(ArgModelBase):
    """Arguments as they were sent: it is the request's model that judges them, as over HTTP."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        return {"sent": self.model_extra}


def _tool(offered: Offered, told: str, annotations: ToolAnnotations, local: Caller | None) -> Tool:
    """Return a tool whose arguments are the fields of the request, with their limits and without any others."""
    types = get_type_hints(offered)
    request: type[Request] = types["request"]

    async def tool(context: Context, sent: dict[str, Any]) -> Any:
        return await _telling(offered, context, local, request, sent)

    tool.__annotations__["return"] = types["return"]
    made = Tool.from_function(tool, offered.__name__, description=told, annotations=annotations)
    made.parameters, made.fn_metadata.arg_model = request.model_json_schema(), _AsSent
    return made


def _caller(context: Context, local: Caller | None) -> Caller:
    request = context.request_context.request
    caller: Caller | None = local if request is None else request.scope.get(CALLER)
    if caller is None:
        raise Refused(Problem(HTTPStatus.UNAUTHORIZED, "nobody is known to have sent this"))
    return caller


async def _telling(offered: Offered, context: Context, local: Caller | None, request: type[Request], sent: dict[str, Any]) -> Any:
    """Return an operation's answer, or the problem it has."""
    try:
        return await offered(_caller(context, local), request.model_validate(sent))
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        problem = Problem(HTTPStatus.UNPROCESSABLE_ENTITY, found, "what the tool's schema says")
    except Exception as error:  # noqa: BLE001 - the boundary to the client, which is told a problem; problem_of logs the rest
        problem = problem_of(error)
    return CallToolResult(content=[TextContent(type="text", text=json.dumps(problem.body()))], is_error=True)


__all__ = ["build_mcp"]
