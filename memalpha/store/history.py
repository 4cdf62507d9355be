"""What a chain of records tells: its events, the memory they lead to, and what an undo changes.

``Memory.apply`` decides once, at writing, and the record keeps the result: another tokenizer, limit
or version changes no past.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any

from memalpha.errors import ForgottenError, JournalConflictError, JournalDamagedError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema, Section, SectionKind
from memalpha.retrieval.archive import line_of, words_said
from memalpha.store.records import Body, LinesHeader, Note, Origin, Record, RecordKind
from memalpha.types import Change, Entry, Operation, OperationKind

_SAYS = attrgetter("section", "content", "timestamp")
_FEW = 50  # texts; a word in more, and in more than half of all, such as a name, tells nothing


@dataclass(frozen=True, slots=True)
class Event:
    """One operation in the history of a memory; its erased parts are None.

    ``seq`` is the number for ``undo`` and ``as_of``, ``entry`` the entry's id, ``undoes`` the
    number of the operation that an undo took back, ``chunk`` that of what was read, ``call`` the
    number of the first operation of the same call, if it had several. ``sources`` are digests of
    what an import has read by then (``RecordKind.READ``; such an event has no entry).
    """

    seq: int
    entry: str
    kind: RecordKind
    time: datetime
    origin: Origin | None
    operation: Operation | None
    before: Entry | None
    after: Entry | None
    forgotten: bool
    undoes: int | None = None
    chunk: int | None = None
    call: int | None = None
    sources: tuple[str, ...] = ()

    @property
    def texts(self) -> set[str]:
        """The requested and the resulting content."""
        parts = (self.operation, self.after)
        return {part.content.strip() for part in parts if part and part.content}


def shape(schema: MemorySchema) -> dict[str, object]:
    """Return the part of a schema that must not change: its name; names, kinds and times of its
    sections.
    """
    sections = [[each.name, each.kind.value, each.timestamps] for each in schema.sections]
    return {"name": schema.name, "sections": sections}


def schema_of(shape: Any) -> MemorySchema:
    """Return an unlimited schema of a recorded shape; JournalDamagedError if the record is not a
    shape.
    """
    try:
        sections = tuple(
            Section(name, SectionKind(kind), timestamps=times)
            for name, kind, times in shape["sections"]
        )
        return MemorySchema(str(shape["name"]), sections)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalDamagedError(
            f"{str(shape)[:200]!r} is recorded as a schema, but is none"
        ) from error


def events_of(records: Iterable[Record], states: Iterable[Entry] = ()) -> list[Event]:
    """Read checked records, in order; ``states`` are the entries before the first of them.

    JournalDamagedError for a body that cannot be read.
    """
    entries: dict[str, Entry | None] = {entry.id: entry for entry in states}
    history = list[Event]()
    for record in records:
        if record.kind == RecordKind.READ:
            history.append(_reading(record))
            continue
        if record.kind == RecordKind.LINES:
            lines = list(_lines_of(record))
            history += lines
            entries.update((line.entry, line.after) for line in lines)
            continue
        body = record.read(Body)
        receipt = record.kind == RecordKind.FORGET
        event = Event(
            record.seq,
            record.entry,
            RecordKind(record.kind),
            datetime.fromisoformat(record.time),
            Origin(*body.origin) if body.origin else None,
            _whole_operation(body),
            None if receipt else entries.get(record.entry),
            body.after,
            bool(record.erased) or receipt,
            body.of,
            body.chunk,
            body.call,
        )
        history.append(event)
        entries[record.entry] = body.after
    return history


def _lines_of(record: Record) -> Iterator[Event]:
    """The events of a record of lines; in ``events_of`` no entry is there before a line."""
    shared = record.read(LinesHeader) if record.body is not None else None
    time = datetime.fromisoformat(record.time)
    for number, (key, line) in enumerate(record.lines.items(), record.first):
        known = shared is not None and line is not None
        yield Event(
            number,
            key,
            RecordKind.APPLY,
            time,
            Origin(*shared.origin) if shared and known else None,
            Operation(OperationKind.INSERT, ARCHIVE.name, line.content) if line else None,
            before=None,
            after=line,
            forgotten=line is None,
            chunk=shared.chunk if shared and known else None,
        )


def _whole_operation(body: Body) -> Operation | None:
    """Return the operation of a body, with the content of the entry that it wrote."""
    operation = body.operation
    if operation is None or operation.content is not None or body.after is None:
        return operation
    return replace(operation, content=body.after.content)


def _reading(record: Record) -> Event:
    note = record.read(Note)
    return Event(
        record.seq,
        "",
        RecordKind.READ,
        datetime.fromisoformat(record.time),
        Origin(note.by),
        operation=None,
        before=None,
        after=None,
        forgotten=False,
        sources=note.sources,
    )


def replay(memory: Memory, history: Iterable[Event]) -> None:
    """Apply events that follow on those applied before; JournalDamagedError if one does not fit."""
    for event in history:
        before = memory.get(event.entry)
        after = event.after
        if after is not None:
            if after.section not in memory.schema or after.id != event.entry:
                raise JournalDamagedError(
                    f"operation {event.seq} wrote an entry that fits no section of "
                    f"{memory.schema.name!r}"
                )
            if before and (before.section, before.created) != (after.section, after.created):
                raise JournalDamagedError(f"operation {event.seq} moved the entry {after.id}")
        in_order = after is None or 0 < after.created <= after.updated <= event.seq
        if not in_order or (event.undoes or 0) >= event.seq:
            raise JournalDamagedError(f"operation {event.seq} names one that comes after it")
        memory.take(event.entry, after, event.seq)


# ------------------------------------------------------------------------------------------------
# undo
def call_of(history: Sequence[Event], seq: int) -> list[int]:
    """Return the numbers of the operations of a call, the last first; it may have one alone."""
    call = history[seq - 1].call
    return [event.seq for event in reversed(history) if call and event.call == call] or [seq]


def undone_with_its_call(history: Sequence[Event], seq: int) -> Change | None:
    """Return the effect that the undo of its whole call had on an operation's entry; None if it was
    not undone, or the entry changed afterwards.
    """
    target = history[seq - 1]
    undo = next((event for event in reversed(history) if event.undoes == seq), None)
    last = next(event for event in reversed(history) if event.entry == target.entry)
    if undo is None or not undo.call or last.call != undo.call:
        return None
    return Change(target.after, undo.after)


def before_of(history: Sequence[Event], memory: Memory, seq: int) -> Entry | None:
    """Return the entry that an operation wrote as it was before; raises as
    ``DurableMemory.undo``.
    """
    target = history[seq - 1]
    earlier = [event for event in history[: seq - 1] if event.entry == target.entry]
    later = [event for event in history[seq:] if event.entry == target.entry]
    if target.forgotten or any(event.kind == RecordKind.FORGET for event in later):
        raise ForgottenError(f"the operation {seq} was forgotten, and an undo cannot bring it back")
    if later and later[-1].after != target.after:
        raise JournalConflictError(
            f"entry {target.entry} was written by operation {later[-1].seq} after operation {seq}",
            fix=f"undo {later[-1].seq} first",
        )
    if earlier and earlier[-1].forgotten and earlier[-1].kind != RecordKind.FORGET:
        raise ForgottenError(
            f"the state in front of operation {seq} was forgotten, and an undo cannot bring it back"
        )
    for other in memory if target.before else ():
        if other.id != target.entry and _SAYS(other) == _SAYS(target.before):
            raise JournalConflictError(
                f"the entry {other.id} has the text that entry {target.entry} would have again"
            )
    return target.before


# ------------------------------------------------------------------------------------------------
# lines of the archive
def lines_by_operation(
    history: Sequence[Event], operations: Iterable[Event]
) -> dict[int, set[str]]:
    """Return the ids of the lines, of now or of the past, that say what some of the operations
    changed, by the operation's number.

    These are a line of the chunk that the operation followed from, and one of the chunk that the
    entry was from before.
    """
    latest = {
        event.entry: event.after
        for event in history
        if event.after and event.after.section == ARCHIVE.name
    }
    lines: defaultdict[int | None, list[Entry]] = defaultdict(list)
    for line in latest.values():
        lines[line.source_chunk].append(line)
    ids = dict[int, set[str]]()
    for event in operations:
        entry = event.after or event.before
        if event.operation and entry and entry.section != ARCHIVE.name:
            versions = [replace(entry, source_chunk=event.chunk), event.before or entry]
            saying = [line_of(version, lines[version.source_chunk]) for version in versions]
            ids[event.seq] = {line.id for line in saying if line}
    return ids


def line_changes(history: Sequence[Event], first: int) -> list[tuple[int, Change]]:
    """Return what the undo that began with event ``first`` changes in the archive: the number to
    take back, and its effect.

    What was done to a line is taken back with an operation that names it (``lines_by_operation``),
    or else with the last of its chunk.
    """
    target = history[first - 1]
    while target.undoes:
        target = history[target.undoes - 1]
    of_lines = [
        event for event in history if event.operation and event.operation.section == ARCHIVE.name
    ]
    touched = {
        event.entry for event in of_lines if event.chunk is not None and event.chunk == target.chunk
    }
    chunks = {event.chunk for event in of_lines if event.entry in touched}
    named_by = lines_by_operation(history, [event for event in history if event.chunk in chunks])
    then = _undone(history[: first - 1])
    now = _undone(history)

    def stands(event: Event, undone: set[int]) -> bool:
        # what came later to the entry of a chunk, as by an audit, brought no line
        before = (number for number in named_by if number < event.seq)
        siblings = {number for number in before if history[number - 1].chunk == event.chunk}
        naming = {number for number in siblings if event.entry in named_by[number]}
        if naming:
            return not naming & undone
        return not siblings or bool(siblings - undone)

    changes = []
    for line in sorted(touched):
        steps = [event for event in of_lines if event.entry == line]
        was = all(stands(event, then) == bool(event.after) for event in steps)
        wanted = all(stands(event, now) == bool(event.after) for event in steps)
        last = next(event for event in reversed(history) if event.entry == line)
        if was != wanted and was == bool(last.after):
            changes.append((last.seq, Change(last.after, last.before if wanted else None)))
    return changes


def _undone(history: Sequence[Event]) -> set[int]:
    numbers = set[int]()
    for event in reversed(history):
        if event.undoes and event.seq not in numbers:
            numbers.add(event.undoes)
    return numbers


def still_say(texts: Iterable[str], entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries that have a word of some texts, one of each id, those with most and with
    the rarest words first.

    Roles of speakers do not count, nor does a word that more than half of the entries, and more
    than 50, have.
    """
    words = set(chain.from_iterable(map(words_said, texts)))
    shared = [(entry, words & words_said(entry.content)) for entry in entries]
    counts = Counter(word for _, common in shared for word in common)
    most = max(_FEW, len(shared) / 2)
    weighed = list[tuple[float, Entry]]()
    for entry, common in shared:
        weight = sum(1 / counts[word] for word in common if counts[word] <= most)
        if weight:
            weighed.append((weight, entry))
    weighed.sort(key=lambda pair: pair[0])
    return tuple(reversed({entry.id: entry for _, entry in weighed}.values()))
