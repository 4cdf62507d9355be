"""An environment of one's own: ``python own_router_environment.py`` trains a router in it.

A help desk: the observation says how sure the desk is of two topics. Three workers can be asked; an
expert (0, 1) earns 1 on its own topic, asking a colleague (2) earns .2 and makes the desk sure. A
question takes at most two steps.
"""

import sys
from typing import Any

import gymnasium
import numpy as np

from memalpha.cli import run


class HelpDesk(gymnasium.Env):
    """Two topics, three workers."""

    observation_space = gymnasium.spaces.Box(0, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        """Begin with a new question."""
        super().reset(seed=seed)
        self.topic, self.asked = int(self.np_random.integers(2)), False
        return np.full(2, 0.5, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        """Ask a worker."""
        done = action < 2 or self.asked
        reward = float(action == self.topic) if action < 2 else 0.2
        self.asked = True
        return np.eye(2, dtype=np.float32)[self.topic], reward, done, False, {}


if __name__ == "__main__":
    sys.exit(run(["router", "train", "--config", "own_router_environment.yaml", *sys.argv[1:]]))
