"""Runs side by side: which options differ, what was measured, and what that says.

Runs that differ in their seed alone are one variant; its numbers are means over its runs with the 95% interval over them. A variant
of one run shows the standard error over held-out instances instead, and each table says which it is. Differences between variants
are paired by held-out instance. What always holds: what is not known is a dash, never 0.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.report.curves import series
from memalpha.report.figures import Variant
from memalpha.report.seeds import interval
from memalpha.report.tables import with_error
from memalpha.report.view import UNKNOWN, known, mean, number, recorded
from memalpha.runs import RunFolder
from memalpha.training.results import standard_error

INCIDENTAL = frozenset({
    "data_seed", "ddp_timeout", "disable_tqdm", "generation_rows", "local_rank", "output_dir", "overwrite", "project", "report_to",
    "resume", "rows_per_forward", "run_name", "seed", "trackio_space_id",
})  # fmt: skip
"""Options in which seeds of one configuration may differ."""

INCIDENTAL_PREFIXES = ("save_", "logging_", "log_", "hub_")
"""Beginnings of the names of more such options."""

HELD_OUT: tuple[tuple[str, str, int], ...] = (
    ("reward", "reward after", 3),
    ("tool_success", "tool success after", 3),
    ("content", "content after", 3),
    ("compression", "compression after", 3),
    ("memory_tokens", "memory tokens after", 1),
    ("entries", "entries after", 1),
    ("calls_per_instance", "calls an instance after", 1),
    ("update_share", "updates after, share of calls", 3),
    ("delete_share", "deletes after, share of calls", 3),
    ("cut_off", "completions cut off after, share", 3),
    ("masked", "instances not scored after", 0),
)
"""Key in an evaluation, name and decimals."""

_ABSENT = "–"


@dataclass(frozen=True, slots=True)
class Run:
    """What a comparison reads of one run; ``accuracies`` after training are by instance, told apart by id and texts."""

    name: str
    config: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]
    accuracies: Mapping[str, float]


class Group(NamedTuple):
    """One column of a table: runs that differ in their seed alone, under one name."""

    label: str
    runs: Sequence[Run]

    @property
    def variant(self) -> Variant:
        """The group as curves are drawn of it."""
        return Variant(self.label, [run.metrics for run in self.runs], [run.summary for run in self.runs])


class Line(NamedTuple):
    """One line of a table: what is measured, and a cell a group."""

    name: str
    cells: tuple[str, ...]


def read_run(folder: RunFolder) -> Run:
    """Read what a comparison needs of a run; InputError if a file is damaged."""
    found = recorded(folder, "held_out/after.jsonl", lambda row: (_identity(row), known(row["result"]["accuracy"])))
    accuracies = {name: accuracy for name, accuracy in found if accuracy is not None}
    return Run(folder.path.resolve().name, folder.config, folder.metrics(), folder.read_optional("summary.json"), accuracies)


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the options in which runs differ beside the incidental ones, each with its value in every run."""
    names = sorted({name for config in configs for name in config if not _incidental(name)})
    values = {name: [config.get(name, _ABSENT) for config in configs] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def check_same_but_seed(folders: Sequence[RunFolder]) -> None:
    """Raise InputError if runs differ in an option beside their seed and where they were written."""
    found = differences([folder.config for folder in folders])
    if found:
        said = "; ".join(f"{name} is {' and '.join(map(repr, dict.fromkeys(map(str, values))))}" for name, values in found.items())
        raise InputError(
            f"the runs differ in more than their seed: {said}",
            expected="seeds of one configuration",
            fix="memalpha compare RUN RUN ... is for runs that differ",
        )


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Put runs that differ in their seed alone together, in the order of their first runs; labels are unique."""
    found: list[list[Run]] = []
    for run in runs:
        same = [members for members in found if not differences([members[0].config, run.config])]
        if same:
            same[0].append(run)
        else:
            found.append([run])
    labels: list[str] = []
    for members in found:
        label = _label([run.name for run in members])
        labels.append(label if label not in labels else f"{label} ({len(labels) + 1})")
    return [Group(label, members) for label, members in zip(labels, found, strict=True)]


def comparison(groups: Sequence[Group]) -> list[Line]:
    """Return the table: a line a measure, a cell a group; measures that no group has are left out."""
    lines = [
        Line("runs", tuple(str(len(group.runs)) for group in groups)),
        _line("steps", groups, lambda run: run.summary.get("steps"), 0),
        _accuracy("held-out accuracy before", groups, "before"),
        _accuracy("held-out accuracy after", groups, "after"),
        _accuracy("change in accuracy, paired", groups, "delta", signed=True),
        *_against_first(groups),
        *(
            _line(name, groups, lambda run, key=key: (run.summary.get("after") or {}).get(key), digits)
            for key, name, digits in HELD_OUT
        ),
        _line("training reward, last fifth", groups, lambda run: _late(run, ("reward",)), 3),
        _line("minutes in all", groups, lambda run: _minutes(run.summary.get("seconds")), 1),
    ]
    return [line for line in lines if any(cell != UNKNOWN for cell in line.cells)]


def spread_note(groups: Sequence[Group]) -> str:
    """Say what stands behind the ± of a table."""
    one = "± is the standard error over held-out instances" if any(len(group.runs) == 1 for group in groups) else ""
    several = "± is half the 95% t interval over runs" if any(len(group.runs) > 1 for group in groups) else ""
    if one and several:
        return f"With one run {one}; with several, {several}."
    return f"{(one or several)[0]}{(one or several)[1:]}."


def _line(name: str, groups: Sequence[Group], value: Any, digits: int) -> Line:
    return Line(name, tuple(_cell([value(run) for run in group.runs], digits) for group in groups))


def _cell(values: Sequence[Any], digits: int, *, signed: bool = False) -> str:
    found = interval(values)
    if found is None:
        return UNKNOWN
    text = number(found.mean, digits, signed=signed)
    return text if found.high is None else f"{text} ± {number(found.high - found.mean, digits)}"


def _identity(row: Mapping[str, Any]) -> str:
    """Name an instance by its id and what was read and asked: data sets of one kind use the same ids for different texts."""
    rollout = row["rollout"]
    texts = [step["text"] for step in rollout["steps"]] + [question["question"] for question in rollout["questions"]]
    return f"{row['result']['instance']} {hashlib.sha256(json.dumps(texts).encode()).hexdigest()}"


def _accuracy(name: str, groups: Sequence[Group], key: str, *, signed: bool = False) -> Line:
    cells = []
    for group in groups:
        found = [run.summary.get(key) or {} for run in group.runs]
        values = [data.get("accuracy") for data in found]
        alone = len(found) == 1
        cells.append(with_error(values[0], found[0].get("stderr"), signed=signed) if alone else _cell(values, 3, signed=signed))
    return Line(name, tuple(cells))


def _against_first(groups: Sequence[Group]) -> list[Line]:
    """Accuracy after training against the first group's, paired by instance, each instance a mean over a group's runs."""
    if len(groups) < 2:
        return []
    first = _by_instance(groups[0])
    cells = ["reference" if first else UNKNOWN]
    for group in groups[1:]:
        other = _by_instance(group)
        gaps = [other[instance] - first[instance] for instance in first if instance in other]
        text = with_error(mean(gaps), standard_error(gaps), signed=True)
        cells.append(f"{text} (n {len(gaps)})" if gaps else UNKNOWN)
    return (
        [Line(f"after, against {groups[0].label}, paired by instance", tuple(cells))]
        if any(c != UNKNOWN for c in cells[1:])
        else []
    )


def _by_instance(group: Group) -> dict[str, float]:
    shared = set.intersection(*(set(run.accuracies) for run in group.runs))
    return {name: sum(run.accuracies[name] for run in group.runs) / len(group.runs) for name in sorted(shared)}


def _late(run: Run, keys: Sequence[str]) -> float | None:
    values = series(run.metrics, keys).values
    return mean(values[-max(1, len(values) // 5) :]) if values else None


def _minutes(seconds: Any) -> float | None:
    found = known(seconds)
    return None if found is None else found / 60


def _label(names: Sequence[str]) -> str:
    """Name a group: what its runs' names begin with, without a seed's number; the first name if they share nothing."""
    shared = re.sub(r"([-_.]?(seed|s))?[-_.]?\d*$", "", _common(names)) if len(names) > 1 else names[0]
    return shared or names[0]


def _common(names: Sequence[str]) -> str:
    pairs = zip(*names, strict=False)
    return "".join(letters[0] for letters in takewhile(lambda letters: len(set(letters)) == 1, pairs))


def _incidental(name: str) -> bool:
    return name in INCIDENTAL or name.startswith(INCIDENTAL_PREFIXES)
