"""Reading one large JSON text piece by piece: the items of a list, or the members of an object, one at a time.

What always holds: memory stays within a few times the largest single item, whatever the file's size; every fault is a SchemaError
with its line; text comes as it stands there (a lone surrogate is left for the loader to find).

The standard library's decoder does the parsing; this module only feeds it. ijson, the usual library for this, was tried and left
out: with its C backend it replaces lone surrogates by "?" without a word, takes memory quadratic in the depth of nested brackets
(a 100 kB file of "[" ended the process), and its errors name no line.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from memalpha.errors import SchemaError

_MARGIN = 64  # a fault this near to the end of the text read so far may only mean that the text goes on
_DECODER = json.JSONDecoder()


class JsonReader:
    """A cursor over one JSON text, or over several one after another (JSON Lines).

    Args:
        file: The text.
        where: Its name; begins every message.
        block: Characters read at a time, at least.
    """

    def __init__(self, file: IO[str], where: str, block: int = 1 << 20) -> None:
        self._file, self._where, self._block = file, where, block
        self._text, self._at, self._ended = "", 0, False
        self._lines = 0  # of the text that was dropped

    def peek(self) -> str:
        """Return the next character that is not white space, without passing it; "" at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\n\r":
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
                may_go_on = error.msg.startswith("Unterminated string") or error.pos >= len(self._text) - _MARGIN
                if may_go_on and self._more():
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
        last = self._opens("[", "]")
        while not last:
            value = self.value()
            last = self._pass(",]") == "]"  # before the item is given: a number may be cut off
            yield value

    def members(self) -> Iterator[str]:
        """Read an object's keys one by one; the caller reads each value (``value``, ``items``, ``members``) before the next key."""
        last = self._opens("{", "}")
        while not last:
            if self.peek() != '"':
                raise self._error("Expecting property name enclosed in double quotes", self._at)
            key = self.value()
            self._pass(":")
            yield key
            last = self._pass(",}") == "}"

    def end(self) -> None:
        """Check that nothing but white space is left; SchemaError otherwise."""
        if self.peek():
            raise self._error("Extra data", self._at)

    def _opens(self, opening: str, closing: str) -> bool:
        """Pass the opening bracket; True, and the closing one passed as well, if nothing is between them."""
        self._pass(opening)
        empty = self.peek() == closing
        self._at += empty
        return empty

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
        self._lines += self._text.count("\n", 0, self._at)
        read = self._file.read(max(self._block, len(self._text) - self._at))
        self._text, self._at, self._ended = self._text[self._at :] + read, 0, not read
        return True

    def _error(self, message: str, at: int) -> SchemaError:
        line = self._lines + self._text.count("\n", 0, at) + 1
        return SchemaError(
            f"{self._where} is not JSON: {message}: line {line}", expected="JSON", fix="download it again: it may be cut off"
        )
