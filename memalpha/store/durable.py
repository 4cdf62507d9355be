"""The memory of one namespace: its operations are applied, taken back and forgotten, each in one
transaction of the journal.
"""

from __future__ import annotations

import json
import secrets
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError, JournalDamagedError
from memalpha.memory.memory import LINE_ID, AppliedOperation, Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.store import records as log
from memalpha.store.chain import Tail
from memalpha.store.forgetting import DigestSecret, erase, events_left, key_digests, texts_of
from memalpha.store.history import (
    Event,
    before_of,
    call_of,
    events_of,
    line_changes,
    lines_by_operation,
    replay,
    shape,
    still_say,
    undone_with_its_call,
)
from memalpha.store.records import (
    MOST_LINES,
    Namespace,
    Origin,
    Receipt,
    Record,
    RecordKind,
    Registration,
)
from memalpha.types import (
    Change,
    Entry,
    JsonObject,
    Operation,
    OperationKind,
    OperationResult,
    TokenCounter,
)

if TYPE_CHECKING:
    from memalpha.store.journal import Journal

_MOST_CHUNKS = 1 << 63


class DurableMemory:
    """The memory of one namespace; made by ``Journal.memory``. Limits and descriptions of
    ``schema`` may change.
    """

    def __init__(
        self,
        journal: Journal,
        namespace: Namespace,
        schema: MemorySchema,
        count_tokens: TokenCounter,
    ) -> None:
        self.namespace = namespace
        self.schema = schema
        self._journal = journal
        self._count_tokens = count_tokens
        self._start("")

    def _start(self, ns: str) -> None:
        self._tail = self._tail_of(ns)
        self._memory = self._new_memory()
        self._memory.writable = False
        self._begun = 0  # number of the registration
        self._adopts = False  # whether the first entry makes this schema that of the namespace
        self._unsaved: list[Record] = []
        self._secret = DigestSecret(self._journal.database)
        self._sources: defaultdict[str, set[str]] = defaultdict(set)

    def _tail_of(self, ns: str) -> Tail:
        return Tail(self._journal.database, self._journal.key, ns, f"namespace {self.namespace}")

    def _new_memory(self) -> Memory:
        memory = Memory(self.schema, self._count_tokens)
        memory.clock = 1
        return memory

    @property
    def memory(self) -> Memory:
        """The current memory, to read. After ``forget`` or a failed write it is another object:
        rebuild what depends on it.
        """
        with self._journal.reading():
            self._follow()
            return self._memory

    @contextmanager
    def writing(self, origin: Origin, metadata: str | None = None) -> Iterator[Memory]:
        """Give the memory to write to; all operations inside are logged together or not at all.
        Other writers wait meanwhile.

        What is written gets the ``metadata`` (``Memory.metadata``). Inside, ``sign`` says that
        operations have another origin, ``note_read`` what was read.
        """
        with self._changing():
            memory = self._memory
            memory.metadata = metadata
            memory.applied.clear()
            memory.now = self._journal.clock()
            self._unsaved = []
            memory.writable = True
            yield memory
            memory.writable = False
            memory.metadata = None
            self.sign(origin)
            if self._unsaved:
                self._journal.database.append(self._unsaved)

    def sign(self, origin: Origin) -> None:
        """Inside ``writing``: all operations that are not signed yet are of this origin."""
        if self._memory.applied:
            self._begin()
            for shared, applied in groupby(self._memory.applied, _common_of):
                if shared is None:
                    self._unsaved += self._sealed(RecordKind.APPLY, origin, list(applied))
                    continue
                lines = [each.change.after for each in applied if each.change.after]
                for start in range(0, len(lines), MOST_LINES):
                    some = lines[start : start + MOST_LINES]
                    self._unsaved.append(self._sealed_lines(origin, *shared, some))
            self._memory.applied.clear()

    def note_read(self, origin: Origin, sources: Iterable[str], by: str = "") -> None:
        """Inside ``writing``: record that an import has read these sources (``digest_of``), with
        the operations that came of it: those so far, of ``origin``.

        ``by`` is the agent that read them; empty if lines went into the archive alone.
        """
        self.sign(origin)
        read = "".join(sources)
        if read:
            self._begin()
            note = json.dumps({"read": read, "by": by})
            record = self._tail.seal(RecordKind.READ, "", self._journal.now(), note=note)
            self._unsaved.append(record)
            replay(self._memory, self._noted([record]))

    def sources(self, by: str = "") -> Set[str]:
        """Return the digests of all sources that imports have read (``note_read``)."""
        if not self._memory.writable:
            with self._journal.reading():
                self._follow()
        return self._sources[by]

    def _noted(self, records: Iterable[Record]) -> list[Event]:
        """Return the events of records, and keep what was read."""
        events = events_of(records)
        for event in events:
            if event.kind == RecordKind.READ and event.origin:
                self._sources[event.origin.agent].update(event.sources)
        return events

    def _begin(self) -> None:
        """Register the namespace if it is new, and the schema if the first entry comes now."""
        is_new = not self._tail.ns
        changes = [applied.change for applied in self._memory.applied]
        changed = [change.after or change.before for change in changes]
        entries = any(entry and not _is_line(entry.id) for entry in changed)
        if is_new:
            self._tail = self._tail_of(secrets.token_hex(16))
        if is_new or (self._adopts and entries):
            begun = self._journal.registered.get(self.namespace)
            imported = begun.read(Registration).imported if begun else 0
            body = {**asdict(self.namespace), "schema": shape(self.schema), "imported": imported}
            self._begun = self._journal.register(RecordKind.BEGIN, self._tail.ns, body=body).seq
            self._adopts = False

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only writer, on the current memory; after a failure it is rebuilt from the log."""
        entered = False
        try:
            with self._journal.writing():
                self._follow()
                entered = True
                yield
        except BaseException:
            if entered:
                self._start("")
            raise

    def apply(
        self,
        operation: Operation,
        origin: Origin,
        *,
        chunk: int | None = None,
        time: str | None = None,
    ) -> OperationResult:
        """Apply one operation (``Memory.apply``); it is on disk when this returns an applied
        result.
        """
        with self.writing(origin) as memory:
            return memory.apply(operation, chunk=chunk, time=time)

    def _follow(self) -> None:
        registration = self._journal.registered.get(self.namespace)
        ns = registration.entry if registration else ""
        if ns != self._tail.ns or (registration and registration.seq != self._begun):
            self._start("")
        if registration is not None and not self._tail.ns:
            self._start(ns)
            self._begun = registration.seq
            self._adopts = registration.read(Registration).shape != shape(self.schema)
        records = self._tail.read_on() if ns else []
        if self._adopts and not all(_is_line(record.entry) for record in records):
            self._start("")
            assert registration is not None
            raise InputError(
                f"the namespace {self.namespace} has the schema "
                f"{_shape_text(registration.read(Registration).shape)}, not "
                f"{_shape_text(shape(self.schema))}",
                fix="take an agent with that schema or another namespace, or give --schema "
                "to an import",
            )
        if any(record.kind == RecordKind.FORGET for record in records):
            begun = self._begun, self._adopts
            self._start(ns)  # the memory in this process holds what was erased
            self._begun, self._adopts = begun
            records = self._tail.read_on()
        replay(self._memory, self._noted(records))

    def _sealed(
        self,
        kind: RecordKind,
        origin: Origin,
        changes: Sequence[AppliedOperation],
        **more: int | None,
    ) -> list[Record]:
        by = self._by(origin)
        now = self._journal.now()
        records = list[Record]()
        for change, operation, chunk, call in changes:
            entry = change.after or change.before
            assert entry is not None
            body: JsonObject = {
                "origin": by,
                "operation": operation and _operation_fields(operation, change.after),
                "chunk": chunk,
                "call": call,
                "after": change.after and _entry_fields(change.after),
                **more,
            }
            if self._secret.unsealed:
                body["secret"] = self._secret.seal()
            records.append(self._tail.seal(kind, entry.id, now, body=body))
            _check(records[-1], chunk, again=len(records) > 1)
        return records

    def _sealed_lines(
        self,
        origin: Origin,
        chunk: int | None,
        timestamp: str | None,
        metadata: str | None,
        lines: Sequence[Entry],
    ) -> Record:
        body: JsonObject = {"origin": self._by(origin), "chunk": chunk}
        if timestamp is not None:
            body["timestamp"] = timestamp
        if metadata is not None:
            body["metadata"] = metadata
        if self._secret.unsealed:
            body["secret"] = self._secret.seal()
        now = self._journal.now()
        texts = [line.content for line in lines]
        record = self._tail.seal(RecordKind.LINES, "", now, body=body, lines=texts)
        assert (record.first, record.seq) == (lines[0].created, lines[-1].created)
        _check(record, chunk, again=False)
        return record

    def _by(self, origin: Origin) -> list[str]:
        secret = self._secret.read(self._tail.ns, again=not self._unsaved)
        return [
            origin.agent,
            key_digests(origin.source, secret),
            key_digests(origin.prompt_hash, secret),
        ]

    def history(self, entry_id: str | None = None) -> list[Event]:
        """Return all events of an entry (none for an unknown id), or of the namespace, in order."""
        with self._journal.reading():
            self._follow()
            return [event for event in self._events() if entry_id in (None, event.entry)]

    def _records(self) -> list[Record]:
        return self._tail_of(self._tail.ns).read_on() if self._tail.ns else []

    def _events(self) -> list[Event]:
        return events_of(self._records())

    def as_of(self, at: int | datetime) -> Memory:
        """Return the memory after an operation (its number), or after the last one that is not of a
        later time; InputError for a wrong number or a time without zone.
        """
        with self._journal.reading():
            self._follow()
            events = self._events()
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise InputError(
                    f"the time {at} has no time zone",
                    expected=f"such as {at.isoformat()}Z",
                )
            while events and events[-1].time > at:
                events.pop()
        elif not 0 <= at <= len(events):
            raise InputError(
                f"there is no operation {at}",
                expected=f"a number from 0 to {len(events)}, the last operation of this namespace",
            )
        else:
            events = events[:at]
        memory = self._new_memory()
        replay(memory, events)
        return memory

    def keyed(self, text: str) -> str:
        """Return a text with each SHA-256 digest keyed as in this namespace's log (``Origin``)
        since the last ``forget``.
        """
        with self._journal.reading():
            self._follow()
            return key_digests(text, self._journal.database.secret(self._tail.ns))

    def undo(self, seq: int, origin: Origin) -> Change:
        """Revert one operation by its number (an undo can be undone too); logged as a new
        operation. Limits are not checked.

        With an operation of a tool of one's own goes the rest of its call; asking for another of
        them then changes nothing more. With it go the lines of the archive that came with it, and
        those return that left with it (``line_changes``). InputError if it cannot be undone;
        ForgottenError if its content was forgotten; JournalConflictError if written since.
        """
        with self._changing():
            events = self._events()
            if seq not in range(1, len(events) + 1):
                raise InputError(
                    f"the operation {seq!r} cannot be undone",
                    expected=f"the number of an operation, up to {len(events)}",
                )
            if events[seq - 1].kind == RecordKind.READ:
                raise InputError(
                    f"the operation {seq} cannot be undone, since it only records the texts "
                    "that an import has read",
                    expected="the number of an operation that wrote an entry or a line",
                )
            first = len(events) + 1
            numbers = call_of(events, seq)
            call = first if len(numbers) > 1 else None
            change = undone_with_its_call(events, seq) if call else None
            if change:
                return change
            changes = dict[int, Change]()
            for number in numbers:
                before = before_of(events, self._memory, number)
                changes[number] = Change(self._memory.get(events[number - 1].entry), before)
                events += self._take_back(number, changes[number], origin, call)
            for number, change in line_changes(events, first):
                events += self._take_back(number, change, origin)
            return changes[seq]

    def _take_back(
        self, number: int, change: Change, origin: Origin, call: int | None = None
    ) -> list[Event]:
        undo = AppliedOperation(change, None, None, call)
        records = self._sealed(RecordKind.UNDO, origin, [undo], of=number)
        self._journal.database.append(records)
        events = events_of(records, filter(None, [change.before]))
        replay(self._memory, events)
        return events

    def forget(
        self, entry_id: str, also: Sequence[str] = (), keep: Collection[str] = ()
    ) -> Receipt:
        """Erase an entry, and ``also`` others and lines, for good from log, memory and files;
        InputError if nothing of one is left.

        With it go the lines of its chunks that say its fact, and what of others says the very same
        as any of these, except live entries, and those that the caller wants to ``keep``. What else
        holds words of it stays: the receipt lists it. Not covered: exports and copies.
        """
        with self._changing():
            records = self._records()
            events = events_of(records)
            there = [event for event in events if event.entry and not event.forgotten]
            ids = {entry_id, *also}
            missing = sorted(ids.difference(event.entry for event in there))
            if missing:
                raise InputError(
                    f"the namespace {self.namespace} has no entry or line "
                    f"{', '.join(map(repr, missing))}",
                    expected="the id of an entry or line",
                )
            contents = texts_of(there, ids)
            of_ids = [event for event in events if event.entry in ids]
            ids = ids.union(*lines_by_operation(events, of_ids).values()).difference(keep)
            left = events_left(there, ids, keep, self._memory)
            erased = sorted({event.seq for event in there} - {event.seq for event in left})
            now = self._journal.now()
            receipt = erase(self._journal.database, self._tail, entry_id, records, erased, now)
            last = {event.entry: event.seq for event in events}
            gone = {entry for entry, seq in last.items() if seq in set(erased)}
            self._memory = self._memory.copy(without=gone)
            self._memory.clock = receipt.seq + 1
            self._memory.writable = False
        return Receipt(
            entry_id,
            log.moment_of(receipt.time),
            len(erased),
            still_say(contents, [event.after for event in left if event.after]),
            not self._journal.unscrubbed,
        )


def _common_of(applied: AppliedOperation) -> tuple[int | None, str | None, str | None] | None:
    """Return what a new line of the archive shares with its record: chunk, time and metadata.

    None for any other operation.
    """
    (before, after), operation, chunk, call = applied
    if before is not None or after is None or after.section != ARCHIVE.name or call is not None:
        return None
    if operation != Operation(OperationKind.INSERT, ARCHIVE.name, after.content):
        return None
    return (chunk, after.timestamp, after.metadata) if after.source_chunk == chunk else None


def _check(record: Record, chunk: int | None, *, again: bool) -> None:
    """Raise InputError if a record that was just sealed cannot be read again; ``again``: one of the
    same origin could.
    """
    fits = chunk is None or 0 <= chunk < _MOST_CHUNKS
    if fits and again and "\\ud" not in (record.body or ""):
        return  # nothing in it but ASCII, or signs that UTF-8 can hold
    try:
        events_of([record])
    except JournalDamagedError as error:
        raise InputError(
            f"the operation cannot be stored: {error.what}",
            expected="Unicode text, and a chunk number from 0 to 2**63 - 1",
        ) from error


def _columns(value: Entry | Operation) -> JsonObject:
    """Return the fields by name; ``asdict``, which copies each value, takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def _entry_fields(entry: Entry) -> JsonObject:
    """The fields of an entry by name, without metadata where there is none."""
    fields = _columns(entry)
    if entry.metadata is None:
        del fields["metadata"]
    return fields


def _shape_text(shape: Any) -> str:
    """A shape in a few words."""
    sections = [
        f"{name}, {kind}{', with times' * bool(times)}" for name, kind, times in shape["sections"]
    ]
    return f"{shape['name']!r} ({'; '.join(sections)})"


def _is_line(entry_id: str) -> bool:
    """Whether a record is of a line of the archive, or of no entry."""
    return not entry_id or entry_id.startswith(LINE_ID)


def _operation_fields(operation: Operation, after: Entry | None) -> JsonObject:
    """The fields of an operation that has them; a content that is the entry's stands there alone
    (``history.events_of``).
    """
    fields = {name: value for name, value in _columns(operation).items() if value is not None}
    if after is not None and fields.get("content") == after.content:
        del fields["content"]
    return fields
