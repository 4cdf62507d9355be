"""Train, and log the variance of each step's gradient, from its two halves.

    python scripts/gradient_variance.py --config credit --credit step

takes the options of memalpha train. metrics.jsonl has ``gradient/variance`` and
``gradient/norm_squared``, too.

The instances of a step are independent, and their gradients add up. With g = a + b, of the first
and the second half of the instances of every process, |b - a|^2 estimates the variance of g without
bias (the trace of its covariance, over draws of instances and rollouts), and |g|^2 is the squared
mean gradient plus that variance. Both are of the trained parameters as the loss gives them, before
clipping. One step's value says little: take means over steps.

It costs a copy of the gradients and one sum over processes. The halves share no micro-batch, so
sums are rounded otherwise than without it.
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from memalpha.cli.console import Reporter, is_main_process, quiet_libraries
from memalpha.errors import InputError
from memalpha.training.config import parse_train_arguments
from memalpha.training.rows import TrainingRow, UpdateBatch
from memalpha.training.run import train
from memalpha.training.trainer import MemoryGRPOTrainer


class VarianceTrainer(MemoryGRPOTrainer):
    """Goes backward over one half of a step after the other, which have padding rows of their own.

    InputError if a process has no two halves of a step, or not the whole gradient.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        groups = self.args.per_device_train_batch_size // self.num_generations
        splits = self.args.steps_per_generation
        if groups % 2 or splits > 1:
            raise InputError(
                f"the variance of a gradient with {groups} instances in {splits} steps",
                expected="an even number in each process, which has two halves, in one step",
            )
        if self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise InputError(
                "the variance of a gradient with FSDP or DeepSpeed",
                expected="neither: a process has only a part of the gradient",
            )

    def _halves(self, rows: Sequence[TrainingRow]) -> list[Sequence[TrainingRow]]:
        return halves(rows, self.args.per_device_train_batch_size // self.num_generations)

    def _with_padding(self, rows: Sequence[TrainingRow]) -> list[TrainingRow]:
        first, second = self._halves(rows)
        return [*super()._with_padding(first), *super()._with_padding(second)]

    def _backward(
        self,
        model: nn.Module,
        update_batch: UpdateBatch,
        num_items_in_batch: Any,
        *,
        ends_step: bool = True,
    ) -> Tensor:
        first, second = [
            replace(update_batch, rows=list(rows)) for rows in self._halves(update_batch.rows)
        ]
        total = super()._backward(model, first, num_items_in_batch, ends_step=False)
        of_first = gradients(model)  # still of this process
        total = total + super()._backward(model, second, num_items_in_batch)
        scaler = self.accelerator.scaler
        scale = scaler.get_scale() if scaler is not None else 1.0
        whole = gradients(model) / scale
        self._record(variance(self.accelerator.reduce(of_first, "mean") / scale, whole))
        return total


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


if __name__ == "__main__":
    quiet_libraries()
    arguments = parse_train_arguments(sys.argv[1:])
    train(arguments, Reporter(is_main_process()), VarianceTrainer)
