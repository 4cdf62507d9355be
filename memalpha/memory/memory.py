"""A structured memory in process: apply operations, snapshot and restore, count tokens.

What always holds: a bad operation gives a failed result, never an exception; an id is never used
twice; a write over a limit is refused, and so is a change by a text of an earlier date than the
entry; a duplicate in its section (same content, and same time if one is given) succeeds and changes
nothing, but an entry that a text says again later takes the new time and chunk; an update to what
another entry of the section says deletes the updated one; ``changes`` lists what was applied, so
that indexes and logs follow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from memalpha.errors import InputError, JournalError
from memalpha.memory.schema import ARCHIVE, MemorySchema, Section, SectionKind
from memalpha.text.times import ISO_8601, check_said, check_time, is_to_come, later, moment
from memalpha.types import (
    Change,
    Entry,
    Operation,
    OperationKind,
    OperationResult,
    ResultCode,
    TokenCounter,
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The whole state of a memory; entries are in order of creation, blocks included."""

    schema: str
    entries: tuple[Entry, ...]
    next_id: int


def count_words(text: str) -> int:
    """Count words separated by white space; the token counter if there is no tokenizer."""
    return len(text.split())


class AppliedOperation(NamedTuple):
    """An applied operation with its effect and its origin, as a store records it.

    ``call``: number of the first operation of the call that it belongs to; None if it is alone.
    """

    change: Change
    operation: Operation | None  # None: of an undo, or of metadata alone
    chunk: int | None
    call: int | None = None


LINE_ID = "line-"  # how the id of a line of the archive begins, and no other
Says = Callable[[Entry], bool]
"""Tells whether the text that is read says an entry."""
_Problem = tuple[ResultCode, str]  # with a sentence that says it
_CREATED = attrgetter("created")


