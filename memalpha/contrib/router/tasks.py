"""Routing tasks: a synthetic one with a known optimum, a log, an environment of one's own.

A task is a batch of episodes in lockstep. In each step K *deciders* choose one of A options each,
and the team earns one reward. ``begin`` starts episodes; each has ``observe`` and ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt
from torch import Tensor

from memalpha.config import Options, Share, load_function
from memalpha.contrib.router.policy import Shape
from memalpha.data.rows import existing_file, iter_rows
from memalpha.errors import InputError, from_extra
from memalpha.types import Embedder, JsonMapping, JsonObject


@dataclass(frozen=True, slots=True)
class LogOptions(Options):
    """Options of a log of choices and rewards.

    Attributes:
        rows: This CSV, Parquet or JSON Lines file has ``prompt`` and ``reward`` in every row, and
            optionally ``cost`` and ``probability``.
        actors: These columns hold the routes: one, or one for each of several actors. The column
            ``probability`` is then of all actors together.
        cost: One unit of the column ``cost`` takes this much from the reward.
        held_out: This share of the prompts is kept for measurement, from 0 to 1, if there is no
            second file.
        embedder: This embedder turns the prompts into vectors.
    """

    rows: str
    actors: Annotated[tuple[str, ...], Field(min_length=1)] = ("route",)
    cost: NonNegativeFloat = 1.0
    held_out: Share = 0.2
    embedder: str = "minilm"


class Log(NamedTuple):
    """Rows: prompts, routes by name (n tuples), rewards less costs (n,), probabilities of the joint
    route (n,) or None.
    """

    prompts: list[str]
    routes: list[tuple[str, ...]]
    rewards: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None

    def part(self, wanted: Callable[[str], bool]) -> Log:
        """Return the rows whose prompt is wanted."""
        kept = [i for i, prompt in enumerate(self.prompts) if wanted(prompt)]
        known = None if self.probabilities is None else self.probabilities[kept]
        return Log(
            [self.prompts[i] for i in kept],
            [self.routes[i] for i in kept],
            self.rewards[kept],
            known,
        )


def read_log(options: LogOptions) -> Log:
    """Read a log; InputError names the row that does not fit, or says that some rows have a column
    and others not.
    """
    found = []
    for row in iter_rows(str(existing_file(options.rows))):
        data: Any = row.data
        try:
            given = [
                float(data[name]) if name in data else None for name in ("cost", "probability")
            ]
            found.append(
                (
                    str(data["prompt"]),
                    tuple(str(data[a]) for a in options.actors),
                    float(data["reward"]),
                    *given,
                )
            )
        except (KeyError, TypeError, ValueError) as error:
            names = ", ".join(options.actors)
            expected = f"prompt, {names}, reward, and cost and probability in all rows or none"
            raise InputError(
                f"{row.where} of the log cannot be read: {error!r}", expected=expected
            ) from error
    if not found:
        raise InputError(f"{options.rows} has no rows", expected="at least one")
    prompts, routes, rewards, *columns = map(list, zip(*found, strict=True))
    if any(None in column and set(column) != {None} for column in columns):
        raise InputError(
            f"{options.rows} has a cost or a probability in only some of its rows",
            expected="a value in all rows or in none",
        )
    costs, known = (
        None if column[0] is None else np.array(column, dtype=np.float64) for column in columns
    )
    net = np.array(rewards) - options.cost * (0 if costs is None else costs)
    if not np.isfinite(net).all() or (known is not None and not ((known > 0) & (known <= 1)).all()):
        raise InputError(
            f"{options.rows} holds numbers out of range",
            expected="finite rewards and costs, probabilities above 0 and at most 1",
        )
    return Log(prompts, routes, net, known)


def split_log(log: Log, share: float) -> tuple[Log, Log]:
    """Return the rows to train on and the ``share`` held out; rows of one prompt stay together, and
    a prompt always on its side.
    """

    def held(prompt: str) -> bool:
        return int(sha256(prompt.encode()).hexdigest()[:8], 16) < share * 2**32

    return log.part(lambda prompt: not held(prompt)), log.part(held)


# ------------------------------------------------------------------------------------------------
# tasks

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
# Rewards (n,), terminated (n,), truncated (n,), observations before any restart (n, size).
Stepped = tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Floats]


# ------------------------------------------------------------------------------------- synthetic
@dataclass(frozen=True, slots=True)
class SyntheticOptions(Options):
    """Options of the synthetic task.

    Attributes:
        dimension: A prompt is a vector of this length.
        choices: Each decider has this many options, at least 2.
        deciders: This many routers choose at a time, each for its own prompt.
        facets: Each option has this many hidden specialties, of which the nearest to the prompt
            counts.
        noise: The reward has noise of this standard deviation.
        steps: An episode has at most this many steps.
        p_end: An episode ends after each step with this probability.
        seed: The hidden specialties are drawn from this seed.
    """

    dimension: PositiveInt = 32
    choices: Annotated[int, Field(ge=2)] = 4
    deciders: PositiveInt = 1
    facets: PositiveInt = 1
    noise: NonNegativeFloat = 0.1
    steps: PositiveInt = 1
    p_end: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: NonNegativeInt = 42


class Prompts(NamedTuple):
    """Episodes of the synthetic task: prompts (n, steps, K, D), lengths (n,), the step each is at
    (n,).
    """

    vectors: NDArray[np.float64]
    lengths: Integers
    at: Integers


class SyntheticTask:
    """Prompts are random unit vectors, each option has hidden ``specialties`` (K, A, facets, D),
    and the reward is the mean cosine of the chosen ones, with noise.

    All prompts of an episode are drawn at its start, so the best expected return is known.
    """

    def __init__(self, options: SyntheticOptions | None = None) -> None:
        self.options = options or SyntheticOptions()
        dimension = self.options.dimension
        deciders = self.options.deciders
        choices = self.options.choices
        views = tuple((k * dimension, (k + 1) * dimension) for k in range(deciders))
        self.shape = Shape(deciders * dimension, deciders, choices, views)
        self.routes: JsonObject = {}
        rng = np.random.default_rng(self.options.seed)
        size = (deciders, choices, self.options.facets, dimension)
        self.specialties = _unit(rng.normal(size=size))

    def draw(self, n: int, rng: np.random.Generator) -> Prompts:
        """Draw ``n`` new episodes."""
        options = self.options
        size = (n, options.steps, options.deciders, options.dimension)
        vectors = _unit(rng.normal(size=size))
        lengths = np.full(n, options.steps)
        if options.p_end:
            lengths = np.minimum(rng.geometric(options.p_end, size=n), options.steps)
        return Prompts(vectors, lengths, np.zeros(n, dtype=np.int64))

    def begin(self, n: int, seed: int, *, held_out: bool = False) -> SyntheticEpisodes:
        """Return ``n`` episodes; held out: those that no training run draws, without noise."""
        rng = np.random.default_rng([seed, 1] if held_out else seed)
        return SyntheticEpisodes(self, n, rng, held_out)

    def gains(self, vectors: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the cosine of each option's nearest facet: (..., K, D) to (..., K, A)."""
        cosines = np.einsum("...kd,kafd->...kaf", vectors, self.specialties)
        return np.asarray(cosines.max(axis=-1))


