"""Recorded rollouts (JSON of ``memalpha.record.rows``): numbers, calls and memories as pages
and terminal show them.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple, TypeVar

from memalpha.errors import InputError
from memalpha.record.folder import RunFolder, trajectory_step

Read = TypeVar("Read")
UNKNOWN = "–"  # sign of an unknown number (null or NaN: not scored); never 0


class Source(NamedTuple):
    """One file of rollouts."""

    name: str  # inside the run folder
    where: str  # label of its rollouts: "before", "after", "step 3"
    step: int | None  # None for held-out evaluations
    key: str  # prefix of its page names

    def rollout(self, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the rollout of a line of the file."""
        return row["rollout"] if self.step is None else row


def sources_of(run: RunFolder) -> list[Source]:
    """Return the rollout files of a run: before, after, validation by step, then training by
    step.
    """
    found = []
    order = {"before": 0, "after": 1}
    for path in sorted(
        (run.path / "held_out").glob("*.jsonl"),
        key=lambda path: (order.get(path.stem, 2), path.stem),
    ):
        where = {"rollouts": "held out"}.get(path.stem, path.stem)
        where = f"validation, step {trajectory_step(path)}" if where.startswith("step-") else where
        found.append(
            Source(f"held_out/{path.name}", where, None, re.sub(r"[^A-Za-z0-9._-]", "-", path.stem))
        )
    for path in run.trajectory_files():
        step, rank = trajectory_step(path), path.stem.rpartition("-")[2]
        found.append(
            Source(f"trajectories/{path.name}", f"step {step}", step, f"step-{step:06d}-{rank}")
        )
    return found


def recorded(
    run: RunFolder, name: str, read: Callable[[int, dict[str, Any]], Read]
) -> Iterator[Read]:
    """Iterate over ``read(index, line)`` of a file of rollouts; InputError names file and line if a
    field is missing or wrong.
    """
    for index, row in enumerate(run.read_lines(name)):
        try:
            found = read(index, row)
        except (LookupError, TypeError, AttributeError, StopIteration) as error:
            what = f"{run.path / name}, line {index + 1} is no record of a rollout: {type(error).__name__} {error}"
            raise InputError(
                what,
                fix="put the file back from a copy, or show the run with the version that wrote it",
            ) from error
        yield found


def known(value: Any) -> float | None:
    """Return a number as a float; None for null, NaN, a missing value or another type."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        return None
    return float(value)


def mean(values: Sequence[Any]) -> float | None:
    """Return the mean of the known numbers; None if there are none."""
    found = [item for value in values if (item := known(value)) is not None]
    return sum(found) / len(found) if found else None


def number(value: Any, digits: int = 3, *, signed: bool = False) -> str:
    """Return a number with ``digits`` decimals; a dash if unknown."""
    found = known(value)
    if found is None:
        return UNKNOWN
    rounded = round(found, digits) + 0.0  # no "-0.000"
    return f"{rounded:+,.{digits}f}" if signed else f"{rounded:,.{digits}f}"


def with_error(value: Any, error: Any, *, signed: bool = False) -> str:
    """Return ``0.412 ± 0.031``; without the error if that is unknown (fewer than two instances)."""
    text = number(value, signed=signed)
    return text if UNKNOWN in (text, number(error)) else f"{text} ± {number(error)}"


def duration(seconds: Any) -> str:
    """Return a time in seconds, minutes or hours."""
    found = known(seconds)
    if found is None or found < 120:
        return f"{number(found, 1)} s"
    return f"{number(found / 60, 1)} min" if found < 7200 else f"{number(found / 3600, 1)} h"


def counted(count: int, noun: str) -> str:
    """Return ``1 entry`` or ``2 entries``."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"


_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # needed for Persian, Hindi and many emoji; harmless


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with control and invisible characters escaped (``\x1b``, ``\u202e``), except
    those in ``keep``.
    """
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _UNSEEN and char not in _JOINERS and char not in keep
        else char
        for char in text
    )


def printable_lines(text: str) -> str:
    """Return a text as ``printable`` does, but keep line ends and tabs."""
    return text if text.isascii() and text.isprintable() else printable(text, "\n\t")


class Tone(StrEnum):
    """What a call did to the memory; each tone has a colour."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    SAME = "same"  # a success that changed nothing
    FAILED = "failed"


