"""One namespace's memory, durable: writing, history, the past, undo, forgetting, compaction.

What always holds: when ``writing`` or ``apply`` returns, what was applied is on disk; if it raises, nothing of it is, and
``memory`` is rebuilt from the log. ``memory`` has seen every write that any process acknowledged before. Nothing is answered
from a record that does not fit its chain.

``history``, ``as_of``, ``diff``, ``undo`` and ``forget`` read and check the whole chain of the namespace each time: their cost
grows with the log, and they cannot miss a record that an index has lost. Undo takes back one operation whose entry nobody wrote
since; it judges no limits. Forgetting wins over everything: forgotten content is in no past, no history, and cannot be brought
back by undo.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime

from memalpha.errors import InputError, JournalDamagedError
from memalpha.memory.memory import Memory, count_words, diff
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store import chain
from memalpha.store.compaction import base_of
from memalpha.store.forgetting import in_backups, plan, receipt_of, receipts_in, texts_about
from memalpha.store.log import Log
from memalpha.store.memory import JournalMemory, Written, shape
from memalpha.store.past import before_of, events, past, refuse_twin
from memalpha.store.records import (
    Event,
    Head,
    Kind,
    Namespace,
    Origin,
    Receipt,
    Record,
    entry_data,
    operation_data,
    to_body,
)
from memalpha.types import Change, Entry, Operation, OperationResult


class DurableMemory:
    """The memory of one namespace; made by ``Journal.memory``.

    Args:
        log: The log.
        namespace: Whose memory.
        schema: Its sections; name, kinds and times must be those it was begun with, limits and descriptions may change.
        count_tokens: Token counter of the limits.
    """

    def __init__(self, log: Log, namespace: Namespace, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> None:
        if not isinstance(namespace, Namespace):
            raise InputError(f"namespace is {namespace!r}", expected="a Namespace(user, agent, session)")
        self._log, self.namespace, self.schema, self._count = log, namespace, schema, count_tokens
        self._reset()

    def _reset(self) -> None:
        self._ns: str | None = None
        self._head = Head(0, "")
        self._time = ""
        self._memory = JournalMemory(self.schema, self._count)

    # -------------------------------------------------------------------------------------------- reading and writing
    @property
    def memory(self) -> JournalMemory:
        """The memory as of now; read it, write with ``apply`` or ``writing``.

        It is another object after a forgetting or a failed write: what follows it must be made anew then.
        """
        with self._log.reading():
            self._follow()
            return self._memory

    @property
    def position(self) -> int:
        """Number of the last operation of the namespace, 0 before the first."""
        with self._log.reading():
            self._follow()
            return self._head.seq

    @contextmanager
    def writing(self, origin: Origin) -> Iterator[JournalMemory]:
        """Give the memory to write to; all that is applied inside is logged in one piece, all or nothing.

        Others wait meanwhile: think (generate) before, write inside.

        Args:
            origin: Who writes and from what.

        Raises:
            JournalError: If it could not be put to disk.
            JournalBusyError: If another process did not finish writing in time.
        """
        entered = False
        try:
            with self._log.writing():
                entered = True
                self._follow()
                self._memory.begin()
                yield self._memory
                if draft := self._memory.end():
                    self._append_draft(draft, origin)
        except BaseException:
            if entered:  # what was applied is not in the log
                self._reset()
            raise

    def apply(self, operation: Operation, origin: Origin, *, chunk: int | None = None, time: str | None = None) -> OperationResult:
        """Apply one operation (``Memory.apply``); it is on disk when this returns an applied result."""
        with self.writing(origin) as memory:
            return memory.apply(operation, chunk=chunk, time=time)

    def _follow(self) -> None:
        begun = self._log.begun.get(self.namespace)
        if (begun.ns if begun else None) != self._ns:
            self._reset()
        if begun is None:
            return
        if begun.shape is not None and begun.shape != shape(self.schema):
            raise InputError(
                f"namespace {self.namespace} was begun with the schema {begun.shape}",
                expected="the same name, sections, kinds and times",
                fix="use that schema, or another namespace",
            )
        self._ns = begun.ns
        head = self._log.backend.head(begun.ns)
        if head == self._head:
            return
        if head.seq <= self._head.seq:
            raise JournalDamagedError(
                f"namespace {self.namespace} had {self._head.seq} operations and has {head.seq}, or others",
                expected="what was acknowledged to stay",
                fix="bring a backup back",
            )
        rebuild = self._head.seq == 0
        records = [] if rebuild else self._log.backend.rows(begun.ns, self._head.seq)
        if not rebuild and records and records[0].seq == self._head.seq + 1 and not any(r.kind == Kind.FORGET for r in records):
            records = self._log.stretch(begun.ns, self._head)
        else:
            self._memory = JournalMemory(self.schema, self._count)
            records = self._log.stretch(begun.ns)
        self._memory.replay(records)
        self._head, self._time = head, records[-1].time

    def _append_draft(self, draft: Sequence[Written], origin: Origin) -> None:
        time, clock = self._log.now(self._time)
        self._begin(time)
        head, records = self._head, []
        for written in draft:
            body = self._body(written.change.after, origin, clock)
            body |= {"operation": operation_data(written.operation), "chunk": written.chunk, "said": written.time}
            records.append(self._seal(head, Kind.APPLY, time, written.change, body))
            head = Head(records[-1].seq, records[-1].hash)
        self._append(records)

    def _begin(self, time: str) -> None:
        if self._ns is None:
            self._ns = secrets.token_hex(16)
            self._log.register(self.namespace, self._ns, shape(self.schema), self._log.now(self._log.registry_time)[0])
            self._head = Head(0, chain.root(self._ns))

    def _body(self, after: Entry | None, origin: Origin, clock: str) -> dict[str, object]:
        by = [origin.agent, origin.source, origin.prompt_hash]
        return {"after": entry_data(after), "origin": by} | ({"clock": clock} if clock else {})

    def _seal(self, head: Head, kind: Kind, time: str, change: Change, body: dict[str, object]) -> Record:
        entry = change.after or change.before
        assert entry is not None and self._ns is not None
        gone = change.after is None
        return chain.seal(head, self._log.key, ns=self._ns, kind=kind, time=time, entry=entry.id, gone=gone, body=to_body(body))

    def _append(self, records: Sequence[Record]) -> None:
        self._log.backend.append(records)
        self._head, self._time = Head(records[-1].seq, records[-1].hash), records[-1].time

    # -------------------------------------------------------------------------------------------- the past
    def history(self, entry_id: str) -> list[Event]:
        """Return everything that happened to an entry, in order; empty for an id that never was, or was before a compaction."""
        return [event for about, event in events(self._records()) if about == entry_id]

    def operations(self) -> list[Event]:
        """Return everything that happened in the namespace, in order."""
        return [event for _, event in events(self._records())]

    def as_of(self, at: int | datetime) -> Memory:
        """Return the memory as it was after an operation, or at a time (of the journal, which never goes back).

        Raises:
            InputError: If the operation is none, or the time has no zone.
            JournalError: If a compaction dropped what was before it.
        """
        return past(self._records(), at, self.schema, self._count)

    def diff(self, before: int | datetime, after: int | datetime) -> list[Change]:
        """Return what is different between two moments (as ``as_of`` takes them): deletions first, then writes."""
        records = self._records()
        first, second = (past(records, at, self.schema, self._count) for at in (before, after))
        return diff(tuple(first), tuple(second))

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all entries that were forgotten."""
        return receipts_in(self._records())

    def rebuilt(self) -> JournalMemory:
        """Return the memory made anew from the whole log, independent of the one in this process."""
        memory = JournalMemory(self.schema, self._count)
        memory.replay(self._records())
        return memory

    def _records(self) -> list[Record]:
        with self._log.reading():
            self._follow()
            return self._log.stretch(self._ns) if self._ns else []

    # -------------------------------------------------------------------------------------------- undo, forget, compact
    def undo(self, seq: int, origin: Origin) -> Change:
        """Take one operation back (or take the taking back back); logged as an operation of its own.

        Args:
            seq: Number of the operation.
            origin: Who asks for it.

        Raises:
            InputError: If there is no such operation, or it is none that can be undone.
            ForgottenError: If it, or what was before it, was forgotten.
            JournalError: If its entry was written since and not taken back, or another entry says by now what would come back.
        """
        try:
            with self._log.writing():
                self._follow()
                records = self._log.stretch(self._ns) if self._ns else []
                target, before = before_of(records, seq)
                change = Change(self._memory.get(target.entry), before)
                refuse_twin(self._memory, before)
                time, clock = self._log.now(self._time)
                body = self._body(before, origin, clock) | {"of": seq}
                record = self._seal(self._head, Kind.UNDO, time, change, body)
                self._append([record])
                self._memory.replay([record])
                return change
        except BaseException:
            self._reset()
            raise

    def forget(self, entry_id: str) -> Receipt:
        """Erase an entry for good: from the log, the memory, every file of the store and its backups; keep a receipt.

        Raises:
            InputError: If nothing of such an entry is left anywhere.
            JournalBusyError: If readers keep old files in use: forgotten in the log, erased from the files at the next opening.
            JournalError: If a backup could not be reached: forgotten in the store, not there.
        """
        try:
            with self._log.writing():
                self._follow()
                texts = texts_about(self._log.stretch(self._ns), entry_id) if self._ns else set()
                live = tuple(self._memory)
                copies = in_backups(self._log, lambda copy: self._forget_in(copy, entry_id, texts, live))
                receipt = self._erase(entry_id, texts, live)
        finally:
            self._reset()  # the memory's list of changes holds what was there
        if receipt is not None:
            self._log.scrub()
        copies.check()
        if receipt is None and not copies.erased:
            raise InputError(f"nothing of an entry {entry_id!r} is left in {self.namespace}", expected="the id of an entry")
        found = receipt or Receipt(entry_id, self._log.clock(), 0)
        return Receipt(found.entry, found.time, found.operations, found.said_by, copies.erased, copies.missing)

    def _forget_in(self, copy: Log, entry_id: str, texts: Collection[str], live: Sequence[Entry]) -> bool:
        """Erase in a copy what the store forgets; whether there was anything."""
        there = DurableMemory(copy, self.namespace, self.schema)
        with copy.writing():
            there._follow()
            receipt = there._erase(entry_id, texts, live)
        if receipt is not None:
            copy.scrub()
        return receipt is not None

    def _erase(self, entry_id: str, texts: Collection[str], live: Iterable[Entry]) -> Receipt | None:
        """Erase in this log alone, as ``plan`` says; inside ``writing``."""
        records = self._log.stretch(self._ns) if self._ns else []
        erased, said_by = plan(records, live, entry_id, texts)
        if not erased or self._ns is None:
            return None
        note = json.dumps({"erased": erased, "said_by": said_by})
        time, _ = self._log.now(self._time)
        receipt = chain.seal(
            self._head, self._log.key, ns=self._ns, kind=Kind.FORGET, time=time, entry=entry_id, gone=True, note=note
        )
        self._append([receipt])
        self._log.backend.erase(self._ns, erased)
        return receipt_of(receipt)

    def compact(self) -> int:
        """Replace the log so far by what it led to; return how many records were dropped.

        What is given up: history, ``as_of``, ``undo`` and operations' origins before this point. Kept: entries with their ids and
        numbers, receipts, the chain.
        """
        try:
            with self._log.writing():
                self._follow()
                if self._ns is None:
                    return 0
                records = self._log.stretch(self._ns)
                base = base_of(self._memory, records, self._log.key, self._log.now(self._time)[0])
                self._append(base)
                self._log.backend.drop_before(self._ns, base[0].seq)
                self._memory.replay(base)
        except BaseException:
            self._reset()
            raise
        self._log.scrub()
        return len(records)
