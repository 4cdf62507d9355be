"""Means with intervals from a paired bootstrap over instances; scores are ``{seed: {instance:
score}}``.

An estimate is the mean over instances of the mean over seeds. Instances are resampled with
replacement, with one draw for every seed and for both systems of a difference. Percentile interval:
Efron and Tibshirani, *An Introduction to the Bootstrap*, 1993, section 13.3; too short for few
instances (10% at 20). ``scipy.stats.bootstrap`` would draw, and so publish, other intervals.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator

from memalpha.errors import InputError
from memalpha.files import known

Number = Annotated[float, BeforeValidator(known)]  # A float; NaN is null in JSON
Seed = int | str
Scores = Mapping[Seed, Mapping[str, float]]  # score by training seed, then by instance
RESAMPLES, LEVEL, SEED = 10_000, 0.95, 0  # number of resamples, confidence level and bootstrap seed
_ROUNDING = 1e-12  # numbers that lie closer together are the same, computed in another order
_AGREEMENT = (0.8, 1.25)
_BLOCK = 2_000_000  # draws of instances at once: 16 MB


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
    level: float = LEVEL

    @property
    def normal(self) -> tuple[float, float]:
        """The interval by the standard error: mean +- the normal quantile of ``level`` times
        ``stderr``.
        """
        reach = NormalDist().inv_cdf(0.5 + self.level / 2) * self.stderr
        return self.mean - reach, self.mean + reach

    @property
    def agree(self) -> bool | None:
        """Whether the percentile interval is 0.8 to 1.25 times as wide as ``normal``; None if
        unknown.
        """
        if math.isnan(self.stderr):
            return None
        low, high = self.normal
        if high - low < _ROUNDING:
            return self.high - self.low < _ROUNDING
        return _AGREEMENT[0] <= (self.high - self.low) / (high - low) <= _AGREEMENT[1]

    def __neg__(self) -> Estimate:
        by_seed = {seed: -value for seed, value in self.per_seed.items()}
        return replace(self, mean=-self.mean, low=-self.high, high=-self.low, per_seed=by_seed)


def estimate(scores: Scores, *, weights: Mapping[str, float] | None = None) -> Estimate:
    """Return the mean score of one system on one set, with ``weights`` above 0 by instance;
    InputError if scores are missing.
    """
    names = _instances(scores)
    if wrong := [name for name in names if weights is not None and not weights.get(name, 0.0) > 0]:
        raise InputError(
            f"{len(wrong)} instances have no weight above 0: {_some(wrong)}",
            expected="a weight for every instance",
        )
    n = len(names)
    values = np.array(
        [[row[name] for name in names] for row in scores.values()], dtype=np.float64
    )  # (seeds, instances)
    weight = (
        np.ones(n)
        if weights is None
        else np.asarray([weights[name] for name in names], dtype=np.float64)
    )
    over_seeds = _rounded(values.mean(axis=0))
    low, high, stderr = math.nan, math.nan, math.nan
    if n > 1:
        blocks = (
            _draws_kept(SEED, n, RESAMPLES)
            if n * RESAMPLES <= _BLOCK
            else _draws(SEED, n, RESAMPLES)
        )
        draws = [
            (counts @ (weight * over_seeds)) / (counts @ weight) for counts in blocks
        ]  # weighted means of resamples
        means = _rounded(np.concatenate(draws))
        low, high = map(float, np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]))
        residuals = weight * (
            over_seeds - np.average(over_seeds, weights=weight)
        )  # of the linearised ratio
        stderr = float(math.sqrt((residuals**2).sum() / (n - 1) / n) / weight.mean())
    mean = float(_rounded(np.average(over_seeds, weights=weight)))
    per_seed = {
        seed: float(np.average(row, weights=weight))
        for seed, row in zip(scores, values, strict=True)
    }
    return Estimate(mean, low, high, stderr, n, per_seed)


def difference(first: Scores, second: Scores) -> Estimate:
    """Return the mean of second - first, paired as in ``paired_scores``; InputError as there."""
    return estimate(paired_scores(first, second))


def paired_scores(first: Scores, second: Scores) -> dict[Seed, dict[str, float]]:
    """Return second - first, by instance and seed (other seeds are averaged first); InputError if
    instances do not match.
    """
    names = _instances(first)
    if unpaired := set(names) ^ set(_instances(second)):
        raise InputError(
            f"{len(unpaired)} instances are scored in one system and not in the other: {_some(unpaired)}"
        )
    if set(first) != set(second):
        if len(first) > 1 < len(second):
            first, second = _averaged(first, names), _averaged(second, names)
        elif len(first) == 1:
            first = dict.fromkeys(second, next(iter(first.values())))
        else:
            second = dict.fromkeys(first, next(iter(second.values())))
    return {
        seed: {name: after[name] - first[seed][name] for name in names}
        for seed, after in second.items()
    }


def _averaged(scores: Scores, names: Sequence[str]) -> Scores:
    return {
        "mean": {name: sum(row[name] for row in scores.values()) / len(scores) for name in names}
    }


def mean_over_sets(parts: Sequence[Estimate]) -> Estimate:
    """Return the unweighted mean over independent sets; the interval is by ``stderr``. InputError
    for none.

    ``per_seed`` has the seeds that every set has; a set with one seed counts for each of them.
    """
    if not parts:
        raise InputError("a mean over no sets", expected="at least one set")
    if len(parts) == 1:
        return parts[0]
    mean = sum(part.mean for part in parts) / len(parts)
    stderr = math.sqrt(sum(part.stderr**2 for part in parts)) / len(parts)
    several = [part for part in parts if len(part.per_seed) > 1]
    seeds = [
        seed
        for seed in (several or parts)[0].per_seed
        if all(seed in part.per_seed for part in several)
    ]
    shown = seeds if several else seeds[:1]
    by_seed = {
        seed: sum(part.per_seed.get(seed, part.mean) for part in parts) / len(parts)
        for seed in shown
    }
    found = Estimate(mean, math.nan, math.nan, stderr, sum(part.n for part in parts), by_seed)
    low, high = found.normal
    return replace(found, low=low, high=high)


def _instances(scores: Scores) -> list[str]:
    """Sorted instances; InputError if seeds differ in them or a score is NaN."""
    if not scores or not all(scores.values()):
        raise InputError(
            "there are no scores to take a mean of",
            expected="at least one seed with at least one instance",
        )
    everywhere = set.intersection(*(set(row) for row in scores.values()))
    lacking = set().union(*scores.values()) - everywhere
    lacking |= {name for row in scores.values() for name, score in row.items() if math.isnan(score)}
    if lacking:
        what = f"{len(lacking)} instances have no score (for every seed): {_some(lacking)}"
        raise InputError(
            what,
            expected=f"a score for every instance and seed of {list(scores)}",
            fix="run the evaluation again",
        )
    return sorted(everywhere)


def _some(names: Collection[str]) -> str:
    return ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")


def _rounded(values: Any) -> Any:
    """Set rounding noise to exactly 0, so that a true zero is not ``off_zero``."""
    return np.where(np.abs(values) < _ROUNDING, 0.0, values)


def _draws(seed: int, n: int, resamples: int) -> Iterator[NDArray[np.float64]]:
    """Counts of each of n instances in each resample, in blocks of shape (at most resamples, n)."""
    rng = np.random.default_rng([seed])
    block = max(1, _BLOCK // n)
    for start in range(0, resamples, block):
        yield rng.multinomial(n, np.full(n, 1 / n), size=min(block, resamples - start)).astype(
            np.float64
        )


@lru_cache(maxsize=4)
def _draws_kept(seed: int, n: int, resamples: int) -> tuple[NDArray[np.float64], ...]:
    return tuple(_draws(seed, n, resamples))
