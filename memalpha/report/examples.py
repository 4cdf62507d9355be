"""Picks the few rollouts a report shows, by rule and not by hand, and says by which.

In order of what there is: held-out instances before against after training (largest gain, median, largest loss); one evaluation
alone (highest, median and lowest accuracy); the best against the worst rollout of a group of the last training step. Losses are
shown like gains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from memalpha.report.view import known, number, rollout_reward
from memalpha.runs import RunFolder, trajectory_step

_EVALUATIONS = ("after", "before", "rollouts")


class Side(NamedTuple):
    """One rollout and what to call it."""

    label: str
    rollout: Mapping[str, Any]


class Example(NamedTuple):
    """Rollouts of one instance side by side, and why they were picked."""

    title: str
    sides: tuple[Side, ...]


def find_examples(run: RunFolder) -> list[Example]:
    """Return up to three examples of a run; none if it has no rollouts that could be scored."""
    before, after = _accuracies(run, "before"), _accuracies(run, "after")
    gains = {instance: after[instance] - before[instance] for instance in before if instance in after}
    if gains:
        names = ("largest gain", "median gain", "largest loss" if min(gains.values()) < 0 else "smallest gain")
        picked = {
            instance: f"{name} in accuracy: {number(gains[instance], signed=True)}"
            for instance, name in _picks(gains, names).items()
        }
        return _examples(run, picked, ("before", "after"))
    for name in _EVALUATIONS:
        if accuracies := _accuracies(run, name):
            picks = _picks(accuracies, ("highest", "median", "lowest"))
            picked = {instance: f"{which} accuracy: {number(accuracies[instance])}" for instance, which in picks.items()}
            return _examples(run, picked, (name,))
    return _training(run)


def _accuracies(run: RunFolder, name: str) -> dict[str, float]:
    """Accuracy of each held-out instance that could be scored; one line at a time, whatever the file's size."""
    pairs = ((row["result"]["instance"], known(row["result"]["accuracy"])) for row in run.read_lines(f"held_out/{name}.jsonl"))
    return {instance: accuracy for instance, accuracy in pairs if accuracy is not None}


def _picks(values: Mapping[str, float], names: tuple[str, str, str]) -> dict[str, str]:
    """Return highest, median and lowest by value (by id among equals) with their names; each instance once."""
    ranked = sorted(values, key=lambda instance: (-values[instance], instance))
    picked: dict[str, str] = {}
    for index, name in ((0, names[0]), (len(ranked) - 1, names[2]), ((len(ranked) - 1) // 2, names[1])):
        picked.setdefault(ranked[index], name)
    return {instance: picked[instance] for instance in ranked if instance in picked}


def _examples(run: RunFolder, picked: Mapping[str, str], names: tuple[str, ...]) -> list[Example]:
    found: dict[str, list[Side]] = {instance: [] for instance in picked}
    for name in names:
        for row in run.read_lines(f"held_out/{name}.jsonl"):
            if row["result"]["instance"] in found:
                found[row["result"]["instance"]].append(Side("held out" if name == "rollouts" else name, row["rollout"]))
    return [Example(f"{instance} ({why})", tuple(found[instance])) for instance, why in picked.items()]


def _training(run: RunFolder) -> list[Example]:
    for path in reversed(run.trajectory_files()):
        scored = [(reward, rollout) for rollout in _first_group(run, path.name) if (reward := rollout_reward(rollout)) is not None]
        if scored:
            scored.sort(key=lambda pair: -pair[0])
            ends = (("best", scored[0]), ("worst", scored[-1])) if len(scored) > 1 else (("only", scored[0]),)
            sides = tuple(Side(f"{name}, mean reward {number(reward)}", rollout) for name, (reward, rollout) in ends)
            return [Example(f"{scored[0][1]['instance']} (a group of training step {trajectory_step(path)})", sides)]
    return []


def _first_group(run: RunFolder, name: str) -> Iterator[Mapping[str, Any]]:
    first = None
    for rollout in run.read_lines(f"trajectories/{name}"):
        first = rollout["group"] if first is None else first
        if rollout["group"] == first:
            yield rollout
