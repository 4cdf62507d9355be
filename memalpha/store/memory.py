"""The memory of one namespace, built from its records, and its past states.

``Memory.apply`` decides once, at writing, and the record keeps the result: another tokenizer, limit or version changes no past.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from memalpha.errors import ForgottenError, InputError, JournalConflictError, JournalDamagedError, JournalError
from memalpha.memory.memory import Memory, Snapshot, count_words
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import TokenCounter
from memalpha.store.records import Event, Kind, Origin, Record, moment_of, stamp
from memalpha.types import Change, Entry, Operation, OperationResult


class Written(NamedTuple):
    """An operation that is applied but not yet logged."""

    operation: Operation
    chunk: int | None
    time: str | None
    change: Change
    call: int | None = None  # as in ``Body``


class JournalMemory(Memory):
    """A memory that follows a journal: changes carry its operation numbers; operations are accepted inside ``writing`` only."""

    def __init__(self, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> None:
        super().__init__(schema, count_tokens)
        self.seq = 0
        self.draft: list[Written] | None = None  # what was applied since ``writing`` began; None outside of it

    def apply(self, operation: Operation, *, chunk: int | None = None, time: str | None = None) -> OperationResult:
        """Apply an operation, to be logged when the ``writing`` block ends; JournalError outside such a block."""
        if self.draft is None:
            raise JournalError("a durable memory was written outside of its journal", fix="durable.writing(origin)")
        self._clock = self.seq + 1
        result = super().apply(operation, chunk=chunk, time=time)
        if result.changed:
            self.seq += 1
            self.draft.append(Written(operation, chunk, time, self.changes[-1]))
        return result

    def apply_all(
        self, operations: Sequence[Operation], *, chunk: int | None = None, time: str | None = None
    ) -> list[OperationResult]:
        """Apply the operations of one call (``Memory.apply_all``); the log keeps that they belong together."""
        first, results = self.seq + 1, super().apply_all(operations, chunk=chunk, time=time)
        if self.draft and self.seq > first:
            made = first - self.seq - 1
            self.draft[made:] = [written._replace(call=first) for written in self.draft[made:]]
        return results

    def replay(self, records: Sequence[Record]) -> None:
        """Apply records in order, following those applied before; JournalDamagedError if a record does not fit this schema."""
        if self.seq == 0 and (kept := [self._after(record) for record in records if record.kind == Kind.KEEP]):
            self._hold([entry for entry in kept if entry is not None])
        for record in records:
            self._take(record)
            self.seq = record.seq
        self._clock = self.seq + 1

    def _take(self, record: Record) -> None:
        if record.kind == Kind.BASE:
            self._next_id = max(self._next_id, record.facts().next_id)
            return
        self._clock = record.seq
        before, after = self.get(record.entry), self._after(record)
        if record.kind == Kind.UNDO or (after is not None and before is None and after.created < record.seq):
            entries = [
                entry for entry in self._entries.values() if entry.id != record.entry
            ]  # the earlier state returns at its earlier position
            if after is not None:
                insort(entries, after, key=lambda entry: entry.created)
            self._hold(entries)
        elif before != after:
            if after is not None:
                self._tokens[after.content] = self.count_tokens(after.content)
            self._commit(Change(before, after))
        if record.entry.isdecimal():
            self._next_id = max(self._next_id, int(record.entry) + 1)

    def _after(self, record: Record) -> Entry | None:
        before, after = self.get(record.entry), record.data().after
        if after is not None and (
            after.section not in self.schema or after.id != record.entry or (before and before.section != after.section)
        ):
            raise JournalDamagedError(f"operation {record.seq} wrote an entry that fits no section of {self.schema.name!r}")
        return after

    def without(self, ids: Collection[str]) -> JournalMemory:
        """Return a new memory that knows nothing of these entries, as after their receipt."""
        left = [entry for entry in self._entries.values() if entry.id not in ids]
        other = JournalMemory(self.schema, self.count_tokens)
        other._tokens = {entry.content: self._tokens[entry.content] for entry in left}
        other.restore(Snapshot(self.schema.name, tuple(left), self._next_id))
        other.seq = self.seq + 1
        other._clock = other.seq + 1
        return other

    def _hold(self, entries: Sequence[Entry]) -> None:
        self.restore(Snapshot(self.schema.name, tuple(entries), self._next_id))


def shape(schema: MemorySchema) -> dict[str, object]:
    """Return the part of a schema that must not change: its name; names, kinds and times of its sections."""
    return {"name": schema.name, "sections": [[s.name, s.kind.value, s.timestamps] for s in schema.sections]}


def schema_of(shape: Any) -> MemorySchema:
    """Return an unlimited schema of a recorded shape; JournalDamagedError if the shape is invalid."""
    try:
        sections = tuple(Section(name, SectionKind(kind), timestamps=times) for name, kind, times in shape["sections"])
        return MemorySchema(str(shape["name"]), sections)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalDamagedError(f"{str(shape)[:200]!r} is recorded as a schema") from error


def events(records: Sequence[Record]) -> Iterator[tuple[str, Event]]:
    """Turn checked records into (entry id, event), in order."""
    states: dict[str, Entry | None] = {}
    for record in records:
        if record.kind == Kind.BASE:
            continue
        data = record.data()
        before = None if record.kind == Kind.FORGET else states.get(record.entry)
        origin = Origin(*data.origin) if data.origin else None
        forgotten = record.erased or record.kind == Kind.FORGET
        kind, time = Kind(record.kind), moment_of(record.time)
        yield record.entry, Event(record.seq, kind, time, origin, data.operation, before, data.after, forgotten, data.of)
        states[record.entry] = data.after


def readable(records: Sequence[Record], shape: Any) -> None:
    """Raise JournalDamagedError or InputError unless checked records lead to a memory and a history."""
    JournalMemory(schema_of(shape)).replay(records)
    for _ in events(records):
        pass


def past(records: Sequence[Record], at: int | datetime, schema: MemorySchema, count_tokens: TokenCounter) -> Memory:
    """Return an independent memory after an operation or at a time; JournalError if an earlier version dropped that part."""
    last = records[-1].seq if records else 0
    if isinstance(at, int) and not 0 <= at <= last:
        raise InputError(f"operation {at}", expected=f"a number from 0 to {last}, the last operation of this namespace")
    moment = stamp(at) if isinstance(at, datetime) else ""
    count = sum(record.seq <= at if isinstance(at, int) else record.time <= moment for record in records)
    base = sum(record.kind in (Kind.BASE, Kind.KEEP) for record in records)
    if count < base and not (isinstance(at, int) and at >= records[0].seq - 1):
        raise JournalError(f"what was before {at} was dropped", expected=f"operation {records[0].seq - 1} or later")
    memory = JournalMemory(schema, count_tokens)
    memory.replay(records[: max(count, base)])
    return memory.copy()


def together(records: Sequence[Record], seq: int) -> list[int]:
    """Return the numbers of all operations of the call that this one belongs to, the last first; of any other, its own."""
    call = next((record.data().call for record in records if record.seq == seq), None)
    return [record.seq for record in reversed(records) if call and record.data().call == call] or [seq]


def taken_back(records: Sequence[Record], seq: int) -> Change | None:
    """Return what the undo of its whole call did to an operation's entry; None if it was not undone, or the entry changed since."""
    target = next(record for record in records if record.seq == seq)
    undone = next((record.data() for record in reversed(records) if record.data().of == seq), None)
    last = next(record.data() for record in reversed(records) if record.entry == target.entry)
    return Change(target.data().after, undone.after) if undone and undone.call and last.call == undone.call else None


