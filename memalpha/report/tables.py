"""The before/after table of a run's ``summary.json``, as rows, as Markdown and as a rich table.

Read from the summary alone. What always holds: the difference in accuracy is the paired one, with its standard error; every other
difference is between the two means; what is not known is a dash. A summary of ``memalpha evaluate``, which has one evaluation,
gives one column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.report.view import UNKNOWN, counted, known, number, printable

if TYPE_CHECKING:
    from rich.table import Table

MEASURES: tuple[tuple[str, str, int], ...] = (
    ("reward", "reward", 3),
    ("tool_success", "tool success", 3),
    ("content", "content", 3),
    ("compression", "compression", 3),
    ("memory_tokens", "memory tokens", 1),
    ("input_tokens", "input tokens", 1),
    ("entries", "entries", 1),
    ("calls_per_instance", "calls an instance", 1),
    ("update_share", "updates, share of calls", 3),
    ("delete_share", "deletes, share of calls", 3),
    ("cut_off", "completions cut off, share", 3),
    ("n", "instances scored", 0),
    ("masked", "instances that could not be scored", 0),
)
"""Key in the summary, name and decimals of each measure below accuracy."""


class Row(NamedTuple):
    """One line of the table: a name, one cell an evaluation, and the difference where there are two."""

    name: str
    cells: tuple[str, ...]


class SummaryRows(NamedTuple):
    """The table as text: ``columns`` heads the cells of ``rows``; both are empty if nothing was evaluated."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def summary_rows(summary: Mapping[str, Any]) -> SummaryRows:
    """Return the table of a summary.

    Args:
        summary: What ``summary.json`` holds, of a training run or of one evaluation.
    """
    found = _evaluations(summary)
    if not found:
        return SummaryRows((), ())
    rows = [_accuracy(found, summary.get("delta"))]
    rows += [_measure(found, key, name, digits) for key, name, digits in MEASURES if any(key in data for data in found.values())]
    rows += [_kind(found, kind) for kind in sorted({kind for data in found.values() for kind in data.get("kinds", {})})]
    return SummaryRows((*found, *(["difference"] if len(found) == 2 else [])), tuple(rows))


def _evaluations(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    if "accuracy" in summary:
        return {"held out": summary}
    return {name: summary[name] for name in ("before", "after") if summary.get(name)}


def _accuracy(found: Mapping[str, Mapping[str, Any]], delta: Mapping[str, Any] | None) -> Row:
    cells = [with_error(data.get("accuracy"), data.get("stderr")) for data in found.values()]
    if len(found) == 2:
        cells.append(with_error(delta.get("accuracy"), delta.get("stderr"), signed=True) if delta else UNKNOWN)
    return Row("accuracy", tuple(cells))


def _measure(found: Mapping[str, Mapping[str, Any]], key: str, name: str, digits: int) -> Row:
    values = [data.get(key) for data in found.values()]
    return Row(name, (*(number(value, digits) for value in values), *_difference(values, digits)))


def _kind(found: Mapping[str, Mapping[str, Any]], kind: str) -> Row:
    data = [evaluation.get("kinds", {}).get(kind, {}) for evaluation in found.values()]
    counts = list(dict.fromkeys(number(item.get("questions"), 0) for item in data))
    values = [item.get("accuracy") for item in data]
    noun = "question" if counts == ["1"] else "questions"
    return Row(f"accuracy: {kind} ({' and '.join(counts)} {noun})", (*map(number, values), *_difference(values, 3)))


def _difference(values: list[Any], digits: int) -> list[str]:
    if len(values) != 2:
        return []
    before, after = map(known, values)
    return [UNKNOWN if before is None or after is None else number(after - before, digits, signed=True)]


def with_error(value: Any, error: Any, *, signed: bool = False) -> str:
    """Return ``0.412 ± 0.031``; without the error if that is not known (fewer than two instances)."""
    text = number(value, signed=signed)
    return text if UNKNOWN in (text, number(error)) else f"{text} ± {number(error)}"


def headline(summary: Mapping[str, Any]) -> str:
    """Return in one or two sentences what the evaluation says; empty if nothing was evaluated.

    A difference below two paired standard errors is said to be no more than noise could make.
    """
    found = _evaluations(summary)
    delta = summary.get("delta") or {}
    change, error = known(delta.get("accuracy")), known(delta.get("stderr"))
    if len(found) < 2:
        return "".join(
            f"Accuracy {with_error(data.get('accuracy'), data.get('stderr'))} on {number(data.get('n'), 0)} held-out instances."
            for data in found.values()
        )
    before, after = (number(data.get("accuracy")) for data in found.values())
    if change is None:
        return f"Held-out accuracy {before} before and {after} after training; no instance was scored both times."
    text = f"Held-out accuracy {before} before and {after} after training: {with_error(change, error, signed=True)}"
    text += f", paired over {counted(int(delta.get('n', 0)), 'instance')}."
    if error is None:
        return text
    verdict = "more than two standard errors." if abs(change) > 2 * error else "within two standard errors: no clear difference."
    return f"{text} That is {verdict}"


def summary_markdown(summary: Mapping[str, Any]) -> str:
    """Return the table as Markdown; one sentence if nothing was evaluated."""
    columns, rows = summary_rows(summary)
    if not rows:
        return "No held-out instances were evaluated.\n"
    lines = [("", *columns), ("---", *["---:"] * len(columns)), *((_cell(row.name), *row.cells) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(text: str) -> str:
    """Keep a name of the data (a kind of question) from ending its cell."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return the table for a terminal; empty, and saying so, if nothing was evaluated."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns, rows = summary_rows(summary)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("" if rows else "no held-out instances were evaluated")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        style = "bold" if index == 0 else ""
        table.add_row(Text(printable(row.name), style), *(Text(cell, style) for cell in row.cells))
    return table
