"""Rollouts and tables of runs in the terminal. Text of data and models is no rich markup; control
characters are escaped.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from memalpha.measure import runs as run_tables
from memalpha.measure import view
from memalpha.measure.view import (
    SIGNS,
    UNKNOWN,
    Tone,
    counted,
    entry_text,
    known,
    number,
    printable,
)
from memalpha.record.folder import RunFolder

STYLES: Mapping[Tone, str] = dict(
    zip(Tone, ("green", "yellow", "red", "dim", "bold red"), strict=True)
)


def show_rollout(rollout: Mapping[str, Any], console: Console) -> None:
    """Print one recorded rollout (JSON of ``memalpha.record.rows.rollout_to_json``), wrapped
    at the console's width.
    """
    for item in _items(rollout):
        console.print(item, soft_wrap=False, markup=False, highlight=False)


def _items(rollout: Mapping[str, Any]) -> Iterator[RenderableType]:
    steps = rollout["steps"]
    read = f"{counted(len(steps), 'chunk')}, {counted(rollout['input_tokens'], 'token')} read"
    yield _bold(_inline(rollout["instance"])).append(
        f"  from {_inline(rollout['source'])}, {read}", "dim"
    )
    for step in steps:
        title = Text(
            printable(
                f"chunk {step['chunk'] + 1} of {steps[-1]['chunk'] + 1}"
                + (f" · {step['time']}" if step["time"] else "")
            )
        )
        yield Panel(
            Text(view.printable_lines(step["text"])),
            title=title,
            title_align="left",
            border_style="blue",
            box=box.ROUNDED,
        )
        yield _calls(step)
        yield _changes(step)
        yield _earned(step)
        yield Text()
    if not rollout["questions"]:
        yield Text("no questions were asked", "dim")
    memory = {entry["id"]: entry_text(entry) for entry in rollout["memory"]}
    for index, question in enumerate(rollout["questions"], 1):
        yield _question(index, question, memory)
    yield Text()
    accuracy, reward = number(view.rollout_accuracy(rollout)), number(view.rollout_reward(rollout))
    held = (
        f"{counted(len(rollout['memory']), 'entry')}, {counted(rollout['memory_tokens'], 'token')}"
    )
    yield _bold(f"accuracy {accuracy}").append(f"   mean reward {reward}   memory {held}")


def _calls(step: Mapping[str, Any]) -> Text:
    text = _bold("calls ").append(f"({counted(step['completion_tokens'], 'token')})", "dim")
    if step["stop"] == "length":
        text.append("  cut off at the longest completion", "bold red")
    found = view.calls(step)
    if not found:
        text.append("\n  none: the policy kept silent", "dim")
    for call in found:
        text.append(f"\n  {SIGNS[call.tone]} {_inline(call.head)}", STYLES[call.tone])
        text.append(f"  {_inline(call.content)}" if call.content else "")
        text.append(
            f"  {_inline(call.note)}" if call.note else "",
            "italic" if call.tone is Tone.SAME else "red",
        )
    if any(call.head == "no call" for call in found):
        text.append("\n  completion: ", "dim").append(_inline(step["completion"]), "dim")
    return text


def _changes(step: Mapping[str, Any]) -> Text:
    text = _bold("memory ")
    text.append(
        f"({counted(step['entries'], 'entry')}, {counted(step['memory_tokens'], 'token')} afterwards)",
        "dim",
    )
    if not step["changes"]:
        text.append("\n  unchanged", "dim")
    for change in step["changes"]:
        tone = view.change_tone(change)
        shown = change["after"] or change["before"]
        text.append(
            f"\n  {SIGNS[tone]} {_inline(shown['section'])} {_inline(shown['id'])}  ", STYLES[tone]
        )
        if tone is Tone.UPDATE:
            text.append(_inline(entry_text(change["before"])), "strike dim").append(
                " → ", STYLES[tone]
            )
        text.append(_inline(entry_text(shown)), STYLES[tone])
    return text


def _earned(step: Mapping[str, Any]) -> Text:
    text = _bold("reward ")
    text.append(
        "  ".join(f"{name} {number(value)}" for name, value in view.reward_parts(step).items())
    )
    text.append("  total ").append(number(step["total"]), "bold")
    if step["advantage"] is not None:
        advantage = known(step["advantage"]) or 0.0
        style = "green" if advantage > 0 else "red" if advantage < 0 else ""
        text.append("  advantage ").append(number(step["advantage"], signed=True), style)
    return text


def _question(index: int, question: Mapping[str, Any], memory: Mapping[str, str]) -> Text:
    score = known(question["score"])
    text = _bold(f"question {index} {_inline(question['question'])}").append(
        f"  {_inline(question['kind'])}", "dim"
    )
    lines = [
        ("retrieved", f"{_inline(name)} {_inline(memory.get(name, UNKNOWN))}")
        for name in question["entries"]
    ]
    lines.append(("answer", UNKNOWN if question["answer"] is None else _inline(question["answer"])))
    lines.append(("gold", _inline(" | ".join(question["answers"]))))
    if question["stale"]:
        lines.append(("stale", _inline(" | ".join(question["stale"]))))
    for name, value in lines:
        text.append(f"\n  {name:9} ", "dim").append(value)
    text.append("\n  score     ", "dim")
    text.append(
        number(question["score"], 2), "dim" if score is None else "green" if score >= 0.5 else "red"
    )
    if question["error"]:
        text.append(f"  could not be scored: {_inline(question['error'])}", "red")
    return text


def list_rollouts(run: RunFolder) -> Table:
    """Return a table of everything ``show_rollout`` can show of a run; the first column is the
    argument of ``memalpha inspect``.
    """
    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for source in view.sources_of(run):
        option = (
            f"--held-out {Path(source.name).stem}"
            if source.step is None
            else f"--step {source.step}"
        )

        def read(
            _: int, row: Mapping[str, Any], source: view.Source = source
        ) -> tuple[float | None, float | None]:
            rollout = source.rollout(row)
            return view.rollout_reward(rollout), view.rollout_accuracy(rollout)

        found.setdefault(option, []).extend(view.recorded(run, source.name, read))
    rows = []
    for option, numbers in found.items():
        reward, accuracy = (number(view.mean(values)) for values in zip(*numbers, strict=True))
        rows.append((f"{option} --rollout N", (f"0 to {len(numbers) - 1}", reward, accuracy)))
    head = "memalpha inspect RUN ..."
    return _table(
        ("rollouts", "reward", "accuracy"), rows or [("no rollouts yet", ("", "", ""))], head=head
    )


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return the table of a ``summary.json``."""
    return _table(*run_tables.summary_rows(summary), run_tables.selection_note(summary))


def comparison_table(folders: Sequence[RunFolder]) -> Table:
    """Return the comparison of runs."""
    groups = run_tables.group_runs([run_tables.read_run(folder) for folder in folders])
    return _table(
        [group.label for group in groups], run_tables.comparison(groups), run_tables.SPREAD
    )


def _table(
    columns: Sequence[str], rows: Sequence[run_tables.Row], caption: str = "", head: str = ""
) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        caption=Text(caption, "dim") if caption else None,
        caption_justify="left",
    )
    table.add_column(head, no_wrap=bool(head))
    for column in columns:
        table.add_column(Text(printable(column)), justify="right", no_wrap=True)
    for name, cells in rows:
        table.add_row(*(Text(printable(text)) for text in (name, *cells)))
    return table


def _bold(text: str) -> Text:
    return Text().append(text, "bold")


def _inline(text: str) -> str:
    return printable(text, "\n\t").replace("\n", " ⏎ ") or "(empty)"