def before_of(records: Sequence[Record], seq: int) -> tuple[str, Entry | None]:
    """Return the id of the entry that an operation wrote, and that entry before it; raises as ``DurableMemory.undo``."""
    target = next((record for record in records if record.seq == seq), None)
    if target is None or target.kind not in (Kind.APPLY, Kind.UNDO, Kind.FORGET):
        last = records[-1].seq if records else 0
        raise InputError(f"operation {seq!r} cannot be undone", expected=f"the number of an operation, up to {last}")
    about = [record for record in records if record.entry == target.entry]
    later = [record for record in about if record.seq > seq]
    if target.erased or target.kind == Kind.FORGET or any(record.kind == Kind.FORGET for record in later):
        raise ForgottenError(f"operation {seq} was forgotten: forgetting wins over undo")
    if later and later[-1].data().after != target.data().after:
        since = later[-1].seq
        raise JournalConflictError(
            f"entry {target.entry} was written by operation {since} after operation {seq}", fix=f"undo {since} first"
        )
    earlier = [record for record in about if record.seq < seq]
    if not earlier or earlier[-1].kind == Kind.FORGET:
        return target.entry, None
    if earlier[-1].erased:
        raise ForgottenError(f"what was before operation {seq} was forgotten: forgetting wins over undo")
    return target.entry, earlier[-1].data().after
