"""Group-relative advantages over chunk steps (GRPO, arXiv 2402.03300, section 4.1.2; Mem-alpha, arXiv 2509.25911, section 3.4).

A row is one (rollout, chunk). Two groupings: ``step``, the G rollouts at the same chunk of the same instance, and ``instance``,
all rows of an instance's G rollouts, as published. A row whose reward is NaN is masked: it enters no mean and gets advantage 0.

Departure: the published code divides by std + 1e-6 and pads batches with duplicated rows that enter the statistics; here the
    standard deviation is the unbiased one plus 1e-4, as in TRL, and padding never enters.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from enum import StrEnum

STD_EPSILON = 1e-4


class Grouping(StrEnum):
    """Which rows are compared with one another."""

    STEP = "step"
    INSTANCE = "instance"


class Scale(StrEnum):
    """What centred rewards are divided by."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


def advantages(rewards: Sequence[float], groups: Sequence[Hashable], scale: Scale = Scale.GROUP) -> list[float]:
    """Return one advantage a row.

    Args:
        rewards: Total reward of each row; NaN masks the row.
        groups: Group key of each row.
        scale: ``group`` divides by the group's standard deviation, ``batch`` by that of all rows, ``none`` by nothing.

    Returns:
        (reward - group mean) / (std + 1e-4); 0 for masked rows and for a group with fewer than two scored rows.
    """
    members: dict[Hashable, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        if not math.isnan(reward):
            members[group].append(reward)
    means = {group: sum(values) / len(values) for group, values in members.items()}
    stds = {group: _std(values) for group, values in members.items()}
    batch_std = _std([value for values in members.values() for value in values])
    result = []
    for reward, group in zip(rewards, groups, strict=True):
        if math.isnan(reward) or len(members[group]) < 2:
            result.append(0.0)
            continue
        spread = {Scale.GROUP: stds[group], Scale.BATCH: batch_std}.get(scale)
        result.append((reward - means[group]) / (1.0 if spread is None else spread + STD_EPSILON))
    return result


def _std(values: Sequence[float]) -> float:
    """Unbiased standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
