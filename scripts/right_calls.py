"""Counts how many of an agent's calls on dialogues say what the text says: docs/results/right_calls.json.

    python scripts/right_calls.py "named by number=runs/a-1:1-16" "named by text=runs/d-1:1-16" "trained=runs/rollouts" "warm start"

A label takes steps of a training run (sampled calls), a folder of ``memalpha rollout``, or, alone, what was recorded of it before.
Needs: runs of ``memalpha train`` with their trajectories or of ``memalpha rollout``, and the data they name, with its annotated
facts. An insertion is right if the chunk states or changes to just that fact; an update, if it also replaces an entry about the
same subject and attribute; a deletion, if the chunk changes or takes back what the entry is about. To say nothing is right in a
session without facts.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from labelled_runs import read_labels, record_runs

from memalpha.data.load import load_data
from memalpha.runs import RunFolder, trajectory_name
from memalpha.types import Fact, FactAction

RECORD = Path(__file__).resolve().parent.parent / "docs" / "results" / "right_calls.json"


def about(fact: Fact) -> str:
    """What an entry about a fact begins with."""
    return f"{fact.subject} {fact.attribute} ".lower()


def is_right(kind: str, old: str, new: str, here: Sequence[Fact]) -> bool:
    """Whether a call that replaced ``old`` by ``new`` (one of them empty) follows from the facts of its chunk."""
    said = [fact for fact in here if fact.action is not FactAction.RETRACT and about(fact) + fact.value.lower() == new.lower()]
    if kind == "insert":
        return bool(said)
    if kind == "update":
        return any(old.lower().startswith(about(fact)) for fact in said)
    return any(fact.action is not FactAction.STATE and old.lower().startswith(about(fact)) for fact in here)


def count_rollout(steps: Sequence[Mapping[str, Any]], facts: Sequence[Fact]) -> Counter[str]:
    """Calls of one rollout by kind, all that were applied and those that are right; those that failed; sessions, silent ones."""
    counts: Counter[str] = Counter()
    entries: dict[str, str] = {}
    for step in steps:
        here = [fact for fact in facts if fact.chunk == step["chunk"]]
        session = "session_with_facts" if here else "session_without"
        counts[session] += 1
        counts[f"{session}_silent"] += not step["results"]
        for result in step["results"]:
            operation = result["operation"]
            if not result["ok"] or operation is None:
                counts["failed"] += 1
            elif result["code"] == "duplicate":
                counts["duplicate"] += 1
            else:
                kind, key = operation["kind"], result["entry"]
                old, new = entries.pop(key, ""), operation["content"] or ""
                counts[kind] += 1
                counts[f"{kind}_right"] += is_right(kind, old, new, here)
                if kind != "delete":
                    entries[key] = new
    return counts


def count(rows: Iterable[Mapping[str, Any]], data: str) -> dict[str, Any]:
    """Calls of rollouts on the dialogues among some data."""
    facts = {instance.id: instance.facts for instance in load_data(data) if instance.facts}
    counts: Counter[str] = Counter()
    for row in rows:
        if row["instance"] in facts:
            counts["rollouts"] += 1
            counts.update(count_rollout(row["steps"], facts[row["instance"]]))
    if not counts["rollouts"]:
        sys.exit(f"error: no rollouts on dialogues with facts among {data}\n  expected: a run on generated data, and its steps")
    right = {kind: counts[f"{kind}_right"] / counts[kind] for kind in ("insert", "update", "delete") if counts[kind]}
    return {"counts": dict(sorted(counts.items())), "right": right}


def count_training(run: Path, first: int, last: int) -> dict[str, Any]:
    """Calls of a training run from one step to another."""
    origin, folder = RunFolder(run).origin(), RunFolder(run)
    rows = (row for step in range(first, last + 1) for row in folder.read_lines(trajectory_name(step, 0)))
    return {"steps": [first, last], **count(rows, origin["config"]["train_data"]), **origin}


def count_held_out(run: Path) -> dict[str, Any]:
    """Calls of a folder of ``memalpha rollout``."""
    origin = RunFolder(run).origin()
    rows = (row["rollout"] for row in RunFolder(run).read_lines("held_out/rollouts.jsonl"))
    return {**count(rows, origin["config"]["eval_data"]), **origin}


def read(place: str) -> dict[str, Any]:
    """Counts of ``RUN:FIRST-LAST``, steps of training, or of ``RUN``, a folder of ``memalpha rollout``."""
    run, _, steps = place.rpartition(":")
    return count_training(Path(run), *map(int, steps.split("-"))) if run else count_held_out(Path(place))


def main() -> None:
    """Count the runs named and write the file."""
    for label, found in record_runs(RECORD, read_labels(__doc__, "+"), read).items():
        print(label, {kind: round(share, 3) for kind, share in found["right"].items()})


if __name__ == "__main__":
    main()
