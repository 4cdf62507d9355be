"""The log in this process alone: nothing on any disk, gone when the process ends. For trying things out.

Everything above is as with a file: the chain, history, undo, forgetting. There is no witness, since nothing outlives the process,
and no backup. A forked child starts empty, which the log notices and says.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from memalpha.errors import JournalError
from memalpha.store import chain
from memalpha.store.sql import SqlBackend

IN_MEMORY = ":memory:"
"""The address of a store that is kept in the process."""


class InMemoryBackend(SqlBackend):
    """A log in the memory of this process."""

    def __init__(self) -> None:
        self.url = IN_MEMORY
        self._connection = sqlite3.connect(IN_MEMORY, isolation_level=None, check_same_thread=False)
        self.execute("PRAGMA secure_delete=ON")
        self.create()

    def execute(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return all rows."""
        with self._translated():
            return self._connection.execute(sql, arguments).fetchall()

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of arguments."""
        with self._translated():
            self._connection.executemany(sql, rows)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Nobody else writes: the log lets one thread in at a time."""
        yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """All or nothing."""
        self.execute("BEGIN")
        try:
            before = self.state()
            yield
            self.count_commit(before)
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.rollback()
            raise

    def scrub(self) -> None:
        """Give back the pages that held what was erased; SQLite has overwritten them."""
        self.execute("VACUUM")
        self.execute("UPDATE state SET scrub = 0")

    def integrity(self) -> list[str]:
        """Return whether the hash over all heads fits."""
        if chain.mix(self.heads().items()) != self.state().mix:
            return ["the last operations of some namespace are missing or the list of them was edited"]
        return []

    def close(self) -> None:
        """Drop everything."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise JournalError(f"the store in this process cannot be used ({error})", fix="open a new one") from error
