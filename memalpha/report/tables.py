"""Tables of a report's first page: before/after table, progress, time, failures. Unknown values are dashes.

Read from ``summary.json``, ``metrics.jsonl`` and the catalogue. The difference in accuracy is paired, with its standard error; all
other differences are between two means.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from memalpha.report.catalogue import Facts
from memalpha.report.compare import MEASURES, Row
from memalpha.report.curves import Rows, interval, series
from memalpha.report.view import UNKNOWN, counted, duration, known, known_values, number, printable, with_error

if TYPE_CHECKING:
    from rich.table import Table

TIMES: Mapping[str, str] = {"time/rollouts": "rollouts", "time/scoring": "scoring", "step_time": "update"}
"""Parts of a training step's time in ``metrics.jsonl`` (first process only), and their labels."""


class SummaryRows(NamedTuple):
    """The table as text; ``columns`` and ``rows`` are empty if nothing was evaluated."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


def summary_rows(summary: Mapping[str, Any]) -> SummaryRows:
    """Return the table of a ``summary.json``: before, after and difference of a training run, or one column of one evaluation."""
    found = _evaluations(summary)
    if not found:
        return SummaryRows((), ())
    two = len(found) == 2
    accuracy = [with_error(data.get("accuracy"), data.get("stderr")) for data in found.values()]
    if two:
        delta = summary.get("delta") or {}
        accuracy.append(with_error(delta.get("accuracy"), delta.get("stderr"), signed=True))
    rows = [Row("accuracy", tuple(accuracy))]
    for key, name, digits in MEASURES:
        if any(key in data for data in found.values()):
            rows.append(_row(name, [data.get(key) for data in found.values()], digits))
    for kind in sorted({kind for data in found.values() for kind in data.get("kinds", {})}):
        data = [evaluation.get("kinds", {}).get(kind, {}) for evaluation in found.values()]
        counts = list(dict.fromkeys(number(item.get("questions"), 0) for item in data))
        noun = "question" if counts == ["1"] else "questions"
        rows.append(_row(f"accuracy: {kind} ({' and '.join(counts)} {noun})", [item.get("accuracy") for item in data], 3))
    return SummaryRows((*found, *(["difference"] if two else [])), tuple(rows))


def _evaluations(summary: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    if "accuracy" in summary:
        return {"held out": summary}
    return {name: summary[name] for name in ("before", "after") if summary.get(name)}


def _row(name: str, values: Sequence[Any], digits: int) -> Row:
    cells = [number(value, digits) for value in values]
    if len(values) == 2:
        before, after = map(known, values)
        cells.append(UNKNOWN if before is None or after is None else number(after - before, digits, signed=True))
    return Row(name, tuple(cells))


def headline(summary: Mapping[str, Any]) -> str:
    """Return the result in words (below two standard errors: no clear difference); empty if nothing was evaluated."""
    found = _evaluations(summary)
    delta = summary.get("delta") or {}
    change, error = known(delta.get("accuracy")), known(delta.get("stderr"))
    if len(found) < 2:
        return "".join(
            f"Accuracy {with_error(data.get('accuracy'), data.get('stderr'))} on {number(data.get('n'), 0)} held-out instances."
            for data in found.values()
        )
    before, after = (number(data.get("accuracy")) for data in found.values())
    text = f"Held-out accuracy {before} before and {after} after training"
    if change is None:
        return f"{text}; no instance was scored both times."
    text += f": {with_error(change, error, signed=True)}, paired over {counted(int(delta.get('n', 0)), 'instance')}."
    if error is None:
        return text
    verdict = "more than two standard errors." if abs(change) > 2 * error else "within two standard errors: no clear difference."
    return f"{text} That is {verdict}"


def several_headline(summaries: Sequence[Mapping[str, Any]]) -> str:
    """Return the result of several seeds in one sentence; empty if none was evaluated both times."""
    change = interval([(summary.get("delta") or {}).get("accuracy") for summary in summaries])
    if change is None:
        return ""
    ends = [UNKNOWN if change.reach is None else number(change.mean + sign * change.reach, signed=True) for sign in (-1, 1)]
    return (
        f"Held-out accuracy changed by {number(change.mean, signed=True)} (95% interval {' to '.join(ends)}), "
        f"mean of {counted(change.n, 'run')}."
    )


def summary_markdown(summary: Mapping[str, Any]) -> str:
    """Return the table as Markdown; one sentence if nothing was evaluated."""
    columns, rows = summary_rows(summary)
    if not rows:
        return "No held-out instances were evaluated.\n"
    escapes = str.maketrans({"\\": "\\\\", "|": "\\|", "\n": " ", "<": "&lt;"})  # keep text inside its table cell
    lines = [("", *columns), ("---", *["---:"] * len(columns)), *((row.name.translate(escapes), *row.cells) for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def summary_table(summary: Mapping[str, Any]) -> Table:
    """Return the table for a terminal; if nothing was evaluated, it is empty and says so."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    columns, rows = summary_rows(summary)
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("" if rows else "no held-out instances were evaluated")
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    for index, row in enumerate(rows):
        table.add_row(*(Text(printable(text), "" if index else "bold") for text in (row.name, *row.cells)))
    return table


