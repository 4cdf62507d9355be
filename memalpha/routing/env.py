"""Gymnasium environments of a routing task: one at a time, and many in lockstep.

``RoutingEnv`` is what ``gymnasium.utils.env_checker.check_env`` and other libraries' learners take; ``RoutingVectorEnv`` is what
the learners of this folder take, as they take any vector environment that restarts episodes in the same step. What always holds:
both give the same task; the seed of ``reset`` fixes everything that is drawn; nothing is drawn from a global random state.

The only module of the package that imports gymnasium (extra ``routing``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import MissingExtraError
from memalpha.routing.tasks import Floats, Integers, State, Task, exchange

try:
    import gymnasium
    from gymnasium import spaces
    from gymnasium.vector import AutoresetMode, VectorEnv
    from gymnasium.vector.utils import batch_space
except ImportError as error:
    raise MissingExtraError("gymnasium", "routing") from error


def observation_space(task: Task) -> spaces.Box:
    """Return the space of one observation: float32 of shape (size,)."""
    low, high = task.bounds
    return spaces.Box(low, high, (task.size,), np.float32)


def action_space(task: Task) -> spaces.MultiDiscrete:
    """Return the space of one joint action: K numbers from 0 to A - 1."""
    return spaces.MultiDiscrete([task.choices] * task.deciders)


class RoutingEnv(gymnasium.Env[Floats, Integers]):
    """One episode of a task at a time.

    Args:
        task: The task.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012

    def __init__(self, task: Task) -> None:
        self.task = task
        self.observation_space = observation_space(task)  # type: ignore[assignment]
        self.action_space = action_space(task)
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


class RoutingVectorEnv(VectorEnv[Floats, Integers, NDArray[Any]]):
    """Many episodes of a task in lockstep; one that ends starts anew in the same step.

    The last observation of an ended episode is in ``info["final_obs"]``, at its row.

    Args:
        task: The task.
        num_envs: How many episodes.
    """

    metadata: dict[str, Any] = {"autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(self, task: Task, num_envs: int) -> None:
        self.task, self.num_envs = task, num_envs
        self.single_observation_space = observation_space(task)
        self.single_action_space = action_space(task)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._state: State | None = None

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Floats, dict[str, Any]]:
        """Start all episodes; one seed fixes them all."""
        if seed is not None:
            self._np_random = np.random.default_rng(seed)  # type: ignore[arg-type]
        self._state = self.task.start(self.num_envs, self.np_random)
        return self.task.observe(self._state), {}

    def step(self, actions: Integers) -> tuple[Floats, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]:
        """Take one step in every episode; ``actions`` has shape (num_envs, deciders)."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("call reset before step")
        state, rewards, ended = self.task.act(self._state, np.asarray(actions), self.np_random)
        info: dict[str, Any] = {}
        if ended.any():
            info = {"final_obs": self.task.observe(state), "_final_obs": ended}
            state = exchange(state, self.task.start(int(ended.sum()), self.np_random), ended)
        self._state = state
        return self.task.observe(state), rewards, ended, np.zeros_like(ended), info
