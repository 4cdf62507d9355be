"""Counts how many of a run's sampled calls on dialogues say what the text says: docs/results/right_calls.json.

    python scripts/right_calls.py "named by number=runs/a-1:1-16" "named by text=runs/d-1:1-16"

Needs: runs of ``memalpha train`` with their trajectories, and the training data they name, with its annotated facts. An insertion
is right if the chunk states or changes to just that fact; an update, if it also replaces an entry about the same subject and
attribute; a deletion, if the chunk changes or takes back what the entry is about.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
    """Calls of one rollout by kind, all that were applied and those that are right; and those that failed."""
    counts: Counter[str] = Counter()
    entries: dict[str, str] = {}
    for step in steps:
        here = [fact for fact in facts if fact.chunk == step["chunk"]]
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


def count_run(run: Path, first: int, last: int) -> dict[str, Any]:
    """Calls of a run's rollouts from one step to another."""
    origin = RunFolder(run).origin()
    sources = [name.strip() for name in origin["config"]["train_data"].split(",")]
    facts = {instance.id: instance.facts for name in sources for instance in load_data(name, {}, 0) if instance.facts}
    counts: Counter[str] = Counter()
    for step in range(first, last + 1):
        for line in (run / trajectory_name(step, 0)).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["instance"] in facts:
                counts["rollouts"] += 1
                counts += count_rollout(row["steps"], facts[row["instance"]])
    return {
        "steps": [first, last],
        "counts": dict(sorted(counts.items())),
        "right": {kind: counts[f"{kind}_right"] / counts[kind] for kind in ("insert", "update", "delete") if counts[kind]},
        **origin,
    }


def main() -> None:
    """Count the runs named and write the file."""
    record = {}
    for argument in sys.argv[1:]:
        label, _, place = argument.partition("=")
        run, _, steps = place.rpartition(":")
        first, _, last = steps.partition("-")
        record[label] = count_run(Path(run), int(first), int(last))
        print(label, {kind: round(share, 3) for kind, share in record[label]["right"].items()})
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
