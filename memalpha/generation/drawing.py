"""Draw one token for each row from its logits: greedy, temperature, top-k, top-p.

Tokens are drawn by inversion: the row's uniform number picks the token where the cumulative distribution passes it. So a row's draw
depends on its own number alone, not on which rows stand beside it, and one number a token is all the randomness there is.
The order is that of transformers: temperature, then top-k, then top-p of what is left.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from memalpha.types import Sampling


class Draw(NamedTuple):
    """Drawn tokens (rows,) int64 and, if asked for, their log-probabilities (rows,) float32."""

    tokens: Tensor
    logprobs: Tensor | None


def draw(logits: Tensor, sampling: Sampling, uniforms: Tensor, *, logprobs: bool = False) -> Draw:
    """Draw one token a row.

    Args:
        logits: (rows, vocabulary), any float type.
        sampling: Temperature (0 = greedy), top_k (0 = off), top_p (1 = off).
        uniforms: (rows,) float32 in [0, 1); not used by greedy drawing.
        logprobs: Whether to return log-probabilities, under the whole distribution at the temperature (before top-k and top-p; at
            temperature 1 for greedy drawing), which is what a policy gradient compares with.
    """
    logits = logits.float()
    if sampling.temperature > 0:
        logits = logits / sampling.temperature
        tokens = _invert(logits, sampling, uniforms)
    else:
        tokens = logits.argmax(-1)
    if not logprobs:
        return Draw(tokens, None)
    return Draw(tokens, logits.gather(-1, tokens[:, None]).squeeze(-1) - logits.logsumexp(-1))


def _invert(logits: Tensor, sampling: Sampling, uniforms: Tensor) -> Tensor:
    kept = None
    if sampling.top_k > 0 or sampling.top_p < 1:
        size = logits.shape[-1]
        logits, kept = logits.topk(min(sampling.top_k, size) if sampling.top_k > 0 else size, dim=-1)
    weights = logits.softmax(-1)
    if sampling.top_p < 1:
        dropped = weights.cumsum(-1) - weights >= sampling.top_p  # the mass of the likelier ones is enough already
        dropped[:, 0] = False
        weights = weights.masked_fill(dropped, 0.0)
    cumulative = weights.cumsum(-1)
    total = cumulative[:, -1]
    # Strictly below the total, so that the token found always has a weight above zero.
    target = torch.minimum(uniforms * total, torch.nextafter(total, torch.zeros_like(total)))
    choice = torch.searchsorted(cumulative, target[:, None], right=True)
    return (choice if kept is None else kept.gather(-1, choice)).squeeze(-1)
