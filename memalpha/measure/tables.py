"""The tables of an evaluation, of a run before and after training, and of runs side by side.

A table is written as Markdown, for the terminal, or by the site's templates. Unknown numbers are a
dash, never 0. Accuracy is everywhere the mean over instances of the mean over their questions, with
one kind of interval (``record.statistics``); a star marks one that the standard error does not
confirm. Runs that differ only in their seed form one column.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from rich import box
from rich.table import Table as TerminalTable
from rich.text import Text

from memalpha.files import write_whole
from memalpha.measure import view
from memalpha.measure.summary import (
    Measure,
    Members,
    SetSummary,
    Summary,
    compare_groups,
    difference_from,
    summarise_evaluation,
)
from memalpha.measure.view import UNKNOWN, counted, number, printable
from memalpha.record.folder import MAY_CHANGE, RunFolder
from memalpha.record.rows import InstanceRow, read_rows
from memalpha.record.statistics import LEVEL, RESAMPLES, Estimate
from memalpha.types import JsonMapping

Cells = Sequence[str]


class Table(NamedTuple):
    """A head and rows of text, each with the row's name first."""

    head: Cells
    rows: Sequence[Cells]
    note: str = ""


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    lines = []
    for row in (table.head, ["---"] * len(table.head), *table.rows):
        cells = [_one_line(cell).replace("|", "/") for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def terminal(table: Table) -> TerminalTable:
    """Return a table as rich shows it."""
    caption = Text(table.note, "dim") if table.note else None
    rendered = TerminalTable(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    for index, name in enumerate(table.head):
        rendered.add_column(
            Text(printable(name)), justify="right" if index else "left", no_wrap=not index
        )
    for row in table.rows:
        rendered.add_row(*(Text(printable(cell)) for cell in row))
    return rendered


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
    """Write ``summary.json`` and ``table.md``, also of an unfinished evaluation.

    InputError if the folder holds none.
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
            tables = set_tables(item, summary.reference)[:3] if item.cells else []
            lines += map(markdown, tables) if tables else ["Nothing to compare yet."]
    write_whole(Path(folder) / "table.md", "\n\n".join(lines) + "\n")
    return summary


def overall(summary: Summary, reader: str) -> Table:
    """Return a row a group: accuracy on each set, mean over sets, and the reference subtracted."""
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


def overall_tables(folder: str | Path) -> list[Table]:
    """Return the table over all sets of each reader of an evaluation."""
    summary = summarise_evaluation(folder)
    tables = []
    for reader in summary.over_sets:
        head, rows, _ = overall(summary, reader)
        tables.append(
            Table(head, rows, f"Accuracy [with its {LEVEL:.0%} interval], reader {reader}.")
        )
    return tables


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
    """Return the tables of a set, a row a group.

    Accuracy and costs; kinds of question; changes and removals; rewards and calls.
    """
    costs, kinds, card, rewards = list[Cells](), list[Cells](), list[Cells](), list[Cells]()
    sizes, names = dict[str, int](), dict[str, float]()
    for cell in item.cells.values():
        sizes |= cell.questions
        names |= {name: mean for name, mean in cell.means.items() if " " in name}
    for group, cell in item.cells.items():
        size = cell.means["input_tokens"]
        values = {**cell.means, "share": cell.means["memory_tokens"] / size if size else math.nan}
        gap = difference_from(item.differences, reference, group)
        numbers = [number(values[name], digits) for name, digits in _COSTS.values()]
        costs.append([group, interval(cell.accuracy), interval(gap, signed=True), *numbers])
        kinds.append([group, *(interval(cell.kinds.get(kind)) for kind in sizes)])
        measures = [cell.scorecard[measure] for measure in Measure]
        card.append([group, *(interval(each) if each else "not measured" for each in measures)])
        zero = {name: 0.0 for name in names if "share" in name}  # of calls that were not made
        rewards.append([group, *(number({**zero, **cell.means}.get(name)) for name in names)])
    columns = [f"{kind} ({counted(count, 'question')})" for kind, count in sizes.items()]
    arrows = [f"{measure} {'↑' if measure.higher_is_better else '↓'}" for measure in Measure]
    return [
        Table(["system", "accuracy", f"minus `{reference}`", *_COSTS], costs),
        Table(["by kind of question", *columns], kinds),
        Table(["changes and removals", *arrows], card),
        Table(["rewards and calls", *names], rewards),
    ]


# ------------------------------------------------------------------------------------------------
# a run of training
_NOTE = (
    f"[ ] is the {LEVEL:.0%} interval over instances; differences in accuracy are paired by "
    f"instance. {UNKNOWN}: not known."
)


def side_by_side(
    item: SetSummary, groups: Sequence[str], extra: Sequence[Cells] = (), note: str = ""
) -> Table:
    """Return the tables of a set as one, with a column for each of ``groups``.

    The first of them is the reference. Rows that are unknown in all are left out.
    """
    rows = list(extra)
    for table in set_tables(item, groups[0]) if groups else ():
        by_group = {row[0]: row for row in table.rows}
        for place, name in enumerate(table.head[1:], 1):
            cells = [by_group[group][place] if group in by_group else UNKNOWN for group in groups]
            rows.append([name, *cells])
    rows = [row for row in rows if set(row[1:]) - {UNKNOWN, "not measured"}]
    notes = [_NOTE, note, *(f"`{group}` lacks {why}." for group, why in item.left_out.items())]
    return Table(["", *groups], rows, " ".join(filter(None, map(str.strip, notes))))


def held_out(run: RunFolder) -> SetSummary:
    """Compare the held-out evaluations of a run: before and after, or the one there is."""
    groups = {}
    for source in view.sources_of(run):
        if source.step is None and "step-" not in source.name:  # not while training
            groups[source.where] = members_of([read_rows(run.path / source.name)])
    return compare_groups(groups)


def members_of(runs: Sequence[Sequence[InstanceRow]]) -> Members:
    """Return the rows of runs that differ in their seed, by run and by instance.

    Instances are the same if name, number of chunks and questions are.
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
    return side_by_side(item, [*item.cells], note=selection_note(run))


def selection_note(run: RunFolder) -> str:
    """Return which step was selected on which instances; empty if none was."""
    selection = run.summary.get("selection")
    if not selection:
        return ""
    where = counted(selection["instances"], "other instance")
    if selection["on_after"]:
        where = "these instances, so the numbers after training are too favourable"
    how = f"{selection['metric']}, {number(selection['value'])} on {where}"
    return f"Step {selection['step']:.0f} was selected by {how}."


# ------------------------------------------------------------------------------------------------
# several runs
# Options that may differ between seeds of one configuration.
INCIDENTAL = MAY_CHANGE - {"max_steps"} | {"seed", "data_seed", "run_name"}


class Column(NamedTuple):
    """One column of a comparison: runs, or evaluated systems, that differ only in their seed."""

    label: str
    runs: Sequence[RunFolder]  # of training
    before: Members
    after: Members

    def mean(self, key: str) -> float | None:
        """The mean of a number in the summaries of the runs."""
        return view.mean([run.summary.get(key) for run in self.runs])

    @property
    def names(self) -> set[str]:
        """The instances that it was measured on."""
        return set[str]().union(*self.after.values())


def differing(configs: Sequence[JsonMapping]) -> list[str]:
    """Return the options that differ between runs, except the incidental ones."""
    options = []
    for name in sorted(set().union(*configs) - INCIDENTAL):
        values = [config.get(name) for config in configs]
        if values.count(values[0]) < len(values):
            options.append(name)
    return options


def columns_of(folders: Sequence[RunFolder]) -> list[Column]:
    """Return the columns of a comparison; runs of one configuration are one column."""
    names = [folder.path.resolve().name for folder in folders]
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
        name = runs[0].path.resolve().name
        label = name if names.count(name) == 1 else str(runs[0].path)
        if len(runs) > 1:
            label = f"{label} and {len(runs) - 1} more"
        before = [read_rows(run.path / "held_out" / "before.jsonl") for run in runs]
        after = [read_rows(run.path / "held_out" / "after.jsonl") for run in runs]
        columns.append(Column(label, runs, members_of(before), members_of(after)))
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
    """Return the table: differing options, then one row per measure, a cell per column.

    Columns that were measured on none of the first one's instances are named in the note alone.
    """
    apart = [c.label for c in columns if c.names and not c.names & columns[0].names]
    note = f"Measured on other instances: {', '.join(apart)}." if apart and columns[0].names else ""
    columns = [column for column in columns if not note or column.label not in apart]
    configs = [column.runs[0].config if column.runs else {} for column in columns]
    rows: list[Cells] = []
    for name in differing([config for config in configs if config]):
        values = [config.get(name, UNKNOWN) for config in configs]
        rows.append([f"option {name}", *("none" if v in ("", None) else str(v) for v in values)])
    rows.append(["runs", *(str(len(column.after)) for column in columns)])
    for name, key, unit in (("steps", "steps", 1), ("minutes in all", "seconds", 60)):
        means = [column.mean(key) for column in columns]
        rows.append([name, *(number(mean and mean / unit, unit // 60) for mean in means)])
    items = [compare_groups({"before": c.before, "after": c.after}) for c in columns]
    changes = [difference_from(item.differences, "before", "after") for item in items]
    rows.append(["change in accuracy, paired", *(interval(gap, signed=True) for gap in changes)])
    groups = {column.label: column.after for column in columns}
    item = compare_groups(groups)
    over = f"All over the {counted(item.instances, 'instance')} that every column has a score for."
    return side_by_side(item, [*groups], rows, f"{over} {note}")
