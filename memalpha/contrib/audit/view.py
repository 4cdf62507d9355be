"""What a detector sees of a namespace, and what it yields.

def shouting(view: NamespaceView) -> Iterator[Finding]:
    for entry in view.entries:
        if entry.content.isupper():
            edit = Proposal(Action.EDIT, text=entry.content.capitalize())
            yield view.finding("shouting", entry, "it is in capitals", edit)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from itertools import chain

from memalpha.contrib.audit.words import (
    MEMORY_TAG_CLOSE,
    MEMORY_TAG_OPEN,
    USER_NAME,
    is_assistant,
    overlap,
    stems,
    subject_of,
    telling,
)
from memalpha.memory.schema import ARCHIVE
from memalpha.speakers import split_speaker
from memalpha.store.history import Event
from memalpha.types import Entry

_RARE = 3  # words of an entry by which lines elsewhere are looked up
_MANY = 200  # lines; a word in more is no help to look one up


class Fault(StrEnum):
    """The kinds of faults of an entry, in the order in which they are searched."""

    SECRETS = "secrets"
    IDENTIFIERS = "identifiers"
    INSTRUCTIONS = "instructions"
    DEAD_ENDS = "dead-ends"
    RECALLED = "recalled"
    UNSUPPORTED = "unsupported"
    WRONG_SUBJECT = "wrong-subject"
    REPEATS = "repeats"
    CONTRADICTIONS = "contradictions"


class Action(StrEnum):
    """The actions that an audit can propose for an entry."""

    UNDO = "undo"  # of the operation that wrote it; can be undone
    EDIT = "edit"  # an update; can be undone
    DELETE = "delete"  # can be undone; lines of the archive stay
    FORGET = "forget"  # erased for good, with the lines that say it
    KEEP = "keep"


@dataclass(frozen=True, slots=True)
class Proposal:
    """A proposed action: ``operation`` is the number to undo, ``text`` the text of an edit, and
    ``also`` holds ids of lines that are forgotten with the entry.
    """

    action: Action
    operation: int | None = None
    text: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """One entry (or line, of secrets) that something is wrong with.

    ``line`` supports or contradicts it, ``other`` is the entry that it repeats or contradicts;
    ``operation`` is the number of the one that wrote it.
    """

    kind: str
    entry: Entry
    why: str
    proposal: Proposal
    operation: int
    line: Entry | None = None
    other: Entry | None = None

    @property
    def proposed(self) -> str:
        """The proposal as it is shown: ``undo 12``, ``edit 3: Tom lives in Oslo``."""
        action = self.proposal.action
        match action:
            case Action.UNDO:
                return f"undo {self.proposal.operation}"
            case Action.EDIT:
                return f"edit {self.entry.id}: {self.proposal.text}"
            case Action.KEEP:
                return "keep"
        also = " ".join(["", *self.proposal.also])
        return f"{action} {self.entry.id}{also}"


class NamespaceView:
    """A memory with its sources: live ``entries``, ``lines`` that were ever read (and are not
    forgotten) in order, ``events`` of the journal.
    """

    def __init__(
        self,
        entries: Iterable[Entry],
        lines: Iterable[Entry],
        events: Sequence[Event] = (),
        user: str = "",
    ) -> None:
        self.entries = tuple(entries)
        self.lines = tuple(lines)
        self.events = events
        self.user = user

    @classmethod
    def of(cls, events: Sequence[Event], user: str = "") -> NamespaceView:
        """Return the view after these events, the first ones of a namespace."""
        live = dict[str, Entry]()
        lines = dict[str, Entry]()
        for event in events:
            after = event.after
            if after is None:
                live.pop(event.entry, None)
                if event.forgotten:
                    lines.pop(event.entry, None)
            elif after.section == ARCHIVE.name:
                lines[event.entry] = after
                live[event.entry] = after
            else:
                live[event.entry] = after
        entries = [entry for entry in live.values() if entry.section != ARCHIVE.name]
        view = cls(entries, lines.values(), events, user)
        view.live_lines = [line for line in view.lines if line.id in live]
        return view

    def without(self, ids: set[str]) -> NamespaceView:
        """Return the view without some entries."""
        view = NamespaceView(self.entries, self.lines, self.events, self.user)
        vars(view).update(vars(self))  # what was worked out already
        for name in ("facts", "beside"):
            vars(view).pop(name, None)
        view.entries = tuple(entry for entry in self.entries if entry.id not in ids)
        return view

    def finding(
        self,
        kind: str,
        entry: Entry,
        why: str,
        proposal: Proposal,
        line: Entry | None = None,
        other: Entry | None = None,
    ) -> Finding:
        """Return a finding with the number of the operation that wrote the entry."""
        written = self.writes.get(entry.id)
        number = written[-1].seq if written else entry.updated
        return Finding(kind, entry, why, proposal, number, line, other)

    def removal(self, entry: Entry) -> Proposal:
        """Return how to take an entry out: undo what wrote it, and it alone; or delete it."""
        written = self.writes.get(entry.id, [])
        if len(written) == 1 and written[0].undoes is None and written[0].call is None:
            return Proposal(Action.UNDO, written[0].seq)
        return Proposal(Action.DELETE)

    # --------------------------------------------------------------------------------------------
    # worked out once
    @cached_property
    def live_lines(self) -> list[Entry]:
        """The lines that are in the archive now."""
        return list(self.lines)

    @cached_property
    def writes(self) -> dict[str, list[Event]]:
        """The events that wrote each entry or line, in order."""
        writes = defaultdict[str, list[Event]](list)
        for event in self.events:
            if event.after is not None:
                writes[event.entry].append(event)
        return dict(writes)

    @cached_property
    def chunks(self) -> dict[str, set[int | None]]:
        """The chunks that wrote each entry."""
        return {
            entry: {event.after.source_chunk for event in events if event.after}
            for entry, events in self.writes.items()
        }

    @cached_property
    def by_chunk(self) -> dict[int, list[Entry]]:
        """The lines of each chunk, in order."""
        lines = defaultdict[int, list[Entry]](list)
        for line in self.lines:
            if line.source_chunk is not None:
                lines[line.source_chunk].append(line)
        return dict(lines)

    @cached_property
    def postings(self) -> dict[str, list[Entry]]:
        """The lines that have a word, by its stem."""
        postings = defaultdict[str, list[Entry]](list)
        for line in self.lines:
            for word in stems(line.content):
                postings[word].append(line)
        return dict(postings)

    @cached_property
    def tagged(self) -> set[str]:
        """The ids of lines inside of tags that mark recalled text."""
        tagged = set[str]()
        for lines in self.by_chunk.values():
            inside = False
            for line in lines:
                opens = bool(MEMORY_TAG_OPEN.search(line.content))
                if inside or opens:
                    tagged.add(line.id)
                inside = (inside or opens) and not MEMORY_TAG_CLOSE.search(line.content)
        return tagged

    @cached_property
    def names_of_user(self) -> frozenset[str]:
        """What entries call the user, in lower case: ``user``, and the names that entries give."""
        names = {USER_NAME.casefold(), self.user.casefold()}
        for entry in self.entries:
            first, found, name = entry.content.partition("'s name is ")
            if found and first.casefold() in names:
                names |= {name.split()[0].strip(".").casefold()} if name.split() else set()
        return frozenset(names - {""})

    @cached_property
    def people(self) -> frozenset[str]:
        """Who speaks, and whom entries begin with, in lower case."""
        speakers = {split_speaker(line.content)[0].casefold() for line in self.lines}
        firsts = {subject_of(entry.content).casefold() for entry in self.entries}
        return frozenset((speakers | firsts | self.names_of_user) - {""})

    @cached_property
    def capitalised(self) -> frozenset[str]:
        """The words that lines write with a capital inside a sentence."""
        inside = re.compile(r"(?<=[\w,] )[A-Z][\w-]+")
        words = (inside.findall(split_speaker(line.content)[1]) for line in self.lines)
        return frozenset(chain.from_iterable(words))

    def by_user(self, line: Entry) -> bool:
        """Whether a person says a line, and it is no recalled text."""
        return line.id not in self.tagged and not is_assistant(split_speaker(line.content)[0])

    def words_of(self, entry: Entry) -> frozenset[str]:
        """Return the stems that say which fact an entry holds, without names of people."""
        words = telling(entry.content)
        return frozenset(word for word in words if word not in self._person_stems) or words

    @cached_property
    def _person_stems(self) -> frozenset[str]:
        return frozenset(word for name in self.people for word in stems(name))

    @cached_property
    def facts(self) -> list[Entry]:
        """The entries that hold one fact: all but blocks."""
        return [entry for entry in self.entries if not is_block(entry)]

    def lines_of(self, entry: Entry) -> list[Entry]:
        """Return the lines of the chunks that wrote an entry, of a block all; none if they were
        not kept.
        """
        if is_block(entry):
            return list(self.lines)
        chunks = {entry.source_chunk, *self.chunks.get(entry.id, ())}
        written = sorted(chunk for chunk in chunks if chunk is not None)
        return [line for chunk in written for line in self.by_chunk.get(chunk, ())]

    def saying(self, entry: Entry, lines: Iterable[Entry]) -> tuple[Entry | None, float]:
        """Return the line, of several the last, with most of an entry's words, and their share."""
        words = self.words_of(entry)
        best = None
        most = 0.0
        for line in lines:
            share = overlap(words, stems(line.content))
            if share and share >= most:
                best = line
                most = share
        return best, most

    def elsewhere(self, entry: Entry) -> list[Entry]:
        """Return the lines of all chunks that have one of an entry's rarest words."""
        words = [word for word in self.words_of(entry) if word in self.postings]
        rare = sorted(words, key=self._lines_with)[:_RARE]
        lines = dict[str, Entry]()
        for word in rare:
            if self._lines_with(word) <= _MANY:
                lines |= {line.id: line for line in self.postings[word]}
        return list(lines.values())

    def _lines_with(self, word: str) -> int:
        return len(self.postings[word])


def is_block(entry: Entry) -> bool:
    """Whether an entry is the text of a block section."""
    return entry.id == entry.section


def with_subject(entry: Entry, old: str, new: str) -> str:
    """Return an entry's text with another subject."""
    return replace(entry, content=entry.content.replace(old, new, 1)).content
