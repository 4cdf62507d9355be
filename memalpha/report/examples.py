"""Picks the few rollouts a report points to first, by rule and not by hand, and says by which.

In order of what there is: held-out instances before against after training (largest gain, median, largest loss); one evaluation
alone (highest, median and lowest accuracy); the groups of the last training step whose rollouts differ most and least. Losses are
shown like gains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from memalpha.report.catalogue import Facts
from memalpha.report.view import number


class Pick(NamedTuple):
    """One page to look at first, and why it was picked."""

    why: str
    instance: str
    page: str


def find_picks(facts: Sequence[Facts], pairs: Mapping[tuple[int, str], str]) -> list[Pick]:
    """Return up to three pages of a run to look at first; none if it has no rollouts that could be scored.

    Args:
        facts: Rollouts that have a page.
        pairs: Page of each (run, instance) evaluated before and after training.
    """
    held_out = [fact for fact in facts if fact.source.step is None and fact.source.run == 0 and fact.accuracy is not None]
    after = {fact.instance: fact for fact in held_out if fact.source.where == "after"}
    before = {fact.instance: fact for fact in held_out if fact.source.where == "before"}
    gains = {
        name: (fact.accuracy or 0.0) - (before[name].accuracy or 0.0)
        for name, fact in after.items()
        if name in before and (0, name) in pairs
    }
    if gains:
        names = ("largest gain", "median gain", "largest loss" if min(gains.values()) < 0 else "smallest gain")
        return [
            Pick(f"{why} in accuracy: {number(gains[name], signed=True)}", name, f"pairs/{pairs[0, name]}")
            for name, why in picks(gains, names).items()
        ]
    found = after or before or {fact.instance: fact for fact in held_out}
    if found:
        values = {name: fact.accuracy or 0.0 for name, fact in found.items()}
        return [
            Pick(f"{why} accuracy: {number(values[name])}", name, f"rollouts/{found[name].page}")
            for name, why in picks(values, ("highest", "median", "lowest")).items()
        ]
    return _training(facts)


def picks(values: Mapping[str, float], names: tuple[str, str, str]) -> dict[str, str]:
    """Return highest, median and lowest by value (by name among equals) with what they are called; each once."""
    ranked = sorted(values, key=lambda name: (-values[name], name))
    picked: dict[str, str] = {}
    for index, name in ((0, names[0]), (len(ranked) - 1, names[2]), ((len(ranked) - 1) // 2, names[1])):
        picked.setdefault(ranked[index], name)
    return {name: picked[name] for name in ranked if name in picked}


def _training(facts: Sequence[Facts]) -> list[Pick]:
    """Groups of the last training step with a known reward, by the spread of their rewards."""
    scored = [fact for fact in facts if fact.source.step is not None and fact.reward is not None]
    last = max((fact.source.step or 0 for fact in scored), default=0)
    groups: dict[str, list[Facts]] = {}
    for fact in scored:
        if fact.source.step == last:
            groups.setdefault(fact.group, []).append(fact)
    spreads = {}
    for group, members in groups.items():
        rewards = [fact.reward or 0.0 for fact in members]
        spreads[group] = max(rewards) - min(rewards)
    if not spreads:
        return []
    why = f"spread of reward in a group of step {last}"
    return [
        Pick(f"{name} {why}: {number(spreads[group])}", groups[group][0].instance, f"groups/{group}")
        for group, name in picks(spreads, ("largest", "median", "smallest")).items()
    ]
