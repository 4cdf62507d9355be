"""The MCP server: the operations as tools, over stdio or streamable HTTP.

The caller comes from the gate, or over stdio is fixed at start. A problem is an error result with the same JSON as over HTTP. There
is no tool to erase a whole namespace.
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

from memalpha import __version__
from memalpha.use.access import Caller
from memalpha.use.gate import CALLER
from memalpha.use.messages import Problem, Refused, invalid, problem_of
from memalpha.use.operations import OPERATIONS, Operation, Operations

INSTRUCTIONS = (
    "A long-term memory. Call add with what was said and should be remembered; the memory's own model decides what to keep, "
    "correct or delete. Call ask or search before you answer from memory. undo takes one operation back, forget erases an entry "
    "for good."
)


def build_mcp(operations: Operations, local: Caller | None = None) -> MCPServer:
    """Return the server that offers the operations; ``local`` is the caller over stdio."""
    tools = [_tool(operations, name, operation, local) for name, operation in OPERATIONS.items() if operation.tool]
    return MCPServer(
        "memalpha", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING", subscriptions=False, tools=tools
    )


class _AsSent(ArgModelBase):
    """Arguments as sent; the request's own model validates them, as over HTTP."""

    model_config = ConfigDict(extra="allow")

    def model_dump_one_level(self) -> dict[str, Any]:
        return {"sent": self.model_extra}


def _tool(operations: Operations, name: str, operation: Operation, local: Caller | None) -> Tool:
    """Return a tool whose arguments are exactly the fields of the request."""

    async def tool(context: Context, sent: dict[str, Any]) -> Any:
        try:
            return await operations.call(name, _caller(context, local), operation.request.model_validate(sent))
        except ValidationError as error:
            problem = invalid(error, "what the tool's schema says")
        except Exception as error:  # noqa: BLE001 - the client gets a problem; problem_of logs the rest
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
