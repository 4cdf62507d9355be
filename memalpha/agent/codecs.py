"""Codecs: text to tool calls and back.

Parsing is linear and never raises: any text gives calls and located errors, or neither. A model's
thinking is no part of its calls, and thinking that never ends is an error.

``hermes``: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, about 34 tokens a call;
    text around calls is ignored.
``compact``: one operation a line, about 6 tokens a call, for small policies; every line must be an
    operation.
``compact_text``: as ``compact``, but calls name entries by their texts; the view shows no ids.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.memory.schema import MemorySchema, tool_name, tool_schemas
from memalpha.text.quoting import is_text
from memalpha.text.thinking import THINK, content_of
from memalpha.types import CallError, JsonObject, OperationKind, ToolCall

_NO_TEXT = "the call holds a lone surrogate, which is no Unicode text"


class _Codec:
    name: str
    reads_lines = False
    names_by_text = False  # whether ``entry_id`` of a call is the entry's text as the view shows it
    begins_thinking = False  # whether the prompt has opened the thinking (``opens_thinking``)

    def __init__(self, schema: MemorySchema) -> None:
        self.schema = schema

    def parse(self, text: str, cut_off: bool = False) -> list[ToolCall | CallError]:
        """Return the calls beside the thinking, and the errors, in order.

        ``cut_off``: the text ended at a length limit.
        """
        content, open_at = self._without_thinking(text)
        items = self._items(content, cut_off)
        if open_at is not None:
            items.append(CallError("the thinking never ends", open_at, len(text)))
        return items

    def spans(self, text: str, cut_off: bool = False) -> list[tuple[int, int]]:
        """Return where each call and each error begins and ends, in order.

        Without any: all that is no thinking, which is what is written for silence.
        """
        items = self.parse(text, cut_off)
        if items:
            return [(item.start, item.end) for item in items]
        content, _ = self._without_thinking(text)
        start = len(content) - len(content.lstrip())
        return [(start, len(content.rstrip()))] if content.strip() else []

    def _without_thinking(self, text: str) -> tuple[str, int | None]:
        """Return the text, its thinking blanked, and where thinking begins that never ends."""
        before = THINK if self.begins_thinking else ""
        content, open_at = content_of(before + text, in_place=True, lines=self.reads_lines)
        begins = None if open_at is None else max(0, open_at - len(before))
        return content[len(before) :], begins

    def _items(self, text: str, cut_off: bool) -> list[ToolCall | CallError]:
        raise NotImplementedError


# ------------------------------------------------------------------------------------------------
# JSON, and what else chat models write, between tags
_EXPECTED = "expected an object with a string 'name' and an object 'arguments'"
_JSON = json.JSONDecoder(strict=False)  # a line break in a string may be a raw one
# characters behind an opening tag in which its strings may hold another: reading stays linear
_WINDOW = 16_384
_TAG = re.compile(r"<(/?)tool_call>")
_OPEN = re.compile("<tool_call>")
_GAP = re.compile(r"(?:[\s,;\[\]]|```\w*)*")  # around the calls of a block
# a string, or a comma that nothing follows
_COMMA = re.compile(r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL)
_BEGIN = re.compile(r"<(/?)tool_call>|(?=<function=[\w.:]+>\s*<(?:parameter=|/function>))")
_BARE_END = re.compile("<tool_call>|<function=")
# a Python dict, without what Python reads otherwise than a person
_PYTHON = re.compile(r"""(?s)\s*\{\s*'(?!.*(?:\\[^\\'"nt]|'\s*'|"\s*"))""")
# XML of Qwen3-Coder (<function=..> <parameter=..>) and of GLM (name <arg_key> <arg_value>)
_NEXT = r"(?=\s*(?:<parameter=|<arg_key>|</function>|</tool_call>|\Z))"
_ARGUMENT = re.compile(
    r"(?s)\s*<(?:parameter=|arg_key>)(\w+)(?:>|</arg_key>\s*<arg_value>)\n?(.*?)\n?"
    rf"</(?:parameter|arg_value)>{_NEXT}"
)
_XML = re.compile(
    r"(?s)(?:<function=|(?=[\w.:]+\s*<arg_key>))([\w.:]+)>?"
    rf"((?:\s*<(?:parameter=|arg_key>)\w.*?</(?:parameter|arg_value)>{_NEXT})*+)"
    r"(?:\s*</function>|(?=\s*</tool_call>))"
)
_NAMESPACE = re.compile(r"^(?:functions|tools|default_api)\.(\w+)(?::\d+)?$")
_PUBLISHED_TOOLS: dict[str, tuple[str, JsonObject]] = {
    "new_memory_insert": ("memory_insert", {}),
    "core_memory_update": ("memory_replace", {"section": "core"}),
}
_PUBLISHED_ARGUMENTS = {
    "memory_type": "section",
    "category": "section",
    "new_content": "content",
    "memory_id": "entry_id",
}


