"""The end of a chain of records, which is read on and written on."""

from __future__ import annotations

from typing import Any

from memalpha.errors import JournalDamagedError
from memalpha.store import records as log
from memalpha.store.database import Database
from memalpha.store.records import Record, RecordKind
from memalpha.types import JsonObject

_SHOWN = 5  # faults that an error tells


class Tail:
    """The end of one chain, as far as this process has read and written it."""

    def __init__(self, database: Database, key: bytes | None, ns: str, name: str) -> None:
        self.database = database
        self.key = key
        self.ns = ns
        self.name = name
        self.head = log.root(ns)

    def read_on(self) -> list[Record]:
        """Return the checked records after the last one read; JournalDamagedError if the chain is
        broken, or lost what it had.
        """
        head = self.database.head(self.ns)
        if head == self.head:
            return []
        if head.seq <= self.head.seq:
            faults = [f"it had {self.head.seq} operations and has {head.seq}, or different ones"]
        else:
            records = self.database.rows(self.ns, self.head.seq)
            faults = log.check(records, self.head, head, self.key)
        if faults:
            more = f"; and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
            raise JournalDamagedError(
                f"{self.database.name}, {self.name}: {'; '.join(faults[:_SHOWN])}{more}",
                fix="restore a backup; if a later version of memalpha wrote the store, use "
                "that version",
            )
        self.head = head
        return records

    def seal(self, kind: RecordKind, entry: str, moment: str, **content: Any) -> Record:
        """Return the next record, of a moment by the clock; the tail is its end."""
        names: JsonObject = {"ns": self.ns, "kind": kind, "entry": entry, "time": moment}
        record = log.seal(self.head, self.key, **names, **content)
        self.head = record.head
        return record
