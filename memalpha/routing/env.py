"""A Gymnasium environment of a routing task, for other libraries' learners; the seed of ``reset`` fixes all randomness.

Needs the extra ``routing``. This package's own learners do not use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from memalpha.errors import MissingExtraError
from memalpha.routing.tasks import Floats, Integers, State, Task

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise MissingExtraError("gymnasium", "routing") from error


class RoutingEnv(gymnasium.Env[Floats, Integers]):
    """One episode of a task at a time: observations (size,), actions of K numbers from 0 to A - 1."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, task: Task) -> None:
        self.task = task
        self.observation_space = spaces.Box(-1.0, 1.0, (task.shape.size,), np.float32)
        self.action_space = spaces.MultiDiscrete([task.shape.choices] * task.shape.deciders)
        self._state: State | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Floats, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        self._state = self.task.start(1, self.np_random)
        return self.task.observe(self._state)[0], {}

    def step(self, action: Integers) -> tuple[Floats, float, bool, bool, dict[str, Any]]:
        """Take one step; an episode terminates by itself and is never truncated."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        self._state, rewards, ended = self.task.act(self._state, np.asarray(action).reshape(1, -1), self.np_random)
        return self.task.observe(self._state)[0], float(rewards[0]), bool(ended[0]), False, {}
