"""Where the log is kept: a SQLite file, a PostgreSQL database, or process memory. SQLAlchemy Core writes the SQL.

Tables: ``log`` (the records), ``heads`` (last record of each chain), ``state`` (format; whether files still need scrubbing),
``backups`` (paths of copies), ``secrets`` (per-namespace key for stored digests). One transaction changes them together. SQLite:
write-ahead log, ``synchronous=FULL``, ``secure_delete``. A lock file (``X.lock``) allows one writer among all processes; readers
never wait for a writer. The folder must be on a local file system, because network file locks are not reliable. PostgreSQL: one
writer by an advisory lock; readers use ``REPEATABLE READ``. Not covered: the server's own write-ahead log, replicas and dumps keep
erased bytes until the server recycles them.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import sqlalchemy as sa
from filelock import FileLock, Timeout
from sqlalchemy import BigInteger, Column, Integer, Table, Text, delete, insert, select, update
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.schema import CreateTable

from memalpha.errors import InputError, JournalBusyError, JournalDamagedError, JournalError, MissingExtraError
from memalpha.files import flush
from memalpha.store.records import REGISTRY, Head, Record, root

IN_MEMORY = ":memory:"
"""The address of a store in process memory."""
FORMAT = 1
APPLICATION_ID = 0x4D454D41  # "MEMA"
_MAGIC = b"SQLite format 3\x00"
_POLL = 0.005  # seconds between two tries for the lock
_POSTGRES_LOCK = 0x6D656D616C706861  # advisory lock id of this application
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
_RIGHTS = "check the rights of the files and of their folder"
_RESCUE = "bring a backup back"


def _needed(name: str, kind: Any) -> Column[Any]:
    return Column(name, kind, nullable=False)


_METADATA = sa.MetaData()
LOG = Table(
    "log", _METADATA,
    Column("ns", Text, primary_key=True), Column("seq", BigInteger, primary_key=True, autoincrement=False),
    _needed("kind", Text), _needed("entry", Text), _needed("gone", Integer), _needed("time", Text), _needed("note", Text),
    _needed("commitment", Text), _needed("previous", Text), _needed("hash", Text), Column("salt", Text), Column("body", Text),
)  # fmt: skip
HEADS = Table("heads", _METADATA, Column("ns", Text, primary_key=True), _needed("seq", BigInteger), _needed("hash", Text))
STATE = Table(
    "state", _METADATA, Column("one", Integer, primary_key=True, autoincrement=False), _needed("format", Integer),
    _needed("commits", BigInteger), _needed("mix", Text), _needed("scrub", Integer),
)  # fmt: skip
BACKUPS = Table("backups", _METADATA, Column("path", Text, primary_key=True))
SECRETS = Table("secrets", _METADATA, Column("ns", Text, primary_key=True), _needed("secret", Text))


def connect(url: str, wait: float = 30.0) -> Database:
    """Open or create the database at an address (see ``Journal.open``)."""
    if url == IN_MEMORY:
        return Sqlite(None, wait)
    try:
        parts = urlsplit(url)
        scheme, _ = parts.scheme, parts.port
    except ValueError as error:  # the message omits address and cause: both may hold the password
        raise InputError(
            f"a store at {url.split('://')[0]}://..., which is no address",
            expected="postgresql://user:password@host:port/database, the port a number",
        ) from error
    if scheme in ("postgresql", "postgres"):
        return Postgres(url, wait)
    if scheme not in ("", "sqlite"):
        raise InputError(f"a store at {url!r}", expected="a path, sqlite:///path, postgresql://user@host/database or :memory:")
    return Sqlite(Path(url.split("://", 1)[1].removeprefix("/") if scheme == "sqlite" else url), wait)


class Database(ABC):
    """A log in a database; one connection, used by one thread at a time; ``url`` holds no password, ``path`` is for SQLite only."""

    path: Path | None = None
    _read: str = "BEGIN"
    _write: tuple[str, ...] = ("BEGIN IMMEDIATE",)

    def __init__(self, dialect: str, url: str, wait: float) -> None:
        self.url, self.wait = url, wait
        self._closed = False
        self._connection: sa.Connection | None = None
        # This class begins and commits transactions itself; the driver must not.
        self._engine = sa.create_engine(
            dialect, creator=self._new, poolclass=sa.StaticPool, isolation_level="AUTOCOMMIT", hide_parameters=True
        )

    @abstractmethod
    def _new(self) -> Any:
        """Return a new driver connection."""

    @abstractmethod
    def _rewrite(self) -> None:
        """Rewrite all files without the erased data."""

    def alone(self) -> AbstractContextManager[Any]:
        """Keep every other writer out; may be nested."""
        return nullcontext()

    def _prepare(self) -> None:
        with self.writing():
            for table in _METADATA.sorted_tables:
                self.execute(CreateTable(table, if_not_exists=True))
            if not self.execute(select(STATE.c.one)):
                self.execute(insert(STATE), [{"one": 1, "format": FORMAT, "commits": 0, "mix": "", "scrub": 0}])
        if self.execute(select(STATE.c.format)) != [(FORMAT,)] or (
            self.execute(select(LOG.c.ns).limit(1)) and not self.head(REGISTRY).seq
        ):
            raise JournalDamagedError(f"{self.url} has lost its registry of namespaces, or is of another format", fix=_RESCUE)

    def close(self) -> None:
        """Close the connections."""
        self._closed = True
        self._engine.dispose()

    def execute(self, statement: sa.Executable | str, rows: Sequence[Mapping[str, Any]] = ()) -> list[Any]:
        """Run one statement, once or for each row of arguments; return all result rows."""
        with self._session() as connection:
            try:
                result = connection.execute(sa.text(statement) if isinstance(statement, str) else statement, list(rows) or None)
                return list(result) if result.returns_rows else []
            except DBAPIError as error:
                raise self._error(error) from error
            except UnicodeError as error:
                raise JournalDamagedError(f"{self.url} holds bytes that are no text: {error}", fix=_RESCUE) from error

    @contextmanager
    def _session(self) -> Iterator[sa.Connection]:
        """Give the connection; after the outermost block, uncommitted changes are rolled back."""
        if self._connection is not None:
            yield self._connection
            return
        if self._closed:
            raise JournalError(f"{self.url} was closed", fix="open the journal again")
        try:
            connection = self._connection = self._engine.connect()
        except DBAPIError as error:
            raise self._error(error) from error
        try:
            yield connection
        finally:
            self._connection = None
            with suppress(DBAPIError):
                connection.close()

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one consistent snapshot inside the block."""
        if self._connection is not None:
            yield
            return
        with self._session():
            self.execute(self._read)
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; changes are on disk after the block, or undone if it raised. JournalBusyError after ``wait`` s."""
        with self.alone(), self._session():
            for statement in self._write:
                self.execute(statement)
            yield
            self.execute("COMMIT")

    def _error(self, error: DBAPIError) -> JournalError:
        """Translate a driver error."""
        cause = error.orig
        code, state = getattr(cause, "sqlite_errorcode", 0) & 0xFF, getattr(cause, "sqlstate", None) or ""
        said = str(cause).strip()
        if code in _BUSY or state == "55P03":
            return JournalBusyError(f"{self.url} is being written by another for more than {self.wait} s", fix="try again")
        if code in _NO_ROOM or state.startswith("53"):
            return JournalError(
                f"{self.url} could not be read or written ({said})",
                fix="make room on the disk, or check it; nothing of this write was kept, what was acknowledged before is safe",
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return JournalError(f"{self.url} cannot be opened for writing ({said})", fix=_RIGHTS)
        if isinstance(cause, sqlite3.Error) or state in ("XX001", "XX002"):
            return JournalDamagedError(f"{self.url} is damaged ({said})", fix=_RESCUE)
        if isinstance(error, OperationalError):
            return JournalError(
                f"{self.url} cannot be reached ({said}); what was not acknowledged may or may not be there",
                fix="check server and address; the next call connects again",
            )
        return JournalError(f"{self.url}: {said}")

    def rows(self, ns: str, after: int = 0) -> list[Record]:
        """Return a chain's records in order, those after number ``after``."""
        return [Record(*row) for row in self.execute(select(LOG).where(LOG.c.ns == ns, LOG.c.seq > after).order_by(LOG.c.seq))]

    def head(self, ns: str) -> Head:
        """Return the last record of a chain; number 0 if it has none."""
        found = self.execute(select(HEADS.c.seq, HEADS.c.hash).where(HEADS.c.ns == ns))
        return Head(*found[0]) if found else root(ns)

    def heads(self) -> dict[str, Head]:
        """Return the last record of every chain."""
        return {str(ns): Head(seq, hash_) for ns, seq, hash_ in self.execute(select(HEADS))}

    def secret(self, ns: str) -> str:
        """Return the secret of a namespace (hex); empty if it has none yet."""
        found = self.execute(select(SECRETS.c.secret).where(SECRETS.c.ns == ns))
        return str(found[0][0]) if found else ""

    def chains(self) -> set[str]:
        """Return the ids of all chains that have records."""
        return {str(ns) for (ns,) in self.execute(select(LOG.c.ns).distinct())}

    def integrity(self) -> list[str]:
        """Return the faults that the database finds in its own files; PostgreSQL leaves this to the server."""
        return []

    # Writing: call these inside ``writing``.
    def append(self, records: Sequence[Record]) -> None:
        """Add records at the end of one chain."""
        self.execute(insert(LOG), [{name: getattr(record, name) for name in Record.__slots__} for record in records])
        self._move(records[-1].ns, records[-1].head)

    def erase(self, ns: str, numbers: Iterable[int]) -> None:
        """Erase body and salt of some records."""
        row = update(LOG).where(LOG.c.ns == sa.bindparam("chain"), LOG.c.seq == sa.bindparam("number"))
        self.execute(row.values(body=None, salt=None), [{"chain": ns, "number": number} for number in numbers])
        self._mark_scrub()

    def drop_before(self, ns: str, seq: int) -> None:
        """Drop the records before one number."""
        self.execute(delete(LOG).where(LOG.c.ns == ns, LOG.c.seq < seq))
        self._mark_scrub()

    def drop(self, ns: str) -> None:
        """Drop a chain and its secret."""
        self.execute(delete(LOG).where(LOG.c.ns == ns))
        self.execute(delete(SECRETS).where(SECRETS.c.ns == ns))
        self._move(ns, None)
        self._mark_scrub()

    def new_secret(self, ns: str) -> str:
        """Make a new secret for a namespace; ``scrub`` then removes the old one from the files."""
        if self.secret(ns):
            self.execute(delete(SECRETS).where(SECRETS.c.ns == ns))
            self._mark_scrub()
        self.execute(insert(SECRETS), [{"ns": ns, "secret": (made := secrets.token_hex(32))}])
        return made

    def _move(self, ns: str, to: Head | None) -> None:
        self.execute(delete(HEADS).where(HEADS.c.ns == ns))
        if to is not None:
            self.execute(insert(HEADS), [{"ns": ns, "seq": to.seq, "hash": to.hash}])

    def _mark_scrub(self) -> None:
        self.execute(update(STATE).values(scrub=1))

    def to_scrub(self) -> bool:
        """Whether erased or dropped data may still be in the files."""
        return bool(self.execute(select(STATE.c.scrub))[0][0])

    def scrub(self) -> None:
        """Remove all erased data from the database files.

        JournalError if that fails now (JournalBusyError: readers keep old files in use); the next opening tries again.
        """
        try:
            with self.alone():  # nobody may erase more before the mark is reset
                self._rewrite()
                with self.writing():
                    self.execute(update(STATE).values(scrub=0))
        except JournalDamagedError:
            raise
        except JournalError as error:
            raise type(error)(
                f"{self.url}: erased from the log, but old bytes are still in the files: {error.what}",
                fix="make room on the disk and close other readers; the next opening of the store erases them",
            ) from error

    def backups(self) -> list[str]:
        """Return the paths of all copies, without this file itself (if it has replaced a copy)."""
        return [path for (path,) in self.execute(select(BACKUPS).order_by(BACKUPS.c.path)) if Path(path) != self.path]

    def note_backup(self, path: str, there: bool) -> None:
        """Note that a copy was written to a path, or delete that note."""
        self.execute(delete(BACKUPS).where(BACKUPS.c.path == path))
        if there:
            self.execute(insert(BACKUPS), [{"path": path}])


