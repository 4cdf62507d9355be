"""One rollout in the terminal. Text of data sets and models is not read as rich markup; control characters are escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from memalpha.report.catalogue import sources_of
from memalpha.report.view import (
    SIGNS,
    UNKNOWN,
    Tone,
    as_recorded,
    calls,
    change_tone,
    counted,
    entry_text,
    known,
    mean,
    number,
    printable,
    printable_lines,
    reward_parts,
    rollout_accuracy,
    rollout_reward,
)
from memalpha.runs import RunFolder

STYLES: Mapping[Tone, str] = {
    Tone.INSERT: "green",
    Tone.UPDATE: "yellow",
    Tone.DELETE: "red",
    Tone.SAME: "dim",
    Tone.FAILED: "bold red",
}


def show_rollout(rollout: Mapping[str, Any], console: Console) -> None:
    """Print one recorded rollout (JSON of ``memalpha.training.results.rollout_to_json``), wrapped at the console's width."""

    def show(*items: Text | Panel) -> None:
        for item in items:
            console.print(item, soft_wrap=False, markup=False, highlight=False)

    steps = rollout["steps"]
    read = f"{counted(len(steps), 'chunk')}, {counted(rollout['input_tokens'], 'token')} read"
    show(_bold(_inline(rollout["instance"])).append(f"  from {_inline(rollout['source'])}, {read}", "dim"))
    for step in steps:
        title = f"chunk {step['chunk'] + 1} of {len(steps)}" + (f" · {step['time']}" if step["time"] else "")
        text = Text(printable_lines(step["text"]))
        show(Panel(text, title=Text(printable(title)), title_align="left", border_style="blue", box=box.ROUNDED))
        show(_calls(step), _changes(step), _earned(step), Text())
    if not rollout["questions"]:
        show(Text("no questions were asked", "dim"))
    memory = {entry["id"]: entry_text(entry) for entry in rollout["memory"]}
    for index, question in enumerate(rollout["questions"], 1):
        show(_question(index, question, memory))
    line = _bold(f"accuracy {number(rollout_accuracy(rollout))}").append(f"   mean reward {number(rollout_reward(rollout))}")
    line.append(f"   memory {counted(len(rollout['memory']), 'entry')}, {counted(rollout['memory_tokens'], 'token')}")
    show(Text(), line)


def _calls(step: Mapping[str, Any]) -> Text:
    text = _bold("calls ").append(f"({counted(step['completion_tokens'], 'token')})", "dim")
    if step["stop"] == "length":
        text.append("  cut off at the longest completion", "bold red")
    found = calls(step)
    if not found:
        text.append("\n  none: the policy kept silent", "dim")
    for call in found:
        text.append(f"\n  {SIGNS[call.tone]} {_inline(call.head)}", STYLES[call.tone])
        text.append(f"  {_inline(call.content)}" if call.content else "")
        text.append(f"  {_inline(call.note)}" if call.note else "", "italic" if call.tone is Tone.SAME else "red")
    if any(call.head == "no call" for call in found):
        text.append("\n  completion: ", "dim").append(_inline(step["completion"]), "dim")
    return text


def _changes(step: Mapping[str, Any]) -> Text:
    text = _bold("memory ")
    text.append(f"({counted(step['entries'], 'entry')}, {counted(step['memory_tokens'], 'token')} afterwards)", "dim")
    if not step["changes"]:
        text.append("\n  unchanged", "dim")
    for change in step["changes"]:
        tone = change_tone(change)
        shown = change["after"] or change["before"]
        text.append(f"\n  {SIGNS[tone]} {_inline(shown['section'])} {_inline(shown['id'])}  ", STYLES[tone])
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


def _question(index: int, question: Mapping[str, Any], memory: Mapping[str, str]) -> Text:
    score = known(question["score"])
    text = _bold(f"question {index} {_inline(question['question'])}").append(f"  {_inline(question['kind'])}", "dim")
    lines = [("retrieved", f"{_inline(name)} {_inline(memory.get(name, UNKNOWN))}") for name in question["entries"]]
    lines.append(("answer", UNKNOWN if question["answer"] is None else _inline(question["answer"])))
    lines.append(("gold", _inline(" | ".join(question["answers"]))))
    if question["stale"]:
        lines.append(("stale", _inline(" | ".join(question["stale"]))))
    for name, value in lines:
        text.append(f"\n  {name:9} ", "dim").append(value)
    text.append("\n  score     ", "dim")
    text.append(number(question["score"], 2), "dim" if score is None else "green" if score >= 0.5 else "red")
    if question["error"]:
        text.append(f"  could not be scored: {_inline(question['error'])}", "red")
    return text


def list_rollouts(run: RunFolder) -> Table:
    """Return a table of everything ``show_rollout`` can show of a run; the first column is the argument of ``memalpha inspect``."""
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("memalpha inspect RUN ...", no_wrap=True)
    for column in ("rollouts", "reward", "accuracy"):
        table.add_column(column, justify="right", no_wrap=True)
    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for source in sources_of(run):
        option = f"--held-out {Path(source.name).stem}" if source.step is None else f"--step {source.step}"
        for line, rollout in enumerate(source.rollouts(), 1):
            with as_recorded(run.path / source.name, line):
                found.setdefault(option, []).append((rollout_reward(rollout), rollout_accuracy(rollout)))
    for option, numbers in found.items():
        means = (number(mean([one[i] for one in numbers])) for i in (0, 1))
        table.add_row(Text(printable(f"{option} --rollout N")), f"0 to {len(numbers) - 1}", *means)
    if not table.rows:
        table.add_row("no rollouts yet", "", "", "")
    return table


def _bold(text: str) -> Text:
    return Text().append(text, "bold")


def _inline(text: str) -> str:
    return printable(text, "\n\t").replace("\n", " ⏎ ") or "(empty)"
