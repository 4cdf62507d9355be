"""How numbers, calls and changes of a recorded rollout read, for the page and the terminal alike.

Rollouts are the JSON of ``memalpha.training.results``. What always holds: an unknown number (null or NaN: it could not be scored)
reads as a dash and never as 0; the operation of an applied call and the change it made stand together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from memalpha.errors import InputError
from memalpha.runs import RunFolder

Read = TypeVar("Read")

_OPTIONAL_PARTS = ("immediate",)

UNKNOWN = "–"
"""How a number that is not known reads."""


class Tone(StrEnum):
    """What a call did to the memory; each view gives every tone a colour."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    SAME = "same"
    """A success that changed nothing."""
    FAILED = "failed"


SIGNS: Mapping[Tone, str] = {Tone.INSERT: "+", Tone.UPDATE: "~", Tone.DELETE: "-", Tone.SAME: "=", Tone.FAILED: "x"}
"""One character a tone, so that nothing is said by colour alone."""


class Call(NamedTuple):
    """One call of a completion and what came of it.

    Attributes:
        tone: What it did.
        head: Operation, section and entry, e.g. ``update facts 3``; ``no call`` for a stretch that could not be read.
        content: The text written; empty for deletes.
        was: The text before, of updates and deletes that were applied; else empty.
        note: Why it failed or changed nothing; empty for an applied call.
    """

    tone: Tone
    head: str
    content: str
    was: str
    note: str

    @property
    def sign(self) -> str:
        """The tone as one character."""
        return SIGNS[self.tone]


def recorded(run: RunFolder, name: str, read: Callable[[dict[str, Any]], Read]) -> Iterator[Read]:
    """Iterate over what is read of each line of a file of a run; InputError of ``as_recorded`` if one is no record."""
    for line, row in enumerate(run.read_lines(name), 1):
        with as_recorded(run.path / name, line):
            found = read(row)
        yield found


@contextmanager
def as_recorded(path: Path, line: int) -> Iterator[None]:
    """Say of a line that it is no record of a rollout, where what is read of it is not there or is something else.

    Raises:
        InputError: Then; names the file and the line.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, StopIteration) as error:
        raise InputError(
            f"{path}, line {line} is no record of a rollout: {type(error).__name__} {error}",
            expected="what this version of memalpha records",
            fix="put the file back from a copy, or show the run with the version that wrote it",
        ) from error


def calls(step: Mapping[str, Any]) -> list[Call]:
    """Return the calls of one step of a rollout, in order, each applied one with the change it made."""
    changes = iter(step["changes"])
    return [_call(result, next(changes) if result["code"] == "applied" else None) for result in step["results"]]


def _call(result: Mapping[str, Any], change: Mapping[str, Any] | None) -> Call:
    operation = result["operation"]
    unapplied = Tone.SAME if result["ok"] else Tone.FAILED
    tone = change_tone(change) if change is not None else unapplied
    if operation is None:
        return Call(tone, "no call", "", "", f"{result['code']}: {result['message']}")
    entry = result["entry"] or operation["entry_id"]
    names = [operation["kind"], operation["section"], *([entry] if entry and entry != operation["section"] else [])]
    was = change["before"]["content"] if change and change["before"] else ""
    note = "" if change else f"{result['code']}: {result['message']}"
    return Call(tone, " ".join(names), operation["content"] or "", was, note)


def change_tone(change: Mapping[str, Any]) -> Tone:
    """Return what a change is: an insert has nothing before, a delete nothing after."""
    if change["before"] is None:
        return Tone.INSERT
    return Tone.DELETE if change["after"] is None else Tone.UPDATE


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry's text, its time before it if it has one."""
    return f"[{entry['timestamp']}] {entry['content']}" if entry["timestamp"] else str(entry["content"])


def retrieved(rollout: Mapping[str, Any], question: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (id, text) of the entries a question retrieved from the final memory, best first."""
    memory = {entry["id"]: entry_text(entry) for entry in rollout["memory"]}
    return [(name, memory.get(name, UNKNOWN)) for name in question["entries"]]


def known(value: Any) -> float | None:
    """Return a number as a float, and None for null, NaN, a missing value or anything that is no number."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def number(value: Any, digits: int = 3, *, signed: bool = False) -> str:
    """Return a number with so many decimals; a dash if it is not known."""
    found = known(value)
    if found is None:
        return UNKNOWN
    rounded = round(found, digits) + 0.0  # no "-0.000"
    return f"{rounded:+,.{digits}f}" if signed else f"{rounded:,.{digits}f}"


def counted(count: int, noun: str) -> str:
    """Return ``1 entry`` or ``2 entries``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


def mean(values: Sequence[Any]) -> float | None:
    """Return the mean of the numbers that are known; None if none is."""
    found = [item for value in values if (item := known(value)) is not None]
    return sum(found) / len(found) if found else None


def reward_parts(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a step's reward by name; one that a run may do without is left out where it has no value."""
    return {name: value for name, value in step["reward"].items() if name not in _OPTIONAL_PARTS or known(value) is not None}


def rollout_accuracy(rollout: Mapping[str, Any]) -> float | None:
    """Return the accuracy of a rollout, the same in each of its steps; None if it could not be scored."""
    return known(rollout["steps"][0]["reward"]["accuracy"]) if rollout["steps"] else None


def rollout_reward(rollout: Mapping[str, Any]) -> float | None:
    """Return the mean weighted reward over a rollout's steps; None if any of them is unknown."""
    totals = [known(step["total"]) for step in rollout["steps"]]
    return mean(totals) if None not in totals else None


def printable(text: str) -> str:
    """Return a text safe for a terminal: control characters but newline and tab are spelt out, so none can move the cursor."""
    return text.translate(_CONTROLS)


_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
