"""Advantages over time: GAE, and V-trace for steps that another policy took.

GAE (Schulman et al. 2016, arXiv 1506.02438, equation 16): ``A_t = sum_l (gamma * lam)^l * d_(t+l)``
with the residuals
``d_t = r_t + gamma * V(s_(t+1)) - V(s_t)``. V-trace (Espeholt et al. 2018, arXiv 1802.01561,
section 4.1, remark 2) weights each residual by the ratio ``rho_t`` of the policy that learns to the
one that acted:

    x_t = rho_t * d_t + gamma * lam * min(1, rho_t) * x_(t+1)        the value's target is V(s_t) +
    x_t A_t = d_t + gamma * lam * x_(t+1)                                the policy's gradient is
    weighted by rho_t

Where all ratios are 1, both are GAE. The caller truncates the ratios (the paper's rho-bar).
"""

import torch
from torch import Tensor


def gae(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    last: Tensor,
    ratios: Tensor,
    gamma: float,
    lam: float,
) -> tuple[Tensor, Tensor]:
    """Return advantages and the value's targets, both (T, N) as all that is given.

    ``last``: an episode's last step; ``next_values``: of the next observation, 0 if the episode
        terminated.
    """
    deltas = rewards + gamma * next_values - values
    advantages, targets = torch.empty_like(deltas), torch.empty_like(deltas)
    following = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        following = gamma * lam * torch.where(last[t], 0.0, following)
        advantages[t] = deltas[t] + following
        following = ratios[t] * deltas[t] + ratios[t].clamp(max=1) * following
        targets[t] = values[t] + following
    return advantages, targets
