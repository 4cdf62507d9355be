"""How the memory of one recorded rollout grew, and what its entries were good for.

Read from the recorded changes alone, so that what a page shows is what happened. What always holds: the memory after the last step
is the memory the record ends with; an entry written and removed inside one step is shown as removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memalpha.report.view import Tone, change_tone, entry_text


class Shown(NamedTuple):
    """One entry as it stands after a step.

    Attributes:
        id: The entry's id; a block's is its section's name.
        section: Its section.
        text: Its text after the step; of a deleted entry the text it had.
        tone: What the step did to it; None if it did nothing.
        was: The text before an update, else empty.
    """

    id: str
    section: str
    text: str
    tone: Tone | None
    was: str


class Event(NamedTuple):
    """One write to an entry: the index of its step, what it did and the text it left (or took away)."""

    step: int
    tone: Tone
    text: str


class History(NamedTuple):
    """Everything that happened to one entry.

    Attributes:
        number: Its place in the order of creation, from 1.
        id: The entry's id.
        section: Its section.
        text: Its last text.
        alive: Whether the final memory holds it.
        events: Its writes, in order.
        questions: Indices of the questions that retrieved it.
    """

    number: int
    id: str
    section: str
    text: str
    alive: bool
    events: tuple[Event, ...]
    questions: tuple[int, ...]

    @property
    def written(self) -> int | None:
        """Index of the step that wrote its last text; None if no recorded step did."""
        writes = [event.step for event in self.events if event.tone is not Tone.DELETE]
        return writes[-1] if writes else None


def memory_after_steps(rollout: Mapping[str, Any]) -> list[list[Shown]]:
    """Return, for each step, the entries of the memory after it in the order of creation, with those that it removed."""
    memory: dict[str, Mapping[str, Any]] = {}
    found = []
    for step in rollout["steps"]:
        before = dict(memory)
        touched = [_identity(change) for change in step["changes"]]
        for change in step["changes"]:
            _apply(memory, before, change)
        names = [*before, *(name for name in dict.fromkeys(touched) if name not in before)]
        gone = {_identity(change): change["before"] for change in step["changes"] if change["after"] is None}
        found.append([_shown(before.get(name), memory.get(name), gone.get(name), name in touched) for name in names])
    return found


def histories(rollout: Mapping[str, Any]) -> dict[str, History]:
    """Return the history of every entry that ever was, by its id, in the order of creation."""
    events: dict[str, list[Event]] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for index, step in enumerate(rollout["steps"]):
        for change in step["changes"]:
            entry = change["after"] or change["before"]
            events.setdefault(str(entry["id"]), []).append(Event(index, change_tone(change), entry_text(entry)))
            last[str(entry["id"])] = entry
    final = {str(entry["id"]): entry for entry in rollout["memory"]}
    names = [*events, *(name for name in final if name not in events)]
    used = _uses(rollout["questions"])
    return {
        name: _history(number, final.get(name) or last[name], name in final, events.get(name, []), used.get(name, ()))
        for number, name in enumerate(names, 1)
    }


def _history(number: int, entry: Mapping[str, Any], alive: bool, events: Sequence[Event], questions: Sequence[int]) -> History:
    return History(number, str(entry["id"]), entry["section"], entry_text(entry), alive, tuple(events), tuple(questions))


def _uses(questions: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    used: dict[str, list[int]] = {}
    for index, question in enumerate(questions):
        for name in dict.fromkeys(question["entries"]):
            used.setdefault(str(name), []).append(index)
    return used


def _identity(change: Mapping[str, Any]) -> str:
    return str((change["after"] or change["before"])["id"])


def _apply(memory: dict[str, Mapping[str, Any]], before: dict[str, Mapping[str, Any]], change: Mapping[str, Any]) -> None:
    """Apply one change; what a record does not begin with (a memory that was not empty) is taken from the change itself."""
    name = _identity(change)
    if change["before"] is not None and name not in memory:
        before.setdefault(name, change["before"])
    if change["after"] is None:
        memory.pop(name, None)
    else:
        memory[name] = change["after"]


def _shown(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, gone: Mapping[str, Any] | None, hit: bool) -> Shown:
    entry = after or gone or before
    assert entry is not None  # a name comes from the memory before or from a change
    if not hit:
        tone = None
    elif after is None:
        tone = Tone.DELETE
    else:
        tone = Tone.UPDATE if before else Tone.INSERT
    was = entry_text(before) if tone is Tone.UPDATE and before else ""
    return Shown(str(entry["id"]), entry["section"], entry_text(entry), tone, was)
