"""Join texts and dialogues to chunks of a limited length, and cut long texts.

No chunk exceeds its limit; texts and turns keep their order, none lost or repeated. Dialogue lengths are sums over lines. Chunk
lengths are drawn as in Mem-alpha (arXiv 2509.25911), but long texts are cut, not kept as over-long chunks.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memalpha.errors import InputError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk

SEPARATOR = "\n\n"
"""Separator between two texts of one chunk, as published."""

_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+|\n+")
_WORD = re.compile(r"\S+")


class Span(NamedTuple):
    """A slice of a text in characters: ``text[start:end]``."""

    start: int
    end: int


class Packed(NamedTuple):
    """One chunk: the joined texts and their ascending indices."""

    text: str
    parts: tuple[int, ...]


def pack_texts(
    texts: Iterable[str], bounds: tuple[int, int], count: TokenCounter, rng: random.Random, separator: str = SEPARATOR
) -> Iterator[Packed]:
    """Join consecutive texts to chunks; each chunk's length in tokens is drawn uniformly from ``bounds``.

    A text joins while the sum is within the drawn length, or while the chunk is below the lower bound and the sum within the upper.
    InputError if one text is longer than the upper bound (see ``split_text``).
    """
    low, high = bounds
    gap = count(separator)
    held, first, tokens, target = list[str](), 0, 0, rng.randint(low, high)
    for index, text in enumerate(texts):
        added = count(text)
        if added > high:
            raise InputError(f"a text has {added} tokens ({text[:40]!r}...)", expected=f"at most {high}, a chunk's limit")
        if held and tokens + gap + added > (target if tokens >= low else high):
            yield from _joined(held, first, high, count, separator)
            held, first, tokens, target = [], index, 0, rng.randint(low, high)
        tokens += added + gap * bool(held)
        held.append(text)
    if held:
        yield from _joined(held, first, high, count, separator)


def _joined(texts: Sequence[str], first: int, limit: int, count: TokenCounter, separator: str) -> Iterator[Packed]:
    start = 0
    while start < len(texts):
        end = len(texts)
        while end > start + 1 and count(separator.join(texts[start:end])) > limit:
            end -= 1
        yield Packed(separator.join(texts[start:end]), tuple(range(first + start, first + end)))
        start = end


def places_of(packed: Sequence[Packed], keys: Sequence[int]) -> Mapping[int, set[int]]:
    """Return the chunks that hold each key; ``keys`` has one key per packed text."""
    places = defaultdict[int, set[int]](set)
    for index, chunk in enumerate(packed):
        for part in chunk.parts:
            places[keys[part]].add(index)
    return places


def cut(text: str, limit: int, count: TokenCounter) -> list[str]:
    """Return the pieces of ``split_text`` as texts."""
    return [text[start:end] for start, end in split_text(text, limit, count)]


def split_text(text: str, limit: int, count: TokenCounter) -> list[Span]:
    """Cut a text into ordered slices of at most ``limit`` tokens (>= 1): sentences, else words, else runs of characters.

    A blank text has no pieces. A single character of more than ``limit`` tokens stays whole.
    """
    whole = _strip(text, 0, len(text))
    if whole.start == whole.end:
        return []
    if count(text[whole.start : whole.end]) <= limit:
        return [whole]
    return _merge(text, _atoms(text, whole, limit, count), limit, count)


def sentences(text: str) -> Iterator[Span]:
    """Yield the sentences and lines of the text, without surrounding white space."""
    return _sentences(text, Span(0, len(text)))


def _sentences(text: str, within: Span) -> Iterator[Span]:
    start = within.start
    for end in [match.end() for match in _SENTENCE_END.finditer(text, *within)] + [within.end]:
        sentence = _strip(text, start, end)
        if sentence.start < sentence.end:
            yield sentence
        start = end


def _strip(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    left = start + len(piece) - len(piece.lstrip())
    return Span(left, max(left, start + len(piece.rstrip())))


def _atoms(text: str, within: Span, limit: int, count: TokenCounter) -> Iterator[Span]:
    for sentence in _sentences(text, within):
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


def _merge(text: str, atoms: Iterable[Span], limit: int, count: TokenCounter) -> list[Span]:
    """Join neighbours while they fit; count the joined piece only if the sum of its parts exceeds the limit."""
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
    if count(text[piece.start : piece.end]) <= limit:
        return [piece]
    parts: list[Span] = []
    for atom in _atoms(text, piece, limit, count):
        if parts and count(text[parts[-1].start : atom.end]) <= limit:
            parts[-1] = Span(parts[-1].start, atom.end)
        else:
            parts.append(atom)
    return parts


def overlapping(spans: Sequence[Span], wanted: Span) -> tuple[int, ...]:
    """Return the ascending indices of the spans that share a character with ``wanted``."""
    return tuple(i for i, span in enumerate(spans) if span.start < wanted.end and wanted.start < span.end)


class Turn(NamedTuple):
    """What one person says (not blank), and its key for evidence."""

    speaker: str
    text: str
    key: str = ""


class Session(NamedTuple):
    """Turns of one session, its title, its date, and its key for evidence."""

    turns: Sequence[Turn]
    title: str
    time: str | None = None
    key: str = ""


class Dialogue(NamedTuple):
    """Chunks, and the ascending chunk indices of each named turn and session."""

    chunks: tuple[Chunk, ...]
    places: dict[str, tuple[int, ...]]

    def evidence(self, keys: Iterable[str]) -> tuple[int, ...] | None:
        """Return the ascending chunks of the named turns and sessions; None if none is there."""
        return tuple(sorted({place for key in keys for place in self.places.get(key, ())})) or None


class _Part(NamedTuple):
    lines: list[str]
    keys: set[str]
    time: str | None
    tokens: int


def dialogue_chunks(sessions: Iterable[Session], limit: int, count: TokenCounter, *, join: bool = False) -> Dialogue:
    """Make chunks of at most ``limit`` tokens; each session starts with a line that names it and its date.

    A long session is cut between turns, a long turn between sentences. With ``join`` consecutive sessions share a chunk while they
    fit; the chunk has the date of the first.
    """
    groups: list[list[_Part]] = []
    tokens = 0
    for part in (part for session in sessions if session.turns for part in _parts(session, limit, count)):
        if join and groups and tokens + part.tokens <= limit:
            groups[-1].append(part)
            tokens += part.tokens
        else:
            groups.append([part])
            tokens = part.tokens
    places = defaultdict[str, list[int]](list)
    for index, group in enumerate(groups):
        for key in {key for part in group for key in part.keys}:
            places[key].append(index)
    chunks = (Chunk("\n\n".join("\n".join(part.lines) for part in group), group[0].time) for group in groups)
    return Dialogue(tuple(chunks), {key: tuple(where) for key, where in places.items()})


def _parts(session: Session, limit: int, count: TokenCounter) -> Iterator[_Part]:
    dated = f"{session.title}, {session.time}" if session.time else session.title
    header, again = f"[{dated}]", f"[{dated}, continued]"
    held, keys, tokens, repeated = [header], set[str](), count(header + "\n"), count(again + "\n")
    for line, key in _lines(session, max(1, limit - repeated), count):
        added = count(line + "\n")
        if len(held) > 1 and tokens + added > limit:
            yield _Part(held, keys, session.time, tokens)
            held, keys, tokens = [again], set(), repeated
        held.append(line)
        keys |= {key, session.key} - {""}
        tokens += added
    yield _Part(held, keys, session.time, tokens)


def _lines(session: Session, limit: int, count: TokenCounter) -> Iterator[tuple[str, str]]:
    for turn in session.turns:
        named = f"{turn.speaker}: " if turn.speaker else ""
        whole = f"{named}{turn.text}"
        if count(whole + "\n") <= limit:
            yield whole, turn.key
        elif count(named) >= limit:  # the name leaves no room: write it once and cut it like the text
            yield from ((piece, turn.key) for piece in cut(whole, limit, count))
        else:
            yield from ((f"{named}{piece}", turn.key) for piece in cut(turn.text, limit - count(named), count))
