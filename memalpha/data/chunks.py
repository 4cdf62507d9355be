"""Texts and dialogues joined to chunks of a limited length, with the places of their parts.

No chunk exceeds its limit; texts and turns keep their order, none lost or repeated. Chunk lengths
are drawn as in Mem-alpha (arXiv 2509.25911), but long texts are cut, not kept as over-long chunks.
"""

import random
import re
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from memalpha.errors import InputError, SchemaError
from memalpha.memory.memory import count_words
from memalpha.text.encoding import plain_ids
from memalpha.text.times import to_iso
from memalpha.types import Chunk, Span, TokenCounter
from memalpha.units import UNSPACED, cut_text

_UNSPACED = re.compile(f"[{UNSPACED}]")


def space_signs(text: str) -> str:
    """Return a text with spaces around each sign of a script without spaces."""
    return text if text.isascii() else _UNSPACED.sub(r" \g<0> ", text)


def count_words_and_signs(text: str) -> int:
    """Count words; also each sign of scripts without spaces, if these outnumber the words."""
    words = count_words(text)
    if text.isascii() or len(_UNSPACED.findall(text)) <= words:
        return words
    return len(space_signs(text).split())


def tokenizer_counter(name_or_path: str) -> TokenCounter:
    """Return a token counter (no special tokens) for a tokenizer folder or Hub name; InputError if
    it cannot be loaded.
    """
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise InputError(
            f"the tokenizer of {name_or_path} cannot be loaded: {error}",
            expected="a folder with a tokenizer, or a Hub name",
        ) from error

    return lambda text: len(plain_ids(tokenizer, text))


class PackedText(NamedTuple):
    """One chunk: the joined texts and their ascending indices."""

    text: str
    parts: tuple[int, ...]


class ChunkedTexts(NamedTuple):
    """Chunks, and the ascending chunk indices of each key."""

    chunks: tuple[Chunk, ...]
    places: Mapping[Hashable, tuple[int, ...]]

    def evidence(self, keys: Iterable[Hashable]) -> tuple[int, ...] | None:
        """Return the ascending chunks that hold any of the keys; None if none is there."""
        return tuple(sorted({place for key in keys for place in self.places.get(key, ())})) or None


def index_chunks(chunks: Iterable[tuple[Chunk, Iterable[Hashable]]]) -> ChunkedTexts:
    """Return chunks, each given with the keys that it holds, and the places of the keys."""
    given = [(chunk, set(keys)) for chunk, keys in chunks]
    places: dict[Hashable, tuple[int, ...]] = defaultdict(tuple)
    for index, (_, keys) in enumerate(given):
        for key in keys:
            places[key] += (index,)
    return ChunkedTexts(tuple(chunk for chunk, _ in given), dict(places))


def chunk_texts(
    texts: Iterable[tuple[Hashable, str]],
    bounds: tuple[int, int],
    count: TokenCounter,
    rng: random.Random,
    separator: str = "\n\n",
) -> ChunkedTexts:
    """Cut texts, each given with its key, to pieces that fit, and join them as ``pack_texts``
    does.
    """
    pieces = [(key, piece) for key, text in texts for piece in cut_text(text, bounds[1], count)]
    packed = pack_texts((piece for _, piece in pieces), bounds, count, rng, separator)
    keys = [key for key, _ in pieces]
    return index_chunks((Chunk(text), map(keys.__getitem__, parts)) for text, parts in packed)


def pack_texts(
    texts: Iterable[str],
    bounds: tuple[int, int],
    count: TokenCounter,
    rng: random.Random,
    separator: str = "\n\n",
) -> Iterator[PackedText]:
    """Join consecutive texts, none above the upper bound, to chunks of lengths in tokens drawn
    uniformly from ``bounds``.
    """
    low, high = bounds
    gap = count(separator)
    held: list[str] = []
    index, tokens, target = 0, 0, rng.randint(low, high)
    for index, text in enumerate(texts, start=1):
        added = count(text)
        if held and tokens + gap + added > (target if tokens >= low else high):
            yield from _join_texts(held, index - 1, high, count, separator)
            held, tokens, target = [], 0, rng.randint(low, high)
        tokens += added + gap * bool(held)
        held.append(text)
    yield from _join_texts(held, index, high, count, separator)


def _join_texts(
    texts: Sequence[str], last: int, limit: int, count: TokenCounter, separator: str
) -> Iterator[PackedText]:
    """Join the texts before the number ``last`` to one chunk, or to more if the joined text counts
    more than the sum of its parts.
    """
    start = 0
    while start < len(texts):
        end = len(texts)
        while end > start + 1 and count(separator.join(texts[start:end])) > limit:
            end -= 1
        first = last - len(texts)
        parts = tuple(range(first + start, first + end))
        yield PackedText(separator.join(texts[start:end]), parts)
        start = end


class Turn(NamedTuple):
    """One turn of a person, with its key for evidence; a blank turn is left out of chunks."""

    speaker: str
    text: str
    key: str = ""


class Session(NamedTuple):
    """Turns of one session, its title, its date as the set writes it ("" for none), and its key for
    evidence.
    """

    turns: Sequence[Turn]
    title: str
    time: str = ""
    key: str = ""


def dialogue_chunks(
    sessions: Iterable[Session],
    limit: int,
    count: TokenCounter,
    *,
    join: bool = False,
    turns: bool = False,
) -> ChunkedTexts:
    """Make chunks of at most ``limit`` tokens, with ``join`` of sessions of one day; SchemaError if
    there is no turn.

    With ``turns`` each turn has its own chunk, or several if it is longer, without headers, so that
    evidence is counted turn by turn.
    """
    made: list[tuple[Chunk, set[str]]] = []
    tokens = 0
    pieces_of = _lines if turns else _parts
    for session in sessions:
        time = to_iso(session.time)
        for text, keys in pieces_of(session, limit, count):
            added = count(f"{text}\n")
            last = made[-1][0] if join and made and not turns else None
            if last and (last.time or "")[:10] == (time or "")[:10] and tokens + added <= limit:
                made[-1] = (Chunk(f"{last.text}\n\n{text}", last.time), made[-1][1] | keys)
                tokens += added
            else:
                made.append((Chunk(text, time), keys))
                tokens = added
    if not made:
        raise SchemaError("no session has a turn")
    return index_chunks(made)


def _parts(session: Session, limit: int, count: TokenCounter) -> Iterator[tuple[str, set[str]]]:
    """Yield the pieces of a session, each under its header, and the keys of what is in them."""
    written = to_iso(session.time) or session.time
    dated = f"{session.title}, {written}" if session.time else session.title
    again = count(f"[{dated}, continued]\n")
    held, tokens = [f"[{dated}]"], count(f"[{dated}]\n")
    keys: set[str] = set()
    for line, own in _lines(session, max(1, limit - again), count):
        added = count(f"{line}\n")
        if len(held) > 1 and tokens + added > limit:
            yield "\n".join(held), keys
            held, keys, tokens = [f"[{dated}, continued]"], set(), again
        held.append(line)
        keys |= own
        tokens += added
    if len(held) > 1:
        yield "\n".join(held), keys


def _lines(session: Session, limit: int, count: TokenCounter) -> Iterator[tuple[str, set[str]]]:
    """Yield the pieces of a session's turns, and the keys of each."""
    for turn in session.turns:
        if not turn.text:
            continue
        labels = [Span(0, len(turn.speaker) + 1)] if turn.speaker else None
        line = f"{turn.speaker}: {turn.text}" if turn.speaker else turn.text
        keys = {turn.key, session.key} - {""}
        yield from ((piece, keys) for piece in cut_text(line, limit, count, labels))
