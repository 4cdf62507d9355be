"""Summary of an evaluation: accuracy, kinds, costs, differences, scorecard and means over sets,
with intervals; its tables.

A *group* is one table row: systems that differ only in their training seed; a *member* is a system
with one sampling seed. In one set and reader all groups are compared on the instances that every
member of every group has a score for. Accuracy is the mean over instances of the question mean. The
mean over sets is over the sets with ``in_mean``, for groups present on all of them.

``summary.json`` has everything, ``table.md`` the tables: all configured systems in order; missing
and cut data are reported. Unknown numbers are a dash, never 0. A star marks an interval whose two
methods disagree (``Estimate.agree``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.files import write_whole
from memalpha.measure.evaluation_folder import read_config
from memalpha.measure.options import make_system, read_system
from memalpha.measure.scorecard import Measure, scorecard
from memalpha.record.folder import RunFolder
from memalpha.record.rows import InstanceRow, read_rows
from memalpha.record.statistics import (
    LEVEL,
    RESAMPLES,
    SEED,
    Estimate,
    Number,
    Seed,
    difference,
    estimate,
    mean_over_sets,
)
from memalpha.types import Instance

Scored = dict[
    Seed, dict[str, InstanceRow]
]  # results of one group on one set with one reader, by member and instance
Differences = Mapping[str, Mapping[str, Estimate]]  # ``[first][second]`` is second - first

# Fields of ``InstanceRow`` and ``OperationCounts`` shown as means over instances.
COSTS = (
    "memory_tokens",
    "input_tokens",
    "reader_tokens",
    "write_calls",
    "cut_off",
    "cut",
    "seconds_write",
    "seconds_read",
)
UNKNOWN = "–"  # text of an unknown number
OPERATIONS = ("insert", "update", "delete", "failed", "duplicate")


@dataclass(frozen=True, slots=True)
class KindScore:
    """Accuracy on one kind of question, and the number of questions in one seed."""

    accuracy: Estimate
    questions: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One group on one set with one reader; ``costs`` and ``operations`` are means over members and
    instances.
    """

    members: Mapping[Seed, str]  # system and sampling seed by the names in ``Estimate.per_seed``
    accuracy: Estimate
    kinds: Mapping[str, KindScore]
    costs: Mapping[str, Number]
    operations: Mapping[str, Number]
    scorecard: Mapping[str, Estimate | None]  # None: not measured


