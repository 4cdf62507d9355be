"""Routing learned from a log of what was done: rows (prompt, route, reward, cost, probability), by importance weights.

Where no row says with which probability its route was taken, a logistic regression of the route on the prompt estimates it.
Training is off policy (``advantages``). A policy is measured on held-out rows by the self-normalised estimate (Swaminathan and
Joachims 2015, "The self-normalized estimator for counterfactual learning", section 4): the mean reward weighted by
``policy / probability``. It knows nothing of routes that the log never took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat
from torch import Tensor

from memalpha.config import Options, Share
from memalpha.data.rows import existing_file, iter_rows
from memalpha.errors import InputError
from memalpha.policies import Shape
from memalpha.protocols import Embedder
from memalpha.routing.ppo import Experience
from memalpha.routing.tasks import Floats


@dataclass(frozen=True, slots=True)
class LogOptions(Options):
    """A log.

    Attributes:
        rows: CSV, Parquet or JSON Lines file with ``prompt``, ``reward``, and optionally ``cost`` and ``probability`` in every row.
        actors: The columns of the routes: one, or one for each of several actors, whose ``probability`` is that of all together.
        cost: Reward lost for one unit of the column ``cost``.
        held_out: Share of the prompts that are measured on and not trained on, if there is no second file.
        embedder: Embeds the prompts.
    """

    rows: str
    actors: Annotated[tuple[str, ...], Field(min_length=1)] = ("route",)
    cost: NonNegativeFloat = 1.0
    held_out: Share = 0.2
    embedder: str = "minilm"


class Log(NamedTuple):
    """Rows: prompts, routes by name (n tuples), rewards less costs (n,), probabilities of the joint route (n,) or None."""

    prompts: list[str]
    routes: list[tuple[str, ...]]
    rewards: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None

    def part(self, wanted: Callable[[str], bool]) -> Log:
        """Return the rows whose prompt is wanted."""
        kept = [i for i, prompt in enumerate(self.prompts) if wanted(prompt)]
        known = None if self.probabilities is None else self.probabilities[kept]
        return Log([self.prompts[i] for i in kept], [self.routes[i] for i in kept], self.rewards[kept], known)


def read_log(options: LogOptions) -> Log:
    """Read a log; InputError names the row that does not fit, or says that some rows have a column and others not."""
    found = []
    for where, data in iter_rows(str(existing_file(options.rows))):
        if isinstance(data, Exception):
            raise data
        try:
            given = [float(data[name]) if name in data else None for name in ("cost", "probability")]
            found.append((str(data["prompt"]), tuple(str(data[a]) for a in options.actors), float(data["reward"]), *given))
        except (KeyError, TypeError, ValueError) as error:
            expected = f"prompt, {', '.join(options.actors)}, reward, and cost and probability in all rows or none"
            raise InputError(f"{where} of the log: {error!r}", expected=expected) from error
    if not found:
        raise InputError(f"{options.rows} has no rows", expected="at least one")
    prompts, routes, rewards, *columns = map(list, zip(*found, strict=True))
    if any(None in column and set(column) != {None} for column in columns):
        raise InputError(f"{options.rows} has a cost or a probability in some rows only", expected="in all rows or none")
    costs, known = (None if column[0] is None else np.array(column, dtype=np.float64) for column in columns)
    net = np.array(rewards) - options.cost * (0 if costs is None else costs)
    if not np.isfinite(net).all() or (known is not None and not ((known > 0) & (known <= 1)).all()):
        raise InputError(f"numbers in {options.rows}", expected="finite rewards and costs, probabilities above 0 and at most 1")
    return Log(prompts, routes, net, known)


def split_log(log: Log, share: float) -> tuple[Log, Log]:
    """Return the rows to train on and the ``share`` held out; rows of one prompt stay together, and a prompt always on its side."""

    def held(prompt: str) -> bool:
        return int(sha256(prompt.encode()).hexdigest()[:8], 16) < share * 2**32

    return log.part(lambda prompt: not held(prompt)), log.part(held)


class LogTask:
    """Rows of a log, with the names of each actor's routes; a held-out one is ``like`` that of training.

    InputError without rows, for unknown routes, or if actors differ in the number of routes.
    """

    def __init__(
        self, log: Log, names: Sequence[Sequence[str]], embedder: Embedder, name: str, like: LogTask | None = None
    ) -> None:
        unknown = {route for row in log.routes for route, own in zip(row, names, strict=True) if route not in own}
        if unknown or not log.prompts or len(set(map(len, names))) > 1 or len(names[0]) < 2:
            what = f"{len(log.prompts)} rows, {[len(own) for own in names]} routes of the actors, unknown: {sorted(unknown)}"
            raise InputError(what, expected="rows to train on and to measure on, two or more known routes, as many for each actor")
        size, many = embedder.dimension, len(names)
        self.shape = Shape(size, many, len(names[0]), ((0, size),) * many)
        self.routes: dict[str, Any] = {"workers": [list(own) for own in names], "embedder": name}
        self.embeddings, self.rewards = embedder.embed(log.prompts), log.rewards
        self.actions = np.array([[own.index(route) for route, own in zip(row, names, strict=True)] for row in log.routes])
        self.logging: list[Callable[[Floats], NDArray[Any]]] = like.logging if like else []
        if log.probabilities is not None:
            self.probabilities = log.probabilities
            return
        if not like:
            self.logging = [logistic(self.embeddings, own, np.ones(len(own)), self.shape.choices) for own in self.actions.T]
        if not self.logging:
            raise InputError("held-out rows without probabilities", expected="probabilities in both files, or in none")
        self.probabilities = self._share(np.stack([one(self.embeddings) for one in self.logging], axis=1))

    def _share(self, probabilities: NDArray[Any]) -> NDArray[np.float64]:
        """Return what probabilities (n, K, A) give to the rows' joint routes, (n,)."""
        return np.asarray(
            np.take_along_axis(probabilities, self.actions[..., None], axis=-1)[..., 0].prod(axis=1), dtype=np.float64
        )

    def draw(self, n: int, seed: int) -> Experience:
        """Return ``n`` rows drawn with replacement as episodes of one step."""
        drawn = np.random.default_rng(seed).integers(len(self.rewards), size=n)
        seen, ended = torch.from_numpy(self.embeddings[drawn]), torch.ones(n, dtype=torch.bool)
        log_probs, rewards = (torch.as_tensor(column[drawn]).float() for column in (np.log(self.probabilities), self.rewards))
        return Experience(seen, torch.from_numpy(self.actions[drawn]), log_probs, rewards, seen, ended, ended)

    def estimate(self, probabilities: NDArray[Any]) -> dict[str, Any]:
        """Return the estimated reward of a policy with ``probabilities`` (n, K, A) on these rows, and its standard error.

        ``effective``: rows that the weights amount to, (sum w)^2 / sum w^2; the reward is null if no row has a weight.
        """
        weights = self._share(probabilities) / self.probabilities
        logged = {"logged": float(self.rewards.mean()), "episodes": len(self.rewards)}
        if not weights.any():
            return {"reward": None, "stderr": None, "effective": 0.0, **logged}
        share = weights / weights.sum()
        reward = float(share @ self.rewards)
        error = float(np.sqrt((share**2 * (self.rewards - reward) ** 2).sum()))
        return {"reward": reward, "stderr": error, "effective": float(1 / (share**2).sum()), **logged}


def logistic(seen: Floats, chosen: NDArray[Any], weights: NDArray[Any], choices: int) -> Callable[[Floats], NDArray[Any]]:
    """Fit a multinomial logistic regression with a ridge penalty of 1; returns probabilities (n, A) of observations (n, size)."""
    inputs, targets = torch.from_numpy(seen).double(), torch.from_numpy(chosen)
    scale = torch.as_tensor(weights).double()
    table = torch.zeros(inputs.shape[1] + 1, choices, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([table], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        fit = torch.nn.functional.cross_entropy(inputs @ table[:-1] + table[-1], targets, reduction="none")
        total = (scale * fit).sum() + table[:-1].square().sum() / 2
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    fitted = table.detach().numpy()
    return lambda given: np.asarray(torch.softmax(torch.from_numpy(given @ fitted[:-1] + fitted[-1]), dim=-1).numpy())
