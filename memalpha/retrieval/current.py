"""What holds now: the one rule of which of two statements is newer, for entries and for lines of the archive.

A statement is newer by its date where both have one, else by the chunk that said it. What merely resembles a newer statement
ranks lower in a search and never disappears. A line leaves the archive only where an operation named the fact that it says.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from memalpha.memory.memory import newer
from memalpha.retrieval.lexical import tokenize
from memalpha.types import Entry

ALIKE = 0.55  # cosine of statements that say nearly the same
FACT = 0.3  # least Dice coefficient of the words of a fact and of the line that says it
_SPEAKER = ": "


def outdated(entries: Sequence[Entry], cosines: NDArray[np.float32]) -> set[str]:
    """Return the ids of the entries that resemble a newer one; ``cosines`` has shape (entries, entries)."""
    old = set[str]()
    for row, entry in enumerate(entries):
        others = np.flatnonzero(cosines[row] >= ALIKE)
        if any(newer(entries[other], entry) for other in others):
            old.add(entry.id)
    return old


def line_of(fact: Entry, lines: Sequence[Entry], after: Entry | None = None) -> Entry | None:
    """Return the line that says a fact, of several the last; None if it is not clear that any does.

    It has at least half of the words that ``after`` took away (all, without it), and few others: a line that says more than the
    fact, or says something else and only shares a name with it, is not meant.
    """
    best, most = None, FACT
    for line in lines:
        speaker, text = _parted(line.content)
        words, said = set(tokenize(fact.content)) - speaker, set(tokenize(text))
        gone = words - set(tokenize(after.content)) if after else words
        share = 2 * len(words & said) / max(1, len(words) + len(said))
        if share >= most and 2 * len(gone & said) >= len(gone) > 0:
            best, most = line, share
    return best


def _parted(line: str) -> tuple[set[str], str]:
    """The words of the name of who speaks, and what is said."""
    speaker, colon, text = line.partition(_SPEAKER)
    return (set(tokenize(speaker)), text) if colon and "\n" not in speaker else (set(), line)