class SyntheticEpisodes:
    """``n`` episodes in lockstep; one that ends is followed by another at once, if it is not held
    out. ``optimum`` (n,): the best expected return, undiscounted, of held-out ones.
    """

    def __init__(
        self, task: SyntheticTask, n: int, rng: np.random.Generator, held_out: bool
    ) -> None:
        self._task = task
        self._rng = rng
        self._held_out = held_out
        self._prompts = task.draw(n, rng)
        best = task.gains(self._prompts.vectors).max(axis=-1).mean(axis=-1)  # (n, steps)
        counted = np.arange(best.shape[1]) < self._prompts.lengths[:, None]
        self.optimum = np.asarray((best * counted).sum(axis=1))

    def observe(self) -> Floats:
        """Return the prompts of the current step, joined over deciders, (n, K * D)."""
        return self._flat(self._prompts)

    def step(self, actions: Integers) -> Stepped:
        """Take one step by ``actions`` (n, K), 0 to A - 1."""
        prompts = self._prompts
        gains = self._task.gains(self._current(prompts))
        chosen = np.take_along_axis(gains, actions[..., None], axis=-1)[..., 0]
        rewards = chosen.mean(axis=-1)
        if not self._held_out:
            rewards = rewards + self._rng.normal(scale=self._task.options.noise, size=rewards.shape)
        after = prompts._replace(at=prompts.at + 1)
        ended = after.at >= after.lengths
        reached = self._flat(after)
        if ended.any() and not self._held_out:
            vectors, lengths, at = after
            after = Prompts(vectors.copy(), lengths.copy(), at.copy())
            fresh = self._task.draw(int(ended.sum()), self._rng)
            for column, values in zip(after, fresh, strict=True):
                column[ended] = values
        self._prompts = after
        return rewards, ended, np.zeros_like(ended), reached

    def _current(self, prompts: Prompts) -> NDArray[np.float64]:
        at = np.minimum(prompts.at, prompts.vectors.shape[1] - 1)
        return np.asarray(prompts.vectors[np.arange(len(at)), at])

    def _flat(self, prompts: Prompts) -> Floats:
        return self._current(prompts).reshape(len(prompts.at), -1).astype(np.float32)


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