class HermesCodec(_Codec):
    """Tool calls as JSON between ``<tool_call>`` tags, as most chat templates announce tools.

    Chat models write more, and it is read where it has one reading: several calls or a list in a
    block, a fence around them, no closing tag before the next block or the end, ``parameters``,
    arguments as a JSON string, null for an optional argument, raw line breaks, a comma too many, a
    Python dict, the XML of Qwen3-Coder (also without tags around it) and of GLM, a namespace before
    the name, tools and arguments by their names in both published systems. Bare JSON and other tags
    are text.
    """

    name = "hermes"

    def __init__(self, schema: MemorySchema) -> None:
        super().__init__(schema)
        functions = [tool["function"] for tool in tool_schemas(schema)]
        self._parameters = {function["name"]: function["parameters"] for function in functions}

    def _items(self, text: str, cut_off: bool) -> list[ToolCall | CallError]:
        items: list[ToolCall | CallError] = []
        begin = _BEGIN.search(text)
        while begin is not None:
            if begin[1]:
                items.append(CallError("</tool_call> closes nothing", *begin.span()))
            else:
                items += self._read_block(text, *begin.span())
            begin = _BEGIN.search(text, items[-1].end)
        return items

    def _read_block(self, text: str, start: int, at: int) -> list[ToolCall | CallError]:
        """Read the block whose tag is from ``start`` to ``at``; the same for XML without a tag."""
        bare = start == at
        following = _BARE_END.search(text, at + 1) if bare else _OPEN.search(text, at)
        body = text[at : following.start() if following else None]
        for content in (body, text[at : at + _WINDOW], _COMMA.sub(_without_comma, body)):
            calls, end = self._read_calls(content, at)
            close = _TAG.match(content, end)
            if calls and (close or bare or end == len(content)):
                calls[0] = replace(calls[0], start=start)
                if close and close[1]:
                    calls[-1] = replace(calls[-1], end=at + close.end())
                return calls
        close = _TAG.search(text, at)
        body = text[at : close.start() if close else None]
        is_closed = close is not None and bool(close[1])
        end = close.end() if close and is_closed else at + len(body)
        call = self._read_call(_python_dict(body), start, end)
        if isinstance(call, CallError):
            call = replace(
                call, message=_fault(body) if is_closed else "<tool_call> is never closed"
            )
        return [call]

    def _read_calls(self, content: str, at: int) -> tuple[list[ToolCall | CallError], int]:
        """Read the calls that a block's content begins with; return where the gap behind them ends.

        ``at`` is the place of the content in the completion.
        """
        calls: list[ToolCall | CallError] = []
        start = next(_GAP.finditer(content)).end()
        data, end = _read_value(content, start)
        while end > start:
            calls.append(self._read_call(data, at + start, at + end))
            start = next(_GAP.finditer(content, end)).end()
            data, end = _read_value(content, start)
        return calls, start

    def _read_call(self, data: Any, start: int, end: int) -> ToolCall | CallError:
        if isinstance(data, dict) and isinstance(data.get("function"), dict):
            data = data["function"]  # as chat servers write calls
        if not isinstance(data, dict):
            return CallError(_EXPECTED, start, end)
        name = data.get("name")
        arguments = data.get("arguments", data.get("parameters"))
        try:
            if isinstance(arguments, str):
                arguments = _JSON.decode(arguments)
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return CallError(_EXPECTED, start, end)
            if not is_text(json.dumps([name, arguments], ensure_ascii=False)):
                return CallError(_NO_TEXT, start, end)
        except (ValueError, RecursionError) as error:
            return CallError(f"not JSON: {str(error)[:120]}", start, end)
        return ToolCall(*self._in_own_words(name, arguments), start, end)

    def _in_own_words(self, name: str, arguments: JsonObject) -> tuple[str, JsonObject]:
        """Return name and arguments as this schema calls them.

        What it does not know stays, and fails when it is applied.
        """
        name = _NAMESPACE.sub(r"\1", name)
        preset: JsonObject = {}
        if name not in self._parameters:
            name, preset = _PUBLISHED_TOOLS.get(name, (name, {}))
        if name not in self._parameters:
            return name, arguments
        known = self._parameters[name]["properties"]
        renamed = dict(preset)
        for key, value in arguments.items():
            renamed[key if key in known else _PUBLISHED_ARGUMENTS.get(key, key)] = value
        if len(renamed) < len(arguments):  # one thing by two names: not known
            renamed = dict(arguments)
        section = str(renamed.get("section")).removesuffix("_memory")
        if section in self.schema and renamed["section"] not in self.schema:
            renamed["section"] = section
        blocks = [block.name for block in self.schema.blocks]
        if name == "memory_update" and section in blocks and "entry_id" not in arguments:
            name = "memory_replace"  # the published core has no ids
            renamed.pop("entry_id", None)
        required = self._parameters[name]["required"]
        return name, {
            key: value for key, value in renamed.items() if value is not None or key in required
        }

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Write one block a call; tags inside arguments are escaped, and JSON restores them."""
        blocks = []
        for call in calls:
            data = {"name": call.name, "arguments": dict(call.arguments)}
            body = json.dumps(data, ensure_ascii=False)
            escaped = re.sub(r"<(?=/?tool_call>)", r"\\u003c", body)
            blocks.append(f"<tool_call>\n{escaped}\n</tool_call>")
        return "\n".join(blocks)


def _read_value(content: str, start: int) -> tuple[Any, int]:
    """Return the call at a place, as data, and its end; the place itself if there is none."""
    if content.startswith("{", start):
        with suppress(ValueError, RecursionError):
            return _JSON.raw_decode(content, start)
    match = _XML.match(content, start)
    parts = _ARGUMENT.findall(match[2]) if match else []
    arguments = {name: None if text in ("null", "None") else text for name, text in parts}
    if match is None or len(arguments) < len(parts):
        return None, start
    return {"name": match[1], "arguments": arguments}, match.end()


def _python_dict(body: str) -> Any:
    """Return the Python dict that a text is; None if it is none, or could be read otherwise."""
    if _PYTHON.match(body) is None:
        return None
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        data = ast.literal_eval(body.strip())
        return data if json.loads(json.dumps(data)) == data else None
    return None


def _without_comma(match: re.Match[str]) -> str:
    return match[1] or " "


def _fault(body: str) -> str:
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {str(error)[:120]}"
    return _EXPECTED


# ------------------------------------------------------------------------------------------------
# an operation a line
_KINDS = {"+": OperationKind.INSERT, "*": OperationKind.REPLACE}
_Reading = tuple[str, JsonObject] | str
"""Name and arguments of a call, or what is wrong with it."""


class _Line(NamedTuple):
    text: str  # stripped
    start: int
    end: int


class CompactCodec(_Codec):
    """An operation a line: ``+ text`` inserts, ``= id text`` updates, ``- id`` deletes.

    ``+ text`` is for the first list section, ``+e text`` for episodic. ``* text`` replaces the
    first block (``*p text`` another), ``.`` does nothing. A section is named by the shortest
    beginning that no other has, or by more of its name. No timestamps. ``link Ann | Bob`` calls a
    tool of one's own (``render`` writes none).
    """

    name = "compact"
    reads_lines = True
    _LINE = re.compile(r"([+=*-])([a-z_][a-z0-9_]*)?[ \t]+(\S.*)", re.ASCII | re.DOTALL)
    _FORMS = "'+ text', '= id text', '- id' or '.'"
    _NAMED = ("id", "text")

    def __init__(self, schema: MemorySchema) -> None:
        super().__init__(schema)
        inserts = [
            section.name for section in schema.lists if OperationKind.INSERT in section.operations
        ]
        blocks = [section.name for section in schema.blocks]
        self._sections = {"+": _short_names(inserts), "*": _short_names(blocks)}
        self._tools = {tool.name: tuple(tool.arguments) for tool in schema.tools}
        for tool in schema.tools:
            if any(argument["type"] == "array" for argument in tool.arguments.values()):
                raise InputError(
                    f"the tool {tool.name!r} has a parameter that is a list, which this codec "
                    "cannot write",
                    expected="parameters of type str, int, float or bool",
                    fix="set codec: hermes, which also takes lists",
                )

    def _items(self, text: str, cut_off: bool) -> list[ToolCall | CallError]:
        """Read line by line; empty lines and ``.`` do nothing.

        If ``cut_off``, an unfinished last line is an error.
        """
        items: list[ToolCall | CallError] = []
        for line in self._lines(text):
            reading = self._read_line(line.text)
            if isinstance(reading, str):
                items.append(CallError(reading, line.start, line.end))
            else:
                items.append(ToolCall(*reading, line.start, line.end))
        if cut_off and items and items[-1].end == len(text):
            items[-1] = CallError("cut off by the length limit", items[-1].start, items[-1].end)
        return items

    def _lines(self, text: str) -> list[_Line]:
        lines = [_Line(match[0].strip(), *match.span()) for match in re.finditer(r"[^\n]+", text)]
        return [line for line in lines if line.text not in ("", ".")]

    def _read_line(self, line: str) -> _Reading:
        match = self._LINE.fullmatch(line)
        tool, *rest = line.split(maxsplit=1)
        if match is None and tool not in self._tools:
            return f"expected {self._FORMS}"
        if not is_text(line):
            return _NO_TEXT
        if match is None:
            return self._read_own(tool, "".join(rest))
        sign, section, content = match.groups()
        if sign in self._sections:
            return self._read_text(sign, section, content)
        if section is not None:
            return f"expected a space after {sign!r}"
        return self._read_correction(sign, content)

    def _read_text(self, sign: str, section: str | None, content: str) -> _Reading:
        named = self._sections[sign]
        if section is None and not named:
            return f"this memory has no section for {sign!r}"
        if section is None:
            section = next(iter(named))
        elif section not in named:
            fitting = [name for name in named if name.startswith(section)]
            section = fitting[0] if len(fitting) == 1 else section
        return tool_name(_KINDS[sign]), {"section": section, "content": content}

    def _read_own(self, tool: str, rest: str) -> _Reading:
        pieces = [piece.strip() for piece in rest.split("|")] if rest else []
        if len(pieces) > len(self._tools[tool]):
            return f"expected {self._form(tool)!r}"
        pairs = zip(self._tools[tool], pieces, strict=False)
        return tool, {name: piece for name, piece in pairs if piece}

    def _read_correction(self, sign: str, content: str) -> _Reading:
        entry_id, _, new = content.partition(" ")
        if sign == "-" and new:
            return "expected only an id after '-'"
        if sign == "-":
            return tool_name(OperationKind.DELETE), {"entry_id": entry_id}
        if not new.strip():
            return "expected '= id text'"
        return tool_name(OperationKind.UPDATE), {"entry_id": entry_id, "content": new.strip()}

    def operations(self) -> str:
        """Return the operations that the schema allows, one form a line, for the instructions."""
        allowed = {kind for section in self.schema.sections for kind in section.operations}
        lines = self._forms("+")
        if OperationKind.UPDATE in allowed:
            lines.append(self._write_update(*self._NAMED))
        if OperationKind.DELETE in allowed:
            lines.append(f"- {self._NAMED[0]}")
        lines += self._forms("*")
        for tool in self.schema.tools:
            lines.append(f"{self._form(tool.name)} ({tool.schema['function']['description']})")
        return "\n".join(lines)

    def _forms(self, sign: str) -> list[str]:
        several = len(self.schema.sections) > 1
        return [
            f"{sign}{short} text" + (f" ({name})" if several else "")
            for name, short in self._sections[sign].items()
        ]

    def _form(self, tool: str) -> str:
        return f"{tool} {' | '.join(self._tools[tool])}".strip()

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Write one line a call, or ``.``.

        ValueError for a timestamp, an empty content or an unknown tool.
        """
        return "\n".join(map(self._write_line, calls)) or "."

    def _write_line(self, call: ToolCall) -> str:
        arguments = call.arguments
        kind = OperationKind(call.name.removeprefix("memory_"))
        content = " ".join(str(arguments.get("content", "")).split())
        if "timestamp" in arguments:
            raise ValueError(f"the {self.name} notation has no place for a timestamp: {call}")
        if kind is OperationKind.DELETE:
            return f"- {arguments['entry_id']}"
        if not content:
            raise ValueError(f"the {self.name} notation has no empty content: {call}")
        if kind is OperationKind.UPDATE:
            return self._write_update(str(arguments["entry_id"]), content)
        sign = "+" if kind is OperationKind.INSERT else "*"
        section = arguments["section"]
        return f"{sign}{self._sections[sign].get(section, section)} {content}"

    def _write_update(self, entry_id: str, content: str) -> str:
        return f"= {entry_id} {content}"


