"""Lists of values by key in a temporary SQLite database, for inputs whose related parts lie far apart. Memory use is constant."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from memalpha.errors import InputError

_TABLES = """
PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;
CREATE TABLE keys (number INTEGER PRIMARY KEY, digest BLOB UNIQUE, key TEXT);
CREATE TABLE items (number INTEGER, value TEXT);
CREATE INDEX by_number ON items (number);
BEGIN;
"""


class Spool:
    """Lists of JSON values by key; keys are numbered 0, 1, ... by first use."""

    def __init__(self) -> None:
        with _on_disk():
            self._base = sqlite3.connect("", isolation_level=None, check_same_thread=False)  # "" is a temporary file, not memory
            self._base.executescript(_TABLES)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def key(self, key: str) -> int:
        """Return the number of a key; a new key gets the next one."""
        if (found := self.find(key)) is not None:
            return found
        with _on_disk():
            self._base.execute("INSERT INTO keys VALUES (?, ?, ?)", (self._count, _digest(key), json.dumps(key)))
        self._count += 1
        return self._count - 1

    def find(self, key: str) -> int | None:
        """Return the number of a key, None if unknown."""
        with _on_disk():
            found = self._base.execute("SELECT number FROM keys WHERE digest = ?", (_digest(key),)).fetchone()
        return None if found is None else int(found[0])

    def add(self, number: int, value: Any) -> None:
        """Append a JSON value to the list of a key number."""
        with _on_disk():
            self._base.execute("INSERT INTO items VALUES (?, ?)", (number, json.dumps(value)))

    def get(self, number: int) -> tuple[str, list[Any]]:
        """Return the key of a number and its values in order."""
        with _on_disk():
            (key,) = self._base.execute("SELECT key FROM keys WHERE number = ?", (number,)).fetchone()
            values = self._base.execute("SELECT value FROM items WHERE number = ? ORDER BY rowid", (number,)).fetchall()
        return str(json.loads(key)), [json.loads(value) for (value,) in values]


def _digest(key: str) -> bytes:
    return blake2b(json.dumps(key).encode(), digest_size=16).digest()


@contextmanager
def _on_disk() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"the temporary file that gathers the input cannot be written or read: {error}",
            expected="free disk space, about as much as the input takes",
            fix="make room, or set TMPDIR to a folder that has some",
        ) from error
