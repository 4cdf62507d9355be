"""Codecs: text to tool calls and back. Parsing is linear and never raises: any text gives calls and
located errors, or neither.

``hermes``: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, about 34 tokens a call;
    text around calls is ignored.
``compact``: one operation a line, about 6 tokens a call, for small policies; every line must be an
    operation.
``compact_text``: like ``compact``, but calls name entries by their texts; the view shows no ids.
A model's thinking is no part of its calls; thinking that never ends is an error.
With ``searches`` there is one more call, which looks for entries: ``memory_search``, in the compact
notations ``? words``.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.memory.schema import SEARCH, MemorySchema, tool_name, tool_schemas
from memalpha.text import THINK, content_of, is_text
from memalpha.types import CallError, OperationKind, ParsedCompletion, ToolCall

_NO_TEXT = "the call holds a lone surrogate, which is no Unicode text"


class _Codec:
    reads_lines = False
    # whether ``entry_id`` of a call is the text of the entry as the view shows it; ``AgentStep``
    # finds it
    names_by_text = False
    begins_thinking = False  # whether the prompt has opened the thinking (``opens_thinking``)

    def parse(self, text: str, cut_off: bool = False) -> ParsedCompletion:
        """Read the calls beside the thinking; ``cut_off``: the text ended at a length limit."""
        before = THINK if self.begins_thinking else ""
        content, open_at = content_of(before + text, in_place=True, lines=self.reads_lines)
        items = self._items(content[len(before) :], cut_off)
        if open_at is not None:
            items.append(
                CallError("the thinking never ends", max(0, open_at - len(before)), len(text))
            )
        calls = tuple(item for item in items if isinstance(item, ToolCall))
        return ParsedCompletion(calls, tuple(item for item in items if isinstance(item, CallError)))

    def _items(self, text: str, cut_off: bool) -> list[ToolCall | CallError]:
        raise NotImplementedError


_EXPECTED = "expected an object with a string 'name' and an object 'arguments'"
_JSON = json.JSONDecoder(strict=False)  # a line break in a string may be a raw one
# characters behind an opening tag in which its strings may hold another: reading stays linear
_WINDOW = 16_384
_TAG = re.compile(r"<(/?)tool_call>")
_BEGIN = re.compile(r"<(/?)tool_call>|(?=<function=[\w.:]+>\s*<(?:parameter=|/function>))")
_GAP = re.compile(r"(?:[\s,;\[\]]|```\w*)*")  # around the calls of a block
_COMMA = re.compile(
    r'("(?:[^"\\]|\\.)*")|,(?=\s*[}\]])', re.DOTALL
)  # a string, or a comma that nothing follows
_PYTHON = re.compile(
    r"""(?s)\s*\{\s*'(?!.*(?:\\[^\\'"nt]|'\s*'|"\s*"))"""
)  # without what Python reads otherwise than a person
_NEXT = r"(?=\s*(?:<parameter=|<arg_key>|</function>|</tool_call>|\Z))"
_ARGUMENT = rf"(?s)\s*<(?:parameter=|arg_key>)(\w+)(?:>|</arg_key>\s*<arg_value>)\n?(.*?)\n?</(?:parameter|arg_value)>{_NEXT}"
_XML = re.compile(
    r"(?s)(?:<function=|(?=[\w.:]+\s*<arg_key>))([\w.:]+)>?"
    rf"((?:\s*<(?:parameter=|arg_key>)\w.*?</(?:parameter|arg_value)>{_NEXT})*+)(?:\s*</function>|(?=\s*</tool_call>))"
)
_PUBLISHED_TOOLS: dict[str, tuple[str, dict[str, Any]]] = {
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
    """Tool calls as JSON between ``<tool_call>`` tags; announced through the chat template's own
    ``tools=`` where it takes them.

    Chat models write more, and it is read where it has one reading: several calls or a list in a
    block, a fence around them, no closing tag before the next block or the end, ``parameters``,
    arguments as a JSON string, null for an optional argument, raw line breaks, a comma too many,
    one Python dict, the XML of Qwen3-Coder (also without tags around it) and GLM, a namespace
    before the name, tools and arguments by their names in both published systems. Bare JSON and
    other tags are text.
    """

    name = "hermes"

    def __init__(self, schema: MemorySchema, searches: bool = False) -> None:
        self.schema, self.searches = schema, searches
        self._parameters = {
            tool["function"]["name"]: tool["function"]["parameters"]
            for tool in tool_schemas(schema, searches)
        }

    def _items(self, text: str, cut_off: bool) -> list[ToolCall | CallError]:
        """Read every block; one that breaks off within a call is an error, whether or not the text
        was ``cut_off``.
        """
        items: list[ToolCall | CallError] = []
        begin = _BEGIN.search(text)
        while begin is not None:
            items += self._read_block(text, *begin.span(), closes=bool(begin[1]))
            begin = _BEGIN.search(text, items[-1].end)
        return items

    def _read_block(
        self, text: str, start: int, at: int, closes: bool
    ) -> list[ToolCall | CallError]:
        """Read the block from ``start``, whose content begins at ``at``: the same place for XML
        without a tag around it.
        """
        if closes:
            return [CallError("</tool_call> closes nothing", start, at)]
        bare = start == at
        following = re.compile("<tool_call>|<function=" if bare else "<tool_call>").search(
            text, at + bare
        )
        body = text[at : following.start() if following else None]
        for content in (
            body,
            text[at : at + _WINDOW],
            _COMMA.sub(lambda match: match[1] or " ", body),
        ):
            values, end = _read_values(content)
            close = _TAG.match(content, end)
            if values and (close or bare or end == len(content)):
                calls = [
                    self._read_call(data, at + first, at + last) for data, first, last in values
                ]
                calls[0] = replace(calls[0], start=start)
                calls[-1] = replace(
                    calls[-1], end=at + close.end() if close and close[1] else calls[-1].end
                )
                return calls
        close = _TAG.search(text, at)
        body = text[at : close.start() if close else None]
        end = close.end() if close and close[1] else at + len(body)
        call = self._read_call(_python_dict(body), start, end)
        if isinstance(call, CallError):
            call = replace(
                call, message=_fault(body) if close and close[1] else "<tool_call> is never closed"
            )
        return [call]

    def _read_call(self, data: Any, start: int, end: int) -> ToolCall | CallError:
        data = data if isinstance(data, dict) else {}
        data = (
            data["function"] if isinstance(data.get("function"), dict) else data
        )  # as chat servers write calls
        name, arguments = data.get("name"), data.get("arguments", data.get("parameters"))
        try:
            arguments = _JSON.decode(arguments) if isinstance(arguments, str) else arguments
            if not isinstance(name, str) or not isinstance(arguments, dict):
                return CallError(_EXPECTED, start, end)
            if not is_text(json.dumps([name, arguments], ensure_ascii=False)):
                return CallError(_NO_TEXT, start, end)
        except (ValueError, RecursionError) as error:
            return CallError(f"not JSON: {str(error)[:120]}", start, end)
        return ToolCall(*self._in_own_words(name, arguments), start, end)

    def _in_own_words(self, name: str, arguments: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Return name and arguments as this schema calls them; what it does not know stays, and
        fails when it is applied.
        """
        name = re.sub(r"^(?:functions|tools|default_api)\.(\w+)(?::\d+)?$", r"\1", name)
        name, given = (
            _PUBLISHED_TOOLS.get(name, (name, {})) if name not in self._parameters else (name, {})
        )
        if name not in self._parameters:
            return name, arguments
        own = self._parameters[name]["properties"]
        given = given | {
            key if key in own else _PUBLISHED_ARGUMENTS.get(key, key): value
            for key, value in arguments.items()
        }
        given = (
            given if len(given) >= len(arguments) else arguments
        )  # one thing by two names: not known
        section = str(given.get("section")).removesuffix("_memory")
        if section in self.schema and given["section"] not in self.schema:
            given["section"] = section
        if (
            name == "memory_update"
            and section in map(attrgetter("name"), self.schema.blocks)
            and "entry_id" not in arguments
        ):
            name = "memory_replace"  # the published core has no ids
            given.pop("entry_id", None)
        required = self._parameters[name]["required"]
        return name, {
            key: value for key, value in given.items() if value is not None or key in required
        }

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Write one block a call; tags inside arguments are escaped, and JSON restores them."""
        blocks = []
        for call in calls:
            body = json.dumps(
                {"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False
            )
            blocks.append(
                "<tool_call>\n" + re.sub(r"<(?=/?tool_call>)", r"\\u003c", body) + "\n</tool_call>"
            )
        return "\n".join(blocks)


def _read_values(content: str) -> tuple[list[tuple[Any, int, int]], int]:
    """Return the calls that a block's content begins with, each with its start and end, and where
    the gap behind them ends.
    """
    values: list[tuple[Any, int, int]] = []
    end = 0
    while True:
        start = next(_GAP.finditer(content, end)).end()
        data, end = _read_value(content, start)
        if end == start:
            return values, start
        values.append((data, start, end))


def _read_value(content: str, start: int) -> tuple[Any, int]:
    """Return the call at a place, as data, and its end; the place itself if there is none."""
    if content.startswith("{", start):
        with suppress(ValueError, RecursionError):
            return _JSON.raw_decode(content, start)
    match = _XML.match(content, start)
    parts = re.findall(_ARGUMENT, match[2]) if match else []
    arguments = {name: None if text in ("null", "None") else text for name, text in parts}
    if match is None or len(arguments) < len(parts):
        return None, start
    return {"name": match[1], "arguments": arguments}, match.end()


def _python_dict(body: str) -> Any:
    """Return the Python dict that a text is; None if it is none, or could be read otherwise."""
    with suppress(ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        data = ast.literal_eval(body.strip()) if _PYTHON.match(body) else None
        return data if json.loads(json.dumps(data)) == data else None
    return None


def _fault(body: str) -> str:
    try:
        json.loads(body)
    except (ValueError, RecursionError) as error:
        return f"not JSON: {'nested too deeply' if isinstance(error, RecursionError) else str(error)[:120]}"
    return _EXPECTED


class CompactCodec(_Codec):
    """``+ text`` inserts into the first list section (``+e text`` into episodic), ``= id text``
    updates, ``- id`` deletes.

    ``* text`` replaces the first block (``*p text`` another), ``.`` does nothing. A section is
    named by the shortest beginning that no other has, or by more of its name. No timestamps. ``link
    Ann | Bob`` calls a tool of one's own (``render`` writes none).
    """

    name = "compact"
    reads_lines = True
    _LINE = re.compile(
        r"(?P<sign>[+=*-])(?P<section>[a-z_][a-z0-9_]*)?[ \t]+(?P<rest>\S.*)", re.ASCII | re.DOTALL
    )
    _FORMS = "'+ text', '= id text', '- id' or '.'"
    _NAMED = ("id", "text")

    def __init__(self, schema: MemorySchema, searches: bool = False) -> None:
        self.schema, self.searches = schema, searches
        inserts = [
            section.name for section in schema.lists if OperationKind.INSERT in section.operations
        ]
        self._sections = {
            "+": _shortened(inserts),
            "*": _shortened([section.name for section in schema.blocks]),
        }
        self._tools = {tool.name: tuple(tool.arguments) for tool in schema.tools}
        if lists := [
            tool.name
            for tool in schema.tools
            for each in tool.arguments.values()
            if each["type"] == "array"
        ]:
            raise InputError(
                f"the tool {lists[0]!r} takes a list",
                expected="str, int, float or bool",
                fix="or codec: hermes",
            )

    def _items(self, text: str, cut_off: bool) -> list[ToolCall | CallError]:
        """Read line by line; empty lines and ``.`` do nothing. If ``cut_off``, an unfinished last
        line is an error.
        """
        items = [self._read_line(*line) for line in self._lines(text)]
        if cut_off and items and items[-1].end == len(text):
            items[-1] = CallError("cut off by the length limit", items[-1].start, items[-1].end)
        return items

    def _lines(self, text: str) -> list[_Line]:
        lines = [_Line(match[0].strip(), *match.span()) for match in re.finditer(r"[^\n]+", text)]
        return [line for line in lines if line.text not in ("", ".")]

    def operations(self) -> str:
        """Return the operations that the schema allows, one form a line, for the instructions."""
        allowed = {kind for section in self.schema.sections for kind in section.operations}
        forms = {
            sign: [
                f"{sign}{short} text" + (f" ({name})" if len(self.schema.sections) > 1 else "")
                for name, short in named.items()
            ]
            for sign, named in self._sections.items()
        }
        lines = forms["+"]
        lines += [self._update(*self._NAMED)] if OperationKind.UPDATE in allowed else []
        lines += [f"- {self._NAMED[0]}"] if OperationKind.DELETE in allowed else []
        own = [
            f"{self._form(tool.name)} ({tool.schema['function']['description']})"
            for tool in self.schema.tools
        ]
        search = ["? words (finds entries that are not shown; then write)"] if self.searches else []
        return "\n".join(lines + forms["*"] + search + own)

    def _form(self, tool: str) -> str:
        return f"{tool} {' | '.join(self._tools[tool])}".strip()

    def _read_line(self, line: str, start: int, end: int) -> ToolCall | CallError:
        match, (tool, *own) = self._LINE.fullmatch(line), line.split(maxsplit=1)
        if self.searches and tool == "?" and own and is_text(line):
            return ToolCall(SEARCH, {"query": own[0]}, start, end)
        if match is None and tool not in self._tools:
            return CallError(f"expected {self._FORMS}", start, end)
        if not is_text(line):
            return CallError(_NO_TEXT, start, end)
        if match is None:
            return self._read_own(tool, "".join(own), start, end)
        sign, section, rest = match["sign"], match["section"], match["rest"]
        if sign in "+*":
            kind = OperationKind.INSERT if sign == "+" else OperationKind.REPLACE
            named = self._sections[sign]
            if section is None and not named:
                return CallError(f"this memory has no section for {sign!r}", start, end)
            section = next(iter(named)) if section is None else section
            fitting = (
                [section]
                if section in named
                else [name for name in named if name.startswith(section)]
            )
            return ToolCall(
                tool_name(kind),
                {"section": fitting[0] if len(fitting) == 1 else section, "content": rest},
                start,
                end,
            )
        if section is not None:
            return CallError(f"expected a space after {sign!r}", start, end)
        return self._read_correction(sign, rest, start, end)

    def _read_own(self, tool: str, rest: str, start: int, end: int) -> ToolCall | CallError:
        names, pieces = (
            self._tools[tool],
            [piece.strip() for piece in rest.split("|")] if rest else [],
        )
        if len(pieces) > len(names):
            return CallError(f"expected {self._form(tool)!r}", start, end)
        return ToolCall(
            tool,
            {name: piece for name, piece in zip(names, pieces, strict=False) if piece},
            start,
            end,
        )

    def _read_correction(self, sign: str, rest: str, start: int, end: int) -> ToolCall | CallError:
        entry_id, _, content = rest.partition(" ")
        if sign == "-":
            if content:
                return CallError("expected only an id after '-'", start, end)
            return ToolCall(tool_name(OperationKind.DELETE), {"entry_id": entry_id}, start, end)
        if not content.strip():
            return CallError("expected '= id text'", start, end)
        return ToolCall(
            tool_name(OperationKind.UPDATE),
            {"entry_id": entry_id, "content": content.strip()},
            start,
            end,
        )

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Write one line a call, or ``.``; ValueError for a timestamp, an empty content or an
        unknown tool.
        """
        return "\n".join(self._write_line(call) for call in calls) or "."

    def _write_line(self, call: ToolCall) -> str:
        arguments = call.arguments
        if call.name == SEARCH:
            return f"? {' '.join(arguments['query'].split())}"
        kind = OperationKind(call.name.removeprefix("memory_"))
        content = " ".join(str(arguments.get("content", "")).split())
        if "timestamp" in arguments:
            raise ValueError(f"the {self.name} notation has no place for a timestamp: {call}")
        if not content and kind is not OperationKind.DELETE:
            raise ValueError(f"the {self.name} notation has no empty content: {call}")
        if kind is OperationKind.DELETE:
            return f"- {arguments['entry_id']}"
        if kind is OperationKind.UPDATE:
            return self._update(str(arguments["entry_id"]), content)
        sign = "+" if kind is OperationKind.INSERT else "*"
        section = arguments["section"]
        return f"{sign}{self._sections[sign].get(section, section)} {content}"

    def _update(self, entry_id: str, content: str) -> str:
        return f"= {entry_id} {content}"


class CompactTextCodec(CompactCodec):
    """``= old text`` and ``> new text`` on the next line update, ``- old text`` deletes; the rest
    is as in ``compact``.
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

    def _read_correction(self, sign: str, rest: str, start: int, end: int) -> ToolCall | CallError:
        if sign == "-":
            return ToolCall(tool_name(OperationKind.DELETE), {"entry_id": rest}, start, end)
        if "\n" not in rest:
            return CallError("expected '> new text' on the line after '= old text'", start, end)
        old, _, new = rest.partition("\n")
        return ToolCall(
            tool_name(OperationKind.UPDATE),
            {"entry_id": old, "content": new[1:].lstrip(" \t")},
            start,
            end,
        )

    def _update(self, entry_id: str, content: str) -> str:
        return f"= {entry_id}\n> {content}"


def _shortened(names: Sequence[str]) -> dict[str, str]:
    """Return how calls name each section: the first not at all, the others by their shortest unique
    beginning.
    """

    def short(name: str) -> str:
        beginnings = (name[:end] for end in range(1, len(name)))
        return next(
            (part for part in beginnings if sum(other.startswith(part) for other in names) == 1),
            name,
        )

    return {name: short(name) if place else "" for place, name in enumerate(names)}


class _Line(NamedTuple):
    text: str  # stripped
    start: int
    end: int


Codec = HermesCodec | CompactCodec
CODECS: dict[str, type[Codec]] = {
    codec.name: codec for codec in (HermesCodec, CompactCodec, CompactTextCodec)
}


def make_codec(name: str, schema: MemorySchema, searches: bool = False) -> Codec:
    """Return the codec of that name for a schema; InputError if there is none."""
    if name not in CODECS:
        raise InputError(f"unknown codec {name!r}", expected=f"one of {', '.join(sorted(CODECS))}")
    return CODECS[name](schema, searches)
