"""Teacher demonstrations: operations for one session of a synthetic dialogue, given the current
memory, which is not changed.

New facts are inserted, changed facts updated (or deleted and inserted), retracted facts deleted;
entries read ``Marta city Oslo``, or as ``Fact.note`` says. A block is written again with the fact
in its place. Operations must be applied in order; each succeeds within the schema's limits.
``excerpt_operations`` is for plain text: a few words of each sentence, the run with the highest
weight (a name or number 2, another word of four or more letters 1).
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memalpha.config import Options, Share
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.qa.metrics import contains
from memalpha.retrieval.archive import archive_chunk
from memalpha.types import Fact, FactAction, Instance, Operation, OperationKind, OperationResult
from memalpha.units import sentences

_NAME_OR_NUMBER = re.compile(r"\W*(?:[A-Z]|\d)")
_LONG = re.compile(r"\W*[^\W\d_]{4,}")
_EDGES = " \t,;:.!?\"'“”‘’()[]–—-"
_EXCERPT_WORDS = (5, 9)  # fewest and most words of an excerpt; a shorter sentence is kept whole
_EXCERPTS = 4  # most entries of a chunk
_EXCERPT_TOKENS = 64  # most tokens of these together


@dataclass(frozen=True, slots=True)
class TeacherConfig(Options):
    """Options of the teacher, which decide how well it demonstrates.

    Attributes:
        coverage: The teacher writes a new fact with this probability. With a pair (low, high) each
            instance draws its own.
        p_correct: The teacher corrects a fact that it holds with this probability. Otherwise a
            change is only inserted, and a retraction ignored.
        p_update: A correction is an update with this probability, and otherwise a deletion and an
            insertion.
        dates: If true, the teacher writes the session's date into the entry if its section stores
            no times.
    """

    coverage: Share | tuple[Share, Share] = 1.0
    p_correct: Share = 1.0
    p_update: Share = 0.5
    dates: bool = True

    def check(self) -> None:
        """Raise InputError if the coverages are not in order."""
        if isinstance(self.coverage, tuple) and self.coverage[0] > self.coverage[1]:
            raise InputError(
                f"the teacher's coverage is {self.coverage!r}",
                expected="a pair (low, high) with low <= high",
            )

    def coverage_of(self, instance: Instance) -> float:
        """Return the share of an instance's facts that is written."""
        given = self.coverage
        low, high = given if isinstance(given, tuple) else (given, given)
        return random.Random(f"coverage:{instance.id}").uniform(low, high)


def teacher_operations(
    instance: Instance,
    chunk_index: int,
    memory: Memory,
    rng: random.Random,
    config: TeacherConfig = TeacherConfig(),
) -> list[Operation]:
    """Return the operations for one chunk in order, from ``instance.facts``; ``memory`` (before the
    chunk) is not changed.
    """
    trial = memory.copy()
    time = instance.chunks[chunk_index].time
    coverage = config.coverage_of(instance)
    operations: list[Operation] = []
    for fact in [fact for fact in instance.facts if fact.chunk == chunk_index]:
        keep = rng.random() < coverage
        for operation in _for_fact(fact, trial, time, rng, config, keep=keep):
            if trial.apply(operation, chunk=chunk_index, time=time).changed:
                operations.append(operation)
    return operations


def teach(
    memory: Memory,
    instance: Instance,
    rng: random.Random,
    config: TeacherConfig,
    chunks: int | None = None,
    keep_lines: bool = False,
) -> list[OperationResult]:
    """Apply the operations of the first ``chunks`` (None: all); return their results;
    ``keep_lines``: to an archive, too.
    """
    results: list[OperationResult] = []
    for index, chunk in enumerate(instance.chunks[:chunks]):
        start = len(memory.changes)
        operations = teacher_operations(instance, index, memory, rng, config)
        results += [
            memory.apply(operation, chunk=index, time=chunk.time) for operation in operations
        ]
        if keep_lines:
            archive_chunk(memory, index, chunk, memory.changes[start:])
    return results


