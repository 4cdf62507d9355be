"""Memory schemas: the sections of a memory, the tools that a policy may call, and their calls.

Presets: ``mem_alpha``, a core block, semantic and episodic lists (arXiv 2509.25911, section 3.2);
``nine_categories``, nine topical lists and a core text (the second public system named Mem-alpha);
``small_core``, ``mem_alpha`` for a reader of few tokens; ``facts``, one list of dated facts.
A built-in tool exists where some section allows its operation. A schema may add tools of one's own
(``examples/own_tool.py``): functions that read a copy of the memory and say in built-in operations
what a call does. So the journal holds ordinary operations, and undo needs no inverse.
A wrong call becomes a failed result, never an exception; only a tool of one's own that fails
otherwise than by a ValueError raises InputError.
"""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, validate_call

from memalpha.config import ATTRIBUTE, Options, load_function, make_options
from memalpha.errors import InputError
from memalpha.files import path_of, read_object
from memalpha.text.quoting import is_text
from memalpha.text.times import ISO_8601, moment
from memalpha.types import (
    JsonObject,
    Operation,
    OperationKind,
    OperationResult,
    ResultCode,
    ToolCall,
)

if TYPE_CHECKING:
    from memalpha.memory.memory import Memory


def tool_name(kind: OperationKind) -> str:
    """Name of the tool that does an operation of that kind."""
    return f"memory_{kind.value}"


