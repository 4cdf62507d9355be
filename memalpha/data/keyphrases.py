"""The words of a summary that a good one would name: proper names first, then the words it uses most.

Stands in for the keywords that the published system had a language model draw from each summary: the same summary always gives the
same ones, and nothing has to be asked. Only for languages with capitals and spaces.
"""

from __future__ import annotations

import re
from collections import Counter

_NAME = re.compile(r"(?<![.!?\"“]\s)(?<!^)\b[A-Z][\w'’-]+(?:\s+(?:(?:of|the|de|von|van)\s+)?[A-Z][\w'’-]+)*", re.MULTILINE)
_WORD = re.compile(r"\b[a-z]{7,}\b")
_SUFFIX = re.compile(r"['’]s?$")


def keyphrases(summary: str, limit: int) -> tuple[str, ...]:
    """Return at most ``limit`` names and words of a summary, most frequent first, ties by place; none of them twice.

    A name is a run of capitalised words that does not begin a sentence; a word has at least seven small letters.
    """
    flat = " ".join(summary.split())
    names = Counter(_SUFFIX.sub("", match.group()) for match in _NAME.finditer(flat))
    words = Counter(_WORD.findall(flat))
    return tuple(name for name, _ in (names.most_common() + words.most_common())[:limit])
