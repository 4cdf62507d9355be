"""Compare learned routers on the synthetic tasks, whose best answer is known: five seeds, the same
number of steps for all.

    OMP_NUM_THREADS=1 python scripts/router_synthetic.py            writes
    docs/results/router_synthetic.json

A seed draws the task, first weights and actions; all learners of a seed meet the same task. Runs
that the file holds are kept.
"""

import json
import time
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

from memalpha.config import parse
from memalpha.record.folder import environment
from memalpha.routing.run import GROUPS, RouterConfig, fit, make_learner, measure
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "router_synthetic.json"
TASKS = {"one": {"deciders": 1}, "team": {"deciders": 3}, "facets": {"deciders": 1, "facets": 3}}
COMMON = {
    "steps": 96_000,
    "envs": 96,
    "update_every": 1920,
    "hidden": [64, 64],
    "lr_actor": 3e-3,
    "lr_critic": 3e-3,
    "anneal": True,
    "epochs": 4,
    "batch_size": 256,
    "target_kl": 0.03,
    "entropy": 0.0,
}
OWN = {
    "random": {},
    "linucb": {},
    "mappo": {"kind": "team"},
    "grpo": {"kind": "separate", "relative_weights": [0.3, 0.7, 0.7]},
}


def trained(task, **options):
    """Return a learner of these options, trained on a task."""
    config = RouterConfig(
        *parse([f"--{option}={value}" for option, value in options.items()], GROUPS, "a router")
    )
    learner = make_learner(config, task.shape)
    list(fit(learner, task, config.run))
    return learner


def run(name: str, task_name: str, seed: int) -> dict:
    task = SyntheticTask(SyntheticOptions(**TASKS[task_name], seed=1000 + seed))
    began, cpu, chance = time.perf_counter(), time.process_time(), np.random.default_rng(seed)
    if name == "random":
        learner = SimpleNamespace(
            probabilities=lambda seen: chance.random(
                (len(seen), task.shape.deciders, task.shape.choices)
            )
        )
    else:
        learner = trained(task, **COMMON, **OWN[name], learner=name, seed=seed)
    spent = {
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    asked = {"learner": name, "task": task_name, "seed": seed, "steps": COMMON["steps"]}
    return {**asked, **spent, **measure(learner, task, 4_000, seed)}


if __name__ == "__main__":
    torch.set_num_threads(1)
    held = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"runs": []}
    done = {(row["learner"], row["task"], row["seed"]) for row in held["runs"]}
    for task, seed, name in product(TASKS, range(5), OWN):
        if (name, task, seed) not in done:
            held["runs"].append(run(name, task, seed))
            machine = {**environment(), "command": ["python", "scripts/router_synthetic.py"]}
            held |= {"environment": machine, "tasks": TASKS, "common": COMMON, "own": OWN}
            RESULTS.write_text(json.dumps(held, indent=1) + "\n")
            print(json.dumps(held["runs"][-1]), flush=True)