# ------------------------------------------------------------------------------------- environment
@dataclass(frozen=True, slots=True)
class EnvironmentOptions(Options):
    """Options of a Gymnasium environment.

    Attributes:
        environment: This is MODULE:CLASS of a ``gymnasium.Env``, or the id of a registered one.
        arguments: The environment is made with these arguments.
    """

    environment: str
    arguments: JsonMapping = field(default_factory=dict)


class EnvironmentTask:
    """Copies of an environment that shows a Box of one axis and takes Discrete, or MultiDiscrete of
    equal sizes, one decider each.

    InputError for other spaces. All deciders see everything; the best return is not known.
    """

    def __init__(self, options: EnvironmentOptions) -> None:
        with from_extra("routing"):
            import gymnasium
        name = options.environment
        entry: Any = load_function(name, "environment") if ":" in name else None

        def make() -> Any:
            if entry is None:
                return gymnasium.make(name, **options.arguments)
            return entry(**options.arguments)

        self._make = make
        environment = make()
        observations: Any = environment.observation_space
        actions: Any = environment.action_space
        self._single = isinstance(actions, gymnasium.spaces.Discrete)
        if self._single:
            counts = [int(actions.n)]
        else:
            counts = np.ravel(getattr(actions, "nvec", [])).tolist()
        is_vector = isinstance(observations, gymnasium.spaces.Box) and len(observations.shape) == 1
        if not is_vector or len(set(counts)) != 1:
            expected = "a Box of one axis, Discrete or MultiDiscrete of equal sizes"
            raise InputError(
                f"the environment {name} has the observations {observations} and the actions "
                f"{actions}",
                expected=expected,
            )
        size = int(observations.shape[0])
        self.shape = Shape(size, len(counts), counts[0], ((0, size),) * len(counts))
        self.routes: JsonObject = {"environment": name}

    def begin(self, n: int, seed: int, *, held_out: bool = False) -> EnvironmentEpisodes:
        """Return ``n`` copies that run in lockstep, through Gymnasium's vector API."""
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        mode = AutoresetMode.SAME_STEP
        copies = SyncVectorEnv([self._make] * n, autoreset_mode=mode)
        return EnvironmentEpisodes(copies, seed, self._single)


class EnvironmentEpisodes:
    """Copies of an environment in lockstep; one that ends begins anew at once."""

    def __init__(self, copies: Any, seed: int, single: bool) -> None:
        self._copies = copies
        self._single = single
        self._observations = copies.reset(seed=seed)[0]

    def observe(self) -> Floats:
        """Return the observations, (n, size)."""
        return np.asarray(self._observations, dtype=np.float32)

    def step(self, actions: Integers) -> Stepped:
        """Take one step by ``actions`` (n, K)."""
        given = actions[:, 0] if self._single else actions
        self._observations, rewards, terminated, truncated, infos = self._copies.step(given)
        reached = self.observe().copy()
        for i in np.flatnonzero(terminated | truncated):
            reached[i] = infos["final_obs"][i]
        return rewards, terminated, truncated, reached


# ------------------------------------------------------------------------------------- log
class Experience(NamedTuple):
    """Old steps in order, (n, ...): ``log_probs`` (n,) of the joint action when it was taken;
    ``reached``: the next observation.
    """

    observations: Tensor
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor
    reached: Tensor
    terminated: Tensor
    last: Tensor


