"""Advantages by hand, against an independent computation with torch, and against TRL's own formula."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from memalpha.training.advantages import Scale, advantages

NAN = math.nan
REWARDS = st.floats(-5, 5).map(lambda x: round(x, 3))


def test_a_group_by_hand():
    # mean 2, squared distances 1, 0, 1, unbiased standard deviation sqrt(2 / 2) = 1
    assert advantages([1.0, 2.0, 3.0], "aaa") == pytest.approx([-1 / 1.0001, 0.0, 1 / 1.0001], abs=1e-12)
    assert advantages([1.0, 2.0, 3.0], "aaa", Scale.NONE) == [-1.0, 0.0, 1.0]


def test_groups_have_baselines_of_their_own():
    found = advantages([0.0, 10.0, 4.0, 14.0], "abab", Scale.NONE)
    assert found == [-2.0, -2.0, 2.0, 2.0]
    # in a group: standard deviation sqrt(4 + 4); of all four: mean 7, sqrt((49 + 9 + 9 + 49) / 3)
    assert advantages([0.0, 10.0, 4.0, 14.0], "abab") == pytest.approx(np.array(found) / (8**0.5 + 1e-4))
    assert advantages([0.0, 10.0, 4.0, 14.0], "abab", Scale.BATCH) == pytest.approx(np.array(found) / ((116 / 3) ** 0.5 + 1e-4))


def test_masked_rows_enter_nothing():
    found = advantages([1.0, NAN, 3.0, NAN, 7.0], "aaabb", Scale.GROUP)
    assert found == pytest.approx([-1 / (2**0.5 + 1e-4), 0.0, 1 / (2**0.5 + 1e-4), 0.0, 0.0])
    # in the batch's deviation all scored rows count, also the 7 that has nobody to be compared with
    std = np.std([1.0, 3.0, 7.0], ddof=1)
    found = advantages([1.0, NAN, 3.0, NAN, 7.0], "aaabb", Scale.BATCH)
    assert found == pytest.approx([-1 / (std + 1e-4), 0.0, 1 / (std + 1e-4), 0.0, 0.0])


@pytest.mark.parametrize("scale", Scale)
def test_groups_without_two_scored_rows_teach_nothing(scale):
    assert advantages([5.0, NAN, 9.0, NAN, NAN], "abbcc", scale) == [0.0] * 5
    assert advantages([], [], scale) == []


@pytest.mark.parametrize("scale", Scale)
def test_equal_rewards_teach_nothing(scale):
    assert advantages([0.1, 0.1, 0.1, 2.0, 2.0], "aaabb", scale) == pytest.approx([0.0] * 5, abs=1e-9)


def test_a_key_for_each_row_is_needed():
    with pytest.raises(ValueError, match="zip"):
        advantages([1.0, 2.0], "a")


@given(st.lists(st.tuples(REWARDS | st.just(NAN), st.sampled_from("abcd")), max_size=20), st.sampled_from(Scale))
def test_against_numpy_over_ragged_groups(rows, scale):
    rewards, groups = np.array([r for r, _ in rows]), np.array([g for _, g in rows])
    expected = np.zeros(len(rows))
    scored = ~np.isnan(rewards) if rows else np.zeros(0, bool)
    for group in set(groups.tolist()):
        mine = (groups == group) & scored
        if mine.sum() >= 2:
            divisor = {"none": 1.0, "group": rewards[mine].std(ddof=1) + 1e-4}.get(scale)
            divisor = rewards[scored].std(ddof=1) + 1e-4 if divisor is None else divisor
            expected[mine] = (rewards[mine] - rewards[mine].mean()) / divisor
    assert advantages(rewards.tolist(), groups.tolist(), scale) == pytest.approx(expected.tolist(), rel=1e-6, abs=1e-6)


@given(
    st.integers(2, 5).flatmap(
        lambda g: st.tuples(st.just(g), st.lists(st.lists(REWARDS | st.just(NAN), min_size=g, max_size=g), min_size=1, max_size=5))
    ),
    st.sampled_from(Scale),
)
def test_step_groups_are_normalised_as_by_trl(case, scale):
    """GRPOTrainer: rewards.view(-1, G), nanmean, nanstd, (r - mean) / (std + 1e-4), NaN to 0."""
    from trl.trainer.utils import nanstd

    size, groups = case
    rewards = torch.tensor(groups, dtype=torch.float64).flatten()
    grouped = rewards.view(-1, size)
    expected = rewards - torch.nanmean(grouped, dim=1).repeat_interleave(size)
    if scale is Scale.GROUP:
        expected = expected / (nanstd(grouped, dim=1).repeat_interleave(size) + 1e-4)
    if scale is Scale.BATCH:
        expected = expected / (nanstd(rewards) + 1e-4)
    expected = torch.nan_to_num(expected, nan=0.0)
    keys = [index // size for index in range(len(rewards))]
    alone = [key for key in set(keys) if torch.isfinite(grouped[key]).sum() == 1]
    found = advantages(rewards.tolist(), keys, scale)
    for key, value, theirs in zip(keys, found, expected.tolist(), strict=True):
        assert value == (0.0 if key in alone else pytest.approx(theirs, rel=1e-6, abs=1e-6))


@given(st.lists(st.tuples(REWARDS, st.sampled_from("ab")), min_size=2, max_size=12), st.floats(-3, 3), st.randoms())
def test_only_differences_inside_a_group_count(rows, shift, rng):
    rewards, groups = [r for r, _ in rows], [g for _, g in rows]
    found = advantages(rewards, groups)
    moved = [r + (shift if g == "a" else 0.0) for r, g in rows]
    assert advantages(moved, groups) == pytest.approx(found, abs=1e-6)
    order = list(range(len(rows)))
    rng.shuffle(order)
    mixed = advantages([rewards[i] for i in order], [groups[i] for i in order])
    assert mixed == pytest.approx([found[i] for i in order], abs=1e-9)
    for group in Counter(groups):
        assert sum(a for a, g in zip(found, groups, strict=True) if g == group) == pytest.approx(0.0, abs=1e-6)
