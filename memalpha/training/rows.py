"""Training rows, one for each chunk step, with group-relative advantages.

A chunk step is one completion of one rollout on one chunk: the agent reads the chunk and its view
of the memory, and writes calls. What is rolled out and scored together is a draw. It trains one or
more optimizer steps, each on an update batch of its rows, in micro-batches of ``rows_per_forward``.

Advantages: GRPO (arXiv 2402.03300, section 4.1.2), Mem-alpha (arXiv 2509.25911, section 3.4). A NaN
reward masks its row: it enters no mean and gets advantage 0. Divided is by the unbiased standard
deviation + 1e-4, as in TRL.
"""

import math
import random
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from torch import Tensor

from memalpha.agent.rollout import Rollout
from memalpha.rewards import RewardConfig, StepReward
from memalpha.types import JsonMapping

STD_EPSILON = 1e-4


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
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        values = members[group]
        if math.isnan(reward) or len(values) < 2:
            result.append(0.0)
            continue
        mean = sum(values) / len(values)
        std = math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
        result.append((reward - mean) / (std + STD_EPSILON if scale is Scale.GROUP else 1.0))
    return result


@dataclass(slots=True)
class TrainingRow:
    """One completion to train on.

    Attributes:
        prompt_ids: Token ids read, of which ``shared`` leading ones are equal in its group.
        completion_ids: Token ids as sampled.
        total: Its reward; NaN: it could not be scored.
        left_out: It has no loss.
        counted: Whether each id has a loss; None: all have.
        sampled: Log-probability of each id as it was drawn, where those are kept.
        old: Log-probabilities (T,) under the policy before the draw's updates; None with one
            update and without importance weights, where they equal those of now.
        reference: Log-probabilities (T,) under the reference of the KL term.
        weight: Importance weight (T,) of trained over sampled probability.
    """

    group_index: int
    rollout_index: int
    chunk_index: int
    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    shared: int
    total: float
    advantage: float = 0.0
    left_out: bool = False
    counted: tuple[bool, ...] | None = None
    sampled: tuple[float, ...] | None = None
    old: Tensor | None = None
    reference: Tensor | None = None
    weight: Tensor | None = None

    @property
    def mask(self) -> tuple[bool, ...]:
        """Whether each id of the completion has a loss."""
        whole = (not self.left_out,) * len(self.completion_ids)
        return whole if self.left_out or self.counted is None else self.counted


@dataclass
class UpdateBatch:
    """This rank's rows of one optimizer step, or of a micro-batch of it.

    Attributes:
        row_count: Rows of the whole draw on all ranks, without padding; a float32 scalar.
        token_count: Ids in them that have a loss.
    """

    rows: list[TrainingRow]
    row_count: Tensor
    token_count: Tensor

    @classmethod
    def from_fields(cls, fields: JsonMapping) -> "UpdateBatch":
        """Undo ``asdict``."""
        rows = [TrainingRow(**row) for row in fields["rows"]]
        return cls(rows, fields["row_count"], fields["token_count"])

    def micro_batches(self, most: int) -> list["UpdateBatch"]:
        """Return the rows in order, at most ``most`` in each, with the draw's counts."""
        starts = range(0, len(self.rows), most)
        return [replace(self, rows=self.rows[start : start + most]) for start in starts]


def padding_row(token: int) -> TrainingRow:
    """A row that is left out of the loss, so that all ranks have equally many."""
    return TrainingRow(-1, -1, -1, (token,), (token,), 0, math.nan, sampled=(0.0,), left_out=True)


def build_rows(
    rollouts: Sequence[Rollout],
    rewards: Sequence[Sequence[StepReward]],
    group_size: int,
    reward_config: RewardConfig,
    group_key: Callable[[TrainingRow, int], Hashable],
    scale: Scale,
) -> list[TrainingRow]:
    """Return rows ordered (instance, chunk, rollout) from ``group_size`` consecutive rollouts per
    instance, else ValueError. Rows of one ``group_key`` are compared.
    """
    for start in range(0, len(rollouts), group_size):
        ids = [rollout.instance.id for rollout in rollouts[start : start + group_size]]
        if ids != ids[:1] * group_size:
            end = start + len(ids) - 1
            raise ValueError(
                f"rollouts {start} to {end} should be {group_size} of one instance, but "
                f"are of {ids}"
            )
    rows = []
    for index, (rollout, parts) in enumerate(zip(rollouts, rewards, strict=True)):
        for step, reward in zip(rollout.steps, parts, strict=True):
            row = TrainingRow(
                group_index=index // group_size,
                rollout_index=index,
                chunk_index=step.chunk_index,
                prompt_ids=step.prompt.ids,
                completion_ids=step.completion.ids,
                shared=step.prompt.shared,
                total=reward.total(reward_config),
                sampled=step.completion.logprobs,
            )
            rows.append(row)
    rows.sort(key=lambda row: (row.group_index, row.chunk_index, row.rollout_index))
    keys = [group_key(row, group_size) for row in rows]
    values = advantages([row.total for row in rows], keys, scale)
    for row, advantage in zip(rows, values, strict=True):
        row.advantage = advantage
    return rows


def shuffle_advantages(rows: Sequence[TrainingRow], seed: int) -> None:
    """Permute the advantages among scored rows, in place, for the control run. Masked rows keep
    0.
    """
    scored = [row for row in rows if not math.isnan(row.total)]
    values = [row.advantage for row in scored]
    random.Random(seed).shuffle(values)
    for row, value in zip(scored, values, strict=True):
        row.advantage = value