SIGNS: Mapping[Tone, str] = {
    Tone.INSERT: "+",
    Tone.UPDATE: "~",
    Tone.DELETE: "-",
    Tone.SAME: "=",
    Tone.FAILED: "x",
}
"""One character per tone, so that colour is not needed."""


class Call(NamedTuple):
    """One call of a completion and its result."""

    tone: Tone
    head: str  # e.g. "update facts 3"; "no call" for unreadable text
    content: str  # text written; empty for deletes
    was: str  # text before an applied update or delete
    note: str  # why it failed or changed nothing; empty for an applied call


def calls(step: Mapping[str, Any]) -> list[Call]:
    """Return the calls of one step of a rollout, in order, each applied one with its change."""
    changes = iter(step["changes"])
    return [
        _call(result, next(changes) if result["code"] == "applied" else None)
        for result in step["results"]
    ]


def _call(result: Mapping[str, Any], change: Mapping[str, Any] | None) -> Call:
    operation = result["operation"]
    tone = change_tone(change) if change else Tone.SAME if result["ok"] else Tone.FAILED
    note = "" if change else f"{result['code']}: {result['message']}"
    if operation is None:
        return Call(tone, "no call", "", "", note)
    entry = result["entry"] or operation["entry_id"]
    names = [
        operation["kind"],
        operation["section"],
        *([entry] if entry and entry != operation["section"] else []),
    ]
    was = change["before"]["content"] if change and change["before"] else ""
    return Call(tone, " ".join(names), operation["content"] or "", was, note)


def change_tone(change: Mapping[str, Any]) -> Tone:
    """Return the tone of a change."""
    if change["before"] is None:
        return Tone.INSERT
    return Tone.DELETE if change["after"] is None else Tone.UPDATE


def entry_text(entry: Mapping[str, Any]) -> str:
    """Return an entry's text, with its time first if it has one."""
    return (
        f"[{entry['timestamp']}] {entry['content']}"
        if entry["timestamp"]
        else str(entry["content"])
    )


def reward_parts(step: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a step's reward by name; the optional part ``immediate`` only if it has a
    value.
    """
    return {
        name: value
        for name, value in step["reward"].items()
        if name != "immediate" or known(value) is not None
    }


def rollout_accuracy(rollout: Mapping[str, Any]) -> float | None:
    """Return the accuracy of a rollout (the same in each step); None if it was not scored."""
    return known(rollout["steps"][0]["reward"]["accuracy"]) if rollout["steps"] else None


def rollout_reward(rollout: Mapping[str, Any]) -> float | None:
    """Return the mean weighted reward over a rollout's steps; None if any is unknown."""
    totals = [known(step["total"]) for step in rollout["steps"]]
    return mean(totals) if None not in totals else None


class Shown(NamedTuple):
    """One entry after a step."""

    id: str  # section name for a block
    text: str  # after the step; for a deleted entry its last text
    tone: Tone | None  # effect of the step
    was: str  # text before an update, else empty


def memory_after_steps(rollout: Mapping[str, Any]) -> list[list[Shown]]:
    """Return, for each step, the entries after it in creation order, including those it deleted,
    from the recorded changes.
    """
    first: dict[str, Mapping[str, Any] | None] = {
        str(entry["id"]): entry for entry in rollout["memory"]
    }  # before any change
    for change in reversed([change for step in rollout["steps"] for change in step["changes"]]):
        first[str((change["after"] or change["before"])["id"])] = change["before"]
    began = (entry for entry in first.values() if entry is not None)
    memory = {
        str(entry["id"]): entry for entry in sorted(began, key=lambda entry: entry["created"])
    }
    found = []
    for step in rollout["steps"]:
        before = dict(memory)
        last: dict[str, Mapping[str, Any]] = {}  # last text of each entry that the step touched
        for change in step["changes"]:
            entry = change["after"] or change["before"]
            last[str(entry["id"])] = entry
            memory[str(entry["id"])] = change["after"]
        shown = []
        for name, new in memory.items():
            old, tone = before.get(name), None
            if name in last:
                tone = Tone.DELETE if new is None else Tone.UPDATE if old else Tone.INSERT
            was = entry_text(old) if old and tone is Tone.UPDATE else ""
            shown.append(Shown(name, entry_text(new or last[name]), tone, was))
        found.append(shown)
        memory = {name: entry for name, entry in memory.items() if entry is not None}
    return found
