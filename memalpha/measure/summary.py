"""Means, intervals and paired differences over an evaluation, and its scorecard of changed facts.

A *group* is one table row: systems that differ only in their training seed; a *member* is a system
with one sampling seed. In one set and reader all groups are compared on the instances that every
member of every group has a score for. Accuracy is the mean over instances of the question mean. The
mean over sets is over the sets with ``in_mean``, for groups present on all of them.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from itertools import chain, combinations
from operator import attrgetter
from pathlib import Path

from memalpha.data.synthetic import ABSENCE, CASCADE
from memalpha.measure.options import make_system, read_system
from memalpha.qa.metrics import contains, gives_stale, words
from memalpha.record.folder import RunFolder
from memalpha.record.rows import (
    InstanceRow,
    QuestionRow,
    call_shares,
    known_mean,
    read_rows,
    reward_means,
)
from memalpha.record.shapes import Number
from memalpha.record.statistics import (
    LEVEL,
    RESAMPLES,
    SEED,
    Estimate,
    Seed,
    difference,
    estimate,
    mean_over_sets,
)
from memalpha.types import Answer, Fact, FactAction, Instance, JsonMapping, JsonObject

# ------------------------------------------------------------------------------------------------
# scorecard: what a system answers and keeps after facts changed
# Whoever makes a row observes (``observe``); tables take the shares (docs/guides/evaluate.md). A
# measure without data is missing, never 0; unanswered questions are not counted. A memory *holds* a
# value if one line or sentence names subject and value (``Marta left Rome`` holds Rome). A system
# without entries but with tokens keeps the input as memory. An empty memory has no contradictions
# or residue, so read these with ``current``. Cascade, absence: MEME (arXiv 2605.12477).

_SENTENCE = re.compile(r"\n+|(?<=[.!?;])\s+")


class Measure(StrEnum):
    """The measures of the scorecard."""

    STALE_ANSWERS = "stale answers"
    STALE_PASSAGES = "stale passages"
    CURRENT = "current"
    CONTRADICTIONS = "contradictions"
    RESIDUE_MEMORY = "residue in memory"
    RESIDUE_ANSWERS = "residue in answers"
    CASCADE = "cascade accuracy"
    ABSENCE = "absence accuracy"

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return self in (Measure.CURRENT, Measure.CASCADE, Measure.ABSENCE)


def observe(instance: Instance, row: InstanceRow) -> dict[str, tuple[float, ...]]:
    """Return 1 or 0 (or a score) for each observation on the instance of a row, by measure."""
    observed: dict[str, list[float]] = {measure: [] for measure in Measure}
    retractions = _retractions(instance.facts)
    for question, result in zip(instance.questions, row.questions, strict=True):
        if result.answer is None:
            continue
        answer = _answer(result)
        if question.stale:
            passages = Answer("", result.passages)
            observed[Measure.STALE_ANSWERS].append(gives_stale(question, answer))
            observed[Measure.STALE_PASSAGES].append(gives_stale(question, passages))
        values = [
            value for value in question.stale if (question.subject or "", value) in retractions
        ]
        if values:
            about_them = replace(question, stale=tuple(values))
            observed[Measure.RESIDUE_ANSWERS].append(gives_stale(about_them, answer))
        for kind, measure in ((CASCADE, Measure.CASCADE), (ABSENCE, Measure.ABSENCE)):
            if question.kind == kind and not math.isnan(result.score):
                observed[measure].append(result.score)
    if instance.facts:
        keeps_input = not row.entries and row.memory_tokens > 0
        texts = [chunk.text for chunk in instance.chunks] if keeps_input else row.entries
        holds = holder(texts)
        for subject, value, before in _changes(instance.facts):
            now = holds(subject, value)
            observed[Measure.CURRENT].append(now)
            observed[Measure.CONTRADICTIONS].append(now and any(holds(subject, b) for b in before))
        observed[Measure.RESIDUE_MEMORY] += [
            holds(subject, value) for subject, value in retractions
        ]
    return {measure: tuple(map(float, hits)) for measure, hits in observed.items() if hits}


def scorecard(members: Mapping[Seed, Sequence[InstanceRow]]) -> dict[str, Estimate | None]:
    """Return every measure of one system on one set with one reader; None: not measured."""
    shares = pooled_mean(members, attrgetter("observed"))
    return {measure.value: shares.get(measure) for measure in Measure}


def pooled_mean(
    members: Mapping[Seed, Sequence[InstanceRow]],
    values_of: Callable[[InstanceRow], Mapping[str, Sequence[float]]],
) -> dict[str, Estimate]:
    """Return, by name, the mean over all values that ``values_of`` finds in the rows of members.

    Instances are drawn; one of more values weighs more.
    """
    means: dict[str, dict[Seed, dict[str, float]]] = {}
    sizes: dict[str, dict[str, list[int]]] = {}
    for member, rows in members.items():
        for row in rows:
            for name, values in values_of(row).items():
                by_member = means.setdefault(name, {})
                by_member.setdefault(member, {})[row.instance] = sum(values) / len(values)
                sizes.setdefault(name, {}).setdefault(row.instance, []).append(len(values))
    estimates = {}
    for name, by_instance in sizes.items():
        weights = {instance: sum(own) / len(own) for instance, own in by_instance.items()}
        estimates[name] = estimate(means[name], weights=weights)
    return estimates


def _answer(result: QuestionRow) -> Answer:
    is_recall = result.answer == "\n".join(result.passages)
    return Answer(result.answer or "", result.passages if is_recall else None)


def holder(texts: Sequence[str]) -> Callable[[str, str], bool]:
    """Return whether a subject and a value stand in one sentence, of sentences indexed by word."""
    sentences = [part for text in texts for part in _SENTENCE.split(text) if part]
    places: dict[str, set[int]] = {}
    for index, sentence in enumerate(sentences):
        for word in words(sentence):
            places.setdefault(word, set()).add(index)

    def holds(subject: str, value: str) -> bool:
        sets = [places.get(word, set()) for word in (*words(subject), *words(value))]
        candidates = set.intersection(*sets) if sets else range(len(sentences))
        texts = (sentences[index] for index in candidates)
        return any(contains(text, subject) and contains(text, value) for text in texts)

    return holds


def _changes(facts: Sequence[Fact]) -> list[tuple[str, str, list[str]]]:
    """Subject, value and earlier values of what changed and still holds."""
    last = {(fact.subject, fact.attribute): fact for fact in facts}
    before: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        if fact.action is FactAction.CHANGE and fact.previous is not None:
            before.setdefault((fact.subject, fact.attribute), []).append(fact.previous)
    changes = []
    for key, values in before.items():
        now = last[key]
        if now.action is not FactAction.RETRACT:
            changes.append((now.subject, now.value, [v for v in values if v != now.value]))
    return changes


def _retractions(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    last = {(fact.subject, fact.attribute, fact.value): fact.action for fact in facts}
    values = [key for key, action in last.items() if action is FactAction.RETRACT]
    return [(subject, value) for subject, _, value in values]


# ------------------------------------------------------------------------------------------------
# summary

Members = dict[Seed, dict[str, InstanceRow]]  # rows of one group by member and instance
Differences = Mapping[str, Mapping[str, Estimate]]  # ``[first][second]`` is second - first

_COSTS = (  # fields of a row
    "chunks",
    "memory_tokens",
    "input_tokens",
    "reader_tokens",
    "write_calls",
    "cut_off",
    "cut",
    "seconds_write",
    "seconds_read",
)
_OPERATIONS = ("calls", "insert", "update", "delete", "failed", "duplicate")  # of a row


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

    def to_json(self) -> JsonObject:
        """Return it as JSON-ready data, with the interval settings; unknown values are NaN."""
        bootstrap = {"resamples": RESAMPLES, "level": LEVEL, "seed": SEED}
        return {**asdict(self), "bootstrap": bootstrap, "reference": self.reference}


def summarise_evaluation(folder: str | Path) -> Summary:
    """Summarise the results in the folder of an evaluation.

    Args:
        folder: The folder that ``evaluate`` wrote.

    Returns:
        Means with 95 % intervals by set, system and reader.

    Raises:
        InputError: Files are missing or damaged.
    """
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
    config: JsonMapping, set_name: str, reader: str, rows: Sequence[InstanceRow]
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
    for name in _COSTS:
        means[name] = known_mean([getattr(row, name) for row in rows])
    for name in _OPERATIONS:
        means[name] = known_mean([row.count(name) for row in rows])
    for name, mean in reward_means(rows).items():
        means[f"reward {name}"] = mean
    for name, share in call_shares(rows).items():
        means[f"{name}, share of calls"] = share
    sizes = Counter[str]()
    for row in next(iter(members.values())):
        sizes.update({kind: len(scores) for kind, scores in row.scores_by_kind().items()})
    kinds = pooled_mean(members, InstanceRow.scores_by_kind)
    names = {member: f"{own[0].system} seed {own[0].seed}" for member, own in members.items()}
    return Cell(
        names,
        accuracy,
        {kind: kinds[kind] for kind in sorted(kinds)},
        {kind: sizes[kind] for kind in sorted(kinds)},
        means,
        scorecard(members),
    )


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
