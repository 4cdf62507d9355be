"""Recorded rollouts as the site and the terminal show them; how numbers and text are written.

Rollouts are those of a run folder (``memalpha.record.rows.rollout_to_json``). An unknown number
(null or NaN: not scored) is a dash, never 0. Text of data and models is no markup, and what could
steer a terminal is escaped.
"""

import html
import math
import unicodedata
from collections.abc import Iterator, Sequence
from enum import StrEnum
from operator import itemgetter
from typing import Any, NamedTuple

import jinja2
from markupsafe import Markup
from rich.console import Console
from rich.markup import escape

from memalpha.record.folder import RunFolder, checkpoint_step
from memalpha.record.shapes import HeldOutShape, RolloutShape
from memalpha.text.page import load_templates
from memalpha.types import JsonMapping, JsonObject

NO_VALUE = "–"
Recorded = JsonMapping  # a rollout, or a part of it, as JSON


# ------------------------------------------------------------------------------------------------
# numbers and text
def numeric(value: Any) -> float | None:
    """Return a number as a float; None for null, NaN, infinity, no value or another type."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # an integer that nothing counted
        return None
    return number if math.isfinite(number) else None


def mean(values: Sequence[Any]) -> float | None:
    """Return the mean of the known numbers; None if there are none."""
    numbers = [float(value) for value in values if numeric(value) is not None]
    return sum(numbers) / len(numbers) if numbers else None


def number(value: Any, digits: int = 3, *, signed: bool = False) -> str:
    """Return a rounded number, a share (three digits) without the zero before the point."""
    value = numeric(value)
    if value is None:
        return NO_VALUE
    rounded = round(value, digits) + 0.0  # no "-0.000"
    text = f"{rounded:+,.{digits}f}" if signed else f"{rounded:,.{digits}f}"
    return text.replace("0.", ".", 1) if digits == 3 and abs(rounded) < 1 else text


def duration(seconds: Any) -> str:
    """Return a time in seconds, minutes or hours."""
    for unit, size in (("h", 3600), ("min", 60)):
        if (numeric(seconds) or 0) >= 2 * size:
            return f"{number(seconds / size, 1)} {unit}"
    return f"{number(seconds, 1)} s"


def points(share: Any, *, signed: bool = False) -> str:
    """Return a share, or a difference of shares, times 100: ``41.2``."""
    value = numeric(share)
    return number(None if value is None else 100 * value, 1, signed=signed)


def percent(share: Any) -> str:
    """Return a share as ``41.2 %``."""
    return NO_VALUE if numeric(share) is None else f"{points(share)} %"


def count_of(count: int, noun: str) -> str:
    """Return ``1 entry`` or ``2 entries``."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else plural}"


_UNSEEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_JOINERS = "\u200c\u200d"  # needed for Persian, Hindi and many emoji; harmless


def printable(text: str, keep: str = "") -> str:
    r"""Return a text with invisible characters escaped (``\x1b``), except those in ``keep``."""
    return "".join(
        char.encode("unicode_escape").decode("ascii")
        if unicodedata.category(char) in _UNSEEN and char not in _JOINERS + keep
        else char
        for char in text
    )


def printable_lines(text: str) -> str:
    """Return a text as ``printable`` does, but keep line ends and tabs."""
    return text if text.isascii() and text.isprintable() else printable(text, "\n\t")


# ------------------------------------------------------------------------------------------------
# rollouts
class RolloutFile(NamedTuple):
    """One file of rollouts."""

    name: str  # inside the run folder
    where: str  # label of its rollouts: "before", "after", "step 3"
    step: int | None  # None for held-out evaluations

    def rollouts(self, run: RunFolder) -> Iterator[Recorded]:
        """Iterate over the rollouts of the file; InputError for one that is damaged."""
        held_out = self.step is None
        for line in run.read_lines(self.name, HeldOutShape if held_out else RolloutShape):
            yield line["rollout"] if held_out else line


def sources_of(run: RunFolder) -> list[RolloutFile]:
    """Return the rollout files of a run: before, after, while training, then of each step."""
    names = sorted(path.stem for path in (run.path / "held_out").glob("*.jsonl"))
    names.sort(key=lambda name: (name != "before", name != "after"))
    held_out = [RolloutFile(f"held_out/{name}.jsonl", name, None) for name in names]
    steps = [(path.name, checkpoint_step(path)) for path in run.trajectory_files()]
    return held_out + [RolloutFile(f"trajectories/{name}", f"step {n}", n) for name, n in steps]


