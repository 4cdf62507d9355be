"""PPO of stable-baselines3 and our MAPPO in one Gymnasium environment, with the same options and
number of steps; five seeds.

    OMP_NUM_THREADS=1 python scripts/router_sb3.py LOG       writes docs/results/router_sb3.json

LOG is a folder of scripts/router_readers.py, at its middle price. stable-baselines3 is no
dependency of the project.
"""

import json
import sys
import time
from itertools import product
from types import SimpleNamespace

import gymnasium
import numpy as np
import torch
from router_readers import PRICES, RESULTS, SETTINGS, load
from router_synthetic import COMMON, OWN, TASKS, trained

from memalpha.record.folder import environment
from memalpha.routing.environment import EnvironmentOptions, EnvironmentTask
from memalpha.routing.run import measure
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask


class Choice(gymnasium.Env):
    """A prompt, one choice, its reward: of a synthetic task, or of a log with a row for every
    choice."""

    def __init__(self, task):
        self.task, many = task, task.shape.choices
        self.observation_space = gymnasium.spaces.Box(
            -np.inf, np.inf, (task.shape.size,), np.float32
        )
        self.action_space = gymnasium.spaces.Discrete(many)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task, many, rng = self.task, self.task.shape.choices, self.np_random
        if isinstance(task, SyntheticTask):
            state = tuple(part.repeat(many, axis=0) for part in task.start(1, rng))
            self.seen, self.rewards = (
                task.observe(state)[0],
                task.act(state, np.arange(many)[:, None], rng).rewards,
            )
        else:
            row = many * int(rng.integers(len(task.rewards) // many))
            self.seen, self.rewards = task.embeddings[row], task.rewards[row : row + many]
        return self.seen, {}

    def step(self, action):
        return self.seen, float(self.rewards[action]), True, False, {}


def theirs(task, seed, given):
    try:
        from stable_baselines3 import PPO
        from stable_baselines3.common.env_util import make_vec_env
    except ModuleNotFoundError as error:
        raise SystemExit(f"{error}; pip install stable-baselines3") from error
    options = {
        "n_steps": given["update_every"] // given["envs"],
        "n_epochs": given["epochs"],
        "ent_coef": given["entropy"],
    }
    options |= {name: given[name] for name in ("batch_size", "target_kl")}
    options["policy_kwargs"] = {"net_arch": given["hidden"], "activation_fn": torch.nn.ReLU}
    copies = make_vec_env(lambda: Choice(task), given["envs"], seed=seed)
    model = PPO(
        "MlpPolicy",
        copies,
        lambda left: given["lr_actor"] * left,
        seed=seed,
        device="cpu",
        **options,
    )
    model.learn(given["steps"])
    return lambda seen: np.eye(task.shape.choices)[model.predict(seen, deterministic=True)[0]][
        :, None
    ]


def ours(task, seed, given):
    running = EnvironmentTask(EnvironmentOptions("router_sb3:Choice", {"task": task}))
    return trained(running, **given, **OWN["mappo"], learner="mappo", seed=seed).probabilities


if __name__ == "__main__":
    torch.set_num_threads(1)
    place = RESULTS.with_name("router_sb3.json")  # runs that it holds are kept
    runs = json.loads(place.read_text())["runs"] if place.is_file() else []
    for seed, (name, given), who in product(
        range(5), (("facets", COMMON), ("readers", SETTINGS)), (theirs, ours)
    ):
        if (who.__name__, name, seed) in {
            (run["learner"], run["task"], run["seed"]) for run in runs
        }:
            continue
        synthetic = SyntheticTask(SyntheticOptions(**TASKS["facets"], seed=1000 + seed))
        task, held = load(sys.argv[1], PRICES[1]) if name == "readers" else (synthetic, synthetic)
        began = time.process_time()
        choose = who(task, seed, given)
        spent = {"steps": given["steps"], "cpu_seconds": round(time.process_time() - began, 1)}
        found = measure(SimpleNamespace(probabilities=choose), held, 4_000, seed)
        runs.append({"learner": who.__name__, "task": name, "seed": seed, **spent, **found})
        place.write_text(json.dumps({"runs": runs, "environment": environment()}, indent=1) + "\n")
