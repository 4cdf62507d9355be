"""Writes ``summary.json`` (everything) and ``table.md``; how numbers read.

All configured systems are shown in order; accuracies and differences have intervals; missing and cut data are reported. Unknown
numbers are a dash, never 0. A star marks an interval whose two methods disagree (``Estimate.agree``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from memalpha.evaluation.scorecard import Measure
from memalpha.evaluation.statistics import LEVEL, RESAMPLES, Estimate
from memalpha.evaluation.summary import SetSummary, Summary, difference_from, reference_group, summarise_evaluation
from memalpha.files import write_whole
from memalpha.runs import RunFolder

UNKNOWN = "–"  # text of an unknown number


def write_tables(folder: str | Path) -> Summary:
    """Write ``summary.json`` and ``table.md``, also of an unfinished evaluation; InputError if there is none."""
    summary = summarise_evaluation(folder)
    reference = reference_group(summary)
    RunFolder(folder).write_json("summary.json", {**summary.to_json(), "reference": reference})
    write_whole(Path(folder) / "table.md", markdown(summary, reference))
    return summary


def markdown(summary: Summary, reference: str) -> str:
    """Return the text of ``table.md``: ``reference`` is the compared group."""
    lines = [
        "# Evaluation",
        f"Accuracy is the mean over instances of the mean over their questions, [with its {LEVEL:.0%} interval] from "
        f"{RESAMPLES:,} draws of the instances, that of a mean over sets from their standard errors; differences are "
        "paired by instance. Costs are means over instances. "
        f"{UNKNOWN} is not known; * is an interval that one made from the standard error does not confirm (too few instances).",
    ]
    for reader in summary.over_sets:
        lines += [f"## Reader `{_one_line(reader)}`", overall(summary, reader, reference, interval)]
        items = [item for item in summary.sets if item.reader == reader]
        if outside := ", ".join(item.set for item in items if not item.in_mean):
            lines.append(f"Not in the mean: {outside}.")
        for item in items:
            lines += _set_lines(item, reference)
    return "\n\n".join(lines) + "\n"


def overall(summary: Summary, reader: str, reference: str, show: Callable[[Estimate | None], str]) -> str:
    """A row a group: its accuracy on each set, the mean over sets, and the difference from the reference."""
    items = [item for item in summary.sets if item.reader == reader]
    counted = [item for item in items if item.in_mean]
    rows = []
    for group, mean in summary.over_sets[reader].items():
        cells = [show(item.cells[group].accuracy if group in item.cells else None) for item in items]
        missing = f"{UNKNOWN} ({sum(group in item.cells for item in counted)} of {len(counted)} sets)"
        difference = interval(difference_from(summary.differences[reader], reference, group), signed=True)
        rows.append([group, *cells, interval(mean) if mean else missing, difference])
    head = ["system", *(item.set for item in items), f"mean over {_counted(len(counted), 'set')}", f"minus `{reference}`"]
    return table(head, rows)


def _set_lines(item: SetSummary, reference: str) -> list[str]:
    lines = [f"### {_one_line(item.set)} ({item.instances} of {item.size} instances)"]
    lines += [f"- Left out: `{_one_line(group)}` lacks {_one_line(why)}" for group, why in item.left_out.items()]
    lines += [f"The scorecard is missing: {item.unmeasured}"] if item.unmeasured else []
    if not item.cells:
        return [*lines, "Nothing to compare yet."]

    rows = []
    for group, cell in item.cells.items():
        costs = cell.costs
        share = costs["memory_tokens"] / costs["input_tokens"] if costs["input_tokens"] else math.nan
        row = [group, interval(cell.accuracy), interval(difference_from(item.differences, reference, group), signed=True)]
        row += [number(costs["memory_tokens"], 1), number(share, 3)]
        row += [number(costs[name], 1) for name in ("reader_tokens", "write_calls", "cut_off", "cut")]
        rows.append([*row, number(costs["seconds_write"], 2), number(costs["seconds_read"], 2)])
    head = "memory tokens|of the input|tokens read for a question|write calls|of them cut off|tokens cut|s writing|s reading"
    lines.append(table(["system", "accuracy", f"minus `{reference}`", *head.split("|")], rows))

    kinds = {kind: score.questions for cell in item.cells.values() for kind, score in cell.kinds.items()}
    rows = [
        [group, *(interval(cell.kinds[kind].accuracy if kind in cell.kinds else None) for kind in kinds)]
        for group, cell in item.cells.items()
    ]
    counted = [f"{kind} ({_counted(count, 'question')})" for kind, count in kinds.items()]
    lines.append(table(["by kind of question", *counted], rows))

    if not item.unmeasured:
        rows = [
            [group, *(interval(found) if (found := cell.scorecard[measure]) else "not measured" for measure in Measure)]
            for group, cell in item.cells.items()
        ]
        arrows = [f"{measure.value} {'↑' if measure.higher_is_better else '↓'}" for measure in Measure]
        lines.append(table(["changes and removals", *arrows], rows))
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(_one_line(cell).replace("|", "/") for cell in line) + " |" for line in lines)


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """Return a rounded number, a share (three digits) without the zero before the point; a dash if unknown (NaN or None)."""
    if value is None or math.isnan(value):
        return UNKNOWN
    rounded = round(value, digits) + 0.0  # no "-0.000"
    text = f"{rounded:+,.{digits}f}" if signed else f"{rounded:,.{digits}f}"
    return text.replace("0.", ".", 1) if digits == 3 and abs(rounded) < 1 else text


def interval(estimate: Estimate | None, *, signed: bool = False) -> str:
    """Return ``.412 [.351, .470]``, with a star if the two intervals disagree; a dash for None."""
    if estimate is None:
        return UNKNOWN
    low, high = (number(value, signed=signed) for value in (estimate.low, estimate.high))
    return f"{number(estimate.mean, signed=signed)} [{low}, {high}]{'*' if estimate.agree is False else ''}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
