"""Salvage: what a damaged SQLite journal still holds, into a new one.

The damaged files are copied first, to the new one's folder, and never touched. Each namespace keeps its operations up to the
first that is missing or does not fit; what comes after would be a memory that never was, so it is counted and left behind. A
namespace whose name is lost is put under ``salvaged/<its id>``.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import tempfile
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memalpha.errors import JournalDamagedError, JournalError
from memalpha.store import chain
from memalpha.store.exchange import new_file
from memalpha.store.log import Log
from memalpha.store.records import REGISTRY, Head, Kind, Namespace, Record
from memalpha.store.sql import COLUMNS
from memalpha.store.sqlite import SqliteBackend

_FILES = ("", "-wal")
_PAGE = 256  # rows read at once


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was left of one namespace.

    Attributes:
        namespace: Its name; ``salvaged/<id>/default`` where the name was lost.
        kept: How many operations were taken over: those from the first on, in order.
        left_behind: How many later ones can be read but follow on something that is lost.
        lost_at: Number of the first operation that is lost; None if nothing is known to be.
    """

    namespace: Namespace
    kept: int
    left_behind: int
    lost_at: int | None


def salvage(path: str | Path, target: str | Path, *, key: bytes | None = None) -> tuple[Salvaged, ...]:
    """Write what can be recovered of a damaged journal to a new one.

    Args:
        path: The damaged database.
        target: The new one; must not exist.
        key: The key of both.

    Raises:
        InputError: If the target exists, or its folder does not.
        JournalError: If the damaged files cannot be copied beside the target.
        JournalDamagedError: If nothing at all can be read.
    """
    path, target = Path(path), new_file(target)
    rows, heads = _all_rows(path, target.parent)
    chains: dict[str, dict[int, Record]] = {}
    for record in rows:
        chains.setdefault(str(record.ns), {})[record.seq] = record
    if not chains:
        raise JournalDamagedError(f"nothing in {path} can be read", fix="bring a backup back")
    registry = _intact(chains.pop(REGISTRY, {}), key)
    names = {r.entry: r.data() for r in registry if r.kind == Kind.BEGIN and r.body}
    gone = {r.entry for r in registry if r.kind == Kind.FORGET}
    log = Log(lambda: SqliteBackend(target), key)
    with closing(log.backend):
        return tuple(_take_over(log, ns, chains[ns], names.get(ns), heads.get(ns)) for ns in sorted(chains.keys() - gone))


def _take_over(log: Log, ns: str, there: dict[int, Record], data: dict[str, Any] | None, head: int | None) -> Salvaged:
    name = Namespace(data["user"], data["agent"], data["session"]) if data else Namespace("salvaged", ns)
    intact = {seq: record for seq, record in there.items() if not chain.fault(record, Head(seq - 1, record.previous), log.key)}
    kept: list[Record] = []
    first = min(intact, default=0)
    last = chain.start(ns, intact[first]) if intact else None
    while (record := intact.get(first + len(kept))) is not None and not chain.fault(record, last, log.key):
        kept.append(record)
        last = Head(record.seq, record.hash)
    if kept:
        _write(log, ns, name, data, kept)
    ended = last is not None and head is not None and last.seq == head
    return Salvaged(name, len(kept), len(intact) - len(kept), None if kept and ended else (last.seq + 1 if last else 1))


def _write(log: Log, ns: str, name: Namespace, data: dict[str, Any] | None, kept: list[Record]) -> None:
    covered = {seq for record in kept if record.kind == Kind.FORGET for seq in chain.erased_by(record)}
    bare = [record.seq for record in kept if record.erased and record.seq not in covered]
    records = list(kept)
    if bare:  # their receipts came later and are lost
        head, note = Head(kept[-1].seq, kept[-1].hash), json.dumps({"erased": bare, "salvaged": True})
        records.append(chain.seal(head, log.key, ns=ns, kind=Kind.FORGET, time=kept[-1].time, note=note))
    with log.writing():
        log.register(name, ns, data["schema"] if data else None, log.now(log.registry_time)[0])
        log.backend.append(records)


def _intact(there: dict[int, Record], key: bytes | None) -> list[Record]:
    return [r for seq, r in sorted(there.items()) if not chain.fault(r, Head(seq - 1, r.previous), key)]


def _all_rows(path: Path, room: Path) -> tuple[list[Record], dict[str, int]]:
    """Read a copy, made in the folder ``room`` and deleted afterwards."""
    try:
        with tempfile.TemporaryDirectory(dir=room) as folder:
            copy = Path(folder) / "copy"
            for suffix in _FILES:
                if (source := path.with_name(path.name + suffix)).exists():
                    shutil.copyfile(source, copy.with_name(copy.name + suffix))
            with closing(sqlite3.connect(copy, isolation_level=None)) as connection:
                connection.text_factory = lambda data: data.decode("utf-8", "replace")
                rows = [*_scan(connection, forward=True), *_scan(connection, forward=False)]
                known = {row[0]: row for row in rows}.values()
                return [Record(*row[1:]) for row in known if isinstance(row[2], int)], _heads(connection)
    except sqlite3.Error as error:
        raise JournalDamagedError(f"nothing in {path} can be read ({error})", fix="bring a backup back") from error
    except (OSError, ValueError) as error:
        raise JournalError(f"{path} cannot be copied to {room}: {error}", fix="check name, rights and room") from error


def _scan(connection: sqlite3.Connection, forward: bool) -> list[tuple[Any, ...]]:
    """Read the table itself, not its index, from one end until there is no more or it breaks."""
    found: list[tuple[Any, ...]] = []
    edge, sign, order = (-(1 << 62), ">", "ASC") if forward else (1 << 62, "<", "DESC")
    sql = f"SELECT rowid, {', '.join(COLUMNS)} FROM log NOT INDEXED WHERE rowid {sign} ? ORDER BY rowid {order} LIMIT ?"
    page = _PAGE
    while True:
        try:
            rows = connection.execute(sql, (edge, page)).fetchall()
        except sqlite3.Error:
            if page == 1:
                return found
            page = 1  # up to the very row that breaks
            continue
        if not rows:
            return found
        found += rows
        edge = rows[-1][0]


def _heads(connection: sqlite3.Connection) -> dict[str, int]:
    try:
        return {str(ns): int(seq) for ns, seq in connection.execute("SELECT ns, seq FROM heads")}
    except (sqlite3.Error, ValueError, TypeError):
        return {}
