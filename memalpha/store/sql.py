"""What keeps the log, as SQL that SQLite and PostgreSQL both understand; each adds how it locks, commits and erases.

Four tables: ``log`` (the records, the truth), ``heads`` (the last record of each chain), ``state`` (how many commits, and one
hash over all heads) and ``backups`` (where copies were written). All three of log, heads and state move in one transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from memalpha.errors import JournalDamagedError
from memalpha.store import chain
from memalpha.store.records import Head, Record
from memalpha.store.witness import State

FORMAT = 1
COLUMNS = Record.__slots__
TABLES = (
    "CREATE TABLE IF NOT EXISTS log (ns TEXT NOT NULL, seq BIGINT NOT NULL, kind TEXT NOT NULL, entry TEXT NOT NULL, "
    "gone INTEGER NOT NULL, time TEXT NOT NULL, note TEXT NOT NULL, commitment TEXT NOT NULL, previous TEXT NOT NULL, "
    "hash TEXT NOT NULL, salt TEXT, body TEXT, PRIMARY KEY (ns, seq))",
    "CREATE TABLE IF NOT EXISTS heads (ns TEXT PRIMARY KEY, seq BIGINT NOT NULL, hash TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS state (one INTEGER PRIMARY KEY, format INTEGER NOT NULL, commits BIGINT NOT NULL, "
    "mix TEXT NOT NULL, scrub INTEGER NOT NULL)",
    "CREATE TABLE IF NOT EXISTS backups (path TEXT PRIMARY KEY)",
)
_SELECT = f"SELECT {', '.join(COLUMNS)} FROM log"


class SqlBackend(ABC):
    """A log in a database; one connection, to be used by one thread at a time.

    Attributes:
        url: Names the store in messages, without a password.
    """

    url: str

    # ------------------------------------------------------------------------------------ what each database does its own way
    @abstractmethod
    def execute(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement with ``?`` for each argument and return all rows."""

    @abstractmethod
    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of arguments."""

    @abstractmethod
    def reading(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[None]:
        """Alone among all writers; what was done inside is on disk when the block has been left, or undone if it raised.

        Raises:
            JournalBusyError: If another writer did not finish in time.
            JournalError: If it could not be put to disk.
        """

    @abstractmethod
    def scrub(self) -> None:
        """Leave no byte of what was erased or dropped in any file of the database; then clear the mark that this is to be done.

        Raises:
            JournalBusyError: If others keep the files in use; the mark stays and the next opening tries again.
        """

    @abstractmethod
    def integrity(self) -> list[str]:
        """Return what the database itself finds wrong with its files, one line each."""

    @abstractmethod
    def close(self) -> None:
        """Give everything back."""

    # -------------------------------------------------------------------------------------------- reading
    def rows(self, ns: str, after: int = 0, until: int | None = None) -> list[Record]:
        """Return a chain's records in order, those after one number and up to another."""
        sql, arguments = f"{_SELECT} WHERE ns = ? AND seq > ?", [ns, after]
        if until is not None:
            sql, arguments = f"{sql} AND seq <= ?", [*arguments, until]
        return [Record(*row) for row in self.execute(f"{sql} ORDER BY seq", arguments)]

    def head(self, ns: str) -> Head:
        """Return the last record of a chain; number 0 if it has none."""
        found = self.execute("SELECT seq, hash FROM heads WHERE ns = ?", (ns,))
        return Head(*found[0]) if found else Head(0, chain.root(ns))

    def heads(self) -> dict[str, Head]:
        """Return the last record of every chain."""
        return {str(ns): Head(seq, hash_) for ns, seq, hash_ in self.execute("SELECT ns, seq, hash FROM heads ORDER BY ns")}

    def chains(self) -> set[str]:
        """Return the ids of all chains that have records."""
        return {str(row[0]) for row in self.execute("SELECT DISTINCT ns FROM log")}

    def state(self) -> State:
        """Return how many commits there were, and the hash over all heads."""
        found = self.execute("SELECT commits, mix FROM state WHERE one = 1 AND format = ?", (FORMAT,))
        if not found or not isinstance(found[0][0], int) or not isinstance(found[0][1], str):
            raise JournalDamagedError(f"{self.url} does not say how far it got, or is of another format than {FORMAT}")
        return State(*found[0])

    def to_scrub(self) -> bool:
        """Whether something was erased or dropped and may still be in the files."""
        return bool(self.execute("SELECT scrub FROM state WHERE one = 1")[0][0])

    # -------------------------------------------------------------------------------------------- writing, inside ``writing``
    def append(self, records: Sequence[Record]) -> None:
        """Add records at the end of one chain."""
        marks = ", ".join("?" * len(COLUMNS))
        self.execute_many(
            f"INSERT INTO log ({', '.join(COLUMNS)}) VALUES ({marks})",
            [[getattr(record, name) for name in COLUMNS] for record in records],
        )
        self._move(records[-1].ns, Head(records[-1].seq, records[-1].hash))

    def erase(self, ns: str, numbers: Iterable[int]) -> None:
        """Take the bodies of some records away."""
        self.execute_many("UPDATE log SET body = NULL, salt = NULL WHERE ns = ? AND seq = ?", [(ns, seq) for seq in numbers])
        self._mark_scrub()

    def drop_before(self, ns: str, seq: int) -> None:
        """Drop the records before one number."""
        self.execute("DELETE FROM log WHERE ns = ? AND seq < ?", (ns, seq))
        self._mark_scrub()

    def drop(self, ns: str) -> None:
        """Drop a chain."""
        self.execute("DELETE FROM log WHERE ns = ?", (ns,))
        self._move(ns, None)
        self._mark_scrub()

    def create(self) -> None:
        """Make the tables where there are none."""
        for sql in TABLES:
            self.execute(sql)
        if not self.execute("SELECT one FROM state"):
            self.execute("INSERT INTO state VALUES (1, ?, 0, ?, 0)", (FORMAT, chain.mix(())))

    def _move(self, ns: str, to: Head | None) -> None:
        found = self.execute("SELECT seq, hash FROM heads WHERE ns = ?", (ns,))
        self.execute("DELETE FROM heads WHERE ns = ?", (ns,))
        if to is not None:
            self.execute("INSERT INTO heads VALUES (?, ?, ?)", (ns, to.seq, to.hash))
        out = (ns, Head(*found[0])) if found else None
        mixed = chain.remix(self.state().mix, out, None if to is None else (ns, to))
        self.execute("UPDATE state SET mix = ?", (mixed,))

    def count_commit(self, before: State) -> State:
        """Count this transaction if a head has moved since ``before``; the last statement of one. Return the state after it."""
        if self.state().mix != before.mix:
            self.execute("UPDATE state SET commits = ?", (before.commits + 1,))
        return self.state()

    def _mark_scrub(self) -> None:
        self.execute("UPDATE state SET scrub = 1")

    # -------------------------------------------------------------------------------------------- copies
    def backups(self) -> list[str]:
        """Return where copies were written."""
        return [str(row[0]) for row in self.execute("SELECT path FROM backups ORDER BY path")]

    def note_backup(self, path: str, there: bool) -> None:
        """Note, or forget, that a copy was written to a path."""
        self.execute("DELETE FROM backups WHERE path = ?", (path,))
        if there:
            self.execute("INSERT INTO backups VALUES (?)", (path,))
