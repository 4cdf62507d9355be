"""What stands between a bad number, or a full memory, and the weights.

A step whose loss or gradient is not finite changes nothing: no weight, no moment of the optimizer. It is counted, and too many in a
row stop the run. Running out of memory stops it with the option that governs memory.

Not covered: skipping under DeepSpeed, whose engine steps inside its backward pass; there such a step stops the run at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from memalpha.errors import InputError, TrainingAborted


class SkippedSteps:
    """Counts steps that were skipped.

    Args:
        limit: Most of them in a row.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_a_row = 0

    def count(self, skipped: bool, step: int, *, limit: int | None = None) -> None:
        """Take note of a step; ``limit`` replaces the usual one.

        Raises:
            TrainingAborted: If more than ``limit`` steps in a row were skipped.
        """
        self.in_a_row = self.in_a_row + 1 if skipped else 0
        if self.in_a_row > (self.limit if limit is None else limit):
            raise TrainingAborted(
                f"step {step}: loss or gradient is not finite, {self.in_a_row} steps in a row (max_skipped_steps = {self.limit})\n"
                "  the weights are those of the last finite step\n"
                "  to fix: lower learning_rate or max_grad_norm, and look at the rewards of these steps in trajectories/"
            )


def finite_gradients(model: nn.Module) -> bool:
    """Return whether every gradient of a model is finite (of this rank's part, under sharding)."""
    gradients = [p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad for p in model.parameters() if p.grad is not None]
    largest = [gradient.abs().amax().float() for gradient in gradients if gradient.numel()]
    return not largest or bool(torch.stack(largest).isfinite().all())


@contextmanager
def naming_rows_per_forward(rows: int) -> Iterator[None]:
    """Turn running out of memory into an error that says which option to lower.

    Raises:
        TrainingAborted: Instead of the device's own error.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        advice = f"lower rows_per_forward (now {rows})" if rows > 1 else "shorten chunks, view_tokens or max_completion_length"
        raise TrainingAborted(
            f"out of memory in the update, with rows_per_forward = {rows}\n  to fix: {advice}; "
            "on a GPU also bf16 or gradient_checkpointing\n"
            f"  the device said: {str(error).splitlines()[0]}"
        ) from error


@contextmanager
def naming_missing_packages() -> Iterator[None]:
    """Turn the lack of a package that an option needs, such as vLLM, into an error that says so.

    Raises:
        InputError: Instead of the import's own error.
    """
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"an option needs a package that is not installed: {error}", fix="install it, or leave the option out"
        ) from error


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
