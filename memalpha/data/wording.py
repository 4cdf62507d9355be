"""Text functions for the loaders: lines added to questions (so the leak check can ignore them), and
keywords.
"""

import re
from collections import Counter

ASK_LABEL = (
    "Which label number does this have, going by the examples? Answer with the number in \\boxed{}."
)
SUMMARISE = "Summarise the text."
_ASKED_ON, PERSONA = "Asked on {}.", "What has {} said about themselves?"
_OWN = re.compile(
    "|".join(
        re.escape(line).replace(r"\{\}", ".+")
        for line in (ASK_LABEL, SUMMARISE, _ASKED_ON, PERSONA)
    )
)


def asked_on(date: str, question: str) -> str:
    """Return a question under a line with its date, if one is given."""
    return f"{_ASKED_ON.format(date)}\n{question}" if date else question


def as_asked(question: str) -> str:
    """Return a question's text without lines that a loader added; may be empty."""
    return "\n".join(line for line in question.split("\n") if not _OWN.fullmatch(line.strip()))


_NAME = re.compile(
    r"(?<![.!?\"“]\s)(?<!^)\b[A-Z][\w'’-]+(?:\s+(?:(?:of|the|de|von|van)\s+)?[A-Z][\w'’-]+)*",
    re.MULTILINE,
)
_WORD = re.compile(r"\b[a-z]{7,}\b")
_SUFFIX = re.compile(r"['’]s?$")


def keyphrases(summary: str, limit: int = 20) -> tuple[str, ...]:
    """Return at most ``limit`` keywords, by frequency: runs of capitalised words, then words of at
    least 7 lower-case letters.
    """
    flat = " ".join(summary.split())
    names = Counter(_SUFFIX.sub("", match.group()) for match in _NAME.finditer(flat))
    words = Counter(_WORD.findall(flat))
    return tuple(name for name, _ in (names.most_common() + words.most_common())[:limit])
