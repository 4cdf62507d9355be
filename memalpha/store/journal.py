"""The durable store: memories and indexes are built from an append-only log of operations.

    journal = Journal.open("memories.db")                          # or
    postgresql://user@host/database durable = journal.memory(Namespace("marta"),
    MemorySchema.load("facts")) durable.apply(Operation(OperationKind.INSERT, "facts", "Marta lives
    in Oslo"), Origin("me"))   # on disk when this returns durable.memory, durable.history("1"),
    durable.as_of(1), durable.undo(1, Origin("me")), durable.forget("1")

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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from time import monotonic, sleep
from typing import Any, NamedTuple

from memalpha.errors import InputError, JournalConflictError, JournalDamagedError, JournalError
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store import records as log
from memalpha.store.database import IN_MEMORY, Database, connect
from memalpha.store.exchange import export_to, import_from
from memalpha.store.memory import (
    Draft,
    JournalMemory,
    Step,
    before_of,
    events,
    line_changes,
    lines_of,
    read,
    schema_of,
    shape,
    still_say,
    taken_back,
)
from memalpha.store.records import (
    REGISTRY,
    Event,
    Head,
    Kind,
    Namespace,
    Origin,
    Receipt,
    Record,
    Registered,
    hash_prompt,
)
from memalpha.types import Change, Operation, OperationResult

__all__ = [
    "IN_MEMORY",
    "DurableMemory",
    "Event",
    "Journal",
    "Namespace",
    "Origin",
    "Receipt",
    "Report",
    "hash_prompt",
]

_LONGEST_WAIT = 1_000_000  # seconds; SQLite's limit in milliseconds
_SCRUB_WAIT = 1.0  # seconds that an erasure waits for other readers
_SCRUB_EVERY = 1.0  # seconds between two tries when the store is idle
_SCRUB_CHEAP = 0.1  # seconds that a try may cost each use
_DIGEST = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")
_SAID = attrgetter("section", "content", "timestamp")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found; the same ``head``, one hash over all heads, later shows that the log
    was not rewritten.
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


class Begun(NamedTuple):
    """What the registry says of a namespace: chain id, schema shape, position and time."""

    ns: str
    shape: Any
    seq: int
    time: str


class Journal:
    """A store of memories; made by ``Journal.open``. Safe for several threads (one at a time) and
    processes, not across a fork.
    """

    def __init__(self, database: Database, key: bytes | None = None) -> None:
        self.database, self.key = database, key
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.lock = threading.RLock()
        self.unscrubbed, self._next_scrub = False, 0.0
        self._forget_registry()
        self._scrub()  # if an erasure was interrupted

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
            raise InputError(f"a wait of {wait!r} s", expected=f"seconds, 0 to {_LONGEST_WAIT:,}")
        return cls(connect(str(url), wait), key)

    def __enter__(self) -> Journal:
        return self

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
            return tuple(self.begun)

    def schema(self, namespace: Namespace) -> MemorySchema:
        """Return a schema with the recorded sections and no limits; InputError if the namespace
        does not exist.
        """
        with self.reading():
            return schema_of(self.registered(namespace).shape)

    def forget(self, namespace: Namespace) -> Receipt:
        """Erase a namespace and its names for good; keep a receipt. Raises as
        ``DurableMemory.forget``.
        """
        with self.writing():
            begun = self.registered(namespace)
            head = self.database.head(begun.ns)
            note = json.dumps({"operations": head.seq, "head": head.hash, "erased": [begun.seq]})
            record = self.register(Kind.FORGET, begun.ns, gone=True, note=note)
            self.database.erase(REGISTRY, [begun.seq])
            self.database.drop(begun.ns)
            self._forget_registry()
        return Receipt(begun.ns, log.moment_of(record.time), head.seq, scrubbed=not self.unscrubbed)

    export = export_to
    import_ = import_from

    # --------------------------------------------------------------------------------------------
    # transactions and chains
    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock and read one snapshot, with a current registry."""
        with self.lock:
            with self.database.reading() as outermost:
                self._follow_registry()
                yield
            if self.unscrubbed and outermost:
                self._scrub()

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
                self._forget_registry()
                raise
            self._scrub()

    def _scrub(self) -> None:
        """Remove erased data from the files, if there is any; what fails is tried again after each
        use, and once a second.

        A failure that took long, as on a full disk, is not tried again so soon.
        """
        with self.lock:
            start, wait = monotonic(), 0.0 if self.unscrubbed else _SCRUB_WAIT
            if self.unscrubbed and start < self._next_scrub:
                return
            try:
                self.database.scrub(wait)
                self.unscrubbed = False
            except JournalError as error:
                self._next_scrub = monotonic() + 10 * (monotonic() - start - wait - _SCRUB_CHEAP)
                if not self.unscrubbed:
                    self.unscrubbed = True
                    _LOG.warning("%s", error)
                    threading.Thread(target=self._scrub_when_idle, daemon=True).start()

    def _scrub_when_idle(self) -> None:
        while self.unscrubbed:
            sleep(_SCRUB_EVERY)
            with self.lock:
                if self.unscrubbed:  # and not closed
                    self._scrub()

    def stretch(self, ns: str, before: Head | None = None) -> list[Record]:
        """Return the checked records of a chain, all or those after ``before``; JournalDamagedError
        if the chain is broken.
        """
        before = before or log.root(ns)
        records = self.database.rows(ns, before.seq)
        if faults := log.check(records, before, self.database.head(ns), self.key):
            name = next(
                (str(name) for name, begun in self.begun.items() if begun.ns == ns),
                ns or "(registry)",
            )
            what = f"{self.database.name}, namespace {name}: {'; '.join(faults[:5])}"
            raise JournalDamagedError(
                what, fix="bring a backup back; journal.verify() lists everything"
            )
        return records

    def registered(self, namespace: Namespace) -> Begun:
        """Return what the registry says of a namespace; InputError if it does not exist."""
        if namespace not in self.begun:
            raise InputError(
                f"no namespace {namespace}", fix="memalpha journal namespaces STORE lists them"
            )
        return self.begun[namespace]

    def now(self, after: str) -> str:
        """Return the time of the next record: the clock's, but not before ``after``."""
        return max(after, log.stamp(self.clock()))

    def _forget_registry(self) -> None:
        self._registry_head, self._registry_time = log.root(REGISTRY), ""
        self.begun: dict[Namespace, Begun] = {}
        self.forgotten: dict[str, Record] = {}

    def _follow_registry(self) -> None:
        head = self.database.head(REGISTRY)
        if head == self._registry_head:
            return
        if head.seq <= self._registry_head.seq:
            raise JournalDamagedError(
                f"{self.database.name}: the registry lost what it held", fix="bring a backup back"
            )
        for record in self.stretch(REGISTRY, self._registry_head):
            if record.kind == Kind.FORGET:
                self.forgotten[record.entry] = record
                self.begun = {
                    name: begun for name, begun in self.begun.items() if begun.ns != record.entry
                }
            elif record.body is not None:
                names = record.read(Registered)
                self.begun[names.namespace] = Begun(
                    record.entry, names.shape, record.seq, record.time
                )
            self._registry_head, self._registry_time = record.head, record.time

    def register(self, kind: Kind, ns: str, time: str = "", **more: Any) -> Record:
        """Add a namespace's beginning or receipt to the registry, of now or an earlier time; inside
        ``writing``.
        """
        time = time or self.now(self._registry_time)
        record = log.seal(
            self._registry_head, self.key, ns=REGISTRY, kind=kind, time=time, entry=ns, **more
        )
        self.database.append([record])
        self._follow_registry()
        return record

    # --------------------------------------------------------------------------------------------
    # verification
    def verify(self) -> Report:
        """Check the whole store: files, chains, receipts, registry, and that each chain leads to a
        memory; raises nothing.
        """
        chains: dict[str, list[Record]] = {}
        faults, head = list[str](), ""
        with self.lock:
            try:
                faults += self.database.integrity()
                with self.database.reading():
                    heads = self.database.heads()
                    head = log.mix(heads.items())
                    faults += self._faults(heads, chains)
            except JournalError as error:
                faults.append(str(error))
        records = [record for found in chains.values() for record in found]
        forgotten = sum(record.erased for record in records)
        return Report(tuple(dict.fromkeys(faults)), len(chains), len(records), forgotten, head)

    def _faults(self, heads: dict[str, Head], chains: dict[str, list[Record]]) -> list[str]:
        there, registry = self.database.chains(), self.database.rows(REGISTRY)
        problems = log.check(
            registry, log.root(REGISTRY), heads.get(REGISTRY, log.root(REGISTRY)), self.key
        )
        registry = [
            record
            for record in registry
            if not log.fault(record, Head(record.seq - 1, record.previous), self.key)
        ]
        begun = {record.entry for record in registry if record.kind == Kind.BEGIN}
        gone = {record.entry for record in registry if record.kind == Kind.FORGET}
        faults = [
            f"chain {ns or '(registry)'} has records and no head"
            for ns in sorted(there - heads.keys())
        ]
        faults += [f"registry: {line}" for line in problems]
        faults += [
            f"namespace {ns} is in the registry and its records are missing"
            for ns in sorted(begun - gone - heads.keys())
        ]
        faults += [
            f"chain {ns} is in no registry" for ns in sorted(heads.keys() - begun - {REGISTRY})
        ]
        faults += [f"namespace {ns} was forgotten and has records" for ns in sorted(gone & there)]
        shapes = {record.entry: record.read(Registered).shape for record in registry if record.body}
        for ns in sorted(heads.keys() - {REGISTRY}):
            try:
                chains[ns] = self.database.rows(ns)
                problems = log.check(chains[ns], log.root(ns), heads[ns], self.key)
                if not problems and ns in shapes:
                    JournalMemory(schema_of(shapes[ns])).replay(chains[ns])
            except (JournalError, InputError) as error:
                problems = [str(error)]
            faults += [f"namespace {ns}: {line}" for line in problems]
        return faults


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
        self._journal, self.namespace, self.schema, self._count = (
            journal,
            namespace,
            schema,
            count_tokens,
        )
        self._reset()

    def _reset(self) -> None:
        self._ns = ""
        self._head, self._time = Head(0, ""), ""
        self._memory = JournalMemory(self.schema, self._count)

    @property
    def memory(self) -> JournalMemory:
        """The current memory, to read. After ``forget`` or a failed write it is another object:
        rebuild what depends on it.
        """
        with self._journal.reading():
            self._follow()
            return self._memory

    @contextmanager
    def writing(self, origin: Origin) -> Iterator[JournalMemory]:
        """Give the memory to write to; all operations inside are logged together or not at all.
        Other writers wait meanwhile.
        """
        with self._changing():
            draft: list[Draft] = []
            self._memory.draft = draft
            yield self._memory
            self._memory.draft = None
            if draft and not self._ns:
                self._ns = secrets.token_hex(16)
                body = {**asdict(self.namespace), "schema": shape(self.schema)}
                self._journal.register(Kind.BEGIN, self._ns, body=body)
                self._head = log.root(self._ns)
            if draft:
                self._log(Kind.APPLY, origin, draft)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only writer, on the current memory; after a failure the memory, if it was written
        to, is rebuilt from the log.
        """
        entered, before = False, self._head
        try:
            with self._journal.writing():
                entered = True
                self._follow()
                before = self._head
                yield
        except BaseException:
            if entered and (
                self._memory.draft is not None
                or (self._head, self._memory.seq) != (before, before.seq)
            ):
                self._reset()
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
        begun = self._journal.begun.get(self.namespace)
        if (begun.ns if begun else "") != self._ns:
            self._reset()
        if begun is None:
            return
        if begun.shape is not None and begun.shape != shape(self.schema):
            what = f"namespace {self.namespace} was begun with the schema {begun.shape}"
            raise InputError(
                what,
                fix="use a schema of that name, sections, kinds and times, or another namespace",
            )
        self._ns = begun.ns
        head = self._journal.database.head(begun.ns)
        if head == self._head:
            return
        if head.seq <= self._head.seq:
            raise JournalDamagedError(
                f"namespace {self.namespace} had {self._head.seq} operations and has {head.seq}, or others"
            )
        records = self._journal.stretch(begun.ns, self._head if self._head.seq else None)
        if any(
            record.kind == Kind.FORGET for record in records
        ):  # the memory in this process holds what was erased
            self._memory = JournalMemory(self.schema, self._count)
            records = self._chain()
        self._memory.replay(records)
        self._head, self._time = head, records[-1].time

    def _log(self, kind: Kind, origin: Origin, drafts: Sequence[Draft]) -> list[Step]:
        """Write changes to the log, and those of an undo to the memory; InputError for what could
        not be read again.
        """
        database, steps = self._journal.database, list[Step]()
        secret = database.secret(self._ns) or database.new_secret(self._ns)
        by = [origin.agent, _keyed(origin.source, secret), _keyed(origin.prompt_hash, secret)]
        self._time = self._journal.now(self._time)
        for change, rest in drafts:
            entry = change.after or change.before
            assert entry is not None
            body = {"origin": by, **rest, "after": asdict(change.after) if change.after else None}
            gone = change.after is None
            names: dict[str, Any] = {
                "ns": self._ns,
                "kind": kind,
                "time": self._time,
                "entry": entry.id,
                "gone": gone,
            }
            record = log.seal(self._head, self._journal.key, **names, body=body)
            try:
                steps += read([record])
            except JournalDamagedError as error:
                expected = "Unicode text, chunks from 0 to 2**63 - 1"
                raise InputError(
                    f"this cannot be stored: {error.what}", expected=expected
                ) from error
            self._head = record.head
        records = [record for record, _ in steps]
        database.append(records)
        if kind is Kind.UNDO:
            self._memory.replay(records)
        return steps

    def history(self, entry_id: str) -> list[Event]:
        """Return all events of an entry, in order; empty for an unknown id."""
        return [event for event in self.operations() if event.entry == entry_id]

    def operations(self) -> list[Event]:
        """Return all events of the namespace, in order."""
        return events(read(self._records()))

    def as_of(self, at: int | datetime) -> Memory:
        """Return the memory after an operation (its number), or at a time; InputError for a wrong
        number or a time without zone.
        """
        records = self._records()
        if isinstance(at, datetime):
            moment = log.stamp(at)
            records = [record for record in records if record.time <= moment]
        elif not 0 <= at <= len(records):
            expected = f"a number from 0 to {len(records)}, the last operation of this namespace"
            raise InputError(f"operation {at}", expected=expected)
        else:
            records = records[:at]
        memory = JournalMemory(self.schema, self._count)
        memory.replay(records)
        return memory.copy()

    def keyed(self, text: str) -> str:
        """Return a text with each SHA-256 digest keyed as in this namespace's log (``Origin``)
        since the last ``forget``.
        """
        with self._journal.reading():
            self._follow()
            return _keyed(text, self._journal.database.secret(self._ns))

    def _records(self) -> list[Record]:
        with self._journal.reading():
            self._follow()
            return self._chain()

    def _chain(self) -> list[Record]:
        return self._journal.stretch(self._ns) if self._ns else []

    def undo(self, seq: int, origin: Origin) -> Change:
        """Revert one operation by its number (an undo can be undone too); logged as a new
        operation. Limits are not checked.

        With an operation of a tool of one's own goes the rest of its call; asking for another of
        them then changes nothing more. With it go the lines of the archive that came with it, and
        those return that left with it (``line_changes``). InputError if it cannot be undone;
        ForgottenError if its content was forgotten; JournalConflictError if written since.
        """
        with self._changing():
            steps = read(self._chain())
            if seq not in range(1, len(steps) + 1):
                expected = f"the number of an operation, up to {len(steps)}"
                raise InputError(f"operation {seq!r} cannot be undone", expected=expected)
            call = steps[seq - 1][1].call
            numbers = [
                record.seq for record, body in reversed(steps) if call and body.call == call
            ] or [seq]
            done = taken_back(steps, seq) if len(numbers) > 1 else None
            if done:
                return done
            first, changes = len(steps) + 1, dict[int, Change]()
            for number in numbers:
                entry_id = steps[number - 1][0].entry
                before = before_of(events(steps), number)
                for other in self._memory if before else ():
                    if other.id != entry_id and _SAID(other) == _SAID(before):
                        raise JournalConflictError(
                            f"entry {other.id} says by now what entry {entry_id} said"
                        )
                changes[number] = Change(self._memory.get(entry_id), before)
                rest = {"call": first if len(numbers) > 1 else None, "of": number}
                steps += self._log(Kind.UNDO, origin, [(changes[number], rest)])
            for number, change in line_changes(events(steps), first):
                self._log(Kind.UNDO, origin, [(change, {"of": number})])
            return changes[seq]

    def forget(self, entry_id: str, also: Sequence[str] = ()) -> Receipt:
        """Erase an entry, and ``also`` others and lines, for good from log, memory and files;
        InputError if nothing of one is left.

        With it go the lines of its chunks that say its fact, and what of others says the very same
        as any of these, except live entries. What else holds words of it stays: the receipt lists
        it. Not covered: exports and copies.
        """
        with self._changing():
            steps, database = read(self._chain()), self._journal.database
            bodies = [(record, body) for record, body in steps if record.body]
            ids = {entry_id, *also}
            missing = sorted(ids.difference(record.entry for record, _ in bodies))
            if missing:
                what = f"nothing of an entry {', '.join(map(repr, missing))} is left in {self.namespace}"
                raise InputError(what, expected="the id of an entry or line")
            contents = _texts(bodies, ids)
            history = events(steps)
            told = lines_of(history, [event for event in history if event.entry in ids])
            ids = ids.union(*told.values())
            texts = _texts(bodies, ids)
            live = {
                entry.id for entry in self._memory if entry.id not in ids and entry.content in texts
            }
            others = [(record, body) for record, body in bodies if record.entry not in ids]
            left = {
                record.seq: body.after
                for record, body in others
                if record.entry in live or not body.texts & texts
            }
            erased = [record.seq for record, _ in bodies if record.seq not in left]
            note, time = json.dumps({"erased": erased}), self._journal.now(self._time)
            key = self._journal.key
            receipt = log.seal(
                self._head,
                key,
                ns=self._ns,
                kind=Kind.FORGET,
                time=time,
                entry=entry_id,
                gone=True,
                note=note,
            )
            database.append([receipt])
            database.erase(self._ns, erased)
            database.new_secret(self._ns)
            self._head, self._time = receipt.head, receipt.time
            last = {record.entry: record.seq for record, _ in steps}
            gone = set(erased)
            self._memory = self._memory.without(
                {entry for entry, seq in last.items() if seq in gone}
            )
        said_by = still_say(contents, filter(None, left.values()))
        return Receipt(
            entry_id, log.moment_of(time), len(erased), said_by, not self._journal.unscrubbed
        )


def _texts(bodies: Sequence[Step], ids: set[str]) -> set[str]:
    return {text for record, body in bodies if record.entry in ids for text in body.texts}


def _keyed(text: str, secret: bytes) -> str:
    return _DIGEST.sub(
        lambda found: hmac.digest(secret, found[0].encode("ascii"), "sha256").hex(), text
    )
