"""Calls of tools: how the tools of a schema are announced, and which operations a call asks for.

A wrong call becomes a failed result, never an exception; only a tool of one's own that fails
otherwise than by a ValueError raises InputError.
"""

from typing import NamedTuple

from pydantic import ConfigDict, ValidationError, validate_call

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema, Tool, tool_name, tool_schema
from memalpha.text import ISO_8601, is_text, moment
from memalpha.types import (
    JsonObject,
    Operation,
    OperationKind,
    OperationResult,
    ResultCode,
    ToolCall,
)


class _BuiltIn(NamedTuple):
    description: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


_BUILT_IN = {
    OperationKind.INSERT: _BuiltIn(
        "Add a new entry to the memory.", ("section", "content"), ("timestamp",)
    ),
    OperationKind.UPDATE: _BuiltIn(
        "Replace the text of an entry that is no longer right.",
        ("entry_id", "content"),
        ("section", "timestamp"),
    ),
    OperationKind.DELETE: _BuiltIn(
        "Remove an entry that no longer holds.", ("entry_id",), ("section",)
    ),
    OperationKind.REPLACE: _BuiltIn("Replace the whole text of a section.", ("section", "content")),
}
_ARGUMENTS = {
    "entry_id": "the id of the entry, as shown in the memory",
    "content": "the text to keep, short and complete by itself",
    "timestamp": "when it was true, ISO 8601; left out, it is the time of the text",
}


# ------------------------------------------------------------------------------------------------
# what is announced
def tool_schemas(schema: MemorySchema) -> list[JsonObject]:
    """Return the tools of a schema as JSON function schemas."""
    built_in = [_tool_schema(kind, schema) for kind in _kinds(schema)]
    return [*built_in, *(tool.schema for tool in schema.tools)]


def _kinds(schema: MemorySchema) -> list[OperationKind]:
    return [kind for kind in OperationKind if _sections_for(kind, schema)]


def _sections_for(kind: OperationKind, schema: MemorySchema) -> list[str]:
    return [section.name for section in schema.sections if kind in section.operations]


def _tool_schema(kind: OperationKind, schema: MemorySchema) -> JsonObject:
    tool = _BUILT_IN[kind]
    names = _sections_for(kind, schema)
    described = "; ".join(f"{name}: {schema[name].description}" for name in names)
    properties: JsonObject = {
        "section": {"type": "string", "enum": names, "description": described}
    }
    for name, text in _ARGUMENTS.items():
        properties[name] = {"type": "string", "description": text}
    if not any(schema[name].timestamps for name in names):
        del properties["timestamp"]
    shown = [name for name in properties if name in tool.required + tool.optional]
    return tool_schema(
        tool_name(kind), tool.description, {name: properties[name] for name in shown}, tool.required
    )


# ------------------------------------------------------------------------------------------------
# from operations to calls and back
def to_call(operation: Operation) -> ToolCall:
    """Return the tool call of an operation; the inverse of ``to_operation``."""
    tool = _BUILT_IN[operation.kind]
    values = {name: getattr(operation, name) for name in tool.required + tool.optional}
    arguments = {name: value for name, value in values.items() if value is not None}
    return ToolCall(tool_name(operation.kind), arguments)


def to_operations(call: ToolCall, memory: Memory) -> list[Operation] | OperationResult:
    """Return the operations of a call, or the failed result that says what is wrong with it.

    One operation, unless it is a call of a tool of one's own.
    """
    tool = {tool.name: tool for tool in memory.schema.tools}.get(call.name)
    requested = _own_operations(tool, memory, call.arguments) if tool else []
    if isinstance(requested, str):
        return OperationResult(False, ResultCode.BAD_ARGUMENTS, f"{call.name}: {requested}")
    operations = []
    for built_in in map(to_call, requested) if tool else [call]:
        operation = to_operation(built_in, memory)
        if isinstance(operation, OperationResult):
            return operation
        operations.append(operation)
    return operations


def to_operation(call: ToolCall, memory: Memory) -> Operation | OperationResult:
    """Return the operation of a call of a built-in tool, or the failed result."""
    kinds = {tool_name(kind): kind for kind in _kinds(memory.schema)}
    kind = kinds.get(call.name)
    if kind is None:
        names = ", ".join([*kinds, *(tool.name for tool in memory.schema.tools)])
        message = f"no tool {call.name!r}; there are: {names}"
        return OperationResult(False, ResultCode.UNKNOWN_TOOL, message)
    arguments = call.arguments
    problem = _problem(kind, arguments)
    if problem:
        return OperationResult(False, ResultCode.BAD_ARGUMENTS, f"{call.name}: {problem}")
    entry_id = str(arguments["entry_id"]) if "entry_id" in arguments else None
    section = arguments.get("section")
    if section == ARCHIVE.name:
        message = f"no section {section!r} that can be written"
        return OperationResult(False, ResultCode.UNKNOWN_SECTION, message)
    if section is None:
        entry = memory.get(entry_id or "")
        known = entry is not None and entry.section != ARCHIVE.name
        section = entry.section if entry and known else _sections_for(kind, memory.schema)[0]
    return Operation(kind, section, arguments.get("content"), entry_id, arguments.get("timestamp"))


def _problem(kind: OperationKind, arguments: JsonObject) -> str | None:
    """What is wrong with the arguments of a built-in tool; None if nothing is."""
    tool = _BUILT_IN[kind]
    missing = [name for name in tool.required if name not in arguments]
    if missing:
        return f"missing {', '.join(missing)}"
    unknown = set(arguments) - {*tool.required, *tool.optional}
    if unknown:
        return f"unknown {', '.join(sorted(unknown))}"
    for name, value in arguments.items():
        types = str | int if name == "entry_id" else str
        if isinstance(value, bool) or not isinstance(value, types):
            return f"{name} must be a string"
        if not is_text(str(value)):
            return f"{name} holds a lone surrogate, which is no Unicode text"
    time = arguments.get("timestamp")
    if time and moment(time) is None:
        return f"timestamp is {time!r:.60}, and must be {ISO_8601}"
    return None


def _own_operations(tool: Tool, memory: Memory, arguments: JsonObject) -> list[Operation] | str:
    """Return the operations of a call of a tool of one's own, or what is wrong with the call."""
    function = validate_call(config=ConfigDict(arbitrary_types_allowed=True))(tool.function)
    try:
        operations = function(memory.copy(), **arguments)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
        return "; ".join(problems)
    except ValueError as error:
        return " ".join(str(error).split()) or "refused"
    except Exception as error:
        raise InputError(
            f"the tool {tool.name} failed on {dict(arguments)}: {type(error).__name__}: {error}",
            fix="correct the function; ValueError says that the call is wrong",
        ) from error
    if not isinstance(operations, list) or not all(
        isinstance(operation, Operation) for operation in operations
    ):
        raise InputError(
            f"the tool {tool.name} returned {operations!r} for {dict(arguments)}",
            expected="a list of Operation",
        )
    return operations or "it asks for no change"
