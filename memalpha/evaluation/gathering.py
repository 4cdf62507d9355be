"""The results of an evaluation, put in order: by set and reader, by group of systems, by member of the group, by instance.

What always holds: the order of sets, readers and systems is that of the configuration; a member (a system with one of its sampling
seeds) that the configuration asks for and that has no result yet is there, empty, so that nothing is taken for finished that is
not; systems are compared on ``common`` instances alone.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.evaluation.folder import is_resolved
from memalpha.evaluation.results import SystemResult, read_results
from memalpha.evaluation.specs import asked_for, read_system
from memalpha.evaluation.statistics import Seed
from memalpha.evaluation.systems.registry import draws, system_options
from memalpha.runs import RunFolder
from memalpha.types import Instance

Scored = dict[Seed, dict[str, SystemResult]]
"""The results of one group on one set with one reader: by member, then by instance."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """One set with one reader.

    Attributes:
        set: The set's part of the configuration.
        reader: Name of the reader.
        groups: Results by group.
        size: How many instances the set has, as far as is known.
    """

    set: Mapping[str, Any]
    reader: str
    groups: Mapping[str, Scored]
    size: int

    def common(self) -> list[str]:
        """Return the instances for which every member of every group has a score; groups without any do not count."""
        present = [names for members in self.groups.values() if (names := _scored_in_all(members))]
        return sorted(set.intersection(*present)) if present else []

    def complete(self) -> dict[str, Scored]:
        """Return the results on the common instances, of the groups that have them."""
        names = self.common()
        return {
            group: {member: {name: rows[name] for name in names} for member, rows in members.items()}
            for group, members in self.groups.items()
            if names and _scored_in_all(members)
        }

    def left_out(self) -> dict[str, str]:
        """Return, for each group that lacks instances, how many and the first reason."""
        lacking = {group: self.size - len(_scored_in_all(members)) for group, members in self.groups.items()}
        return {group: f"{n} of {self.size}: {_reason(self.groups[group])}" for group, n in lacking.items() if n}

    def instances(self) -> list[Instance]:
        """Read the set's instances, as the evaluation did; InputError if they are not where they were."""
        loaded = load_data(self.set["data"], self.set.get("options"))
        return asked_for(loaded, self.set.get("skip", 0), self.set.get("instances", 0))


def accuracies(members: Scored) -> dict[Seed, dict[str, float]]:
    """Return the accuracy by member, then by instance."""
    return {member: {name: row.accuracy for name, row in rows.items()} for member, rows in members.items()}


def on_kinds(members: Scored, kinds: Collection[str]) -> tuple[dict[Seed, dict[str, float]], dict[str, float]]:
    """Return the mean score on the questions of some kinds by member and instance, and how many of them each instance has.

    Instances without any are in neither. As weights of ``estimate`` the numbers give the mean over all these questions.
    """
    asked = {
        member: {name: scores for name, row in rows.items() if (scores := [q.score for q in row.questions if q.kind in kinds])}
        for member, rows in members.items()
    }
    first = next(iter(asked.values()))
    means = {member: {name: sum(scores) / len(scores) for name, scores in rows.items()} for member, rows in asked.items()}
    return means, {name: float(len(scores)) for name, scores in first.items()}


def gather(folder: str | Path) -> list[Gathered]:
    """Return what an evaluation's folder holds, one item for each set and reader that was asked for, evaluated yet or not.

    Raises:
        InputError: If a file is missing or damaged, or results and configuration do not fit together.
    """
    config = read_config(folder)
    found: dict[tuple[str, str], list[SystemResult]] = {}
    for result in read_results(folder):
        if not any(row["name"] == result.system for row in config["systems"]):
            names = ", ".join(row["name"] for row in config["systems"])
            raise InputError(f"results of system {result.system!r}", expected=f"one of the configuration's: {names}")
        found.setdefault((result.set, result.reader), []).append(result)
    sizes = _sizes(Path(folder) / "inputs.json")
    items = []
    for row in config["sets"]:
        for reader in (reader["name"] for reader in config["readers"]):
            results = found.get((row["name"], reader), [])
            size = max(sizes.get(row["name"], 0), len({result.instance for result in results}))
            asked = reader in (row.get("readers") or (reader,))
            if (results or asked) and (groups := _groups(config, row["name"], reader, results)):
                items.append(Gathered(row, reader, groups, size))
    return items


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read ``config.yaml`` of an evaluation's folder; InputError if it is none."""
    path = Path(folder) / "config.yaml"
    config = RunFolder(folder).config if path.is_file() else {}
    if not is_resolved(config):
        raise InputError(f"{path} is missing or not an evaluation's", expected="the folder that memalpha evaluate wrote")
    return config


def _groups(config: Mapping[str, Any], set_name: str, reader: str, results: Sequence[SystemResult]) -> dict[str, Scored]:
    """By group and member. A member's name is its place in the group, with the sampling seed where the evaluation has several."""
    several = len(config.get("seeds", ())) > 1
    groups: dict[str, Scored] = {}
    for row in config["systems"]:
        place = [other["name"] for other in config["systems"] if other["group"] == row["group"]].index(row["name"])
        own = [result for result in results if result.system == row["name"]]
        asked = set_name in (row.get("sets") or (set_name,)) and reader in (row.get("readers") or (reader,))
        if not own and not asked:
            continue
        members = groups.setdefault(row["group"], {})
        for seed in sorted({result.seed for result in own} | _seeds(config, row)):
            name = f"{place}/{seed}" if several else str(place)
            members[name] = {result.instance: result for result in own if result.seed == seed}
    return groups


def _seeds(config: Mapping[str, Any], row: Mapping[str, Any]) -> set[int]:
    """The sampling seeds that a system runs with, as ``memalpha.evaluation.jobs`` has them."""
    seeds, spec = config.get("seeds") or [0], read_system(row)
    each = draws(spec.kind, system_options(spec.kind, spec.options), config.get("temperature", 0.0))
    return set(seeds if each else seeds[:1])


def _scored_in_all(members: Scored) -> set[str]:
    """Instances for which every member has a score."""
    return set.intersection(*({name for name, row in rows.items() if _scored(row)} for rows in members.values()))


def _scored(row: SystemResult) -> bool:
    return row.failed is None and not math.isnan(row.accuracy)


def _reason(members: Scored) -> str:
    """Why the first instance without a score has none."""
    for row in (row for rows in members.values() for _, row in sorted(rows.items()) if not _scored(row)):
        if row.failed is not None:
            return row.failed
        return next(
            (question.error for question in row.questions if question.error), "no score" if row.questions else "no questions"
        )
    return "not evaluated yet"


def _sizes(path: Path) -> dict[str, int]:
    """Instances of each set, as the evaluation noted them; empty where it did not."""
    if not path.is_file():
        return {}
    noted = RunFolder(path.parent).read_json(path.name).get("sets", {})
    return {name: int(row["instances"]) for name, row in noted.items()}


__all__ = ["Gathered", "Scored", "accuracies", "gather", "on_kinds", "read_config"]