class Tone(StrEnum):
    """The effect of a call on the memory, as a colour."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"
    SAME = "same"  # a success that changed nothing
    FAILED = "failed"
    ASKED = "asked"  # a search or an answer


SIGNS = dict(zip(Tone, "+~-=x?", strict=True))  # one character a tone, so that no colour is needed
_STYLES = dict(zip(Tone, ("green", "yellow", "red", "dim", "bold red", "cyan"), strict=True))


_ASKING = {"searched": "search", "answered": "answer"}  # what a turn was, by its code


class Call(NamedTuple):
    """One call of a completion and its result."""

    tone: Tone
    head: str  # e.g. "update facts 3"; "no call" for unreadable text
    content: str  # text written; empty for deletes
    was: str  # text before an applied update or delete
    note: str  # why it failed or changed nothing; empty for an applied call


def calls(step: Recorded) -> list[Call]:
    """Return the calls of one step of a rollout, in order, each applied one with its change."""
    changes = iter(step["changes"])
    listed = []
    for result in step["results"]:
        change = next(changes) if result["code"] == "applied" else None
        if result["code"] in _ASKING:
            words = result["message"] or "(without words)"
            listed.append(Call(Tone.ASKED, _ASKING[result["code"]], words, "", ""))
            continue
        operation = result["operation"] or {"kind": "no", "section": "call", "content": ""}
        entry = result["entry"] or operation.get("entry_id") or operation["section"]
        head = f"{operation['kind']} {operation['section']}"
        head += f" {entry}" if entry != operation["section"] else ""
        tone = Tone.SAME if result["ok"] else Tone.FAILED
        note = f"{result['code']}: {result['message']}"
        was = ""
        if change:
            tone, note = change_tone(change), ""
            was = change["before"]["content"] if change["before"] else ""
        listed.append(Call(tone, head, operation["content"] or "", was, note))
    return listed


def change_tone(change: Recorded) -> Tone:
    """Return the tone of a change."""
    if change["before"] is None:
        return Tone.INSERT
    return Tone.DELETE if change["after"] is None else Tone.UPDATE


def entry_text(entry: Recorded) -> str:
    """Return an entry's text, with its time first if it has one."""
    time, text = entry["timestamp"], str(entry["content"])
    return f"[{time}] {text}" if time else text


def reward_parts(step: Recorded) -> JsonObject:
    """Return the parts of a step's reward; ``immediate`` only if it has a value."""
    return {
        name: value
        for name, value in step["reward"].items()
        if name != "immediate" or numeric(value) is not None
    }


def rollout_accuracy(rollout: Recorded) -> float | None:
    """Return the accuracy of a rollout (the same in each step); None if it was not scored."""
    return numeric(rollout["steps"][0]["reward"]["accuracy"]) if rollout["steps"] else None


def rollout_reward(rollout: Recorded) -> float | None:
    """Return the mean weighted reward over a rollout's steps; None if any is unknown."""
    totals = [numeric(step["total"]) for step in rollout["steps"]]
    return mean(totals) if None not in totals else None


class EntryChange(NamedTuple):
    """One entry after a step."""

    id: str  # section name for a block
    text: str  # after the step; for a deleted entry its last text
    tone: Tone | None  # effect of the step
    was: str  # text before an update, else empty


def memory_after_steps(rollout: Recorded) -> list[list[EntryChange]]:
    """Return the entries after each step, in creation order, with those it deleted.

    They follow from the recorded changes and the final memory.
    """
    states: dict[str, Recorded | None] = {str(entry["id"]): entry for entry in rollout["memory"]}
    for step in reversed(rollout["steps"]):  # undone, to what the rollout began with
        for change in reversed(step["changes"]):
            states[str((change["after"] or change["before"])["id"])] = change["before"]
    first = [entry for entry in states.values() if entry is not None]
    memory = {str(entry["id"]): entry for entry in sorted(first, key=itemgetter("created"))}
    history = []
    for step in rollout["steps"]:
        before = dict(memory)
        tones = dict[str, Tone]()
        for change in step["changes"]:
            entry = change["after"] or change["before"]
            name = str(entry["id"])
            memory[name] = entry
            tones[name] = Tone.UPDATE if name in before else Tone.INSERT
            if change["after"] is None:
                tones[name] = Tone.DELETE
        entries = []
        for name, entry in memory.items():
            tone = tones.get(name)
            was = entry_text(before[name]) if tone is Tone.UPDATE else ""
            entries.append(EntryChange(name, entry_text(entry), tone, was))
        history.append(entries)
        memory = {name: e for name, e in memory.items() if tones.get(name) is not Tone.DELETE}
    return history


# ------------------------------------------------------------------------------------------------
# templates
_HELPERS = {  # what the templates of pages and of the terminal call
    "calls": calls,
    "change_tone": change_tone,
    "counted": count_of,
    "duration": duration,
    "entry_text": entry_text,
    "number": number,
    "numeric": numeric,
    "percent": percent,
    "reward_parts": reward_parts,
    "rollout_accuracy": rollout_accuracy,
    "rollout_reward": rollout_reward,
    "signs": SIGNS,
    "styles": _STYLES,
}


def templates(package: str = "memalpha.measure", **options: Any) -> jinja2.Environment:
    """Return the templates of a package; ``options`` are those of a jinja environment."""
    environment = load_templates(package, **options)
    environment.globals.update(_HELPERS)
    return environment


def mark_code(text: str) -> Markup:
    """Return a text for a page, with what stands between backticks as code."""
    parts = map(html.escape, text.split("`"))
    return Markup(
        "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))
    )


def _inline(value: Any) -> Markup:
    if isinstance(value, Markup):
        return value
    text = printable(str(value), "\n\t").replace("\n", " ⏎ ")
    return Markup(escape(text or "(empty)"))


def show_rollout(rollout: Recorded, console: Console) -> None:
    """Print one recorded rollout, wrapped at the console's width."""
    environment = templates(finalize=_inline)
    environment.filters["lines"] = lambda text: Markup(escape(printable_lines(text)))
    memory = {entry["id"]: entry_text(entry) for entry in rollout["memory"]}
    text = environment.get_template("rollout.txt").render(rollout=rollout, memory=memory)
    console.print(text, soft_wrap=False, markup=True, highlight=False, emoji=False)
