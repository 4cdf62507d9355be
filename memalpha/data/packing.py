"""Packing texts to chunks whose length in tokens lies in a range. Pure functions: the randomness is the caller's generator.

What always holds: no chunk is longer than the range's upper end; texts keep their order and none is lost, repeated or cut by
``pack_texts``; the pieces of ``split_text`` are slices of the text, in order, and between them lies nothing but white space.

The lower end is a wish: a chunk stays below it where the next text would carry it over the upper end, or where the texts end.
The published system draws a length for each chunk as here, but lets a text longer than it stand as one over-long chunk and stops
at the drawn length even below its own lower end.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memalpha.errors import InputError
from memalpha.protocols import TokenCounter

SEPARATOR = "\n\n"
"""What stands between two texts of one chunk, as published."""

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+|\n+")
_WORD = re.compile(r"\S+")


class Span(NamedTuple):
    """A slice of a text, in characters: ``text[start:end]``."""

    start: int
    end: int


class TokenRange(NamedTuple):
    """Fewest and most tokens of a chunk."""

    low: int
    high: int


class Packed(NamedTuple):
    """One chunk.

    Attributes:
        text: The texts, joined.
        parts: Indices of the texts in it, ascending.
    """

    text: str
    parts: tuple[int, ...]


def check_range(name: str, bounds: tuple[int, int], least: int = 1) -> tuple[int, int]:
    """Return ``bounds``; InputError naming option ``name`` unless ``least <= bounds[0] <= bounds[1]``."""
    low, high = bounds
    if not least <= low <= high:
        raise InputError(f"{name} is {low}, {high}", expected=f"two numbers, fewest and most, with {least} <= fewest <= most")
    return bounds


def pack_texts(
    texts: Iterable[str], bounds: TokenRange, count: TokenCounter, rng: random.Random, separator: str = SEPARATOR
) -> Iterator[Packed]:
    """Join consecutive texts to chunks of a random length, drawn evenly from ``bounds`` for each chunk.

    A text joins the chunk while the sum stays within the drawn length, and while the chunk is below ``bounds.low`` and the sum
    stays within ``bounds.high``.

    Args:
        texts: Read lazily.
        bounds: Tokens of a chunk.
        count: Counts tokens: of each text once, of the separator, and of each chunk once to be sure that it fits.
        rng: Draws the lengths, one for each chunk.
        separator: Stands between two texts.

    Raises:
        InputError: If one text alone is longer than ``bounds.high``; see ``split_text``.
    """
    gap = count(separator)
    held, first, tokens, target = list[str](), 0, 0, rng.randint(*bounds)
    for index, text in enumerate(texts):
        added = count(text)
        if added > bounds.high:
            raise InputError(f"a text has {added} tokens ({text[:40]!r}...)", expected=f"at most {bounds.high}, a chunk's limit")
        if held and tokens + gap + added > (target if tokens >= bounds.low else bounds.high):
            yield from _joined(held, first, bounds.high, count, separator)
            held, first, tokens, target = [], index, 0, rng.randint(*bounds)
        tokens += added + gap * bool(held)
        held.append(text)
    if held:
        yield from _joined(held, first, bounds.high, count, separator)


def _joined(texts: Sequence[str], first: int, limit: int, count: TokenCounter, separator: str) -> Iterator[Packed]:
    """Yield the texts as one chunk, or as several where the whole has more tokens than its parts and does not fit."""
    start = 0
    while start < len(texts):
        end = len(texts)
        while end > start + 1 and count(separator.join(texts[start:end])) > limit:
            end -= 1
        yield Packed(separator.join(texts[start:end]), tuple(range(first + start, first + end)))
        start = end


def split_text(text: str, limit: int, count: TokenCounter) -> list[Span]:
    """Cut a text to pieces of at most ``limit`` tokens: whole sentences where they fit, else whole words, else runs of characters.

    Args:
        text: Any text; a blank one has no pieces.
        limit: Most tokens of a piece, at least 1.
        count: Counts the tokens of a piece.

    Returns:
        Slices of ``text``, ascending and apart. A single character of more than ``limit`` tokens stays whole.
    """
    whole = _strip(text)
    if whole.start == whole.end:
        return []
    if count(text[whole.start : whole.end]) <= limit:
        return [whole]
    return _merge(text, _atoms(text, limit, count), limit, count)


def _strip(text: str) -> Span:
    stripped = text.strip()
    start = len(text) - len(text.lstrip()) if stripped else 0
    return Span(start, start + len(stripped))


def _atoms(text: str, limit: int, count: TokenCounter) -> Iterator[Span]:
    """Yield the largest units that fit: sentences, words of a long sentence, halves of a long word."""
    for sentence in sentences(text):
        if count(text[sentence.start : sentence.end]) <= limit:
            yield sentence
            continue
        for word in _WORD.finditer(text, *sentence):
            yield from _halves(text, Span(*word.span()), limit, count)


def sentences(text: str) -> Iterator[Span]:
    """Yield the text's sentences and lines as slices, without the white space around them."""
    start = 0
    for end in [match.end() for match in _SENTENCE_END.finditer(text)] + [len(text)]:
        sentence = _strip(text[start:end])
        if sentence.start < sentence.end:
            yield Span(start + sentence.start, start + sentence.end)
        start = end


def _halves(text: str, span: Span, limit: int, count: TokenCounter) -> Iterator[Span]:
    if span.end - span.start == 1 or count(text[span.start : span.end]) <= limit:
        yield span
        return
    middle = (span.start + span.end) // 2
    yield from _halves(text, Span(span.start, middle), limit, count)
    yield from _halves(text, Span(middle, span.end), limit, count)


def _merge(text: str, atoms: Iterable[Span], limit: int, count: TokenCounter) -> list[Span]:
    """Join neighbours while they fit. A piece is counted whole only where the sum of its parts says that it may not fit."""
    pieces: list[Span] = []
    tokens = 0
    for atom in atoms:
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
    """The piece, or its parts joined with care where it has more tokens than they have apart and does not fit."""
    if count(text[piece.start : piece.end]) <= limit:
        return [piece]
    parts: list[Span] = []
    for atom in _atoms(text[piece.start : piece.end], limit, count):
        start, end = piece.start + atom.start, piece.start + atom.end
        if parts and count(text[parts[-1].start : end]) <= limit:
            parts[-1] = Span(parts[-1].start, end)
        else:
            parts.append(Span(start, end))
    return parts


def overlapping(spans: Sequence[Span], wanted: Span) -> tuple[int, ...]:
    """Return the indices of the spans that share at least one character with ``wanted``, ascending."""
    return tuple(i for i, span in enumerate(spans) if span.start < wanted.end and wanted.start < span.end)
