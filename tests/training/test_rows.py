"""Training rows: their order, what they carry, and advantages by step and by instance, worked by hand."""

import math
from dataclasses import replace

import pytest
from memalpha.training.advantages import Grouping, Scale
from rollouts import make_agent, make_instance, run_script

from memalpha.rewards.total import RewardConfig, StepReward
from memalpha.training.rows import build_rows, shuffle_advantages

CONFIG = RewardConfig(1.0, 0.5, 0.0, 0.0)
NAN = math.nan


@pytest.fixture(scope="module")
def rollouts():
    """Two rollouts of an instance of two chunks, two of an instance of one."""
    long, short = make_instance("long", "apple boat", "candle"), make_instance("short", "door")
    return run_script(make_agent(), [long, long, short, short], ["+ apple", "+ boat", "+ door", "."], ["+ candle", "- 1"])


def parts(accuracy, tool):
    return StepReward(accuracy, tool, 0.5, NAN)


REWARDS = [
    [parts(1.0, 1.0), parts(1.0, 0.0)],  # totals 1.5, 1.0
    [parts(0.5, 1.0), parts(0.5, 1.0)],  # totals 1.0, 1.0
    [parts(0.0, 1.0)],  # 0.5
    [parts(1.0, 0.0)],  # 1.0
]


def build(rollouts, rewards=REWARDS, **settings):
    defaults = {"group_size": 2, "reward_config": CONFIG, "grouping": Grouping.STEP, "scale": Scale.NONE}
    return build_rows(rollouts, rewards, **{**defaults, **settings})


def test_rows_stand_by_instance_chunk_rollout(rollouts):
    rows = build(rollouts)
    assert [(row.group_index, row.chunk_index, row.rollout_index) for row in rows] == [
        (0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1), (1, 0, 2), (1, 0, 3),
    ]  # fmt: skip
    assert [row.total for row in rows] == [1.5, 1.0, 1.0, 1.0, 0.5, 1.0]
    for row in rows:
        step = rollouts[row.rollout_index].steps[row.chunk_index]
        assert row.prompt_ids is step.prompt.ids and row.completion_ids is step.completion.ids
        assert (row.shared, row.logprobs) == (step.prompt.shared, None)
        assert row.completion_ids[-1] == 2  # the end token is trained
        assert row.reward == REWARDS[row.rollout_index][row.chunk_index] or math.isnan(row.reward.content)


def test_every_group_of_rows_shares_its_prefix(rollouts):
    rows = build(rollouts)
    for first, second in zip(rows[::2], rows[1::2], strict=True):
        assert (first.group_index, first.chunk_index, first.shared) == (second.group_index, second.chunk_index, second.shared)
        assert first.prompt_ids[: first.shared] == second.prompt_ids[: second.shared]


def test_advantages_by_step(rollouts):
    assert [row.advantage for row in build(rollouts)] == [0.25, -0.25, 0.0, 0.0, -0.25, 0.25]
    scaled = [row.advantage for row in build(rollouts, scale=Scale.GROUP)]
    one = 0.25 / (0.5 / 2**0.5 + 1e-4)
    assert scaled == pytest.approx([one, -one, 0.0, 0.0, -one, one])


def test_advantages_by_instance(rollouts):
    # long: totals 1.5, 1, 1, 1, mean 1.125; short as by step
    rows = build(rollouts, grouping=Grouping.INSTANCE)
    assert [row.advantage for row in rows] == [0.375, -0.125, -0.125, -0.125, -0.25, 0.25]
    std = math.sqrt((0.375**2 + 3 * 0.125**2) / 3)
    scaled = [row.advantage for row in build(rollouts, grouping=Grouping.INSTANCE, scale=Scale.GROUP)]
    assert scaled[:4] == pytest.approx([0.375 / (std + 1e-4)] + [-0.125 / (std + 1e-4)] * 3)


def test_a_rollout_that_could_not_be_scored_is_masked(rollouts):
    rewards = [REWARDS[0], [parts(NAN, 1.0), parts(NAN, 1.0)], *REWARDS[2:]]
    rows = build(rollouts, rewards)
    assert [math.isnan(row.total) for row in rows] == [False, True, False, True, False, False]
    assert [row.advantage for row in rows] == [0.0, 0.0, 0.0, 0.0, -0.25, 0.25]
    # by instance the other rollout's two chunks are still compared with one another
    by_instance = build(rollouts, rewards, grouping=Grouping.INSTANCE)
    assert [row.advantage for row in by_instance] == [0.25, 0.0, -0.25, 0.0, -0.25, 0.25]


def test_groups_must_be_whole_and_of_one_instance(rollouts):
    with pytest.raises(ValueError, match="4 rollouts are no whole groups of 3"):
        build(rollouts, group_size=3)
    with pytest.raises(ValueError, match=r"rollouts 0 to 3 are a group and read \['long', 'short'\]"):
        build(rollouts, group_size=4)
    with pytest.raises(ValueError, match=r"rollouts 0 to 1 are a group and read \['long', 'short'\]"):
        build([rollouts[i] for i in (0, 2, 1, 3)])


def test_a_reward_too_few_or_too_many_is_an_error(rollouts):
    for rewards in (REWARDS[:3], [*REWARDS, REWARDS[3]], [REWARDS[2], *REWARDS[1:]]):
        with pytest.raises(ValueError, match="zip"):
            build(rollouts, rewards)


def test_shuffling_permutes_the_advantages_of_scored_rows_alone(rollouts):
    rows = build(rollouts)
    made = [replace(rows[0], advantage=float(i), total=NAN if i % 3 == 0 else 0.0) for i in range(30)]
    shuffled = [replace(row) for row in made]
    shuffle_advantages(shuffled, seed=1)
    values = [row.advantage for row in shuffled]
    assert values[::3] == [row.advantage for row in made][::3]
    assert sorted(values) == [float(i) for i in range(30)]
    assert sum(value != i for i, value in enumerate(values)) > 10
    again, other = [replace(row) for row in made], [replace(row) for row in made]
    shuffle_advantages(again, seed=1)
    shuffle_advantages(other, seed=2)
    assert [row.advantage for row in again] == values != [row.advantage for row in other]
