"""The MCP server: the same operations as tools, over stdio or streamable HTTP.

Over HTTP the caller is the one the gate settled for the request; over stdio it is the one the server was started for. Without
either, a tool refuses. A problem comes back as a tool result marked as an error, with the same JSON as over HTTP. Erasing a whole
namespace is not offered here: a model should not be able to.
"""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.mcpserver.utilities.func_metadata import ArgModelBase
from mcp.types import CallToolResult, TextContent, ToolAnnotations
from pydantic import ConfigDict, ValidationError

from memalpha.use.access import Caller
from memalpha.use.gate import CALLER
from memalpha.use.messages import Problem, Refused, invalid, problem_of
from memalpha.use.operations import OPERATIONS, Operation, Operations
from memalpha.version import __version__

INSTRUCTIONS = (
    "A long-term memory. Call add with what was said and should be remembered; the memory's own model decides what to keep, "
    "correct or delete. Call ask or search before you answer from memory. undo takes one operation back, forget erases an entry "
    "for good."
)


def build_mcp(operations: Operations, local: Caller | None = None) -> MCPServer:
    """Return the server that offers operations; ``local`` is the caller where there are no requests of HTTP (stdio)."""
    tools = [_tool(operations, name, operation, local) for name, operation in OPERATIONS.items() if operation.tool]
    return MCPServer(
        "memalpha", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING", subscriptions=False, tools=tools
    )


class _AsSent(ArgModelBase):
    """Arguments as they were sent: it is the request's model that judges them, as over HTTP."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        return {"sent": self.model_extra}


def _tool(operations: Operations, name: str, operation: Operation, local: Caller | None) -> Tool:
    """Return a tool whose arguments are the fields of the request, with their limits and without any others."""

    async def tool(context: Context, sent: dict[str, Any]) -> Any:
        try:
            return await operations.call(name, _caller(context, local), operation.request.model_validate(sent))
        except ValidationError as error:
            problem = invalid(error, "what the tool's schema says")
        except Exception as error:  # noqa: BLE001 - the boundary to the client, which is told a problem; problem_of logs the rest
            problem = problem_of(error)
        return CallToolResult(content=[TextContent(type="text", text=json.dumps(problem.body()))], is_error=True)

    tool.__annotations__["return"] = operation.answer
    hints = ToolAnnotations(read_only_hint=not operation.writes, destructive_hint=operation.writes or None, open_world_hint=False)
    made = Tool.from_function(tool, name, description=operation.description, annotations=hints)
    made.parameters, made.fn_metadata.arg_model = operation.request.model_json_schema(), _AsSent
    return made


def _caller(context: Context, local: Caller | None) -> Caller:
    request = context.request_context.request
    caller: Caller | None = local if request is None else request.scope.get(CALLER)
    if caller is None:
        raise Refused(Problem(HTTPStatus.UNAUTHORIZED, "nobody is known to have sent this"))
    return caller


__all__ = ["build_mcp"]
