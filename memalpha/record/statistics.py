"""Means with 95% intervals from a paired bootstrap; scores are ``{seed: {instance: score}}``.

An estimate is the mean over instances of the mean over seeds. Instances are resampled with
replacement, with one draw for every seed and for both systems of a difference. Percentile interval:
Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, section 13.3; too short for few
instances (10% at 20). ``scipy.stats.bootstrap`` takes no weights and would draw other intervals
than those published.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError
from memalpha.record.shapes import Number

Seed = int | str
Scores = Mapping[Seed, Mapping[str, float]]  # score by training seed, then by instance
RESAMPLES = 10_000
LEVEL = 0.95  # of confidence
SEED = 0  # of the resamples
_ROUNDING = 1e-12  # numbers that lie closer together are the same, computed in another order
_AGREEMENT = (0.8, 1.25)


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over ``n`` instances with its interval; ``low``, ``high`` and ``stderr`` are NaN for
    fewer than two instances.
    """

    mean: float
    low: Number
    high: Number
    stderr: Number
    n: int
    per_seed: Mapping[Seed, float] = field(default_factory=dict)

    @property
    def agree(self) -> bool | None:
        """Whether the interval is 0.8 to 1.25 times as wide as that by the standard error; None if
        unknown.
        """
        if math.isnan(self.stderr):
            return None
        width = 2 * _reach(self.stderr)
        if width < _ROUNDING:
            return self.high - self.low < _ROUNDING
        return _AGREEMENT[0] <= (self.high - self.low) / width <= _AGREEMENT[1]

    def __neg__(self) -> Estimate:
        by_seed = {seed: -value for seed, value in self.per_seed.items()}
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low, per_seed=by_seed)


def estimate(scores: Scores, *, weights: Mapping[str, float] | None = None) -> Estimate:
    """Return the mean score of one system on one set, with ``weights`` above 0 by instance;
    InputError if scores are missing.
    """
    names = _instances(scores)
    weight_of = dict.fromkeys(names, 1.0) if weights is None else weights
    unweighted = [name for name in names if not weight_of.get(name, 0.0) > 0]
    if unweighted:
        raise InputError(
            f"{len(unweighted)} instances have no weight above 0: {_some(unweighted)}",
            expected="a weight for every instance",
        )
    n = len(names)
    weight = np.array([weight_of[name] for name in names], dtype=np.float64)
    in_order = itemgetter(*names)
    values = np.array([in_order(row) for row in scores.values()]).reshape(-1, n)  # (seeds, n)
    over_seeds = _round_noise(values.mean(axis=0))
    mean = np.average(over_seeds, weights=weight)
    low = high = stderr = math.nan
    if n > 1:
        counts = _draws(SEED, n, RESAMPLES)
        means = _round_noise((counts @ (weight * over_seeds)) / (counts @ weight))
        low, high = map(float, np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        residuals = weight * (over_seeds - mean)  # of the linearised ratio
        stderr = float(math.sqrt((residuals**2).sum() / (n - 1) / n) / weight.mean())
    by_seed = np.average(values, axis=1, weights=weight).tolist()
    per_seed = dict(zip(scores, by_seed, strict=True))
    return Estimate(float(_round_noise(mean)), low, high, stderr, n, per_seed)


def difference(first: Scores, second: Scores) -> Estimate:
    """Return the mean difference of two systems, second minus first, with its 95 % interval.

    Scores are paired by instance and seed. If the systems have different seeds, each system's
    scores are averaged over its seeds first; a system with one seed is paired with each.

    Args:
        first: Scores of the first system, by training seed and then by instance.
        second: Scores of the second system.

    Returns:
        The estimate over the instances.

    Raises:
        InputError: The instances of the two systems do not match.
    """
    names = _instances(first)
    unpaired = set(names) ^ set(_instances(second))
    if unpaired:
        raise InputError(
            f"{len(unpaired)} instances have a score in only one of the two "
            f"systems: {_some(unpaired)}",
        )
    if set(first) != set(second) and len(first) > 1 < len(second):
        first = {"mean": _over_seeds(first, names)}
        second = {"mean": _over_seeds(second, names)}
    elif len(first) < len(second):
        first = dict.fromkeys(second, *first.values())
    elif len(second) < len(first):
        second = dict.fromkeys(first, *second.values())
    changes = {}
    for seed, after in second.items():
        before = first[seed] if seed in first else next(iter(first.values()))
        changes[seed] = {name: after[name] - before[name] for name in names}
    return estimate(changes)


def mean_over_sets(parts: Sequence[Estimate]) -> Estimate:
    """Return the unweighted mean over independent sets; the interval is by ``stderr``. InputError
    for none.

    ``per_seed`` has the seeds that every set has; a set with one seed counts for each of them.
    """
    if not parts:
        raise InputError("there are no sets to take a mean of", expected="at least one set")
    if len(parts) == 1:
        return parts[0]
    mean = sum(part.mean for part in parts) / len(parts)
    stderr = math.sqrt(sum(part.stderr**2 for part in parts)) / len(parts)
    several = [part.per_seed for part in parts if len(part.per_seed) > 1]
    seeds = list(parts[0].per_seed)[:1]
    if several:
        shared = set.intersection(*map(set, several))
        seeds = [seed for seed in several[0] if seed in shared]
    by_seed = {}
    for seed in seeds:
        by_seed[seed] = sum(part.per_seed.get(seed, part.mean) for part in parts) / len(parts)
    reach = _reach(stderr)
    n = sum(part.n for part in parts)
    return Estimate(mean, mean - reach, mean + reach, stderr, n, by_seed)


def _reach(stderr: float) -> float:
    """Half the width of the interval by the standard error."""
    return NormalDist().inv_cdf(0.5 + LEVEL / 2) * stderr


def _over_seeds(scores: Scores, names: Sequence[str]) -> dict[str, float]:
    rows = list(scores.values())
    return {name: sum(map(itemgetter(name), rows)) / len(rows) for name in names}


def _instances(scores: Scores) -> list[str]:
    """Sorted instances; InputError if seeds differ in them or a score is NaN."""
    if not scores or not all(scores.values()):
        raise InputError(
            "there are no scores to take a mean of",
            expected="at least one seed with at least one instance",
        )
    names = sorted(set().union(*scores.values()))
    unscored = set[str]()
    for row in scores.values():
        unscored |= {name for name in names if math.isnan(row.get(name, math.nan))}
    if unscored:
        raise InputError(
            f"{len(unscored)} instances have no score (for every seed): {_some(unscored)}",
            expected=f"a score for every instance and seed of {list(scores)}",
            fix="run the evaluation again",
        )
    return names


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")


def _round_noise(values: Any) -> Any:
    """Set rounding noise to exactly 0, so that a true zero is no difference."""
    return np.where(np.abs(values) < _ROUNDING, 0.0, values)


@lru_cache(maxsize=2)
def _draws(seed: int, n: int, resamples: int) -> NDArray[np.float64]:
    """Counts of each of n instances in each resample, of shape (resamples, n)."""
    drawn = np.random.default_rng([seed]).multinomial(n, np.full(n, 1 / n), size=resamples)
    return drawn.astype(np.float64)
