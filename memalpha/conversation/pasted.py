"""Texts that a person pastes into a conversation: code, lists, tables, quoted mails, a text to be
translated.

In an archive they have a label of their own, ``User (pasted):``, so that their statements are not
taken for the person's.
"""

import re
from collections.abc import Sequence
from itertools import groupby

from memalpha.conversation.messages import ASSISTANT
from memalpha.speakers import PASTED, speaker_of, unquoted_labels
from memalpha.types import Span
from memalpha.units import QUESTION_ENDS

_FENCE = re.compile(r"\s*(?:```|~~~)[\w+#.-]*\s*$")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_ANNOUNCED = re.compile("[:\uff1a]\\s*$")  # the end of a sentence that says that a text comes
_ENDS = re.compile("[.!?\u2026\u3002\uff01\uff1f]\\s*$")
# words by which people speak of themselves: in English, German, Spanish, French, Italian, Chinese
# and Japanese
_SELF = re.compile(
    r"(?i)\b(?:i|me|my|mine|we|us|our|ich|mich|mir|wir|uns|mein\w*|unser\w*|yo|mi|mis|nos|nuestr\w+"
    r"|je|moi|mon|ma|mes|nous|notre|io|mio|mia|noi)\b|[\u6211\u4ffa\u79c1\u50d5]"
)
_LINES = 4  # in a row, without the end of a sentence and without "I", are a list or code
_WORDS = 25  # behind a sentence that says that a text comes


def mark_pasted(text: str, labels: Sequence[Span]) -> tuple[str, list[Span]]:
    """Return a dialogue in which what its people bring has a label of its own, and the places of
    all labels. ``labels`` are those of its turns; what an assistant says stays as it is.
    """
    parts = [text[: labels[0].start] if labels else text]
    length = len(parts[0])
    places = list[Span]()
    for label, after in zip(labels, [*labels[1:], Span(len(text), 0)], strict=False):
        shown = text[slice(*label)]
        said = text[label.end : after.start]
        name = speaker_of(f"{shown.rstrip()} x").removesuffix(PASTED).rstrip()
        if name.lower() == ASSISTANT:
            name = ""
        lines = _LINE.findall(said) or [""]
        marks = _pasted_lines(lines) if name else [False] * len(lines)
        begins = True
        for is_pasted, run in groupby(zip(marks, lines, strict=True), key=lambda pair: pair[0]):
            piece = "".join(line for _, line in run)
            own = f"{name}{PASTED}:" if is_pasted else shown
            places.append(Span(length, length + len(own)))
            needs_space = (is_pasted or not begins) and not piece[:1].isspace()
            parts += [own, " " * needs_space, piece]
            length += len(own) + needs_space + len(piece)
            begins = False
    return "".join(parts), places


def _pasted_lines(lines: Sequence[str]) -> list[bool]:
    """Say of each line of a turn whether it is pasted; a blank one is as the one before it."""
    marks = [False] * len(lines)
    fences = [number for number, line in enumerate(lines) if _FENCE.match(line)]
    for start, end in zip(fences[::2], [*fences[1::2], len(lines) - 1], strict=False):
        marks[start : end + 1] = [True] * (end + 1 - start)
    start = 0
    for (is_quotation, is_open), run in groupby(lines, lambda line: (_quotes(line), _open(line))):
        end = start + len(list(run))
        said = "".join(lines[start:end])
        if is_quotation or (is_open and end - start >= _LINES and not _SELF.search(said)):
            marks[start:end] = [True] * (end - start)
        start = end
    announced = [n for n, line in enumerate(lines) if not marks[n] and _ANNOUNCED.search(line)]
    for number in announced[:1]:
        end = len(lines)
        while end > number + 1 and _asks_or_is_blank(lines[end - 1]):
            end -= 1
        if len("".join(lines[number + 1 : end]).split()) >= _WORDS:
            marks[number + 1 : end] = [True] * (end - number - 1)
    for number, line in enumerate(lines):
        if number and not line.strip():
            marks[number] = marks[number - 1]
    return marks


def _asks_or_is_blank(line: str) -> bool:
    text = line.rstrip()
    return not text or text.endswith(QUESTION_ENDS)


def _quotes(line: str) -> bool:
    """Whether a line quotes somebody, and is not only kept from being read as a label."""
    text = line.strip()
    return text.startswith(">") and unquoted_labels(f"\n{text}") == f"\n{text}"


def _open(line: str) -> bool:
    """Whether a line has words and no end of a sentence, nor announces the next."""
    return bool(line.strip()) and not _ENDS.search(line) and not _ANNOUNCED.search(line)
