"""Advantages by hand, against an independent computation with numpy, and against TRL's own
formula."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.training.rows import Scale, advantages

NAN = math.nan
REWARDS = st.floats(-5, 5).map(lambda x: round(x, 3))
SCALES = st.sampled_from([Scale.GROUP, Scale.NONE])


def test_groups_by_hand():
    # mean 2, squared distances 1, 0, 1, unbiased standard deviation sqrt(2 / 2) = 1
    assert advantages([1.0, 2.0, 3.0], "aaa") == pytest.approx(
        [-1 / 1.0001, 0.0, 1 / 1.0001], abs=1e-12
    )
    found = advantages([0.0, 10.0, 4.0, 14.0], "abab", Scale.NONE)
    assert found == [-2.0, -2.0, 2.0, 2.0]
    assert advantages([0.0, 10.0, 4.0, 14.0], "abab") == pytest.approx(
        np.array(found) / (8**0.5 + 1e-4)
    )


@pytest.mark.parametrize("scale", [Scale.GROUP, Scale.NONE])
def test_masked_equal_and_lonely_rows_teach_nothing(scale):
    one = 1 / (2**0.5 + 1e-4) if scale is Scale.GROUP else 1.0
    assert advantages([1.0, NAN, 3.0, NAN, 7.0], "aaabb", scale) == pytest.approx(
        [-one, 0.0, one, 0.0, 0.0]
    )
    assert advantages([5.0, NAN, 9.0, NAN, NAN], "abbcc", scale) == [0.0] * 5
    assert advantages([0.1, 0.1, 0.1, 2.0, 2.0], "aaabb", scale) == pytest.approx(
        [0.0] * 5, abs=1e-9
    )
    assert advantages([], [], scale) == []


@given(st.lists(st.tuples(REWARDS | st.just(NAN), st.sampled_from("abcd")), max_size=20), SCALES)
def test_against_numpy_over_ragged_groups(rows, scale):
    rewards, groups = np.array([r for r, _ in rows]), np.array([g for _, g in rows])
    expected = np.zeros(len(rows))
    scored = ~np.isnan(rewards) if rows else np.zeros(0, bool)
    for group in set(groups.tolist()):
        mine = (groups == group) & scored
        if mine.sum() >= 2:
            divisor = 1.0 if scale is Scale.NONE else rewards[mine].std(ddof=1) + 1e-4
            expected[mine] = (rewards[mine] - rewards[mine].mean()) / divisor
    assert advantages(rewards.tolist(), groups.tolist(), scale) == pytest.approx(
        expected.tolist(), rel=1e-6, abs=1e-6
    )
