"""Generalised advantage estimation (Schulman et al., arXiv 1506.02438, equations 11 to 16) over ragged episodes.

Columns are environments, rows are time; a column holds episodes of any length, one after another. Nothing flows from an episode
into the one before it. A *terminated* episode has no value after its last step; a *truncated* one (time limit, end of collection)
has the value of its next observation.
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

    All tensors are (T, N). ``next_values``: value of the next observation before any restart, 0 if the episode terminated.
    ``last``: bool, the episode's last step, however it ended; the last row counts as last. Returns = advantages + values.
    """
    deltas = rewards + gamma * next_values - values
    advantages = torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        following = deltas[t] + gamma * lam * torch.where(last[t], 0.0, following)
        advantages[t] = following
    return Estimates(advantages, advantages + values)
