"""The variance of a step's gradient, from its two halves.

The instances of a step are independent, and their gradients add up. With g = a + b, of the first
and the second half of the instances of every process, |b - a|^2 estimates the variance of g without
bias (the trace of its covariance, over draws of instances and rollouts), and |g|^2 is the squared
mean gradient plus that variance. Both are of the trained parameters as the loss gives them, before
clipping. One step's value says little: take means over steps.

It costs a copy of the gradients and one sum over processes. The halves share no micro-batch, so
sums are rounded otherwise than without it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from memalpha.training.rows import TrainingRow


def halves(rows: Sequence[TrainingRow], groups: int) -> list[Sequence[TrainingRow]]:
    """Return a process's rows of the first half of its ``groups``, and the others.

    They are in order, with padding rows, if there are any, at the end of a half.
    """
    middle = 0
    while rows[middle].group_index < groups // 2:
        middle += 1
    return [rows[:middle], rows[middle:]]


def gradients(model: nn.Module) -> Tensor:
    """Return a copy of the gradients of all trained parameters, one after the other, float32."""
    parts = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            gradient = parameter.grad
            known = torch.zeros_like(parameter) if gradient is None else gradient
            parts.append(known.detach().float().flatten())
    return torch.cat(parts)


def variance(first: Tensor, whole: Tensor) -> dict[str, float]:
    """Return the estimated variance of a gradient and its squared norm, by name.

    ``first`` is the gradient of the first half, ``whole`` that of both, of all processes.
    """
    apart = whole - 2 * first
    return {
        "gradient/variance": apart.double().square().sum().item(),
        "gradient/norm_squared": whole.double().square().sum().item(),
    }
