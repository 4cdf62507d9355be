"""Importance weights of trained over sampled probability, and how far the two are apart.

What was drawn has other log-probabilities than the update computes for it, because of other
rounding, another engine or an older policy. d = trained - sampled, in nats a token.
"""

import math

import torch
from torch import Tensor

GAP = "sampling/sampling_logp_difference"


def importance_weights(
    d: Tensor, mode: str, least: float | None = None, most: float | None = None
) -> Tensor:
    """Return the weight (T,) of each token of one row, as TRL's
    ``vllm_importance_sampling_mode`` says.

    The ratio is exp(d) of a token, or exp(sum of d) of the sequence. Outside ``least`` to ``most``
    (None = no limit) it becomes the limit (``truncate``), or 0 (``mask``).
    """
    low = -math.inf if least is None else least
    high = math.inf if most is None else most
    of_sequence = mode.startswith("sequence")
    ratio = (d.sum().expand(len(d)) if of_sequence else d).exp()
    if mode.endswith("truncate"):
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


def gap_statistics(d: Tensor) -> dict[str, float]:
    """Return mean, 99th percentile and maximum of abs(d), and the mean of exp(d) - 1 - d (k3),
    which estimates KL(sampled, trained); NaN without tokens.
    """
    values = dict.fromkeys([f"{GAP}/mean", f"{GAP}/p99", f"{GAP}/max", "sampling/kl"], math.nan)
    if len(d):
        d = d.double()
        apart = d.abs()
        rank = math.ceil(0.99 * len(d))
        numbers = [apart.mean(), apart.kthvalue(rank).values, apart.max(), (d.expm1() - d).mean()]
        values = dict(zip(values, torch.stack(numbers).tolist(), strict=True))
    return values
