"""The catalogue of a run's recorded rollouts: their files, and the facts that lists and filters need.

Reads one line at a time. Order: held-out evaluations (before, after, others by name), then training steps. Groups stay whole.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from memalpha.report.view import Tone, as_recorded, calls, known, number, recorded, rollout_accuracy, rollout_reward
from memalpha.runs import RunFolder, trajectory_step

_ORDER = {"before": 0, "after": 1}


class Source(NamedTuple):
    """One file of rollouts."""

    run: int  # index of the run
    folder: RunFolder
    name: str
    where: str  # label of its rollouts: "before", "after", "step 3"
    step: int | None  # None for held-out evaluations
    key: str  # prefix of its page names

    def rollouts(self) -> Iterator[Mapping[str, Any]]:
        """Iterate over its rollouts, one line at a time."""
        return recorded(self.folder, self.name, lambda row: row if self.step is not None else row["rollout"])


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one rollout for lists and filters."""

    source: Source
    page: str  # page name without folder
    instance: str  # instance id
    group: str  # page name of its group; empty for a held-out rollout
    reward: float | None  # mean weighted reward
    accuracy: float | None  # mean score of its questions
    calls: int  # includes text that is not a readable call
    failed: int
    inserts: int
    updates: int
    deletes: int
    questions: int
    wrong: int  # questions with a score below 0.5
    cut: int  # completions cut off at the maximum length
    masked: bool  # whether a score is missing
    entries: int  # entries of the final memory
    codes: Mapping[str, int]  # failed calls by code
    errors: tuple[str, ...]  # messages about missing scores


class Catalogue(NamedTuple):
    """The rollouts that get a page, and the number of all training rollouts."""

    facts: tuple[Facts, ...]
    sources: tuple[Source, ...]
    training: int


def sources_of(run: RunFolder, index: int = 0, prefix: str = "") -> list[Source]:
    """Return the rollout files of a run, in order; ``index`` and ``prefix`` distinguish several runs."""
    found = []
    for path in sorted((run.path / "held_out").glob("*.jsonl"), key=lambda path: (_ORDER.get(path.stem, 2), path.stem)):
        key = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem)
        where = "held out" if path.stem == "rollouts" else path.stem
        found.append(Source(index, run, f"held_out/{path.name}", where, None, f"{prefix}{key}"))
    for path in run.trajectory_files():
        step, rank = trajectory_step(path), path.stem.rpartition("-")[2]
        found.append(Source(index, run, f"trajectories/{path.name}", f"step {step}", step, f"{prefix}step-{step:06d}-{rank}"))
    return found


def catalogue_of(runs: Sequence[RunFolder], limit: int = 0) -> Catalogue:
    """Read all rollouts; InputError (with file and line) if a file is damaged.

    At most ``limit`` training rollouts get a page (0 = all): whole steps at even distances, including the last.
    """
    found: list[Facts] = []
    for index, run in enumerate(runs):
        for source in sources_of(run, index, f"run{index + 1}-" if len(runs) > 1 else ""):
            for line, rollout in enumerate(source.rollouts(), 1):
                with as_recorded(run.path / source.name, line):
                    found.append(facts_of(source, line - 1, rollout))
    training = Counter((facts.source.run, facts.source.step) for facts in found if facts.source.step is not None)
    kept = kept_steps(training, limit)
    chosen = [facts for facts in found if facts.source.step is None or (facts.source.run, facts.source.step) in kept]
    return Catalogue(tuple(chosen), tuple({facts.source.key: facts.source for facts in chosen}.values()), sum(training.values()))


def facts_of(source: Source, index: int, rollout: Mapping[str, Any]) -> Facts:
    """Return the facts of one rollout, at an index of its source."""
    made = [call for step in rollout["steps"] for call in calls(step)]
    tones = Counter(call.tone for call in made)
    scores = [known(question["score"]) for question in rollout["questions"]]
    reward = rollout_reward(rollout)
    errors = tuple(str(part["error"]) for part in (*rollout["questions"], *rollout["steps"]) if part.get("error"))
    return Facts(
        source=source,
        page=f"{source.key}-{index:04d}.html",
        instance=str(rollout["instance"]),
        group=f"{source.key}-group-{int(rollout['group'])}.html" if "group" in rollout else "",
        reward=reward,
        accuracy=rollout_accuracy(rollout),
        calls=len(made),
        failed=tones[Tone.FAILED],
        inserts=tones[Tone.INSERT],
        updates=tones[Tone.UPDATE],
        deletes=tones[Tone.DELETE],
        questions=len(scores),
        wrong=sum(score is not None and score < 0.5 for score in scores),
        cut=sum(step["stop"] == "length" for step in rollout["steps"]),
        masked=None in scores or bool(errors) or (reward is None and bool(rollout["steps"])),
        entries=len(rollout["memory"]),
        codes=Counter(str(r["code"]) for step in rollout["steps"] for r in step["results"] if not r["ok"]),
        errors=errors,
    )


