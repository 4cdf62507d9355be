"""Makes docs/results/router.md from docs/results/router_*.json; not written by hand.

python scripts/router_table.py
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
LEARNERS = {
    "random": "random",
    "linucb": "LinUCB",
    "sb3_ppo": "PPO (stable-baselines3)",
    "mappo": "MAPPO",
    "grpo": "multi-agent GRPO",
}
TASKS = {
    "one": "one router, four options (linear in the prompt)",
    "team": "three routers, each sees its own prompt, one common reward (linear)",
    "facets": "one router, each option the best of three facets (not linear)",
}


def machine(record: dict[str, Any]) -> str:
    """One line on where the numbers come from."""
    at = record["environment"]
    packages = ", ".join(f"{name} {at['packages'][name]}" for name in ("memalpha", "torch", "numpy"))
    return f"`{' '.join(at['command'])}`; {at['started'][:10]}; {at['processor']}, one thread a run; {packages}."


def synthetic(record: dict[str, Any]) -> list[str]:
    """A table a task: a row a learner, a column a seed."""
    lines = ["## Synthetic tasks, known optimum", "", machine(record), ""]
    for task, title in TASKS.items():
        rows = [row for row in record["runs"] if row["task"] == task]
        seeds = sorted({row["seed"] for row in rows})
        if not rows:
            continue
        lines += [
            f"### {title}",
            "",
            "Share of the optimal expected reward on 4,000 held-out prompts, greedy; 96,000 steps for every learner.",
            "",
        ]
        lines += [f"| learner | {' | '.join(f'seed {seed}' for seed in seeds)} | mean | worst | processor s, mean |"]
        lines += ["| --- " * (len(seeds) + 4) + "|"]
        for name, shown in LEARNERS.items():
            own = {row["seed"]: row for row in rows if row["learner"] == name}
            if own:
                shares = [own[seed]["fraction_of_optimal"] for seed in seeds if seed in own]
                cells = [f"{own[seed]['fraction_of_optimal']:.3f}" if seed in own else "" for seed in seeds]
                spent = np.mean([row["cpu_seconds"] for row in own.values()])
                lines.append(f"| {shown} | {' | '.join(cells)} | {np.mean(shares):.3f} | {min(shares):.3f} | {spent:.1f} |")
        lines.append("")
    return lines


def memories(record: dict[str, Any]) -> list[str]:
    """A table a setting: a row a way to choose sections, with the paired difference of the learned router."""
    lines = ["## Real memories, nine categories", "", machine(record), ""]
    for name, found in record["settings"].items():
        lines += [f"### {name}", ""]
        lines += [
            f"{found['questions']} questions on 12 held-out memories of {found['entries']:.1f} entries on average; "
            f"trained on {found['train_questions']} questions of 30 other memories. "
            "± is one standard error over memories; times are processor time.",
            "",
            "| sections chosen by | accuracy | entries searched | sections opened | ms a search | learned (mean) less this |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for row in found["rows"]:
            gap = found["differences"].get(row["name"])
            shown = f"{gap['mean']:+.3f} ± {gap['stderr']:.3f}" if gap else ""
            spent = "" if row["milliseconds"] is None else f"{row['milliseconds']:.2f}"
            opened = f"{row['searched']:.1f} | {row['sections']:.2f}"
            lines.append(f"| {row['name']} | {row['accuracy']:.3f} ± {row['stderr']:.3f} | {opened} | {spent} | {shown} |")
        lines.append("")
    return lines


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    lines = ["# Results of the learned router", "", "Made by `scripts/router_table.py` from `docs/results/router_*.json`.", ""]
    for name, make in (("router_synthetic", synthetic), ("router_memories", memories)):
        path = RESULTS / f"{name}.json"
        if path.is_file():
            lines += make(json.loads(path.read_text()))
    (RESULTS / "router.md").write_text("\n".join(lines))


if __name__ == "__main__":
    main()
