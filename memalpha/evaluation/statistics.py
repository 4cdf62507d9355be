"""How sure a mean is: paired bootstrap over instances, for one system, two systems, several training seeds and several sets.

Scores come as ``{seed: {instance: score}}``. One estimate is the mean over instances of the mean over seeds; its interval comes
from drawing the *instances* with replacement, the same draw for every seed (and for both systems of a difference), so what makes
an instance hard for all cancels. Seeds are not drawn: three of them say little about the spread over seeds, so each is shown.

What always holds: the same data and seed of the bootstrap give the same numbers, whatever else is estimated and in what order; a
score that is missing or unknown (NaN) is an InputError that names it, never left out; an interval from one instance is unknown
(NaN), not of width 0.

Two intervals are given, which should agree: the percentiles of the resampled means (Efron and Tibshirani, *An Introduction to the
Bootstrap*, 1993, section 13.3) and the mean plus and minus 1.96 standard errors. ``agree`` says whether their widths do; where they
do not, there are too few instances, or a few of them decide. Percentile intervals are too short for few instances (a tenth at 20),
as they know nothing of Student's t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError
from memalpha.evaluation.resampling import percentiles, resampled_means, weighted_stderr

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Seed = int | str
"""Names a training seed."""

Scores = Mapping[Seed, Mapping[str, float]]
"""Score of each instance for each training seed."""

_ROUNDING = 1e-12
"""What lies closer together is the same number, computed in another order."""

_AGREEMENT = (0.8, 1.25)


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """How intervals are made.

    Attributes:
        resamples: How many times the instances are drawn.
        level: Share of the resampled means inside the interval.
        seed: Seed of the draws.
    """

    resamples: int = 10_000
    level: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        """Check both; InputError names the one that cannot be."""
        if self.resamples < 1:
            raise InputError(f"bootstrap: resamples is {self.resamples}", expected="at least 1, usually 10,000")
        if not 0 < self.level < 1:
            raise InputError(f"bootstrap: level is {self.level}", expected="a share between 0 and 1, such as 0.95")


DEFAULT = Bootstrap()
"""10,000 resamples, 95%."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its interval.

    Attributes:
        mean: Mean over instances of the mean over seeds.
        low: Lower end of the percentile interval; NaN for fewer than two instances.
        high: Upper end.
        stderr: Standard error of the mean over instances, by formula and not by resampling; NaN for fewer than two instances.
        n: Instances; over several sets, of all of them.
        per_seed: Mean over instances of each training seed, in the order of the seeds.
        level: Share of the resampled means inside the interval.
    """

    mean: float
    low: float
    high: float
    stderr: float
    n: int
    per_seed: Mapping[Seed, float] = field(default_factory=dict)
    level: float = 0.95

    @property
    def normal(self) -> tuple[float, float]:
        """The interval by the standard error: the mean plus and minus the normal quantile of ``level`` times it."""
        from statistics import NormalDist

        reach = NormalDist().inv_cdf(0.5 + self.level / 2) * self.stderr
        return self.mean - reach, self.mean + reach

    @property
    def agree(self) -> bool | None:
        """Whether the percentile interval is from 0.8 to 1.25 times as wide as the one by the standard error; None if unknown."""
        if math.isnan(self.stderr):
            return None
        low, high = self.normal
        if high - low < _ROUNDING:
            return self.high - self.low < _ROUNDING
        return _AGREEMENT[0] <= (self.high - self.low) / (high - low) <= _AGREEMENT[1]

    @property
    def off_zero(self) -> bool:
        """Whether the interval lies on one side of 0; False if it is not known."""
        return self.low > 0 or self.high < 0


def estimate(scores: Scores, options: Bootstrap = DEFAULT, *, weights: Mapping[str, float] | None = None) -> Estimate:
    """Return the mean score of one system on one set.

    Args:
        scores: Of the same instances for every seed.
        options: How the interval is made.
        weights: Weight of each instance, above 0; None weighs all the same. With the numbers of questions as
            weights the mean is that over all questions, while whole instances are still what is drawn.

    Raises:
        InputError: If a seed lacks an instance that another has, a score is NaN, or there are none.
    """
    names = _instances(scores)
    return _estimate(_matrix(scores, names), list(scores), _weights(weights, names), options)


def difference(first: Scores, second: Scores, options: Bootstrap = DEFAULT) -> Estimate:
    """Return the mean of second - first, paired by instance, and by training seed where both have the same ones.

    A system with one seed is paired with every seed of the other: a baseline that is not trained beside three trained adapters.

    Args:
        first: Scores of the system compared with.
        second: Scores of the system that is compared.
        options: How the interval is made.

    Raises:
        InputError: If the two were not scored on the same instances, or both have several seeds and not the same.
    """
    names = _instances(first)
    if unpaired := set(names) ^ set(_instances(second)):
        raise InputError(
            f"{len(unpaired)} instances are scored in one system and not in the other: {_some(unpaired)}",
            expected="the same instances in both",
            fix="finish the evaluation (run it again), or take those that both have and say so",
        )
    seeds = _paired_seeds(first, second)
    pairs = {seed: (first[a], second[b]) for seed, a, b in seeds}
    differences = {seed: {name: after[name] - before[name] for name in names} for seed, (before, after) in pairs.items()}
    return _estimate(_matrix(differences, names), list(pairs), _weights(None, names), options)


def mean_over_sets(parts: Sequence[Estimate]) -> Estimate:
    """Return the simple mean over sets, each counting the same whatever its size, of one system or of one difference.

    Sets are independent of one another, so ``stderr`` is the root of the sum of the sets' squared standard errors, over the number
    of sets; the interval is made from it. ``per_seed`` has the seeds that every set has; a set with one seed counts for each of
    them. The mean over one set is its own estimate.

    Args:
        parts: The estimate of each set.

    Raises:
        InputError: If there are no sets, or their intervals are not of one level.
    """
    if not parts:
        raise InputError("a mean over no sets", expected="at least one set")
    if len(parts) == 1:
        return parts[0]
    if len(levels := sorted({part.level for part in parts})) > 1:
        raise InputError(f"sets with intervals of the levels {levels}", expected="one level")
    found = Estimate(
        mean=sum(part.mean for part in parts) / len(parts),
        low=math.nan,
        high=math.nan,
        stderr=math.sqrt(sum(part.stderr**2 for part in parts)) / len(parts),
        n=sum(part.n for part in parts),
        per_seed=_seeds_of_all(parts),
        level=levels[0],
    )
    low, high = found.normal
    return replace(found, low=low, high=high)


def paired_scores(first: Scores, second: Scores) -> dict[Seed, dict[str, float]]:
    """Return second - first of each instance and seed, paired as ``difference`` pairs them; InputError as there."""
    difference(first, second, Bootstrap(resamples=1))
    return {
        seed: {name: second[b][name] - first[a][name] for name in sorted(first[a])} for seed, a, b in _paired_seeds(first, second)
    }


# ------------------------------------------------------------------------------------------------ what is checked
def _instances(scores: Scores) -> list[str]:
    """The instances of every seed, sorted; InputError if seeds differ in them or a score is unknown."""
    if not scores or not all(scores.values()):
        raise InputError("there are no scores to take a mean of", expected="at least one seed with at least one instance")
    everywhere = set.intersection(*(set(row) for row in scores.values()))
    if missing := set().union(*scores.values()) - everywhere:
        raise InputError(
            f"{len(missing)} instances are not scored for every seed: {_some(missing)}",
            expected=f"the same instances for the seeds {list(scores)}",
            fix="finish the evaluation (run it again)",
        )
    if unknown := {name for row in scores.values() for name, score in row.items() if math.isnan(score)}:
        raise InputError(
            f"{len(unknown)} instances have no score (their reader or judge failed): {_some(unknown)}",
            expected="a score for every instance",
            fix="run the evaluation again, which tries them again, or leave them out and say so",
        )
    return sorted(everywhere)


def _weights(weights: Mapping[str, float] | None, names: Sequence[str]) -> list[float] | None:
    if weights is None:
        return None
    if wrong := [name for name in names if not weights.get(name, 0.0) > 0]:
        raise InputError(f"{len(wrong)} instances have no weight above 0: {_some(wrong)}", expected="a weight for every instance")
    return [weights[name] for name in names]


def _paired_seeds(first: Scores, second: Scores) -> list[tuple[Seed, Seed, Seed]]:
    """Rows (seed shown, seed of the first, seed of the second)."""
    if set(first) == set(second):
        return [(seed, seed, seed) for seed in second]
    if len(first) == 1:
        return [(seed, next(iter(first)), seed) for seed in second]
    if len(second) == 1:
        return [(seed, seed, next(iter(second))) for seed in first]
    raise InputError(
        f"systems with the seeds {list(first)} and {list(second)} cannot be paired",
        expected="the same seeds, or one of the two with a single seed",
    )


def _seeds_of_all(parts: Sequence[Estimate]) -> dict[Seed, float]:
    several = [part for part in parts if len(part.per_seed) > 1]
    shared = [seed for seed in (several or parts)[0].per_seed if all(seed in part.per_seed for part in several)]
    if not several:
        shared = shared[:1]
    return {seed: sum(part.per_seed.get(seed, part.mean) for part in parts) / len(parts) for seed in shared}


def _some(names: Sequence[str] | set[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")


# ------------------------------------------------------------------------------------------------ what is computed
def _matrix(scores: Scores, names: Sequence[str]) -> NDArray[np.float64]:
    """Scores of shape (seeds, instances)."""
    import numpy as np

    return np.array([[row[name] for name in names] for row in scores.values()], dtype=np.float64)


def _rounded(values: Any) -> Any:
    """The same numbers without what rounding adds to a zero: a true zero must not lie on one side of 0."""
    import numpy as np

    return np.where(np.abs(values) < _ROUNDING, 0.0, values)


def _estimate(values: NDArray[np.float64], seeds: Sequence[Seed], weights: Sequence[float] | None, options: Bootstrap) -> Estimate:
    """Estimate from scores of shape (seeds, instances) and weights of shape (instances,)."""
    import numpy as np

    n = values.shape[1]
    weight = np.ones(n) if weights is None else np.asarray(weights, dtype=np.float64)
    over_seeds = _rounded(values.mean(axis=0))
    means = resampled_means(over_seeds, weight, options.resamples, options.seed)
    low, high = percentiles(_rounded(means), options.level) if n > 1 else (math.nan, math.nan)
    return Estimate(
        mean=float(_rounded(np.average(over_seeds, weights=weight))),
        low=low,
        high=high,
        stderr=weighted_stderr(over_seeds, weight),
        n=n,
        per_seed={seed: float(np.average(row, weights=weight)) for seed, row in zip(seeds, values, strict=True)},
        level=options.level,
    )


__all__ = ["Bootstrap", "DEFAULT", "Estimate", "Scores", "Seed", "difference", "estimate", "mean_over_sets", "paired_scores"]
