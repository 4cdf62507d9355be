"""The distinct labelled sentences of a file, on disk: what the classification sets draw their questions and examples from.

What always holds: each row read is in the pool or counted under its reason; sentences are compared without regard to letter case.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator

from memalpha.data.fields import EMPTY_ANSWER
from memalpha.data.labelled import Labelled
from memalpha.data.source import LoadResult
from memalpha.data.spool import Spool
from memalpha.errors import InputError, SchemaError

EMPTY_SENTENCE = "empty sentence"
"""Reason of a row whose sentence is blank."""

TOO_LONG = "too long"
"""Reason of a sentence that is longer than a chunk may be, so that it cannot be an example."""

OUT_OF_SCOPE = "oos_"
"""What stands before a split's name where its sentences without an intent are kept apart, as in CLINC150's file."""


class SentencePool:
    """Distinct sentences on disk, their labels in memory.

    Args:
        rows: Read once, to the end.
        result: Keeps the counts of those left out.
        fits: Whether a sentence is short enough to be kept; None keeps all.
        held_out: Sentences to leave out.
    """

    def __init__(
        self,
        rows: Iterable[Labelled],
        result: LoadResult,
        fits: Callable[[str], bool] | None = None,
        held_out: SentencePool | None = None,
    ) -> None:
        self.spool, self.labels, self.names = Spool(), array("I"), dict[str, int]()
        for row in rows:
            if isinstance(row.label, SchemaError):
                result.malformed(str(row.label))
            elif not row.text or not row.label:
                result.skip(EMPTY_SENTENCE if not row.text else EMPTY_ANSWER)
            elif self.spool.find(key := row.text.casefold()) is not None:
                result.skip("repeated sentence")
            elif held_out is not None and held_out.spool.find(key) is not None:
                result.skip("held out")
            elif fits is not None and not fits(row.text):
                result.skip(TOO_LONG)
            else:
                self.spool.add(self.spool.key(key), [row.text, row.where])
                self.labels.append(self.names.setdefault(row.label, len(self.names)))

    def text(self, number: int) -> tuple[str, str]:
        """Return the sentence of that number, and its place in the input."""
        text, where = self.spool.get(number)[1][0]
        return str(text), str(where)

    def key(self, number: int) -> str:
        """Return what the sentence of that number is compared by."""
        return self.spool.get(number)[0]


def read_pool(
    rows: Iterable[Labelled],
    source: str,
    split: str,
    result: LoadResult,
    fits: Callable[[str], bool] | None = None,
    held_out: SentencePool | None = None,
) -> SentencePool:
    """Gather the sentences of one split; those of others are counted.

    Args:
        rows: Read once, to the end.
        source: Where they are from, for messages.
        split: The split wanted; rows that are of none are taken as well, and those of its out-of-scope part (``oos_`` before it).
        result: Keeps the counts.
        fits: As for ``SentencePool``.
        held_out: As for ``SentencePool``.

    Raises:
        InputError: If there is no such split, or no sentence with a label in it.
    """
    splits, before = set[str](), len(result.problems)
    pool = SentencePool(_of_split(rows, split, result, splits), result, fits, held_out)
    if len(pool.labels):
        return pool
    if splits and split not in splits:
        raise InputError(f"{source} has no split {split!r}", expected=f"one of {', '.join(sorted(splits))}")
    found = result.problems[before : before + 1] or [f"{number} {reason}" for reason, number in result.skipped.items()]
    about = f": {', '.join(found)}" if found else ""
    raise SchemaError(f"{source} has no labelled sentence{about}", expected="sentences with labels")


def _of_split(rows: Iterable[Labelled], split: str, result: LoadResult, splits: set[str]) -> Iterator[Labelled]:
    """Leave out sentences of other splits, count all, and gather the splits' names."""
    for row in rows:
        result.saw()
        splits |= {row.split} - {""}
        if row.split in ("", split, f"{OUT_OF_SCOPE}{split}"):
            yield row
        else:
            result.skip("other split")
