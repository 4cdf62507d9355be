"""One rollout in the terminal: what was read, what was called, what became of the memory, what it earned, what was asked.

Everything a data set or a model wrote is shown as plain text: never read as rich markup, and with control characters spelt out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from memalpha.report.view import (
    SIGNS,
    UNKNOWN,
    Tone,
    calls,
    change_tone,
    counted,
    entry_text,
    known,
    mean,
    number,
    printable,
    recorded,
    retrieved,
    reward_parts,
    rollout_accuracy,
    rollout_reward,
)
from memalpha.runs import RunFolder, trajectory_step

STYLES: Mapping[Tone, str] = {
    Tone.INSERT: "green",
    Tone.UPDATE: "yellow",
    Tone.DELETE: "red",
    Tone.SAME: "dim",
    Tone.FAILED: "bold red",
}
"""Colour of each tone."""


def show_rollout(rollout: Mapping[str, Any], console: Console) -> None:
    """Print one recorded rollout.

    Args:
        rollout: The JSON of ``memalpha.training.results.rollout_to_json``.
        console: Where to; lines are wrapped at its width.
    """
    read = f"{counted(len(rollout['steps']), 'chunk')}, {counted(rollout['input_tokens'], 'token')} read"
    heading = _bold(printable(rollout["instance"])).append(f"  from {printable(rollout['source'])}, {read}", "dim")
    _print(console, heading)
    for step in rollout["steps"]:
        _show_step(step, len(rollout["steps"]), console)
    _show_questions(rollout, console)
    line = _bold(f"accuracy {number(rollout_accuracy(rollout))}").append(f"   mean reward {number(rollout_reward(rollout))}")
    line.append(f"   memory {counted(len(rollout['memory']), 'entry')}, {counted(rollout['memory_tokens'], 'token')}")
    _print(console, line)


def _show_step(step: Mapping[str, Any], total: int, console: Console) -> None:
    title = f"chunk {step['chunk'] + 1} of {total}" + (f" · {step['time']}" if step["time"] else "")
    _print(console, Panel(_plain(step["text"]), title=_plain(title), title_align="left", border_style="blue", box=box.ROUNDED))
    _print(console, _calls(step))
    _print(console, _diff(step))
    _print(console, _earned(step))
    _print(console, Text())


def _calls(step: Mapping[str, Any]) -> Text:
    text = _bold("calls ").append(f"({counted(step['completion_tokens'], 'token')})", "dim")
    if step["stop"] == "length":
        text.append("  cut off at the longest completion", "bold red")
    found = calls(step)
    if not found:
        text.append("\n  none: the policy kept silent", "dim")
    for call in found:
        text.append(f"\n  {call.sign} {printable(call.head)}", STYLES[call.tone])
        text.append(f"  {_inline(call.content)}" if call.content else "")
        text.append(f"  {_inline(call.note)}" if call.note else "", "italic" if call.tone is Tone.SAME else "red")
    if any(call.head == "no call" for call in found):
        text.append("\n  completion: ", "dim").append(_inline(step["completion"]), "dim")
    return text


def _diff(step: Mapping[str, Any]) -> Text:
    text = _bold("memory ")
    text.append(f"({counted(step['entries'], 'entry')}, {counted(step['memory_tokens'], 'token')} afterwards)", "dim")
    if not step["changes"]:
        text.append("\n  unchanged", "dim")
    for change in step["changes"]:
        tone = change_tone(change)
        shown = change["after"] or change["before"]
        text.append(f"\n  {SIGNS[tone]} {printable(shown['section'])} {printable(shown['id'])}  ", STYLES[tone])
        if tone is Tone.UPDATE:
            text.append(_inline(entry_text(change["before"])), "strike dim").append(" → ", STYLES[tone])
        text.append(_inline(entry_text(shown)), STYLES[tone])
    return text


def _earned(step: Mapping[str, Any]) -> Text:
    text = _bold("reward ")
    text.append("  ".join(f"{name} {number(value)}" for name, value in reward_parts(step).items()))
    text.append("  total ").append(number(step["total"]), "bold")
    if step["advantage"] is not None:
        advantage = known(step["advantage"]) or 0.0
        style = "green" if advantage > 0 else "red" if advantage < 0 else ""
        text.append("  advantage ").append(number(step["advantage"], signed=True), style)
    return text


def _show_questions(rollout: Mapping[str, Any], console: Console) -> None:
    if not rollout["questions"]:
        _print(console, Text("no questions were asked", "dim"))
    for index, question in enumerate(rollout["questions"], 1):
        score = known(question["score"])
        style = "dim" if score is None else "green" if score >= 0.5 else "red"
        text = _bold(f"question {index} {_inline(question['question'])}")
        text.append(f"  {_inline(question['kind'])}", "dim")
        for name, value in retrieved(rollout, question):
            text.append("\n  retrieved ", "dim").append(f"{printable(name)} {_inline(value)}")
        text.append("\n  answer    ", "dim").append(UNKNOWN if question["answer"] is None else _inline(question["answer"]))
        text.append("\n  gold      ", "dim").append(_inline(" | ".join(question["answers"])))
        if question["stale"]:
            text.append("\n  stale     ", "dim").append(_inline(" | ".join(question["stale"])))
        text.append("\n  score     ", "dim").append(number(question["score"], 2), style)
        if question["error"]:
            text.append(f"  could not be scored: {_inline(question['error'])}", "red")
        _print(console, text)
    _print(console, Text())


def list_rollouts(run: RunFolder) -> Table:
    """Return a table of everything ``show_rollout`` can show of a run; its first column is what to ask ``memalpha inspect`` for."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("memalpha inspect RUN ...", no_wrap=True)
    for column in ("rollouts", "reward", "accuracy"):
        table.add_column(column, justify="right", no_wrap=True)
    for path in sorted((run.path / "held_out").glob("*.jsonl")):
        _add(table, f"--held-out {path.stem} --rollout N", _means(run, f"held_out/{path.name}"))
    steps: dict[int, list[str]] = {}
    for path in run.trajectory_files():
        steps.setdefault(trajectory_step(path), []).append(path.name)
    for step, names in steps.items():
        _add(table, f"--step {step} --rollout N", [pair for name in names for pair in _means(run, f"trajectories/{name}")])
    if not table.rows:
        table.add_row("no rollouts yet", "", "", "")
    return table


def _means(run: RunFolder, name: str) -> list[tuple[float | None, float | None]]:
    """Mean reward and accuracy of each rollout of a file."""

    def read(row: Mapping[str, Any]) -> tuple[float | None, float | None]:
        rollout = row["rollout"] if name.startswith("held_out") else row
        return rollout_reward(rollout), rollout_accuracy(rollout)

    return list(recorded(run, name, read))


def _add(table: Table, what: str, found: Sequence[tuple[float | None, float | None]]) -> None:
    last = f"0 to {len(found) - 1}" if found else "none"
    means = (number(mean([pair[index] for pair in found])) for index in (0, 1))
    table.add_row(Text(printable(what)), last, *means)


def _plain(text: str) -> Text:
    return Text(printable(text))


def _bold(text: str) -> Text:
    """A text that starts bold; what is appended is not."""
    return Text().append(text, "bold")


def _inline(text: str) -> str:
    """A text on one line; an empty one says so."""
    return printable(text).replace("\n", " ⏎ ") or "(empty)"


def _print(console: Console, item: Any) -> None:
    """Wrap at the console's width even where the console itself does not."""
    console.print(item, soft_wrap=False, markup=False, highlight=False)
