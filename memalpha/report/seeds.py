"""Curves of several runs as one: mean and interval over seeds.

The interval is Student's 95% interval of the mean over runs, step by step, which takes the runs' values at a step for independent
and about normal; with two seeds it is wide, as it should be. What always holds: only steps that every run has enter, so a mean
never changes because a run ended early.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from memalpha.report.curves import rolling_mean, series
from memalpha.report.view import known

LEVEL = 0.95
"""Confidence of every interval."""


class Interval(NamedTuple):
    """A mean with the ends of its interval; the ends are None where one value is all there is."""

    mean: float
    low: float | None
    high: float | None
    n: int


class Band(NamedTuple):
    """A mean over runs and its interval at each step; ``low`` and ``high`` are empty for a single run."""

    steps: list[float]
    mean: list[float]
    low: list[float]
    high: list[float]
    n: int


def interval(values: Sequence[Any]) -> Interval | None:
    """Return mean and 95% t interval of the values that are known; None if none is."""
    found = [item for value in values if (item := known(value)) is not None]
    if not found:
        return None
    mean = math.fsum(found) / len(found)
    if len(found) < 2:
        return Interval(mean, None, None, 1)
    variance = math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1)
    reach = t_quantile(len(found) - 1) * math.sqrt(variance / len(found))
    return Interval(mean, mean - reach, mean + reach, len(found))


def band(runs: Sequence[Sequence[Mapping[str, Any]]], keys: Sequence[str], window: int = 1) -> Band:
    """Return mean and interval of a measure over runs.

    Args:
        runs: Rows of ``metrics.jsonl`` of each run; runs without the measure are left out (``n`` says how many have it).
        keys: Names of the measure; the first that a run has counts.
        window: Steps that each run's values are averaged over first.
    """
    curves = []
    for rows in runs:
        steps, values = series(rows, keys)
        if steps:
            curves.append(dict(zip(steps, rolling_mean(values, window), strict=True)))
    shared = sorted(set.intersection(*map(set, curves))) if curves else []
    points = [point for step in shared if (point := interval([curve[step] for curve in curves])) is not None]
    several = len(curves) > 1
    low = [point.low for point in points if point.low is not None] if several else []
    high = [point.high for point in points if point.high is not None] if several else []
    return Band(shared, [point.mean for point in points], low, high, len(curves))


def t_quantile(freedom: int) -> float:
    """Return how many standard errors the 95% interval of a mean reaches, for so many degrees of freedom."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, freedom))
