"""Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equations 11 to 16) over ragged episodes.

Columns are environments, rows are time; episodes of any length follow one another inside a column. What always holds: nothing flows
from one episode into the one before it. An episode that *terminated* has no value after its last step; one that was *truncated*
(by a time limit, or because collecting stopped) has the value of the observation it would have gone on from.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Estimates(NamedTuple):
    """Advantages and returns (targets of the value), both of shape (T, N)."""

    advantages: Tensor
    returns: Tensor


def gae(rewards: Tensor, values: Tensor, next_values: Tensor, last: Tensor, gamma: float, lam: float) -> Estimates:
    """Estimate advantages: ``A_t = d_t + gamma * lam * A_(t+1)`` with ``d_t = r_t + gamma * V(s_(t+1)) - V(s_t)``.

    Args:
        rewards: Shape (T, N).
        values: Value of the observation each action was taken in, shape (T, N).
        next_values: Value of the observation it led to, before any restart; 0 where the episode terminated. Shape (T, N).
        last: Whether a step is the last of its episode, however it ended; bool of shape (T, N). The last row counts as last.
        gamma: Discount, 0 to 1.
        lam: Lambda, 0 (one step) to 1 (whole returns).

    Returns:
        Advantages, and returns = advantages + values.
    """
    deltas = rewards + gamma * next_values - values
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        following = deltas[t] + gamma * lam * torch.where(last[t], 0.0, following)
        advantages[t] = following
    return Estimates(advantages, advantages + values)
