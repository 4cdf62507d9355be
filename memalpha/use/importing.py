"""Imports: chats of other assistants, and entries of other memories, into a store.

    found = collect(Export(path))  # in the order of dates over all conversations
    report = import_messages(durable, found)  # lines of the archive; with an agent: read_with

What always holds: what came of a message, and the record that it was read, are written together or
not at all. So an import that was killed goes on where it ended, a second import adds what is new,
and what was forgotten does not come back. A message is known by the ids of its conversation and of
itself; a conversation without an id by the name of the file and its place in it, a message without
one by its place. Not covered: of two files of one name, both without ids, the second counts as read
already; a conversation that moves to another place in a file without ids is read again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from memalpha.conversation.exports import Export
from memalpha.conversation.items import Chat, Reasons, Remembered
from memalpha.conversation.messages import Utterance, joined_messages
from memalpha.errors import InputError, JournalConflictError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.archive import archive_chunk
from memalpha.store.journal import DurableMemory, Namespace, Origin, digest_of
from memalpha.text import is_to_come, moment
from memalpha.types import Change, Chunk, Entry, Operation, OperationKind

if TYPE_CHECKING:
    from memalpha.use.agent import MemoryAgent

WRITER = "memalpha import"  # the agent in the origin of what no model wrote
BATCH = 300  # messages of one transaction
_FIRST = datetime.min.replace(tzinfo=UTC)
_LONGEST_ID = 60  # characters
_GONE = "message of which a line was forgotten or taken back"
_BEGUN = "message that an agent has read in part: import with it again"
_AGAIN = "message that the file holds twice"
_TO_COME = "message or entry of a time that is to come"
_SAID = "entry that the memory says already"


class Sourced(NamedTuple):
    """A message or an entry to import; ``source`` names it in the journal: kind, conversation,
    message.
    """

    source: str
    digest: str
    moment: datetime  # by which imports are ordered: not before that of the message before it
    conversation: str
    what: Utterance | Remembered


@dataclass
class Found:
    """What a file holds, in order; ``skipped`` counts what it holds and is not read.

    ``by_place``: some of it has no id, and is known by the name of the file and its place there.
    """

    kind: str
    conversations: int
    messages: list[Sourced]
    entries: list[Sourced]
    skipped: Reasons
    by_place: bool = False

    def times(self) -> tuple[str, str]:
        """Return the earliest and the latest time; empty if there is none."""
        known = sorted(
            (each.moment, each.what.time)
            for each in (*self.messages, *self.entries)
            if each.what.time
        )
        return (known[0][1] or "", known[-1][1] or "") if known else ("", "")

    def speakers(self) -> Counter[str]:
        """Return how many messages each role has."""
        return Counter(each.what.role for each in self.messages if isinstance(each.what, Utterance))


@dataclass
class Imported:
    """What an import did, in messages and entries."""

    read: int = 0
    there: int = 0  # were read by an earlier import
    skipped: Reasons = field(default_factory=Counter)
    stopped: bool = False


AfterBatch = Callable[[int], bool]
"""Is told how many messages are done with, and returns whether to go on."""


def go_on(done: int) -> bool:
    """Report nothing, and go on."""
    return True


def estimate_tokens(text: str) -> int:
    """Estimate tokens without a tokenizer: four bytes of UTF-8 each."""
    return len(text.encode()) // 4 + 1


def collect(export: Export) -> Found:
    """Return all messages and entries of a file, each once, those of a conversation in its order,
    and otherwise by date; those without a date first.
    """
    conversations = set[str]()
    by_digest: dict[str, Sourced] = {}
    skipped: Reasons = Counter()
    nameless = 0
    for item in export:
        nameless += not item.id
        name = _short(item.id) or f"{export.path.stem} {nameless}"
        time = _FIRST
        if isinstance(item, Chat):
            conversations.add(name)
        for what in item.utterances if isinstance(item, Chat) else [item]:
            if is_to_come(what.time, datetime.now(UTC)):
                skipped[_TO_COME] += 1
                continue
            time = max(time, moment(what.time or "") or _FIRST)
            part = f"/{_short(what.id)}" if isinstance(what, Utterance) else ""
            source = f"{export.kind}/{name}{part}"
            message = Sourced(source, digest_of(source), time, name, what)
            if by_digest.setdefault(message.digest, message) is not message:
                skipped[_AGAIN] += 1
    ordered = sorted(by_digest.values(), key=attrgetter("moment"))
    return Found(
        export.kind,
        len(conversations),
        [each for each in ordered if isinstance(each.what, Utterance)],
        [each for each in ordered if isinstance(each.what, Remembered)],
        export.skipped + skipped,
        nameless > 0,
    )


def _short(name: str) -> str:
    printable = re.sub(r"\s+", " ", name).strip()
    return printable if len(printable) <= _LONGEST_ID else digest_of(printable)


# ------------------------------------------------------------------------------------------------
# without an agent
def import_messages(
    durable: DurableMemory, found: Found, *, section: str = "", progress: AfterBatch = go_on
) -> Imported:
    """Put messages into the archive, and entries of another memory into a section."""
    report = Imported(skipped=Counter(found.skipped))
    write = partial(_write_entry, section=section_for(durable.schema, found.entries, section))
    _in_batches(durable, found.entries, write, report, progress)
    _in_batches(durable, found.messages, _write_lines, report, progress)
    return report


def section_for(schema: MemorySchema, entries: Sequence[Sourced], wanted: str = "") -> str:
    """Return the section of another memory's entries: the first list that keeps times, if they
    have any; else the first list. InputError if there is no list of the ``wanted`` name.
    """
    names = [section.name for section in schema.lists]
    InputError.raise_if(
        wanted and wanted not in names,
        f"section {wanted!r}",
        expected=f"a list of the schema {schema.name!r}: {', '.join(names)}",
    )
    dated = any(entry.what.time for entry in entries)
    timed = [section.name for section in schema.lists if dated and section.timestamps]
    return wanted or [*timed, *names][0]


def _in_batches(
    durable: DurableMemory,
    messages: Sequence[Sourced],
    write: Callable[[Memory, Sourced], str],
    report: Imported,
    progress: AfterBatch,
) -> None:
    done = report.read + report.there
    for start in range(0, len(messages), BATCH):
        if report.stopped:
            return
        batch = messages[start : start + BATCH]
        done_with = []  # what a later import must not read again: forgotten, it would come back
        lost: Reasons = Counter()
        with durable.writing(Origin(WRITER)) as memory:
            known = durable.sources()
            new = [each for each in batch if each.digest not in known]
            for message in new:
                begun = _part_digest(message, 0) in known
                reason = _BEGUN if begun else write(memory, message)
                durable.sign(Origin(WRITER, message.source))
                if reason:
                    lost[reason] += 1
                if reason in ("", _SAID):
                    done_with.append(message.digest)
            durable.note_read(Origin(WRITER), done_with)
        report.read += len(new) - lost.total()
        report.there += len(batch) - len(new)
        report.skipped += lost
        done += len(batch)
        report.stopped = not progress(done)


def _write_lines(memory: Memory, message: Sourced) -> str:
    text, labels = _utterance(message).labelled
    archive_chunk(memory, memory.clock, Chunk(text, message.what.time), (), labels)
    return ""


def _utterance(message: Sourced) -> Utterance:
    assert isinstance(message.what, Utterance)
    return message.what


def _write_entry(memory: Memory, message: Sourced, section: str) -> str:
    """Insert an entry; return why it is not written, if it is not."""
    if isinstance(message.what, Remembered):
        memory.metadata = message.what.metadata
    insert = Operation(OperationKind.INSERT, section, message.what.text)
    result = memory.apply(insert, chunk=memory.clock, time=message.what.time)
    if result.changed:
        return ""
    return _SAID if result.ok else f"entry refused: {result.code}"


# ------------------------------------------------------------------------------------------------
# with an agent
class _Part(NamedTuple):
    """A piece of a message that fits a chunk; the last one stands for the message."""

    message: Sourced
    place: int
    digest: str
    text: str


def read_with(
    agent: MemoryAgent,
    namespace: Namespace,
    found: Found,
    *,
    section: str = "",
    progress: AfterBatch = go_on,
) -> Imported:
    """Let an agent read messages, in chunks of one conversation and day; entries of another memory
    are inserted without it.

    Of what is in the archive already, the lines move to the chunk in which the agent reads them.
    """
    with agent.durable(namespace) as durable:
        entries = replace(found, messages=[])
        report = import_messages(durable, entries, section=section, progress=progress)
        known = set(durable.sources(agent.name))
        lines = _Lines(durable)
    done = len(found.entries)
    for group in _days(found.messages):
        new = [each for each in group if each.digest not in known]
        begun = [each for each in new if _part_digest(each, 0) in known]
        with agent.durable(namespace) as durable:
            memory = durable.memory
        whole = [each for each in new if each in begun or not lines.lost_of(each, memory)]
        report.there += len(group) - len(new)
        report.skipped += Counter({_GONE: len(new) - len(whole)})
        for chunk, parts in _chunks(agent, whole, known):
            if report.stopped:
                return report
            first, last = parts[0].message, parts[-1].message
            source = first.source if first is last else f"{first.source} to {last.source}"
            keep = partial(_keep, agent=agent, parts=parts, lines=lines)
            agent.add_chunk(namespace, chunk, source, keep)
            report.read += sum(part.digest == part.message.digest for part in parts)
            report.stopped = not progress(done + whole.index(last))
        done += len(group)
    report.stopped = report.stopped or not progress(done)
    return report


def _days(messages: Iterable[Sourced]) -> list[list[Sourced]]:
    """Return the messages of each conversation and day, in the order of their first ones."""
    groups: dict[tuple[str, str], list[Sourced]] = {}
    for message in messages:
        day = (message.what.time or "")[: len("2024-03-05")]
        groups.setdefault((message.conversation, day), []).append(message)
    return list(groups.values())


def _part_digest(message: Sourced, place: int) -> str:
    return digest_of(f"{message.source}#{place}")


def _chunks(
    agent: MemoryAgent, messages: Sequence[Sourced], known: set[str]
) -> Iterator[tuple[Chunk, list[_Part]]]:
    """Yield chunks of what is not read yet, and the parts that they are made of."""
    limit = agent.step.config.max_chunk_tokens
    count = agent.step.chunk_tokens
    joined = list(joined_messages(map(_utterance, messages), limit, count))
    pieces = Counter(number for each in joined for number, _, _ in each.pieces)
    for each in joined:
        parts = []
        for number, place, text in each.pieces:
            message = messages[number]
            last = place == pieces[number] - 1
            digest = message.digest if last else _part_digest(message, place)
            parts.append(_Part(message, place, digest, text))
        new = [part for part in parts if part.digest not in known]
        if new:
            yield Chunk("\n".join(part.text for part in new), each.chunk.time), new


def _keep(
    durable: DurableMemory,
    memory: Memory,
    index: int,
    origin: Origin,
    changes: Sequence[Change],
    *,
    agent: MemoryAgent,
    parts: Sequence[_Part],
    lines: _Lines,
) -> None:
    """Archive the parts of a chunk, each with its own date and origin, and record them as read."""
    JournalConflictError.raise_if(
        not durable.sources(agent.name).isdisjoint(part.digest for part in parts),
        "another import has read the same messages",
        fix="import again",
    )
    lines.check(durable, memory, parts)
    durable.sign(origin)
    if agent.step.config.archive:
        for part in parts:
            # with a later part, the lines are those of the parts before
            for line in () if part.place else lines.alive(memory, part.message.source):
                delete = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=line.id)
                memory.apply(delete, chunk=index)
            labels = _utterance(part.message).labelled[1]
            chunk = Chunk(part.text, part.message.what.time)
            archive_chunk(memory, index, chunk, changes, labels)
            changes = ()
            durable.sign(replace(origin, source=part.message.source))
        durable.note_read(origin, [part.digest for part in parts])
    durable.note_read(origin, [part.digest for part in parts], agent.name)


class _Lines:
    """The lines that earlier imports have archived, by the source of their message."""

    def __init__(self, durable: DurableMemory) -> None:
        self._archived = frozenset(durable.sources())
        self._ids: defaultdict[str, list[str]] = defaultdict(list)
        for event in durable.history() if self._archived else ():
            if event.origin and event.after and event.after.section == ARCHIVE.name:
                self._ids[event.origin.source].append(event.entry)

    def check(self, durable: DurableMemory, memory: Memory, parts: Sequence[_Part]) -> None:
        """Raise JournalConflictError if, since the import began, another one archived what these
        parts begin, or something of it was forgotten.
        """
        begun = [part.message for part in parts if part.place == 0]
        archived = durable.sources() & {message.digest for message in begun}
        JournalConflictError.raise_if(
            archived - self._archived or any(self.lost_of(each, memory) for each in begun),
            "lines of the same messages were imported or forgotten meanwhile",
            fix="import again",
        )

    def lost_of(self, message: Sourced, memory: Memory) -> bool:
        """Whether a message was archived, and something of it is no longer there."""
        if message.digest not in self._archived:
            return False
        label = "".join(f"{_utterance(message).label}:".split())

        def plain(text: str) -> str:
            return "".join(text.replace(">", "").split()).replace(label, "")

        left = plain(message.what.text)
        said = [plain(line.content) for line in self.alive(memory, message.source)]
        for text in sorted(said, key=len, reverse=True):
            left = left.replace(text, "")
        return bool(left)

    def alive(self, memory: Memory, source: str) -> list[Entry]:
        """Return the lines of a message that are there."""
        return list(filter(None, map(memory.get, self._ids[source])))
