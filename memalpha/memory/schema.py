"""Memory schemas and the tools made from them.

Presets: ``mem_alpha``: a core block, semantic and episodic lists (arXiv 2509.25911, section 3.2);
    ``nine_categories``: nine topical lists and a core text (the second public system named
    Mem-alpha); ``small_core``: ``mem_alpha`` for a reader of few tokens;
``facts``: one list of dated facts, for small policies.
A tool exists only if some section allows its operation, or if the schema adds it (``own_tools``). A
wrong call becomes a failed result, never an exception.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, NonNegativeInt

from memalpha.config import Options, load_function, read
from memalpha.errors import InputError
from memalpha.files import path_of, read_object
from memalpha.memory.own_tools import Tool
from memalpha.text import is_text
from memalpha.times import ISO_8601, moment
from memalpha.types import (
    CallError,
    Operation,
    OperationKind,
    OperationResult,
    ResultCode,
    ToolCall,
)

if TYPE_CHECKING:
    from memalpha.memory.memory import Memory


class SectionKind(StrEnum):
    """Shape of a section: one text, entries, or what was read (not in a schema: every memory has
    it).
    """

    BLOCK = "block"
    LIST = "list"
    ARCHIVE = "archive"


_ALLOWED_BY_KIND = {
    SectionKind.BLOCK: (OperationKind.REPLACE,),
    SectionKind.LIST: (OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE),
    SectionKind.ARCHIVE: (OperationKind.INSERT, OperationKind.DELETE),
}


@dataclass(frozen=True, slots=True)
class Section(Options):
    """One section of a memory; a limit of 0 is none."""

    name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$")]  # unique, and never an entry's id
    kind: SectionKind = SectionKind.LIST
    description: str = ""  # what belongs in it, for the policy and for layer 1 of the retriever
    max_tokens: NonNegativeInt = 0  # of a block's text
    max_entry_tokens: NonNegativeInt = 0  # of one list entry
    max_entries: NonNegativeInt = 0  # of a list
    timestamps: bool = False  # whether entries have a time, by default the chunk's
    operations: tuple[OperationKind, ...] = ()  # empty: all of its kind

    def check(self) -> None:
        """Set the default operations of its kind; InputError for those of the other kind."""
        of_kind = _ALLOWED_BY_KIND[self.kind]
        if not self.operations:
            object.__setattr__(self, "operations", of_kind)
        elif wrong := [op.value for op in self.operations if op not in of_kind]:
            allowed = ", ".join(of_kind)
            raise InputError(
                f"section {self.name!r} is a {self.kind} and allows {wrong}",
                expected=f"some of {allowed}",
            )


ARCHIVE = Section("_archive", SectionKind.ARCHIVE, "what was read", timestamps=True)
"""Beside the sections of every schema; the policy neither sees nor writes it (``memalpha.agent.archive``)."""


@dataclass(frozen=True, slots=True)
class MemorySchema:
    """The sections of a memory, in the order shown, and tools of one's own: unique names, at least
    one list section.
    """

    name: str
    sections: tuple[Section, ...]
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        names = [section.name for section in self.sections]
        if doubled := {name for name in names if names.count(name) > 1}:
            raise InputError(
                f"schema {self.name!r} names sections twice: {sorted(doubled)}",
                expected="unique section names",
            )
        if ARCHIVE.name in names or SectionKind.ARCHIVE in {
            section.kind for section in self.sections
        }:
            raise InputError(
                f"schema {self.name!r} has a section {ARCHIVE.name!r}",
                expected="another name: every memory has one",
            )
        if not self.lists:
            raise InputError(
                f"schema {self.name!r} has no list section",
                expected="at least one section of kind 'list'",
            )
        tools = [*map(tool_name, OperationKind), SEARCH, *(tool.name for tool in self.tools)]
        if doubled := {name for name in tools if tools.count(name) > 1}:
            raise InputError(
                f"schema {self.name!r} names tools twice: {sorted(doubled)}",
                expected="names not used yet",
            )

    def __contains__(self, name: object) -> bool:
        return any(section.name == name for section in (*self.sections, ARCHIVE))

    def __getitem__(self, name: str) -> Section:
        return {section.name: section for section in (*self.sections, ARCHIVE)}[name]

    @property
    def lists(self) -> tuple[Section, ...]:
        """The list sections, in order."""
        return tuple(section for section in self.sections if section.kind is SectionKind.LIST)

    @property
    def blocks(self) -> tuple[Section, ...]:
        """The block sections, in order."""
        return tuple(section for section in self.sections if section.kind is SectionKind.BLOCK)

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], where: str = "schema") -> MemorySchema:
        """Build a schema from ``{name, sections: [{name, kind, ...}], tools: [MODULE:FUNCTION,
        ...]}``.

        InputError, naming ``where``, if it is not valid. The modules of ``tools`` are imported;
        Python may give functions.
        """
        if (
            not isinstance(data, Mapping)
            or not isinstance(data.get("sections"), list)
            or not data["sections"]
        ):
            raise InputError(
                f"{where} is no memory schema",
                expected="a mapping with 'name' and a list 'sections'",
            )
        if unknown := sorted(set(data) - {"name", "sections", "tools"}, key=str):
            raise InputError(
                f"{where} has unknown keys {unknown}", expected="'name', 'sections' and 'tools'"
            )
        if not isinstance(named := data.get("tools", []), list):
            raise InputError(f"{where} has tools {named!r}", expected="a list of MODULE:FUNCTION")
        sections = (
            read(Section, row, f"{where}: section {i}") for i, row in enumerate(data["sections"])
        )
        tools = (
            Tool(load_function(each, f"{where}: tools") if isinstance(each, str) else each)
            for each in named
        )
        return cls(str(data.get("name", "custom")), tuple(sections), tuple(tools))

    @classmethod
    def load(cls, name_or_path: str | Path) -> MemorySchema:
        """Load a preset by name or a YAML file by path; InputError if neither exists or the file is
        no schema.
        """
        name, expected = (
            str(name_or_path),
            f"a preset ({', '.join(presets())}) or the path of a YAML file",
        )
        path = _PRESETS / f"{name}.yaml" if name in presets() else path_of(name, expected)
        if not path.is_file():
            raise InputError(f"no memory schema {name!r}", expected=expected)
        return cls.from_mapping(read_object(path), where=name)


_PRESETS = Path(__file__).parent / "presets"


def presets() -> tuple[str, ...]:
    """Names of the schemas that ship with the package."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.yaml")))


