"""Verification: everything that can be checked about a store, found as data and not raised.

Checked: the database's own integrity; the witness; the hash over all heads; each chain for edited, missing and reordered
records; each erased record for its receipt; the registry against the chains there are; and each operation, as far as nothing
before it was forgotten, by asking ``Memory.apply`` again whether it leads to the entry that was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from memalpha.errors import JournalDamagedError, MemAlphaError
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.store import chain
from memalpha.store.log import Log
from memalpha.store.memory import JournalMemory
from memalpha.store.records import REGISTRY, Head, Kind, Record, operation_of
from memalpha.types import Change


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found.

    Attributes:
        faults: One line each; empty if the store is what was written to it.
        namespaces: How many chains were read, the registry not counted.
        operations: How many records they hold.
        forgotten: How many of them were forgotten, with receipts.
        head: One hash (hex) over all heads: keep it elsewhere, and a store that shows it again has not been rewritten since.
    """

    faults: tuple[str, ...]
    namespaces: int
    operations: int
    forgotten: int
    head: str

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.faults


def verify(log: Log) -> Report:
    """Check a store; never raises for what is wrong with it."""
    with log.lock:
        faults = log.backend.integrity()
        counts = [0, 0, 0]
        head = ""
        try:
            with log.backend.reading():
                head = chain.mix(log.backend.heads().items())
                faults += _chains(log, counts)
        except JournalDamagedError as error:
            faults.append(str(error))
        return Report(tuple(dict.fromkeys(faults)), counts[0], counts[1], counts[2], head)


def _chains(log: Log, counts: list[int]) -> list[str]:
    heads, there = log.backend.heads(), log.backend.chains()
    faults = [f"chain {ns or '(registry)'} has records and no head" for ns in sorted(there - heads.keys())]
    registry = [
        r for r in _records(log, REGISTRY, heads.get(REGISTRY), faults) if not chain.fault(r, Head(r.seq - 1, r.previous), log.key)
    ]
    begun = {record.entry for record in registry if record.kind == Kind.BEGIN}
    gone = {record.entry for record in registry if record.kind == Kind.FORGET}
    faults += [f"namespace {ns} is in the registry and its records are missing" for ns in sorted(begun - gone - heads.keys())]
    faults += [f"chain {ns} is in no registry" for ns in sorted(heads.keys() - begun - {REGISTRY})]
    faults += [f"namespace {ns} was forgotten and has records" for ns in sorted(gone & there)]
    shapes = {record.entry: record.data().get("schema") for record in registry if record.body}
    for ns in sorted(heads.keys() - {REGISTRY}):
        before = len(faults)
        records = _records(log, ns, heads[ns], faults)
        counts[0] += 1
        counts[1] += len(records)
        counts[2] += sum(record.erased for record in records)
        if len(faults) == before and shapes.get(ns) is not None:
            try:
                faults += [f"namespace {ns}: {line}" for line in replay_faults(records, schema_of(shapes[ns]))]
            except JournalDamagedError as error:
                faults.append(f"namespace {ns}: {error}")
    return faults


def _records(log: Log, ns: str, head: Head | None, faults: list[str]) -> list[Record]:
    try:
        records = log.backend.rows(ns)
        faults += [
            f"namespace {ns or '(registry)'}: {line}"
            for line in chain.check(ns, records, None, head or Head(0, chain.root(ns)), log.key)
        ]
        return records
    except MemAlphaError as error:
        faults.append(f"namespace {ns or '(registry)'}: {error}")
        return []


def schema_of(shape: Any) -> MemorySchema:
    """Return a schema of a recorded shape that limits nothing and allows everything.

    Raises:
        JournalDamagedError: If it is no shape of a schema.
    """
    try:
        sections = tuple(Section(str(name), SectionKind(str(kind)), timestamps=times) for name, kind, times in shape["sections"])
        return MemorySchema(str(shape["name"]), sections)
    except (TypeError, ValueError, KeyError) as error:
        raise JournalDamagedError(
            f"{str(shape)[:200]!r} is recorded as a schema", expected='{"name": ..., "sections": [[name, kind, times], ...]}'
        ) from error


def replay_faults(records: Sequence[Record], schema: MemorySchema) -> list[str]:
    """Return where an operation does not lead to the entry recorded for it; checked up to the first erased record."""
    memory, faults = JournalMemory(schema), []
    start = next((i for i, record in enumerate(records) if record.kind not in (Kind.BASE, Kind.KEEP)), len(records))
    memory.replay(records[:start])
    if any(record.erased for record in records[:start]):
        return []
    for record in records[start:]:
        if record.erased:
            break
        if record.kind != Kind.APPLY:
            memory.replay([record])
            continue
        data, seen = record.data(), len(memory.changes)
        memory.begin()
        result = memory.apply(operation_of(data["operation"]), chunk=data["chunk"], time=data["said"])
        memory.end()
        if not result.changed or memory.changes[seen:] != [Change(memory.changes[-1].before, record.after())]:
            faults.append(f"operation {record.seq} leads to {result.message!r}, not to the entry that was recorded")
            break
    return faults
