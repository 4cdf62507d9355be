"""One namespace's memory, durable: writing, history, the past, undo, forgetting, compaction.

What always holds: when ``writing`` or ``apply`` returns, what was applied is on disk; if it raises, nothing of it is, and
``memory`` is rebuilt from the log. ``memory`` has seen every write that any process acknowledged before. Nothing is answered
from a record that does not fit its chain.

``history``, ``as_of``, ``diff``, ``undo`` and ``forget`` read and check the whole chain of the namespace each time: their cost
grows with the log, and they cannot miss a record that an index has lost. Undo takes back one operation whose entry nobody wrote
since; it judges no limits.

Forgetting wins over everything. It takes the content of every record about the entry, and of records of other entries that hold
the very same text, unless such an entry says it now: that one is somebody's living memory and is named in the receipt. A text that
says the same in other words is another entry; find it with ``search`` and forget it too.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path

from memalpha.errors import InputError, JournalDamagedError, JournalError, MemAlphaError
from memalpha.memory.memory import Memory, count_words, diff
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store.database import connect, drop_unfinished
from memalpha.store.log import Log
from memalpha.store.memory import (
    JournalMemory,
    Written,
    before_of,
    events,
    past,
    receipt_of,
    receipts,
    refuse_twin,
    shape,
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
    root,
    seal,
    stamp,
    to_body,
)
from memalpha.types import Change, Entry, Operation, OperationResult

_DIGEST = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")


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
        with self._changing():
            self._memory.begin()
            yield self._memory
            if draft := self._memory.end():
                self._append_draft(draft, origin)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Write alone, on the memory as of now; if that fails, the memory is made anew from the log."""
        entered = False
        try:
            with self._log.writing():
                entered = True
                self._follow()
                yield
        except BaseException:
            if entered:
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
        head = self._log.database.head(begun.ns)
        if head == self._head:
            return
        if head.seq <= self._head.seq:
            raise JournalDamagedError(
                f"namespace {self.namespace} had {self._head.seq} operations and has {head.seq}, or others",
                expected="what was acknowledged to stay",
                fix="bring a backup back",
            )
        new = self._log.database.rows(begun.ns, self._head.seq) if self._head.seq else []
        if new and new[0].seq == self._head.seq + 1 and all(record.kind != Kind.FORGET for record in new):
            records = self._log.stretch(begun.ns, self._head)
        else:
            self._memory = JournalMemory(self.schema, self._count)
            records = self._log.stretch(begun.ns)
        self._memory.replay(records)
        self._head, self._time = head, records[-1].time

    def _append_draft(self, draft: Sequence[Written], origin: Origin) -> None:
        time, clock = self._log.now(self._time)
        if self._ns is None:
            self._ns = secrets.token_hex(16)
            self._log.register(self.namespace, self._ns, shape(self.schema), self._log.now(self._log.registry_time)[0])
            self._head = root(self._ns)
        head, records = self._head, []
        by = self._by(origin)
        for written in draft:
            operation = {name: value for name, value in asdict(written.operation).items() if value is not None}
            body: dict[str, object] = {"origin": by, "operation": operation, "chunk": written.chunk, "said": written.time}
            records.append(self._seal(head, Kind.APPLY, time, clock, written.change, body))
            head = records[-1].head
        self._append(records)

    def _by(self, origin: Origin) -> list[str]:
        assert self._ns is not None
        secret = self._log.database.secret(self._ns) or self._log.database.new_secret(self._ns)
        return [origin.agent, _keyed(origin.source, secret), _keyed(origin.prompt_hash, secret)]

    def _seal(self, head: Head, kind: Kind, time: str, clock: str, change: Change, body: dict[str, object]) -> Record:
        entry = change.after or change.before
        assert entry is not None and self._ns is not None
        body |= {"after": asdict(change.after) if change.after else None} | ({"clock": clock} if clock else {})
        gone = change.after is None
        return seal(head, self._log.key, ns=self._ns, kind=kind, time=time, entry=entry.id, gone=gone, body=to_body(body))

    def _append(self, records: Sequence[Record]) -> None:
        self._log.database.append(records)
        self._head, self._time = records[-1].head, records[-1].time

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
        return receipts(self._records())

    def rebuilt(self) -> JournalMemory:
        """Return the memory made anew from the whole log, independent of the one in this process."""
        memory = JournalMemory(self.schema, self._count)
        memory.replay(self._records())
        return memory

    def keyed(self, text: str) -> str:
        """Return a text with each SHA-256 digest in it as this namespace's log records it (``Origin``).

        An event is of a prompt if its ``origin.prompt_hash`` is ``keyed(hash_prompt(ids))``. That can no longer be told of events
        before the last forgetting, which made a new secret.
        """
        with self._log.reading():
            self._follow()
            return _keyed(text, self._log.database.secret(self._ns or ""))

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
        with self._changing():
            target, before = before_of(self._log.stretch(self._ns) if self._ns else [], seq)
            change = Change(self._memory.get(target.entry), before)
            refuse_twin(self._memory, before)
            time, clock = self._log.now(self._time)
            record = self._seal(self._head, Kind.UNDO, time, clock, change, {"origin": self._by(origin), "of": seq})
            self._append([record])
            self._memory.replay([record])
            return change

    def forget(self, entry_id: str) -> Receipt:
        """Erase an entry for good: from the log, the memory, every file of the store and its backups; keep a receipt.

        Raises:
            InputError: If nothing of such an entry is left anywhere.
            JournalError: If the bytes in the files could not be erased now: it is forgotten in the log, and the next opening erases
                them (JournalBusyError: readers keep old files in use). Or if a backup could not be reached: it is forgotten in the
                store, not there.
        """
        said: list[tuple[set[str], tuple[Entry, ...]]] = []  # by the entry, and by the memory, according to the store

        def erase(log: Log) -> Receipt | None:
            if not said:
                self._follow()
                said.append((_texts_about(self._log.stretch(self._ns) if self._ns else [], entry_id), tuple(self._memory)))
            there = self if log is self._log else DurableMemory(log, self.namespace, self.schema)
            there._follow()
            return there._erase(entry_id, *said[0])

        unknown = InputError(f"nothing of an entry {entry_id!r} is left in {self.namespace}", expected="the id of an entry")
        try:
            return _forget_everywhere(self._log, erase, Receipt(entry_id, self._log.clock(), 0), unknown)
        finally:
            self._reset()  # the memory's list of changes holds what was there

    def _erase(self, entry_id: str, texts: Collection[str], live: Iterable[Entry]) -> Receipt | None:
        """Erase in this log alone; inside ``writing``.

        Args:
            entry_id: Whose content.
            texts: What the entry said according to the store, beside what it said according to this log (of a copy).
            live: What the store says now; of a copy too, where an entry may still say what it says nowhere else.
        """
        if self._ns is None:
            return None
        records = self._log.stretch(self._ns)
        self._log.database.new_secret(self._ns)
        texts = _texts_about(records, entry_id) | set(texts)
        said_by = sorted({entry.id for entry in live if entry.id != entry_id and entry.content in texts})
        erased = [
            record.seq
            for record in records
            if record.body and (record.entry == entry_id or (record.entry not in said_by and record.data().texts & texts))
        ]
        if not erased:
            return None
        note = json.dumps({"erased": erased, "said_by": said_by})
        time, _ = self._log.now(self._time)
        receipt = seal(self._head, self._log.key, ns=self._ns, kind=Kind.FORGET, time=time, entry=entry_id, gone=True, note=note)
        self._append([receipt])
        self._log.database.erase(self._ns, erased)
        return receipt_of(receipt)

    def compact(self) -> int:
        """Replace the log so far by what it led to; return how many records were dropped.

        What is given up: history, ``as_of``, ``undo`` and operations' origins before this point. Kept: entries with their ids and
        numbers, receipts, the chain.
        """
        with self._changing():
            if self._ns is None:
                return 0
            records = self._log.stretch(self._ns)
            time = self._log.now(self._time)[0]
            told = [(receipt.entry, stamp(receipt.time), receipt.operations, receipt.said_by) for receipt in receipts(records)]
            note = json.dumps({"next_id": self._memory.snapshot().next_id, "entries": len(self._memory), "receipts": told})
            base = [seal(self._head, self._log.key, ns=self._ns, kind=Kind.BASE, time=time, note=note)]
            for entry in self._memory:
                base.append(self._seal(base[-1].head, Kind.KEEP, time, "", Change(None, entry), {}))
            self._append(base)
            self._log.database.drop_before(self._ns, base[0].seq)
            self._memory.replay(base)
        self._log.scrub()
        return len(records)


