"""Converts scored rollouts to training rows, one per (rollout, chunk); independent of trainer types."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.agent.rollout import Rollout
from memalpha.rewards.total import RewardConfig, StepReward
from memalpha.training.advantages import Grouping, Scale, advantages


@dataclass(slots=True)
class TrainingRow:
    """One completion to train on, with the ids as sampled (end token included).

    ``group_index`` counts instances; ``shared``: leading prompt ids that the group's rollouts share at this chunk; ``total`` NaN
    masks the row; ``advantage`` is 0 for masked rows; ``logprobs`` are those of sampling, if the backend gave them.
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


def build_rows(
    rollouts: Sequence[Rollout],
    rewards: Sequence[Sequence[StepReward]],
    *,
    group_size: int,
    reward_config: RewardConfig,
    grouping: Grouping,
    scale: Scale,
) -> list[TrainingRow]:
    """Return the rows of a batch, ordered (instance, chunk, rollout): every G consecutive rows are one step group.

    ``rollouts``: G (``group_size``) consecutive ones per instance, else ValueError. ``rewards``: parts per rollout and chunk step.
    """
    if len(rollouts) % group_size:
        raise ValueError(f"{len(rollouts)} rollouts are no whole groups of {group_size}")
    for start in range(0, len(rollouts), group_size):
        if len(ids := {rollout.instance.id for rollout in rollouts[start : start + group_size]}) > 1:
            raise ValueError(f"rollouts {start} to {start + group_size - 1} are a group and read {sorted(ids)}")
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
    keys = [(row.group_index, row.chunk_index if grouping is Grouping.STEP else -1) for row in rows]
    for row, advantage in zip(rows, advantages([row.total for row in rows], keys, scale), strict=True):
        row.advantage = advantage
    return rows


def shuffle_advantages(rows: Sequence[TrainingRow], seed: int) -> None:
    """Permute the advantages among scored rows, in place, for the control run. Masked rows keep 0."""
    scored = [row for row in rows if not math.isnan(row.total)]
    values = [row.advantage for row in scored]
    random.Random(seed).shuffle(values)
    for row, value in zip(scored, values, strict=True):
        row.advantage = value
