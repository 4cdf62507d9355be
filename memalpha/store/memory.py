"""The memory of one namespace, built from its records, and its past states.

``Memory.apply`` decides once, at writing, and the record keeps the result: another tokenizer, limit
or version changes no past.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, replace
from itertools import chain
from operator import attrgetter
from typing import Any

from memalpha.errors import ForgottenError, JournalConflictError, JournalDamagedError, JournalError
from memalpha.memory.memory import Memory, Snapshot, count_words
from memalpha.memory.schema import ARCHIVE, MemorySchema, Section, SectionKind
from memalpha.protocols import TokenCounter
from memalpha.retrieval.current import line_of
from memalpha.retrieval.lexical import tokenize
from memalpha.store.records import Body, Event, Kind, Origin, Record, moment_of
from memalpha.types import Change, Entry, Operation, OperationResult

# texts; a word in more, and in more than half of all, such as the user's name, tells nothing
_FEW = 50


Draft = tuple[
    Change, dict[str, Any]
]  # a change that is not logged yet, and the rest of its ``Body``
Step = tuple[Record, Body]  # a record and its body, read once


class JournalMemory(Memory):
    """A memory that follows a journal: changes carry its operation numbers; operations are accepted
    inside ``writing`` only.
    """

    def __init__(self, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> None:
        super().__init__(schema, count_tokens)
        self.seq = 0
        self.draft: list[Draft] | None = (
            None  # what was applied since ``writing`` began; None outside of it
        )

    def apply(
        self, operation: Operation, *, chunk: int | None = None, time: str | None = None
    ) -> OperationResult:
        """Apply an operation, to be logged when the ``writing`` block ends; JournalError outside
        such a block.
        """
        if self.draft is None:
            raise JournalError(
                "a durable memory was written outside of its journal", fix="durable.writing(origin)"
            )
        self._clock = self.seq + 1
        result = super().apply(operation, chunk=chunk, time=time)
        if result.logged:
            self.seq += 1
            fields = {name: value for name, value in asdict(operation).items() if value is not None}
            self.draft.append(
                (
                    self.changes[-1],
                    {"operation": fields, "chunk": chunk, "said": time, "call": None},
                )
            )
        return result

    def apply_all(
        self, operations: Sequence[Operation], *, chunk: int | None = None, time: str | None = None
    ) -> list[OperationResult]:
        """Apply the operations of one call (``Memory.apply_all``); the log keeps that they belong
        together.
        """
        first, results = self.seq + 1, super().apply_all(operations, chunk=chunk, time=time)
        if self.draft and self.seq > first:
            for _, body in self.draft[first - self.seq - 1 :]:
                body["call"] = first
        return results

    def replay(self, records: Sequence[Record]) -> None:
        """Apply records in order, following those applied before; JournalDamagedError if a record
        does not fit.
        """
        for record in records:
            self._take(record)
        self._clock = self.seq + 1

    def _take(self, record: Record) -> None:
        body, before = record.read(Body), self.get(record.entry)
        after = body.after
        if after is not None and (after.section not in self.schema or after.id != record.entry):
            raise JournalDamagedError(
                f"operation {record.seq} wrote an entry that fits no section of {self.schema.name!r}"
            )
        if (
            after is not None
            and before is not None
            and (after.section, after.created) != (before.section, before.created)
        ):
            raise JournalDamagedError(f"operation {record.seq} moved the entry {after.id}")
        if (after is not None and not 0 < after.created <= after.updated <= record.seq) or (
            body.of or 0
        ) >= record.seq:
            raise JournalDamagedError(f"operation {record.seq} names one that comes after it")
        self.seq = self._clock = record.seq
        if after is not None and (
            record.kind == Kind.UNDO or (before is None and after.created < record.seq)
        ):
            entries = [entry for entry in self._entries.values() if entry.id != record.entry]
            insort(
                entries, after, key=attrgetter("created")
            )  # the earlier state returns at its earlier position
            self.restore(Snapshot(self.schema.name, tuple(entries), self._next_id))
        elif before != after:
            if after is not None:
                self._tokens[after.content] = self.count_tokens(after.content)
            self._commit(Change(before, after))
        if record.entry.isdecimal():
            self._next_id = max(self._next_id, int(record.entry) + 1)

    def without(self, ids: Collection[str]) -> JournalMemory:
        """Return a new memory that knows nothing of these entries, as after their receipt."""
        left = [entry for entry in self._entries.values() if entry.id not in ids]
        other = JournalMemory(self.schema, self.count_tokens)
        other._tokens = {entry.content: self._tokens[entry.content] for entry in left}
        other.restore(Snapshot(self.schema.name, tuple(left), self._next_id))
        other.seq = self.seq + 1
        other._clock = other.seq + 1
        return other


def shape(schema: MemorySchema) -> dict[str, object]:
    """Return the part of a schema that must not change: its name; names, kinds and times of its
    sections.
    """
    return {
        "name": schema.name,
        "sections": [[s.name, s.kind.value, s.timestamps] for s in schema.sections],
    }


def schema_of(shape: Any) -> MemorySchema:
    """Return an unlimited schema of a recorded shape; JournalDamagedError if the shape is
    invalid.
    """
    try:
        sections = tuple(
            Section(name, SectionKind(kind), timestamps=times)
            for name, kind, times in shape["sections"]
        )
        return MemorySchema(str(shape["name"]), sections)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalDamagedError(f"{str(shape)[:200]!r} is recorded as a schema") from error


def read(records: Iterable[Record]) -> list[Step]:
    """Read the bodies of checked records."""
    return [(record, record.read(Body)) for record in records]


def events(steps: Iterable[Step]) -> list[Event]:
    """Return the events of a chain, in order."""
    states: dict[str, Entry | None] = {}
    history = list[Event]()
    for record, body in steps:
        receipt = record.kind == Kind.FORGET
        before = None if receipt else states.get(record.entry)
        origin = Origin(*body.origin) if body.origin else None
        what = Kind(record.kind), moment_of(record.time), origin, body.operation, before, body.after
        history.append(
            Event(record.seq, record.entry, *what, record.erased or receipt, body.of, body.chunk)
        )
        states[record.entry] = body.after
    return history


def taken_back(steps: Sequence[Step], seq: int) -> Change | None:
    """Return what the undo of its whole call did to an operation's entry; None if it was not
    undone, or the entry changed since.
    """
    target, body = steps[seq - 1]
    undo = next((each for _, each in reversed(steps) if each.of == seq), None)
    last = next(each for record, each in reversed(steps) if record.entry == target.entry)
    return Change(body.after, undo.after) if undo and undo.call and last.call == undo.call else None


def before_of(history: Sequence[Event], seq: int) -> Entry | None:
    """Return the entry that an operation wrote as it was before; raises as
    ``DurableMemory.undo``.
    """
    target = history[seq - 1]
    earlier = [event for event in history[: seq - 1] if event.entry == target.entry]
    later = [event for event in history[seq:] if event.entry == target.entry]
    if target.forgotten or any(event.kind == Kind.FORGET for event in later):
        raise ForgottenError(f"operation {seq} was forgotten: forgetting wins over undo")
    if later and later[-1].after != target.after:
        what = (
            f"entry {target.entry} was written by operation {later[-1].seq} after operation {seq}"
        )
        raise JournalConflictError(what, fix=f"undo {later[-1].seq} first")
    if earlier and earlier[-1].forgotten and earlier[-1].kind != Kind.FORGET:
        raise ForgottenError(
            f"what was before operation {seq} was forgotten: forgetting wins over undo"
        )
    return target.before


# ------------------------------------------------------------------------------------------------
# lines of the archive
def lines_of(history: Sequence[Event], operations: Iterable[Event]) -> dict[int, set[str]]:
    """Return the ids of the lines, of now or of the past, that say what some of the operations
    changed, by the operation's number.

    These are a line of the chunk that the operation followed from, and one of the chunk that the
    entry was from before.
    """
    lines: defaultdict[int | None, list[Entry]] = defaultdict(list)
    for line in {
        event.entry: event.after
        for event in history
        if event.after and event.after.section == ARCHIVE.name
    }.values():
        lines[line.source_chunk].append(line)
    told = dict[int, set[str]]()
    for event in operations:
        entry = event.after or event.before
        if event.operation and entry and entry.section != ARCHIVE.name:
            entries = [replace(entry, source_chunk=event.chunk), event.before or entry]
            saying = [line_of(each, lines[each.source_chunk]) for each in entries]
            told[event.seq] = {line.id for line in saying if line}
    return told


def line_changes(history: Sequence[Event], first: int) -> list[tuple[int, Change]]:
    """Return what the undo that began with event ``first`` changes in the archive: the number to
    take back, and its effect.

    What was done to a line is taken back with an operation that names it (``lines_of``), or else
    with the last of its chunk.
    """
    target = history[first - 1]
    while target.undoes:
        target = history[target.undoes - 1]
    written = [
        event for event in history if event.operation and event.operation.section == ARCHIVE.name
    ]
    touched = {
        event.entry for event in written if event.chunk is not None and event.chunk == target.chunk
    }
    chunks = {event.chunk for event in written if event.entry in touched}
    told = lines_of(history, [event for event in history if event.chunk in chunks])
    then, now = _undone(history[: first - 1]), _undone(history)

    def stands(event: Event, undone: set[int]) -> bool:
        every = {number for number in told if history[number - 1].chunk == event.chunk}
        named = {number for number in every if event.entry in told[number]}
        return not named & undone if named else not every or bool(every - undone)

    changes = []
    for line in sorted(touched):
        steps = [event for event in written if event.entry == line]
        was = all(stands(event, then) == bool(event.after) for event in steps)
        wanted = all(stands(event, now) == bool(event.after) for event in steps)
        last = next(event for event in reversed(history) if event.entry == line)
        if was != wanted and was == bool(last.after):
            changes.append((last.seq, Change(last.after, last.before if wanted else None)))
    return changes


def _undone(history: Sequence[Event]) -> set[int]:
    """Return the numbers of the operations that are taken back."""
    numbers = set[int]()
    for event in reversed(history):
        if event.undoes and event.seq not in numbers:
            numbers.add(event.undoes)
    return numbers


def still_say(texts: Iterable[str], entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries that have a word of some texts, one of each id, those with most and with
    the rarest words first.

    A word does not count if more than half of the entries, and more than 50, have it.
    """
    words, states = set(chain.from_iterable(map(tokenize, texts))), list(entries)
    shared = [words.intersection(tokenize(entry.content)) for entry in states]
    counts = Counter(chain.from_iterable(shared))
    most = max(_FEW, len(states) / 2)
    weights = [sum(1 / counts[word] for word in each if counts[word] <= most) for each in shared]
    ranked = sorted(filter(weights.__getitem__, range(len(states))), key=weights.__getitem__)
    return tuple(reversed({states[place].id: states[place] for place in ranked}.values()))
