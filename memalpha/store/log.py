"""The log as one process sees it: database, key, lock, registry of namespaces, and a clock that never goes back.

All records are read through ``stretch``, which checks the chain and raises on damage. Safe for threads (one at a time) and across
``fork`` (the child opens the store again).
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memalpha.errors import JournalDamagedError, JournalError
from memalpha.store.database import Database
from memalpha.store.records import REGISTRY, Head, Kind, Namespace, Record, check, root, seal, stamp, to_body

_LOG = logging.getLogger(__name__)


class Begun(NamedTuple):
    """Registry data of a namespace: chain id, schema shape, position and time of registration."""

    ns: str
    shape: Any
    seq: int
    time: str


class Log:
    """The log; ``connect`` opens the database (again after a fork), ``key`` keys the hashes."""

    def __init__(self, connect: Callable[[], Database], key: bytes | None = None) -> None:
        self.connect, self.key = connect, key
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.lock = threading.RLock()
        self.database = connect()
        self._of_parents: list[Database] = []  # closing them in a forked child would disturb the parent
        self._pid = os.getpid()
        self._writer = False
        self.forget_registry()

    def forget_registry(self) -> None:
        """Read the registry again at the next use."""
        self.registry_head = root(REGISTRY)
        self.registry_time = ""
        self.begun: dict[Namespace, Begun] = {}
        self.forgotten: dict[str, Record] = {}

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock and read one snapshot, with a current registry."""
        self._follow_fork()
        with self.lock, self.database.reading():
            self._follow_registry()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock and be the only writer; changes are on disk after the block. JournalError if nested or not written."""
        self._follow_fork()
        with self.lock:
            if self._writer:
                raise JournalError("a write inside a write of the same journal", fix="finish the first block before the next")
            self._writer = True
            try:
                with self.database.writing():
                    self._follow_registry()
                    yield
            except BaseException:
                self.forget_registry()
                raise
            finally:
                self._writer = False

    def _follow_fork(self) -> None:
        if os.getpid() != self._pid:
            self.lock, self._pid, self._writer = threading.RLock(), os.getpid(), False
            self._of_parents.append(self.database)
            self.database = self.connect()

    def scrub(self, strict: bool = True) -> None:
        """Remove all erased data from the files; if not ``strict``, only if an earlier try failed, and warn if it fails again."""
        with self.lock:
            try:
                if strict or self.database.to_scrub():
                    self.database.scrub()
            except JournalDamagedError:
                raise
            except JournalError as error:
                if strict:
                    raise
                _LOG.warning("%s", error)

    def stretch(self, ns: str, before: Head | None = None) -> list[Record]:
        """Return the checked records of a chain, all or those after ``before``; JournalDamagedError if the chain is broken."""
        head = self.database.head(ns)
        records = self.database.rows(ns, before.seq if before else 0)
        if faults := check(ns, records, before, head, self.key):
            name = next((str(name) for name, begun in self.begun.items() if begun.ns == ns), ns or "(registry)")
            raise JournalDamagedError(
                f"{self.database.url}, namespace {name}: {'; '.join(faults[:5])}",
                fix="bring a backup back; journal.verify() lists everything",
            )
        return records

    def _follow_registry(self) -> None:
        head = self.database.head(REGISTRY)
        if head == self.registry_head:
            return
        if head.seq <= self.registry_head.seq:
            raise JournalDamagedError(
                f"{self.database.url}: the registry of namespaces lost what it held", fix="bring a backup back"
            )
        before = self.registry_head if self.registry_head.seq else None
        for record in self.stretch(REGISTRY, before):
            if record.kind == Kind.FORGET:
                self.forgotten[record.entry] = record
                self.begun = {name: begun for name, begun in self.begun.items() if begun.ns != record.entry}
            elif record.body is not None:
                found = record.registered()
                name = Namespace(found.user, found.agent, found.session)
                self.begun[name] = Begun(record.entry, found.shape, record.seq, record.time)
            self.registry_head, self.registry_time = record.head, record.time

    def now(self, after: str) -> tuple[str, str]:
        """Return the time of the next record, not before ``after``, and the clock's time if that is earlier (else empty)."""
        clock = stamp(self.clock())
        return (after, clock) if clock < after else (clock, "")

    def register(self, name: Namespace, ns: str, shape: Any, time: str) -> None:
        """Begin a namespace; inside ``writing``."""
        body = to_body({"user": name.user, "agent": name.agent, "session": name.session, "schema": shape})
        self._append_registry(seal(self.registry_head, self.key, ns=REGISTRY, kind=Kind.BEGIN, time=time, entry=ns, body=body))

    def unregister(self, ns: str, note: str) -> Record:
        """Add the receipt of a forgotten namespace to the registry; inside ``writing``."""
        time = self.now(self.registry_time)[0]
        record = seal(self.registry_head, self.key, ns=REGISTRY, kind=Kind.FORGET, time=time, entry=ns, gone=True, note=note)
        self._append_registry(record)
        return record

    def _append_registry(self, record: Record) -> None:
        self.database.append([record])
        self._follow_registry()
