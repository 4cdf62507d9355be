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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from memalpha.errors import InputError
from memalpha.evaluation.gathering import Gathered, Scored, accuracies, gather, on_kinds, read_config
from memalpha.evaluation.scorecard import Measure, scorecard
from memalpha.evaluation.statistics import DEFAULT, Bootstrap, Estimate, Seed, difference, estimate, mean_over_sets, paired_scores
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
    gathered = gather(folder)
    summaries = []
    scores: dict[str, dict[str, dict[str, Members]]] = {}  # by reader, set, group
    for item in gathered:
        name = item.set["name"]
        kept = item.complete()
        instances, why = _instances(item, sets)
        cells = {group: _cell(members, instances, options) for group, members in kept.items()}
        by_group = {group: accuracies(members) for group, members in kept.items()}
        counted = bool(item.set.get("in_mean", True))
        scores.setdefault(item.reader, {}).update({name: by_group} if counted else {})
        differences = _differences(by_group, options)
        common, left_out = len(item.common()), item.left_out()
        summaries.append(SetSummary(name, item.reader, common, item.size, left_out, cells, differences, counted, why))
    kinds = {row["group"]: row["kind"] for row in read_config(folder)["systems"]}
    asked = {reader: [g for g in kinds if _asked(summaries, reader, g)] for reader in scores}
    over_sets = {reader: _over_sets(by_set, asked[reader], options) for reader, by_set in scores.items()}
    differences_over = {reader: _differences_over(by_set, asked[reader], options) for reader, by_set in scores.items()}
    return Summary(tuple(summaries), over_sets, differences_over, options, kinds)


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
def _asked(summaries: Sequence[SetSummary], reader: str, group: str) -> bool:
    """Whether a group was to be evaluated with a reader on any set."""
    return any(group in item.cells or group in item.left_out for item in summaries if item.reader == reader)


def _over_sets(sets: Mapping[str, Mapping[str, Members]], groups: Iterable[str], options: Bootstrap) -> dict[str, Estimate | None]:
    return {
        group: mean_over_sets({name: scores[group] for name, scores in sets.items()}, options) if _everywhere(sets, group) else None
        for group in groups
    }


def _differences_over(
    sets: Mapping[str, Mapping[str, Members]], groups: Iterable[str], options: Bootstrap
) -> dict[str, dict[str, Estimate]]:
    found: dict[str, dict[str, Estimate]] = {}
    for first, second in combinations([group for group in groups if _everywhere(sets, group)], 2):
        paired = {name: paired_scores(*_pairable(scores[first], scores[second])) for name, scores in sets.items()}
        found.setdefault(first, {})[second] = mean_over_sets(paired, options)
    return found


def _everywhere(sets: Mapping[str, Mapping[str, Members]], group: str) -> bool:
    return bool(sets) and all(group in scores for scores in sets.values())


__all__ = [
    "COSTS", "Cell", "Differences", "KindScore", "OPERATIONS", "SetSummary", "Summary", "summarise_evaluation",
]  # fmt: skip
