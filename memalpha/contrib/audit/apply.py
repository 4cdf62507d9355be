"""Carries out what an audit proposes, each through the journal, and checks that it was done."""

from __future__ import annotations

from dataclasses import dataclass

from memalpha.contrib.audit.view import Action, Finding, Proposal
from memalpha.errors import JournalConflictError, JournalError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import SectionKind
from memalpha.store.durable import DurableMemory
from memalpha.store.journal import Origin
from memalpha.types import Entry, Operation, OperationKind

BY = Origin("memalpha audit")


@dataclass(frozen=True, slots=True)
class Remedy:
    """The outcome of a finding: ``done`` is False if it was skipped, and ``said`` gives the change
    or the reason.
    """

    finding: Finding
    done: bool
    said: str


def carry_out(durable: DurableMemory, finding: Finding, proposal: Proposal | None = None) -> Remedy:
    """Carry out the proposal of a finding, or another ``proposal``.

    Skipped, with the reason, if the entry is no longer as it was found, or the journal refuses.
    """
    proposal = proposal or finding.proposal
    entry = finding.entry
    if proposal.action is Action.KEEP:
        return Remedy(finding, False, "kept")
    if durable.memory.get(entry.id) != entry:
        return Remedy(
            finding, False, f"skipped: entry {entry.id} was changed after the audit had found it"
        )
    try:
        said = _change_entry(durable, entry, proposal)
    except JournalError as error:
        return Remedy(finding, False, f"skipped: {error.what}")
    after = durable.memory.get(entry.id)
    if after == entry:
        return Remedy(finding, False, f"skipped: {said}")
    return Remedy(finding, True, said)


def _change_entry(durable: DurableMemory, entry: Entry, proposal: Proposal) -> str:
    """Change an entry, and say how."""
    match proposal.action:
        case Action.UNDO if proposal.operation is not None:
            change = durable.undo(proposal.operation, BY)
            back = f": it says {change.after.content!r} again" if change.after else ""
            return f"operation {proposal.operation} was undone{back}"
        case Action.FORGET:
            left = durable.memory
            also = [line for line in proposal.also if left.get(line) is not None]
            receipt = durable.forget(entry.id, also)
            return f"entry {entry.id} was forgotten: {receipt.operations} records erased"
    with durable.writing(BY) as memory:
        if memory.get(entry.id) != entry:  # by another process, a moment ago
            raise JournalConflictError(f"entry {entry.id} was changed after the audit had found it")
        operation = _operation(memory, entry, proposal)
        result = memory.apply(operation, chunk=entry.source_chunk)
    return (
        f"{result.message} (undo {durable.memory.clock - 1} takes it back)"
        if result.changed
        else result.message
    )


def _operation(memory: Memory, entry: Entry, proposal: Proposal) -> Operation:
    if proposal.action is Action.DELETE:
        return Operation(OperationKind.DELETE, entry.section, entry_id=entry.id)
    if memory.schema[entry.section].kind is SectionKind.BLOCK:
        return Operation(OperationKind.REPLACE, entry.section, proposal.text)
    return Operation(
        OperationKind.UPDATE, entry.section, proposal.text, entry.id, timestamp=entry.timestamp
    )
