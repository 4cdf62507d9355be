"""The archive: what was read, line by line, searched beside the entries; a line leaves it when an operation makes it outdated.

An entry knows the chunk of its last write. When it is updated or deleted, the line of that chunk that said what is now gone is
removed: the one with most of its words, at least half of them. The policy neither sees nor writes the archive.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE
from memalpha.protocols import TokenCounter
from memalpha.retrieval.lexical import tokenize
from memalpha.types import Change, Chunk, Entry, Operation, OperationKind

LINE_TOKENS = 48  # a longer line is kept sentence by sentence
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SHARE = 0.5  # least share of the words that are gone which an outdated line has


def keep(memory: Memory, index: int, chunk: Chunk, changes: Sequence[Change]) -> None:
    """Remove the lines that ``changes`` (those of this chunk) make outdated, then add those of the chunk with this index."""
    for change in changes:
        if (line := outdated(memory, change)) is not None:
            memory.apply(Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=line.id), chunk=index, time=chunk.time)
    for text in lines(chunk.text, memory.count_tokens):
        memory.apply(Operation(OperationKind.INSERT, ARCHIVE.name, text), chunk=index, time=chunk.time)


def lines(text: str, count: TokenCounter) -> Iterator[str]:
    """Iterate over the lines of a text that are not blank; a long line sentence by sentence."""
    for line in filter(None, map(str.strip, text.split("\n"))):
        yield from _SENTENCE_END.split(line) if count(line) > LINE_TOKENS else [line]


def outdated(memory: Memory, change: Change) -> Entry | None:
    """Return the line that said what a change took away, or None."""
    said = [line for line in memory.entries(ARCHIVE.name) if outdates(change, line)]
    return max(said, key=lambda line: (_shared(change, line), line.created), default=None)


def outdates(change: Change, line: Entry) -> bool:
    """Whether a line of the chunk that an entry came from has at least half of the words that a change took from it."""
    before = change.before
    same = before is not None and before.source_chunk is not None and before.source_chunk == line.source_chunk
    return same and _shared(change, line) >= _SHARE


def _shared(change: Change, line: Entry) -> float:
    before, after = (set(tokenize(entry.content)) if entry else set() for entry in change)
    gone = before - after
    return len(gone & set(tokenize(line.content))) / len(gone) if gone else 0.0
