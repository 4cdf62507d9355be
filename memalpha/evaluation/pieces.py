"""An input in natural pieces: what retrieval over raw chunks searches, what a verbatim store keeps, what gold evidence is made of.

A unit is a block between blank lines where it fits, else a line, else a sentence, else whole words; a line ``Label: ...`` stays
with the line it labels, as the classification sets write them. Neighbouring units of a chunk may be packed into one piece.

What always holds: the units of a chunk in order are its words in order, none lost, repeated or cut (a single character of more
tokens than the limit stays whole); a piece never spans two chunks and knows its chunk's time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memalpha.data.packing import sentences, split_text
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk

UNIT_TOKENS = 48
"""Longest unit where nothing else sets a limit, in tokens: the longest entry of the ``facts`` schema."""

_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")
_LABEL = "Label: "


class Piece(NamedTuple):
    """A stretch of a chunk.

    Attributes:
        text: Its text, without white space around it.
        time: The chunk's time.
        chunk: The chunk's index.
    """

    text: str
    time: str | None
    chunk: int

    def render(self) -> str:
        """Return it as a reader sees it: ``[time] text``, as entries of a memory are rendered."""
        return f"[{self.time}] {self.text}" if self.time else self.text


def units(text: str, limit: int, count: TokenCounter) -> list[str]:
    """Return the units of a text, in order.

    Args:
        text: Any text; a blank one has none.
        limit: Most tokens of a unit, at least 1.
        count: Counts the tokens of a unit.
    """
    blocks = [block.strip() for block in _BLANK_LINES.split(text) if block.strip()]
    found: list[str] = []
    for block in blocks:
        if len(blocks) > 1 and count(block) <= limit:
            found.append(block)
        else:
            found += [unit for line in _lines(block) for unit in _split(line, limit, count)]
    return found


def pieces(chunks: Iterable[Chunk], pack: int, limit: int, count: TokenCounter) -> list[Piece]:
    """Return the chunks in pieces, in order: neighbouring units are joined while a piece, its time included, has room for them.

    Args:
        chunks: The input.
        pack: Most tokens of a piece of several units, as a reader sees it; 1 leaves each unit apart.
        limit: Most tokens of a unit.
        count: Counts tokens.
    """
    found: list[Piece] = []
    for index, chunk in enumerate(chunks):
        parts = [Piece(text, chunk.time, index) for text in units(chunk.text, limit, count)]
        found += _packed(parts, pack, count)
    return found


def _packed(parts: Sequence[Piece], pack: int, count: TokenCounter) -> list[Piece]:
    joined: list[Piece] = []
    for part in parts:
        grown = part if not joined else joined[-1]._replace(text=f"{joined[-1].text}\n{part.text}")
        if joined and count(grown.render()) <= pack:
            joined[-1] = grown
        else:
            joined.append(part)
    return joined


def _lines(block: str) -> list[str]:
    lines: list[str] = []
    for line in (line.strip() for line in block.split("\n")):
        if lines and line.startswith(_LABEL) and not lines[-1].rpartition("\n")[2].startswith(_LABEL):
            lines[-1] = f"{lines[-1]}\n{line}"
        elif line:
            lines.append(line)
    return lines


def _split(line: str, limit: int, count: TokenCounter) -> list[str]:
    if count(line) <= limit:
        return [line]
    found: list[str] = []
    for sentence in sentences(line):
        text = line[slice(*sentence)]
        found += [text] if count(text) <= limit else [text[slice(*span)] for span in split_text(text, limit, count)]
    return found


__all__ = ["Piece", "UNIT_TOKENS", "pieces", "units"]
