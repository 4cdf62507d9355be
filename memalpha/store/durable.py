"""The durable memory of one namespace: writing, history, past states, undo, forgetting, compaction.

What always holds: when ``writing`` or ``apply`` returns, the change is on disk; if it raises, nothing is kept. ``memory`` includes
every acknowledged write of every process. Every record is checked against its chain before use. ``history``, ``as_of``, ``diff``,
``undo`` and ``forget`` read and check the whole chain, so their cost grows with the log. ``undo`` reverts one operation if its
entry was not written since; it does not check limits. ``forget`` erases the content of all records of the entry, and of records of
other entries with the same text. Exception: a live entry that holds this text now is kept and named in the receipt. Not covered:
paraphrases; find them with ``search``.
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

    Name, section kinds and times of ``schema`` must match the recorded schema; limits and descriptions may change.
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

    @property
    def memory(self) -> JournalMemory:
        """The current memory, to read. After ``forget`` or a failed write it is a new object: rebuild what depends on it."""
        with self._log.reading():
            self._follow()
            return self._memory

    @contextmanager
    def writing(self, origin: Origin) -> Iterator[JournalMemory]:
        """Give the memory to write to; all operations inside are logged together or not at all.

        Other writers wait meanwhile, so generate text before the block. JournalError if the write fails; JournalBusyError if
        another process did not finish writing in time.
        """
        with self._changing():
            self._memory.begin()
            yield self._memory
            if draft := self._memory.end():
                self._append_draft(draft, origin)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Be the only writer, on the current memory; after a failure the memory is rebuilt from the log."""
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

    def history(self, entry_id: str) -> list[Event]:
        """Return all events of an entry, in order; empty for an unknown id, or one deleted before a compaction."""
        return [event for about, event in events(self._records()) if about == entry_id]

    def operations(self) -> list[Event]:
        """Return all events of the namespace, in order."""
        return [event for _, event in events(self._records())]

    def as_of(self, at: int | datetime) -> Memory:
        """Return the memory after an operation (its number), or at a time of the journal.

        InputError for a wrong number or a time without zone; JournalError if a compaction dropped that part.
        """
        return past(self._records(), at, self.schema, self._count)

    def diff(self, before: int | datetime, after: int | datetime) -> list[Change]:
        """Return the changes between two moments (as in ``as_of``): deletions first, then writes."""
        records = self._records()
        first, second = (past(records, at, self.schema, self._count) for at in (before, after))
        return diff(tuple(first), tuple(second))

    def receipts(self) -> list[Receipt]:
        """Return the receipts of all forgotten entries."""
        return receipts(self._records())

    def rebuilt(self) -> JournalMemory:
        """Return a separate memory rebuilt from the whole log."""
        memory = JournalMemory(self.schema, self._count)
        memory.replay(self._records())
        return memory

    def keyed(self, text: str) -> str:
        """Return a text with each SHA-256 digest replaced by its keyed form in this namespace's log (``Origin``).

        To find the events of a prompt, compare ``origin.prompt_hash`` with ``keyed(hash_prompt(ids))``. This does not work for
        events before the last ``forget``, which makes a new secret.
        """
        with self._log.reading():
            self._follow()
            return _keyed(text, self._log.database.secret(self._ns or ""))

    def _records(self) -> list[Record]:
        with self._log.reading():
            self._follow()
            return self._log.stretch(self._ns) if self._ns else []

    def undo(self, seq: int, origin: Origin) -> Change:
        """Revert one operation by its number (an undo can be undone too); logged as a new operation.

        InputError if there is no such operation or it cannot be undone; ForgottenError if its content, or the content before, was
        forgotten; JournalError if its entry was written since, or another entry now holds the text to restore.
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
        """Erase an entry for good from log, memory, all files and backups; keep a receipt. InputError if nothing of it is left.

        JournalError if the files could not be scrubbed now (it is erased from the log; the next opening scrubs them;
        JournalBusyError: readers keep old files in use), or if a backup could not be changed (it is erased from the store only).
        """
        said: list[tuple[set[str], tuple[Entry, ...]]] = []  # texts of the entry and live entries, as in the store itself

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
            self._reset()  # the change list still holds the erased content

    def _erase(self, entry_id: str, texts: Collection[str], live: Iterable[Entry]) -> Receipt | None:
        """Erase in this log only (inside ``writing``); in a copy, ``texts`` and ``live`` come from the store itself."""
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
        """Replace the log so far by the entries it led to; return the number of dropped records.

        Lost: history, ``as_of``, ``undo``, origins before this point. Kept: entries, their ids and numbers, receipts, chain.
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
    return {text for record in records if record.entry == entry_id for text in record.data().texts}


def forget_namespace(log: Log, name: Namespace) -> Receipt:
    """Drop a namespace's chain and names, in the copies too (``Journal.forget``)."""
    return _forget_everywhere(log, lambda log: _drop(log, name), Receipt("", log.clock(), 0), no_namespace(name))


def no_namespace(name: Namespace) -> InputError:
    """Return the error for an unknown namespace."""
    return InputError(
        f"no namespace {name}",
        expected="a namespace of this store",
        fix="memalpha journal namespaces STORE lists them; in Python, Journal.namespaces()",
    )


def _drop(log: Log, name: Namespace) -> Receipt | None:
    """Drop a namespace from this log only; inside ``writing``."""
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
    """Erase in every copy, then in the store, then scrub the files; ``nothing`` is the receipt if only a copy held it."""
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
    """Erase in every copy of a store; inside ``writing``, before the store itself, so that a killed process can repeat it.

    Returns paths of copies that held it, paths of missing copies (no longer tracked), and why others failed.
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
