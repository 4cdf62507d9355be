"""Converts scored rollouts to training rows, one per (rollout, chunk), with group-relative
advantages.

Advantages: GRPO (arXiv 2402.03300, section 4.1.2), Mem-alpha (arXiv 2509.25911, section 3.4). A NaN
    reward masks its row: it enters no mean and gets advantage 0. Departure: the published code
    divides by std + 1e-6, with duplicated padding rows in its statistics; here it is the unbiased
    standard deviation + 1e-4, as in TRL, without padding rows.
"""

import math
import random
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from memalpha.agent.rollout import Rollout
from memalpha.rewards.total import RewardConfig, StepReward

STD_EPSILON = 1e-4


class Grouping(StrEnum):
    """Rows that are compared: the G rollouts at one chunk of an instance, or all rows of its G
    rollouts (as published).
    """

    STEP = "step"
    INSTANCE = "instance"


class Scale(StrEnum):
    """Divisor of the centred rewards: standard deviation of the group, of all processes' rows (by
    the trainer), or 1.
    """

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


def advantages(
    rewards: Sequence[float], groups: Sequence[Hashable], scale: Scale = Scale.GROUP
) -> list[float]:
    """Return reward - group mean, divided by std + 1e-4 (GROUP), of each row; 0 if masked or in a
    group of one scored row.
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        if not math.isnan(reward):
            members[group].append(reward)
    means = {group: sum(values) / len(values) for group, values in members.items()}
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        values = members[group]
        if math.isnan(reward) or len(values) < 2:
            result.append(0.0)
            continue
        std = math.sqrt(sum((value - means[group]) ** 2 for value in values) / (len(values) - 1))
        result.append(
            (reward - means[group]) / (std + STD_EPSILON if scale is Scale.GROUP else 1.0)
        )
    return result


@dataclass(slots=True)
class TrainingRow:
    """One completion to train on, ids as sampled; ``shared``: leading prompt ids equal in its
    group; ``total`` is NaN if masked.
    """

    group_index: int
    rollout_index: int
    chunk_index: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    shared: int
    reward: StepReward
    total: float
    advantage: float = 0.0
    logprobs: tuple[float, ...] | None = None
    mask: tuple[bool, ...] | None = None  # False: the id was not sampled, see ``Completion``


def build_rows(
    rollouts: Sequence[Rollout],
    rewards: Sequence[Sequence[StepReward]],
    group_size: int,
    reward_config: RewardConfig,
    grouping: Grouping,
    scale: Scale,
) -> list[TrainingRow]:
    """Return rows ordered (instance, chunk, rollout) from ``group_size`` consecutive rollouts per
    instance, else ValueError.
    """
    for start in range(0, len(rollouts), group_size):
        ids = [rollout.instance.id for rollout in rollouts[start : start + group_size]]
        if ids != ids[:1] * group_size:
            raise ValueError(
                f"rollouts {start} to {start + len(ids) - 1} should be {group_size} of one instance and read {ids}"
            )
    rows = [
        TrainingRow(
            group_index=index // group_size,
            rollout_index=index,
            chunk_index=step.chunk_index,
            prompt_ids=step.prompt.ids,
            completion_ids=step.completion.ids,
            shared=step.prompt.shared,
            reward=reward,
            total=reward.total(reward_config),
            logprobs=step.completion.logprobs,
        )
        for index, (rollout, parts) in enumerate(zip(rollouts, rewards, strict=True))
        for step, reward in zip(rollout.steps, parts, strict=True)
    ]
    rows.sort(key=lambda row: (row.group_index, row.chunk_index, row.rollout_index))
    keys = [group_key(row, grouping) for row in rows]
    for row, advantage in zip(
        rows, advantages([row.total for row in rows], keys, scale), strict=True
    ):
        row.advantage = advantage
    return rows


def group_key(row: TrainingRow, grouping: Grouping) -> tuple[int, int]:
    """The group whose rows a row is compared with."""
    return (row.group_index, row.chunk_index if grouping is Grouping.STEP else -1)


def shuffle_advantages(rows: Sequence[TrainingRow], seed: int) -> None:
    """Permute the advantages among scored rows, in place, for the control run. Masked rows keep
    0.
    """
    scored = [row for row in rows if not math.isnan(row.total)]
    values = [row.advantage for row in scored]
    random.Random(seed).shuffle(values)
    for row, value in zip(scored, values, strict=True):
        row.advantage = value