class Sqlite(Database):
    """A log in one file (created with mode 600), or for ``path`` None in process memory (no backups; a forked child starts empty).

    JournalDamagedError if the file is damaged or no journal, InputError for a wrong path, JournalError if rights are missing.
    """

    def __init__(self, path: Path | None, wait: float = 30.0) -> None:
        url = IN_MEMORY if path is None else str(path)
        super().__init__("sqlite://", url, wait)
        if path is None:
            self._prepare()
            return
        try:
            self.path = path.resolve()
            lock = Path(f"{self.path}.lock")
            if not lock.exists() and self.path.exists():
                # No lock file: this process has no connection to the file yet, so closing it here releases no SQLite lock.
                with self.path.open("rb") as file:
                    if file.read(len(_MAGIC)) not in (b"", _MAGIC):
                        raise JournalDamagedError(f"{url} is no store, nor a SQLite file", fix="name another file")
            with suppress(FileExistsError):
                os.close(os.open(self.path, os.O_CREAT | os.O_EXCL, 0o600))
                flush(self.path.parent)
        except PermissionError as error:
            raise JournalError(f"{url} cannot be used: {error}", fix=_RIGHTS) from error
        except (OSError, ValueError) as error:
            raise InputError(f"a store at {url!r}: {error}", expected="the name of a file in a folder that exists") from error
        self._lock = FileLock(lock, timeout=wait, poll_interval=_POLL, thread_local=False)
        self._file = _identity(self.path)
        with self.alone():
            self._prepare()

    def _new(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path or IN_MEMORY, timeout=self.wait, isolation_level=None, check_same_thread=False)
        try:
            if not connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall():
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
                raise JournalDamagedError(f"{self.url} is a SQLite database but no journal of memalpha", fix="name another file")
            for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY"):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()
            raise
        return connection

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of all processes; JournalDamagedError if the file was removed or replaced since it was opened."""
        with self.alone():
            if self.path and (there := _identity(self.path)) != self._file:
                raise JournalDamagedError(
                    f"{self.url} was {'replaced by another file' if there else 'removed'} while it was in use; nothing was written",
                    expected="the file this process opened",
                    fix="bring it or a backup back, and open the journal again",
                )
            with super().writing():
                yield

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the write lock of all processes; may be nested. JournalBusyError after ``wait`` seconds."""
        if self.path is None:
            yield
            return
        try:
            self._lock.acquire()
        except Timeout as error:
            raise JournalBusyError(
                f"{self.url} is being written by another process for more than {self.wait} s",
                fix="try again, wait longer (wait=...), or find who holds it",
            ) from error
        except OSError as error:
            raise JournalError(f"{self.url}.lock cannot be used: {error}", fix=_RIGHTS) from error
        try:
            yield
        finally:
            self._lock.release()

    def _rewrite(self) -> None:
        self._empty_wal()
        self.execute("VACUUM")
        self._empty_wal()

    def _empty_wal(self) -> None:
        if self.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:  # waits for readers first
            raise JournalBusyError(f"{self.url}: readers keep the old write-ahead file in use")

    def integrity(self) -> list[str]:
        """Return what SQLite's own check finds."""
        try:
            with self.alone():
                return [str(line) for (line,) in self.execute("PRAGMA integrity_check") if line != "ok"]
        except JournalDamagedError as error:
            return [str(error)]

    def copy_to(self, path: Path) -> None:
        """Write a complete copy to a new file, renamed when complete; its list of copies is empty. JournalError if it fails."""
        draft = unfinished(path)
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            self.execute(sa.text("VACUUM INTO :path").bindparams(path=str(draft)))
            with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
                copy.execute("DELETE FROM backups")
            flush(draft)
            draft.rename(path)
            flush(path.parent)
        except BaseException as error:
            drop_unfinished(path)
            if isinstance(error, sqlite3.Error | OSError | JournalError):
                raise JournalError(
                    f"the copy {path} of {self.url} could not be made: {error}",
                    fix="make room, check the rights, or name another place",
                ) from error
            raise


