"""Dialogues of several sessions as chunks, for every set of that shape.

A chunk is one session, or as many whole consecutive sessions as fit where they are to be joined; a session that does not fit is cut
between turns, a turn that does not fit at ends of sentences. Each session, and each part of one, begins with a line that names it
and its date, the wrapper that dates what is said; the date of a chunk is that of its first session.

What always holds: every turn is in a chunk and in their order; the places given back are those of the chunks in which a session or
a turn stands, all of them if it was cut. Lengths are sums over lines, so a chunk's own count may differ from the limit by what its
tokenizer makes of line ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memalpha.data.packing import split_text
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk


class Turn(NamedTuple):
    """What one person says.

    Attributes:
        speaker: Who.
        text: What; not blank.
        key: Name of the turn where evidence points at it, else "".
    """

    speaker: str
    text: str
    key: str = ""


class Session(NamedTuple):
    """Turns of one sitting.

    Attributes:
        turns: In order.
        title: How its first line names it, e.g. ``Session 3``.
        time: When, in ISO 8601 where the source allows, or None.
        key: Name of the session where evidence points at it, else "".
    """

    turns: Sequence[Turn]
    title: str
    time: str | None = None
    key: str = ""


class Dialogue(NamedTuple):
    """Chunks, and in which of them each named turn and session stands (indices ascending)."""

    chunks: tuple[Chunk, ...]
    places: dict[str, tuple[int, ...]]

    def evidence(self, keys: Iterable[str]) -> tuple[int, ...] | None:
        """Return the chunks of the named turns and sessions, ascending; None if none of them is there."""
        return tuple(sorted({place for key in keys for place in self.places.get(key, ())})) or None


class _Line(NamedTuple):
    text: str
    tokens: int
    keys: tuple[str, ...]


class _Part(NamedTuple):
    """A session, or a part of one that does not fit into one chunk; its first line is the header."""

    lines: tuple[_Line, ...]
    time: str | None
    tokens: int


def dialogue_chunks(sessions: Iterable[Session], limit: int, count: TokenCounter, *, join: bool = False) -> Dialogue:
    """Make chunks of sessions.

    Args:
        sessions: In order; those without turns are left out.
        limit: Most tokens of a chunk.
        count: Counts them.
        join: Whether consecutive sessions share a chunk while they fit, rather than each having its own.
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
    places = defaultdict[str, set[int]](set)
    for index, group in enumerate(groups):
        for key in (key for part in group for line in part.lines for key in line.keys):
            places[key].add(index)
    chunks = (Chunk("\n\n".join("\n".join(line.text for line in p.lines) for p in group), group[0].time) for group in groups)
    return Dialogue(tuple(chunks), {key: tuple(sorted(where)) for key, where in places.items()})


def _parts(session: Session, limit: int, count: TokenCounter) -> Iterator[_Part]:
    dated = f"{session.title}, {session.time}" if session.time else session.title
    header, again = (_Line(text, count(text + "\n"), ()) for text in (f"[{dated}]", f"[{dated}, continued]"))
    held, tokens = [header], header.tokens
    for line in _lines(session, max(1, limit - again.tokens), count):
        if len(held) > 1 and tokens + line.tokens > limit:
            yield _Part(tuple(held), session.time, tokens)
            held, tokens = [again], again.tokens
        held.append(line)
        tokens += line.tokens
    yield _Part(tuple(held), session.time, tokens)


def _lines(session: Session, limit: int, count: TokenCounter) -> Iterator[_Line]:
    for turn in session.turns:
        named = f"{turn.speaker}: " if turn.speaker else ""
        keys = tuple(filter(None, (turn.key, session.key)))
        whole = f"{named}{turn.text}"
        if (tokens := count(whole + "\n")) <= limit:
            yield _Line(whole, tokens, keys)
            continue
        if count(named) >= limit:  # a name that leaves no room: said once, and cut like what is said
            named, said = "", whole
        else:
            said = turn.text
        for span in split_text(said, limit - count(named), count):
            piece = f"{named}{said[span.start : span.end]}"
            yield _Line(piece, count(piece + "\n"), keys)
