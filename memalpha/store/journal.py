"""The durable store: an append-only log of operations is the truth, and memories and indexes are made from it.

    journal = Journal.open("memories.db")                          # or postgresql://user@host/database
    durable = journal.memory(Namespace("marta"), MemorySchema.load("facts"))
    durable.apply(Operation(OperationKind.INSERT, "facts", "Marta lives in Oslo"), Origin("me"))   # on disk when this returns
    durable.memory, durable.history("1"), durable.as_of(1), durable.undo(1, Origin("me")), durable.forget("1")

What always holds: a write is on disk before it is acknowledged, and all of it or nothing; no call touches a memory without its
namespace, and nothing of one reaches another; a record that was edited, moved or lost is found before anything is answered from it;
what was forgotten does not come back, not by undo, history, import or a backup. ``docs/store.md`` says how, and what it does not
cover. The parts are in ``memalpha.store``; ``memalpha.store.indexed`` adds the retriever.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

from memalpha.errors import InputError, JournalDamagedError, JournalError, MemAlphaError
from memalpha.memory.memory import count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store.durable import DurableMemory
from memalpha.store.exchange import export_to, import_from, new_file, no_namespace
from memalpha.store.forgetting import finish_scrub, forget_namespace, receipt_of
from memalpha.store.in_memory import IN_MEMORY, InMemoryBackend
from memalpha.store.log import Log
from memalpha.store.records import Event, Namespace, Origin, Receipt, hash_prompt
from memalpha.store.sql import SqlBackend
from memalpha.store.sqlite import SqliteBackend
from memalpha.store.verify import Report, schema_of, verify

__all__ = ["DurableMemory", "Event", "Journal", "Namespace", "Origin", "Receipt", "Report", "hash_prompt"]

_LONGEST_WAIT = 1_000_000  # seconds; what SQLite can count in milliseconds


class Journal:
    """A store of memories; made by ``Journal.open``. May be used from several threads, and by several processes at once.

    Args:
        log: Its log.
    """

    def __init__(self, log: Log) -> None:
        self._log = log
        finish_scrub(log)

    @classmethod
    def open(cls, url: str | Path, *, key: bytes | None = None, wait: float = 30.0, renew_witness: bool = False) -> Journal:
        """Open a store, or make it.

        Args:
            url: Path of a SQLite file (or ``sqlite:///path``), ``postgresql://...``, or ``:memory:`` for a store that is gone with
                the process.
            key: Keys the hashes (HMAC-SHA256): without it nobody can rewrite the log unseen. Always the same for one store.
            wait: Seconds to wait for another process's write, at most a million.
            renew_witness: For a copy of a SQLite file without its ``.witness``: take it for what it is.

        Raises:
            InputError: If the address is none, the key is empty, or the wait is no such number.
            JournalDamagedError: If it is not what was written, or has lost acknowledged writes.
            JournalBusyError: If another process did not finish writing in time.
            MissingExtraError: For PostgreSQL without psycopg.
        """
        if not isinstance(url, str | Path):
            raise InputError(f"a store at {url!r}", expected="a path or a URL")
        if key is not None and not isinstance(key, bytes):
            raise InputError(f"a key of type {type(key).__name__}", expected="bytes", fix="Path(FILE).read_bytes().strip()")
        if key == b"":
            raise InputError("an empty key, which keys nothing", expected="bytes, or None for a store without a key")
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= _LONGEST_WAIT:
            raise InputError(f"a wait of {wait!r} s", expected=f"seconds, 0 to {_LONGEST_WAIT:,}")
        return cls(Log(lambda: _connect(str(url), wait, renew_witness), key))

    def __enter__(self) -> Journal:
        """Return itself; it is closed at the end of the block."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Close the store; nothing is lost by not doing so."""
        self._log.backend.close()

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
            JournalDamagedError: If its schema was lost: its records were salvaged.
        """
        with self._log.reading():
            begun = self._log.begun.get(namespace)
        if begun is None:
            raise no_namespace(namespace)
        if begun.shape is None:
            raise JournalDamagedError(
                f"the schema of {namespace} was lost before its records were salvaged",
                fix="in Python, Journal.memory(namespace, schema) with the schema it had",
            )
        return schema_of(begun.shape)

    def forget(self, namespace: Namespace) -> Receipt:
        """Erase a namespace for good, its names included, here and in all backups; keep a receipt.

        Raises:
            InputError: If there is no such namespace, here or in a backup.
            JournalBusyError: If readers keep old files in use: forgotten, erased from the files at the next opening.
            JournalError: If a backup could not be reached.
        """
        receipt, copies = forget_namespace(self._log, namespace)
        copies.check()
        if receipt is None and not copies.erased:
            raise no_namespace(namespace)
        found = receipt or Receipt("", self._log.clock(), 0)
        return Receipt(found.entry, found.time, found.operations, (), copies.erased, copies.missing)

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
        backend = self._log.backend
        if not isinstance(backend, SqliteBackend):
            raise JournalError(f"{backend.url} makes no backups of its own", fix="pg_dump, or export")
        target = new_file(path).resolve()
        with self._log.lock, backend.alone():  # no forgetting between the note and the copy
            with self._log.writing():
                backend.note_backup(str(target), there=True)
            try:
                backend.copy_to(target)
            except BaseException:
                with suppress(MemAlphaError), self._log.writing():  # if even that fails, it is called missing one day
                    backend.note_backup(str(target), there=target.exists())
                raise


def _connect(url: str, wait: float, renew_witness: bool) -> SqlBackend:
    if url == IN_MEMORY:
        return InMemoryBackend()
    try:
        parts = urlsplit(url)
        scheme, _ = parts.scheme, parts.port
    except ValueError as error:  # says neither address nor error: both may hold the password
        raise InputError(
            f"a store at {url.split('://')[0]}://..., which is no address",
            expected="postgresql://user:password@host:port/database, the port a number",
        ) from error
    if scheme in ("postgresql", "postgres"):
        from memalpha.store.postgres import PostgresBackend

        return PostgresBackend(url, wait=wait)
    if scheme not in ("", "sqlite", "file"):
        raise InputError(f"a store at {url!r}", expected="a path, sqlite:///path, postgresql://user@host/database or :memory:")
    path = url.split("://", 1)[1].removeprefix("/") if scheme == "sqlite" else url
    return SqliteBackend(Path(path), wait=wait, renew_witness=renew_witness)
