"""Reading a chain of records as history: events, the memory at a moment, what was before an operation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

from memalpha.errors import ForgottenError, InputError, JournalConflictError, JournalError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store.memory import JournalMemory
from memalpha.store.records import Event, Kind, Origin, Record, moment_of, operation_of, stamp
from memalpha.types import Entry


def events(records: Sequence[Record]) -> Iterator[tuple[str, Event]]:
    """Turn checked records into (entry id, event), in order."""
    states: dict[str, Entry | None] = {}
    for record in records:
        if record.kind == Kind.BASE:
            continue
        data, after = record.data(), record.after()
        before = None if record.kind == Kind.FORGET else states.get(record.entry)
        operation = operation_of(data["operation"]) if "operation" in data else None
        origin = Origin(*data["origin"]) if "origin" in data else None
        forgotten = record.erased or record.kind == Kind.FORGET
        moment = moment_of(record.time)
        yield record.entry, Event(record.seq, Kind(record.kind), moment, origin, operation, before, after, forgotten)
        states[record.entry] = after


def past(records: Sequence[Record], at: int | datetime, schema: MemorySchema, count_tokens: TokenCounter) -> Memory:
    """Return the memory after an operation or at a time, in process and free to be changed.

    Raises:
        InputError: If there is no such operation.
        JournalError: If a compaction dropped what was before it.
    """
    memory = JournalMemory(schema, count_tokens)
    memory.replay(records[: _until(records, at)])
    return memory.copy()


def _until(records: Sequence[Record], at: int | datetime) -> int:
    """How many of the records happened until then."""
    last = records[-1].seq if records else 0
    if isinstance(at, bool) or not isinstance(at, int | datetime):
        raise InputError(f"a moment given as {at!r}", expected="the number of an operation, or an aware datetime")
    if isinstance(at, int) and not 0 <= at <= last:
        raise InputError(f"operation {at}", expected=f"a number from 0 to {last}, the last operation of this namespace")
    moment = stamp(at) if isinstance(at, datetime) else ""
    count = sum(record.seq <= at if isinstance(at, int) else record.time <= moment for record in records)
    base = _base_length(records)
    if base and count < base and not (isinstance(at, int) and at >= records[0].seq - 1):
        raise JournalError(
            f"what was before {at} was dropped by the compaction of {records[0].time}",
            expected=f"operation {records[0].seq - 1} or later",
            fix="a backup or an export from before it",
        )
    return max(count, base)


def _base_length(records: Sequence[Record]) -> int:
    """How many records the base at the beginning takes, 0 if there is none."""
    if not records or records[0].kind != Kind.BASE:
        return 0
    return 1 + int(records[0].facts()["entries"])


def before_of(records: Sequence[Record], seq: int) -> tuple[Record, Entry | None]:
    """Return an operation to undo and what its entry was before.

    Raises:
        InputError: If there is no such operation, or it is none that can be undone.
        ForgottenError: If it, or what was before it, was forgotten.
        JournalConflictError: If its entry was written since, and that was not taken back.
    """
    target = next((record for record in records if record.seq == seq), None)
    if target is None or target.kind not in (Kind.APPLY, Kind.UNDO, Kind.FORGET):
        last = records[-1].seq if records else 0
        raise InputError(
            f"operation {seq!r} cannot be undone", expected=f"the number of an operation of this namespace, up to {last}"
        )
    about = [record for record in records if record.entry == target.entry]
    later = [record for record in about if record.seq > seq]
    if target.erased or target.kind == Kind.FORGET or any(record.kind == Kind.FORGET for record in later):
        raise ForgottenError(f"operation {seq} was forgotten: forgetting wins over undo")
    if later and later[-1].after() != target.after():
        raise JournalConflictError(
            f"entry {target.entry} was written by operation {later[-1].seq} after operation {seq}",
            fix=f"undo {later[-1].seq} first",
        )
    earlier = [record for record in about if record.seq < seq]
    if not earlier or earlier[-1].kind == Kind.FORGET:
        return target, None
    if earlier[-1].erased:
        raise ForgottenError(f"what was before operation {seq} was forgotten: forgetting wins over undo")
    return target, earlier[-1].after()


def refuse_twin(memory: Memory, entry: Entry | None) -> None:
    """Refuse to bring back what another entry says by now: JournalConflictError; no two entries of a section say the same."""
    if entry is None:
        return
    for other in memory:
        if other.id != entry.id and (other.section, other.content, other.timestamp) == (
            entry.section,
            entry.content,
            entry.timestamp,
        ):
            raise JournalConflictError(
                f"entry {other.id} says by now what entry {entry.id} said", fix="nothing: it is there already"
            )
