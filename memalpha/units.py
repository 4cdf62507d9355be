"""Cut texts: to sentences, to slices of a limited length, and to the units that are archived and searched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from memalpha.protocols import TokenCounter

UNIT_TOKENS = 48  # default limit of a unit in tokens: the longest entry of the ``facts`` schema
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+|\n+")
_WORD = re.compile(r"\S+")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n")
_LABEL = "Label: "


def units(text: str, limit: int, count: TokenCounter) -> list[str]:
    """Return the units of a text, in order, each of at most ``limit`` tokens.

    A unit is a block between blank lines if it fits, else a line, a sentence, or words; a line ``Label: ...`` stays with the line
    that it labels.
    """
    blocks = [block.strip() for block in _BLANK_LINES.split(text) if block.strip()]
    found: list[str] = []
    for block in blocks:
        if len(blocks) > 1 and count(block) <= limit:
            found.append(block)
        else:
            found += [unit for line in _lines(block) for unit in _split(line, limit, count)]
    return found


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


class Span(NamedTuple):
    """A slice of a text in characters: ``text[start:end]``."""

    start: int
    end: int


def cut(text: str, limit: int, count: TokenCounter) -> list[str]:
    """Return the pieces of ``split_text`` as texts."""
    return [text[start:end] for start, end in split_text(text, limit, count)]


def split_text(text: str, limit: int, count: TokenCounter) -> list[Span]:
    """Cut a text to slices of at most ``limit`` tokens (>= 1; one character stays whole): sentences, words, runs of characters."""
    whole = _strip(text, 0, len(text))
    if whole.start == whole.end or count(text[whole.start : whole.end]) <= limit:
        return [whole] if whole.start < whole.end else []
    # Neighbours are joined while they fit; the joined piece is counted only if the sum of its parts exceeds the limit.
    pieces: list[Span] = []
    tokens = 0
    for atom in _atoms(text, whole, limit, count):
        if pieces:
            grown = tokens + count(text[pieces[-1].end : atom.end])
            if grown > limit:
                grown = count(text[pieces[-1].start : atom.end])
            if grown <= limit:
                pieces[-1], tokens = Span(pieces[-1].start, atom.end), grown
                continue
        pieces.append(atom)
        tokens = count(text[atom.start : atom.end])
    return [part for piece in pieces for part in _within(text, piece, limit, count)]


def _within(text: str, piece: Span, limit: int, count: TokenCounter) -> list[Span]:
    """The piece, or parts of it if it counts more as a whole than the sum of its parts said."""
    if count(text[piece.start : piece.end]) <= limit:
        return [piece]
    parts: list[Span] = []
    for atom in _atoms(text, piece, limit, count):
        if parts and count(text[parts[-1].start : atom.end]) <= limit:
            parts[-1] = Span(parts[-1].start, atom.end)
        else:
            parts.append(atom)
    return parts


def sentences(text: str, within: Span | None = None) -> Iterator[Span]:
    """Yield the sentences and lines of the text (or of a slice), without surrounding white space."""
    start, last = within or Span(0, len(text))
    for end in [match.end() for match in _SENTENCE_END.finditer(text, start, last)] + [last]:
        sentence = _strip(text, start, end)
        if sentence.start < sentence.end:
            yield sentence
        start = end


def _strip(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    left = start + len(piece) - len(piece.lstrip())
    return Span(left, max(left, start + len(piece.rstrip())))


def _atoms(text: str, within: Span, limit: int, count: TokenCounter) -> Iterator[Span]:
    for sentence in sentences(text, within):
        if count(text[sentence.start : sentence.end]) <= limit:
            yield sentence
            continue
        for word in _WORD.finditer(text, *sentence):
            yield from _halves(text, Span(*word.span()), limit, count)


def _halves(text: str, span: Span, limit: int, count: TokenCounter) -> Iterator[Span]:
    if span.end - span.start == 1 or count(text[span.start : span.end]) <= limit:
        yield span
        return
    middle = (span.start + span.end) // 2
    yield from _halves(text, Span(span.start, middle), limit, count)
    yield from _halves(text, Span(middle, span.end), limit, count)
