"""The archive: what was read, line by line, searched beside the entries; a line leaves it when an operation makes it outdated.

An entry knows the chunk of its last write. When it is updated or deleted, the line of that chunk that said what is now gone is
removed: the one with most of its words, at least half of them. So is the line of the chunk at hand that takes it back ("I moved
from Oslo to Rome"): it has such a share, too, and of an update also a new word. The policy neither sees nor writes the archive.
"""

from __future__ import annotations

from collections.abc import Sequence

from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval.lexical import tokenize
from memalpha.types import Change, Chunk, Entry, Operation, OperationKind
from memalpha.units import UNIT_TOKENS, units

_SHARE = 0.5  # least share of the words that are gone which an outdated line has


def keep(memory: Memory, index: int, chunk: Chunk, changes: Sequence[Change]) -> None:
    """Add the lines of the chunk with this index, and remove those that ``changes`` (of this chunk) make outdated."""
    for text in units(chunk.text, UNIT_TOKENS, memory.count_tokens):
        memory.apply(Operation(OperationKind.INSERT, ARCHIVE.name, text), chunk=index, time=chunk.time)
    held = list(memory.entries(ARCHIVE.name)) if changes else []
    for change in changes:
        before, after = change
        for place in {before.source_chunk, index} if before else ():
            said = [line for line in held if line.source_chunk == place and outdates(change, line)]
            if place == index and after is not None:
                said = [line for line in said if _common(Change(after, before), line)]
            if said:
                line = max(said, key=lambda line: (_common(change, line), line.created))
                held.remove(line)
                memory.apply(Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=line.id), chunk=index, time=chunk.time)


def line_of(entry: Entry, lines: Sequence[Entry]) -> Entry | None:
    """Return the one line that says an entry's fact, or None when that is not clear.  STAND-IN: the lead's function replaces it."""
    shares = [(_common(Change(entry, None), line), line) for line in lines]
    best = max((share for share, _ in shares), default=0.0)
    lines = [line for share, line in shares if share == best]
    return lines[0] if best >= _SHARE and len(lines) == 1 else None


def outdates(change: Change, line: Entry) -> bool:
    """Whether a line of the same chunk has at least half of the words that a change took away."""
    return _common(change, line) >= _SHARE


def _common(change: Change, line: Entry) -> float:
    """Share of the words of ``change.before`` that are not in ``change.after`` that a line has."""
    before, after = (set(tokenize(entry.content)) if entry else set() for entry in change)
    gone = before - after
    return len(gone & set(tokenize(line.content))) / len(gone) if gone else 0.0
