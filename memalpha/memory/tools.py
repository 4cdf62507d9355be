"""Tools made from a memory schema, and conversion between tool calls and operations.

Tools: ``memory_insert``, ``memory_update`` and ``memory_delete`` (lists), ``memory_replace`` (blocks); each exists only if some
section allows it. Section is optional in updates and deletes. A wrong call becomes a failed result, never an exception.
"""

from __future__ import annotations

import math
from typing import Any

from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.types import Operation, OperationKind, OperationResult, ResultCode, ToolCall

TOOL_PREFIX = "memory_"
MAX_TIMESTAMP = 40
"""Longest timestamp of a call, in characters. Timestamps are not counted as memory, so they must not store facts."""

_CONTENT = {"type": "string", "description": "the text to keep, short and complete by itself"}
_ENTRY_ID = {"type": "string", "description": "the id of the entry, as shown in the memory"}
_TIMESTAMP = {"type": "string", "description": "when it was true, ISO 8601; left out, it is the time of the text"}
_IMPORTANCE = {"type": "number", "description": "weight of the entry, 1 unless it matters more or less"}
_DESCRIPTIONS = {
    OperationKind.INSERT: "Add a new entry to the memory.",
    OperationKind.UPDATE: "Replace the text of an entry that is no longer right.",
    OperationKind.DELETE: "Remove an entry that no longer holds.",
    OperationKind.REPLACE: "Replace the whole text of a section.",
}
_REQUIRED = {
    OperationKind.INSERT: ("section", "content"),
    OperationKind.UPDATE: ("entry_id", "content"),
    OperationKind.DELETE: ("entry_id",),
    OperationKind.REPLACE: ("section", "content"),
}
_OPTIONAL = {
    OperationKind.INSERT: ("timestamp", "importance"),
    OperationKind.UPDATE: ("section", "timestamp", "importance"),
    OperationKind.DELETE: ("section",),
    OperationKind.REPLACE: (),
}


def tool_name(kind: OperationKind) -> str:
    """Name of the tool that does an operation of that kind."""
    return TOOL_PREFIX + kind.value


def tool_schemas(schema: MemorySchema) -> list[dict[str, Any]]:
    """Return the tools of a schema as JSON function schemas, as chat templates and OpenAI-compatible servers take them."""
    return [_tool_schema(kind, schema) for kind in OperationKind if _sections_for(kind, schema)]


def _sections_for(kind: OperationKind, schema: MemorySchema) -> list[str]:
    return [section.name for section in schema.sections if kind in section.operations]


def _tool_schema(kind: OperationKind, schema: MemorySchema) -> dict[str, Any]:
    names = _sections_for(kind, schema)
    described = "; ".join(f"{name}: {schema[name].description}" for name in names)
    properties: dict[str, Any] = {
        "section": {"type": "string", "enum": names, "description": described},
        "entry_id": _ENTRY_ID,
        "content": _CONTENT,
        "timestamp": _TIMESTAMP,
        "importance": _IMPORTANCE,
    }
    if not any(schema[name].timestamps for name in names):
        del properties["timestamp"]
    wanted = _REQUIRED[kind] + _OPTIONAL[kind]
    parameters = {
        "type": "object",
        "properties": {name: value for name, value in properties.items() if name in wanted},
        "required": list(_REQUIRED[kind]),
    }
    return {"type": "function", "function": {"name": tool_name(kind), "description": _DESCRIPTIONS[kind], "parameters": parameters}}


def to_call(operation: Operation) -> ToolCall:
    """Return the tool call of an operation; the inverse of ``to_operation``."""
    wanted = _REQUIRED[operation.kind] + _OPTIONAL[operation.kind]
    values = {
        "section": operation.section,
        "entry_id": operation.entry_id,
        "content": operation.content,
        "timestamp": operation.timestamp,
        "importance": operation.importance,
    }
    return ToolCall(tool_name(operation.kind), {name: values[name] for name in wanted if values[name] is not None})


def to_operation(call: ToolCall, memory: Memory) -> Operation | OperationResult:
    """Return the operation of a call, or the failed result that says what is wrong with it."""
    try:
        kind = OperationKind(call.name.removeprefix(TOOL_PREFIX)) if call.name.startswith(TOOL_PREFIX) else None
    except ValueError:
        kind = None
    sections = _sections_for(kind, memory.schema) if kind else []
    if kind is None or not sections:
        known = ", ".join(tool_name(kind) for kind in OperationKind if _sections_for(kind, memory.schema))
        return OperationResult(False, ResultCode.UNKNOWN_TOOL, f"no tool {call.name!r}; there are: {known}")
    if problem := _argument_problem(kind, call):
        return OperationResult(False, ResultCode.BAD_ARGUMENTS, f"{call.name}: {problem}")
    arguments = call.arguments
    entry_id = str(arguments["entry_id"]) if "entry_id" in arguments else None
    section = arguments.get("section")
    if section is None:
        entry = memory.get(entry_id or "")
        section = entry.section if entry else sections[0]
    weight = arguments.get("importance")
    importance = None if weight is None else float(weight)
    return Operation(kind, section, arguments.get("content"), entry_id, arguments.get("timestamp"), importance)


def _argument_problem(kind: OperationKind, call: ToolCall) -> str | None:
    arguments = call.arguments
    if missing := [name for name in _REQUIRED[kind] if name not in arguments]:
        return f"missing {', '.join(missing)}"
    if unknown := [name for name in arguments if name not in _REQUIRED[kind] + _OPTIONAL[kind]]:
        return f"unknown {', '.join(sorted(unknown))}"
    for name in ("section", "content", "timestamp"):
        if name in arguments and not isinstance(arguments[name], str):
            return f"{name} must be a string"
        if not is_text(arguments.get(name, "")):
            return f"{name} holds a lone surrogate, which is no Unicode text"
    identifier = arguments.get("entry_id", "")
    if isinstance(identifier, bool) or not isinstance(identifier, str | int):
        return "entry_id must be a string"
    if len(arguments.get("timestamp", "")) > MAX_TIMESTAMP:
        return f"timestamp must be a time of at most {MAX_TIMESTAMP} characters"
    return _weight_problem(arguments.get("importance", 1.0))


def _weight_problem(weight: Any) -> str | None:
    try:
        if not isinstance(weight, bool) and isinstance(weight, int | float) and 0 <= float(weight) < math.inf:
            return None
    except OverflowError:  # an integer beyond the range of floats
        pass
    return "importance must be a number of at least 0"


def is_text(text: str) -> bool:
    """Whether a string is Unicode text without lone surrogates, which tokenizers reject."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
