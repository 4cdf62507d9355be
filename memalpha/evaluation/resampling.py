"""Draws instances with replacement, many times at once: what the intervals of ``memalpha.evaluation.statistics`` are made from.

What always holds: the same seed, stream, number of instances and of resamples give the same draws, so systems with the
same instances are resampled alike; memory is bounded whatever their number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_BLOCK = 2_000_000  # draws of instances at once: 16 MB


def resampled_means(
    values: NDArray[np.float64], weights: NDArray[np.float64], resamples: int, seed: int, stream: str = ""
) -> NDArray[np.float64]:
    """Return the weighted means of resamples.

    How often each instance is drawn is multinomial, so a resample is one row of counts and its mean a product.

    Args:
        values: Of shape (instances,).
        weights: Of shape (instances,), above 0.
        resamples: How many times the instances are drawn.
        seed: Seed of the draws.
        stream: Another stream gives other draws of the same seed.

    Returns:
        Means of shape (resamples,).
    """
    import numpy as np

    n = len(values)
    small = n * resamples <= _BLOCK
    blocks = [_draws_kept(seed, stream, n, resamples)] if small else _draws(seed, stream, n, resamples)
    return np.concatenate([(counts @ (weights * values)) / (counts @ weights) for counts in blocks])


def _draws(seed: int, stream: str, n: int, resamples: int) -> Iterator[NDArray[np.float64]]:
    """How often each of n instances is in each resample, in blocks of shape (at most all resamples, n)."""
    import numpy as np

    rng = np.random.default_rng([seed, *stream.encode()])
    block = max(1, _BLOCK // n)
    for start in range(0, resamples, block):
        yield rng.multinomial(n, np.full(n, 1 / n), size=min(block, resamples - start)).astype(np.float64)


@lru_cache(maxsize=4)
def _draws_kept(seed: int, stream: str, n: int, resamples: int) -> NDArray[np.float64]:
    """``_draws`` in one block, kept because a table asks for the same ones again and again."""
    (counts,) = _draws(seed, stream, n, resamples)
    counts.flags.writeable = False
    return counts


def percentiles(means: NDArray[np.float64], level: float) -> tuple[float, float]:
    """Return the ends of the central interval that holds a share ``level`` of the means."""
    import numpy as np

    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def weighted_stderr(values: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Return the standard error of a mean over instances drawn with their weights (the linearised ratio); NaN below two."""
    import numpy as np

    n = len(values)
    if n < 2:
        return math.nan
    residuals = weights * (values - np.average(values, weights=weights))
    return float(math.sqrt((residuals**2).sum() / (n - 1) / n) / weights.mean())


__all__ = ["percentiles", "resampled_means", "weighted_stderr"]
