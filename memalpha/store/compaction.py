"""The records that stand in for a log that is dropped: a base (next id, receipts), then one an entry, so each can be forgotten."""

from __future__ import annotations

import json
from collections.abc import Sequence

from memalpha.store import chain
from memalpha.store.forgetting import receipts_in
from memalpha.store.memory import JournalMemory
from memalpha.store.records import Head, Kind, Record, entry_data, stamp, to_body


def base_of(memory: JournalMemory, records: Sequence[Record], key: bytes | None, time: str) -> list[Record]:
    """Return what follows on ``records`` and leads, by itself, to the memory they lead to.

    Args:
        memory: What the records lead to.
        records: The whole chain so far, at least one record.
        key: The journal's key.
        time: When.
    """
    ns, head = records[-1].ns, Head(records[-1].seq, records[-1].hash)
    receipts = [(receipt.entry, stamp(receipt.time), receipt.operations, receipt.said_by) for receipt in receipts_in(records)]
    note = json.dumps({"next_id": memory.snapshot().next_id, "entries": len(memory), "receipts": receipts})
    base = [chain.seal(head, key, ns=ns, kind=Kind.BASE, time=time, note=note)]
    for entry in memory:
        body = to_body({"after": entry_data(entry)})
        last = Head(base[-1].seq, base[-1].hash)
        base.append(chain.seal(last, key, ns=ns, kind=Kind.KEEP, time=time, entry=entry.id, body=body))
    return base
