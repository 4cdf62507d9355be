"""The durable store: an append-only log of operations is the truth, and memories and indexes are made from it.

    journal = Journal.open("memories.db")                          # or postgresql://user@host/database
    durable = journal.memory(Namespace("marta"), MemorySchema.load("facts"))
    durable.apply(Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo"), Origin("me"))   # on disk when this returns
    durable.memory, durable.history("1"), durable.as_of(1), durable.undo(1, Origin("me")), durable.forget("1")

What always holds: a write is on disk before it is acknowledged, and all of it or nothing; no call touches a memory without its
namespace, and nothing of one reaches another; a record that was edited, moved or lost is found before anything is answered from it;
what was forgotten does not come back, not by undo, history, import or a backup. ``docs/store.md`` says how, and what it does not
cover.
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

_LONGEST_WAIT = 1_000_000  # seconds; what SQLite can count in milliseconds


class Journal:
    """A store of memories; made by ``Journal.open``. May be used from several threads, and by several processes at once.

    Args:
        log: Its log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        log.scrub(strict=False)  # what a killed or disturbed erasure left to do

    @classmethod
    def open(cls, url: str | Path, *, key: bytes | None = None, wait: float = 30.0) -> Journal:
        """Open a store, or make it.

        Args:
            url: Path of a SQLite file (or ``sqlite:///path``), ``postgresql://...``, or ``:memory:`` for a store that is gone with
                the process.
            key: Keys the hashes (HMAC-SHA256): without it nobody can rewrite the log unseen. Always the same for one store.
            wait: Seconds to wait for another process's write, at most a million.

        Raises:
            InputError: If the address is none, the key is empty, or the wait is no such number.
            JournalDamagedError: If it is not what was written.
            JournalBusyError: If another process did not finish writing in time.
            MissingExtraError: For PostgreSQL without psycopg.
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
        """Return itself; it is closed at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the store; nothing is lost by not doing so."""
        self._log.database.close()

    # -------------------------------------------------------------------------------------------- namespaces
    def memory(self, namespace: Namespace, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> DurableMemory:
        """Return the memory of a namespace, empty if nothing was ever written to it.

        Args:
            namespace: Whose.
            schema: Its sections; a namespace keeps the shape of the schema it was begun with.
            count_tokens: Token counter the limits are measured with.
        """
        return DurableMemory(self._log, namespace, schema, count_tokens)

    def namespaces(self) -> tuple[Namespace, ...]:
        """Return all namespaces that were written to and not forgotten; for who runs the store, not for who uses it."""
        with self._log.reading():
            return tuple(self._log.begun)

    def schema(self, namespace: Namespace) -> MemorySchema:
        """Return a schema to look at a namespace with, where its own is not at hand: the recorded sections without any limit.

        Raises:
            InputError: If there is no such namespace.
            JournalDamagedError: If no schema is recorded.
        """
        with self._log.reading():
            begun = self._log.begun.get(namespace)
        if begun is None:
            raise no_namespace(namespace)
        return schema_of(begun.shape)

    def forget(self, namespace: Namespace) -> Receipt:
        """Erase a namespace for good, its names included, here and in all backups; keep a receipt.

        Raises:
            InputError: If there is no such namespace, here or in a backup.
            JournalError: As ``DurableMemory.forget``.
        """
        return forget_namespace(self._log, namespace)

    def receipts(self) -> tuple[Receipt, ...]:
        """Return the receipts of all namespaces that were forgotten."""
        with self._log.reading():
            return tuple(receipt_of(record) for record in self._log.forgotten.values())

    # -------------------------------------------------------------------------------------------- the store as a whole
    def verify(self) -> Report:
        """Check everything that can be checked; what is wrong is in the report, nothing is raised."""
        return verify(self._log)

    def export(self, path: str | Path, namespace: Namespace | None = None) -> int:
        """Write a namespace, or everything, to a new JSON Lines file; return the number of records (``store.exchange``)."""
        return export_to(self._log, Path(path), namespace)

    def import_(self, path: str | Path) -> int:
        """Take in what ``export`` wrote, all or nothing; return the number of records (``store.exchange``)."""
        return import_from(self._log, Path(path))

    def backup(self, path: str | Path) -> None:
        """Write a complete copy of a SQLite store to a new file, which ``forget`` will reach as long as it stays there.

        Raises:
            InputError: If the file exists, or its folder does not.
            JournalError: If it could not be written (nothing of it is left then), or the store is not SQLite.
        """
        database = self._log.database
        if not isinstance(database, Sqlite) or database.path is None:
            raise JournalError(f"{database.url} makes no backups of its own", fix="pg_dump, or export")
        target = new_file(path).resolve()
        with self._log.lock, database.alone():  # no forgetting between the note and the copy
            with self._log.writing():
                database.note_backup(str(target), there=True)
            try:
                database.copy_to(target)
            except BaseException:
                with suppress(MemAlphaError), self._log.writing():  # if even that fails, it is called missing one day
                    database.note_backup(str(target), there=target.exists())
                raise
