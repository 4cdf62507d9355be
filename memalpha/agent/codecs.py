"""Codecs: text to tool calls and back. Parsing is linear and never raises: any text gives calls and located errors, or neither.

``hermes``: ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, about 34 tokens a call; text around calls is ignored.
``compact``: one operation a line, about 6 tokens a call, for small policies; every line must be an operation.
``compact_text``: like ``compact``, but calls name entries by their texts; the view shows no ids.
A model's thinking is no part of its calls; thinking that never ends is an error.
With ``searches`` there is one more call, which looks for entries: ``memory_search``, in the compact notations ``? words``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memalpha.errors import InputError
from memalpha.memory.schema import SEARCH, MemorySchema, tool_name
from memalpha.text import THINK, content_of, is_text
from memalpha.types import CallError, OperationKind, ParsedCompletion, ToolCall

_NO_TEXT = "the call holds a lone surrogate, which is no Unicode text"


class _Codec:
    reads_lines = False
    begins_thinking = False  # whether the prompt has opened the thinking (``opens_thinking``)

    def parse(self, text: str, cut_off: bool = False) -> ParsedCompletion:
        """Read the calls beside the thinking; ``cut_off``: the text ended at a length limit."""
        before = THINK if self.begins_thinking else ""
        content, open_at = content_of(before + text, in_place=True, lines=self.reads_lines)
        parsed = self._parse(content[len(before) :], cut_off)
        if open_at is not None:
            error = CallError("the thinking never ends", max(0, open_at - len(before)), len(text))
            return ParsedCompletion(parsed.calls, (*parsed.errors, error))
        return parsed

    def _parse(self, text: str, cut_off: bool) -> ParsedCompletion:
        raise NotImplementedError


class HermesCodec(_Codec):
    """Tool calls as JSON between ``<tool_call>`` tags; announced through the chat template's own ``tools=`` where it takes them."""

    name = "hermes"
    names_by_text = False
    _TAG = re.compile(r"<(/?)tool_call>")

    def __init__(self, schema: MemorySchema, searches: bool = False) -> None:
        self.schema, self.searches = schema, searches

    def _parse(self, text: str, cut_off: bool) -> ParsedCompletion:
        """Read every ``<tool_call>`` block; a block without closing tag is an error, whether or not the text was ``cut_off``."""
        found: list[ToolCall | CallError] = []
        opened: re.Match[str] | None = None
        for tag in self._TAG.finditer(text):
            if opened is not None and not tag[1]:
                found.append(CallError("<tool_call> is never closed", opened.start(), tag.start()))
            elif opened is None and tag[1]:
                found.append(CallError("</tool_call> closes nothing", tag.start(), tag.end()))
            elif opened is not None:
                found.append(_read_call(text[opened.end() : tag.start()], opened.start(), tag.end()))
            opened = tag if not tag[1] else None
        if opened is not None:
            found.append(CallError("<tool_call> is never closed", opened.start(), len(text)))
        return _sorted_out(found)

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Write one block a call; tags inside arguments are escaped, and JSON restores them."""
        blocks = []
        for call in calls:
            body = json.dumps({"name": call.name, "arguments": dict(call.arguments)}, ensure_ascii=False)
            blocks.append("<tool_call>\n" + re.sub(r"<(?=/?tool_call>)", r"\\u003c", body) + "\n</tool_call>")
        return "\n".join(blocks)


def _read_call(body: str, start: int, end: int) -> ToolCall | CallError:
    try:
        data = json.loads(body)
        whole = is_text(json.dumps(data, ensure_ascii=False))
    except ValueError as error:
        return CallError(f"not JSON: {str(error)[:120]}", start, end)
    except RecursionError:
        return CallError("not JSON: nested too deeply", start, end)
    if not whole:
        return CallError(_NO_TEXT, start, end)
    if not isinstance(data, dict) or not isinstance(data.get("name"), str) or not isinstance(data.get("arguments"), dict):
        return CallError("expected an object with a string 'name' and an object 'arguments'", start, end)
    return ToolCall(data["name"], data["arguments"], start, end)


def _sorted_out(found: Sequence[ToolCall | CallError]) -> ParsedCompletion:
    calls = tuple(item for item in found if isinstance(item, ToolCall))
    return ParsedCompletion(calls, tuple(item for item in found if isinstance(item, CallError)))


class CompactCodec(_Codec):
    """``+ text`` inserts into the first list section (``+e text`` into episodic), ``= id text`` updates, ``- id`` deletes.

    ``* text`` replaces the first block (``*p text`` another), ``.`` does nothing. A section is named by the shortest beginning that
    no other has, or by more of its name. No timestamps. ``link Ann | Bob`` calls a tool of one's own (``render`` writes none).
    """

    name = "compact"
    reads_lines = True
    names_by_text = False  # whether ``entry_id`` of a call is the text of the entry as the view shows it; ``AgentStep`` finds it
    _LINE = re.compile(r"(?P<sign>[+=*-])(?P<section>[a-z_][a-z0-9_]*)?[ \t]+(?P<rest>\S.*)", re.ASCII | re.DOTALL)
    _FORMS = "'+ text', '= id text', '- id' or '.'"
    _NAMED = ("id", "text")

    def __init__(self, schema: MemorySchema, searches: bool = False) -> None:
        self.schema, self.searches = schema, searches
        inserts = [section.name for section in schema.lists if OperationKind.INSERT in section.operations]
        self._sections = {"+": _shortened(inserts), "*": _shortened([section.name for section in schema.blocks])}
        self._tools = {tool.name: tuple(tool.arguments) for tool in schema.tools}
        if lists := [tool.name for tool in schema.tools for each in tool.arguments.values() if each["type"] == "array"]:
            raise InputError(f"the tool {lists[0]!r} takes a list", expected="str, int, float or bool", fix="or codec: hermes")

    def _parse(self, text: str, cut_off: bool) -> ParsedCompletion:
        """Read line by line; empty lines and ``.`` do nothing. If ``cut_off``, an unfinished last line is an error."""
        found = list(self._read_lines(_spoken(text)))
        if cut_off and found and found[-1].end == len(text):
            found[-1] = CallError("cut off by the length limit", found[-1].start, found[-1].end)
        return _sorted_out(found)

    def operations(self) -> str:
        """Return the operations that the schema allows, one form a line, for the instructions."""
        allowed = {kind for section in self.schema.sections for kind in section.operations}
        forms = {
            sign: [f"{sign}{short} text" + (f" ({name})" if len(self.schema.sections) > 1 else "") for name, short in named.items()]
            for sign, named in self._sections.items()
        }
        lines = forms["+"]
        lines += [self._update(*self._NAMED)] if OperationKind.UPDATE in allowed else []
        lines += [f"- {self._NAMED[0]}"] if OperationKind.DELETE in allowed else []
        own = [f"{self._form(tool.name)} ({tool.schema['function']['description']})" for tool in self.schema.tools]
        search = ["? words (finds entries that are not shown; then write)"] if self.searches else []
        return "\n".join(lines + forms["*"] + search + own)

    def _form(self, tool: str) -> str:
        return f"{tool} {' | '.join(self._tools[tool])}".strip()

    def _read_lines(self, lines: Iterable[_Line]) -> Iterator[ToolCall | CallError]:
        return (self._read_line(*line) for line in lines)

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
            fitting = [section] if section in named else [name for name in named if name.startswith(section)]
            return ToolCall(tool_name(kind), {"section": fitting[0] if len(fitting) == 1 else section, "content": rest}, start, end)
        if section is not None:
            return CallError(f"expected a space after {sign!r}", start, end)
        return self._read_correction(sign, rest, start, end)

    def _read_own(self, tool: str, rest: str, start: int, end: int) -> ToolCall | CallError:
        names, pieces = self._tools[tool], [piece.strip() for piece in rest.split("|")] if rest else []
        if len(pieces) > len(names):
            return CallError(f"expected {self._form(tool)!r}", start, end)
        return ToolCall(tool, {name: piece for name, piece in zip(names, pieces, strict=False) if piece}, start, end)

    def _read_correction(self, sign: str, rest: str, start: int, end: int) -> ToolCall | CallError:
        entry_id, _, content = rest.partition(" ")
        if sign == "-":
            if content:
                return CallError("expected only an id after '-'", start, end)
            return ToolCall(tool_name(OperationKind.DELETE), {"entry_id": entry_id}, start, end)
        if not content.strip():
            return CallError("expected '= id text'", start, end)
        return ToolCall(tool_name(OperationKind.UPDATE), {"entry_id": entry_id, "content": content.strip()}, start, end)

    def render(self, calls: Sequence[ToolCall]) -> str:
        """Write one line a call, or ``.``; ValueError for a timestamp, an empty content or an unknown tool."""
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
    """``= old text`` and ``> new text`` on the next line update, ``- old text`` deletes; the rest is as in ``compact``."""

    name = "compact_text"
    names_by_text = True
    _FORMS = "'+ text', '= old text' with '> new text' on the next line, '- old text' or '.'"
    _NAMED = ("old text", "new text")
    _NEW = re.compile(r">[ \t]+(?P<content>\S.*)", re.ASCII | re.DOTALL)

    def _read_lines(self, lines: Iterable[_Line]) -> Iterator[ToolCall | CallError]:
        update: ToolCall | None = None
        for line in lines:
            joined = self._joined(update, line) if update is not None else None
            if update is not None:
                yield joined or _half(update)
                update = None
            if joined is None:
                found = self._read_line(*line)
                if isinstance(found, ToolCall) and found.name == tool_name(OperationKind.UPDATE):
                    update = found
                else:
                    yield found
        if update is not None:
            yield _half(update)

    def _joined(self, update: ToolCall, line: _Line) -> ToolCall | None:
        new = self._NEW.fullmatch(line.text)
        if new is None or not is_text(line.text):
            return None
        return ToolCall(update.name, {**update.arguments, "content": new["content"]}, update.start, line.end)

    def _read_correction(self, sign: str, rest: str, start: int, end: int) -> ToolCall | CallError:
        kind = OperationKind.DELETE if sign == "-" else OperationKind.UPDATE
        return ToolCall(tool_name(kind), {"entry_id": rest}, start, end)

    def _update(self, entry_id: str, content: str) -> str:
        return f"= {entry_id}\n> {content}"


def _shortened(names: Sequence[str]) -> dict[str, str]:
    """Return how calls name each section: the first not at all, the others by their shortest unique beginning."""

    def short(name: str) -> str:
        beginnings = (name[:end] for end in range(1, len(name)))
        return next((part for part in beginnings if sum(other.startswith(part) for other in names) == 1), name)

    return {name: short(name) if place else "" for place, name in enumerate(names)}


def _half(update: ToolCall) -> CallError:
    return CallError("expected '> new text' on the line after '= old text'", update.start, update.end)


class _Line(NamedTuple):
    text: str  # stripped
    start: int
    end: int


def _spoken(text: str) -> Iterator[_Line]:
    start = 0
    for raw in text.split("\n"):
        if (line := raw.strip()) and line != ".":
            yield _Line(line, start, start + len(raw))
        start += len(raw) + 1


Codec = HermesCodec | CompactCodec
CODECS: dict[str, type[Codec]] = {codec.name: codec for codec in (HermesCodec, CompactCodec, CompactTextCodec)}


def make_codec(name: str, schema: MemorySchema, searches: bool = False) -> Codec:
    """Return the codec of that name for a schema; InputError if there is none."""
    if name not in CODECS:
        raise InputError(f"unknown codec {name!r}", expected=f"one of {', '.join(sorted(CODECS))}")
    return CODECS[name](schema, searches)
