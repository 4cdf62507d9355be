"""Cuts texts: to sentences, slices of a limited length, units that are archived and searched.

A speaker's label (``Marta: ``) holds until the next label or header, over line breaks. A piece that
begins inside a turn repeats its label, so that a cut never loses who says something. A text without
labels is only cut.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain

from memalpha.speakers import LABELLED_LINE, speaker_labels
from memalpha.types import Span, TokenCounter

UNIT_TOKENS = 48  # default limit of a unit in tokens: the longest entry of the ``facts`` schema
# characters of scripts without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese
UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0edf\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3\u3005-\u3007"
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
QUESTION_ENDS = ("?", "\uff1f", "\u061f")  # ASCII, full width, Arabic
_CLOSE = "\"')\\]\u2019\u201d\u00bb\u300d\u300f\uff09\u3011\u300b\u3009\u3015\uff02\uff07\uff3d"
# ends of sentences that need no space: of Han and Kana, danda, Arabic, Armenian, Ethiopic, Myanmar,
# Khmer, Tibetan; a full-width stop not within a number
_STOPS = (
    "\u3002\uff01\uff1f\uff61\u0964\u0965\u061f\u06d4\u0589\u1362\u1367\u1368\u104a\u104b\u17d4\u17d5"
    "\u0f0d\u0f0e"
)
_SENTENCE_END = re.compile(
    rf"[.!?][\"')\]]*\s+|\n+|(?:[{_STOPS}]|\uff0e(?![0-9\uff10-\uff19]))"
    rf"[{_STOPS}!?\uff0e\u2026]*[{_CLOSE}]*\s*"
    rf"|(?:[!?\u2026]+|(?<=[{UNSPACED}])\.)[{_CLOSE}]*(?=[{UNSPACED}])"
)
_ASCII_END = re.compile(r"[.!?][\"')\]]*\s+|\n+")  # the same in ASCII, in half the time
# words; of what has no spaces its clauses
_WORD = re.compile(
    r"[^\s\uff0c\u3001\uff1b\uff1a\uff64\u060c]+[\uff0c\u3001\uff1b\uff1a\uff64\u060c]*"
    r"|[\uff0c\u3001\uff1b\uff1a\uff64\u060c]+"
)
_BLOCK = re.compile(r"\S(?:[^\n]++|\n(?![^\S\n]*\n))*+")  # up to a blank line


class _Cutting:
    """A text with its labels and the limit of its pieces, in tokens.

    A label of more than half the limit is not repeated.
    """

    def __init__(
        self, text: str, limit: int, count: TokenCounter, labels: Sequence[Span] = ()
    ) -> None:
        self.text = text
        self.limit = limit
        self.count = count
        self._starts = [label.start for label in labels]
        self._labels = [
            label if 2 * count(text[slice(*label)]) <= limit else Span(label.start, label.start)
            for label in labels
        ]

    def piece(self, span: Span) -> str:
        """Return a slice, after the label of the turn in which it begins."""
        place = bisect_right(self._starts, span.start) - 1
        start, end = self._labels[place] if place >= 0 else Span(0, 0)
        label = self.text[start : min(end, span.start)]
        piece = self.text[slice(*span)]
        if piece.startswith(label):
            return piece
        return f"{label} {piece}" if end <= span.start else label + piece

    def turns_within(self, span: Span) -> int:
        """How many turns begin in a slice, behind its start."""
        return bisect_left(self._starts, span.end) - bisect_right(self._starts, span.start)

    def in_one_turn(self, span: Span) -> bool:
        """Whether a slice lies in one turn that has a label."""
        return bisect_right(self._starts, span.start) > 0 and not self.turns_within(span)

    def fits(self, span: Span) -> bool:
        return self.count(self.piece(span)) <= self.limit


def units(
    text: str, limit: int, count: TokenCounter, labels: Sequence[Span] | None = None
) -> list[str]:
    """Return the units of a text, in order, each of at most ``limit`` tokens.

    In a dialogue each has its speaker. ``labels``, if they are known.

    A unit is a block between blank lines if it fits (with ``labels``: if it is of one turn), else a
    line, a sentence, or words; a line ``Label: ...`` stays with the line that it labels. Units of
    one labelled turn are joined while they fit.
    """
    cutting = _Cutting(text, limit, count, speaker_labels(text) if labels is None else labels)
    blocks = [_strip(text, *match.span()) for match in _BLOCK.finditer(text)]
    spans: list[Span] = []
    for block in blocks:
        one_turn = labels is None or not cutting.turns_within(block)
        if len(blocks) > 1 and one_turn and cutting.fits(block):
            spans.append(block)
            continue
        for line in (_strip(text, *match.span()) for match in LABELLED_LINE.finditer(text, *block)):
            parts = [line] if cutting.fits(line) else sentences(text, line)
            spans += [piece for part in parts for piece in _pieces(cutting, part)]
    return [cutting.piece(span) for span in _join_turns(cutting, spans)]


def _join_turns(cutting: _Cutting, spans: Sequence[Span]) -> list[Span]:
    """Join what stands in a row in one labelled turn while it fits: one line of a list or of code
    says little, and is found by little.
    """
    joined: list[Span] = []
    for span in spans:
        whole = Span(joined[-1].start, span.end) if joined else span
        if joined and cutting.in_one_turn(whole) and cutting.fits(whole):
            joined[-1] = whole
        else:
            joined.append(span)
    return joined


def cut_text(
    text: str, limit: int, count: TokenCounter, labels: Sequence[Span] | None = None
) -> list[str]:
    """Return the slices of a text of at most ``limit`` tokens, in a dialogue with their speakers.

    ``labels``, if they are known.
    """
    cutting = _Cutting(text, limit, count, speaker_labels(text) if labels is None else labels)
    return [cutting.piece(span) for span in _pieces(cutting, _strip(text, 0, len(text)))]


def split_text(text: str, limit: int, count: TokenCounter) -> list[Span]:
    """Cut a text to slices of at most ``limit`` tokens (>= 1; one character stays whole):
    sentences, words, runs of characters.
    """
    return _pieces(_Cutting(text, limit, count), _strip(text, 0, len(text)))


def _pieces(cutting: _Cutting, whole: Span, *, exact: bool = False) -> list[Span]:
    if whole.start == whole.end or cutting.fits(whole):
        return [whole] if whole.start < whole.end else []
    # Neighbours are joined while they fit. The joined piece is counted only if the sum of its parts
    # exceeds the limit, and at the end: one that counts more than the sum said is cut again.
    pieces: list[Span] = []
    tokens = 0
    for atom in _atoms(cutting, whole):
        if pieces:
            joined = Span(pieces[-1].start, atom.end)
            total = tokens + cutting.count(cutting.text[pieces[-1].end : atom.end])
            if exact or total > cutting.limit:
                total = cutting.count(cutting.piece(joined))
            if total <= cutting.limit:
                pieces[-1] = joined
                tokens = total
                continue
        pieces.append(atom)
        tokens = cutting.count(cutting.piece(atom))
    if exact:
        return pieces
    return [part for piece in pieces for part in _pieces(cutting, piece, exact=True)]


def sentences(text: str, within: Span | None = None) -> Iterator[Span]:
    """Yield the sentences and lines of a text (or of a slice), without white space around."""
    start, last = within or Span(0, len(text))
    ends = _ASCII_END if text.isascii() else _SENTENCE_END
    for end in [match.end() for match in ends.finditer(text, start, last)] + [last]:
        sentence = _strip(text, start, end)
        if sentence.start < sentence.end:
            yield sentence
        start = end


def _strip(text: str, start: int, end: int) -> Span:
    piece = text[start:end]
    left = start + len(piece) - len(piece.lstrip())
    return Span(left, max(left, start + len(piece.rstrip())))


def _atoms(cutting: _Cutting, within: Span) -> Iterator[Span]:
    for sentence in sentences(cutting.text, within):
        words = (Span(*word.span()) for word in _WORD.finditer(cutting.text, *sentence))
        for atom in [sentence] if cutting.fits(sentence) else words:
            yield from _halves(cutting, atom)


def _halves(cutting: _Cutting, span: Span) -> Iterator[Span]:
    if span.end - span.start == 1 or cutting.fits(span):
        yield span
    else:
        middle = _middle(cutting.text, span)
        yield from _halves(cutting, Span(span.start, middle))
        yield from _halves(cutting, Span(middle, span.end))


def _middle(text: str, span: Span) -> int:
    """Return the middle of a run of characters, or the nearest place before it, else after it, that
    parts no mark from its letter.
    """
    middle = (span.start + span.end) // 2
    places = chain(range(middle, span.start, -1), range(middle + 1, span.end))
    return next((place for place in places if not _joins(text, place)), middle)


def _joins(text: str, place: int) -> bool:
    return unicodedata.category(text[place])[0] == "M" or text[place - 1] == "\u200d"
