from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.report.seeds import Band, Interval, band, interval, t_quantile

FINITE = st.floats(-100, 100, allow_nan=False)


def test_quantiles_are_those_of_the_printed_table() -> None:
    assert [round(t_quantile(freedom), 3) for freedom in (1, 2, 4, 10, 30)] == [12.706, 4.303, 2.776, 2.228, 2.042]


def test_an_interval_by_hand() -> None:
    # mean 2, unbiased standard deviation 1, standard error 1 / sqrt 3, 4.302653 of them
    found = interval([1.0, None, 2.0, math.nan, 3.0])
    assert found == Interval(2.0, pytest.approx(2 - 2.4841377), pytest.approx(2 + 2.4841377), 3)
    assert interval([0.5, None]) == Interval(0.5, None, None, 1)
    assert interval([None, math.nan]) is None


@given(st.lists(FINITE, min_size=2, max_size=8))
def test_an_interval_lies_around_its_mean(values: list[float]) -> None:
    found = interval(values)
    assert found is not None and found.low is not None and found.high is not None
    assert found.mean == pytest.approx(statistics.fmean(values), abs=1e-9)
    assert found.high - found.mean == pytest.approx(found.mean - found.low, abs=1e-9)
    error = statistics.stdev(values) / math.sqrt(len(values))
    assert found.high - found.mean == pytest.approx(t_quantile(len(values) - 1) * error, abs=1e-6)


def test_a_band_has_the_steps_that_every_run_has() -> None:
    first = [{"step": step, "reward": float(step)} for step in (1, 2, 3)]
    second = [{"step": step, "reward": 3.0 * step} for step in (1, 2)]
    found = band([first, second, [{"step": 1}]], ("reward",))
    assert (found.steps, found.mean, found.n) == ([1.0, 2.0], [2.0, 4.0], 2)
    # deviation sqrt 2 times the step, standard error the step itself
    assert found.low == pytest.approx([2 - 12.7062047, 4 - 2 * 12.7062047])
    assert found.high == pytest.approx([2 + 12.7062047, 4 + 2 * 12.7062047])


def test_a_band_of_one_run_is_its_rolling_mean() -> None:
    rows = [{"step": step, "reward": float(step)} for step in (1, 2, 3)]
    assert band([rows], ("reward",), window=2) == Band([1.0, 2.0, 3.0], [1.0, 1.5, 2.5], [], [], 1)
    assert band([], ("reward",)) == Band([], [], [], [], 0)
