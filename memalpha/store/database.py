"""Where the log is kept: a SQLite file, a PostgreSQL database, or process memory. SQLAlchemy Core
writes the SQL.

Tables: ``log`` (the records), ``heads`` (last record of each chain), ``state`` (whether files still
need scrubbing), ``secrets`` (key of a namespace's digests). Readers never wait for a writer. One
writer by SQLite's lock, which network file systems do not keep, or PostgreSQL's advisory lock. Not
covered: a server's own log, replicas and dumps keep erased bytes for a while.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import sqlalchemy as sa
from filelock import FileLock
from sqlalchemy import BigInteger, Column, Integer, Table, Text, delete, insert, select, update
from sqlalchemy.exc import ArgumentError, DBAPIError

from memalpha.credentials import shown_address
from memalpha.errors import (
    InputError,
    JournalBusyError,
    JournalDamagedError,
    JournalError,
    MissingExtraError,
)
from memalpha.files import cache_folder, flush
from memalpha.store.records import REGISTRY, Head, Record, root
from memalpha.types import JsonMapping

IN_MEMORY = ":memory:"  # address of a store in process memory
APPLICATION_ID = 0x4D454D41  # "MEMA"
_PAGE = 8192  # bytes; a third of a page of 4096 would be empty beside a text of 2,000 characters
_POSTGRES_LOCK = 0x6D656D616C706861  # advisory lock id of this application
_AT_ONCE = 500  # records that are named in one statement
_RIGHTS = "check the rights of the files and of their folder"
_RESCUE = "restore a backup"
_Codes = tuple[int | str, ...]
# SQLite's codes and PostgreSQL's states; error, message and advice. Any other error of SQLite is
# damage.
_ERRORS: tuple[tuple[_Codes, type[JournalError], str, str], ...] = (
    (
        (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, "55P03"),
        JournalBusyError,
        "is being written by another for more than {wait} s",
        "try again",
    ),
    (
        (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, "53000", "53100", "53200", "53300", "53400"),
        JournalError,
        "could not be read or written ({cause})",
        "make room on the disk, or check it; nothing of this write was kept, "
        "what was acknowledged before is safe",
    ),
    (
        (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN),
        JournalError,
        "cannot be opened for writing ({cause})",
        _RIGHTS,
    ),
    (
        (sqlite3.SQLITE_NOTADB,),
        JournalDamagedError,
        "is no store, or its head is damaged ({cause})",
        "give another file",
    ),
    (("XX001", "XX002"), JournalDamagedError, "is damaged ({cause})", _RESCUE),
)

_METADATA = sa.MetaData()
LOG = Table(
    "log",
    _METADATA,
    Column("ns", Text, primary_key=True),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("entry", Text, nullable=False),
    Column("time", Text, nullable=False),
    Column("note", Text, nullable=False),
    Column("commitment", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("hash", Text, nullable=False),
    Column("salt", Text),
    Column("body", Text),
)
HEADS_TABLE = Table(
    "heads",
    _METADATA,
    Column("ns", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("hash", Text, nullable=False),
)
STATE = Table(
    "state",
    _METADATA,
    Column("one", Integer, primary_key=True, autoincrement=False),
    Column("scrub", Integer, nullable=False),  # how often data was erased that may be in the files
)
SECRETS = Table(
    "secrets",
    _METADATA,
    Column("ns", Text, primary_key=True),
    Column("secret", Text, nullable=False),
)
_MARK = update(STATE).values(scrub=STATE.c.scrub + 1)
# The erasing transaction wrote the row of ``state``; VACUUM FULL copies the rows that it erased
# while an older snapshot sees them.
_OLDER_SNAPSHOTS = (
    "SELECT count(*) FROM pg_stat_activity, state WHERE datname = current_database() "
    "AND pid <> pg_backend_pid() AND age(backend_xmin) >= age(state.xmin)"
)


def connect(url: str, wait: float = 30.0) -> Database:
    """Open or create the database at an address (see ``Journal.open``)."""
    if "://" not in url:
        return Sqlite(url, wait)
    try:
        address = sa.make_url(url)
    except (ArgumentError, ValueError) as error:  # its message may hold the password
        raise InputError(
            f"the address of the store, {url.split('://')[0]}://..., cannot be read",
            expected="postgresql://user:password@host:port/database",
        ) from error
    if "@" in (address.host or ""):
        raise InputError(  # the end of a password would be taken for a server
            f"the address of the store, {shown_address(url)!r}, cannot be read",
            expected="a password whose special characters are percent-encoded: %40 for @, %2F "
            "for /",
        )
    match address.drivername:
        case "postgresql" | "postgres":
            return Postgres(address, wait)
        case "sqlite":
            return Sqlite(address.database or IN_MEMORY, wait)
    raise InputError(
        f"the address of the store, {shown_address(url)!r}, cannot be read",
        expected="a path, sqlite:///path, postgresql://user@host/database or :memory:",
    )


class Database(ABC):
    """A log in a database; one connection, used by one thread at a time; ``name`` is its address
    without a password.

    A kind of database sets what follows, implements ``_rewrite``, which takes erased bytes out of
    the files, and adds the codes of its errors to ``_ERRORS``; ``connect`` opens it.
    """

    _settings: tuple[str, ...]  # statements for a new connection
    _waiting: str  # the statement that sets how long to wait for locks; {}: milliseconds
    _read: tuple[str, ...]  # statements that begin a consistent snapshot,
    _write: tuple[str, ...]  # and a write, of one writer at a time
    _checked: bool  # whether ``integrity`` asks it for faults of its files, as SQLite is asked
    read_only = False  # whether it cannot be written, and is only read
    index_folder: Path | None = None  # of the indexes of large memories

    def __init__(self, address: sa.URL, name: str, wait: float, **driver: Any) -> None:
        self.name = name
        self.wait = wait
        self._driver = driver
        self._process = os.getpid()
        self._closed = False
        self._connection: sa.Connection | None = None
        self._connect(address)
        self._prepare()

    def _connect(self, address: sa.URL) -> None:
        # This class begins and commits transactions itself; the driver must not.
        self._engine = sa.create_engine(
            address,
            connect_args=self._driver,
            poolclass=sa.StaticPool,
            isolation_level="AUTOCOMMIT",
            hide_parameters=True,
        )
        self._adding = insert(LOG).compile(dialect=self._engine.dialect)
        sa.event.listen(self._engine, "connect", self._set_up)

    def _prepare(self) -> None:
        """Make what is missing of the tables."""
        with self.writing():
            for table in _METADATA.sorted_tables:
                self.execute(sa.schema.CreateTable(table, if_not_exists=True))
            if not self.execute(select(STATE.c.one)):
                self.execute(insert(STATE), [{"one": 1, "scrub": 0}])
            self._check_registry()

    def _check_registry(self) -> None:
        if self.execute(select(LOG.c.ns).limit(1)) and not self.head(REGISTRY).seq:
            raise self._damaged("it has lost its registry of namespaces")

    @abstractmethod
    def _rewrite(self) -> None: ...

    def _set_up(self, connection: Any, _: object) -> None:
        for statement in self._settings:
            connection.execute(statement)

    def close(self) -> None:
        """Close the connection."""
        self._closed = True
        self._engine.dispose()

    def execute(
        self, statement: sa.Executable | str, rows: Sequence[JsonMapping] = ()
    ) -> list[Any]:
        """Run one statement, once or for each row of arguments; return all result rows."""
        statement = sa.text(statement) if isinstance(statement, str) else statement
        with self._session() as connection:
            result = connection.execute(statement, list(rows) or None)
            found = list(result) if result.returns_rows else []
        columns = statement.selected_columns if isinstance(statement, sa.Select) else ()
        for column, values in zip(columns, zip(*found, strict=True), strict=False):
            kinds = set(map(type, values)) - {column.type.python_type}
            if kinds - ({type(None)} if column.nullable else set()):  # SQLite takes any value
                raise self._damaged(f"a wrong type in the column {column.name}")
        return found

    @contextmanager
    def _session(self, *begin: str) -> Iterator[sa.Connection]:
        """Give the connection, after statements that begin a transaction; what is not committed
        at the end of the outermost block is rolled back.
        """
        if self._connection is not None:
            yield self._connection
            return
        if self._closed or os.getpid() != self._process:
            what = "was closed" if self._closed else "was opened by another process, before a fork"
            raise JournalError(f"{self.name} {what}", fix="open the journal again")
        try:
            with self._engine.connect() as self._connection:
                for statement in begin:
                    self._connection.exec_driver_sql(statement)
                yield self._connection
        except DBAPIError as error:
            raise self._error(error) from error
        except UnicodeError as error:
            raise self._damaged(f"bytes that are no text: {error}") from error
        finally:
            self._connection = None

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Read one consistent snapshot inside the block."""
        with self._session(*self._read):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer; changes are on disk after the block, or undone if it raised.
        JournalBusyError after ``wait`` s.
        """
        if self._connection is not None:
            raise JournalError(
                "a write was begun inside another write of the same journal",
                fix="end the first block before the next begins",
            )
        with self._session(*self._write):
            yield
            self.execute("COMMIT")

    def _damaged(self, how: str) -> JournalDamagedError:
        return JournalDamagedError(f"{self.name} is damaged ({how})", fix=_RESCUE)

    def _error(self, error: DBAPIError) -> JournalError:
        cause = error.orig
        text = str(cause).strip()
        code = getattr(cause, "sqlstate", getattr(cause, "sqlite_errorcode", 0) & 0xFF)
        for codes, kind, what, fix in _ERRORS:
            if code in codes:
                return kind(f"{self.name} {what.format(wait=self.wait, cause=text)}", fix=fix)
        if isinstance(cause, sqlite3.Error):
            return self._damaged(text)
        return JournalError(
            f"{self.name} cannot be reached ({text})",
            fix="check the server and the address; the next call connects again",
        )

    def rows(self, ns: str, after: int = 0, most: int | None = None) -> list[Record]:
        """Return a chain's records in order, those after number ``after``, at most so many."""
        later = select(LOG).where(LOG.c.ns == ns, LOG.c.seq > after).order_by(LOG.c.seq)
        return [Record(*row) for row in self.execute(later.limit(most))]

    def some(self, ns: str, numbers: Sequence[int]) -> list[Record]:
        """Return the records of a chain with these numbers, in order; those that there are."""
        found = list[Record]()
        for start in range(0, len(numbers), _AT_ONCE):
            wanted = LOG.c.seq.in_(numbers[start : start + _AT_ONCE])
            found += [
                Record(*row) for row in self.execute(select(LOG).where(LOG.c.ns == ns, wanted))
            ]
        return sorted(found, key=attrgetter("seq"))

    def holding(self, ns: str, numbers: Iterable[int]) -> list[Record]:
        """Return the records of a chain that hold the operations of these numbers, in order."""
        found = list[Record]()
        for number in sorted(set(numbers)):
            if not found or number > found[-1].seq:
                found += self.rows(ns, number - 1, 1)
        return found

    def head(self, ns: str) -> Head:
        """Return the last record of a chain; number 0 if it has none."""
        rows = self.execute(
            select(HEADS_TABLE.c.seq, HEADS_TABLE.c.hash).where(HEADS_TABLE.c.ns == ns)
        )
        return Head(*rows[0]) if rows else root(ns)

    def heads(self) -> dict[str, Head]:
        """Return the last record of every chain."""
        return {str(ns): Head(seq, hash_) for ns, seq, hash_ in self.execute(select(HEADS_TABLE))}

    def secret(self, ns: str) -> str:
        """Return the secret of a namespace; empty if it has none yet."""
        rows = self.execute(select(SECRETS.c.secret).where(SECRETS.c.ns == ns))
        return str(rows[0][0]) if rows else ""

    def chains(self) -> set[str]:
        """Return the ids of all chains that have records."""
        return {str(ns) for (ns,) in self.execute(select(LOG.c.ns).distinct())}

    def integrity(self) -> list[str]:
        """Return the faults that SQLite finds in its own files; PostgreSQL's server sees to its."""
        checks = self.execute("PRAGMA integrity_check") if self._checked else []
        return [str(line) for (line,) in checks if line != "ok"]

    # Writing: call these inside ``writing``.
    def append(self, records: Sequence[Record]) -> None:
        """Add records at the end of one chain."""
        positional = self._adding.positional
        rows = [tuple(record) if positional else record._asdict() for record in records]
        with self._session() as connection:
            connection.exec_driver_sql(str(self._adding), rows)
        last = records[-1]
        self.execute(delete(HEADS_TABLE).where(HEADS_TABLE.c.ns == last.ns))
        self.execute(insert(HEADS_TABLE), [{"ns": last.ns, "seq": last.seq, "hash": last.hash}])

    def erase(self, ns: str, records: Iterable[Record]) -> None:
        """Write bodies and salts of records that lost content, and drop their namespace's index."""
        self._drop_index(ns)
        row = (LOG.c.ns == ns) & (LOG.c.seq == sa.bindparam("number"))
        erasure = update(LOG).where(row)
        erasure = erasure.values(body=sa.bindparam("left"), salt=sa.bindparam("salts"))
        columns = [{"number": r.seq, "left": r.body, "salts": r.salt} for r in records]
        self.execute(erasure, columns)
        self.execute(_MARK)

    def drop(self, ns: str) -> None:
        """Drop a chain, its secret and its index."""
        self._drop_index(ns)
        for table in (LOG, HEADS_TABLE, SECRETS):
            self.execute(delete(table).where(table.c.ns == ns))
        self.execute(_MARK)

    def index_file(self, ns: str) -> Path | None:
        """Return where the index of a chain is kept (``store.index``); None: nowhere."""
        folder = self.index_folder
        return None if folder is None else folder / f"{ns}.db"

    def _drop_index(self, ns: str) -> None:
        file = self.index_file(ns)
        if file is not None:
            remove_database(file)

    def new_secret(self, ns: str) -> str:
        """Make a new secret for a namespace; ``scrub`` then removes the old one from the files."""
        secret = secrets.token_hex(32)
        self.execute(delete(SECRETS).where(SECRETS.c.ns == ns))
        self.execute(insert(SECRETS), [{"ns": ns, "secret": secret}])
        return secret

    def to_scrub(self) -> int:
        """Return how often data was erased that may still be in the files."""
        return int(self.execute(select(STATE.c.scrub))[0][0])

    def scrub(self, wait: float) -> None:
        """Remove erased data, if there is any, from the files; JournalError if that fails after
        ``wait`` s for other readers.
        """
        erasures = self.to_scrub()
        if not erasures or self.read_only:
            return
        usual = self.wait
        try:
            self._wait(min(wait, usual))
            self._rewrite()
            with self.writing():  # a mark that another process made meanwhile stays
                self.execute(update(STATE).where(STATE.c.scrub == erasures).values(scrub=0))
        except JournalError as error:
            raise type(error)(
                f"{self.name}: the records are erased from the log, but their bytes are "
                f"still in the files: {error.what}",
                fix="free disk space and close other readers; the store tries again by itself",
            ) from error
        finally:
            self._wait(usual)

    def _wait(self, seconds: float) -> None:
        self.wait = seconds
        self.execute(self._waiting.format(max(1, int(seconds * 1000))))


