"""The tables of an index on disk (``store.index``): a SQLite file."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memalpha.store.database import remove_database
from memalpha.store.records import Head

_WAIT = 30.0  # seconds for another process that writes the index
_AT_ONCE = 500  # values that are named in one statement
_TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY, kind TEXT, seq INTEGER, hash TEXT, built INTEGER,
    slots INTEGER, texts INTEGER, words INTEGER, embedder TEXT, coded INTEGER);
CREATE TABLE entry (slot INTEGER PRIMARY KEY, id TEXT UNIQUE, record INTEGER, section TEXT,
    created INTEGER, chunk INTEGER, speaker INTEGER, turn INTEGER, length INTEGER);
CREATE INDEX of_section ON entry (section, created);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail=none,
    tokenize="ascii tokenchars '_'");
CREATE VIRTUAL TABLE counts USING fts5vocab(words, row);
CREATE TABLE codes (block INTEGER PRIMARY KEY, rows BLOB);
CREATE TABLE vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID;
"""
_SETTINGS = (
    f"PRAGMA busy_timeout={int(_WAIT * 1000)}",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",  # what a power cut takes is made again
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-32000",  # 32 MB
)


class WrongIndexError(Exception):
    """The index does not fit its log."""


@dataclass(frozen=True, slots=True)
class IndexState:
    """How far an index has come: ``built`` is the last operation when it was begun, ``slots`` how
    many entries it was ever given, ``texts`` and ``words`` those that BM25 counts, ``coded`` how
    many slots have vectors of the ``embedder``.
    """

    kind: str
    seq: int
    hash: str
    built: int
    slots: int = 0
    texts: int = 0
    words: int = 0
    embedder: str = ""
    coded: int = 0


class IndexFile:
    """The tables of one index; used by one thread at a time. sqlite3.Error where it is damaged."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self._connection: sqlite3.Connection | None = None
        self._opened: os.stat_result | None = None

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement; return all rows."""
        return self._open().execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        self._open().executemany(statement, rows)

    def select_in(
        self, columns: str, column: str, values: Sequence[Any], table: str = "entry"
    ) -> Iterator[Any]:
        """Yield the rows of a table whose column has one of some values."""
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE]
            marks = ",".join("?" * len(part))
            yield from self.execute(
                f"SELECT {columns} FROM {table} WHERE {column} IN ({marks})", part
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write in one transaction, as the only process."""
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def state(self) -> IndexState | None:
        """Return how far it has come; None if it is empty or of another kind."""
        if not self.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'"):
            return None
        rows = self.execute(f"SELECT {', '.join(IndexState.__slots__)} FROM state")
        state = IndexState(*rows[0]) if rows else None
        return state if state and state.kind == self.kind else None

    def set_state(self, state: IndexState) -> None:
        """Inside ``writing``: say how far it has come."""
        names = IndexState.__slots__
        self.execute("DELETE FROM state")
        self.execute(
            f"INSERT INTO state ({', '.join(names)}) VALUES ({','.join('?' * len(names))})",
            [getattr(state, name) for name in names],
        )

    def begin(self, built: int, before: Head) -> IndexState:
        """Make the file anew, of a log that has ``built`` operations."""
        self.remove()
        state = IndexState(self.kind, before.seq, before.hash, built)
        with self.writing():
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    self.execute(statement)
            self.set_state(state)
        return state

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        remove_database(self.path)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._opened = None

    @property
    def replaced(self) -> bool:
        """Whether another process has removed the file since it was opened, or made it anew."""
        if self._opened is None:
            return False
        try:
            return not os.path.samestat(self.path.stat(), self._opened)
        except FileNotFoundError:
            return True

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(0o600)
            self._connection = sqlite3.connect(
                self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False
            )
            for setting in _SETTINGS:
                self._connection.execute(setting)
            self._opened = self.path.stat()
        return self._connection