def cards(metrics: Rows, config: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return (name, number, note) for the head of the page: values of the last step, and of the first in the note."""
    if not metrics:
        return []
    found = [
        _last("reward", metrics, ("reward",), 3),
        _last("accuracy in training", metrics, ("rewards/accuracy/mean", "memory/reward_accuracy"), 3),
        _last("tokens a completion", metrics, ("completions/mean_length",), 1),
        _last("tokens in the final memory", metrics, ("memory/tokens",), 1),
        _last("entropy", metrics, ("entropy",), 2),
        _last("KL to the reference", metrics, ("kl",), 4) if known(config.get("beta")) else ("KL term", "off", ""),
    ]
    if masked := known_values([row.get("memory/masked") for row in metrics]):
        found.append(("rollouts not scored", f"{number(100 * sum(masked) / len(masked), 1)}%", "of all"))
    return [card for card in found if card]


def _last(name: str, metrics: Rows, keys: Sequence[str], digits: int) -> tuple[str, str, str] | None:
    values = series(metrics, keys).values
    if not values:
        return None
    note = f"from {number(values[0], digits)} at the first step" if len(values) > 1 else "at the only step"
    return name, number(values[-1], digits), note


def state(metrics: Rows, summary: Mapping[str, Any]) -> str:
    """Return one line about how far a run came."""
    if "steps" in summary:
        return f"{number(summary['steps'], 0)} steps in {duration(summary.get('seconds'))}"
    if summary:
        return f"evaluation in {duration(summary.get('seconds'))}"
    if not metrics:
        return "no step logged yet"
    return f"unfinished: step {number(metrics[-1].get('step'), 0)} of {number(metrics[-1].get('max_steps'), 0)}"


def time_split(metrics: Rows, seconds: float | None) -> dict[str, float]:
    """Return the seconds of each part of a run and of the rest; no rest if ``seconds`` in all is None (a run has not ended)."""
    sums = {name: sum(known_values([row.get(key) for row in metrics])) for key, name in TIMES.items()}
    sums = {name: value for name, value in sums.items() if value}
    rest = (seconds or 0.0) - sum(sums.values())
    return sums | ({"everything else": rest} if sums and rest > 0 else {})


def troubles(facts: Sequence[Facts], metrics: Rows) -> list[tuple[str, str, int]]:
    """Return skipped steps and missing scores as (where, message, count), in order."""
    found = [
        (f"step {number(row.get('step'), 0)}", "the step was skipped: loss or gradient was not finite", 1)
        for row in metrics
        if known(row.get("skipped"))
    ]
    places: dict[str, Counter[str]] = {}
    for fact in facts:
        if fact.errors:
            places.setdefault(fact.source.where, Counter()).update(fact.errors)
    return found + [(where, text, count) for where, counts in places.items() for text, count in counts.most_common()]


def failures(facts: Sequence[Facts]) -> dict[str, tuple[int, list[tuple[str, int]]]]:
    """Return number of calls and (code, number) of failed ones: for training, and for each held-out evaluation."""
    calls: Counter[str] = Counter()
    codes: dict[str, Counter[str]] = {}
    for fact in facts:
        where = fact.source.where if fact.source.step is None else "training"
        calls[where] += fact.calls
        codes.setdefault(where, Counter()).update(fact.codes)
    return {where: (calls[where], found.most_common()) for where, found in codes.items()}
