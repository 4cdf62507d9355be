"""The durable store: memories and indexes are built from an append-only log of operations.

    journal = Journal.open("memories.db")  # or postgresql://user@host/database
    durable = journal.memory(Namespace("marta"), MemorySchema.load("facts"))
    oslo = Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo")
    durable.apply(oslo, Origin("me"))  # on disk when this returns
    durable.memory, durable.history("1"), durable.as_of(1)
    durable.undo(1, Origin("me")), durable.forget("1")

What always holds: a write is on disk before it is acknowledged, or nothing of it is kept;
namespaces are isolated; damage is found before use; forgotten content does not return. The cost of
``history``, ``as_of``, ``undo`` and ``forget`` grows with the log.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import secrets
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Set
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from memalpha.errors import InputError, JournalDamagedError, JournalError
from memalpha.memory.memory import LINE, Applied, Memory, count_words
from memalpha.memory.schema import MemorySchema, presets
from memalpha.store import records as log
from memalpha.store.database import IN_MEMORY, Database, connect
from memalpha.store.history import (
    Event,
    before_of,
    call_of,
    events_of,
    line_changes,
    lines_by_operation,
    replay,
    schema_of,
    shape,
    still_say,
    undone_with_its_call,
)
from memalpha.store.records import (
    REGISTRY,
    Body,
    Head,
    Namespace,
    Origin,
    Receipt,
    Record,
    RecordKind,
    Registered,
    digest_of,
    hash_prompt,
)
from memalpha.types import Change, Entry, JsonObject, Operation, OperationResult, TokenCounter

__all__ = [
    "IN_MEMORY",
    "DurableMemory",
    "Event",
    "Journal",
    "Namespace",
    "Origin",
    "Receipt",
    "Verification",
    "digest_of",
    "hash_prompt",
]

_MOST_CHUNKS = 1 << 63
_LONGEST_WAIT = 1_000_000  # seconds; SQLite's limit in milliseconds
_SCRUB_WAIT = 1.0  # seconds that an erasure waits for other readers
_SCRUB_EVERY = 1.0  # seconds between two tries when the store is idle
_DIGEST = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Verification:
    """What ``Journal.verify`` found; the same ``head``, one hash over all heads, later shows that
    the log was not rewritten.
    """

    faults: tuple[str, ...]
    namespaces: int
    operations: int
    forgotten: int
    head: str

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.faults


class Tail:
    """The end of one chain, as far as this process has read and written it."""

    def __init__(self, database: Database, key: bytes | None, ns: str, name: str) -> None:
        self.database = database
        self.key = key
        self.ns = ns
        self.name = name
        self.head = log.root(ns)

    def read_on(self) -> list[Record]:
        """Return the checked records after the last one read; JournalDamagedError if the chain is
        broken, or lost what it had.
        """
        head = self.database.head(self.ns)
        if head == self.head:
            return []
        if head.seq <= self.head.seq:
            faults = [f"it had {self.head.seq} operations and has {head.seq}, or others"]
        else:
            records = self.database.rows(self.ns, self.head.seq)
            faults = log.check(records, self.head, head, self.key)
        if faults:
            raise JournalDamagedError(
                f"{self.database.name}, {self.name}: {'; '.join(faults)}",
                fix="bring a backup back",
            )
        self.head = head
        return records

    def seal(self, kind: RecordKind, entry: str, moment: str, **content: Any) -> Record:
        """Return the next record, of a moment by the clock; the tail is its end."""
        names: JsonObject = {"ns": self.ns, "kind": kind, "entry": entry, "time": moment}
        record = log.seal(self.head, self.key, **names, **content)
        self.head = record.head
        return record


class Journal(AbstractContextManager["Journal"]):
    """A store of memories; made by ``Journal.open``. Safe for several threads (one at a time) and
    processes, not across a fork.

    ``registered`` and ``forgotten`` are what the registry says, inside of ``reading`` and
    ``writing``: the record of each namespace that exists, and the receipts of those erased, by the
    id of their chain. ``unscrubbed``: erased bytes are still in the files.
    """

    def __init__(self, database: Database, key: bytes | None = None) -> None:
        self.database = database
        self.key = key
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.lock = threading.RLock()
        self.unscrubbed = False
        self._drop_registry()
        with self.lock:
            self._scrub(_SCRUB_WAIT)  # if an erasure was interrupted

    @classmethod
    def open(cls, url: str | Path, *, key: bytes | None = None, wait: float = 30.0) -> Journal:
        """Open or create a store: the path of a SQLite file (or ``sqlite:///path``),
        ``postgresql://...``, or ``:memory:``.

        ``key`` of the hashes: nobody can rewrite the log unnoticed without it. ``wait``: seconds
        for another writer, then JournalBusyError. JournalDamagedError if the store is damaged.
        """
        if key is not None and (not isinstance(key, bytes) or not key):
            raise InputError(
                f"a key of type {type(key).__name__}",
                expected="bytes, not empty, or None for a store without a key",
            )
        if not 0 <= wait <= _LONGEST_WAIT:
            raise InputError(
                f"a wait of {wait!r} s",
                expected=f"seconds, 0 to {_LONGEST_WAIT:,}",
            )
        return cls(connect(str(url), wait), key)

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store; optional, all acknowledged writes are on disk already."""
        with self.lock:
            self.unscrubbed = False
            self.database.close()

    def memory(
        self, namespace: Namespace, schema: MemorySchema, count_tokens: TokenCounter = count_words
    ) -> DurableMemory:
        """Return the memory of a namespace, empty if it is new; the sections of ``schema`` must
        match the recorded ones.
        """
        return DurableMemory(self, namespace, schema, count_tokens)

    def namespaces(self) -> tuple[Namespace, ...]:
        """Return all existing namespaces of all users; for administrators."""
        with self.reading():
            return tuple(self.registered)

    def schema(self, namespace: Namespace) -> MemorySchema:
        """Return a schema with the recorded sections and no limits; InputError if the namespace
        does not exist.
        """
        with self.reading():
            return schema_of(self.registration(namespace).read(Registered).shape)

    def schema_or(self, new: MemorySchema, namespace: Namespace) -> MemorySchema:
        """Return the schema of a namespace that exists, else ``new``: a shipped schema with its
        limits if it has the recorded sections, else as ``schema`` does.
        """
        with self.reading():
            if namespace not in self.registered:
                return new
            recorded = self.schema(namespace)
        shipped = MemorySchema.load(recorded.name) if recorded.name in presets() else recorded
        return shipped if shape(shipped) == shape(recorded) else recorded

    def size(self, namespace: Namespace) -> int:
        """Return the number of a namespace's operations; InputError if it does not exist."""
        with self.reading():
            return self.database.head(self.registration(namespace).entry).seq

    def forget(self, namespace: Namespace) -> Receipt:
        """Erase a namespace and its names for good, except for a receipt. Raises as
        ``DurableMemory.forget``.
        """
        with self.writing():
            ns = self.registration(namespace).entry
            head = self.database.head(ns)
            registry = Tail(self.database, self.key, REGISTRY, "the registry").read_on()
            named = [record.seq for record in registry if record.entry == ns]
            note = {"operations": head.seq, "head": head.hash, "erased": named}
            record = self.register(RecordKind.FORGET, ns, note=json.dumps(note))
            self.database.erase(REGISTRY, named)
            self.database.drop(ns)
            self._drop_registry()
        return Receipt(ns, log.moment_of(record.time), head.seq, scrubbed=not self.unscrubbed)

    # --------------------------------------------------------------------------------------------
    # transactions
    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock and read one snapshot, with a current registry."""
        with self.lock, self.database.reading():
            self._follow_registry()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock and be the only writer; changes are on disk after the block. JournalError
        if nested or not written.
        """
        with self.lock:
            try:
                with self.database.writing():
                    self._follow_registry()
                    yield
            except BaseException:
                self._drop_registry()
                raise
            if not self.unscrubbed:
                self._scrub(_SCRUB_WAIT)

    def _scrub(self, wait: float) -> None:
        try:
            self.database.scrub(wait)
            self.unscrubbed = False
        except JournalError as error:
            if not self.unscrubbed:
                self.unscrubbed = True
                _LOG.warning("%s", error)
                threading.Thread(target=self._scrub_again, daemon=True).start()

    def _scrub_again(self) -> None:
        pause = _SCRUB_EVERY
        while self.unscrubbed:
            sleep(pause)
            with self.lock:
                start = monotonic()
                if self.unscrubbed:  # and not closed
                    self._scrub(0.0)
                pause = max(_SCRUB_EVERY, 10 * (monotonic() - start))  # as on a full disk

    # --------------------------------------------------------------------------------------------
    # the registry
    def registration(self, namespace: Namespace) -> Record:
        """Return the record of a namespace; InputError if it does not exist."""
        if namespace not in self.registered:
            raise InputError(
                f"no namespace {namespace}",
                fix="memalpha journal namespaces STORE lists them",
            )
        return self.registered[namespace]

    def now(self) -> str:
        """Return the time of the clock."""
        return log.stamp(self.clock())

    def _drop_registry(self) -> None:
        self._registry = Tail(self.database, self.key, REGISTRY, "the registry")
        self.registered: dict[Namespace, Record] = {}
        self.forgotten: dict[str, Record] = {}

    def _follow_registry(self) -> None:
        for record in self._registry.read_on():
            self._note(record)

    def _note(self, record: Record) -> None:
        if record.kind == RecordKind.FORGET:
            self.forgotten[record.entry] = record
            self.registered = {
                name: each for name, each in self.registered.items() if each.entry != record.entry
            }
        elif record.body is not None:
            self.registered[record.read(Registered).namespace] = record

    def register(self, kind: RecordKind, ns: str, time: str = "", **content: Any) -> Record:
        """Add a namespace's beginning or receipt to the registry, of now or an earlier time; inside
        ``writing``.
        """
        record = self._registry.seal(kind, ns, time or self.now(), **content)
        self.database.append([record])
        self._note(record)
        return record

    # --------------------------------------------------------------------------------------------
    # verification
    def verify(self) -> Verification:
        """Check the whole store: files, chains, receipts, registry, and that each chain leads to a
        memory; raises nothing.
        """
        records = list[Record]()
        faults = list[str]()
        head = ""
        heads: dict[str, Head] = {}
        with self.lock:
            try:
                faults += self.database.integrity()
                with self.database.reading():
                    heads = self.database.heads()
                    head = log.mix(heads.items())
                    registry = self._verified(REGISTRY, None, faults)
                    bodies = {each.entry: each.read(Registered) for each in registry if each.body}
                    for ns in sorted(heads.keys() - {REGISTRY}):
                        records += self._verified(ns, bodies.get(ns), faults)
                    gone = {each.entry for each in registry if each.kind == RecordKind.FORGET}
                    listed = {REGISTRY, *(each.entry for each in registry)} - gone
                    chains = self.database.chains() | {REGISTRY}
                    faults += [
                        f"registry, heads and records do not agree on chain {ns}"
                        for ns in sorted((chains ^ listed) | (chains ^ {REGISTRY, *heads}))
                    ]
            except JournalError as error:
                faults.append(str(error))
        erased = sum(record.erased for record in records)
        namespaces = len(heads.keys() - {REGISTRY})
        return Verification(tuple(faults), namespaces, len(records), erased, head)

    def _verified(self, ns: str, body: Registered | None, faults: list[str]) -> list[Record]:
        try:
            records = Tail(self.database, self.key, ns, f"chain {ns or '(registry)'}").read_on()
            if body:
                replay(Memory(schema_of(body.shape)), events_of(records))
                faults += self._faults_of_secret(ns, body, records)
            return records
        except (JournalError, InputError) as error:
            faults.append(str(error))
            return []

    def _faults_of_secret(self, ns: str, body: Registered, records: Sequence[Record]) -> list[str]:
        """What is wrong with the secret of a chain's digests; an import brings none along."""
        sealed = next((record for record in reversed(records) if record.secret), None)
        secret = self.database.secret(ns)
        if sealed is None or (not secret and sealed.seq <= body.imported):
            return []
        fault = f"chain {ns}: the secret of its digests is not that of operation {sealed.seq}"
        return [] if log.fingerprint(secret) == sealed.secret else [fault]


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
        self._key = ("", "")
        self._sealing = False  # whether the next record seals the secret
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
            self._unsaved += self._sealed(RecordKind.APPLY, origin, self._memory.applied)
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
            imported = begun.read(Registered).imported if begun else 0
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
            self._adopts = registration.read(Registered).shape != shape(self.schema)
        records = self._tail.read_on() if ns else []
        if self._adopts and not all(_is_line(record.entry) for record in records):
            self._start("")
            assert registration is not None
            raise InputError(
                f"namespace {self.namespace} was begun with the schema "
                f"{_told(registration.read(Registered).shape)}, not {_told(shape(self.schema))}",
                fix="an agent of that schema, or another namespace; of an import: --schema",
            )
        if any(record.kind == RecordKind.FORGET for record in records):
            begun = self._begun, self._adopts
            self._start(ns)  # the memory in this process holds what was erased
            self._begun, self._adopts = begun
            records = self._tail.read_on()
        replay(self._memory, self._noted(records))

    def _sealed(
        self, kind: RecordKind, origin: Origin, changes: Sequence[Applied], **more: int | None
    ) -> list[Record]:
        secret = self._secret()
        by = [origin.agent, _keyed(origin.source, secret), _keyed(origin.prompt_hash, secret)]
        now = self._journal.now()
        records = list[Record]()
        for change, operation, chunk, call in changes:
            entry = change.after or change.before
            assert entry is not None
            body: JsonObject = {
                "origin": by,
                "operation": operation and _given(operation, change.after),
                "chunk": chunk,
                "call": call,
                "after": change.after and _stored(change.after),
                **more,
            }
            if self._sealing:
                body["secret"] = log.fingerprint(secret)
                self._sealing = False
            records.append(self._tail.seal(kind, entry.id, now, body=body))
            text = records[-1].body or ""
            fits = chunk is None or 0 <= chunk < _MOST_CHUNKS
            if fits and len(records) > 1 and "\\ud" not in text:
                continue  # nothing in it but ASCII, or signs that UTF-8 can hold
            try:
                records[-1].read(Body)
            except JournalDamagedError as error:
                raise InputError(
                    f"this cannot be stored: {error.what}",
                    expected="Unicode text, chunks from 0 to 2**63 - 1",
                ) from error
        return records

    def _secret(self) -> str:
        """Return the key of the digests, read once in a transaction."""
        ns = self._tail.ns
        if not self._unsaved or self._key[0] != ns:
            database = self._journal.database
            secret = database.secret(ns)
            self._sealing = not secret
            self._key = ns, secret or database.new_secret(ns)
        return self._key[1]

    def history(self, entry_id: str | None = None) -> list[Event]:
        """Return all events of an entry (none for an unknown id), or of the namespace, in order."""
        with self._journal.reading():
            self._follow()
            return [
                event for event in events_of(self._records()) if entry_id in (None, event.entry)
            ]

    def _records(self) -> list[Record]:
        return self._tail_of(self._tail.ns).read_on() if self._tail.ns else []

    def as_of(self, at: int | datetime) -> Memory:
        """Return the memory after an operation (its number), or after the last one that is not of a
        later time; InputError for a wrong number or a time without zone.
        """
        with self._journal.reading():
            self._follow()
            records = self._records()
        if isinstance(at, datetime):
            if at.tzinfo is None:
                raise InputError(
                    f"the time {at} has no time zone",
                    expected=f"such as {at.isoformat()}Z",
                )
            while records and datetime.fromisoformat(records[-1].time) > at:
                records.pop()
        elif not 0 <= at <= len(records):
            raise InputError(
                f"operation {at}",
                expected=f"a number from 0 to {len(records)}, the last operation of this namespace",
            )
        else:
            records = records[:at]
        memory = self._new_memory()
        replay(memory, events_of(records))
        return memory

    def keyed(self, text: str) -> str:
        """Return a text with each SHA-256 digest keyed as in this namespace's log (``Origin``)
        since the last ``forget``.
        """
        with self._journal.reading():
            self._follow()
            return _keyed(text, self._journal.database.secret(self._tail.ns))

    def undo(self, seq: int, origin: Origin) -> Change:
        """Revert one operation by its number (an undo can be undone too); logged as a new
        operation. Limits are not checked.

        With an operation of a tool of one's own goes the rest of its call; asking for another of
        them then changes nothing more. With it go the lines of the archive that came with it, and
        those return that left with it (``line_changes``). InputError if it cannot be undone;
        ForgottenError if its content was forgotten; JournalConflictError if written since.
        """
        with self._changing():
            events = events_of(self._records())
            if seq not in range(1, len(events) + 1):
                raise InputError(
                    f"operation {seq!r} cannot be undone",
                    expected=f"the number of an operation, up to {len(events)}",
                )
            if events[seq - 1].kind == RecordKind.READ:
                raise InputError(
                    f"operation {seq} cannot be undone: it only says what an import has read",
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
        undo = Applied(change, None, None, call)
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
            events = events_of(self._records())
            there = [event for event in events if event.entry and not event.forgotten]
            ids = {entry_id, *also}
            missing = sorted(ids.difference(event.entry for event in there))
            if missing:
                raise InputError(
                    f"nothing of an entry {', '.join(map(repr, missing))} is left in "
                    f"{self.namespace}",
                    expected="the id of an entry or line",
                )
            contents = _texts(there, ids)
            of_ids = [event for event in events if event.entry in ids]
            ids = ids.union(*lines_by_operation(events, of_ids).values()).difference(keep)
            left = self._left(there, ids, keep)
            erased = sorted({event.seq for event in there} - {event.seq for event in left})
            receipt = self._erase(entry_id, erased)
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

    def _left(self, there: Sequence[Event], ids: set[str], keep: Collection[str]) -> list[Event]:
        texts = _texts(there, ids)
        same = {entry.id for entry in self._memory if entry.content in texts}.union(keep) - ids
        others = [event for event in there if event.entry not in ids]
        return [event for event in others if event.entry in same or not event.texts & texts]

    def _erase(self, entry_id: str, numbers: Sequence[int]) -> Record:
        database = self._journal.database
        secret = log.fingerprint(database.new_secret(self._tail.ns))
        note = json.dumps({"erased": numbers, "secret": secret})
        receipt = self._tail.seal(RecordKind.FORGET, entry_id, self._journal.now(), note=note)
        database.append([receipt])
        database.erase(self._tail.ns, numbers)
        return receipt


def _columns(value: Entry | Operation) -> JsonObject:
    """Return the fields by name; ``asdict``, which copies each value, takes ten times as long."""
    return {name: getattr(value, name) for name in value.__slots__}


def _stored(entry: Entry) -> JsonObject:
    """The fields of an entry by name, without metadata where there is none."""
    fields = _columns(entry)
    if entry.metadata is None:
        del fields["metadata"]
    return fields


def _told(shape: Any) -> str:
    """A shape in a few words."""
    sections = [
        f"{name}, {kind}{', with times' * bool(times)}" for name, kind, times in shape["sections"]
    ]
    return f"{shape['name']!r} ({'; '.join(sections)})"


def _is_line(entry_id: str) -> bool:
    """Whether a record is of a line of the archive, or of no entry."""
    return not entry_id or entry_id.startswith(LINE)


def _given(operation: Operation, after: Entry | None) -> JsonObject:
    """The fields of an operation that has them; a content that is the entry's stands there alone
    (``history.events_of``).
    """
    fields = {name: value for name, value in _columns(operation).items() if value is not None}
    if after is not None and fields.get("content") == after.content:
        del fields["content"]
    return fields


def _texts(events: Sequence[Event], ids: set[str]) -> set[str]:
    return {text for event in events if event.entry in ids for text in event.texts}


def _keyed(text: str, secret: str) -> str:
    key = secret.encode()
    return _DIGEST.sub(lambda match: hmac.digest(key, match[0].encode(), "sha256").hex(), text)
