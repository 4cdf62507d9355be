"""Writes ``summary.json`` (everything), ``table.md`` and ``table.csv``.

All configured systems are shown in order; accuracies and differences have intervals; missing and cut data are reported. Unknown
numbers are a dash, never 0. A star marks an interval whose two methods disagree (``Estimate.agree``).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.evaluation.judging import FALSE_ACCEPT_FILE
from memalpha.evaluation.scorecard import Measure
from memalpha.evaluation.statistics import LEVEL, RESAMPLES, Estimate
from memalpha.evaluation.summary import (
    COSTS,
    OPERATIONS,
    SetSummary,
    Summary,
    difference_from,
    reference_group,
    summarise_evaluation,
)
from memalpha.files import known, write_whole
from memalpha.runs import RunFolder

UNKNOWN = "–"
"""Text of an unknown number."""

NOT_MEASURED = "not measured"


def write_tables(folder: str | Path) -> Summary:
    """Write ``summary.json``, ``table.md`` and ``table.csv``, also of an unfinished evaluation; InputError if there is none."""
    summary = summarise_evaluation(folder)
    reference, judge = reference_group(summary), judge_report(folder)
    RunFolder(folder).write_json("summary.json", {**summary.to_json(), "reference": reference, "false_accept": judge})
    write_whole(Path(folder) / "table.md", "\n".join(markdown(summary, reference, judge)) + "\n")
    write_whole(Path(folder) / "table.csv", csv_text(summary))
    return summary


def judge_report(folder: str | Path) -> dict[str, Any] | None:
    """Return the result of ``false_accepts``; None if the judge was not tested."""
    return RunFolder(folder).read_optional(FALSE_ACCEPT_FILE) or None


def markdown(summary: Summary, reference: str, judge: Mapping[str, Any] | None = None) -> list[str]:
    """Return the lines of ``table.md``: ``reference`` is the compared group, ``judge`` the result of ``false_accepts``."""
    lines = [
        "# Evaluation",
        "",
        f"Accuracy is the mean over instances of the mean over their questions, [with its {LEVEL:.0%} interval] from "
        f"{RESAMPLES:,} draws of the instances, that of a mean over sets from their standard errors; differences are "
        "paired by instance. Costs are means over instances. "
        f"{UNKNOWN} is not known; * is an interval that one made from the standard error does not confirm (too few instances).",
        "",
    ]
    for reader in summary.over_sets:
        lines += [f"## Reader `{_one_line(reader)}`", "", *_overall(summary, reader, reference)]
        for item in summary.sets:
            if item.reader == reader:
                lines += _set_lines(item, reference)
    return lines + _judge_lines(judge)


def _overall(summary: Summary, reader: str, reference: str) -> list[str]:
    items = [item for item in summary.sets if item.reader == reader]
    counted = [item for item in items if item.in_mean]
    rows = []
    for group, mean in summary.over_sets[reader].items():
        cells = [item.cells[group].accuracy if group in item.cells else None for item in items]
        missing = f"{UNKNOWN} ({sum(group in item.cells for item in counted)} of {len(counted)} sets)"
        difference = interval(difference_from(summary.differences[reader], reference, group), signed=True)
        rows.append([group, *map(interval, cells), interval(mean) if mean else missing, difference])
    head = ["system", *(item.set for item in items), f"mean over {_counted(len(counted), 'set')}", f"minus `{reference}`"]
    outside = ", ".join(item.set for item in items if not item.in_mean)
    return [*_table(head, rows), *([f"Not in the mean: {outside}.", ""] if outside else [])]


def _set_lines(item: SetSummary, reference: str) -> list[str]:
    lines = [f"### {_one_line(item.set)} ({item.instances} of {item.size} instances)", ""]
    lines += [f"- Left out: `{_one_line(group)}` lacks {_one_line(why)}" for group, why in item.left_out.items()]
    lines += [""] if item.left_out else []
    lines += [f"The scorecard is missing: {item.unmeasured}", ""] if item.unmeasured else []
    if not item.cells:
        return [*lines, "Nothing to compare yet.", ""]

    head = ["system", "accuracy", f"minus `{reference}`", "memory tokens", "of the input", "tokens read for a question"]
    head += ["write calls", "of them cut off", "tokens cut by budgets", "s writing", "s reading"]
    rows = []
    for group, cell in item.cells.items():
        costs = cell.costs
        share = costs["memory_tokens"] / costs["input_tokens"] if costs["input_tokens"] else math.nan
        row = [group, interval(cell.accuracy), interval(difference_from(item.differences, reference, group), signed=True)]
        row += [number(costs["memory_tokens"], 1), number(share, 3)]
        row += [number(costs[name], 1) for name in ("reader_tokens", "write_calls", "cut_off", "cut")]
        rows.append([*row, number(costs["seconds_write"], 2), number(costs["seconds_read"], 2)])
    lines += _table(head, rows)

    kinds = {kind: score.questions for cell in item.cells.values() for kind, score in cell.kinds.items()}
    head = ["by kind of question", *(f"{kind} ({_counted(count, 'question')})" for kind, count in kinds.items())]
    lines += _table(
        head,
        [
            [group, *(interval(cell.kinds[kind].accuracy if kind in cell.kinds else None) for kind in kinds)]
            for group, cell in item.cells.items()
        ],
    )
    rows = [
        [group, cell.members[member], number(value)]
        for group, cell in item.cells.items()
        for member, value in cell.accuracy.per_seed.items()
        if len(cell.members) > 1
    ]
    lines += _table(["group", "system", "accuracy"], rows) if rows else []

    if any(any(cell.operations.values()) for cell in item.cells.values()):
        rows = [[group, *(number(cell.operations[name], 2) for name in OPERATIONS)] for group, cell in item.cells.items()]
        lines += _table(["operations an instance", *OPERATIONS], rows)

    if not item.unmeasured:
        rows = [
            [group, *(NOT_MEASURED if (found := cell.scorecard[measure]) is None else interval(found) for measure in Measure)]
            for group, cell in item.cells.items()
        ]
        arrows = [f"{measure.value} {'↑' if measure.higher_is_better else '↓'}" for measure in Measure]
        lines += _table(["changes and removals", *arrows], rows)
    return lines


def _judge_lines(report: Mapping[str, Any] | None) -> list[str]:
    if report is None:
        return []
    if "not_tried" in report:
        return ["## The judge", "", f"It was not tried on planted answers: {_one_line(report['not_tried'])}", ""]
    rows = []
    for plant, rate in report["rates"].items():
        mean, low, high = (number(known(rate[name])) for name in ("mean", "low", "high"))
        rows.append([plant, str(rate["asked"]), f"{mean} [{low}, {high}]"])
    failed = f" {_counted(report['failed'], 'answer')} got no verdict." if report["failed"] else ""
    said = f"Share of planted answers that it accepted; all but `accepted` are wrong.{failed}"
    return ["## The judge", "", said, "", *_table(["planted", "asked", "accepted"], rows)]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [*("| " + " | ".join(_one_line(cell).replace("|", "\\|") for cell in line) + " |" for line in lines), ""]


def _one_line(text: str) -> str:
    """Remove line breaks, which would end a row, heading or item."""
    return " ".join(text.splitlines())


def csv_text(summary: Summary) -> str:
    """Return ``table.csv``: a row for each set, reader, group and question kind (``all`` for all kinds).

    A kind named ``all`` is written ``all (kind)``. Costs, operations and measures are in the rows of ``all``. Unknown or unmeasured
    values are empty.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ["set", "reader", "system", "kind", "instances", "questions", "accuracy", "low", "high", "stderr"]
    writer.writerow([*head, *COSTS, *OPERATIONS, *(measure.value for measure in Measure)])
    for item in summary.sets:
        for group, cell in item.cells.items():
            card = [cell.scorecard[measure] for measure in Measure]
            extra = [*(cell.costs[name] for name in COSTS), *(cell.operations[name] for name in OPERATIONS)]
            extra += [math.nan if found is None else found.mean for found in card]
            questions = sum(score.questions for score in cell.kinds.values())
            rows = [("all", cell.accuracy, questions, extra)]
            rows += [
                ("all (kind)" if kind == "all" else kind, score.accuracy, score.questions, [math.nan] * len(extra))
                for kind, score in cell.kinds.items()
            ]
            for kind, score, asked, more in rows:
                numbers = [score.mean, score.low, score.high, score.stderr, *more]
                shown = ["" if math.isnan(value) else f"{value:.6g}" for value in numbers]
                writer.writerow([item.set, item.reader, group, kind, score.n, asked, *shown])
    return text.getvalue()


def number(value: float, digits: int = 3, *, signed: bool = False) -> str:
    """Return a rounded number, without the zero before the decimal point of a share; a dash if unknown."""
    if math.isnan(value):
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
