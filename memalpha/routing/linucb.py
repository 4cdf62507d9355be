"""LinUCB: a linear bandit, the baseline of the learned networks."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from memalpha.errors import InputError
from memalpha.policies import Shape
from memalpha.routing.learner import Task, begin
from memalpha.routing.logged import LogTask
from memalpha.routing.tasks import Floats, Integers


class LinUCB:
    """A linear bandit (Li et al., arXiv 1003.0146, algorithm 1, disjoint models): a ridge
    regression a decider and option.

    Departures: episodes in lockstep choose and update together; each decider gets the whole team
        reward.
    """

    def __init__(self, shape: Shape, alpha: float = 1.0, ridge: float = 1.0) -> None:
        self.shape, self.alpha = shape, alpha
        widths = [stop - start for start, stop in shape.views]
        self._squares = [
            np.stack([ridge * np.eye(width)] * shape.choices) for width in widths
        ]  # per decider (A, d, d)
        self._sums = [np.zeros((shape.choices, width)) for width in widths]  # per decider (A, d)

    def update(
        self, task: Task, episodes: int, length: int, seed: int, share_left: float
    ) -> dict[str, float]:
        """Act by upper confidence bounds and learn after every step; as ``PPO.update``."""
        if isinstance(task, LogTask):
            rows = task.draw(episodes * length, seed)
            self.observe(
                rows.observations.numpy(), rows.actions.numpy(), rows.rewards.double().numpy()
            )
            return {"reward": float(rows.rewards.mean())}
        running, earned = begin(task, episodes, seed), []
        for _ in range(length):
            seen = running.observe()
            actions = self.estimates(seen, self.alpha).argmax(axis=-1)
            earned.append(running.step(actions)[0])
            self.observe(seen, actions, earned[-1])
        return {"reward": float(np.mean(earned))}

    def estimates(self, observations: Floats, alpha: float = 0.0) -> NDArray[np.float64]:
        """Return estimates of the reward plus ``alpha`` standard deviations, shape (n, K, A)."""
        columns = []
        for (start, stop), squares, sums in zip(
            self.shape.views, self._squares, self._sums, strict=True
        ):
            seen = observations[:, start:stop].astype(np.float64)
            inverse = np.linalg.inv(squares)
            means = seen @ np.einsum("aij,aj->ai", inverse, sums).T
            variances = (
                np.einsum("ni,aij,nj->na", seen, inverse, seen, optimize=True)
                if alpha
                else np.zeros_like(means)
            )
            columns.append(means + alpha * np.sqrt(np.maximum(variances, 0.0)))
        return np.stack(columns, axis=1)

    def observe(
        self, observations: Floats, actions: Integers, rewards: NDArray[np.float64]
    ) -> None:
        """Learn from observations (n, size), actions (n, K) and rewards (n,)."""
        for k, (start, stop) in enumerate(self.shape.views):
            seen = observations[:, start:stop].astype(np.float64)
            for a in range(self.shape.choices):
                chosen = actions[:, k] == a
                self._squares[k][a] += seen[chosen].T @ seen[chosen]
                self._sums[k][a] += seen[chosen].T @ rewards[chosen]

    def probabilities(self, observations: Floats) -> Floats:
        """Return 1 for the option with the highest estimate, else 0, shape (n, K, A)."""
        best = self.estimates(observations).argmax(axis=-1)
        return np.asarray(np.eye(self.shape.choices, dtype=np.float32)[best])

    def state(self) -> dict[str, Any]:
        """Return the regressions."""
        held = {"squares": self._squares, "sums": self._sums}
        return {
            name: [torch.from_numpy(array.copy()) for array in arrays]
            for name, arrays in held.items()
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Load regressions; InputError if they are of another task."""
        shapes, wanted = (
            {name: [tuple(a.shape) for a in held] for name, held in one.items()}
            for one in (state, self.state())
        )
        if shapes != wanted:
            raise InputError(f"LinUCB state of shapes {shapes}", expected=f"{wanted}")
        self._squares, self._sums = (
            [tensor.numpy() for tensor in state[name]] for name in ("squares", "sums")
        )
