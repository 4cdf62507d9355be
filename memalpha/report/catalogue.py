"""The catalogue of a run's recorded rollouts: what there is, in which file, and the few facts that lists and filters need.

One line of a file is held at a time, whatever a run's size. What always holds: the order is held-out evaluations first (before,
after, then others by name), then training steps; a training group is kept whole; what is left out is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.report.view import Tone, as_recorded, calls, known, recorded, rollout_accuracy, rollout_reward
from memalpha.runs import RunFolder, trajectory_step

_ORDER = {"before": 0, "after": 1}


class Source(NamedTuple):
    """One file of rollouts.

    Attributes:
        run: Index of the run it belongs to.
        folder: The run.
        name: The file inside the run folder.
        where: What its rollouts are called: ``before``, ``after``, ``step 3``.
        step: Training step; None for held-out evaluations.
        key: What the names of its pages begin with.
    """

    run: int
    folder: RunFolder
    name: str
    where: str
    step: int | None
    key: str

    def rollouts(self) -> Iterator[Mapping[str, Any]]:
        """Iterate over its rollouts, one line at a time."""
        return recorded(self.folder, self.name, lambda row: row if self.step is not None else row["rollout"])


@dataclass(frozen=True, slots=True)
class Facts:
    """What lists and filters need of one rollout.

    Attributes:
        source: Where it lies.
        page: Name of its page, without a folder.
        instance: What was read.
        data: Name of the data set.
        group: Name of its group's page; empty for a held-out rollout.
        reward: Mean weighted reward; None if not known.
        accuracy: Mean score of its questions; None if not known.
        calls: Calls and unreadable stretches.
        failed: Those that did not succeed.
        inserts: Applied inserts.
        updates: Applied updates.
        deletes: Applied deletes.
        questions: Questions asked.
        wrong: Questions that scored below one half.
        cut: Completions cut off at the longest length.
        masked: Whether something in it could not be scored.
        entries: Entries of the final memory.
        tokens: Tokens of the final memory.
        codes: Calls by why they failed.
        errors: Messages of what could not be scored.
    """

    source: Source
    page: str
    instance: str
    data: str
    group: str
    reward: float | None
    accuracy: float | None
    calls: int
    failed: int
    inserts: int
    updates: int
    deletes: int
    questions: int
    wrong: int
    cut: int
    masked: bool
    entries: int
    tokens: int
    codes: Mapping[str, int]
    errors: tuple[str, ...]


class Catalogue(NamedTuple):
    """The rollouts that get a page, and how many training rollouts there are in all."""

    facts: tuple[Facts, ...]
    sources: tuple[Source, ...]
    training: int


def sources_of(run: RunFolder, index: int = 0, prefix: str = "") -> list[Source]:
    """Return the files of a run's rollouts, in order."""
    held_out = sorted((run.path / "held_out").glob("*.jsonl"), key=lambda path: (_ORDER.get(path.stem, 2), path.stem))
    found = [Source(index, run, f"held_out/{p.name}", _called(p), None, f"{prefix}{_slug(p.stem)}") for p in held_out]
    for path in run.trajectory_files():
        step, rank = trajectory_step(path), path.stem.rpartition("-")[2]
        key = f"{prefix}step-{step:06d}-{rank}"
        found.append(Source(index, run, f"trajectories/{path.name}", f"step {step}", step, key))
    return found


def catalogue_of(runs: Sequence[RunFolder], limit: int = 0) -> Catalogue:
    """Read what there is.

    Args:
        runs: The runs.
        limit: Most training rollouts that get a page (0 = all). Steps are then taken at even distances, the last one included, and
            each step whole.

    Raises:
        InputError: If a file is damaged; names the file and line.
    """
    found: list[Facts] = []
    sources: list[Source] = []
    for index, run in enumerate(runs):
        for source in sources_of(run, index, f"run{index + 1}-" if len(runs) > 1 else ""):
            before = len(found)
            for number, rollout in enumerate(source.rollouts()):
                with as_recorded(run.path / source.name, number + 1):
                    found.append(facts_of(source, number, rollout))
            sources += [source] if len(found) > before else []
    training = Counter((facts.source.run, facts.source.step) for facts in found if facts.source.step is not None)
    kept = _kept_steps(training, limit)
    chosen = [facts for facts in found if facts.source.step is None or (facts.source.run, facts.source.step) in kept]
    used = {facts.source.key for facts in chosen}
    return Catalogue(tuple(chosen), tuple(source for source in sources if source.key in used), sum(training.values()))


def facts_of(source: Source, number: int, rollout: Mapping[str, Any]) -> Facts:
    """Return the facts of one rollout, the ``number``-th of its source."""
    made = [call for step in rollout["steps"] for call in calls(step)]
    tones = Counter(call.tone for call in made)
    scores = [known(question["score"]) for question in rollout["questions"]]
    reward = rollout_reward(rollout)
    parts = (*rollout["questions"], *rollout["steps"])
    return Facts(
        source=source,
        page=f"{source.key}-{number:04d}.html",
        instance=str(rollout["instance"]),
        data=str(rollout["source"]),
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
        masked=None in scores or any(part.get("error") for part in parts) or (reward is None and bool(rollout["steps"])),
        entries=len(rollout["memory"]),
        tokens=int(rollout["memory_tokens"]),
        codes=Counter(str(r["code"]) for step in rollout["steps"] for r in step["results"] if not r["ok"]),
        errors=tuple(str(part["error"]) for part in parts if part.get("error")),
    )


def _kept_steps(counts: Mapping[tuple[int, int], int], limit: int) -> set[tuple[int, int]]:
    """Return the (run, step) pairs that get pages: as many as fit, evenly spread, the last first."""
    steps = list(counts)
    if not limit or sum(counts.values()) <= limit:
        return set(steps)
    size = max(counts.values())
    room = max(1, min(len(steps), limit // size))
    last = len(steps) - 1
    return {steps[last - round(i * last / max(room - 1, 1))] for i in range(room)}


def _called(path: Path) -> str:
    return "held out" if path.stem == "rollouts" else path.stem


def _slug(text: str) -> str:
    """Return a text as part of a file name: letters, digits, dots and dashes."""
    return "".join(char if char.isascii() and (char.isalnum() or char in ".-_") else "-" for char in text)
