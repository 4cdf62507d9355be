"""Guards of a training step: NaN and Inf, out of memory, stale weights, and unsupported options of TRL.

A step whose loss or gradient is not finite changes no weight and no optimizer state. Too many in a row stop the run; under
DeepSpeed, which steps inside its backward pass, the first one does.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from memalpha.errors import InputError, TrainingAborted
from memalpha.rewards.total import RewardConfig


class SkippedSteps:
    """Counts skipped steps; ``limit`` is the most in a row."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.in_a_row = 0

    def count(self, skipped: bool, step: int, *, limit: int | None = None) -> None:
        """Count a step; TrainingAborted after more than ``limit`` (default: the usual limit) skipped steps in a row."""
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
def explain_out_of_memory(rows: int) -> Iterator[None]:
    """Turn out-of-memory errors into TrainingAborted, which names the option to lower."""
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
def explain_missing_package() -> Iterator[None]:
    """Turn ImportError for a package that an option needs, such as vLLM, into InputError."""
    try:
        yield
    except ImportError as error:
        raise InputError(
            f"an option needs a package that is not installed: {error}", fix="install it, or leave the option out"
        ) from error


def _out_of_memory(error: BaseException) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


ELEMENTS = 2**20
"""Most elements of one parameter that are hashed."""


def fingerprint(model: nn.Module) -> str:
    """Return 16 hexadecimal digits that change when a trainable weight does."""
    digest = hashlib.sha256()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO-3 the weight may be sharded
            digest.update(f"{name} {parameter.dtype} {tuple(shape)}".encode())
            digest.update(_bytes(parameter))
    return digest.hexdigest()[:16]


def _bytes(parameter: nn.Parameter) -> bytes:
    shard = getattr(parameter, "ds_tensor", parameter)
    local: torch.Tensor = shard.to_local() if hasattr(shard, "to_local") else shard
    values = local.detach().flatten()
    values = values[:: max(1, math.ceil(values.numel() / ELEMENTS))].contiguous().cpu()
    return values.view(torch.uint8).numpy().tobytes()


SUPPORTED_ONLY: dict[str, tuple[Any, str]] = {
    "multi_objective_aggregation": ("sum_then_normalize", "the reward is one weighted sum"),
    "top_entropy_quantile": (1.0, "the quantile would be that of rows_per_forward rows"),
    "entropy_coef": (0.0, "the mean entropy would be that of rows_per_forward rows"),
    "use_adaptive_entropy": (False, "the mean entropy would be that of rows_per_forward rows"),
    "remove_unused_columns": (False, "the column that names the instance would be removed"),
    "log_completions": (False, "every trajectory is in the run folder"),
}
"""Options of ``GRPOConfig`` that must keep their default, and why."""

TRL_GENERATION_ONLY: dict[str, Any] = {"min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}
"""Options that only TRL's own generation knows (``generator=None``)."""


def check_supported(args: Any, reward_config: RewardConfig, *, own_generator: bool) -> None:
    """Raise InputError if a TRL option is set that chunk-step training, or its own generator, does not support."""
    for name, (only, reason) in SUPPORTED_ONLY.items():
        if getattr(args, name) != only:
            raise InputError(f"{name} is {getattr(args, name)!r}", expected=f"{only!r}: {reason}")
    for name, only in TRL_GENERATION_ONLY.items():
        if own_generator and getattr(args, name) != only:
            raise InputError(f"{name} is {getattr(args, name)!r}", expected=f"{only!r} without use_vllm")
    if fixed := {"seed", "n"} & (args.generation_kwargs or {}).keys():
        raise InputError(
            f"generation_kwargs sets {', '.join(sorted(fixed))}",
            expected="neither seed nor n: the rollouts of a group read the same first prompt, and one draw each must differ",
        )
    if args.reward_weights not in (None, list(reward_config.weights)):
        raise InputError(f"reward_weights is {args.reward_weights}", expected="the weights by name, such as accuracy_weight: 1.0")
