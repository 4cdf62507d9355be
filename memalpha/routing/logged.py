"""Routing learned from a log of what was done: rows (prompt, route, reward, cost, probability), by
importance weights.

Where no row says with which probability its route was taken, a logistic regression of the route on
the prompt estimates it. Training is off policy (``advantages``). A policy is measured on held-out
rows by the self-normalised estimate (Swaminathan and Joachims 2015, "The self-normalized estimator
for counterfactual learning", section 4): the mean reward weighted by
``policy / probability``. It knows nothing of routes that the log never took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from memalpha.data.routes import Log
from memalpha.errors import InputError
from memalpha.policies import Shape
from memalpha.protocols import Embedder
from memalpha.routing.ppo import Experience
from memalpha.routing.tasks import Floats


class LogTask:
    """Rows of a log, with the names of each actor's routes; a held-out one is ``like`` that of
    training.

    InputError without rows, for unknown routes, or if actors differ in the number of routes.
    """

    def __init__(
        self,
        log: Log,
        names: Sequence[Sequence[str]],
        embedder: Embedder,
        name: str,
        like: LogTask | None = None,
    ) -> None:
        unknown = {
            route
            for row in log.routes
            for route, own in zip(row, names, strict=True)
            if route not in own
        }
        if unknown or not log.prompts or len(set(map(len, names))) > 1 or len(names[0]) < 2:
            what = f"{len(log.prompts)} rows, {[len(own) for own in names]} routes of the actors, unknown: {sorted(unknown)}"
            raise InputError(
                what,
                expected="rows to train on and to measure on, two or more known routes, as many for each actor",
            )
        size, many = embedder.dimension, len(names)
        self.shape = Shape(size, many, len(names[0]), ((0, size),) * many)
        self.routes: dict[str, Any] = {"workers": [list(own) for own in names], "embedder": name}
        self.embeddings, self.rewards = embedder.embed(log.prompts), log.rewards
        self.actions = np.array(
            [
                [own.index(route) for route, own in zip(row, names, strict=True)]
                for row in log.routes
            ]
        )
        self.logging: list[Callable[[Floats], NDArray[Any]]] = like.logging if like else []
        if log.probabilities is not None:
            self.probabilities = log.probabilities
            return
        if not like:
            self.logging = [
                logistic(self.embeddings, own, np.ones(len(own)), self.shape.choices)
                for own in self.actions.T
            ]
        if not self.logging:
            raise InputError(
                "held-out rows without probabilities",
                expected="probabilities in both files, or in none",
            )
        self.probabilities = self._share(
            np.stack([one(self.embeddings) for one in self.logging], axis=1)
        )

    def _share(self, probabilities: NDArray[Any]) -> NDArray[np.float64]:
        """Return what probabilities (n, K, A) give to the rows' joint routes, (n,)."""
        return np.asarray(
            np.take_along_axis(probabilities, self.actions[..., None], axis=-1)[..., 0].prod(
                axis=1
            ),
            dtype=np.float64,
        )

    def draw(self, n: int, seed: int) -> Experience:
        """Return ``n`` rows drawn with replacement as episodes of one step."""
        drawn = np.random.default_rng(seed).integers(len(self.rewards), size=n)
        seen, ended = torch.from_numpy(self.embeddings[drawn]), torch.ones(n, dtype=torch.bool)
        log_probs, rewards = (
            torch.as_tensor(column[drawn]).float()
            for column in (np.log(self.probabilities), self.rewards)
        )
        return Experience(
            seen, torch.from_numpy(self.actions[drawn]), log_probs, rewards, seen, ended, ended
        )

    def estimate(self, probabilities: NDArray[Any]) -> dict[str, Any]:
        """Return the estimated reward of a policy with ``probabilities`` (n, K, A) on these rows,
        and its standard error.

        ``effective``: rows that the weights amount to, (sum w)^2 / sum w^2; the reward is null if
            no row has a weight.
        """
        weights = self._share(probabilities) / self.probabilities
        logged = {"logged": float(self.rewards.mean()), "episodes": len(self.rewards)}
        if not weights.any():
            return {"reward": None, "stderr": None, "effective": 0.0, **logged}
        share = weights / weights.sum()
        reward = float(share @ self.rewards)
        error = float(np.sqrt((share**2 * (self.rewards - reward) ** 2).sum()))
        return {
            "reward": reward,
            "stderr": error,
            "effective": float(1 / (share**2).sum()),
            **logged,
        }


def logistic(
    seen: Floats, chosen: NDArray[Any], weights: NDArray[Any], choices: int
) -> Callable[[Floats], NDArray[Any]]:
    """Fit a multinomial logistic regression with a ridge penalty of 1; returns probabilities (n, A)
    of observations (n, size).
    """
    inputs, targets = torch.from_numpy(seen).double(), torch.from_numpy(chosen)
    scale = torch.as_tensor(weights).double()
    table = torch.zeros(inputs.shape[1] + 1, choices, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([table], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        fit = torch.nn.functional.cross_entropy(
            inputs @ table[:-1] + table[-1], targets, reduction="none"
        )
        total = (scale * fit).sum() + table[:-1].square().sum() / 2
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    fitted = table.detach().numpy()
    return lambda given: np.asarray(
        torch.softmax(torch.from_numpy(given @ fitted[:-1] + fitted[-1]), dim=-1).numpy()
    )