def _for_fact(
    fact: Fact,
    memory: Memory,
    time: str | None,
    rng: random.Random,
    config: TeacherConfig,
    *,
    keep: bool,
) -> Iterator[Operation]:
    names = [name for name in fact.sections if name in memory.schema]
    section = memory.schema[names[0]] if names else memory.schema.lists[0]
    states = fact.action is FactAction.STATE
    if section in memory.schema.blocks:
        correct = rng.random() < config.p_correct
        rewriting = _in_block(fact, section.name, memory, keep=keep, correct=correct)
        tokens = memory.count_tokens(rewriting.content or "")
        if not states or not section.max_tokens or tokens <= section.max_tokens:
            yield rewriting
            return
        section = memory.schema.lists[0]
    content = _note(fact)
    if config.dates and time and not section.timestamps:
        content = f"{content} ({time})"
    insert = Operation(OperationKind.INSERT, section.name, content)
    if states:
        yield from [insert] * keep
        return
    correct = rng.random() < config.p_correct
    update = rng.random() < config.p_update
    gone = fact.value if fact.action is FactAction.RETRACT else fact.previous or ""
    named = (entry for entry in memory.entries() if contains(entry.content, fact.subject))
    held = [entry for entry in named if correct and contains(entry.content, gone)]
    held.sort(key=lambda entry: not contains(entry.content, fact.attribute))  # the surest first
    deletions = [Operation(OperationKind.DELETE, each.section, entry_id=each.id) for each in held]
    first = held[0].section if held else section.name
    again = content in [entry.content for entry in memory.entries(first)]
    updates = update and not again and OperationKind.UPDATE in memory.schema[first].operations
    if fact.action is FactAction.RETRACT:
        yield from deletions
    elif held and updates:
        yield Operation(OperationKind.UPDATE, first, content, held[0].id)
        yield from deletions[1:]
    elif held or keep:
        yield from [*deletions, insert]


def _note(fact: Fact) -> str:
    return fact.note or f"{fact.subject} {fact.attribute} {fact.value}"


def _in_block(fact: Fact, section: str, memory: Memory, *, keep: bool, correct: bool) -> Operation:
    """Write a block again with the fact as one of its statements, ``; `` between them, in place of
    what it ends.
    """
    parts = [part for part in memory.block(section).split("; ") if part]
    retracts = fact.action is FactAction.RETRACT
    gone = (fact.value if retracts else fact.previous) if correct else None
    about = [part for part in parts if gone and contains(part, fact.subject)]
    ended = [part for part in about if gone and contains(part, gone)]
    news = [] if retracts or not (keep or ended) else [_note(fact)]
    place = parts.index(ended[0]) if ended else len(parts)
    left = [part for part in [*parts[:place], *news, *parts[place:]] if part not in ended]
    return Operation(OperationKind.REPLACE, section, "; ".join(left) or "-")


def excerpt_operations(
    instance: Instance,
    chunk_index: int,
    memory: Memory,
    rng: random.Random,
    config: TeacherConfig = TeacherConfig(),
) -> list[Operation]:
    """Return the operations for one chunk of plain text, whose sentences are kept with
    ``coverage``.
    """
    trial = memory.copy()
    chunk = instance.chunks[chunk_index]
    section = next(s.name for s in memory.schema.lists if OperationKind.INSERT in s.operations)
    share = config.coverage_of(instance)
    operations: list[Operation] = []
    left = _EXCERPT_TOKENS
    for start, end in sentences(chunk.text):
        if len(operations) == _EXCERPTS or rng.random() >= share:
            continue
        content = excerpt(chunk.text[start:end].split(), rng.randint(*_EXCERPT_WORDS))
        tokens = memory.count_tokens(content)
        operation = Operation(OperationKind.INSERT, section, content)
        fits = content and tokens <= left
        if fits and trial.apply(operation, chunk=chunk_index, time=chunk.time).changed:
            operations.append(operation)
            left -= tokens
    return operations


def excerpt(words: Sequence[str], count: int) -> str:
    """Return the first run of at most ``count`` words with the highest weight, without punctuation
    at its ends.
    """
    weights = [
        2 if place and _NAME_OR_NUMBER.match(word) else bool(_LONG.match(word))
        for place, word in enumerate(words)
    ]
    starts = range(max(1, len(words) - count + 1))
    best = max(starts, key=lambda start: (sum(weights[start : start + count]), -start))
    return " ".join(words[best : best + count]).strip(_EDGES)
