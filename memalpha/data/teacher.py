"""Demonstrations: what a good policy does with a session of a synthetic dialogue, given the memory as it stands.

A statement is inserted, a changed fact is updated (or deleted and inserted anew), a fact that was taken back is deleted; entries
read ``Marta city Oslo``. Operations name ids of the memory that is passed in and are meant to be applied in order.

What always holds: every operation succeeds and changes that memory, whatever its schema allows and limits; the memory itself is
left alone. With the default config and room for every fact, the memory then answers every question the generator asks.

It does not cover demonstrations of prose, of block sections, or of mistakes: an imperfect teacher is one that leaves facts out.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from memalpha.config import Options, Share
from memalpha.data.pools import preferred_sections
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.qa.metrics import contains
from memalpha.types import Entry, Fact, FactAction, Instance, Operation, OperationKind

Style = Literal["words", "sentence"]

_STYLES: dict[Style, str] = {
    "words": "{0.subject} {0.attribute} {0.value}",
    "sentence": "The {0.attribute} of {0.subject} is {0.value}.",
}


@dataclass(frozen=True, slots=True)
class TeacherConfig(Options):
    """How well the teacher demonstrates.

    Attributes:
        coverage: Probability that a fact the memory does not hold is written down; a pair (low, high) draws one probability an
            instance, so that demonstrations differ in how much they keep. What is held is corrected whatever the coverage.
        p_correct: Probability that a held fact is corrected where it stands when it changes or is taken back; else a change is
            treated as a new fact, which leaves the stale entry beside it, and a retraction is let pass. 0 = only ever insert.
        p_update: Of the corrected changes, the probability of an update instead of a deletion and an insertion.
        style: Wording of an entry: ``words`` (``Marta city Oslo``) or ``sentence``.
        dates: Write the session's date into the entry where its section keeps no times.
    """

    coverage: Share | tuple[Share, Share] = 1.0
    p_correct: Share = 1.0
    p_update: Share = 0.5
    style: Style = "words"
    dates: bool = True

    def check(self) -> None:
        """Raise InputError if the pair of coverages is not in order."""
        low, high = self._coverages()
        if low > high:
            raise InputError(f"teacher: coverage is {self.coverage!r}", expected="a pair (low, high) with low <= high")

    def coverage_of(self, instance: Instance) -> float:
        """Return the probability that a fact of this instance is acted on; the same whenever it is asked."""
        low, high = self._coverages()
        return random.Random(f"coverage:{instance.id}").uniform(low, high) if low < high else low

    def _coverages(self) -> tuple[float, float]:
        return self.coverage if isinstance(self.coverage, tuple) else (self.coverage, self.coverage)


def teacher_operations(
    instance: Instance, chunk_index: int, memory: Memory, rng: random.Random, config: TeacherConfig = TeacherConfig()
) -> list[Operation]:
    """Return what a good policy does with one chunk, in order; ``instance.facts`` say what the chunk means.

    ``memory`` is the memory as it stands before the chunk, filled by this teacher or by anybody else; it is not changed. ``rng``
    draws what is kept and how it is corrected.
    """
    trial, time = memory.copy(), instance.chunks[chunk_index].time
    coverage = config.coverage_of(instance)
    operations: list[Operation] = []
    for fact in instance.facts:
        if fact.chunk == chunk_index:
            for operation in _for_fact(fact, trial, time, rng, config, keep=rng.random() < coverage):
                if trial.apply(operation, chunk=chunk_index, time=time).changed:
                    operations.append(operation)
    return operations


def section_for(attribute: str, schema: MemorySchema) -> str:
    """Return the section an attribute belongs in: the first of those that suit it, else the schema's first list."""
    suited = (name for name in preferred_sections().get(attribute, ()) if name in schema)
    return next(suited, schema.lists[0].name)


def _for_fact(
    fact: Fact, memory: Memory, time: str | None, rng: random.Random, config: TeacherConfig, *, keep: bool
) -> Iterator[Operation]:
    """What to do about one fact, to be kept if it is new. An iterator: the memory is looked at before anything is yielded."""
    section = memory.schema[section_for(fact.attribute, memory.schema)]
    content = _STYLES[config.style].format(fact)
    if config.dates and time and not section.timestamps:
        content = f"{content} ({time})"
    insert = Operation(OperationKind.INSERT, section.name, content)
    if fact.action is FactAction.STATE:
        if keep:
            yield insert
        return
    correct, update = rng.random() < config.p_correct, rng.random() < config.p_update
    gone = fact.value if fact.action is FactAction.RETRACT else fact.previous or ""
    bound = _bound(memory, fact.subject, fact.attribute, gone) if correct else []
    if fact.action is FactAction.RETRACT:
        yield from map(_delete, bound)
    elif bound and update and _may_become(bound[0], content, memory):
        yield Operation(OperationKind.UPDATE, bound[0].section, content, bound[0].id)
        yield from map(_delete, bound[1:])
    elif bound or keep:
        yield from map(_delete, bound)
        yield insert


def _bound(memory: Memory, subject: str, attribute: str, value: str) -> list[Entry]:
    """Entries that hold both the person and the value, those that name the attribute first."""
    hits = [entry for entry in memory.entries() if contains(entry.content, subject) and contains(entry.content, value)]
    return sorted(hits, key=lambda entry: not contains(entry.content, attribute))


def _delete(entry: Entry) -> Operation:
    return Operation(OperationKind.DELETE, entry.section, entry_id=entry.id)


def _may_become(entry: Entry, content: str, memory: Memory) -> bool:
    """Whether an entry can be updated to a text: its section allows it and no other entry says so already."""
    said = any(other.content == content for other in memory.entries(entry.section))
    return OperationKind.UPDATE in memory.schema[entry.section].operations and not said