def tool_schema(
    name: str, description: str, properties: JsonObject, required: Sequence[str]
) -> JsonObject:
    """Return a tool as a JSON function schema, as chat templates take it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": dict(properties),
                "required": list(required),
            },
        },
    }


# ------------------------------------------------------------------------------------------------
# sections
class SectionKind(StrEnum):
    """Shape of a section."""

    BLOCK = "block"  # one text
    LIST = "list"  # entries
    ARCHIVE = "archive"  # what was read; in no schema, since every memory has it


_OPERATIONS = {
    SectionKind.BLOCK: (OperationKind.REPLACE,),
    SectionKind.LIST: (OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE),
    SectionKind.ARCHIVE: (OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE),
}


_Limit = Annotated[int, Field(ge=0, lt=2**31)]


@dataclass(frozen=True, slots=True)
class Section(Options):
    """One section of a memory.

    Attributes:
        name: The section has this name, which is unique and never the id of an entry.
        kind: The section is a list of entries or a block with one text.
        description: The policy and layer 1 of the retriever read here what belongs in the section.
        max_tokens: The text of a block has at most this many tokens; 0 = no limit.
        max_entry_tokens: An entry of a list has at most this many tokens; 0 = no limit.
        max_entries: A list has at most this many entries; 0 = no limit.
        timestamps: If true, entries have a time, which is the chunk's unless the policy gives
            another.
        operations: The policy may use these operations; an empty tuple allows all of the section's
            kind.
    """

    name: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*$", max_length=64)]
    kind: SectionKind = SectionKind.LIST
    description: str = ""
    max_tokens: _Limit = 0
    max_entry_tokens: _Limit = 0
    max_entries: _Limit = 0
    timestamps: bool = False
    operations: tuple[OperationKind, ...] = ()

    def check(self) -> None:
        """Set the default operations of its kind; InputError for those of the other kind."""
        allowed = _OPERATIONS[self.kind]
        wrong = [operation.value for operation in self.operations if operation not in allowed]
        if wrong:
            raise InputError(
                f"section {self.name!r} is a {self.kind} and allows {wrong}",
                expected=f"some of {', '.join(allowed)}",
            )
        object.__setattr__(self, "operations", self.operations or allowed)


ARCHIVE = Section("_archive", SectionKind.ARCHIVE, "what was read", timestamps=True)
"""Beside the sections of every schema; the policy neither sees nor writes it."""
OF_PROGRAMS: Mapping[str, str] = {
    "files": "files of Claude's memory tool are no statements",
    "items": "items of a LangGraph store are no statements",
}
"""Schemas of ``memalpha.clients``, and why no agent goes on with their memories."""


# ------------------------------------------------------------------------------------------------
# tools of one's own
_JSON_TYPES: Mapping[object, JsonObject] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    list[str]: {"type": "array", "items": {"type": "string"}},
}
_FORM = (
    "NAME(memory: Memory, a: str | int | float | bool | list[str], ...) -> list[Operation], "
    "all in Args of its docstring"
)


@dataclass(frozen=True)
class Tool:
    """A function as a tool of its name; InputError if its signature or docstring is not enough.

    ``schema`` is made of hints and docstring, without the memory, as TRL does for its tools.
    """

    function: Callable[..., list[Operation]]
    schema: JsonObject = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        doc = inspect.getdoc(self.function) or ""
        try:
            hints = get_type_hints(self.function)
            signature = inspect.signature(self.function)
            memory, *arguments = signature.parameters.values()
            if hints["return"] != list[Operation] or hints[memory.name].__name__ != "Memory":
                raise TypeError(f"its signature is {signature}")
            texts = {name: " ".join(text.split()) for name, text in ATTRIBUTE.findall(doc)}
            properties = {
                argument.name: {
                    **_JSON_TYPES[hints[argument.name]],
                    "description": texts[argument.name],
                }
                for argument in arguments
            }
        except Exception as error:
            raise InputError(
                f"{self.function!r} cannot be a tool: {type(error).__name__}: {error}",
                expected=_FORM,
            ) from error
        required = [argument.name for argument in arguments if argument.default is argument.empty]
        summary = re.split(r"^(?:Args|Returns|Raises):$", doc, flags=re.MULTILINE)[0]
        schema = tool_schema(self.name, " ".join(summary.split()), properties, required)
        object.__setattr__(self, "schema", schema)

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    @property
    def arguments(self) -> JsonObject:
        """JSON schema of each argument, in order."""
        return dict(self.schema["function"]["parameters"]["properties"])


# ------------------------------------------------------------------------------------------------
# schemas
_PRESETS = Path(__file__).parent / "presets"
_MOST = 128  # sections, and tools
_LARGEST = 2**17  # bytes of a file
_LONGEST = 200  # characters of a name


def presets() -> tuple[str, ...]:
    """Names of the schemas that ship with the package."""
    return tuple(sorted(path.stem for path in _PRESETS.glob("*.yaml")))


@dataclass(frozen=True, slots=True)
class MemorySchema:
    """The sections of a memory, in the order in which they are shown, and its tools.

    At least one section is a list.

    Attributes:
        name: The name of the schema.
        sections: The sections.
        tools: Tools of your own, besides insert, update, delete and replace.
    """

    name: str
    sections: tuple[Section, ...]
    tools: tuple[Tool, ...] = ()

    def __post_init__(self) -> None:
        who = f"schema {self.name!r}"
        sections = [section.name for section in self.sections]
        if _names_twice(sections):
            raise InputError(
                f"{who} names sections twice: {_names_twice(sections)}",
                expected="unique section names",
            )
        if (
            any(section.kind is SectionKind.ARCHIVE for section in self.sections)
            or ARCHIVE.name in sections
        ):
            raise InputError(
                f"{who} has a section {ARCHIVE.name!r}",
                expected="another name, since every memory has an archive",
            )
        if not self.lists:
            raise InputError(
                f"{who} has no list section",
                expected="at least one section of kind 'list'",
            )
        tools = [*map(tool_name, OperationKind), *(tool.name for tool in self.tools)]
        if _names_twice(tools):
            raise InputError(
                f"{who} names tools twice: {_names_twice(tools)}",
                expected="unique names that no built-in tool has",
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
    def from_mapping(cls, data: JsonObject, where: str = "schema") -> MemorySchema:
        """Build a schema from ``{name, sections: [{name, ...}], tools: [MODULE:FUNCTION, ...]}``.

        The modules of ``tools`` are imported; in Python you may give the functions.

        Args:
            data: The mapping.
            where: The name of the mapping in messages.

        Raises:
            InputError: The mapping is not a valid schema.
        """
        rows = data.get("sections") if isinstance(data, dict) else None
        if not rows or not isinstance(rows, list):
            raise InputError(
                f"{where} is no memory schema",
                expected="a mapping with 'name' and a list 'sections'",
            )
        parts = max(len(rows or ()), len(data.get("tools") or ()))
        if parts > _MOST:
            raise InputError(
                f"{where} has {parts} sections or tools",
                expected=f"at most {_MOST}, since the policy sees them all in each prompt",
            )
        unknown = sorted(set(data) - {"name", "sections", "tools"}, key=str)
        if unknown:
            raise InputError(
                f"{where} has unknown keys {unknown}",
                expected="'name', 'sections' and 'tools'",
            )
        named = data.get("name", "")
        if isinstance(named, dict | list) or len(str(named)) > _LONGEST:
            raise InputError(
                f"{where} has the name {named!r:.60}",
                expected=f"at most {_LONGEST} characters",
            )
        functions = data.get("tools", [])
        if not isinstance(functions, list):
            raise InputError(
                f"{where} has tools {functions!r}",
                expected="a list of MODULE:FUNCTION",
            )
        sections = [
            make_options(Section, row, f"{where}: section {place}")
            for place, row in enumerate(rows or ())
        ]
        loaded = [
            load_function(function, f"{where}: tools") if isinstance(function, str) else function
            for function in functions
        ]
        return cls(str(data.get("name", "custom")), tuple(sections), tuple(map(Tool, loaded)))

    @classmethod
    def load(cls, name_or_path: str | Path) -> MemorySchema:
        """Load a preset by name, or a YAML file by path.

        Args:
            name_or_path: The name or path.

        Raises:
            InputError: There is no such preset or file, or it is not a schema.
        """
        name = str(name_or_path)
        expected = f"a preset ({', '.join(presets())}) or the path of a YAML file"
        path = _PRESETS / f"{name}.yaml" if name in presets() else path_of(name, expected)
        if not path.is_file():
            raise InputError(f"there is no memory schema {name!r}", expected=expected)
        if path.stat().st_size > _LARGEST:
            raise InputError(
                f"the memory schema {name!r} has {path.stat().st_size} bytes",
                expected=f"at most {_LARGEST} bytes and {_MOST} sections",
            )
        return cls.from_mapping(read_object(path), where=name)


def _names_twice(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


# ------------------------------------------------------------------------------------------------
# calls


class _BuiltInSection(NamedTuple):
    description: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()


_BUILT_IN = {
    OperationKind.INSERT: _BuiltInSection(
        "Add a new entry to the memory.", ("section", "content"), ("timestamp",)
    ),
    OperationKind.UPDATE: _BuiltInSection(
        "Replace the text of an entry that is no longer right.",
        ("entry_id", "content"),
        ("section", "timestamp"),
    ),
    OperationKind.DELETE: _BuiltInSection(
        "Remove an entry that no longer holds.", ("entry_id",), ("section",)
    ),
    OperationKind.REPLACE: _BuiltInSection(
        "Replace the whole text of a section.", ("section", "content")
    ),
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
    """Return the operations of a call, or the failed result that names its fault.

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
            fix="correct the function; raise ValueError if the policy's call is wrong",
        ) from error
    if not isinstance(operations, list) or not all(
        isinstance(operation, Operation) for operation in operations
    ):
        raise InputError(
            f"the tool {tool.name} returned {operations!r} for {dict(arguments)}",
            expected="a list of Operation",
        )
    return operations or "it asks for no change"
