"""Imports: chats of other assistants, and entries of other memories, into a store.

    found = collect(Export(path), "marta")  # in the order of dates over all conversations
    report = import_messages(durable, found)  # lines of the archive; with an agent: read_with

What always holds: what came of a message, and the record that it was read, are written together or
not at all. So an import that was killed goes on where it ended, a second import adds what is new,
and what was forgotten does not come back. A message is known by the ids of its conversation and of
itself; a conversation without an id by the name of the file and its place in it, a message without
one by its place. Not covered: of two files of one name, both without ids, the second counts as read
already, and what of it has another text is counted; a conversation that moves to another place in a
file without ids is read again.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from memalpha.contrib.importing.exports import Export
from memalpha.contrib.importing.items import Chat, ForeignEntry, Reasons, clean_text
from memalpha.conversation.messages import Utterance, joined_messages
from memalpha.errors import InputError, JournalConflictError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.archive import archive_chunk, lines_of_text
from memalpha.speakers import PASTED
from memalpha.store.durable import DurableMemory
from memalpha.store.history import Event
from memalpha.store.journal import Namespace, Origin, digest_of
from memalpha.store.records import RecordKind
from memalpha.text.times import is_to_come, later, moment
from memalpha.types import Change, Chunk, Entry, Operation, OperationKind, TokenCounter
from memalpha.units import UNIT_TOKENS, units

if TYPE_CHECKING:
    from memalpha.use.agent import MemoryAgent

IMPORT_AGENT = "memalpha import"  # the agent in the origin of what no model wrote
_LEAVER = (
    f"{IMPORT_AGENT}, other branch"  # in that of what deletes the lines of a branch that was left
)
BATCH = 300  # messages of one transaction
_FIRST = datetime.min.replace(tzinfo=UTC)
_LONGEST_ID = 60  # characters
_GONE = "message of which a line was forgotten or taken back"
_BEGUN = "message that an agent has read in part: import with it again"
_AGAIN = "message that the file holds twice"
_TO_COME = "message or entry of a time that is to come"
_ELSE = "message or entry that has another text than what is there of it"
_SAID = "entry that the memory says already"
_REFUSED = "entry refused"
_NOT_ASKED = "message or entry of another user"
_SHOWN_USERS = 20


class SourcedItem(NamedTuple):
    """A message or an entry to import; ``source`` names it in the journal: kind, conversation,
    message. ``named``: its conversation, or the entry, has an id.
    """

    source: str
    digest: str
    moment: datetime  # by which imports are ordered: not before that of the message before it
    conversation: str
    what: Utterance | ForeignEntry
    named: bool = True


@dataclass
class ImportPlan:
    """The items of a file in order; ``skipped`` counts the items that are not read.

    ``by_place``: some of it has no id, and is known by the name of the file and its place there.
    ``left`` are the sources of messages that the file holds and that are not shown: of another
    branch, or not to be remembered; ``branched`` the conversations that have any.
    """

    kind: str
    conversations: int
    messages: list[SourcedItem]
    entries: list[SourcedItem]
    skipped: Reasons
    by_place: bool = False
    left: tuple[str, ...] = ()
    branched: frozenset[str] = frozenset()

    @property
    def undated(self) -> int:
        """How many messages and entries have no date."""
        return sum(not each.what.time for each in (*self.messages, *self.entries))

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
class ImportReport:
    """The result of an import, in messages and entries.

    ``left``: lines that it deleted, since their message is no longer shown. ``changed``: messages
    and entries whose text took the place of another one, which an earlier import had read.
    """

    read: int = 0
    there: int = 0  # were read by an earlier import
    skipped: Reasons = field(default_factory=Counter)
    stopped: bool = False
    left: int = 0
    changed: int = 0


AfterBatch = Callable[[int], bool]
"""Is told how many messages are done with, and returns whether to go on."""


def go_on(done: int) -> bool:
    """Report nothing, and go on."""
    return True


def check_found(path: Path, found: ImportPlan, report: ImportReport | None = None) -> None:
    """Raise InputError, with the reasons, if nothing of a file is read and nothing of it was read
    before.
    """
    total = len(found.messages) + len(found.entries)
    skipped = found.skipped if report is None else report.skipped
    refused = sum(count for reason, count in skipped.items() if reason.startswith(_REFUSED))
    reasons = ", ".join(f"{count} {reason}" for reason, count in skipped.most_common(8))
    if total == 0 or refused == total:
        raise InputError(
            f"nothing in {path} can be imported ({found.kind}): {reasons or 'it holds no message'}",
            expected="messages or entries with a text",
        )


def estimate_tokens(text: str) -> int:
    """Estimate tokens without a tokenizer: four bytes of UTF-8 each."""
    return len(text.encode()) // 4 + 1


def collect_items(export: Export, user: str = "", from_users: Collection[str] = ()) -> ImportPlan:
    """Return all messages and entries of a file, each once, those of a conversation in its order,
    and otherwise by date; those without a date first.

    InputError if the file says that it holds those of several users, unless each is ``user``, the
    one whose memory they become, or ``from_users`` names whose are meant: the others are counted.
    """
    conversations = set[str]()
    branched = set[str]()
    left: dict[str, None] = {}
    by_digest: dict[str, SourcedItem] = {}
    texts: defaultdict[str, dict[str, int]] = defaultdict(dict)  # of a source that several have
    owners: Counter[str] = Counter()
    skipped: Reasons = Counter()
    nameless: Counter[str] = Counter()
    for item in export:
        said = item.utterances if isinstance(item, Chat) else [item]
        if not item.id:
            nameless[export.name] += 1
        name = _short(item.id) or f"{export.name} {nameless[export.name]}"
        owners[item.owner] += len(said)
        if from_users and not _is_of(item.owner, from_users):
            skipped[_NOT_ASKED] += len(said)
            continue
        time = _FIRST
        if isinstance(item, Chat):
            if said:
                conversations.add(name)
            if item.left:
                branched.add(name)
                left.update((f"{export.kind}/{name}/{_short(each)}", None) for each in item.left)
        for what in said:
            if is_to_come(what.time, datetime.now(UTC)):
                skipped[_TO_COME] += 1
                continue
            time = max(time, moment(what.time or "") or _FIRST)
            part = f"/{_short(what.id)}" if isinstance(what, Utterance) else ""
            source = f"{export.kind}/{name}{part}"
            named = bool(item.id)
            message = SourcedItem(source, digest_of(source), time, name, what, named)
            skipped[_AGAIN] += not _add_new(by_digest, texts, message)
    _check_owners(export, owners, user, from_users)
    ordered = sorted(by_digest.values(), key=attrgetter("moment"))
    return ImportPlan(
        export.kind,
        len(conversations),
        [each for each in ordered if isinstance(each.what, Utterance)],
        [each for each in ordered if isinstance(each.what, ForeignEntry)],
        export.skipped + skipped,
        nameless.total() > 0,
        tuple(source for source in left if digest_of(source) not in by_digest),
        frozenset(branched),
    )


def _add_new(
    by_digest: dict[str, SourcedItem],
    texts: defaultdict[str, dict[str, int]],
    message: SourcedItem,
) -> bool:
    """Add a message or an entry; return False if there is one of its source and its text.

    Of versions of an entry the newest stays. Messages of one source and several texts are several:
    where they have no ids, each list of a conversation has its own places.
    """
    other = by_digest.setdefault(message.digest, message)
    if other is message:
        return True
    if isinstance(message.what, ForeignEntry):
        if other.moment < message.moment:
            by_digest[message.digest] = message
        return False
    numbers = texts[message.source]
    numbers.setdefault(other.what.text, 1)
    number = numbers.setdefault(message.what.text, len(numbers) + 1)
    source = f"{message.source} {number}"
    own = message._replace(source=source, digest=digest_of(source))
    return number > 1 and by_digest.setdefault(own.digest, own) is own


def _is_of(owner: str, names: Collection[str]) -> bool:
    """Whether one of the names is an owner, or a part of a namespace that is one."""
    return owner in names or not set(owner.split("/")).isdisjoint(names)


def _check_owners(
    export: Export, owners: Counter[str], user: str, from_users: Collection[str]
) -> None:
    named = Counter({owner: count for owner, count in owners.items() if owner})
    shown = ", ".join(f"{owner!r}: {count}" for owner, count in named.most_common(_SHOWN_USERS))
    shown += f" and {len(named) - _SHOWN_USERS} more" if len(named) > _SHOWN_USERS else ""
    unknown = [name for name in from_users if not any(_is_of(owner, [name]) for owner in owners)]
    if unknown:
        raise InputError(
            f"{export.path} holds nothing of {', '.join(map(repr, unknown))}",
            expected=f"one of the users of the file ({shown or 'it names none'})",
        )
    if not from_users and len(named) > 1 and not all(_is_of(owner, [user]) for owner in named):
        raise InputError(
            f"{export.path} holds messages or entries of {len(named)} users or namespaces: {shown}",
            expected="those of one user, since a memory belongs to one user",
            fix="give --from-user NAME, which imports those of NAME and leaves out the others; "
            "it may be repeated",
        )


def _short(name: str) -> str:
    printable = re.sub(r"\s+", " ", clean_text(name)).strip()
    return printable if len(printable) <= _LONGEST_ID else digest_of(printable)


# ------------------------------------------------------------------------------------------------
# without an agent
def import_messages(
    durable: DurableMemory, found: ImportPlan, *, section: str = "", progress: AfterBatch = go_on
) -> ImportReport:
    """Put messages into the archive, and entries of another memory into a section."""
    report = ImportReport(skipped=Counter(found.skipped))
    write = partial(_write_entry, section=section_for(durable.schema, found.entries, section))
    _follow_branches(durable, found, report)
    _follow_changes(durable, found, report)
    _in_batches(durable, found.entries, write, report, progress)
    _in_batches(durable, found.messages, _write_lines, report, progress)
    return report


def section_for(schema: MemorySchema, entries: Sequence[SourcedItem], wanted: str = "") -> str:
    """Return the section of another memory's entries: the first list that keeps times, if they
    have any; else the first list. InputError if there is no list of the ``wanted`` name.
    """
    names = [section.name for section in schema.lists]
    if wanted and wanted not in names:
        raise InputError(
            f"the section {wanted!r} cannot take entries",
            expected=f"a list of the schema {schema.name!r}: {', '.join(names)}",
        )
    dated = any(entry.what.time for entry in entries)
    timed = [section.name for section in schema.lists if dated and section.timestamps]
    return wanted or [*timed, *names][0]


def _in_batches(
    durable: DurableMemory,
    messages: Sequence[SourcedItem],
    write: Callable[[Memory, SourcedItem], str],
    report: ImportReport,
    progress: AfterBatch,
) -> None:
    done = report.read + report.there
    for start in range(0, len(messages), BATCH):
        if report.stopped:
            return
        batch = messages[start : start + BATCH]
        done_with = []  # what a later import must not read again: forgotten, it would come back
        lost: Reasons = Counter()
        with durable.writing(Origin(IMPORT_AGENT)) as memory:
            known = durable.sources()
            new = [each for each in batch if each.digest not in known]
            for message in new:
                begun = _part_digest(message, 0) in known
                reason = _BEGUN if begun else write(memory, message)
                durable.sign(Origin(IMPORT_AGENT, message.source))
                if reason:
                    lost[reason] += 1
                if reason in ("", _SAID):
                    done_with.append(message.digest)
            durable.note_read(Origin(IMPORT_AGENT), done_with)
        report.read += len(new) - lost.total()
        report.there += len(batch) - len(new)
        report.skipped += lost
        done += len(batch)
        report.stopped = not progress(done)


def _write_lines(memory: Memory, message: SourcedItem) -> str:
    text, labels = _utterance(message).labelled
    archive_chunk(memory, memory.clock, Chunk(text, message.what.time), (), labels)
    return ""


def _utterance(message: SourcedItem) -> Utterance:
    assert isinstance(message.what, Utterance)
    return message.what


def _write_entry(memory: Memory, message: SourcedItem, section: str) -> str:
    """Insert an entry; return why it is not written, if it is not.

    It names its time, so that what is said of several days is an entry of each.
    """
    if isinstance(message.what, ForeignEntry):
        memory.metadata = message.what.metadata
    time = message.what.time
    insert = Operation(OperationKind.INSERT, section, message.what.text, timestamp=time)
    result = memory.apply(insert, chunk=memory.clock, time=time)
    if result.changed:
        return ""
    return _SAID if result.ok else f"{_REFUSED}: {result.code}"


def _follow_branches(durable: DurableMemory, found: ImportPlan, report: ImportReport) -> None:
    """Delete the lines of messages that the file does not show any more, and write again those
    that it shows again. What a user forgot or took back is left as it is.
    """
    if not found.branched:
        return
    read = durable.sources()
    shown = [each for each in found.messages if each.conversation in found.branched]
    again = {each.source: each for each in shown if each.digest in read}
    left = [source for source in found.left if digest_of(source) in read]
    if not left and not again:
        return
    last: dict[str, Event] = {}  # the last operation on each line
    source_of: dict[str, str] = {}
    for event in durable.history():
        entry = event.after or event.before
        if entry is None or entry.section != ARCHIVE.name:
            continue
        if event.origin and event.entry not in source_of:
            source_of[event.entry] = event.origin.source
        last[event.entry] = event
    lines: defaultdict[str, list[Event]] = defaultdict(list)
    for entry_id, event in last.items():
        lines[source_of.get(entry_id, "")].append(event)
    gone = [(source, event) for source in left for event in lines[source] if _is_there(event)]
    back = [each for source, each in again.items() if _all_left(lines[source])]
    if not gone and not back:
        return
    with durable.writing(Origin(IMPORT_AGENT)) as memory:
        for source, event in gone:
            delete = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=event.entry)
            report.left += memory.apply(delete, chunk=memory.clock).changed
            durable.sign(Origin(_LEAVER, source))
        for message in back:
            _write_lines(memory, message)
            durable.sign(Origin(IMPORT_AGENT, message.source))


def _follow_changes(durable: DurableMemory, found: ImportPlan, report: ImportReport) -> None:
    """Write again what has another text than an earlier import read. Only where what that import
    wrote is there as it wrote it: what a user, an agent or an audit has changed stays. What has no
    id may be of another file of that name, and what was written beside something that was forgotten
    may have had it as a part: it is counted alone.
    """
    read = durable.sources()
    again = {each.source: each for each in (*found.messages, *found.entries) if each.digest in read}
    if not again:
        return
    events: dict[str, Event] = {}  # the last operation on each entry and line
    source_of: dict[str, str] = {}
    forgotten = set[int]()
    for event in durable.history():
        if event.forgotten:
            forgotten.add(event.seq)
        elif event.origin and event.entry:
            source_of.setdefault(event.entry, event.origin.source)
            events[event.entry] = event
    written: defaultdict[str, list[Event]] = defaultdict(list)
    for entry_id, event in events.items():
        if source_of[entry_id] in again and not _all_left([event]):
            written[source_of[entry_id]].append(event)
    count = durable.memory.count_tokens
    differ = [
        (again[source], there)
        for source, there in written.items()
        if all(map(_is_of_import, there)) and _says_else(again[source], there, count)
    ]
    changed = [
        (message, there)
        for message, there in differ
        if message.named and forgotten.isdisjoint(range(there[0].seq - 1, there[-1].seq + 2))
    ]
    report.skipped += Counter({_ELSE: len(differ) - len(changed)})
    if not changed:
        return
    with durable.writing(Origin(IMPORT_AGENT)) as memory:
        for message, there in changed:
            report.changed += _rewrite(durable, memory, message, there, report)


def _is_of_import(event: Event) -> bool:
    """Whether what is there is as an import wrote it."""
    return _is_there(event) and event.origin is not None and event.origin.agent == IMPORT_AGENT


def _says_else(message: SourcedItem, there: Sequence[Event], count: TokenCounter) -> bool:
    """Whether a message or an entry has another text than what was written of it, and is no older
    version of that.
    """
    written = [event.after for event in there if event.after]
    if isinstance(message.what, ForeignEntry):
        entry = written[0]
        older = later(entry.timestamp, message.what.time)
        return not older and _plain(entry.content) != _plain(message.what.text)
    label = message.what.label
    text = _plain(message.what.text, label)
    said = [_plain(line.content, label) for line in written]
    if all(line in text for line in said) and not _without(text, said):
        return False
    text, labels = message.what.labelled  # it says something again and again, or something else
    lines = {line.content for line in written}
    # what was written before pasted text had labels is as it was
    return lines not in (
        set(lines_of_text(text, count, labels)),
        set(units(text, UNIT_TOKENS, count, labels)),
    )


def _rewrite(
    durable: DurableMemory,
    memory: Memory,
    message: SourcedItem,
    there: Sequence[Event],
    report: ImportReport,
) -> bool:
    """Put the text of a message or an entry in the place of what was written of it; return whether
    it was done.
    """
    if isinstance(message.what, ForeignEntry):
        memory.metadata = message.what.metadata
        before = memory.get(there[0].entry)
        update = Operation(
            OperationKind.UPDATE,
            before.section if before else "",
            message.what.text,
            there[0].entry,
            timestamp=message.what.time,
        )
        result = memory.apply(update, chunk=memory.clock, time=message.what.time)
        if not result.ok:
            report.skipped[f"{_REFUSED}: {result.code}"] += 1
        durable.sign(Origin(IMPORT_AGENT, message.source))
        return result.changed
    for event in there:
        delete = Operation(OperationKind.DELETE, ARCHIVE.name, entry_id=event.entry)
        memory.apply(delete, chunk=memory.clock)
    durable.sign(Origin(_LEAVER, message.source))
    _write_lines(memory, message)
    durable.sign(Origin(IMPORT_AGENT, message.source))
    return True


def _plain(text: str, label: str = "") -> str:
    """Return a text without white space, and without what lines of a speaker add to it."""
    if not label:
        return "".join(text.split())
    plain = "".join(text.replace(">", "").split())
    for shown in (f"{label}{PASTED}:", f"{label}:"):
        plain = plain.replace("".join(shown.split()), "")
    return plain


def _without(text: str, said: Iterable[str]) -> str:
    """Return what of a text no line says; a line that is said twice is kept once."""
    for line in sorted(said, key=len, reverse=True):
        text = text.replace(line, "")
    return text


def _is_there(event: Event) -> bool:
    """Whether a line is there, and no undo has brought it back."""
    return event.after is not None and event.kind is RecordKind.APPLY


def _all_left(lines: Sequence[Event]) -> bool:
    """Whether there were lines, and an import deleted each as one of a branch that was left."""
    return bool(lines) and all(
        event.after is None and event.origin is not None and event.origin.agent == _LEAVER
        for event in lines
    )


# ------------------------------------------------------------------------------------------------
# with an agent
class _Part(NamedTuple):
    """A part of a message that fits one chunk. The message counts as read when its last part is."""

    message: SourcedItem
    place: int
    digest: str
    text: str


def import_with_agent(
    agent: MemoryAgent,
    namespace: Namespace,
    found: ImportPlan,
    *,
    section: str = "",
    progress: AfterBatch = go_on,
) -> ImportReport:
    """Let an agent read messages, in chunks of one conversation and day; entries of another memory
    are inserted without it.

    Of what is in the archive already, the lines move to the chunk in which the agent reads them.
    """
    with agent.durable(namespace) as durable:
        entries = replace(found, messages=[], branched=frozenset())
        report = import_messages(durable, entries, section=section, progress=progress)
        _follow_branches(durable, found, report)
        _follow_changes(durable, replace(found, entries=[]), report)
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


def _days(messages: Iterable[SourcedItem]) -> list[list[SourcedItem]]:
    """Return the messages of each conversation and day, in the order of their first ones."""
    groups: dict[tuple[str, str], list[SourcedItem]] = {}
    for message in messages:
        day = (message.what.time or "")[: len("2024-03-05")]
        groups.setdefault((message.conversation, day), []).append(message)
    return list(groups.values())


def _part_digest(message: SourcedItem, place: int) -> str:
    return digest_of(f"{message.source}#{place}")


def _chunks(
    agent: MemoryAgent, messages: Sequence[SourcedItem], known: set[str]
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
    if not durable.sources(agent.name).isdisjoint(part.digest for part in parts):
        raise JournalConflictError(
            "another import has read the same messages in the meantime",
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
        if archived - self._archived or any(self.lost_of(each, memory) for each in begun):
            raise JournalConflictError(
                "lines of the same messages were imported or forgotten in the meantime",
                fix="import again",
            )

    def lost_of(self, message: SourcedItem, memory: Memory) -> bool:
        """Whether a message was archived, and something of it is no longer there."""
        if message.digest not in self._archived:
            return False
        label = _utterance(message).label
        said = [_plain(line.content, label) for line in self.alive(memory, message.source)]
        return bool(_without(_plain(message.what.text, label), said))

    def alive(self, memory: Memory, source: str) -> list[Entry]:
        """Return the lines of a message that are there."""
        return list(filter(None, map(memory.get, self._ids[source])))
