"""What came out of an evaluation, as numbers: accuracy, kinds, costs, differences, scorecard and means over sets, with intervals.

Systems of one *group* differ in their training seed alone and are one row: their mean, with each of them shown. Groups are paired
by the order in which the configuration lists their members.

What always holds: within one set and reader, all groups are compared on the same instances, those that every member of every group
has a score for; what is left out is counted by group, with the first reason. A group without any result there is left out as a
whole, and said to be. Accuracy is the mean over instances of the mean over their questions; that of a kind is the mean over its
questions, whole instances being drawn for its interval. The mean over sets is simple, over the sets that count in it, and only for
groups that are on each of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from memalpha.errors import InputError
from memalpha.evaluation.gathering import Gathered, Scored, accuracies, gather, on_kinds, read_config
from memalpha.evaluation.scorecard import Measure, scorecard
from memalpha.evaluation.statistics import DEFAULT, Bootstrap, Estimate, Seed, difference, estimate, mean_over_sets
from memalpha.types import Instance

Members = dict[Seed, dict[str, float]]
"""Accuracy by member of a group, then by instance."""

Differences = Mapping[str, Mapping[str, Estimate]]
"""``[first][second]`` is second - first."""

COSTS = (
    "memory_tokens", "input_tokens", "reader_tokens", "write_calls", "cut_off", "cut", "seconds_write", "seconds_read",
)  # fmt: skip
"""Means over instances, each a field of ``SystemResult``."""

OPERATIONS = ("insert", "update", "delete", "failed", "duplicate")
"""Means over instances, each a field of ``OperationCounts``."""


@dataclass(frozen=True, slots=True)
class KindScore:
    """Accuracy on one kind of question, and how many questions that is in one seed."""

    accuracy: Estimate
    questions: int


@dataclass(frozen=True, slots=True)
class Cell:
    """One group on one set with one reader.

    Attributes:
        members: System and sampling seed of each member, by the name that ``Estimate.per_seed`` has.
        accuracy: Mean over instances.
        kinds: By kind of question.
        costs: Means over members and instances, by the names of ``COSTS``.
        operations: Means over members and instances, by the names of ``OPERATIONS``.
        scorecard: By measure; None where it is not measured.
    """

    members: Mapping[Seed, str]
    accuracy: Estimate
    kinds: Mapping[str, KindScore]
    costs: Mapping[str, float]
    operations: Mapping[str, float]
    scorecard: Mapping[str, Estimate | None]


@dataclass(frozen=True, slots=True)
class SetSummary:
    """One set with one reader.

    Attributes:
        set: Name of the set.
        reader: Name of the reader.
        instances: How many every group has a score for; all numbers are over these.
        size: How many the set has, as far as is known.
        left_out: Of each group that lacks some, how many and the first reason.
        cells: By group, in the order of the configuration.
        differences: ``[first][second]`` is second - first, paired, for each pair of groups in that order.
        in_mean: Whether it counts in the mean over sets.
        unmeasured: Why the scorecard is missing although the data should be there; empty if it is not.
    """

    set: str
    reader: str
    instances: int
    size: int
    left_out: Mapping[str, str]
    cells: Mapping[str, Cell]
    differences: Differences
    in_mean: bool = True
    unmeasured: str = ""


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole evaluation.

    Attributes:
        sets: One for each set and reader.
        over_sets: Simple mean over the sets that count in it, by reader and group; None for a group that lacks one.
        differences: By reader, ``[first][second]`` is second - first, paired, in the mean over sets; of groups that lack none.
        bootstrap: How intervals were made.
        kinds_of: Kind of system by group.
    """

    sets: tuple[SetSummary, ...]
    over_sets: Mapping[str, Mapping[str, Estimate | None]]
    differences: Mapping[str, Differences]
    bootstrap: Bootstrap
    kinds_of: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-ready data; what is not known is NaN, which a run folder writes as null."""
        return asdict(self)


def summarise_evaluation(
    folder: str | Path, options: Bootstrap = DEFAULT, sets: Mapping[str, Sequence[Instance]] | None = None
) -> Summary:
    """Read an evaluation's folder and sum it up.

    Args:
        folder: With ``results.jsonl`` and ``config.yaml``; the evaluation may be unfinished.
        options: How intervals are made.
        sets: The instances of each set, for the scorecard; None reads what the configuration names.

    Raises:
        InputError: If a file is missing or damaged, or results and configuration do not fit together.
    """
    summaries = []
    for item in gather(folder):
        kept, (instances, why) = item.complete(), _instances(item, sets)
        cells = {group: _cell(members, instances, options) for group, members in kept.items()}
        differences = _differences({group: accuracies(members) for group, members in kept.items()}, options)
        counted, common = bool(item.set.get("in_mean", True)), len(item.common())
        summaries.append(
            SetSummary(item.set["name"], item.reader, common, item.size, item.left_out(), cells, differences, counted, why)
        )
    return over_sets(summaries, {row["group"]: row["kind"] for row in read_config(folder)["systems"]}, options)


def over_sets(sets: Sequence[SetSummary], kinds_of: Mapping[str, str], options: Bootstrap = DEFAULT) -> Summary:
    """Put sets together, of one evaluation or of several, and take the means over them.

    Args:
        sets: Each set with each reader, in the order in which they are shown.
        kinds_of: Kind of system by group, in the order in which they are shown.
        options: How the intervals of the sets were made.

    Raises:
        InputError: If the members of a group stand in another order in one set than in another, of those in the mean.
    """
    means: dict[str, dict[str, Estimate | None]] = {}
    differences: dict[str, Differences] = {}
    for reader in dict.fromkeys(item.reader for item in sets):
        items = [item for item in sets if item.reader == reader]
        counted = [item for item in items if item.in_mean]
        asked = [group for group in kinds_of if any(group in item.cells or group in item.left_out for item in items)]
        everywhere = [group for group in asked if counted and all(group in item.cells for item in counted)]
        _check_members(counted, everywhere)
        accuracy = {group: [item.cells[group].accuracy for item in counted] for group in everywhere}
        means[reader] = {group: mean_over_sets(accuracy[group]) if group in accuracy else None for group in asked}
        differences[reader] = _differences_over(counted, everywhere)
    return Summary(tuple(sets), means, differences, options, kinds_of)


def difference_from(differences: Differences, reference: str, group: str) -> Estimate | None:
    """Return group - reference, paired, whichever way round it was estimated; None for the reference and for what is not there."""
    if (found := differences.get(reference, {}).get(group)) is not None:
        return found
    turned = differences.get(group, {}).get(reference)
    return None if turned is None else _negative(turned)


def _negative(estimate: Estimate) -> Estimate:
    by_seed = {seed: -value for seed, value in estimate.per_seed.items()}
    return Estimate(-estimate.mean, -estimate.high, -estimate.low, estimate.stderr, estimate.n, by_seed, estimate.level)


# ------------------------------------------------------------------------------------------------ one set
def _instances(item: Gathered, sets: Mapping[str, Sequence[Instance]] | None) -> tuple[dict[str, Instance], str]:
    """The instances of a set by id; empty, and why, if they are not there any more."""
    try:
        found = item.instances() if sets is None else sets[item.set["name"]]
    except InputError as error:
        return {}, str(error).splitlines()[0]
    return {instance.id: instance for instance in found}, ""


def _differences(scores: Mapping[str, Members], options: Bootstrap) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations(scores, 2):
        found.setdefault(first, {})[second] = difference(*_pairable(scores[first], scores[second]), options)
    return found


def _pairable(first: Members, second: Members) -> tuple[Members, Members]:
    """The two as they are where their members pair up; else the mean over members of each, as one."""
    if set(first) == set(second) or 1 in (len(first), len(second)):
        return first, second
    return _averaged(first), _averaged(second)


def _averaged(scores: Members) -> Members:
    rows = list(scores.values())
    return {"mean": {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}}


def _cell(members: Scored, instances: Mapping[str, Instance], options: Bootstrap) -> Cell:
    rows = [row for results in members.values() for row in results.values()]
    by_member = {member: list(results.values()) for member, results in members.items()}
    card = scorecard(by_member, instances, options) if instances else dict.fromkeys(Measure)
    return Cell(
        members={member: f"{results[0].system} seed {results[0].seed}" for member, results in by_member.items()},
        accuracy=estimate(accuracies(members), options),
        kinds=_kinds(members, options),
        costs={cost: sum(float(getattr(row, cost)) for row in rows) / len(rows) for cost in COSTS},
        operations={kind: sum(float(getattr(row.operations, kind)) for row in rows) / len(rows) for kind in OPERATIONS},
        scorecard={measure.value: card[measure] for measure in Measure},
    )


def _kinds(members: Scored, options: Bootstrap) -> dict[str, KindScore]:
    first = next(iter(members.values()))
    found = {}
    for kind in sorted({question.kind for row in first.values() for question in row.questions}):
        scores, asked = on_kinds(members, (kind,))
        found[kind] = KindScore(estimate(scores, options, weights=asked), int(sum(asked.values())))
    return found


# ------------------------------------------------------------------------------------------------ all sets
def _check_members(sets: Sequence[SetSummary], groups: Sequence[str]) -> None:
    """See that what is shown as one member of a group is the same in all sets."""
    for group in groups:
        known: dict[Seed, str] = {}
        for item in sets:
            for seed, member in item.cells[group].members.items():
                if known.setdefault(seed, member) != member:
                    raise InputError(
                        f"member {seed} of group {group!r} is {member!r} on {item.set!r} and {known[seed]!r} elsewhere",
                        expected="the members of a group in one order on all sets",
                        fix="evaluate all members of the group on that set",
                    )


def _differences_over(sets: Sequence[SetSummary], groups: Sequence[str]) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations(groups, 2):
        parts = [difference_from(item.differences, first, second) for item in sets]
        found.setdefault(first, {})[second] = mean_over_sets([part for part in parts if part is not None])
    return found


__all__ = [
    "COSTS", "Cell", "Differences", "KindScore", "OPERATIONS", "SetSummary", "Summary", "difference_from", "over_sets",
    "summarise_evaluation",
]  # fmt: skip