class Postgres(Database):
    """A log at ``postgresql://user:password@host:port/database``. JournalError if unreachable; MissingExtraError: no psycopg."""

    _read = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
    _write = ("BEGIN", f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK})")

    def __init__(self, url: str, wait: float = 30.0) -> None:
        parts = urlsplit(url)
        self._address = url
        try:
            super().__init__(
                "postgresql+psycopg://", f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 5432}{parts.path}", wait
            )
        except ImportError as error:
            raise MissingExtraError("psycopg", "postgres") from error
        self._prepare()

    def _new(self) -> Any:
        import psycopg

        connection = psycopg.connect(self._address, autocommit=True, connect_timeout=max(2, int(self.wait)))
        connection.execute("SET synchronous_commit TO on")
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{max(1, int(self.wait * 1000))}ms",))
        return connection

    def _rewrite(self) -> None:
        for table in _METADATA.sorted_tables:
            self.execute(f"VACUUM FULL {table.name}")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None if there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino


def unfinished(path: Path) -> Path:
    """Return the temporary name of a copy in progress."""
    return path.with_name(path.name + ".part")


def drop_unfinished(path: Path) -> None:
    """Delete the remains of an interrupted copy."""
    for suffix in ("", "-journal"):
        Path(f"{unfinished(path)}{suffix}").unlink(missing_ok=True)
