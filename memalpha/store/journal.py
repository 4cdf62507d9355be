"""The durable store: memories and indexes are built from an append-only log of operations.

    journal = Journal.open("memories.db")                          # or postgresql://user@host/database
    durable = journal.memory(Namespace("marta"), MemorySchema.load("facts"))
    durable.apply(Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo"), Origin("me"))   # on disk when this returns
    durable.memory, durable.history("1"), durable.as_of(1), durable.undo(1, Origin("me")), durable.forget("1")

What always holds: a write is on disk, completely, before it is acknowledged; namespaces are isolated; an edited, moved or lost
record is detected before use; forgotten content does not return by undo, history, import or backup. Limits: ``docs/store.md``.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType

from memalpha.errors import InputError, JournalError, MemAlphaError
from memalpha.memory.memory import count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store.database import IN_MEMORY, Sqlite, connect
from memalpha.store.durable import DurableMemory, forget_namespace, no_namespace
from memalpha.store.exchange import export_to, import_from, new_file
from memalpha.store.log import Log
from memalpha.store.memory import receipt_of, schema_of
from memalpha.store.records import Event, Namespace, Origin, Receipt, hash_prompt
from memalpha.store.verify import Report, verify

__all__ = ["IN_MEMORY", "DurableMemory", "Event", "Journal", "Namespace", "Origin", "Receipt", "Report", "hash_prompt"]

_LONGEST_WAIT = 1_000_000  # seconds; SQLite's limit in milliseconds


class Journal:
    """A store of memories; made by ``Journal.open``. Safe for several threads and processes."""

    def __init__(self, log: Log) -> None:
        self._log = log
        log.scrub(strict=False)  # finish an interrupted erasure

    @classmethod
    def open(cls, url: str | Path, *, key: bytes | None = None, wait: float = 30.0) -> Journal:
        """Open or create a store.

        InputError for a wrong argument; JournalDamagedError if the store is damaged; JournalBusyError if another process did not
        finish writing in time; MissingExtraError for PostgreSQL without psycopg.

        Args:
            url: Path of a SQLite file (or ``sqlite:///path``), ``postgresql://...``, or ``:memory:``.
            key: Key of the hashes (HMAC-SHA256), always the same for one store; without it nobody can rewrite the log unnoticed.
            wait: Seconds to wait for another process's write, at most a million.
        """
        if not isinstance(url, str | Path):
            raise InputError(f"a store at {url!r}", expected="a path or a URL")
        if key is not None and (not isinstance(key, bytes) or not key):
            what = "an empty key" if key == b"" else f"a key of type {type(key).__name__}"
            raise InputError(what, expected="bytes, or None for a store without a key", fix="Path(FILE).read_bytes().strip()")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= _LONGEST_WAIT:
            raise InputError(f"a wait of {wait!r} s", expected=f"seconds, 0 to {_LONGEST_WAIT:,}")
        return cls(Log(lambda: connect(str(url), wait), key))

    def __enter__(self) -> Journal:
        """Return the store; it is closed at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the store; optional, all acknowledged writes are on disk already."""
        self._log.database.close()

    def memory(self, namespace: Namespace, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> DurableMemory:
        """Return the memory of a namespace, empty if it is new; the sections of ``schema`` must match the recorded ones."""
        return DurableMemory(self._log, namespace, schema, count_tokens)

    def namespaces(self) -> tuple[Namespace, ...]:
        """Return all existing namespaces of all users; for administrators."""
        with self._log.reading():
            return tuple(self._log.begun)

    def schema(self, namespace: Namespace) -> MemorySchema:
        """Return a schema with the recorded sections and no limits; InputError if the namespace does not exist."""
        with self._log.reading():
            begun = self._log.begun.get(namespace)
        if begun is None:
            raise no_namespace(namespace)
        return schema_of(begun.shape)

    def forget(self, namespace: Namespace) -> Receipt:
        """Erase a namespace and its names for good, here and in all backups; keep a receipt. Raises as ``DurableMemory.forget``."""
        return forget_namespace(self._log, namespace)

    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of all forgotten namespaces."""
        with self._log.reading():
            return tuple(receipt_of(record) for record in self._log.forgotten.values())

    def verify(self) -> Report:
        """Check the whole store; faults are in the report, nothing is raised."""
        return verify(self._log)

    def export(self, path: str | Path, namespace: Namespace | None = None) -> int:
        """Write a namespace, or everything, to a new JSON Lines file; return the number of records (``store.exchange``)."""
        return export_to(self._log, Path(path), namespace)

    def import_(self, path: str | Path) -> int:
        """Import what ``export`` wrote, all or nothing; return the number of records (``store.exchange``)."""
        return import_from(self._log, Path(path))

    def backup(self, path: str | Path) -> None:
        """Write a complete copy of a SQLite store to a new file; ``forget`` changes it too while it stays at that path.

        InputError if the file exists or its folder does not; JournalError if it could not be written, or the store is not SQLite.
        """
        database = self._log.database
        if not isinstance(database, Sqlite) or database.path is None:
            raise JournalError(f"{database.url} makes no backups of its own", fix="pg_dump, or export")
        target = new_file(path).resolve()
        with self._log.lock, database.alone():  # no forgetting between note and copy
            with self._log.writing():
                database.note_backup(str(target), there=True)
            try:
                database.copy_to(target)
            except BaseException:
                with suppress(MemAlphaError), self._log.writing():  # else the copy is reported as missing later
                    database.note_backup(str(target), there=target.exists())
                raise