class Memory:
    """A structured memory under one schema, in this process.

    ``clock`` is the number of the next change, and ``changes`` holds all of them. ``now`` is the
    writer's clock or None; entries with a later time are refused. ``metadata`` goes to each entry
    that is written (None leaves an entry its own). ``writable`` is False for the memory of a store
    outside of ``writing``, where no change could be stored.

    Args:
        schema: The sections and limits.
        count_tokens: The function that counts the tokens of a text for the limits, in training and
            use the policy's tokenizer.
    """

    def __init__(self, schema: MemorySchema, count_tokens: TokenCounter = count_words) -> None:
        self.schema = schema
        self.count_tokens = count_tokens
        self.changes: list[Change] = []
        self.applied: list[AppliedOperation] = []
        self.writable = True
        self.now: datetime | None = None
        self.metadata: str | None = None
        self._entries: dict[str, Entry] = {}
        # ids by section and content, the last written last
        self._by_content: dict[str, dict[str, list[str]]] = defaultdict(dict)
        self._sizes: dict[str, int] = {section.name: 0 for section in (*schema.sections, ARCHIVE)}
        self._tokens: dict[str, int] = {}  # of every content that was ever held, lines not
        self.tokens = 0  # of all contents, blocks included, the archive not
        self._lists = frozenset(section.name for section in schema.lists)
        self._written: dict[str, None] = {}  # ids of list entries, the last written last
        self._next_id = 1
        self.clock = 0

    def __len__(self) -> int:
        return len(self._entries) - self._sizes[ARCHIVE.name]

    def __iter__(self) -> Iterator[Entry]:
        """Iterate in order of creation, written blocks included, the archive not."""
        return iter([entry for entry in self._entries.values() if entry.section != ARCHIVE.name])

    def get(self, entry_id: str) -> Entry | None:
        """Return the entry with an id, or None.

        Args:
            entry_id: The id.
        """
        return self._entries.get(entry_id)

    def several(self, ids: Iterable[str]) -> list[Entry]:
        """Return the entries with these ids, as far as they exist.

        Args:
            ids: The ids.
        """
        return [self._entries[key] for key in ids if key in self._entries]

    def entry_with(self, content: str) -> Entry | None:
        """Return the oldest list entry with exactly this content, or None.

        Args:
            content: The content.
        """
        entries = [
            self._entries[key]
            for section in self.schema.lists
            for key in self._by_content[section.name].get(content, ())
        ]
        return min(entries, key=_CREATED, default=None)

    def line_before(self, line: Entry) -> Entry | None:
        """Return the archived line that was added right before another one, or None if it is gone.

        Args:
            line: The other line.
        """
        return self._entries.get(f"{LINE_ID}{line.created - 1}")

    def entries(self, section: str | None = None) -> tuple[Entry, ...]:
        """Return the entries of one list section, or of all, in order of creation.

        Args:
            section: The name of the section; None takes all list sections.

        Raises:
            KeyError: There is no such section.
        """
        wanted = {self.schema[section].name} if section else self._lists
        return tuple(entry for entry in self._entries.values() if entry.section in wanted)

    def newest(self) -> Iterator[Entry]:
        """Iterate over all list entries, the last written one first.

        The memory must not change during the iteration.
        """
        return (self._entries[key] for key in reversed(self._written))

    def block(self, section: str) -> str:
        """Return the text of a block section, which is empty if none was written.

        Args:
            section: The name of the section.
        """
        entry = self._entries.get(self.schema[section].name)
        return entry.content if entry else ""

    def section_size(self, section: str) -> int:
        """Return the number of entries in a section.

        Args:
            section: The name of the section.
        """
        return self._sizes[section]

    # --------------------------------------------------------------------------------------------
    # writing
    def apply(
        self,
        operation: Operation,
        *,
        chunk: int | None = None,
        time: str | None = None,
        says: Says | None = None,
    ) -> OperationResult:
        """Apply one operation.

        Args:
            operation: The operation.
            chunk: Index of the chunk from which it comes; None without one.
            time: The time of the chunk, which an entry gets if the operation names none.
            says: A function that tells whether the chunk says an entry, so that it counts as said
                again. None takes each repeated entry as said.

        Returns:
            The result. A mistake is a failed result and no exception.

        Raises:
            InputError: ``time`` is in the future.
            JournalError: The memory is not ``writable``.
        """
        self._check_writable()
        if self.now is not None:
            check_said(time, self.now)
        result = self._apply(operation, chunk, time, says)
        if result.logged:
            self.applied.append(AppliedOperation(self.changes[-1], operation, chunk))
        return result

    def annotate(self, entry_id: str, metadata: str) -> None:
        """Replace the metadata of an entry, and leave the rest of it as it is.

        Args:
            entry_id: The id of an existing entry.
            metadata: The new metadata as JSON.
        """
        self._check_writable()
        entry = self._entries[entry_id]
        change = Change(entry, replace(entry, metadata=metadata, updated=self.clock))
        self._commit(change)
        self.applied.append(AppliedOperation(change, None, entry.source_chunk))

    def _check_writable(self) -> None:
        if not self.writable:
            raise JournalError(
                "a durable memory was written outside of its journal",
                fix="write inside durable.writing(origin)",
            )

    def _apply(
        self, operation: Operation, chunk: int | None, time: str | None, says: Says | None
    ) -> OperationResult:
        problem = self._problem(operation, time)
        if problem is not None:
            return OperationResult(False, *problem, operation)
        old = self._target(operation)
        if operation.kind is OperationKind.DELETE and old is not None:
            return self._delete(operation, old, f"deleted {old.id}")
        return self._write(operation, old, chunk, time, says)

    def _problem(self, operation: Operation, time: str | None) -> _Problem | None:
        """Why an operation is refused, whatever the memory says; None if it is not."""
        kind = operation.kind
        if operation.section not in self.schema:
            names = [section.name for section in self.schema.sections]
            return (
                ResultCode.UNKNOWN_SECTION,
                f"no section {operation.section!r}; there are: {', '.join(names)}",
            )
        if operation.timestamp and moment(operation.timestamp) is None:
            return (
                ResultCode.BAD_ARGUMENTS,
                f"timestamp is {operation.timestamp!r:.60}, and must be {ISO_8601}",
            )
        if self._is_to_come(operation.timestamp):
            return ResultCode.BAD_ARGUMENTS, f"timestamp is {operation.timestamp}, which is to come"
        section = self.schema[operation.section]
        if kind not in section.operations:
            return (
                ResultCode.NOT_ALLOWED,
                f"{kind} is not allowed in {section.name}; "
                f"allowed: {', '.join(section.operations)}",
            )
        if kind is not OperationKind.DELETE and not (operation.content or "").strip():
            return ResultCode.EMPTY, "the content is empty"
        old = self._target(operation)
        if old is None and kind in (OperationKind.UPDATE, OperationKind.DELETE):
            return ResultCode.UNKNOWN_ID, f"no entry {operation.entry_id!r} in {section.name}"
        is_later = old is not None and later(old.timestamp, operation.timestamp or time)
        if old is not None and is_later and not self._is_to_come(old.timestamp):
            return ResultCode.OUTDATED, f"{old.id} is of a later time: {old.timestamp}"
        return None

    def _is_to_come(self, time: str | None) -> bool:
        return self.now is not None and is_to_come(time, self.now)

    def _target(self, operation: Operation) -> Entry | None:
        """The entry that an operation changes; None if it makes one, or there is none."""
        if operation.kind is OperationKind.INSERT:
            return None
        names_section = operation.kind is OperationKind.REPLACE
        entry = self.get(operation.section if names_section else operation.entry_id or "")
        return entry if entry is not None and entry.section == operation.section else None

    def apply_all(
        self,
        operations: Sequence[Operation],
        *,
        chunk: int | None = None,
        time: str | None = None,
        says: Says | None = None,
    ) -> list[OperationResult]:
        """Apply the operations of one call in order, all of them or none.

        Args:
            operations: The operations.
            chunk: As in ``apply``.
            time: As in ``apply``.
            says: As in ``apply``.

        Returns:
            The results in order. After a failure it is one result, without its operation.
        """
        if len(operations) > 1:
            trial = self.copy()
            for operation in operations:
                result = trial.apply(operation, chunk=chunk, time=time, says=says)
                if not result.ok:
                    return [replace(result, operation=None)]
        first = self.clock
        start = len(self.applied)
        results = [
            self.apply(operation, chunk=chunk, time=time, says=says) for operation in operations
        ]
        if len(self.applied) > start + 1:
            self.applied[start:] = [each._replace(call=first) for each in self.applied[start:]]
        return [replace(result, part=place > 0) for place, result in enumerate(results)]

    def take(self, entry_id: str, after: Entry | None, number: int) -> None:
        """Set an entry to ``after``, as operation ``number`` of a log that is replayed.

        The change was decided earlier, in a recorded operation or by an undo, and is not checked.
        An entry that comes back takes its old place.

        Args:
            entry_id: The id of the entry.
            after: The new state of the entry; None deletes it.
            number: The number of the operation.
        """
        before = self._entries.get(entry_id)
        self.clock = number
        if after != before:
            if after is not None:
                self._count(after)
            self._commit(Change(before, after))
        if after is not None and (after.updated if before else after.created) < number:
            self._sort()
        if entry_id.isdecimal():
            self._next_id = max(self._next_id, int(entry_id) + 1)
        self.clock = number + 1

    def _sort(self) -> None:
        """Bring the entries into the order of their creation, and of their last change."""
        entries = sorted(self._entries.values(), key=_CREATED)
        self._entries = {entry.id: entry for entry in entries}
        listed = [entry for entry in entries if entry.section in self._lists]
        self._written = {entry.id: None for entry in sorted(listed, key=attrgetter("updated"))}

    def _write(
        self,
        operation: Operation,
        old: Entry | None,
        chunk: int | None,
        time: str | None,
        says: Says | None,
    ) -> OperationResult:
        """Insert an entry, or change ``old``, unless a duplicate or a limit is in the way."""
        section = self.schema[operation.section]
        content = (operation.content or "").strip()
        named = (operation.timestamp or None) if section.timestamps else None
        timestamp = (named or (time and check_time(time))) if section.timestamps else None
        if old is not None and _says(old, content, named):
            return self._repeat(operation, old, timestamp, chunk, says)
        same = self._same(section, content, named, old, chunk)
        if same is not None and old is None:
            return self._repeat(operation, same, timestamp, chunk, says)
        if same is not None and old is not None:
            return self._delete(operation, old, f"deleted {old.id}: {same.id} says so already")
        problem = self._over_limit(operation.kind, section, content)
        if problem is not None:
            return OperationResult(False, *problem, operation)
        now = self.clock
        if old is not None:
            entry = replace(
                old,
                content=content,
                timestamp=timestamp,
                source_chunk=chunk,
                updated=now,
                metadata=self.metadata or old.metadata,
            )
        else:
            entry_id = self._new_id(section)
            entry = Entry(
                entry_id, section.name, content, timestamp, chunk, now, now, self.metadata
            )
        self._commit(Change(old, entry))
        return OperationResult(
            True, ResultCode.APPLIED, f"{operation.kind} {entry.id}", operation, entry.id
        )

    def _delete(self, operation: Operation, old: Entry, message: str) -> OperationResult:
        self._commit(Change(old, None))
        return OperationResult(True, ResultCode.APPLIED, message, operation, old.id)

    def _repeat(
        self,
        operation: Operation,
        entry: Entry,
        time: str | None,
        chunk: int | None,
        says: Says | None,
    ) -> OperationResult:
        """Succeed, since the entry says so already; what is said again later holds since then."""
        again = replace(
            entry, timestamp=time or entry.timestamp, source_chunk=chunk, updated=self.clock
        )
        message = f"{entry.id} says so already"
        is_said = says is None or says(entry)
        if operation.kind is OperationKind.REPLACE or not newer(again, entry) or not is_said:
            return OperationResult(True, ResultCode.DUPLICATE, message, operation, entry.id)
        self._commit(Change(entry, again))
        return OperationResult(True, ResultCode.RENEWED, message, operation, entry.id)

    def _same(
        self,
        section: Section,
        content: str,
        named: str | None,
        old: Entry | None,
        chunk: int | None,
    ) -> Entry | None:
        """Another entry with this content and time, or None.

        What was read again in another chunk is another line.
        """
        keys = self._by_content[section.name].get(content, [])
        # of equal lines only the last can be of the chunk that is read now
        for key in keys[-1:] if section is ARCHIVE else keys:
            entry = self._entries[key]
            again = section is ARCHIVE and entry.source_chunk != chunk
            if entry is not old and _says(entry, content, named) and not again:
                return entry
        return None

    def _over_limit(self, kind: OperationKind, section: Section, content: str) -> _Problem | None:
        if section is ARCHIVE:
            return None
        is_block = section.kind is SectionKind.BLOCK
        limit = section.max_tokens if is_block else section.max_entry_tokens
        tokens = self.count_tokens(content)
        if limit and tokens > limit:
            return ResultCode.TOO_LONG, f"{tokens} tokens, at most {limit} fit in {section.name}"
        full = 0 < section.max_entries <= self._sizes[section.name]
        if full and kind is OperationKind.INSERT:
            return (
                ResultCode.SECTION_FULL,
                f"{section.name} holds at most {section.max_entries} entries",
            )
        self._tokens[content] = tokens
        return None

    def _new_id(self, section: Section) -> str:
        if section.kind is SectionKind.BLOCK:
            return section.name
        if section is ARCHIVE:
            return f"{LINE_ID}{self.clock}"
        self._next_id += 1
        return str(self._next_id - 1)

    def _count(self, entry: Entry) -> None:
        if entry.section != ARCHIVE.name and entry.content not in self._tokens:
            self._tokens[entry.content] = self.count_tokens(entry.content)

    def _commit(self, change: Change) -> None:
        before, after = change
        if before is not None:
            self.tokens -= self._tokens[before.content] if before.section != ARCHIVE.name else 0
            self._written.pop(before.id, None)
            same = self._by_content[before.section][before.content]
            same.remove(before.id)
            if not same:
                del self._by_content[before.section][before.content]
            if after is None:
                del self._entries[before.id]
                self._sizes[before.section] -= 1
        if after is not None:
            self.tokens += self._tokens[after.content] if after.section != ARCHIVE.name else 0
            if after.section in self._lists:
                self._written[after.id] = None
            self._entries[after.id] = after
            self._by_content[after.section].setdefault(after.content, []).append(after.id)
            if before is None:
                self._sizes[after.section] += 1
        self.changes.append(change)
        self.clock += 1

    # --------------------------------------------------------------------------------------------
    # snapshots
    def snapshot(self) -> Snapshot:
        """Return the whole state, which is cheap, since entries are frozen."""
        return Snapshot(self.schema.name, tuple(self._entries.values()), self._next_id)

    def restore(self, snapshot: Snapshot) -> None:
        """Set the memory to a snapshot, by deletions and writes that ``changes`` records.

        Args:
            snapshot: A snapshot of a memory with this schema.

        Raises:
            InputError: The snapshot does not fit; nothing is changed then.
        """
        if snapshot.schema != self.schema.name:
            raise InputError(
                f"the snapshot has the schema {snapshot.schema!r}",
                expected=f"a snapshot with the schema {self.schema.name!r} of this memory",
            )
        sections = {entry.section for entry in snapshot.entries}
        unknown = sorted(section for section in sections if section not in self.schema)
        if unknown:
            raise InputError(
                f"the snapshot has unknown sections {unknown}",
                expected=f"sections of the schema {self.schema.name!r}",
            )
        wanted = {entry.id: entry for entry in snapshot.entries}
        if len(wanted) < len(snapshot.entries):
            raise InputError(
                "the snapshot holds an id twice",
                expected="a snapshot that Memory.snapshot returned",
            )
        if any(first.created >= second.created for first, second in pairwise(snapshot.entries)):
            raise InputError(
                "the snapshot is not in order of creation",
                expected="a snapshot that Memory.snapshot returned",
            )
        for entry in snapshot.entries:
            self._count(entry)
        for entry in tuple(self._entries.values()):
            if wanted.get(entry.id) != entry:
                self._commit(Change(entry, None))
        for entry in snapshot.entries:
            if entry.id not in self._entries:
                self._commit(Change(None, entry))
        self._sort()
        given = [int(entry.id) for entry in snapshot.entries if entry.id.isdecimal()]
        self._next_id = max([self._next_id, snapshot.next_id, *(number + 1 for number in given)])
        self.clock = max([self.clock, *(entry.updated + 1 for entry in snapshot.entries)])

    def copy(self, without: Collection[str] = ()) -> Memory:
        """Return an independent copy whose ``changes`` begin with the writes that lead to this
        state.

        Args:
            without: Ids of entries that the copy leaves out.
        """
        other = Memory(self.schema, self.count_tokens)
        entries = tuple(entry for entry in self._entries.values() if entry.id not in without)
        other._tokens = {
            entry.content: self._tokens[entry.content]
            for entry in entries
            if entry.section != ARCHIVE.name
        }
        other.restore(Snapshot(self.schema.name, entries, self._next_id))
        other.clock = self.clock
        other.now = self.now
        return other


def newer(first: Entry, second: Entry) -> bool:
    """Return whether the first of two statements is the newer one.

    By their dates if both have one, else by their chunks.
    """
    by_date = later(first.timestamp, second.timestamp)
    chunks = [-1 if entry.source_chunk is None else entry.source_chunk for entry in (first, second)]
    return chunks[0] > chunks[1] if by_date is None else by_date


def _says(entry: Entry, content: str, named: str | None) -> bool:
    """Whether an entry has this content and time; no time matches any."""
    return entry.content == content and named in (None, entry.timestamp)


def diff(before: Sequence[Entry], after: Sequence[Entry]) -> list[Change]:
    """Return the changes between two lists of entries.

    Deletions first, then writes, each in list order.
    """
    old = {entry.id: entry for entry in before}
    left = {entry.id for entry in after}
    gone = [Change(entry, None) for entry in before if entry.id not in left]
    written = [Change(old.get(entry.id), entry) for entry in after]
    return gone + [change for change in written if change.before != change.after]


def render_entry(entry: Entry) -> str:
    """Return ``[timestamp] content``, or only the content without timestamp."""
    return f"[{entry.timestamp}] {entry.content}" if entry.timestamp else entry.content