def remove_database(file: Path) -> None:
    """Remove the files of a SQLite database."""
    for ending in ("", "-wal", "-shm"):
        file.with_name(file.name + ending).unlink(missing_ok=True)


class Sqlite(Database):
    """A log in one file (created with mode 600), or for ``:memory:`` in process memory.

    A store that cannot be written (rights, a full or read-only disk) is opened to read: without any
    other file if it is at rest, else with its write-ahead file. A write tries to open it anew.
    """

    _checked = True
    _read = ("BEGIN",)
    _write = ("BEGIN IMMEDIATE",)
    _waiting = "PRAGMA busy_timeout={}"
    _settings = (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA secure_delete=ON",
        "PRAGMA temp_store=MEMORY",
    )

    def __init__(self, path: str, wait: float) -> None:
        self.path = None if path == IN_MEMORY else Path(path)
        if self.path is not None:
            try:
                self.path = self.path.resolve()
                with suppress(FileExistsError):
                    self.path.touch(0o600, exist_ok=False)
                    flush(self.path.parent)
                self._file = self.path.stat()
                self._lock = Path(f"{self.path}.lock")
                self.index_folder = Path(f"{self.path}.index")
                with suppress(OSError):  # there is none, or it is of another user
                    self._lock.chmod(0o600)
            except PermissionError as error:
                raise JournalError(f"{path} cannot be used: {error}", fix=_RIGHTS) from error
            except (OSError, ValueError) as error:
                raise InputError(
                    f"the store at {path!r} cannot be used: {error}",
                    expected="the name of a file in a folder that exists",
                ) from error
        self._address = sa.URL.create("sqlite", database=str(self.path or IN_MEMORY))
        super().__init__(self._address, path, wait, timeout=wait, check_same_thread=False)

    def _prepare(self) -> None:
        try:
            self._check_rights()
            super()._prepare()
        except JournalError as error:
            empty = self.path is None or not self.path.stat().st_size
            if type(error) is not JournalError or empty:  # busy, damaged, or new
                raise
            self._open_to_read(error)

    def _check_rights(self) -> None:
        for place in (self.path, self.path.parent) if self.path else ():
            if not os.access(place, os.W_OK):
                raise JournalError(
                    f"{self.name} cannot be opened for writing (no right to write {place})",
                    fix=_RIGHTS,
                )

    def _open_to_read(self, error: JournalError) -> None:
        """Open the file to read alone; raise ``error`` if that fails, too.

        ``immutable`` needs no other file and sees no write-ahead file; ``mode=ro`` needs its index.
        """
        log = Path(f"{self.path}-wal")
        ways = ["mode"] * log.exists()
        ways += ["immutable"] * (not log.exists() or not log.stat().st_size)
        self.read_only = True
        for way in ways:
            self._engine.dispose()
            query = {"uri": "true", way: "ro" if way == "mode" else "1"}
            name = f"file:{quote(str(self.path))}"
            self._connect(sa.URL.create("sqlite", database=name, query=query))
            try:
                with self.reading():
                    self._check_registry()
                return
            except JournalError as failed:
                if type(failed) is not JournalError:
                    raise
        raise error

    def _set_up(self, connection: Any, _: object) -> None:
        if self.read_only:
            self._check_kind(connection)
            connection.execute("PRAGMA temp_store=MEMORY")
            return
        new = not connection.execute("SELECT name FROM sqlite_master LIMIT 1").fetchall()
        # SQLite does not wait where two processes switch a new file to the write-ahead log at once.
        with FileLock(self._lock, mode=0o600) if new and self.path else nullcontext():
            if new:
                connection.execute(f"PRAGMA page_size={_PAGE}")
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            self._check_kind(connection)
            super()._set_up(connection, _)

    def _check_kind(self, connection: Any) -> None:
        if connection.execute("PRAGMA application_id").fetchone() != (APPLICATION_ID,):
            raise JournalDamagedError(
                f"{self.name} is a SQLite database, but not a store of memalpha",
                fix="give another file",
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer of all processes; JournalDamagedError if the file was removed or
        replaced since it was opened.
        """
        there = self.path is None or self.path.exists()
        if not there or (self.path and not os.path.samestat(self.path.stat(), self._file)):
            how = "replaced by another file" if there else "removed"
            raise JournalDamagedError(
                f"{self.name} was {how} while it was in use; nothing was written", fix=_RESCUE
            )
        if self.read_only:
            self._open_to_write()
        with super().writing():
            yield

    def _open_to_write(self) -> None:
        """Open a file anew that could only be read; JournalError if it still cannot be written."""
        self._check_rights()
        self._engine.dispose()
        self.read_only = False
        self._connect(self._address)
        try:
            super()._prepare()
        except JournalError as error:
            self._open_to_read(error)
            raise

    def _rewrite(self) -> None:
        checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)"  # waits for readers first
        for statement in (checkpoint, "VACUUM", checkpoint):
            rows = self.execute(statement)
            if rows and rows[0][0]:
                raise JournalBusyError(
                    f"{self.name}: open readers keep the old write-ahead file in use"
                )


class Postgres(Database):
    """A log at ``postgresql://user:password@host:port/database``. JournalError if unreachable;
    MissingExtraError: no psycopg.
    """

    _checked = False
    _waiting = "SET lock_timeout TO {}"
    _read = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
    _write = ("BEGIN", f"SELECT pg_advisory_xact_lock({_POSTGRES_LOCK})")

    def __init__(self, address: sa.URL, wait: float) -> None:
        name = f"postgresql://{address.host or ''}:{address.port or 5432}/{address.database or ''}"
        waiting = self._waiting.format(max(1, int(wait * 1000)))
        self._settings = ("SET synchronous_commit TO on", waiting)
        place = hashlib.sha256(name.encode()).hexdigest()[:16]
        self.index_folder = cache_folder() / "indexes" / place  # of this machine
        psycopg = address.set(drivername="postgresql+psycopg")
        try:
            super().__init__(psycopg, name, wait, connect_timeout=max(2, int(wait)))
        except ImportError as error:
            raise MissingExtraError("psycopg", "postgres") from error

    def _rewrite(self) -> None:
        if self.execute(_OLDER_SNAPSHOTS)[0][0]:
            raise JournalBusyError(f"{self.name}: readers that are still open see the erased rows")
        for table in _METADATA.sorted_tables:
            self.execute(f"VACUUM FULL {table.name}")
