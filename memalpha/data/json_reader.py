"""Reading one large JSON text piece by piece: the items of a list, or the members of an object, one at a time.

What always holds: memory stays within a few times the largest single item, whatever the file's size; every fault is a SchemaError
with its line, and its column where it is not one of the encoding; text comes as it stands there (a lone surrogate is left for
``check_text`` to find).

The standard library's decoder does the parsing; this module only feeds it. ijson, the usual library for this, was tried and left
out: with its C backend it replaces lone surrogates by "?" without a word, takes memory quadratic in the depth of nested brackets
(a 100 kB file of "[" ended the process), and its errors name no line.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import IO, Any

from memalpha.errors import SchemaError

_BLOCK = 1 << 20
_MARGIN = 64  # a fault this near to the end of the text read so far may only mean that the text goes on
_SPACE = " \t\n\r"


class JsonReader:
    """A cursor over one JSON text, or over several one after another (JSON Lines).

    Args:
        file: The text's bytes, UTF-8 with a byte order mark or without.
        where: Its name; begins every message.
        block: Bytes read at a time, at least.

    """

    def __init__(self, file: IO[bytes], where: str, block: int = _BLOCK) -> None:
        self._file, self._where, self._block = file, where, block
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._text, self._at, self._ended = "", 0, False
        self._lines = self._column = 0  # of the text that was dropped

    def peek(self) -> str:
        """Return the next character that is not white space, without passing it; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._at += 1
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def value(self) -> Any:
        """Read one whole JSON value; SchemaError if there is none."""
        self.peek()
        while True:
            try:
                value, end = _DECODER.raw_decode(self._text, self._at)
            except json.JSONDecodeError as error:
                if self._may_go_on(error) and self._more():
                    continue
                raise self._error(error.msg, error.pos) from error
            except ValueError as error:  # the decoder's one other fault: an integer of more digits than Python reads
                raise self._error("a number of too many digits", self._at) from error
            except RecursionError as error:
                raise self._error("nested too deeply", self._at) from error
            if len(self._text) - end < _MARGIN and self._more():
                continue  # a number may go on
            self._at = end
            return value

    def items(self) -> Iterator[Any]:
        """Read a list item by item; SchemaError if there is none, or where it breaks off."""
        self._pass("[")
        if self.peek() == "]":
            self._at += 1
            return
        last = False
        while not last:
            value = self.value()
            last = self._pass(",]") == "]"  # before the item is given: a number may be cut off
            yield value

    def members(self) -> Iterator[str]:
        """Read an object's keys one by one; the caller reads each value (``value``, ``items``, ``members``) before the next key."""
        self._pass("{")
        if self.peek() == "}":
            self._at += 1
            return
        while True:
            if self.peek() != '"':
                raise self._error("Expecting property name enclosed in double quotes", self._at)
            key = self.value()
            self._pass(":")
            yield key
            if self._pass(",}") == "}":
                return

    def end(self) -> None:
        """Check that nothing but white space is left; SchemaError otherwise."""
        if self.peek():
            raise self._error("Extra data", self._at)

    def _pass(self, wanted: str) -> str:
        found = self.peek()
        if not found or found not in wanted:
            raise self._error(f"Expecting {' or '.join(map(repr, wanted))}", self._at)
        self._at += 1
        return found

    def _more(self) -> bool:
        """Read on, dropping what was passed; False at the end of the file. Reads as much again as is held, so few parses repeat."""
        if self._ended:
            return False
        passed = self._text[: self._at]
        if "\n" in passed:
            self._lines += passed.count("\n")
            self._column = len(passed) - passed.rfind("\n") - 1
        else:
            self._column += len(passed)
        raw = self._file.read(max(self._block, len(self._text) - self._at))
        self._ended = not raw
        try:
            decoded = self._decoder.decode(raw, final=self._ended)
        except UnicodeDecodeError as error:
            line = self._lines + self._text[self._at :].count("\n") + raw[: error.start].count(b"\n") + 1
            raise SchemaError(f"{self._where} is not UTF-8 text: line {line}: {error.reason}", expected="JSON in UTF-8") from error
        self._text, self._at = self._text[self._at :] + decoded, 0
        return True

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        return error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _MARGIN

    def _error(self, message: str, at: int) -> SchemaError:
        before = self._text[:at]
        lines = before.count("\n")
        column = len(before) - before.rfind("\n") if lines else self._column + at + 1
        return SchemaError(
            f"{self._where} is not JSON: {message}: line {self._lines + lines + 1} column {column}",
            expected="JSON",
            fix="download it again: it may be cut off",
        )


_DECODER = json.JSONDecoder()