# ------------------------------------------------------------------------------------------------
# tools
_PREFIX = "memory_"

_ARGUMENTS = {
    "entry_id": {"type": "string", "description": "the id of the entry, as shown in the memory"},
    "content": {"type": "string", "description": "the text to keep, short and complete by itself"},
    "timestamp": {
        "type": "string",
        "description": "when it was true, ISO 8601; left out, it is the time of the text",
    },
}
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
    OperationKind.INSERT: ("timestamp",),
    OperationKind.UPDATE: ("section", "timestamp"),
    OperationKind.DELETE: ("section",),
    OperationKind.REPLACE: (),
}


SEARCH = (
    _PREFIX + "search"
)  # changes nothing; the agent answers it before the step goes on (``AgentConfig.searches``)
_QUERY = {"type": "string", "description": "words of the entries that are looked for"}
_SEARCH: dict[str, Any] = {
    "name": SEARCH,
    "description": "Find entries that are not shown. Call it alone: what it finds is the next message, and then you write.",
    "parameters": {"type": "object", "properties": {"query": _QUERY}, "required": ["query"]},
}


def tool_name(kind: OperationKind) -> str:
    """Name of the tool that does an operation of that kind."""
    return _PREFIX + kind.value


def tool_schemas(schema: MemorySchema, searches: bool = False) -> list[dict[str, Any]]:
    """Return the tools of a schema, with ``searches`` the search too, as JSON function schemas, as
    chat templates take them.
    """
    built_in = [_tool_schema(kind, schema) for kind in OperationKind if _sections_for(kind, schema)]
    search = [{"type": "function", "function": _SEARCH}] if searches else []
    return [*built_in, *search, *(tool.schema for tool in schema.tools)]


def _sections_for(kind: OperationKind, schema: MemorySchema) -> list[str]:
    return [section.name for section in schema.sections if kind in section.operations]


