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

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from memalpha.errors import InputError, JournalError
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema, presets
from memalpha.store import records as log
from memalpha.store.chain import Tail
from memalpha.store.database import IN_MEMORY, Database, connect
from memalpha.store.durable import DurableMemory
from memalpha.store.forgetting import SCRUB_WAIT, Scrubber, faults_of_secret
from memalpha.store.history import Event, events_of, replay, schema_of, shape
from memalpha.store.records import (
    REGISTRY,
    Head,
    Namespace,
    Origin,
    Receipt,
    Record,
    RecordKind,
    Registration,
    digest_of,
    hash_prompt,
)
from memalpha.types import TokenCounter

__all__ = [
    "IN_MEMORY",
    "Event",
    "Journal",
    "Namespace",
    "Origin",
    "Receipt",
    "Verification",
    "digest_of",
    "hash_prompt",
]

_LONGEST_WAIT = 1_000_000  # seconds; SQLite's limit in milliseconds


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of ``Journal.verify``. The same ``head``, one hash over all heads, shows later
    that the log was not rewritten.
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


class Journal(AbstractContextManager["Journal"]):
    """A durable store of memories, which ``Journal.open`` makes or opens.

    It is safe for several threads (one at a time) and processes, but not across a fork. Inside of
    ``reading`` and ``writing``, ``registered`` holds the record of each existing namespace, and
    ``forgotten`` the receipts of the erased ones by the id of their chain.

    Args:
        database: The database that holds the log.
        key: The key of the hashes; None for a store without a key.
    """

    def __init__(self, database: Database, key: bytes | None = None) -> None:
        self.database = database
        self.key = key
        self.clock: Callable[[], datetime] = lambda: datetime.now(UTC)
        self.lock = threading.RLock()
        self._scrubber = Scrubber(database, self.lock)
        self._drop_registry()
        with self.lock:
            self._scrubber.scrub(SCRUB_WAIT)  # if an erasure was interrupted

    @classmethod
    def open(cls, url: str | Path, *, key: bytes | None = None, wait: float = 30.0) -> Journal:
        """Open or create a store.

        Args:
            url: The path of a SQLite file (or ``sqlite:///path``), ``postgresql://...``, or
                ``:memory:``.
            key: The key of the hashes, without which nobody can rewrite the log unnoticed; None for
                none.
            wait: Seconds to wait for another writer.

        Returns:
            The store.

        Raises:
            InputError: The address, key or time to wait cannot be used.
            JournalBusyError: Another writer held the store for longer than ``wait``.
            JournalDamagedError: The store is damaged.
        """
        if key is not None and (not isinstance(key, bytes) or not key):
            raise InputError(
                f"the key is of type {type(key).__name__}, or empty",
                expected="bytes that are not empty, or None for a store without a key",
            )
        if not 0 <= wait <= _LONGEST_WAIT:
            raise InputError(
                f"the time to wait is {wait!r} seconds",
                expected=f"a number of seconds from 0 to {_LONGEST_WAIT:,}",
            )
        return cls(connect(str(url), wait), key)

    @property
    def unscrubbed(self) -> bool:
        """Whether erased bytes are still in the files, because a reader uses them."""
        return self._scrubber.pending

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store. This is optional, since all acknowledged writes are on disk already."""
        with self.lock:
            self._scrubber.pending = False
            self.database.close()

    def memory(
        self, namespace: Namespace, schema: MemorySchema, count_tokens: TokenCounter = count_words
    ) -> DurableMemory:
        """Return the memory of a namespace, which is empty if the namespace is new.

        Args:
            namespace: The namespace.
            schema: The schema, whose sections must match the recorded ones.
            count_tokens: The function that counts the tokens of a text for the limits.

        Raises:
            InputError: The namespace has a schema with other sections.
        """
        return DurableMemory(self, namespace, schema, count_tokens)

    def namespaces(self) -> tuple[Namespace, ...]:
        """Return all existing namespaces of all users."""
        with self.reading():
            return tuple(self.registered)

    def schema(self, namespace: Namespace) -> MemorySchema:
        """Return a schema with the recorded sections of a namespace, without limits.

        Args:
            namespace: The namespace.

        Raises:
            InputError: The namespace does not exist.
        """
        with self.reading():
            return schema_of(self.registration(namespace).read(Registration).shape)

    def schema_or(self, new: MemorySchema, namespace: Namespace) -> MemorySchema:
        """Return the schema of a namespace if it exists, and otherwise ``new``.

        A shipped schema with the recorded sections is returned with its limits.

        Args:
            new: The schema of a new namespace.
            namespace: The namespace.
        """
        with self.reading():
            if namespace not in self.registered:
                return new
            recorded = self.schema(namespace)
        shipped = MemorySchema.load(recorded.name) if recorded.name in presets() else recorded
        return shipped if shape(shipped) == shape(recorded) else recorded

    def size(self, namespace: Namespace) -> int:
        """Return the number of operations of a namespace.

        Args:
            namespace: The namespace.

        Raises:
            InputError: The namespace does not exist.
        """
        with self.reading():
            return self.database.head(self.registration(namespace).entry).seq

    def forget(self, namespace: Namespace) -> Receipt:
        """Erase a namespace and its name for good, except for a receipt.

        Args:
            namespace: The namespace.

        Returns:
            The receipt.
        """
        with self.writing():
            ns = self.registration(namespace).entry
            head = self.database.head(ns)
            registry = Tail(self.database, self.key, REGISTRY, "the registry").read_on()
            named = [record for record in registry if record.entry == ns]
            numbers = [record.seq for record in named]
            note = {"operations": head.seq, "head": head.hash, "erased": numbers}
            record = self.register(RecordKind.FORGET, ns, note=json.dumps(note))
            self.database.erase(REGISTRY, [each._replace(body=None, salt=None) for each in named])
            self.database.drop(ns)
            self._drop_registry()
        return Receipt(ns, log.moment_of(record.time), head.seq, scrubbed=not self.unscrubbed)

    # --------------------------------------------------------------------------------------------
    # transactions
    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock, and read one snapshot with a current registry."""
        with self.lock, self.database.reading():
            self._follow_registry()
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock as the only writer; the changes are on disk after the block.

        Raises:
            JournalError: The block is nested in another one, or the changes could not be written.
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
                self._scrubber.scrub(SCRUB_WAIT)

    # --------------------------------------------------------------------------------------------
    # the registry
    def registration(self, namespace: Namespace) -> Record:
        """Return the record of a namespace.

        Args:
            namespace: The namespace.

        Raises:
            InputError: The namespace does not exist.
        """
        if namespace not in self.registered:
            raise InputError(
                f"there is no namespace {namespace}",
                fix="list them with memalpha journal namespaces STORE",
            )
        return self.registered[namespace]

    def now(self) -> str:
        """Return the time of the store's clock, as text."""
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
            self.registered[record.read(Registration).namespace] = record

    def register(self, kind: RecordKind, ns: str, time: str = "", **content: Any) -> Record:
        """Add the beginning or the receipt of a namespace to the registry, inside of ``writing``.

        Args:
            kind: The kind of record.
            ns: The id of the namespace's chain.
            time: The time of the record; an empty text takes the clock's.
            content: The fields of the record.

        Returns:
            The record.
        """
        record = self._registry.seal(kind, ns, time or self.now(), **content)
        self.database.append([record])
        self._note(record)
        return record

    # --------------------------------------------------------------------------------------------
    # verification
    def verify(self) -> Verification:
        """Check the whole store: files, chains, receipts and registry, and that each chain leads to
        a memory.

        Returns:
            The counts, the head and the faults; faults raise nothing.
        """
        operations = erased = 0
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
                    bodies = {each.entry: each.read(Registration) for each in registry if each.body}
                    for ns in sorted(heads.keys() - {REGISTRY}):
                        records = self._verified(ns, bodies.get(ns), faults)
                        operations += records[-1].seq if records else 0
                        erased += sum(len(record.erased) for record in records)
                    gone = {each.entry for each in registry if each.kind == RecordKind.FORGET}
                    listed = {REGISTRY, *(each.entry for each in registry)} - gone
                    chains = self.database.chains() | {REGISTRY}
                    faults += [
                        f"registry, heads and records do not agree on chain {ns}"
                        for ns in sorted((chains ^ listed) | (chains ^ {REGISTRY, *heads}))
                    ]
            except JournalError as error:
                faults.append(str(error))
        namespaces = len(heads.keys() - {REGISTRY})
        return Verification(tuple(faults), namespaces, operations, erased, head)

    def _verified(self, ns: str, body: Registration | None, faults: list[str]) -> list[Record]:
        try:
            records = Tail(self.database, self.key, ns, f"chain {ns or '(registry)'}").read_on()
            if body:
                replay(Memory(schema_of(body.shape)), events_of(records))
                faults += faults_of_secret(self.database, ns, body, records)
            return records
        except (JournalError, InputError) as error:
            faults.append(str(error))
            return []