def _keyed(text: str, secret: str) -> str:
    return _DIGEST.sub(lambda found: hmac.digest(bytes.fromhex(secret), found[0].encode("ascii"), "sha256").hex(), text)


def _texts_about(records: Iterable[Record], entry_id: str) -> set[str]:
    """Return everything the records of one entry hold."""
    return {text for record in records if record.entry == entry_id for text in record.data().texts}


# ------------------------------------------------------------------------------------------------ namespaces and copies
def forget_namespace(log: Log, name: Namespace) -> Receipt:
    """Drop a namespace's chain and its names, in the copies too (``Journal.forget``)."""
    return _forget_everywhere(log, lambda log: _drop(log, name), Receipt("", log.clock(), 0), no_namespace(name))


def no_namespace(name: Namespace) -> InputError:
    """Return the error for a namespace that a store does not have."""
    return InputError(
        f"no namespace {name}",
        expected="a namespace of this store",
        fix="memalpha journal namespaces STORE lists them; in Python, Journal.namespaces()",
    )


def _drop(log: Log, name: Namespace) -> Receipt | None:
    """Drop a namespace from this log alone; inside ``writing``."""
    begun = log.begun.get(name)
    if begun is None:
        return None
    head = log.database.head(begun.ns)
    record = log.unregister(begun.ns, json.dumps({"operations": head.seq, "head": head.hash, "erased": [begun.seq]}))
    log.database.erase(REGISTRY, [begun.seq])
    log.database.drop(begun.ns)
    log.forget_registry()
    return receipt_of(record)


