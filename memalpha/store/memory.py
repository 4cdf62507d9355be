"""The memory of one namespace, which every process builds from the same records by the same code.

It is ``memalpha.memory.memory.Memory`` with two differences. Its changes are numbered as the journal's operations are, so
``Entry.created`` and ``Entry.updated`` name operations. And it takes an operation inside ``DurableMemory.writing`` only: elsewhere
nobody would log it.

What always holds: the memory after an operation and the memory rebuilt from the log to that operation are equal: entries, their
order, the order of ``newest``, the next id. ``Memory.apply`` decides an operation once, when it is written, and the record keeps
what came of it; taking a record goes through the same commit, so another tokenizer, other limits or a later version of
``apply`` change no past. ``verify`` asks ``Memory.apply`` again, for every operation it can.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple

from memalpha.errors import JournalDamagedError, JournalError
from memalpha.memory.memory import Memory, Snapshot, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import TokenCounter
from memalpha.store.records import Kind, Record
from memalpha.types import Change, Entry, Operation, OperationResult


class Written(NamedTuple):
    """An operation applied and not yet logged."""

    operation: Operation
    chunk: int | None
    time: str | None
    change: Change


class JournalMemory(Memory):
    """A memory that follows a journal.

    Args:
        schema: Its sections and limits; limits are not judged again for what is in the log.
        count_tokens: Token counter.
    """

    def __init__(self, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> None:
        super().__init__(schema, count_tokens)
        self.seq = 0
        self._draft: list[Written] | None = None

    # -------------------------------------------------------------------------------------------- writing
    def begin(self) -> None:
        """Take operations from now on."""
        self._draft = []

    def end(self) -> list[Written]:
        """Take no more operations; return those applied since ``begin``, in order."""
        draft, self._draft = self._draft or [], None
        return draft

    def apply(self, operation: Operation, *, chunk: int | None = None, time: str | None = None) -> OperationResult:
        """Apply an operation, to be logged when the ``writing`` block ends.

        Raises:
            JournalError: Outside such a block.
        """
        if self._draft is None:
            raise JournalError(
                "a durable memory was written outside of its journal", fix="with durable.writing(origin) as memory: ..."
            )
        self._clock = self.seq + 1
        result = super().apply(operation, chunk=chunk, time=time)
        if result.changed:
            self.seq += 1
            self._draft.append(Written(operation, chunk, time, self.changes[-1]))
        return result

    def restore(self, snapshot: Snapshot) -> None:
        """Refuse: a durable memory goes back through its journal alone.

        Raises:
            JournalError: Always.
        """
        raise JournalError(
            "a durable memory cannot be restored to a snapshot", fix="undo, as_of, or a copy(): that one is in process"
        )

    # -------------------------------------------------------------------------------------------- replaying
    def replay(self, records: Sequence[Record]) -> None:
        """Take records in order, the first of which follows on what was taken before (or is the first there is).

        Raises:
            JournalDamagedError: If a record fits no memory of this schema.
        """
        kept: list[Entry] = []
        for record in records:
            if record.kind == Kind.KEEP and self.seq == 0:
                kept += [entry] if (entry := record.after()) is not None else []
                continue
            if kept:
                self._begin_with(kept)
                kept = []
            self._take(record)
        if kept:
            self._begin_with(kept)
        if records:
            self.seq = records[-1].seq
            self._clock = self.seq + 1

    def _begin_with(self, entries: list[Entry]) -> None:
        super().restore(Snapshot(self.schema.name, tuple(entries), self._next_id))

    def _take(self, record: Record) -> None:
        if record.kind == Kind.BASE:
            self._next_id = max(self._next_id, int(record.facts()["next_id"]))
            return
        self._clock = record.seq
        before, after = self.get(record.entry), record.after()
        if after is not None and (after.section not in self.schema or after.id != record.entry):
            raise JournalDamagedError(f"operation {record.seq} wrote an entry that fits no section of {self.schema.name!r}")
        if record.kind == Kind.UNDO or (after is not None and before is None and after.created < record.seq):
            self._put(record.entry, after)
        elif before != after:
            if after is not None:
                self._tokens[after.content] = self.count_tokens(after.content)
            self._commit(Change(before, after))
        if record.entry.isdecimal():
            self._next_id = max(self._next_id, int(record.entry) + 1)
        if record.kind != Kind.KEEP:
            self.seq = record.seq

    def _put(self, entry_id: str, after: Entry | None) -> None:
        """Bring an entry to a state it had before, at the place its number of creation gives it."""
        entries = [entry for entry in self if entry.id != entry_id]
        if after is not None:
            insort(entries, after, key=lambda entry: entry.created)
        super().restore(Snapshot(self.schema.name, tuple(entries), self._next_id))


def shape(schema: MemorySchema) -> dict[str, object]:
    """Return what of a schema must not change under a log: its name, its sections' names, kinds and whether they keep times."""
    return {"name": schema.name, "sections": [[s.name, s.kind.value, s.timestamps] for s in schema.sections]}
