"""Tables: a run before and after training, and several runs side by side. Unknown values are
dashes.

The difference in accuracy is paired by held-out instance, with its standard error; all other
differences are between two means.
Runs that differ only in their seed form one column: means with Student's 95% interval over its
runs; a column of one run shows the standard error over held-out instances.
"""

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import stdev
from typing import Any, NamedTuple

from memalpha.measure.curves import interval, series
from memalpha.measure.view import UNKNOWN, counted, known, mean, number, with_error
from memalpha.record.folder import RunFolder
from memalpha.record.rows import read_rows

Row = tuple[str, tuple[str, ...]]  # one row of a table: a measure and its cells

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

# Key in an evaluation, name and decimals of the measures beside accuracy.
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


# ------------------------------------------------------------------------------------------------
# one run
def summary_rows(summary: Mapping[str, Any]) -> tuple[tuple[str, ...], list[Row]]:
    """Return columns and rows of a ``summary.json``: before, after and difference, or one
    evaluation; empty if there was none.
    """
    found = (
        {"held out": summary}
        if "accuracy" in summary
        else {n: summary[n] for n in ("before", "after") if summary.get(n)}
    )
    if not found:
        return (), []

    def row(name: str, values: Sequence[Any], digits: int) -> Row:
        cells = [number(value, digits) for value in values]
        if len(values) == 2:
            before, after = map(known, values)
            cells.append(
                UNKNOWN
                if before is None or after is None
                else number(after - before, digits, signed=True)
            )
        return name, tuple(cells)

    accuracy = [with_error(data.get("accuracy"), data.get("stderr")) for data in found.values()]
    if len(found) == 2:
        delta = summary.get("delta") or {}
        accuracy.append(with_error(delta.get("accuracy"), delta.get("stderr"), signed=True))
    rows: list[Row] = [("accuracy", tuple(accuracy))]
    for key, name, digits in MEASURES:
        if any(key in data for data in found.values()):
            rows.append(row(name, [data.get(key) for data in found.values()], digits))
    for kind in sorted({kind for data in found.values() for kind in data.get("kinds", {})}):
        data = [evaluation.get("kinds", {}).get(kind, {}) for evaluation in found.values()]
        asked = " and ".join(dict.fromkeys(number(item.get("questions"), 0) for item in data))
        asked += " question" if asked == "1" else " questions"
        rows.append(row(f"accuracy: {kind} ({asked})", [item.get("accuracy") for item in data], 3))
    mixes = [evaluation.get("operations") for evaluation in found.values()]
    for name in sorted({name for mix in mixes for name in mix or ()}):
        rows.append(
            row(f"{name}, share of calls", [mix and mix.get(name, 0.0) for mix in mixes], 3)
        )
    return (*found, *(["difference"] if len(found) == 2 else [])), rows


def headline(summary: Mapping[str, Any]) -> str:
    """Return the change in words (below two standard errors: no clear difference); empty if it is
    not known.
    """
    delta = summary.get("delta") or {}
    change, error = known(delta.get("accuracy")), known(delta.get("stderr"))
    if change is None:
        return ""
    before, after = (number(summary[name].get("accuracy")) for name in ("before", "after"))
    paired = f"{with_error(change, error, signed=True)}, paired over {counted(int(delta.get('n', 0)), 'instance')}."
    text = f"Held-out accuracy {before} before and {after} after training: {paired}"
    if error is None:
        return text
    verdict = (
        "more than two standard errors."
        if abs(change) > 2 * error
        else "within two standard errors: no clear difference."
    )
    return f"{text} That is {verdict} {selection_note(summary)}".strip()


def selection_note(summary: Mapping[str, Any]) -> str:
    """Return which step was selected on which instances; empty if none was."""
    if not (chosen := summary.get("selection")):
        return ""
    same = "these instances, so the numbers after training are too favourable"
    where = same if chosen["on_after"] else counted(chosen["instances"], "other instance")
    return f"Step {number(chosen['step'], 0)} was selected by {chosen['metric']}, {number(chosen['value'])} on {where}."


# ------------------------------------------------------------------------------------------------
# several runs
class Run(NamedTuple):
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


def read_run(folder: RunFolder) -> Run:
    """Read the data of one run; InputError if a file is damaged."""
    accuracies = {}
    for row in read_rows(folder.path / "held_out" / "after.jsonl"):
        steps = (row.rollout or {}).get("steps", [])
        texts = [step["text"] for step in steps] + [question.text for question in row.questions]
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        if row.scored:
            accuracies[f"{row.instance} {digest}"] = row.accuracy
    return Run(
        folder.path.resolve().name,
        folder.config,
        folder.metrics(),
        folder.read_optional("summary.json"),
        accuracies,
    )


def differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the options that differ between runs, except the incidental ones, with the value of
    each run.
    """
    names = sorted({name for config in configs for name in config if name not in INCIDENTAL})
    values = {
        name: [config.get(name, UNKNOWN) for config in configs]
        for name in names
        if not name.startswith(INCIDENTAL_PREFIXES)
    }
    return {
        name: found for name, found in values.items() if any(value != found[0] for value in found)
    }


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in their seed; a label is the common start of their names without
    a seed number.
    """
    found: list[list[Run]] = []
    for run in runs:
        same = next(
            (members for members in found if not differences([members[0].config, run.config])), None
        )
        if same is None:
            found.append([run])
        else:
            same.append(run)
    groups: dict[str, Group] = {}
    for members in found:
        label = os.path.commonprefix([run.name for run in members])  # noqa: RUF071
        if len(members) > 1:
            label = re.sub(r"([-_.]?(seed|s))?[-_.]?\d*$", "", label) or members[0].name
        label = f"{label} ({len(groups) + 1})" if label in groups else label
        groups[label] = Group(label, members)
    return list(groups.values())


def comparison(groups: Sequence[Group]) -> list[Row]:
    """Return the table: differing options, then one row per measure, a cell per group, without rows
    that are empty in all.
    """

    def row(name: str, digits: int, value: Callable[[Run], Any]) -> Row:
        return name, tuple(_cell([value(run) for run in group.runs], digits) for group in groups)

    def after(key: str, run: Run) -> Any:
        return (run.summary.get("after") or {}).get(key)

    def late_reward(run: Run) -> float | None:
        _, values = series(run.metrics, ("reward",))
        return mean(values[-max(1, len(values) // 5) :])

    options = differences([group.runs[0].config for group in groups])
    said = {
        name: tuple("none" if value in ("", None) else str(value) for value in row)
        for name, row in options.items()
    }
    rows: list[Row] = [
        *((f"option {name}", values) for name, values in said.items()),
        ("runs", tuple(str(len(group.runs)) for group in groups)),
        row("steps", 0, lambda run: run.summary.get("steps")),
        _accuracy("held-out accuracy before", groups, "before"),
        _accuracy("held-out accuracy after", groups, "after"),
        _accuracy("change in accuracy, paired", groups, "delta", signed=True),
        _against_first(groups),
        *(
            row(f"after: {name}", digits, partial(after, key))
            for key, name, digits in MEASURES
            if key not in ("input_tokens", "n")
        ),
        row("training reward, last fifth", 3, late_reward),
        row(
            "minutes in all",
            1,
            lambda run: None if (s := known(run.summary.get("seconds"))) is None else s / 60,
        ),
    ]
    return [one for one in rows if any(cell not in (UNKNOWN, "reference") for cell in one[1])]


def _cell(values: Sequence[Any], digits: int, *, signed: bool = False) -> str:
    if (found := interval(values)) is None:
        return UNKNOWN
    text = number(found[0], digits, signed=signed)
    return text if found[1] is None else f"{text} ± {number(found[1], digits)}"


def _accuracy(name: str, groups: Sequence[Group], key: str, *, signed: bool = False) -> Row:
    cells = []
    for group in groups:
        found = [run.summary.get(key) or {} for run in group.runs]
        values = [data.get("accuracy") for data in found]
        alone = len(found) == 1
        cells.append(
            with_error(values[0], found[0].get("stderr"), signed=signed)
            if alone
            else _cell(values, 3, signed=signed)
        )
    return name, tuple(cells)


def _against_first(groups: Sequence[Group]) -> Row:
    means = []
    for group in groups:
        shared = set.intersection(*(set(run.accuracies) for run in group.runs))
        means.append(
            {
                name: sum(run.accuracies[name] for run in group.runs) / len(group.runs)
                for name in sorted(shared)
            }
        )
    cells = ["reference"]
    for other in means[1:]:
        gaps = [other[instance] - means[0][instance] for instance in means[0] if instance in other]
        error = stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else None
        cells.append(
            f"{with_error(mean(gaps), error, signed=True)} (n {len(gaps)})" if gaps else UNKNOWN
        )
    return f"after, against {groups[0].label}, paired by instance", tuple(cells)


SPREAD = "± with one run: the standard error over held-out instances; with several: half the 95% t interval over runs."
