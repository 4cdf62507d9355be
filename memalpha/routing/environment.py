"""An environment of one's own, through Gymnasium's vector API, as a task: the observations are
vectors, the actions choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memalpha.config import Options, load_function
from memalpha.errors import InputError, MissingExtraError
from memalpha.policies import Shape
from memalpha.routing.tasks import Floats, Integers


@dataclass(frozen=True, slots=True)
class EnvironmentOptions(Options):
    """An environment: MODULE:CLASS of a ``gymnasium.Env``, or the id of a registered one, and what
    it is made with.
    """

    environment: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


class EnvironmentTask:
    """Copies of an environment that shows a Box of one axis and takes Discrete, or MultiDiscrete of
    equal sizes, one decider each.

    InputError for other spaces. All deciders see everything; the best return is not known.
    """

    def __init__(self, options: EnvironmentOptions) -> None:
        try:
            import gymnasium
        except ModuleNotFoundError as error:
            raise MissingExtraError("gymnasium", "routing") from error
        place, given = options.environment, dict(options.arguments)
        entry: Any = load_function(place, "environment") if ":" in place else place
        self._make: Any = (
            (lambda: entry(**given)) if ":" in place else (lambda: gymnasium.make(place, **given))
        )
        made = self._make()
        seen: Any = made.observation_space
        does: Any = made.action_space
        self._single = isinstance(does, gymnasium.spaces.Discrete)
        counts = [int(does.n)] if self._single else np.ravel(getattr(does, "nvec", [])).tolist()
        if (
            not isinstance(seen, gymnasium.spaces.Box)
            or len(seen.shape) != 1
            or len(set(counts)) != 1
        ):
            raise InputError(
                f"{place} of {seen} and {does}",
                expected="a Box of one axis, Discrete or MultiDiscrete of equal sizes",
            )
        size, many = int(seen.shape[0]), len(counts)
        self.shape, self.routes = (
            Shape(size, many, counts[0], ((0, size),) * many),
            {"environment": place},
        )

    def episodes(self, n: int, seed: int) -> _Running:
        """Return ``n`` copies that run in lockstep, through Gymnasium's vector API."""
        from gymnasium.vector import AutoresetMode, SyncVectorEnv

        return _Running(
            SyncVectorEnv([self._make] * n, autoreset_mode=AutoresetMode.SAME_STEP),
            seed,
            self._single,
        )


class _Running:
    def __init__(self, copies: Any, seed: int, single: bool) -> None:
        self._copies, self._single = copies, single
        self._seen = copies.reset(seed=seed)[0]

    def observe(self) -> Floats:
        return np.asarray(self._seen, dtype=np.float32)

    def step(
        self, actions: Integers
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Floats]:
        self._seen, rewards, terminated, truncated, told = self._copies.step(
            actions[:, 0] if self._single else actions
        )
        reached = self.observe().copy()
        for i in np.flatnonzero(terminated | truncated):
            reached[i] = told["final_obs"][i]
        return rewards, terminated, truncated, reached
