"""The log in PostgreSQL, for more than one machine: same tables, same chain, same code above.

One writer at a time by an advisory lock of the database; readers see one moment (``REPEATABLE READ``). The server keeps the
acknowledged: ``synchronous_commit`` is on for every write. Erasing rewrites the tables (``VACUUM FULL``); the
server's own write-ahead log, its replicas and its dumps are the administrator's: bytes stay there until the server recycles
them. Made backups are not tracked: use ``pg_dump``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from memalpha.errors import JournalBusyError, JournalDamagedError, JournalError, MissingExtraError
from memalpha.store import chain
from memalpha.store.sql import SqlBackend
from memalpha.store.witness import State

try:
    import psycopg
    from psycopg import errors as pg_errors
except ImportError as _error:  # pragma: no cover
    raise MissingExtraError("psycopg", "postgres") from _error

_LOCK = 0x6D656D616C706861  # of this application
_TABLES = ("log", "heads", "state", "backups")


class PostgresBackend(SqlBackend):
    """A log in a database of a PostgreSQL server.

    Args:
        url: ``postgresql://user:password@host:port/database``.
        wait: Seconds to wait for another writer, and for a connection.

    Raises:
        JournalError: If the server cannot be reached.
    """

    def __init__(self, url: str, *, wait: float = 30.0) -> None:
        parts = urlsplit(url)
        self._conninfo, self.wait = url, wait
        self.url = f"{parts.scheme}://{parts.hostname or ''}:{parts.port or 5432}{parts.path}"
        self._connection: psycopg.Connection[Any] | None = None
        with self.writing():
            self.create()
        if problems := self.integrity():
            raise JournalDamagedError(f"{self.url}: {'; '.join(problems)}", fix="bring a dump back")

    def _connected(self) -> psycopg.Connection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._conninfo, autocommit=True, connect_timeout=max(2, int(self.wait)))
            self._connection.execute("SET synchronous_commit TO on")
            self._connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{max(1, int(self.wait * 1000))}ms",))
        return self._connection

    def execute(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return all rows."""
        with self._translated():
            cursor = self._connected().execute(sql.replace("?", "%s").encode("ascii"), arguments or None)
            return cursor.fetchall() if cursor.description else []

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of arguments."""
        with self._translated(), self._connected().cursor() as cursor:
            cursor.executemany(sql.replace("?", "%s").encode("ascii"), rows)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Everything read inside is of one moment."""
        if self._connection is not None and self._connection.info.transaction_status:
            yield
            return
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        try:
            yield
        finally:
            self._rollback()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone among all writers of the database; committed on the server when the block has been left."""
        self.execute("BEGIN")
        try:
            self.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
            before = self._state_or_none()
            yield
            if before is not None:
                self.count_commit(before)
            self.execute("COMMIT")
        except BaseException:
            self._rollback()
            raise

    def _state_or_none(self) -> State | None:
        """Return the state; None while the tables are being made."""
        there = self.execute("SELECT to_regclass('state')")[0][0]
        return self.state() if there and self.execute("SELECT one FROM state") else None

    def _rollback(self) -> None:
        connection = self._connection
        if connection is not None and not connection.closed and connection.info.transaction_status:
            connection.rollback()

    def scrub(self) -> None:
        """Rewrite the tables without what was erased."""
        for table in _TABLES:
            self.execute(f"VACUUM FULL {table}")
        with self.writing():
            self.execute("UPDATE state SET scrub = 0")

    def integrity(self) -> list[str]:
        """Return whether the hash over all heads fits; the pages are the server's to check (``data_checksums``)."""
        with self.reading():
            if chain.mix(self.heads().items()) != self.state().mix:
                return ["the last operations of some namespace are missing or the list of them was edited"]
            return []

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except pg_errors.LockNotAvailable as error:
            raise JournalBusyError(
                f"{self.url} is being written by another for more than {self.wait} s", fix="try again"
            ) from error
        except (pg_errors.DiskFull, pg_errors.InsufficientResources) as error:
            raise JournalError(f"{self.url}: the server has no room ({error}); nothing of this write was kept") from error
        except (pg_errors.DataCorrupted, pg_errors.IndexCorrupted) as error:
            raise JournalDamagedError(f"{self.url} is damaged ({error})", fix="bring a dump back") from error
        except psycopg.OperationalError as error:
            raise JournalError(
                f"{self.url} cannot be reached ({str(error).strip()}); what was not acknowledged may or may not be there",
                fix="check server and address; the next call connects again",
            ) from error
        except psycopg.Error as error:
            raise JournalError(f"{self.url}: {str(error).strip()}") from error