class CompactTextCodec(CompactCodec):
    """``= old text`` and ``> new text`` on the next line update, ``- old text`` deletes.

    The rest is as in ``compact``.
    """

    name = "compact_text"
    names_by_text = True
    _FORMS = "'+ text', '= old text' with '> new text' on the next line, '- old text' or '.'"
    _NAMED = ("old text", "new text")
    _UPDATE = re.compile(r"=[ \t]+(\S[^\n]*)\n>[ \t]+(\S[^\n]*)", re.ASCII)

    def _lines(self, text: str) -> list[_Line]:
        lines: list[_Line] = []
        for line in super()._lines(text):
            joined = f"{lines[-1].text}\n{line.text}" if lines else ""
            if self._UPDATE.fullmatch(joined) and is_text(joined):
                lines[-1] = _Line(joined, lines[-1].start, line.end)
            else:
                lines.append(line)
        return lines

    def _read_correction(self, sign: str, content: str) -> _Reading:
        if sign == "-":
            return tool_name(OperationKind.DELETE), {"entry_id": content}
        old, _, new = content.partition("\n")
        if not new:
            return "expected '> new text' on the line after '= old text'"
        arguments = {"entry_id": old, "content": new[1:].lstrip(" \t")}
        return tool_name(OperationKind.UPDATE), arguments

    def _write_update(self, entry_id: str, content: str) -> str:
        return f"= {entry_id}\n> {content}"


def _short_names(names: Sequence[str]) -> dict[str, str]:
    """Return how calls name each section.

    The first not at all, the others by their shortest unique beginning.
    """
    return {name: _shortest(name, names) if place else "" for place, name in enumerate(names)}


def _shortest(name: str, names: Sequence[str]) -> str:
    for end in range(1, len(name)):
        if sum(other.startswith(name[:end]) for other in names) == 1:
            return name[:end]
    return name


# ------------------------------------------------------------------------------------------------
Codec = HermesCodec | CompactCodec
CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (HermesCodec, CompactCodec, CompactTextCodec)
}


def make_codec(name: str, schema: MemorySchema) -> Codec:
    """Return the codec of that name for a schema; InputError if there is none."""
    expected = f"one of {', '.join(sorted(CODECS))}"
    if name not in CODECS:
        raise InputError(f"unknown codec {name!r}", expected=expected)
    return CODECS[name](schema)
