"""Cuts texts: to sentences, slices of a limited length, units that are archived and searched.

A speaker's label (``Marta: ``) holds until the next label or header, over line breaks. A piece that
begins inside a turn repeats its label, so that a cut never loses who says something. A text without
labels is only cut.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

from memalpha.text import unmarked
from memalpha.types import TokenCounter

UNIT_TOKENS = 48  # default limit of a unit in tokens: the longest entry of the ``facts`` schema
# characters of scripts without spaces: Thai, Lao, Tibetan, Burmese, Khmer, Japanese, Chinese
UNSPACED = (
    "\u0e01-\u0e3a\u0e40-\u0e4e\u0e80-\u0edf\u0f40-\u0fbc\u1000-\u109f\u1780-\u17d3\u3005-\u3007"
    "\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    "\U00020000-\U0003ffff"
)
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
# a line, with the line that labels it
_LINE = re.compile(r"Label: [^\n]*\S|\S[^\n]*(?:\n[^\S\n]*Label: [^\n]*\S)?")
_BLOCK = re.compile(r"\S(?:[^\n]++|\n(?![^\S\n]*\n))*+")  # up to a blank line

_NAME = r"[^\W\d_][\w.'’&-]*(?: (?:[0-9]+|[^\W\d_][\w.'’&-]*)){0,4}"
# with a time or a role beside the name, which may be bold: "[10:30] Marta:", "**Marta (nurse):**"
_SPEAKER = re.compile(
    r"^(?:\[[^\[\]\n]{1,40}\] |\([^()\n]{1,40}\) "
    r"|[0-9][0-9/.:,TZ +-]{2,24}(?:[AaPp]\.?[Mm]\.?)?[ ,-]{1,3})?"
    rf"[*_]{{0,2}}(?P<name>{_NAME})"
    r"(?:,? ?[\[(][^\[\]()\n]{1,40}[\])]|,? [0-9]{1,2}[:.][0-9]{2})?"
    r"[*_]{0,2}(?:：| ?:(?:\*\*|__)?(?=\s))",
    re.MULTILINE,
)
# A header such as "[Session 2, 2024-03-05]", or a line that the next one labels.
_HEADER = re.compile(
    r"^(?:\[(?=[^\n0-9]*[0-9])[^\n]*\][^\S\n]*$|[^\n]+\n[^\S\n]*Label: )", re.MULTILINE
)
_ROLE = re.compile(
    r"(?i:user|assistant|system|human|ai|bot|agent|customer|speaker|person)"
    r"(?:[ _][0-9A-Za-z]{1,2})?"
)
_MESSAGE = ("user: ", "assistant: ")  # how a message of a chat is written down
# words that stand before a colon as names do
_HEADINGS = frozenset(
    """
    " about abstract action actions address advice age agenda answer answers args article at author
    background bcc before birthday born breakfast breaking by category caution cc chapter chat city
    class code color comment comments conclusion cons content contents context cost date dear debug
    definition description details diary dinner directions distance due duration edit education
    email error event example examples except fact facts fig figure file finally first for friday
    from fwd gender goal goals headline hint history hobbies how hypothesis idea ideas important in
    info ingredients input instructions interests introduction issue it item items job keywords
    label last lesson level line link list location lunch materials menu message method methods
    monday moral my name nationality next nickname no note notes objective occupation on option
    options order our output overview page part phone place plan please population premise
    preparation price problem procedure project prompt pros protagonist ps purpose query question
    questions raises re reason recipe references relationship relationships remark remedy remember
    reminder reply-to requirements result results return returns rule rules saturday schedule score
    second section sent sentence shopping size skills solution source sources status step steps
    story subject sum summary sunday supplies table tags task tasks tel temperature test text that
    the there these things this thought thursday time times tip tips title to today todo tomorrow
    tonight topic topics total traceback translation tuesday type update url usage utterance value
    values version warning warnings we weather website wednesday what when where which who why with
    word words yesterday you your
    """.split()
)


_LINES = re.compile("(\r\n|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])")
_COLONS = dict.fromkeys(map(ord, "：﹕︓∶꞉ː˸"), ": ")  # those of other scripts need no space behind
_COLON = re.compile(r":(?!//)")
# what every label or header has one of, also what NFKC makes of others
_MARK = re.compile(f"[{''.join(map(chr, _COLONS))}:\u2a74\\[\uff3b\ufe47]")
_LETTER = re.compile(r"[^\W\d_]")
_LABEL_WORD = re.compile(r"[^\W_](?:[^\s*_\[\](){}\"“”<>|#`~]*[^\W_])?")
_LABEL_WORDS = 5
_LONGEST_NAME = 40  # characters
_ASIDE = re.compile(r"[\[(][^\[\]()]*[\])]")  # a time or a role beside a name
_AFTER = frozenset(" \t*_\"'”’»)]}>|`") | {""}
_LONGEST_LABEL = 120  # characters of a line that are looked at
_HEADER_LINE = re.compile(r"(?i)\s*(?:\[(?=[^0-9]*[0-9]).*\]\s*$|label\s*:)")


class Span(NamedTuple):
    """A slice of a text in characters: ``text[start:end]``."""

    start: int
    end: int


def speaker_labels(text: str) -> list[Span]:
    """Return the labels of a dialogue in order, and an empty span where a header ends a turn.

    Nothing if it is no dialogue. A label begins a line and ends with a colon and white space. Its
    name is a role such as ``user`` (where two roles speak, or a role speaks first, nothing else is
    a label), or capitalised and no word of headings; any other word counts only if somebody speaks
    again after another. A text where nobody does is a dialogue of at most three speakers: it begins
    with a label, or most of its lines do.
    """
    candidates = list(_SPEAKER.finditer(text))
    matches = [
        match for match in candidates if _HEADINGS.isdisjoint(match["name"].casefold().split())
    ]
    roles = [match for match in matches if _ROLE.fullmatch(match["name"])]
    headers = {match.start() for match in _HEADER.finditer(text)}
    lines = [match.start() for match in _LINE.finditer(text) if match.start() not in headers]
    message = bool(lines) and text.startswith(_MESSAGE, lines[0])
    if len({match["name"] for match in roles}) > 1 or matches[:1] == roles[:1]:
        matches = roles
    turns = [name for name, _ in groupby(match["name"] for match in matches)]
    returns = len(set(turns)) < len(turns)
    matches = [
        match
        for match in matches
        if _is_name(match["name"]) or (returns and not text.startswith("\n", match.end()))
    ]
    spoken = bool(matches) and (matches[0].start() == lines[0] or 2 * len(matches) > len(lines))
    few = len({match["name"] for match in candidates}) <= 3
    if not returns and not message and not (few and spoken):
        return []
    labels = [Span(*match.span()) for match in matches]
    return sorted([*(Span(start, start) for start in headers), *labels])


def quoted_labels(text: str) -> str:
    """Return what somebody says, for a place behind their label: ``> `` stands before each line but
    the first that a program or a model could read as the label of another, or as a header that
    ends a turn. So nobody can say something in the name of another. ``unquoted_labels`` takes it
    back.
    """
    if not _MARK.search(text):
        return text
    first, *others = _LINES.split(text)
    for place in range(1, len(others), 2):
        if _may_label(others[place]):
            others[place] = f"> {others[place]}"
    return "".join([first, *others])


def unquoted_labels(text: str) -> str:
    """Return what was said, of a text that ``quoted_labels`` gave."""
    first, *others = _LINES.split(text)
    for place in range(1, len(others), 2):
        if _may_label(others[place]):
            others[place] = others[place].removeprefix("> ")
    return "".join([first, *others])


def label_name(name: str) -> str:
    """Return a name as a label shows it: without colons and quotation signs before it, and not
    longer than one that is read.
    """
    plain = "".join(" " if ord(each) in _COLONS or each == ":" else each for each in name)
    return " ".join(plain.lstrip("> ").split())[:_LONGEST_NAME].rstrip()


def _may_label(line: str) -> bool:
    """Whether a line could be read as one that labels what follows, quoted before or not.

    At most five words stand before a colon, in any script, with marks, times, spaces or invisible
    characters in between; none is a word of headings.
    """
    line = line.lstrip("> ")[:_LONGEST_LABEL]
    if not _MARK.search(line):  # most lines have none
        return False
    label = _SPEAKER.match(line)
    if label and _HEADINGS.isdisjoint(label["name"].casefold().split()):
        return True
    seen = unmarked(line if line.isascii() else line.translate(_COLONS))
    letter = _LETTER.search(line)
    capital = letter is not None and letter[0].isupper()
    first = _LETTER.search(seen)
    start = first.start() if first else len(seen)
    for colon in _COLON.finditer(seen, start):
        head = seen[start : colon.start()]
        words = _LABEL_WORD.findall(_ASIDE.sub("", head)) or _LABEL_WORD.findall(head)
        after = seen[colon.end() : colon.end() + 1]
        ends = after in _AFTER or (after.isalpha() and (after > "\x7f" or capital))
        if ends and 0 < len(words) <= _LABEL_WORDS and _HEADINGS.isdisjoint(words):
            return True
    return _HEADER_LINE.match(seen) is not None


def _is_name(name: str) -> bool:
    last = name.rpartition(" ")[2]
    capitalised = name[0].isupper() and (last[0].isupper() or last.isdecimal())
    return capitalised or _ROLE.fullmatch(name) is not None


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

    def fits(self, span: Span) -> bool:
        return self.count(self.piece(span)) <= self.limit


def units(
    text: str, limit: int, count: TokenCounter, labels: Sequence[Span] | None = None
) -> list[str]:
    """Return the units of a text, in order, each of at most ``limit`` tokens.

    In a dialogue each has its speaker. ``labels``, if they are known.

    A unit is a block between blank lines if it fits (with ``labels``: if it is of one turn), else a
    line, a sentence, or words; a line ``Label: ...`` stays with the line that it labels.
    """
    cutting = _Cutting(text, limit, count, speaker_labels(text) if labels is None else labels)
    blocks = [_strip(text, *match.span()) for match in _BLOCK.finditer(text)]
    spans: list[Span] = []
    for block in blocks:
        one_turn = labels is None or not cutting.turns_within(block)
        if len(blocks) > 1 and one_turn and cutting.fits(block):
            spans.append(block)
            continue
        for line in (_strip(text, *match.span()) for match in _LINE.finditer(text, *block)):
            parts = [line] if cutting.fits(line) else sentences(text, line)
            spans += [piece for part in parts for piece in _pieces(cutting, part)]
    return [cutting.piece(span) for span in spans]


def cut(
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
