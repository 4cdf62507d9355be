"""Forgetting: which records lose their content, and doing it in the copies as well.

Forgetting an entry takes the content of every record about it, and of records of other entries that say or said the very same
text, unless such an entry says it now: that one is somebody's living memory and is named in the receipt. A text that says the
same in other words is another entry; find it with ``search`` and forget it too.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from memalpha.errors import JournalBusyError, JournalError, MemAlphaError
from memalpha.store.log import Log
from memalpha.store.records import REGISTRY, Kind, Namespace, Receipt, Record, moment_of
from memalpha.store.sqlite import SqliteBackend, drop_unfinished
from memalpha.types import Entry

_LOG = logging.getLogger(__name__)


class Plan(NamedTuple):
    """Numbers of the records to erase, and live entries of other ids that hold the very same text."""

    erased: tuple[int, ...]
    said_by: tuple[str, ...]


def plan(records: Sequence[Record], live: Iterable[Entry], entry_id: str, texts: Collection[str] = ()) -> Plan:
    """Decide what forgetting an entry erases.

    Args:
        records: The namespace's chain in the store, or in a copy of it.
        live: What the store says now; of a copy too, where an entry may still say what it says nowhere else.
        entry_id: Whose content.
        texts: What the entry said according to the store, beside what it said according to ``records``.
    """
    texts = texts_about(records, entry_id) | set(texts)
    keepers = {entry.id for entry in live if entry.id != entry_id and entry.content in texts}
    erased = [
        record.seq
        for record in records
        if record.body is not None and (record.entry == entry_id or (record.entry not in keepers and texts_of(record) & texts))
    ]
    return Plan(tuple(erased), tuple(sorted(keepers)))


def texts_about(records: Iterable[Record], entry_id: str) -> set[str]:
    """Return everything the records of one entry hold."""
    return {text for record in records if record.entry == entry_id for text in texts_of(record)}


def texts_of(record: Record) -> set[str]:
    """Return the contents a record holds: what was asked for and what came of it."""
    data = record.data()
    found = {(data.get(part) or {}).get("content") for part in ("operation", "after")}
    return {text.strip() for text in found if text}


class Copies(NamedTuple):
    """What became of the copies: those that held it, those no longer where they were written, and why some could not be erased."""

    erased: tuple[str, ...]
    missing: tuple[str, ...]
    failed: tuple[str, ...]

    def check(self) -> None:
        """Raise JournalError if a copy is there and could not be erased; store and other copies were."""
        if self.failed:
            raise JournalError(
                f"forgotten in the store, but not in {len(self.failed)} of its copies: {'; '.join(self.failed)}",
                fix="mend or delete them",
            )


def forget_namespace(log: Log, name: Namespace) -> tuple[Receipt | None, Copies]:
    """Drop a namespace's chain and its names, in the copies too; no receipt if the store has no such namespace."""
    with log.writing():
        copies = in_backups(log, lambda copy: _forget_in(copy, name))
        receipt = _drop(log, name)
    _finish_drop(log, receipt)
    return receipt, copies


def _forget_in(copy: Log, name: Namespace) -> bool:
    with copy.writing():
        receipt = _drop(copy, name)
    _finish_drop(copy, receipt)
    return receipt is not None


def _drop(log: Log, name: Namespace) -> Receipt | None:
    """Drop it from this log alone; inside ``writing``."""
    begun = log.begun.get(name)
    if begun is None:
        return None
    head = log.backend.head(begun.ns)
    facts = {"operations": head.seq, "head": head.hash, "erased": [begun.seq]}
    record = log.unregister(begun.ns, json.dumps(facts), log.now(log.registry_time)[0])
    log.backend.erase(REGISTRY, [begun.seq])
    log.backend.drop(begun.ns)
    return Receipt(begun.ns, moment_of(record.time), head.seq)


def _finish_drop(log: Log, receipt: Receipt | None) -> None:
    if receipt is not None:
        log.forget_registry()
        log.scrub()


def in_backups(log: Log, erase: Callable[[Log], bool]) -> Copies:
    """Erase in every copy made from this store; inside ``writing``, before anything is erased in the store itself.

    So a kill in between leaves the store as it was, with all it takes to forget again: what is forgotten in the store is
    forgotten in its copies. Copies that are gone are no longer looked for from now on.

    Args:
        log: The store.
        erase: Erases in one copy; says whether there was anything.
    """
    done, missing, failed = [], [], []
    for path in log.backend.backups():
        try:
            drop_unfinished(Path(path))
            if not Path(path).exists():
                missing.append(path)
                log.backend.note_backup(path, there=False)
                continue
            copy = Log(lambda path=path: SqliteBackend(Path(path)), log.key)  # type: ignore[misc]
            with closing(copy.backend):
                done += [path] if erase(copy) else []
        except (MemAlphaError, OSError) as error:
            failed.append(f"{path}: {error}")
    return Copies(tuple(done), tuple(missing), tuple(failed))


def finish_scrub(log: Log) -> None:
    """Do what a killed or disturbed erasure left to do; a warning if others keep the files in use."""
    if log.backend.to_scrub():
        try:
            log.scrub()
        except JournalBusyError as error:
            _LOG.warning("%s", error)


def receipt_of(record: Record) -> Receipt:
    """Read a receipt back from its record."""
    facts = record.facts()
    count = facts.get("operations", len(facts.get("erased", ())))
    return Receipt(record.entry, moment_of(record.time), int(count), tuple(facts.get("said_by", ())))


def receipts_in(records: Iterable[Record]) -> list[Receipt]:
    """Return all receipts of a chain, those that a compaction carried over first."""
    found = []
    for record in records:
        if record.kind == Kind.BASE:
            found += [Receipt(e, moment_of(t), n, tuple(said)) for e, t, n, said in record.facts()["receipts"]]
        elif record.kind == Kind.FORGET:
            found.append(receipt_of(record))
    return found
