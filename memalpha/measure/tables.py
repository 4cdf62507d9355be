"""The tables of an evaluation, of a run before and after training, and of runs side by side.

A table is written as Markdown, for the terminal, or by the site's templates. Unknown numbers are a
dash, never 0. Accuracy is everywhere the mean over instances of the mean over their questions, with
one kind of interval (``record.statistics``); a star marks one that the standard error does not
confirm. Runs that differ only in their seed form one column.
"""

import math
import os
import re
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from rich import box
from rich.table import Table as TerminalTable
from rich.text import Text

from memalpha.files import write_whole
from memalpha.measure import view
from memalpha.measure.scorecard import Measure
from memalpha.measure.summary import (
    Members,
    SetSummary,
    Summary,
    compare_groups,
    difference_from,
    summarise_evaluation,
)
from memalpha.measure.view import UNKNOWN, counted, number, printable
from memalpha.record.folder import RunFolder
from memalpha.record.rows import InstanceRow, read_rows
from memalpha.record.statistics import LEVEL, RESAMPLES, Estimate

Row = Sequence[str]


class Table(NamedTuple):
    """A head and rows of text, each with the row's name first."""

    head: Row
    rows: Sequence[Row]
    note: str = ""


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    cells = [[_one_line(cell).replace("|", "/") for cell in line] for line in lines]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def terminal(table: Table) -> TerminalTable:
    """Return a table as rich shows it."""
    caption = Text(table.note, "dim") if table.note else None
    shown = TerminalTable(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for index, name in enumerate(table.head):
        shown.add_column(Text(printable(name)), justify="right" if index else "left", no_wrap=True)
    for row in table.rows:
        shown.add_row(*(Text(printable(cell)) for cell in row))
    return shown


def interval(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return ``.412 [.351, .470]``, with a star if the two intervals disagree; a dash for None."""
    if estimate is None:
        return UNKNOWN
    mean, low, high = (
        number(value, signed=signed) for value in (estimate.mean, estimate.low, estimate.high)
    )
    return f"{mean} [{low}, {high}]{'*' if estimate.agree is False else ''}"


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


# ------------------------------------------------------------------------------------------------
# an evaluation
def write_tables(folder: str | Path) -> Summary:
    """Write ``summary.json`` and ``table.md``, also of an unfinished evaluation; InputError if
    there is none.
    """
    summary = summarise_evaluation(folder)
    RunFolder(folder).write_json("summary.json", summary.to_json())
    lines = [
        "# Evaluation",
        "Accuracy is the mean over instances of the mean over their questions, [with its "
        f"{LEVEL:.0%} interval] from {RESAMPLES:,} draws of the instances, that of a mean over "
        "sets from their standard errors; differences are paired by instance. Costs are means over "
        f"instances. {UNKNOWN} is not known; * is an interval that one made from the standard "
        "error does not confirm (too few instances).",
    ]
    for reader in summary.over_sets:
        items = [item for item in summary.sets if item.reader == reader]
        lines += [f"## Reader `{_one_line(reader)}`", markdown(overall(summary, reader))]
        outside = ", ".join(item.set for item in items if not item.in_mean)
        if outside:
            lines.append(f"Not in the mean: {outside}.")
        for item in items:
            lines.append(f"### {_one_line(item.set)} ({item.instances} of {item.size} instances)")
            for group, why in item.left_out.items():
                lines.append(f"- Left out: `{_one_line(group)}` lacks {_one_line(why)}")
            lines += map(markdown, set_tables(item, summary.reference)[:3])
            if not item.cells:
                lines.append("Nothing to compare yet.")
    write_whole(Path(folder) / "table.md", "\n\n".join(lines) + "\n")
    return summary


def overall(summary: Summary, reader: str) -> Table:
    """A row a group: its accuracy on each set, the mean over sets, and the difference from the
    reference.
    """
    items = [item for item in summary.sets if item.reader == reader]
    counted_items = [item for item in items if item.in_mean]
    rows = []
    for group, mean in summary.over_sets[reader].items():
        cells = [item.cells.get(group) for item in items]
        present = sum(group in item.cells for item in counted_items)
        gap = difference_from(summary.differences[reader], summary.reference, group)
        row = [
            group,
            *(interval(cell.accuracy if cell else None) for cell in cells),
            interval(mean) if mean else f"{UNKNOWN} ({present} of {len(counted_items)} sets)",
            interval(gap, signed=True),
        ]
        rows.append(row)
    names = [item.set for item in items]
    over = f"mean over {counted(len(counted_items), 'set')}"
    return Table(["system", *names, over, f"minus `{summary.reference}`"], rows)


_COSTS: Mapping[str, tuple[str, int]] = {
    "memory tokens": ("memory_tokens", 1),
    "of the input": ("share", 3),
    "tokens read for a question": ("reader_tokens", 1),
    "write calls": ("write_calls", 1),
    "of them cut off": ("cut_off", 1),
    "tokens cut": ("cut", 1),
    "s writing": ("seconds_write", 2),
    "s reading": ("seconds_read", 2),
}


def set_tables(item: SetSummary, reference: str) -> list[Table]:
    """The tables of a set, a row a group: accuracy and costs, kinds of question, changes and
    removals, and where they are known rewards and calls.
    """
    costs, kinds, card, rewards = list[Row](), list[Row](), list[Row](), list[Row]()
    sizes, parts, calls = dict[str, int](), dict[str, Any](), dict[str, Any]()
    for cell in item.cells.values():
        sizes |= {kind: score.questions for kind, score in cell.kinds.items()}
        parts |= cell.rewards
        calls |= cell.calls
    for group, cell in item.cells.items():
        read = cell.costs["input_tokens"]
        values = {**cell.costs, "share": cell.costs["memory_tokens"] / read if read else math.nan}
        gap = difference_from(item.differences, reference, group)
        shown = [number(values[name], digits) for name, digits in _COSTS.values()]
        costs.append([group, interval(cell.accuracy), interval(gap, signed=True), *shown])
        scores = [cell.kinds.get(kind) for kind in sizes]
        kinds.append([group, *(interval(score.accuracy if score else None) for score in scores)])
        measures = [cell.scorecard[measure] for measure in Measure]
        card.append([group, *(interval(found) if found else "not measured" for found in measures)])
        shares = [*map(cell.rewards.get, parts), *(cell.calls.get(name, 0.0) for name in calls)]
        rewards.append([group, *map(number, shares)])
    asked = [f"{kind} ({counted(count, 'question')})" for kind, count in sizes.items()]
    arrows = [f"{measure} {'↑' if measure.higher_is_better else '↓'}" for measure in Measure]
    named = [*(f"reward {part}" for part in parts), *(f"{name}, share of calls" for name in calls)]
    tables = [
        Table(["system", "accuracy", f"minus `{reference}`", *_COSTS], costs),
        Table(["by kind of question", *asked], kinds),
        Table(["changes and removals", *arrows], card),
        Table(["rewards and calls", *named], rewards),
    ]
    return tables[: 4 if parts else 3] if item.cells else []


# ------------------------------------------------------------------------------------------------
# a run of training
_NOTE = (
    f"[ ] is the {LEVEL:.0%} interval over instances; differences in accuracy are paired by "
    f"instance. {UNKNOWN}: not known."
)


def side_by_side(
    item: SetSummary, groups: Sequence[str], extra: Sequence[Row] = (), note: str = ""
) -> Table:
    """Return the tables of a set as one, with a column for each of ``groups``, the first being the
    reference, and without rows that are unknown in all of them.
    """
    rows = list(extra)
    for table in set_tables(item, groups[0]) if groups else ():
        by_group = {row[0]: row for row in table.rows}
        for place, name in enumerate(table.head[1:], 1):
            cells = [by_group[group][place] if group in by_group else UNKNOWN for group in groups]
            rows.append([name, *cells])
    told = [row for row in rows if set(row[1:]) - {UNKNOWN, "not measured"}]
    lacking = [f"`{group}` lacks {why}." for group, why in item.left_out.items()]
    return Table(["", *groups], told, " ".join([_NOTE, note, *lacking]).replace("  ", " ").strip())


def held_out(run: RunFolder) -> SetSummary:
    """Compare the held-out evaluations of a run: before and after, or the one there is."""
    groups = {}
    for source in view.sources_of(run):
        if source.step is None and "step-" not in source.name:  # not while training
            groups[source.where] = members_of([read_rows(run.path / source.name)])
    return compare_groups(groups)


def members_of(runs: Sequence[Sequence[InstanceRow]]) -> Members:
    """Return the rows of runs that differ in their seed, by run and by what makes an instance the
    same in all: name, number of chunks and questions.
    """
    members: Members = {}
    for index, rows in enumerate(runs):
        members[index] = {}
        for row in rows:
            texts = [question.text for question in row.questions]
            members[index]["\n".join([row.instance, str(row.chunks), *texts])] = row
    return members


def before_and_after(run: RunFolder) -> Table:
    """Return the table of a run's held-out instances; no rows if there were none."""
    item = held_out(run)
    note = selection_note(run.read_optional("summary.json"))
    return side_by_side(item, [*item.cells], note=note)


def headline(run: RunFolder) -> str:
    """Return the change in words; empty if it is not known."""
    item = held_out(run)
    change = difference_from(item.differences, "before", "after")
    if change is None:
        return ""
    before, after = (number(item.cells[name].accuracy.mean) for name in ("before", "after"))
    clear = change.low > 0 or change.high < 0
    verdict = "excludes 0" if clear else "does not exclude 0: no clear difference"
    return (
        f"Held-out accuracy {before} before and {after} after training: "
        f"{interval(change, signed=True)}, paired over {counted(change.n, 'instance')}. "
        f"The interval {verdict}. {selection_note(run.read_optional('summary.json'))}"
    ).strip()


def selection_note(summary: Mapping[str, Any]) -> str:
    """Return which step was selected on which instances; empty if none was."""
    chosen = summary.get("selection")
    if not chosen:
        return ""
    where = counted(chosen["instances"], "other instance")
    if chosen["on_after"]:
        where = "these instances, so the numbers after training are too favourable"
    value = number(chosen["value"])
    return f"Step {chosen['step']:.0f} was selected by {chosen['metric']}, {value} on {where}."


# ------------------------------------------------------------------------------------------------
# several runs
INCIDENTAL = frozenset(
    {  # options that may differ between seeds of one configuration
        "data_seed",
        "ddp_timeout",
        "disable_tqdm",
        "generation_rows",
        "local_rank",
        "output_dir",
        "overwrite",
        "project",
        "report_to",
        "resume",
        "rows_per_forward",
        "run_name",
        "seed",
        "trackio_space_id",
    }
)
INCIDENTAL_PREFIXES = ("save_", "logging_", "log_", "hub_")  # of names of more such options


class Column(NamedTuple):
    """One column of a comparison: training runs, or systems of an evaluation, that differ only in
    their seed.
    """

    label: str
    runs: Sequence[RunFolder]  # of training
    before: Members
    after: Members


def differing(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the options that differ between runs, except the incidental ones."""
    options = []
    for name in sorted(set().union(*configs) - INCIDENTAL):
        first = configs[0].get(name, UNKNOWN)
        if any(config.get(name, UNKNOWN) != first for config in configs):
            options.append(name)
    return [name for name in options if not name.startswith(INCIDENTAL_PREFIXES)]


def columns_of(folders: Sequence[RunFolder]) -> list[Column]:
    """Return the columns of a comparison: runs that differ only in their seed are one, and are
    called by the common start of their names without a seed number.
    """
    groups: list[list[RunFolder]] = []
    for folder in folders:
        same = [group for group in groups if not differing([group[0].config, folder.config])]
        if same and not folder.is_evaluation:
            same[0].append(folder)
        else:
            groups.append([folder])
    columns: list[Column] = []
    for runs in groups:
        if runs[0].is_evaluation:
            columns += _evaluated(runs[0])
            continue
        names = [run.path.resolve().name for run in runs]
        label = os.path.commonprefix(names)  # noqa: RUF071
        if len(runs) > 1:
            label = re.sub(r"([-_.]?(seed|s))?[-_.]?\d*$", "", label) or names[0]
        if label in [column.label for column in columns]:
            label = f"{label} ({len(columns) + 1})"
        before, after = (
            members_of([read_rows(run.path / "held_out" / f"{name}.jsonl") for run in runs])
            for name in ("before", "after")
        )
        columns.append(Column(label, runs, before, after))
    return columns


def _evaluated(folder: RunFolder) -> list[Column]:
    """A column for each group of systems on each set with each reader."""
    groups = {spec["name"]: spec["group"] for spec in folder.config["systems"]}
    rows: dict[str, dict[str, list[InstanceRow]]] = {}
    for row in read_rows(folder.path):
        members = rows.setdefault(f"{groups[row.system]} on {row.set}, {row.reader}", {})
        members.setdefault(f"{row.system} seed {row.seed}", []).append(row)
    return [
        Column(label, [], {}, members_of(list(members.values()))) for label, members in rows.items()
    ]


def comparison(columns: Sequence[Column]) -> Table:
    """Return the table: differing options, then one row per measure, a cell per column, without
    rows that are empty in all.
    """
    configs = [column.runs[0].config if column.runs else {} for column in columns]
    rows: list[Row] = []
    for name in differing([config for config in configs if config]):
        values = [config.get(name, UNKNOWN) for config in configs]
        rows.append([f"option {name}", *("none" if v in ("", None) else str(v) for v in values)])
    rows.append(["runs", *(str(len(column.after)) for column in columns)])
    for name, key, unit in (("steps", "steps", 1), ("minutes in all", "seconds", 60)):
        values = [[run.read_optional("summary.json").get(key) for run in c.runs] for c in columns]
        means = map(view.mean, values)
        rows.append([name, *(number(mean and mean / unit, unit // 60) for mean in means)])
    items = [compare_groups({"before": c.before, "after": c.after}) for c in columns]
    changes = [difference_from(item.differences, "before", "after") for item in items]
    rows.append(["change in accuracy, paired", *(interval(gap, signed=True) for gap in changes)])
    groups = {column.label: column.after for column in columns}
    item = compare_groups(groups)
    note = f"All over the {counted(item.instances, 'instance')} that every column has a score for."
    if not item.cells:
        note = "The columns have no instance in common; each is over its own."
        alone = [compare_groups({name: members}) for name, members in groups.items()]
        item = replace(item, cells=dict(ChainMap(*(dict(each.cells) for each in reversed(alone)))))
    return side_by_side(item, [*groups], rows, note)


def rollouts_table(run: RunFolder) -> Table:
    """Return what ``memalpha inspect`` can show of a run, by the arguments that show it."""
    found: dict[str, list[tuple[float | None, float | None]]] = {}
    for source in view.sources_of(run):
        option = f"--step {source.step}"
        if source.step is None:
            option = f"--held-out {Path(source.name).stem}"
        numbers = found.setdefault(option, [])
        for rollout in source.rollouts(run):
            numbers.append((view.rollout_reward(rollout), view.rollout_accuracy(rollout)))
    rows = []
    for option, numbers in found.items():
        reward, accuracy = (number(view.mean(values)) for values in zip(*numbers, strict=True))
        rows.append([f"{option} --rollout N", f"0 to {len(numbers) - 1}", reward, accuracy])
    head = ["memalpha inspect RUN ...", "rollouts", "reward", "accuracy"]
    return Table(head, rows or [["no rollouts yet", "", "", ""]])
