"""Demonstrations for plain text without annotations: the teacher inserts a few words copied from each sentence.

It takes the run of words with the highest weight (a name or number 2, another word of four or more letters 1) and inserts it into
the schema's first list that allows insertions; the given memory is not changed. It does not know which sentences matter. Not
covered: updates, deletions, languages without spaces.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import PositiveInt

from memalpha.config import Options, Share
from memalpha.data.packing import sentences
from memalpha.data.source import Bounds
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.types import Instance, Operation, OperationKind

_NAME_OR_NUMBER = re.compile(r"\W*(?:[A-Z]|\d)")
_LONG = re.compile(r"\W*[^\W\d_]{4,}")
_EDGES = " \t,;:.!?\"'“”‘’()[]–—-"


@dataclass(frozen=True, slots=True)
class ExcerptConfig(Options):
    """How much the teacher of plain text demonstrates.

    Attributes:
        coverage: Minimum and maximum share of sentences that are kept; drawn per instance.
        words: Minimum and maximum words of an entry, drawn per entry; a shorter sentence is kept whole.
        max_entries: Maximum entries of a chunk.
        max_tokens: Maximum tokens of a chunk's entries together (memory's count); an entry that does not fit is left out.
    """

    coverage: tuple[Share, Share] = (1.0, 1.0)
    words: Bounds = (5, 9)
    max_entries: PositiveInt = 4
    max_tokens: PositiveInt = 64

    def check(self) -> None:
        """Raise InputError if ``coverage`` is not in order."""
        if self.coverage[0] > self.coverage[1]:
            raise InputError(f"excerpts: coverage is {self.coverage}", expected="a pair (low, high) with low <= high")


def excerpt_operations(
    instance: Instance, chunk_index: int, memory: Memory, rng: random.Random, config: ExcerptConfig = ExcerptConfig()
) -> list[Operation]:
    """Return the operations for one chunk; arguments as of ``memalpha.data.teacher.teacher_operations``."""
    trial, chunk = memory.copy(), instance.chunks[chunk_index]
    section = next(s.name for s in memory.schema.lists if OperationKind.INSERT in s.operations)
    coverage = random.Random(f"coverage:{instance.id}").uniform(*config.coverage)
    operations: list[Operation] = []
    left = config.max_tokens
    for start, end in sentences(chunk.text):
        if len(operations) < config.max_entries and rng.random() < coverage:
            content = excerpt(chunk.text[start:end].split(), rng.randint(*config.words))
            operation, cost = Operation(OperationKind.INSERT, section, content), memory.count_tokens(content)
            if content and cost <= left and trial.apply(operation, chunk=chunk_index, time=chunk.time).changed:
                operations.append(operation)
                left -= cost
    return operations


def excerpt(words: Sequence[str], count: int) -> str:
    """Return the first run of at most ``count`` words with the highest weight, without punctuation at its ends."""
    weights = [_weight(word, first=place == 0) for place, word in enumerate(words)]
    starts = range(max(1, len(words) - count + 1))
    best = max(starts, key=lambda start: (sum(weights[start : start + count]), -start))
    return " ".join(words[best : best + count]).strip(_EDGES)


def _weight(word: str, first: bool) -> float:
    if _NAME_OR_NUMBER.match(word) and not first:
        return 2.0
    return 1.0 if _LONG.match(word) else 0.0
