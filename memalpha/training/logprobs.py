"""Log-probabilities and entropies of chosen tokens, without a second array of the logits' size.

Exact and differentiable with respect to the logits. The softmax is never kept: it is computed a few rows at a time, once going
forward and once going backward, so that a pass stays in the processor's cache and 16-bit logits are widened to float32 in parts.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

ELEMENTS_AT_ONCE = 2**20


class TokenScores(NamedTuple):
    """Scores of N tokens, float32 of shape (N,).

    Attributes:
        logps: Log-probabilities, with gradient.
        entropies: Entropies in nats of the distributions they are from, without gradient; zeros if not asked for.
    """

    logps: Tensor
    entropies: Tensor


def token_scores(logits: Tensor, targets: Tensor, temperature: float = 1.0, *, compute_entropy: bool = False) -> TokenScores:
    """Score ``targets`` under softmax(logits / temperature).

    Args:
        logits: (N, V), any float type.
        targets: (N,) int64.
        temperature: Above 0.
        compute_entropy: Whether to compute entropies.
    """
    logps, entropies = _TokenScores.apply(logits, targets, temperature, compute_entropy)  # type: ignore[no-untyped-call]
    return TokenScores(logps, entropies)


class _TokenScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float, compute_entropy: bool) -> tuple[Tensor, Tensor]:
        norms = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
        entropies = torch.zeros_like(norms)
        for part in _parts(logits):
            scores = logits[part].float() / temperature
            norms[part] = scores.logsumexp(-1)
            if compute_entropy:  # H = log Z - E[score]
                expected = ((scores - norms[part, None]).exp_() * scores).sum(-1)
                entropies[part] = norms[part] - expected
        ctx.save_for_backward(logits, targets, norms)
        ctx.temperature = temperature
        ctx.mark_non_differentiable(entropies)
        chosen = logits.gather(-1, targets[:, None]).squeeze(-1).float() / temperature
        return chosen - norms, entropies

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        logits, targets, norms = ctx.saved_tensors
        grad = grad / ctx.temperature
        result = torch.empty_like(logits)
        for part in _parts(logits):
            softmax = (logits[part].float() / ctx.temperature).sub_(norms[part, None]).exp_()
            own = softmax.mul_(-grad[part, None])
            own.scatter_add_(-1, targets[part, None], grad[part, None])
            result[part] = own
        return result, None, None, None


def _parts(logits: Tensor) -> list[slice]:
    rows = max(1, ELEMENTS_AT_ONCE // max(logits.shape[-1], 1))
    return [slice(start, start + rows) for start in range(0, len(logits), rows)]