class LogTask:
    """Rows (prompt, route, reward, cost, probability) of a log, with the names of each actor's
    routes; a held-out one is ``like`` that of training.

    Where no row says with which probability its route was taken, a logistic regression of the route
    on the prompt estimates it. Training is off policy. InputError without rows, for unknown routes,
    or if actors differ in the number of routes.
    """

    def __init__(
        self,
        log: Log,
        names: Sequence[Sequence[str]],
        embedder: Embedder,
        name: str,
        like: LogTask | None = None,
    ) -> None:
        counts = [len(own) for own in names]
        try:
            actions = [_numbers(row, names) for row in log.routes]
        except ValueError as error:
            raise InputError(
                f"a route of the log is unknown: {error}", expected="a known route"
            ) from error
        if not actions or len(set(counts)) > 1 or counts[0] < 2:
            expected = (
                "rows for training and for measuring, and at least two routes, the "
                "same number for each actor"
            )
            raise InputError(
                f"the log has {len(actions)} rows, in which the actors have {counts} routes",
                expected=expected,
            )
        size = embedder.dimension
        self.shape = Shape(size, len(names), counts[0], ((0, size),) * len(names))
        self.routes: JsonObject = {"workers": [list(own) for own in names], "embedder": name}
        self.embeddings = embedder.embed(log.prompts)
        self.rewards = log.rewards
        self.actions = np.array(actions)
        self.logging: list[Callable[[Floats], NDArray[np.float64]]] = like.logging if like else []
        if log.probabilities is not None:
            self.probabilities = log.probabilities
            return
        if not like:
            weights = np.ones(len(self.actions))
            for own in self.actions.T:
                self.logging.append(logistic(self.embeddings, own, weights, counts[0]))
        if not self.logging:
            expected = "probabilities in both files or in none"
            raise InputError("the held-out rows have no probabilities", expected=expected)
        estimates = [estimate(self.embeddings) for estimate in self.logging]
        self.probabilities = self._of_rows(np.stack(estimates, axis=1))

    def _of_rows(self, probabilities: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return what probabilities (n, K, A) give to the rows' joint routes, (n,)."""
        taken = np.take_along_axis(probabilities, self.actions[..., None], axis=-1)[..., 0]
        return np.asarray(taken.prod(axis=1), dtype=np.float64)

    def draw(self, n: int, seed: int) -> Experience:
        """Return ``n`` rows drawn with replacement as episodes of one step."""
        drawn = np.random.default_rng(seed).integers(len(self.rewards), size=n)
        observations = torch.from_numpy(self.embeddings[drawn])
        ended = torch.ones(n, dtype=torch.bool)
        log_probs = torch.as_tensor(np.log(self.probabilities)[drawn]).float()
        rewards = torch.as_tensor(self.rewards[drawn]).float()
        actions = torch.from_numpy(self.actions[drawn])
        return Experience(observations, actions, log_probs, rewards, observations, ended, ended)

    def estimate(self, probabilities: NDArray[np.float64]) -> JsonObject:
        """Return the self-normalised estimate of the reward of a policy with ``probabilities``
        (n, K, A) on these rows, and its standard error.

        Swaminathan and Joachims 2015, "The self-normalized estimator for counterfactual learning",
        section 4: the mean reward weighted by ``policy / probability``. It knows nothing of routes
        that the log never took. ``effective``: rows that the weights amount to,
        (sum w)^2 / sum w^2; the reward is null if no row has a weight.
        """
        weights = self._of_rows(probabilities) / self.probabilities
        logged = {"logged": float(self.rewards.mean()), "episodes": len(self.rewards)}
        if not weights.any():
            return {"reward": None, "stderr": None, "effective": 0.0, **logged}
        share = weights / weights.sum()
        reward = float(share @ self.rewards)
        error = float(np.sqrt((share**2 * (self.rewards - reward) ** 2).sum()))
        effective = float(1 / (share**2).sum())
        return {"reward": reward, "stderr": error, "effective": effective, **logged}


def _numbers(routes: Sequence[str], names: Sequence[Sequence[str]]) -> list[int]:
    return [own.index(route) for route, own in zip(routes, names, strict=True)]


def logistic(
    observations: Floats, chosen: Integers, weights: NDArray[np.float64], choices: int
) -> Callable[[Floats], NDArray[np.float64]]:
    """Fit a multinomial logistic regression with a ridge penalty of 1; return a function from
    observations (n, size) to probabilities (n, A).
    """
    inputs = torch.from_numpy(observations).double()
    targets = torch.from_numpy(chosen)
    scale = torch.as_tensor(weights).double()
    table = torch.zeros(inputs.shape[1] + 1, choices, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([table], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = inputs @ table[:-1] + table[-1]
        losses = torch.nn.functional.cross_entropy(logits, targets, reduction="none")
        total = (scale * losses).sum() + table[:-1].square().sum() / 2
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    fitted = table.detach().numpy()

    def probabilities(given: Floats) -> NDArray[np.float64]:
        logits = torch.from_numpy(given @ fitted[:-1] + fitted[-1])
        return np.asarray(torch.softmax(logits, dim=-1).numpy())

    return probabilities


LiveTask = SyntheticTask | EnvironmentTask  # one can act in it
Task = LiveTask | LogTask
