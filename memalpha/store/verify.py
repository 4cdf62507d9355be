"""Verification of a store; faults are returned, not raised.

Checked: the database's own integrity; the hash over all heads; edited, missing and reordered records of each chain; a receipt for
each erased record; the registry against the chains; and each operation before the first erased one, by running ``Memory.apply``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.errors import JournalError
from memalpha.memory.schema import MemorySchema
from memalpha.store.log import Log
from memalpha.store.memory import JournalMemory, events, schema_of
from memalpha.store.records import REGISTRY, Head, Kind, Record, check, fault, mix, root
from memalpha.types import Change


@dataclass(frozen=True, slots=True)
class Report:
    """What verification found: ``faults`` (one line each), and the number of chains, records and forgotten records.

    ``head`` is one hash (hex) over all heads. Keep it elsewhere: the same value later shows that the log was not rewritten.
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
    """Check a store; never raises for a fault in it."""
    with log.lock:
        faults, chains = log.database.integrity(), dict[str, list[Record]]()
        head = ""
        try:
            with log.database.reading():
                heads = log.database.heads()
                head = mix(heads.items())
                faults += _faults(log, heads, chains)
        except JournalError as error:
            faults.append(str(error))
        records = [record for ns, found in chains.items() if ns != REGISTRY for record in found]
        forgotten = sum(record.erased for record in records)
        return Report(tuple(dict.fromkeys(faults)), len(chains.keys() - {REGISTRY}), len(records), forgotten, head)


def _faults(log: Log, heads: dict[str, Head], chains: dict[str, list[Record]]) -> list[str]:
    """Check every chain, and collect their records in ``chains``."""
    there = log.database.chains()
    faults = [f"chain {ns or '(registry)'} has records and no head" for ns in sorted(there - heads.keys())]
    registry = log.database.rows(REGISTRY)
    faults += [f"registry: {line}" for line in check(REGISTRY, registry, None, heads.get(REGISTRY, root(REGISTRY)), log.key)]
    registry = [record for record in registry if not fault(record, Head(record.seq - 1, record.previous), log.key)]
    begun = {record.entry for record in registry if record.kind == Kind.BEGIN}
    gone = {record.entry for record in registry if record.kind == Kind.FORGET}
    faults += [f"namespace {ns} is in the registry and its records are missing" for ns in sorted(begun - gone - heads.keys())]
    faults += [f"chain {ns} is in no registry" for ns in sorted(heads.keys() - begun - {REGISTRY})]
    faults += [f"namespace {ns} was forgotten and has records" for ns in sorted(gone & there)]
    shapes = {record.entry: record.registered().shape for record in registry if record.body}
    for ns in sorted(heads.keys() - {REGISTRY}):
        try:
            chains[ns] = log.database.rows(ns)
            found = check(ns, chains[ns], None, heads[ns], log.key)
            if not found and shapes.get(ns) is not None:
                found = replay_faults(chains[ns], schema_of(shapes[ns]))
        except JournalError as error:
            found = [str(error)]
        faults += [f"namespace {ns}: {line}" for line in found]
    return faults


def replay_faults(records: Sequence[Record], schema: MemorySchema) -> list[str]:
    """Return the operations that do not lead to their recorded entry, up to the first erased record."""
    for _ in events(records):
        pass
    memory = JournalMemory(schema)
    start = next((i for i, record in enumerate(records) if record.kind not in (Kind.BASE, Kind.KEEP)), len(records))
    memory.replay(records[:start])
    if any(record.erased for record in records[:start]):
        return []
    for record in records[start:]:
        if record.erased:
            break
        data, seen = record.data(), len(memory.changes)
        if record.kind != Kind.APPLY or data.operation is None:
            memory.replay([record])
            continue
        memory.begin()
        result = memory.apply(data.operation, chunk=data.chunk, time=data.said)
        memory.end()
        if not result.changed or memory.changes[seen:] != [Change(memory.changes[-1].before, data.after)]:
            return [f"operation {record.seq} leads to {result.message!r}, not to the entry that was recorded"]
    return []