def kept_steps(counts: Mapping[tuple[int, int], int], limit: int) -> set[tuple[int, int]]:
    """Return the (run, step) pairs that get pages: evenly spread, the last one first."""
    steps = list(counts)
    if not limit or sum(counts.values()) <= limit:
        return set(steps)
    fit = max(1, min(len(steps), limit // max(counts.values())))
    last = len(steps) - 1
    return {steps[last - round(i * last / max(fit - 1, 1))] for i in range(fit)}


def pairs_of(facts: Sequence[Facts]) -> dict[tuple[int, str], str]:
    """Return the page of each (run, instance) evaluated before and after training, in evaluation order."""
    before, after = ({(fact.source.run, fact.instance): fact for fact in facts if fact.source.where == name} for name in _ORDER)
    return {key: fact.page.replace("after-", "pair-", 1) for key, fact in after.items() if key in before}


def find_picks(facts: Sequence[Facts], pairs: Mapping[tuple[int, str], str]) -> list[tuple[str, str, str]]:
    """Return up to three example pages as (why, instance, page); empty if no rollout was scored.

    The first of these that exists: held-out instances before and after training (largest gain, median, largest loss); one
    evaluation (highest, median, lowest accuracy); groups of the last training step with the largest and smallest spread.
    """
    held_out = [fact for fact in facts if fact.source.step is None and fact.source.run == 0 and fact.accuracy is not None]
    before, after = ({fact.instance: fact for fact in held_out if fact.source.where == name} for name in _ORDER)
    gains = {
        name: (fact.accuracy or 0.0) - (before[name].accuracy or 0.0)
        for name, fact in after.items()
        if name in before and (0, name) in pairs
    }
    if gains:
        names = ("largest gain", "median gain", "largest loss" if min(gains.values()) < 0 else "smallest gain")
        return [
            (f"{why} in accuracy: {number(gains[name], signed=True)}", name, f"pairs/{pairs[0, name]}")
            for name, why in picks(gains, names).items()
        ]
    if found := after or before or {fact.instance: fact for fact in held_out}:
        values = {name: fact.accuracy or 0.0 for name, fact in found.items()}
        return [
            (f"{why} accuracy: {number(values[name])}", name, f"rollouts/{found[name].page}")
            for name, why in picks(values, ("highest", "median", "lowest")).items()
        ]
    scored = [fact for fact in facts if fact.source.step is not None and fact.reward is not None]
    last = max((fact.source.step or 0 for fact in scored), default=0)
    groups: dict[str, list[Facts]] = {}
    for fact in scored:
        if fact.source.step == last:
            groups.setdefault(fact.group, []).append(fact)
    rewards = {group: [fact.reward or 0.0 for fact in members] for group, members in groups.items()}
    spreads = {group: max(values) - min(values) for group, values in rewards.items()}
    return [
        (f"{why} spread of reward in a group of step {last}: {number(spreads[name])}", groups[name][0].instance, f"groups/{name}")
        for name, why in picks(spreads, ("largest", "median", "smallest")).items()
    ]


def picks(values: Mapping[str, float], names: tuple[str, str, str]) -> dict[str, str]:
    """Return the names with the highest, median and lowest value (ties by name) and their labels; each name once."""
    ranked = sorted(values, key=lambda name: (-values[name], name))
    picked: dict[str, str] = {}
    for index, name in ((0, names[0]), (-1, names[2]), ((len(ranked) - 1) // 2, names[1])):
        if ranked:
            picked.setdefault(ranked[index], name)
    return {name: picked[name] for name in ranked if name in picked}
