"""The archive: what was read, line by line, searched beside the entries.

A line leaves it only when an operation updates or deletes the entry of its fact: of each chunk in
which the entry was written, the line that says the same is removed (``line_of``). The policy
neither sees nor writes the archive.
"""

from collections.abc import Sequence

from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval.current import line_of
from memalpha.types import Change, Chunk, Entry, Operation, OperationKind
from memalpha.units import UNIT_TOKENS, units


def archive_chunk(memory: Memory, index: int, chunk: Chunk, changes: Sequence[Change]) -> None:
    """Add the lines of a chunk, and remove those whose facts ``changes`` took back.

    ``index`` and ``changes`` are those of the chunk.
    """
    corrects = any(change.before is not None for change in changes)
    lines = list(memory.entries(ARCHIVE.name)) if corrects else []
    for before, after in changes:
        if before is None:
            continue
        for version in _versions(memory, before):
            of_chunk = [line for line in lines if line.source_chunk == version.source_chunk]
            line = line_of(version, of_chunk, after)
            if line is not None:
                lines.remove(line)
                delete = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=line.id)
                memory.apply(delete, chunk=index, time=chunk.time)
    for text in units(chunk.text, UNIT_TOKENS, memory.count_tokens):
        insert = Operation(OperationKind.INSERT, ARCHIVE.name, text)
        memory.apply(insert, chunk=index, time=chunk.time)


def _versions(memory: Memory, entry: Entry) -> list[Entry]:
    """What an entry said, in each chunk that wrote it, and what it says now."""
    written = [change.after for change in memory.changes if change.after is not None]
    versions = [version for version in (*written, entry) if version.id == entry.id]
    return list({(version.source_chunk, version.content): version for version in versions}.values())
