"""Comparison of runs, as a page and as a table for the terminal: differing options and measures.

Runs that differ only in their seed form one variant. It shows means with the 95% interval over its runs; a variant of one run shows
the standard error over held-out instances. Differences between variants are paired by held-out instance. Unknown values are dashes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import stdev
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from memalpha.errors import InputError
from memalpha.report.curves import Variant, interval, series, write_figures
from memalpha.report.pages import render, start_site
from memalpha.report.view import UNKNOWN, known, mean, number, printable, recorded, with_error
from memalpha.runs import RunFolder

if TYPE_CHECKING:
    from rich.table import Table

INCIDENTAL = frozenset({
    "data_seed", "ddp_timeout", "disable_tqdm", "generation_rows", "local_rank", "output_dir", "overwrite", "project", "report_to",
    "resume", "rows_per_forward", "run_name", "seed", "trackio_space_id",
})  # fmt: skip
"""Options that may differ between seeds of one configuration."""

INCIDENTAL_PREFIXES = ("save_", "logging_", "log_", "hub_")
"""Name prefixes of more such options."""

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
"""Key in an evaluation, name and decimals of the measures beside accuracy."""


@dataclass(frozen=True, slots=True)
class Run:
    """The data of one run; ``accuracies`` after training are by instance (id and texts)."""

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    accuracies: Mapping[str, float]


class Group(NamedTuple):
    """One column of a table: runs that differ only in their seed."""

    label: str
    runs: Sequence[Run]


class Row(NamedTuple):
    """One row of a table: a measure and its cells."""

    name: str
    cells: tuple[str, ...]


def read_run(folder: RunFolder) -> Run:
    """Read the data of one run; InputError if a file is damaged."""
    found = recorded(folder, "held_out/after.jsonl", lambda row: (_identity(row), known(row["result"]["accuracy"])))
    accuracies = {name: accuracy for name, accuracy in found if accuracy is not None}
    return Run(folder.path.resolve().name, folder.config, folder.metrics(), folder.read_optional("summary.json"), accuracies)


def _identity(row: Mapping[str, Any]) -> str:
    """Identify an instance by id and texts, because data sets of one kind reuse ids."""
    rollout = row["rollout"]
    texts = [step["text"] for step in rollout["steps"]] + [question["question"] for question in rollout["questions"]]
    return f"{row['result']['instance']} {hashlib.sha256(json.dumps(texts).encode()).hexdigest()}"


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the options that differ between runs, except the incidental ones, with the value of each run."""
    names = sorted({name for config in configs for name in config if name not in INCIDENTAL})
    values = {name: [config.get(name, UNKNOWN) for config in configs] for name in names if not name.startswith(INCIDENTAL_PREFIXES)}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def check_same_but_seed(folders: Sequence[RunFolder]) -> None:
    """InputError if runs differ in more than seed and output folder."""
    found = differences([folder.config for folder in folders])
    if found:
        said = "; ".join(f"{name} is {' and '.join(map(repr, dict.fromkeys(map(str, values))))}" for name, values in found.items())
        raise InputError(
            f"the runs differ in more than their seed: {said}",
            expected="seeds of one configuration",
            fix="memalpha compare RUN RUN ... is for runs that differ",
        )


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed, in the order of their first runs; labels are unique."""
    found: list[list[Run]] = []
    for run in runs:
        same = next((members for members in found if not differences([members[0].config, run.config])), None)
        if same is None:
            found.append([run])
        else:
            same.append(run)
    groups: dict[str, Group] = {}
    for members in found:
        label = _label([run.name for run in members])
        label = f"{label} ({len(groups) + 1})" if label in groups else label
        groups[label] = Group(label, members)
    return list(groups.values())


def _label(names: Sequence[str]) -> str:
    """Return the common prefix of the run names without a seed number; the first name if there is none."""
    common = os.path.commonprefix(list(names))  # noqa: RUF071 (character by character is meant)
    return re.sub(r"([-_.]?(seed|s))?[-_.]?\d*$", "", common) or names[0] if len(names) > 1 else names[0]


def comparison(groups: Sequence[Group]) -> list[Row]:
    """Return the table: one row per measure, one cell per group, without rows that are empty in every group."""

    def row(name: str, digits: int, value: Callable[[Run], Any]) -> Row:
        return Row(name, tuple(_cell([value(run) for run in group.runs], digits) for group in groups))

    rows = [
        Row("runs", tuple(str(len(group.runs)) for group in groups)),
        row("steps", 0, lambda run: run.summary.get("steps")),
        _accuracy("held-out accuracy before", groups, "before"),
        _accuracy("held-out accuracy after", groups, "after"),
        _accuracy("change in accuracy, paired", groups, "delta", signed=True),
        *_against_first(groups),
        *(
            row(f"after: {name}", digits, partial(_after, key))
            for key, name, digits in MEASURES
            if key not in ("input_tokens", "n")
        ),
        row("training reward, last fifth", 3, _late_reward),
        row("minutes in all", 1, lambda run: None if (s := known(run.summary.get("seconds"))) is None else s / 60),
    ]
    return [one for one in rows if any(cell != UNKNOWN for cell in one.cells)]


def spread_note(groups: Sequence[Group]) -> str:
    """Explain the ± of a table."""
    one = "± is the standard error over held-out instances" if any(len(group.runs) == 1 for group in groups) else ""
    several = "± is half the 95% t interval over runs" if any(len(group.runs) > 1 for group in groups) else ""
    return f"With one run {one}; with several, {several}." if one and several else f"{one or several}."


def _cell(values: Sequence[Any], digits: int, *, signed: bool = False) -> str:
    found = interval(values)
    if found is None:
        return UNKNOWN
    text = number(found.mean, digits, signed=signed)
    return text if found.reach is None else f"{text} ± {number(found.reach, digits)}"


def _accuracy(name: str, groups: Sequence[Group], key: str, *, signed: bool = False) -> Row:
    cells = []
    for group in groups:
        found = [run.summary.get(key) or {} for run in group.runs]
        values = [data.get("accuracy") for data in found]
        alone = len(found) == 1
        cells.append(with_error(values[0], found[0].get("stderr"), signed=signed) if alone else _cell(values, 3, signed=signed))
    return Row(name, tuple(cells))


def _against_first(groups: Sequence[Group]) -> list[Row]:
    """Return the rows of accuracy minus the first group's, paired by instance (mean over a group's runs)."""
    means = []
    for group in groups:
        shared = set.intersection(*(set(run.accuracies) for run in group.runs))
        means.append({name: sum(run.accuracies[name] for run in group.runs) / len(group.runs) for name in sorted(shared)})
    first, *others = means
    cells = []
    for other in others:
        gaps = [other[instance] - first[instance] for instance in first if instance in other]
        error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        cells.append(f"{with_error(mean(gaps), error, signed=True)} (n {len(gaps)})" if gaps else UNKNOWN)
    name = f"after, against {groups[0].label}, paired by instance"
    return [Row(name, ("reference", *cells))] if any(cell != UNKNOWN for cell in cells) else []


def _after(key: str, run: Run) -> Any:
    return (run.summary.get("after") or {}).get(key)


def _late_reward(run: Run) -> float | None:
    values = series(run.metrics, ("reward",)).values
    return mean(values[-max(1, len(values) // 5) :])


def _options(groups: Sequence[Group]) -> list[Row]:
    found = differences([group.runs[0].config for group in groups])
    return [Row(name, tuple("none" if value in ("", None) else str(value) for value in values)) for name, values in found.items()]


def write_comparison(folders: Sequence[RunFolder], target: Path) -> Path:
    """Write ``index.html`` with tables and curves of several runs and return its path; replaces only this page's own files."""
    runs = [read_run(folder) for folder in folders]
    groups, alone = group_runs(runs), [Group(run.name, [run]) for run in runs]
    variants = [Variant(label, [run.metrics for run in one], [run.summary for run in one]) for label, one in groups]
    start_site(target)
    page = render(
        "compare.html",
        root="",
        here="index.html",
        name="comparison",
        lists={"index.html": "Comparison"},
        groups=groups,
        rows=comparison(groups),
        note=spread_note(groups),
        each=comparison(alone) if len(groups) < len(runs) else [],
        each_note=spread_note(alone),
        runs=runs,
        links=[_link(folder, target) for folder in folders],
        options=_options(groups),
        pictures=write_figures(target / "figures", variants),
    )
    path = target / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def _link(folder: RunFolder, target: Path) -> str:
    page = folder.path / "report" / "index.html"
    return quote(Path(os.path.relpath(page.resolve(), target.resolve())).as_posix()) if page.is_file() else ""


def comparison_table(folders: Sequence[RunFolder]) -> Table:
    """Return the comparison for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    groups = group_runs([read_run(folder) for folder in folders])
    table = Table(box=box.SIMPLE_HEAD, caption=Text(spread_note(groups), "dim"), caption_justify="left")
    table.add_column("")
    for group in groups:
        table.add_column(Text(printable(group.label)), justify="right")
    for name, cells in _options(groups):
        table.add_row(*(Text(printable(text), "dim") for text in (f"option {name}", *cells)))
    for name, cells in comparison(groups):
        style = "bold" if name == "change in accuracy, paired" else ""
        table.add_row(*(Text(printable(text), style) for text in (name, *cells)))
    return table
