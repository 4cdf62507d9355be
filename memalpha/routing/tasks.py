"""The routing task protocol, and a synthetic task with a known optimum.

A task is a batch of episodes in lockstep. In each step K *deciders* choose one of A options each and the team earns one reward. A
state is a tuple of arrays whose first axis is the episode, so ``Episodes`` can restart single episodes.

Synthetic task (after the second public router): prompts are random unit vectors, each option has hidden specialty vectors, and the
reward is the cosine with Gaussian noise. What always holds: the best expected return is known exactly at the start, because all
prompts of an episode are drawn then; with one facet a random choice earns 0 on average. Departures: several deciders with separate
views; episodes of several steps and unequal length; several facets per option (the nearest counts, so the reward is not linear in
the prompt); noise-free held-out states.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from memalpha.config import Options
from memalpha.policies import Shape

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
State = tuple[NDArray[Any], ...]
"""Arrays of shape (episodes, ...)."""


class Outcome(NamedTuple):
    """Result of one step: the next state, rewards (n,) and whether each episode is over (n,)."""

    state: State
    rewards: NDArray[np.float64]
    ended: NDArray[np.bool_]


class Task(Protocol):
    """A routing task; ``shape`` is that of its policies; observations lie between -1 and 1."""

    shape: Shape

    def start(self, n: int, rng: np.random.Generator) -> State:
        """Return ``n`` new episodes."""
        ...

    def held_out(self, n: int, seed: int) -> State:
        """Return at most ``n`` held-out starts; the same for the same seed."""
        ...

    def observe(self, state: State) -> Floats:
        """Return the observations, shape (n, size)."""
        ...

    def act(self, state: State, actions: Integers, rng: np.random.Generator | None) -> Outcome:
        """Take one step by actions (n, deciders), from 0 to ``choices`` - 1; ``rng`` None gives expected rewards."""
        ...

    def optimum(self, state: State) -> NDArray[np.float64]:
        """Return the best expected return, undiscounted, of new episodes, shape (n,)."""
        ...

    def routes(self) -> dict[str, Any]:
        """Return what a trained router needs to know of this task, as plain data for its checkpoint."""
        ...


class Episodes:
    """``n`` episodes of a task in lockstep; one that ends is followed by another at once."""

    def __init__(self, task: Task, n: int, seed: int) -> None:
        self.task, self._rng = task, np.random.default_rng(seed)
        self._state = task.start(n, self._rng)

    def observe(self) -> Floats:
        """Return the observations, shape (n, size)."""
        return self.task.observe(self._state)

    def step(self, actions: Integers) -> tuple[NDArray[np.float64], NDArray[np.bool_], Floats]:
        """Take one step by ``actions`` (n, K); returns rewards (n,), ended (n,) and observations before any restart."""
        state, rewards, ended = self.task.act(self._state, actions, self._rng)
        reached = self.task.observe(state)
        if ended.any():
            state = tuple(array.copy() for array in state)
            for array, fresh in zip(state, self.task.start(int(ended.sum()), self._rng), strict=True):
                array[ended] = fresh
        self._state = state
        return rewards, ended, reached


@dataclass(frozen=True, slots=True)
class SyntheticOptions(Options):
    """The synthetic task.

    Attributes:
        dimension: Length of a prompt.
        choices: Options of each decider.
        deciders: Routers that choose at a time, each for its own prompt.
        facets: Hidden specialties of each option; the nearest to the prompt counts.
        noise: Standard deviation of the reward's noise.
        steps: Most steps of an episode.
        p_end: Probability that an episode ends after a step, so that episodes differ in length.
        seed: Draws the hidden specialties.
    """

    dimension: PositiveInt = 32
    choices: Annotated[int, Field(ge=2)] = 4
    deciders: PositiveInt = 1
    facets: PositiveInt = 1
    noise: NonNegativeFloat = 0.1
    steps: PositiveInt = 1
    p_end: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: NonNegativeInt = 42


class SyntheticTask:
    """Cosine to hidden ``specialties`` (K, A, facets, D) plus noise; a ``Task``.

    States hold prompts (n, steps, K, D), lengths (n,) and the step each episode is at (n,).
    """

    def __init__(self, options: SyntheticOptions = SyntheticOptions()) -> None:
        self.options = o = options
        views = tuple((k * o.dimension, (k + 1) * o.dimension) for k in range(o.deciders))
        self.shape = Shape(o.deciders * o.dimension, o.deciders, o.choices, views)
        rng = np.random.default_rng(o.seed)
        self.specialties = _unit(rng.normal(size=(o.deciders, o.choices, o.facets, o.dimension)))

    def start(self, n: int, rng: np.random.Generator) -> State:
        """Draw ``n`` episodes."""
        o = self.options
        prompts = _unit(rng.normal(size=(n, o.steps, o.deciders, o.dimension)))
        lengths = np.minimum(rng.geometric(o.p_end, size=n), o.steps) if o.p_end else np.full(n, o.steps)
        return prompts, lengths, np.zeros(n, dtype=np.int64)

    def held_out(self, n: int, seed: int) -> State:
        """Draw ``n`` episodes that no training run draws."""
        return self.start(n, np.random.default_rng([seed, 1]))

    def observe(self, state: State) -> Floats:
        """Return the prompts of the current step, joined over deciders, shape (n, K * D)."""
        return self._prompts(state).reshape(len(state[2]), -1).astype(np.float32)

    def act(self, state: State, actions: Integers, rng: np.random.Generator | None) -> Outcome:
        """Return the mean over deciders of the chosen cosines, with noise, and go to the next prompt."""
        prompts, lengths, at = state
        gains = self._gains(self._prompts(state))
        rewards = np.take_along_axis(gains, actions[..., None], axis=-1)[..., 0].mean(axis=-1)
        if rng is not None:
            rewards = rewards + rng.normal(scale=self.options.noise, size=rewards.shape)
        return Outcome((prompts, lengths, at + 1), rewards, at + 1 >= lengths)

    def optimum(self, state: State) -> NDArray[np.float64]:
        """Return, summed over an episode's steps, the mean over deciders of the highest cosine."""
        prompts, lengths, _ = state
        best = self._gains(prompts).max(axis=-1).mean(axis=-1)  # (n, steps)
        return np.asarray((best * (np.arange(best.shape[1]) < lengths[:, None])).sum(axis=1))

    def routes(self) -> dict[str, Any]:
        """Return nothing: there is no router to use."""
        return {}

    def _prompts(self, state: State) -> NDArray[np.float64]:
        """The prompts of the current step, (n, K, D)."""
        prompts, _, at = state
        return np.asarray(prompts[np.arange(len(at)), np.minimum(at, prompts.shape[1] - 1)])

    def _gains(self, prompts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cosine of each option's nearest facet: (..., K, D) to (..., K, A)."""
        return np.asarray(np.einsum("...kd,kafd->...kaf", prompts, self.specialties).max(axis=-1))


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))
