"""The tables of an evaluation, of a run before and after training, and of runs side by side.

A table is written as Markdown, for the terminal, or by the site's templates. Unknown numbers are a
dash, never 0. Accuracy is everywhere the mean over instances of the mean over their questions, with
one kind of interval (``record.statistics``); a star marks one that the standard error does not
confirm. Runs that differ only in their seed form one column.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import chain
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
from memalpha.measure.view import NO_VALUE, count_of, number, printable
from memalpha.record.folder import MAY_CHANGE, RunFolder
from memalpha.record.rows import InstanceRow, read_rows
from memalpha.record.statistics import LEVEL, RESAMPLES, Estimate
from memalpha.types import JsonMapping

_NOT_MEASURED = "not measured"


class Table(NamedTuple):
    """A head and rows of text, each with the row's name first.

    A console of rich prints it, ``markdown`` writes it, and so do the site's templates.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, str]], note: str = "") -> "Table":
        """Return the table of rows with texts by column.

        Columns are in the order in which they are first named; a dash is where a row has no text.
        """
        head = list(dict.fromkeys(chain.from_iterable(rows)))
        return cls(head, [[row.get(name, NO_VALUE) for name in head] for row in rows], note)

    def markdown(self) -> str:
        """Return the table as Markdown, without its note."""
        lines = []
        for row in (self.head, ["---"] * len(self.head), *self.rows):
            cells = [_one_line(cell).replace("|", "/") for cell in row]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def __rich__(self) -> TerminalTable:
        """Return the table as rich shows it."""
        caption = Text(self.note, "dim") if self.note else None
        rendered = TerminalTable(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
        for index, name in enumerate(self.head):
            rendered.add_column(
                Text(printable(name)), justify="right" if index else "left", no_wrap=not index
            )
        for row in self.rows:
            rendered.add_row(*(Text(printable(cell)) for cell in row))
        return rendered


Texts = list[tuple[str, str, str]]  # row, column and text: the long form of a table


def pivot(corner: str, texts: Texts, note: str = "") -> Table:
    """Return the table of a long form, with ``corner`` above the names of the rows.

    Rows and columns are in the order in which they are first named.
    """
    rows: dict[str, dict[str, str]] = {}
    for row, column, text in texts:
        rows.setdefault(row, {corner: row})[column] = text
    return Table.of(list(rows.values()), note)


def interval(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return ``.412 [.351, .470]``, with a star if the two intervals disagree; a dash for None."""
    if estimate is None:
        return NO_VALUE
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
        f"instances. {NO_VALUE} is not known; * is an interval that one made from the standard "
        "error does not confirm (too few instances).",
    ]
    for reader in summary.over_sets:
        items = [item for item in summary.sets if item.reader == reader]
        lines += [f"## Reader `{_one_line(reader)}`", overall(summary, reader).markdown()]
        outside = ", ".join(item.set for item in items if not item.in_mean)
        if outside:
            lines.append(f"Not in the mean: {outside}.")
        for item in items:
            lines.append(f"### {_one_line(item.set)} ({item.instances} of {item.size} instances)")
            for group, why in item.left_out.items():
                lines.append(f"- Left out: `{_one_line(group)}` lacks {_one_line(why)}")
            for corner, texts in set_texts(item, summary.reference).items():
                if texts and corner != _REWARDS:
                    lines.append(pivot(corner, texts).markdown())
            if not item.cells:
                lines.append("Nothing to compare yet.")
    write_whole(Path(folder) / "table.md", "\n\n".join(lines) + "\n")
    return summary


def overall(summary: Summary, reader: str) -> Table:
    """Return a row a group: accuracy on each set, mean over sets, and the reference subtracted."""
    items = [item for item in summary.sets if item.reader == reader]
    counted_items = [item for item in items if item.in_mean]
    over = f"mean over {count_of(len(counted_items), 'set')}"
    texts = []
    for group, mean in summary.over_sets[reader].items():
        for item in items:
            cell = item.cells.get(group)
            texts.append((group, item.set, interval(cell.accuracy if cell else None)))
        present = sum(group in item.cells for item in counted_items)
        missing = f"{NO_VALUE} ({present} of {len(counted_items)} sets)"
        texts.append((group, over, interval(mean) if mean else missing))
        gap = difference_from(summary.differences[reader], summary.reference, group)
        texts.append((group, f"minus `{summary.reference}`", interval(gap, signed=True)))
    return pivot("system", texts, f"Accuracy [with its {LEVEL:.0%} interval], reader {reader}.")


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


_REWARDS = "rewards and calls"


def set_texts(item: SetSummary, reference: str) -> dict[str, Texts]:
    """Return (group, measure, text) of all that was measured on a set, by the corner of its table.

    Accuracy and costs; kinds of question; changes and removals; rewards and calls.
    """
    costs, kinds, card, rewards = Texts(), Texts(), Texts(), Texts()
    sizes, names = dict[str, int](), dict[str, float]()
    for cell in item.cells.values():
        sizes |= cell.questions
        names |= {name: mean for name, mean in cell.means.items() if " " in name}
    for group, cell in item.cells.items():
        gap = difference_from(item.differences, reference, group)
        costs.append((group, "accuracy", interval(cell.accuracy)))
        costs.append((group, f"minus `{reference}`", interval(gap, signed=True)))
        size = cell.means["input_tokens"]
        means = {**cell.means, "share": cell.means["memory_tokens"] / size if size else math.nan}
        for name, (key, digits) in _COSTS.items():
            costs.append((group, name, number(means[key], digits)))
        for kind, n in sizes.items():
            name = f"{kind} ({count_of(n, 'question')})"
            kinds.append((group, name, interval(cell.kinds.get(kind))))
        for measure in Measure:
            share = cell.scorecard[measure]
            arrow = "↑" if measure.higher_is_better else "↓"
            card.append((group, f"{measure} {arrow}", interval(share) if share else _NOT_MEASURED))
        for name in names:  # a share of calls is 0 of those that were not made
            mean = cell.means.get(name, 0.0 if "share" in name else None)
            rewards.append((group, name, number(mean)))
    return {
        "system": costs,
        "by kind of question": kinds,
        "changes and removals": card,
        _REWARDS: rewards,
    }


# ------------------------------------------------------------------------------------------------
# a run of training
_NOTE = (
    f"In square brackets is the {LEVEL:.0%} interval over instances; differences in accuracy are "
    f"paired by instance. {NO_VALUE} means not known."
)


def _side_by_side(
    item: SetSummary, reference: str, texts: Sequence[tuple[str, str, str]] = (), note: str = ""
) -> Table:
    """Return the tables of a set as one, with a column a group, below ``texts`` of such a table.

    Rows that are unknown in all columns are left out.
    """
    own = chain.from_iterable(set_texts(item, reference).values())
    table = pivot("", [*texts, *((measure, group, text) for group, measure, text in own)])
    rows = [row for row in table.rows if set(row[1:]) - {NO_VALUE, _NOT_MEASURED}]
    notes = [_NOTE, note, *(f"`{group}` lacks {why}." for group, why in item.left_out.items())]
    return Table(table.head, rows, " ".join(filter(None, map(str.strip, notes))))


def held_out(run: RunFolder) -> SetSummary:
    """Compare the held-out evaluations of a run: before and after, or the one there is."""
    groups = {}
    for source in view.sources_of(run):
        if source.step is None and "step-" not in source.name:  # not while training
            groups[source.where] = _members_of([read_rows(run.path / source.name)])
    return compare_groups(groups)


def _members_of(runs: Sequence[Sequence[InstanceRow]]) -> Members:
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


def before_and_after(run: RunFolder, item: SetSummary | None = None) -> Table:
    """Return the table of a run's held-out instances (``held_out``); no rows if there were none."""
    item = item or held_out(run)
    return _side_by_side(item, next(iter(item.cells), ""), note=selection_note(run))


def selection_note(run: RunFolder) -> str:
    """Return which step was selected on which instances; empty if none was."""
    selection = run.summary.get("selection")
    if not selection:
        return ""
    where = count_of(selection["instances"], "other instance")
    if selection["on_after"]:
        where = "these instances, so the numbers after training are too favourable"
    how = f"{selection['metric']}, {number(selection['value'])} on {where}"
    return f"Step {selection['step']:.0f} was selected by {how}."


# ------------------------------------------------------------------------------------------------
# several runs
# Options that may differ between seeds of one configuration.
_INCIDENTAL = MAY_CHANGE - {"max_steps"} | {"seed", "data_seed", "run_name"}


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
    for name in sorted(set().union(*configs) - _INCIDENTAL):
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
            labels = {column.label for column in columns}
            for column in _evaluation_columns(runs[0]):
                if column.label in labels:  # of another evaluation
                    column = column._replace(label=f"{column.label} in {runs[0].path}")
                columns.append(column)
            continue
        name = runs[0].path.resolve().name
        label = name if names.count(name) == 1 else str(runs[0].path)
        if len(runs) > 1:
            label = f"{label} and {len(runs) - 1} more"
        before = [read_rows(run.path / "held_out" / "before.jsonl") for run in runs]
        after = [read_rows(run.path / "held_out" / "after.jsonl") for run in runs]
        columns.append(Column(label, runs, _members_of(before), _members_of(after)))
    return columns


def _evaluation_columns(folder: RunFolder) -> list[Column]:
    """A column for each group of systems on each set with each reader."""
    groups = {spec["name"]: spec["group"] for spec in folder.config["systems"]}
    rows: dict[str, dict[str, list[InstanceRow]]] = {}
    for row in read_rows(folder.path):
        members = rows.setdefault(f"{groups[row.system]} on {row.set}, {row.reader}", {})
        members.setdefault(f"{row.system} seed {row.seed}", []).append(row)
    return [
        Column(label, [], {}, _members_of(list(members.values())))
        for label, members in rows.items()
    ]


def comparison(columns: Sequence[Column]) -> Table:
    """Return the table: differing options, then one row per measure, a cell per column.

    Columns that were measured on none of the first one's instances are named in the note alone.
    """
    apart = [c.label for c in columns if c.names and not c.names & columns[0].names]
    note = f"Measured on other instances: {', '.join(apart)}." if apart and columns[0].names else ""
    columns = [column for column in columns if not note or column.label not in apart]
    texts = Texts()
    options = differing([column.runs[0].config for column in columns if column.runs])
    for column in columns:
        config = column.runs[0].config if column.runs else {}
        for name in options:
            value = config.get(name, NO_VALUE)
            text = "none" if value in ("", None) else str(value)
            texts.append((f"option {name}", column.label, text))
        seconds = column.mean("seconds")
        minutes = None if seconds is None else seconds / 60
        item = compare_groups({"before": column.before, "after": column.after})
        change = difference_from(item.differences, "before", "after")
        texts.append(("runs", column.label, str(len(column.after))))
        texts.append(("steps", column.label, number(column.mean("steps"), 0)))
        texts.append(("minutes in all", column.label, number(minutes, 1)))
        texts.append(("change in accuracy, paired", column.label, interval(change, signed=True)))
    item = compare_groups({column.label: column.after for column in columns})
    over = f"over the {count_of(item.instances, 'instance')} that every column has a score for"
    return _side_by_side(item, columns[0].label, texts, f"All rows are {over}. {note}")
