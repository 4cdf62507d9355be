"""Compare learned routers on the synthetic tasks, whose best answer is known: five seeds, the same number of steps for all.

    OMP_NUM_THREADS=1 python scripts/router_synthetic.py                        writes docs/results/router_synthetic.json
    OMP_NUM_THREADS=1 python scripts/router_synthetic.py --tasks team --seeds 0 1

Learners: random, LinUCB, PPO of stable-baselines3, MAPPO, multi-agent GRPO. A seed draws the hidden specialties of the task, first
weights and actions; all learners of a seed meet the same task. The three that use gradients have the same widths, rates, steps
between updates and passes. Runs that the file holds already are not run again. One process, one run after the other.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memalpha.routing.run import RouterConfig, config_from, fit, make_learner, measure
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask
from memalpha.runs import environment

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results" / "router_synthetic.json"
TASKS = {
    "one": {"deciders": 1},
    "team": {"deciders": 3},
    "facets": {"deciders": 1, "facets": 3},
}
LEARNERS = ("random", "linucb", "sb3_ppo", "mappo", "grpo")
STEPS, EPISODES = 96_000, 4_000
COMMON: dict[str, Any] = {
    "steps": STEPS, "envs": 96, "update_every": 1920, "hidden": [64, 64], "lr_actor": 3e-3, "lr_critic": 3e-3, "anneal": True,
    "epochs": 4, "batch_size": 256, "target_kl": 0.03, "entropy": 0.0,
}  # fmt: skip
OWN: dict[str, dict[str, Any]] = {
    "mappo": {"kind": "team"},
    "grpo": {"kind": "separate", "relative_weights": [0.3, 0.7, 0.7]},
}


class Sb3Router:
    """PPO of stable-baselines3 behind the two methods that measuring needs."""

    def __init__(self, task: SyntheticTask, config: RouterConfig) -> None:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env

        from memalpha.routing.env import RoutingEnv

        ppo, run = config.ppo, config.run
        env = make_vec_env(lambda: RoutingEnv(task), n_envs=run.envs, seed=run.seed)
        self.model = PPO(
            "MlpPolicy",
            env,
            learning_rate=lambda left: ppo.lr_actor * left,
            n_steps=run.update_every // run.envs,
            batch_size=ppo.batch_size,
            n_epochs=ppo.epochs,
            gamma=ppo.gamma,
            gae_lambda=ppo.lam,
            clip_range=ppo.clip,
            ent_coef=ppo.entropy,
            vf_coef=ppo.value_coefficient,
            max_grad_norm=ppo.max_grad_norm,
            target_kl=ppo.target_kl,
            policy_kwargs={"net_arch": list(config.policy.hidden), "activation_fn": torch.nn.ReLU},
            seed=run.seed,
            device="cpu",
        )

    def learn(self, steps: int) -> None:
        self.model.learn(steps)

    def probabilities(self, observations: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            heads = self.model.policy.get_distribution(torch.as_tensor(observations)).distribution
        return np.stack([head.probs.numpy() for head in heads], axis=1)


def run_one(name: str, task_name: str, seed: int) -> dict[str, Any]:
    task = SyntheticTask(SyntheticOptions(**TASKS[task_name], seed=1000 + seed))
    config = config_from({**COMMON, **OWN.get(name, {}), "learner": "ppo" if name == "sb3_ppo" else name, "seed": seed})
    began, cpu = time.perf_counter(), time.process_time()
    if name == "sb3_ppo":
        learner: Any = Sb3Router(task, config)
        learner.learn(STEPS)
    else:
        learner = make_learner(config, task.shape)
        for _ in fit(learner, task, config.run):
            pass
    spent = {"seconds": round(time.perf_counter() - began, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    return {
        "learner": name,
        "task": task_name,
        "seed": seed,
        "steps": STEPS,
        **spent,
        **measure(learner, task, EPISODES, seed),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--learners", nargs="+", choices=LEARNERS, default=list(LEARNERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    args = parser.parse_args()
    torch.set_num_threads(1)
    held = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {"runs": []}
    done = {(row["learner"], row["task"], row["seed"]) for row in held["runs"]}
    for task in args.tasks:
        for seed in args.seeds:
            for name in args.learners:
                if (name, task, seed) in done:
                    continue
                row = run_one(name, task, seed)
                print(json.dumps(row), flush=True)
                held["runs"].append(row)
                machine = environment()
                machine["command"] = ["python", "scripts/router_synthetic.py"]
                held |= {"environment": machine, "tasks": TASKS, "common": COMMON, "own": OWN}
                RESULTS.write_text(json.dumps(held, indent=1) + "\n")


if __name__ == "__main__":
    main()
