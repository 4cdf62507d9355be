"""Group-relative advantages over chunk steps (GRPO, arXiv 2402.03300, section 4.1.2; Mem-alpha, arXiv 2509.25911, section 3.4).

A row is one (rollout, chunk). A NaN reward masks its row: it enters no mean and gets advantage 0.

Departure: the published code divides by std + 1e-6 and its statistics include duplicated padding rows. Here: the unbiased standard
deviation + 1e-4, as in TRL, without padding rows.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from enum import StrEnum

STD_EPSILON = 1e-4


class Grouping(StrEnum):
    """Rows that are compared: the G rollouts at one chunk of an instance, or all rows of its G rollouts (as published)."""

    STEP = "step"
    INSTANCE = "instance"


class Scale(StrEnum):
    """Divisor of the centred rewards: standard deviation of the group, of all rows, or 1."""

    GROUP = "group"
    BATCH = "batch"
    NONE = "none"


def advantages(rewards: Sequence[float], groups: Sequence[Hashable], scale: Scale = Scale.GROUP) -> list[float]:
    """Return (reward - group mean) / (std + 1e-4) of each row; 0 for masked rows and groups of fewer than two scored rows."""
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
    if len(values) < 2:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))