def _forget_everywhere(log: Log, erase: Callable[[Log], Receipt | None], nothing: Receipt, unknown: InputError) -> Receipt:
    """Erase in every copy of a store, then in the store, then from its files.

    Args:
        log: The store.
        erase: Erases in one log, inside ``writing``; None if there was nothing.
        nothing: The receipt where only a copy held it.
        unknown: Raised if there was nothing anywhere.
    """
    with log.writing():
        done, missing, failed = in_backups(log, erase)
        receipt = erase(log)
        if receipt is None and not done and not failed:
            raise unknown
    log.scrub()
    if failed:
        raise JournalError(
            f"forgotten in the store, but not in {len(failed)} of its copies: {'; '.join(failed)}", fix="mend or delete them"
        )
    return replace(receipt or nothing, backups=tuple(done), missing=tuple(missing))


def in_backups(log: Log, erase: Callable[[Log], Receipt | None]) -> tuple[list[str], list[str], list[str]]:
    """Erase in every copy made from a store; inside ``writing``, before anything is erased in the store itself.

    So a kill in between leaves the store as it was, with all it takes to forget again: what is forgotten in the store is
    forgotten in its copies. Copies that are gone are no longer looked for from now on.

    Returns:
        The paths of the copies that held it, of those no longer where they were written, and why some could not be erased.
    """
    done, missing, failed = list[str](), list[str](), list[str]()
    for path in log.database.backups():
        try:
            drop_unfinished(Path(path))
            if not Path(path).exists():
                missing.append(path)
                log.database.note_backup(path, there=False)
                continue
            copy = Log(lambda path=path: connect(path), log.key)  # type: ignore[misc]
            with closing(copy.database):
                with copy.writing():
                    receipt = erase(copy)
                copy.scrub()
            done += [path] if receipt else []
        except (MemAlphaError, OSError) as error:
            failed.append(f"{path}: {error}")
    return done, missing, failed