def _tool_schema(kind: OperationKind, schema: MemorySchema) -> dict[str, Any]:
    names = _sections_for(kind, schema)
    described = "; ".join(f"{name}: {schema[name].description}" for name in names)
    properties: dict[str, Any] = {
        "section": {"type": "string", "enum": names, "description": described},
        **_ARGUMENTS,
    }
    wanted = set(_REQUIRED[kind] + _OPTIONAL[kind])
    if not any(schema[name].timestamps for name in names):
        wanted.discard("timestamp")
    shown = {name: value for name, value in properties.items() if name in wanted}
    parameters = {"type": "object", "properties": shown, "required": list(_REQUIRED[kind])}
    return {
        "type": "function",
        "function": {
            "name": tool_name(kind),
            "description": _DESCRIPTIONS[kind],
            "parameters": parameters,
        },
    }


def to_call(operation: Operation) -> ToolCall:
    """Return the tool call of an operation; the inverse of ``to_operation``."""
    wanted = _REQUIRED[operation.kind] + _OPTIONAL[operation.kind]
    values = {name: getattr(operation, name) for name in wanted}
    return ToolCall(
        tool_name(operation.kind),
        {name: value for name, value in values.items() if value is not None},
    )


def query_of(call: ToolCall | CallError) -> str | None:
    """Return the query of a search; None for anything else, and for a search whose arguments are
    not one text.
    """
    if not isinstance(call, ToolCall) or call.name != SEARCH or set(call.arguments) != {"query"}:
        return None
    query = call.arguments["query"]
    return query if isinstance(query, str) and query.strip() else None


def to_operations(call: ToolCall, memory: Memory) -> list[Operation] | OperationResult:
    """Return the operations of a call, one unless it is of a tool of one's own, or the failed
    result as ``to_operation``.
    """
    tool = next((tool for tool in memory.schema.tools if tool.name == call.name), None)
    asked = tool.operations(memory, call.arguments) if tool else []
    if isinstance(asked, str):
        return OperationResult(False, ResultCode.BAD_ARGUMENTS, f"{call.name}: {asked}")
    found = [to_operation(each, memory) for each in (map(to_call, asked) if tool else [call])]
    failed = next((each for each in found if isinstance(each, OperationResult)), None)
    return failed or [each for each in found if isinstance(each, Operation)]


def to_operation(call: ToolCall, memory: Memory) -> Operation | OperationResult:
    """Return the operation of a call of a built-in tool, or the failed result that says what is
    wrong with it.
    """
    tools = {tool_name(kind): kind for kind in OperationKind if _sections_for(kind, memory.schema)}
    kind = tools.get(call.name)
    if kind is None:
        there = ", ".join([*tools, *(tool.name for tool in memory.schema.tools)])
        return OperationResult(
            False, ResultCode.UNKNOWN_TOOL, f"no tool {call.name!r}; there are: {there}"
        )
    if problem := _argument_problem(kind, call):
        return OperationResult(False, ResultCode.BAD_ARGUMENTS, f"{call.name}: {problem}")
    arguments = call.arguments
    entry_id = str(arguments["entry_id"]) if "entry_id" in arguments else None
    section = arguments.get("section")
    if section == ARCHIVE.name:
        return OperationResult(
            False, ResultCode.UNKNOWN_SECTION, f"no section {section!r} that can be written"
        )
    if section is None:
        entry = memory.get(entry_id or "")
        section = (
            entry.section
            if entry and entry.section != ARCHIVE.name
            else _sections_for(kind, memory.schema)[0]
        )
    return Operation(kind, section, arguments.get("content"), entry_id, arguments.get("timestamp"))


def _argument_problem(kind: OperationKind, call: ToolCall) -> str | None:
    arguments = call.arguments
    if missing := [name for name in _REQUIRED[kind] if name not in arguments]:
        return f"missing {', '.join(missing)}"
    if unknown := [name for name in arguments if name not in _REQUIRED[kind] + _OPTIONAL[kind]]:
        return f"unknown {', '.join(sorted(unknown))}"
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(
            value, str | int if name == "entry_id" else str
        ):
            return f"{name} must be a string"
        if not is_text(str(value)):
            return f"{name} holds a lone surrogate, which is no Unicode text"
    if (time := arguments.get("timestamp")) and moment(time) is None:
        return f"timestamp is {time!r:.60}, and must be {ISO_8601}"
    return None