@dataclass(frozen=True, slots=True)
class SetSummary:
    """One set with one reader; all numbers are over the ``instances`` that every group has a score
    for.
    """

    set: str
    reader: str
    instances: int
    size: int  # known instances of the set
    left_out: Mapping[str, str]  # number and first reason, by group
    cells: Mapping[str, Cell]  # in the configuration's order
    differences: Differences  # paired
    in_mean: bool = True
    unmeasured: str = ""  # why an expected scorecard is missing


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole evaluation; ``over_sets`` is by reader and group (None if a set is missing),
    ``differences`` are paired.
    """

    sets: tuple[SetSummary, ...]
    over_sets: Mapping[str, Mapping[str, Estimate | None]]
    differences: Mapping[str, Differences]
    kinds_of: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data, with the interval settings; unknown values are NaN."""
        found = asdict(self)
        kinds = found.pop("kinds_of")
        return {
            **found,
            "bootstrap": {"resamples": RESAMPLES, "level": LEVEL, "seed": SEED},
            "kinds_of": kinds,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Summary:
        """Read what ``to_json`` wrote."""
        return TypeAdapter(cls).validate_python(data)


def summarise_evaluation(folder: str | Path) -> Summary:
    """Summarise a folder; InputError if files are missing, damaged or inconsistent."""
    config = read_config(folder)
    found: dict[tuple[str, str], list[InstanceRow]] = {}
    for result in read_rows(folder):
        found.setdefault((result.set, result.reader), []).append(result)
    noted = RunFolder(folder).read_optional("inputs.json").get("sets", {})
    summaries = []
    for row in config["sets"]:
        instances, unmeasured = _instances(row)
        for reader in (reader["name"] for reader in config["readers"]):
            results = found.get((row["name"], reader), [])
            if not results and reader not in (row.get("readers") or (reader,)):
                continue
            size = max(
                noted.get(row["name"], {}).get("instances", 0),
                len({result.instance for result in results}),
            )
            if groups := _groups(config, row["name"], reader, results):
                summaries.append(_summarise_set(row, reader, groups, size, instances, unmeasured))
    return over_sets(summaries, {row["group"]: row["kind"] for row in config["systems"]})


def _instances(row: Mapping[str, Any]) -> tuple[dict[str, Instance], str]:
    """A set's instances by id, or none and why."""
    try:
        loaded = load_data(row["data"], row.get("options"))
    except InputError as error:
        return {}, str(error).splitlines()[0]
    chosen = loaded[row.get("skip", 0) :][: row.get("instances") or None]
    return {instance.id: instance for instance in chosen}, ""


def _groups(
    config: Mapping[str, Any], set_name: str, reader: str, results: Sequence[InstanceRow]
) -> dict[str, Scored]:
    seeds = config.get("seeds") or [0]
    groups: dict[str, Scored] = {}
    for row in config["systems"]:
        place = [
            other["name"] for other in config["systems"] if other["group"] == row["group"]
        ].index(row["name"])
        own = [result for result in results if result.system == row["name"]]
        if not own and not (
            set_name in (row.get("sets") or (set_name,))
            and reader in (row.get("readers") or (reader,))
        ):
            continue
        spec = read_system(row)
        drawn = make_system(spec.kind, spec.options).draws(config.get("temperature", 0.0))
        members = groups.setdefault(row["group"], {})
        for seed in sorted({result.seed for result in own} | set(seeds if drawn else seeds[:1])):
            name = f"{place}/{seed}" if len(seeds) > 1 else str(place)
            members[name] = {result.instance: result for result in own if result.seed == seed}
    return groups


def _summarise_set(
    row: Mapping[str, Any],
    reader: str,
    groups: Mapping[str, Scored],
    size: int,
    instances: Mapping[str, Instance],
    unmeasured: str,
) -> SetSummary:
    scored = {
        group: set.intersection(
            *({name for name, result in rows.items() if result.scored} for rows in members.values())
        )
        for group, members in groups.items()
    }
    common = (
        sorted(set.intersection(*present))
        if (present := [names for names in scored.values() if names])
        else []
    )
    kept = {
        group: {
            member: {name: rows[name] for name in common} for member, rows in groups[group].items()
        }
        for group, names in scored.items()
        if common and names
    }
    accuracies = {
        group: {
            member: {name: rows[name].accuracy for name in common}
            for member, rows in members.items()
        }
        for group, members in kept.items()
    }
    differences: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations(kept, 2):
        differences.setdefault(first, {})[second] = difference(
            accuracies[first], accuracies[second]
        )
    return SetSummary(
        row["name"],
        reader,
        len(common),
        size,
        {
            group: f"{n} of {size}: {_reason(groups[group])}"
            for group, names in scored.items()
            if (n := size - len(names))
        },
        {
            group: _cell(members, estimate(accuracies[group]), instances)
            for group, members in kept.items()
        },
        differences,
        bool(row.get("in_mean", True)),
        unmeasured,
    )


def _reason(members: Scored) -> str:
    row = next(
        (row for rows in members.values() for _, row in sorted(rows.items()) if not row.scored),
        None,
    )
    if row is None:
        return "not evaluated yet"
    return row.failed or next(
        (q.error for q in row.questions if q.error), "no score" if row.questions else "no questions"
    )


def _cell(members: Scored, accuracy: Estimate, instances: Mapping[str, Instance]) -> Cell:
    everything = [row for results in members.values() for row in results.values()]
    by_member = {member: list(results.values()) for member, results in members.items()}
    card = scorecard(by_member, instances) if instances else dict.fromkeys(Measure)
    kinds = {}
    for kind in sorted(
        {question.kind for row in next(iter(by_member.values())) for question in row.questions}
    ):
        asked = {
            member: {
                name: found
                for name, row in rows.items()
                if (found := [q.score for q in row.questions if q.kind == kind])
            }
            for member, rows in members.items()
        }
        means = {
            member: {name: sum(found) / len(found) for name, found in its.items()}
            for member, its in asked.items()
        }
        weights = {name: float(len(found)) for name, found in next(iter(asked.values())).items()}
        kinds[kind] = KindScore(estimate(means, weights=weights), int(sum(weights.values())))
    return Cell(
        members={
            member: f"{results[0].system} seed {results[0].seed}"
            for member, results in by_member.items()
        },
        accuracy=accuracy,
        kinds=kinds,
        costs={
            cost: sum(float(getattr(row, cost)) for row in everything) / len(everything)
            for cost in COSTS
        },
        operations={
            kind: sum(float(getattr(row.operations, kind)) for row in everything) / len(everything)
            for kind in OPERATIONS
        },
        scorecard={measure.value: card[measure] for measure in Measure},
    )


def over_sets(sets: Sequence[SetSummary], kinds_of: Mapping[str, str]) -> Summary:
    """Combine sets and compute the means over them; InputError if a group's members are ordered
    differently in these sets.
    """
    means: dict[str, dict[str, Estimate | None]] = {}
    differences: dict[str, dict[str, dict[str, Estimate]]] = {}
    for reader in dict.fromkeys(item.reader for item in sets):
        items = [item for item in sets if item.reader == reader]
        counted = [item for item in items if item.in_mean]
        asked = [
            group
            for group in kinds_of
            if any(group in item.cells or group in item.left_out for item in items)
        ]
        everywhere = [
            group for group in asked if counted and all(group in item.cells for item in counted)
        ]
        for group in everywhere:
            members = [named for item in counted for named in item.cells[group].members.items()]
            if len(set(members)) > len(dict(members)):
                raise InputError(
                    f"group {group!r} has other members on other sets",
                    expected="one order of members on all sets",
                )
        over = {
            group: mean_over_sets([item.cells[group].accuracy for item in counted])
            for group in everywhere
        }
        means[reader] = {group: over.get(group) for group in asked}
        differences[reader] = {}
        for first, second in combinations(everywhere, 2):
            parts = [
                part
                for item in counted
                if (part := difference_from(item.differences, first, second)) is not None
            ]
            differences[reader].setdefault(first, {})[second] = mean_over_sets(parts)
    return Summary(tuple(sets), means, differences, kinds_of)


def difference_from(differences: Differences, reference: str, group: str) -> Estimate | None:
    """Return the paired group - reference, from either direction; None for the reference or a
    missing pair.
    """
    if (found := differences.get(reference, {}).get(group)) is not None:
        return found
    turned = differences.get(group, {}).get(reference)
    return None if turned is None else -turned


def reference_group(summary: Summary) -> str:
    """Return the reference: the agent with most members (the last of equals), else the first
    group.
    """
    members = {
        group: len(cell.members) for item in summary.sets for group, cell in item.cells.items()
    }
    agents = [group for group, kind in summary.kinds_of.items() if kind == "agent"]
    return max(
        reversed(agents),
        key=lambda group: members.get(group, 0),
        default=next(iter(summary.kinds_of)),
    )


# -------------------------------------------------------------------------------- tables
def write_tables(folder: str | Path) -> Summary:
    """Write ``summary.json`` and ``table.md``, also of an unfinished evaluation; InputError if
    there is none.
    """
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


def overall(
    summary: Summary, reader: str, reference: str, show: Callable[[Estimate | None], str]
) -> str:
    """A row a group: its accuracy on each set, the mean over sets, and the difference from the
    reference.
    """
    items = [item for item in summary.sets if item.reader == reader]
    counted = [item for item in items if item.in_mean]
    rows = []
    for group, mean in summary.over_sets[reader].items():
        cells = [
            show(item.cells[group].accuracy if group in item.cells else None) for item in items
        ]
        missing = (
            f"{UNKNOWN} ({sum(group in item.cells for item in counted)} of {len(counted)} sets)"
        )
        difference = interval(
            difference_from(summary.differences[reader], reference, group), signed=True
        )
        rows.append([group, *cells, interval(mean) if mean else missing, difference])
    head = [
        "system",
        *(item.set for item in items),
        f"mean over {_counted(len(counted), 'set')}",
        f"minus `{reference}`",
    ]
    return table(head, rows)


def _set_lines(item: SetSummary, reference: str) -> list[str]:
    lines = [f"### {_one_line(item.set)} ({item.instances} of {item.size} instances)"]
    lines += [
        f"- Left out: `{_one_line(group)}` lacks {_one_line(why)}"
        for group, why in item.left_out.items()
    ]
    lines += [f"The scorecard is missing: {item.unmeasured}"] if item.unmeasured else []
    if not item.cells:
        return [*lines, "Nothing to compare yet."]

    rows = []
    for group, cell in item.cells.items():
        costs = cell.costs
        share = (
            costs["memory_tokens"] / costs["input_tokens"] if costs["input_tokens"] else math.nan
        )
        row = [
            group,
            interval(cell.accuracy),
            interval(difference_from(item.differences, reference, group), signed=True),
        ]
        row += [number(costs["memory_tokens"], 1), number(share, 3)]
        row += [
            number(costs[name], 1) for name in ("reader_tokens", "write_calls", "cut_off", "cut")
        ]
        rows.append([*row, number(costs["seconds_write"], 2), number(costs["seconds_read"], 2)])
    head = "memory tokens|of the input|tokens read for a question|write calls|of them cut off|tokens cut|s writing|s reading"
    lines.append(table(["system", "accuracy", f"minus `{reference}`", *head.split("|")], rows))

    kinds = {
        kind: score.questions for cell in item.cells.values() for kind, score in cell.kinds.items()
    }
    rows = [
        [
            group,
            *(
                interval(cell.kinds[kind].accuracy if kind in cell.kinds else None)
                for kind in kinds
            ),
        ]
        for group, cell in item.cells.items()
    ]
    counted = [f"{kind} ({_counted(count, 'question')})" for kind, count in kinds.items()]
    lines.append(table(["by kind of question", *counted], rows))

    if not item.unmeasured:
        rows = [
            [
                group,
                *(
                    interval(found) if (found := cell.scorecard[measure]) else "not measured"
                    for measure in Measure
                ),
            ]
            for group, cell in item.cells.items()
        ]
        arrows = [
            f"{measure.value} {'↑' if measure.higher_is_better else '↓'}" for measure in Measure
        ]
        lines.append(table(["changes and removals", *arrows], rows))
    return lines


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(_one_line(cell).replace("|", "/") for cell in line) + " |"
        for line in lines
    )


def _one_line(text: str) -> str:
    return " ".join(text.splitlines())


def number(value: float | None, digits: int = 3, *, signed: bool = False) -> str:
    """Return a rounded number, a share (three digits) without the zero before the point; a dash if
    unknown (NaN or None).
    """
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
