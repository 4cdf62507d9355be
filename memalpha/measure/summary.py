"""Means, intervals and paired differences over the rows of an evaluation.

A *group* is one table row: systems that differ only in their training seed; a *member* is a system
with one sampling seed. In one set and reader all groups are compared on the instances that every
member of every group has a score for. Accuracy is the mean over instances of the question mean. The
mean over sets is over the sets with ``in_mean``, for groups present on all of them.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any

from memalpha.measure.options import make_system, read_system
from memalpha.measure.scorecard import pooled, scorecard
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

Members = dict[Seed, dict[str, InstanceRow]]  # rows of one group by member and instance
Differences = Mapping[str, Mapping[str, Estimate]]  # ``[first][second]`` is second - first

COSTS = (  # fields of a row
    "memory_tokens",
    "input_tokens",
    "reader_tokens",
    "write_calls",
    "cut_off",
    "cut",
    "seconds_write",
    "seconds_read",
)
OPERATIONS = ("insert", "update", "delete", "failed", "duplicate")  # of them in a row


@dataclass(frozen=True, slots=True)
class Cell:
    """One group on one set with one reader.

    ``means`` are over members and instances: costs, operations, parts of the reward where training
    asked, and shares of all calls by section and kind.
    """

    members: Mapping[Seed, str]  # system and sampling seed by the names in ``Estimate.per_seed``
    accuracy: Estimate
    kinds: Mapping[str, Estimate]  # by kind of question
    questions: Mapping[str, int]  # how many of each kind, in one seed
    means: Mapping[str, Number]
    scorecard: Mapping[str, Estimate | None]  # None: not measured


@dataclass(frozen=True, slots=True)
class SetSummary:
    """One set with one reader, over the ``instances`` that every group has a score for."""

    set: str
    reader: str
    instances: int
    size: int  # known instances of the set
    left_out: Mapping[str, str]  # number and first reason, by group
    cells: Mapping[str, Cell]  # in the configuration's order
    differences: Differences  # paired
    in_mean: bool


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole evaluation.

    ``over_sets`` is by reader and group (None if a set is missing); ``differences`` are paired.
    """

    sets: tuple[SetSummary, ...]
    over_sets: Mapping[str, Mapping[str, Estimate | None]]
    differences: Mapping[str, Differences]
    kinds_of: Mapping[str, str]

    @property
    def reference(self) -> str:
        """The group that others are compared with.

        The agent with most members (the last of equals), else the first group.
        """
        members = Counter[str]()
        for item in self.sets:
            members |= Counter({group: len(cell.members) for group, cell in item.cells.items()})
        agents = [group for group, kind in self.kinds_of.items() if kind == "agent"]
        return sorted(agents, key=members.__getitem__)[-1] if agents else next(iter(self.kinds_of))

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data, with the interval settings; unknown values are NaN."""
        bootstrap = {"resamples": RESAMPLES, "level": LEVEL, "seed": SEED}
        return {**asdict(self), "bootstrap": bootstrap, "reference": self.reference}


def summarise_evaluation(folder: str | Path) -> Summary:
    """Summarise a folder; InputError if files are missing or damaged."""
    config = RunFolder(folder).config
    inputs = RunFolder(folder).read_optional("inputs.json").get("sets", {})
    rows = read_rows(folder)
    sets = []
    for spec in config["sets"]:
        size = inputs.get(spec["name"], {}).get("instances", 0)
        for reader in config["readers"]:
            own = [row for row in rows if (row.set, row.reader) == (spec["name"], reader["name"])]
            is_due = reader["name"] in (spec.get("readers") or [reader["name"]])
            groups = _groups(config, spec["name"], reader["name"], own) if own or is_due else {}
            if groups:
                in_mean = bool(spec.get("in_mean", True))
                sets.append(compare_groups(groups, size, spec["name"], reader["name"], in_mean))
    return _over_sets(sets, {spec["group"]: spec["kind"] for spec in config["systems"]})


def _groups(
    config: Mapping[str, Any], set_name: str, reader: str, rows: Sequence[InstanceRow]
) -> dict[str, Members]:
    seeds = config.get("seeds") or [0]
    places = Counter[str]()  # systems of each group so far
    groups: dict[str, Members] = {}
    for row in config["systems"]:
        spec = read_system(row)
        place = places[spec.group]
        places[spec.group] += 1
        own = [row for row in rows if row.system == spec.name]
        is_due = set_name in (spec.sets or [set_name]) and reader in (spec.readers or [reader])
        if not own and not is_due:
            continue
        system = make_system(spec.kind, spec.options)
        due = seeds if system.draws(config.get("temperature", 0.0)) else seeds[:1]
        members = groups.setdefault(spec.group, {})
        for seed in sorted({*due, *(row.seed for row in own)}):
            name = f"{place}/{seed}" if len(seeds) > 1 else str(place)
            members[name] = {row.instance: row for row in own if row.seed == seed}
    return groups


def compare_groups(
    groups: Mapping[str, Members],
    size: int = 0,
    name: str = "",
    reader: str = "",
    in_mean: bool = True,
) -> SetSummary:
    """Compare groups on the instances that every group has a score for.

    The set has at least ``size`` instances.
    """
    for members in groups.values():
        size = max(size, len(set().union(*members.values())))
    scored = {group: _scored_by_all(members) for group, members in groups.items()}
    present = [names for names in scored.values() if names]
    common = sorted(set.intersection(*present)) if present else []
    left_out: dict[str, str] = {}
    accuracies: dict[str, dict[Seed, dict[str, float]]] = {}
    cells: dict[str, Cell] = {}
    for group, members in groups.items():
        n = size - len(scored[group])
        if n:
            left_out[group] = f"{n} of {size}: {_reason(members)}"
        if common and scored[group]:
            rows: dict[Seed, list[InstanceRow]] = {}
            accuracies[group] = {}
            for member, own in members.items():
                rows[member] = [own[name] for name in common]
                accuracies[group][member] = {name: own[name].accuracy for name in common}
            cells[group] = _cell(rows, estimate(accuracies[group]))
    differences: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations(cells, 2):
        gap = difference(accuracies[first], accuracies[second])
        differences.setdefault(first, {})[second] = gap
    return SetSummary(name, reader, len(common), size, left_out, cells, differences, in_mean)


def _scored_by_all(members: Members) -> set[str]:
    common = set().union(*members.values())
    for rows in members.values():
        common &= {name for name, row in rows.items() if row.scored}
    return common


def _reason(members: Members) -> str:
    for rows in members.values():
        for _, row in sorted(rows.items()):
            if not row.scored:
                errors = [question.error for question in row.questions if question.error]
                nothing = "no score" if row.questions else "no questions"
                return row.failed or next(iter(errors), nothing)
    return "not evaluated yet"


def _cell(members: Mapping[Seed, Sequence[InstanceRow]], accuracy: Estimate) -> Cell:
    rows = list(chain.from_iterable(members.values()))
    means: dict[str, float] = {}
    for name in COSTS:
        means[name] = _mean([getattr(row, name) for row in rows])
    for name in OPERATIONS:
        means[name] = _mean([row.count(name) for row in rows])
    for name in dict.fromkeys(chain.from_iterable(row.rewards for row in rows)):
        means[f"reward {name}"] = _mean([row.rewards.get(name, math.nan) for row in rows])
    calls = sum(row.count("calls") for row in rows)
    for name in sorted(set().union(*(row.operations for row in rows))) if calls else ():
        if "/" in name:
            applied = sum(row.operations.get(name, 0) for row in rows)
            means[f"{name}, share of calls"] = applied / calls
    scores: dict[str, dict[Seed, dict[str, list[float]]]] = {}
    for member, own in members.items():
        for row in own:
            for question in row.questions:
                of_kind = scores.setdefault(question.kind, {}).setdefault(member, {})
                of_kind.setdefault(row.instance, []).append(question.score)
    first = next(iter(members))
    names = {member: f"{own[0].system} seed {own[0].seed}" for member, own in members.items()}
    kinds = {kind: pooled(scores[kind]) for kind in sorted(scores)}
    sizes = {kind: sum(map(len, scores[kind][first].values())) for kind in kinds}
    return Cell(names, accuracy, kinds, sizes, means, scorecard(members))


def _mean(values: Sequence[float]) -> float:
    numbers = [float(value) for value in values if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def _over_sets(sets: Sequence[SetSummary], kinds_of: Mapping[str, str]) -> Summary:
    means: dict[str, dict[str, Estimate | None]] = {}
    differences: dict[str, dict[str, dict[str, Estimate]]] = {}
    for reader in dict.fromkeys(item.reader for item in sets):
        items = [item for item in sets if item.reader == reader]
        counted = [item for item in items if item.in_mean]
        means[reader] = {}
        for group in kinds_of:
            if any(group in item.cells or group in item.left_out for item in items):
                parts = [item.cells[group].accuracy for item in counted if group in item.cells]
                whole = parts and len(parts) == len(counted)
                means[reader][group] = mean_over_sets(parts) if whole else None
        differences[reader] = {}
        everywhere = [group for group, mean in means[reader].items() if mean is not None]
        for first, second in combinations(everywhere, 2):
            parts = [item.differences[first][second] for item in counted]
            differences[reader].setdefault(first, {})[second] = mean_over_sets(parts)
    return Summary(tuple(sets), means, differences, kinds_of)


def difference_from(differences: Differences, reference: str, group: str) -> Estimate | None:
    """Return the paired group - reference, from either direction; None if the pair is missing."""
    if group in differences.get(reference, {}):
        return differences[reference][group]
    turned = differences.get(group, {}).get(reference)
    return None if turned is None else -turned
