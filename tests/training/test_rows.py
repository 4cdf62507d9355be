"""Training rows: order, contents, advantages by hand and against numpy, the order of instances."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memalpha.rewards import RewardConfig
from memalpha.training.credit import make_credit
from memalpha.training.rows import Scale, advantages, shuffle_advantages
from memalpha.training.schedule import instances_of_draw, spread
from tests.helpers.rollouts import make_agent, make_instance, run_script, step_reward

CONFIG = RewardConfig(1.0, 0.5, 0.0, 0.0)
NAN = math.nan


@pytest.fixture(scope="module")
def rollouts():
    """Two rollouts of an instance of two chunks, two of an instance of one."""
    long, short = make_instance("long", "apple boat", "candle"), make_instance("short", "door")
    return run_script(
        make_agent(),
        [long, long, short, short],
        ["+ apple", "+ boat", "+ door", "."],
        ["+ candle", "- 1"],
    )


def parts(accuracy, tool):
    return step_reward(accuracy, tool, 0.5, NAN)


REWARDS = [
    [parts(1.0, 1.0), parts(1.0, 0.0)],  # totals 1.5, 1.0
    [parts(0.5, 1.0), parts(0.5, 1.0)],  # totals 1.0, 1.0
    [parts(0.0, 1.0)],  # 0.5
    [parts(1.0, 0.0)],  # 1.0
]


def build(rollouts, rewards=REWARDS, group_size=2, credit="step", scale=Scale.NONE):
    return make_credit(credit).rows(rollouts, rewards, group_size, CONFIG, scale, None)


def test_rows_stand_by_instance_chunk_rollout(rollouts):
    rows = build(rollouts)
    places = [(row.group_index, row.chunk_index, row.rollout_index) for row in rows]
    assert places == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 2), (1, 0, 3)]
    assert [row.total for row in rows] == [1.5, 1.0, 1.0, 1.0, 0.5, 1.0]
    for row in rows:
        step = rollouts[row.rollout_index].steps[row.chunk_index]
        assert row.prompt_ids is step.prompt.ids and row.completion_ids is step.completion.ids
        assert (row.shared, row.sampled) == (step.prompt.shared, None)
        assert row.completion_ids[-1] == 2  # the end token is trained
    for first, second in zip(rows[::2], rows[1::2], strict=True):  # a group shares its prefix
        assert first.prompt_ids[: first.shared] == second.prompt_ids[: second.shared]


def test_advantages_by_step_and_by_trajectory(rollouts):
    assert [row.advantage for row in build(rollouts)] == [0.25, -0.25, 0.0, 0.0, -0.25, 0.25]
    one = 0.25 / (0.5 / 2**0.5 + 1e-4)
    assert [row.advantage for row in build(rollouts, scale=Scale.GROUP)] == pytest.approx(
        [one, -one, 0.0, 0.0, -one, one]
    )
    # long: totals 1.5, 1, 1, 1, mean 1.125; short as by step
    rows = build(rollouts, credit="trajectory")
    assert [row.advantage for row in rows] == [0.375, -0.125, -0.125, -0.125, -0.25, 0.25]


def test_groups_must_be_whole_and_of_one_instance(rollouts):
    with pytest.raises(
        ValueError,
        match=r"rollouts 0 to 2 should be 3 of one instance, but are of \['long', 'long', 'short'\]",
    ):
        build(rollouts, group_size=3)
    for rewards in (REWARDS[:3], [REWARDS[2], *REWARDS[1:]]):
        with pytest.raises(ValueError, match="zip"):
            build(rollouts, rewards)


def test_shuffling_permutes_the_advantages_of_scored_rows_alone(rollouts):
    rows = build(rollouts)
    made = [
        replace(rows[0], advantage=float(i), total=NAN if i % 3 == 0 else 0.0) for i in range(30)
    ]
    shuffled = [replace(row) for row in made]
    shuffle_advantages(shuffled, seed=1)
    values = [row.advantage for row in shuffled]
    assert values[::3] == [row.advantage for row in made][::3]
    assert sorted(values) == [float(i) for i in range(30)]
    assert sum(value != i for i, value in enumerate(values)) > 10


# ------------------------------------------------------------------------------------------------
# the order of instances
@given(st.lists(st.integers(1, 30), min_size=1, max_size=4), st.integers(0, 1000), st.data())
def test_any_stretch_has_about_its_share_of_each_source(sizes, seed, data):
    sources = [str(name) for name, size in enumerate(sizes) for _ in range(size)]
    order = spread(sources, seed)
    assert sorted(order) == list(range(len(sources)))
    start = data.draw(st.integers(0, len(order)))
    stop = data.draw(st.integers(start, len(order)))
    counts = Counter(sources[index] for index in order[start:stop])
    for name, size in enumerate(sizes):
        assert abs(counts[str(name)] - (stop - start) * size / len(sources)) <= len(sizes)


def test_an_epoch_has_an_order_of_its_own_and_what_is_left_over_is_not_read():
    sources = ["a", "a", "a", "b", "b", "b", "b"]
    batches = [instances_of_draw(sources, batch, groups=2, seed=7) for batch in range(6)]
    assert [*batches[0], *batches[1], *batches[2]] == spread(sources, 7)[:6]
    assert [*batches[3], *batches[4], *batches[5]] == spread(sources, 8)[:6]
    plain = torch.randperm(9, generator=torch.Generator().manual_seed(5)).tolist()
    assert spread(["a"] * 9, 5) == plain  # one source alone


NUMBERS = st.floats(-5, 5).map(lambda x: round(x, 3))
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


@given(st.lists(st.tuples(NUMBERS | st.just(NAN), st.sampled_from("abcd")), max_size=20), SCALES)
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
