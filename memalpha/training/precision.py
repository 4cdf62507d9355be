"""Training in float16, for GPUs that do not compute bfloat16 (T4, V100): options and loss scale.

The smallest number of float16 is 6e-8, so small gradients would vanish. Accelerate's GradScaler
multiplies the loss by a scale, which begins at 65,536, and divides the gradients by it before they
are clipped. A gradient that is not finite is skipped, and halves the scale.
"""

from typing import Any

import torch
from accelerate import Accelerator
from transformers import TrainingArguments

from memalpha.errors import InputError, TrainingAborted


def set_float16(training: TrainingArguments) -> None:
    """Compute in float16, as if the option ``fp16`` had been given; before a trainer is made."""
    training.fp16 = True
    training.mixed_precision = "fp16"


def check_types(dtype: str, training: TrainingArguments) -> None:
    """Raise InputError if the type of the base and that of products do not fit together."""
    computes = training.mixed_precision
    if dtype == "float16" and computes != "fp16":
        raise InputError(
            "dtype is float16, but fp16 is not set",
            expected="fp16: true, which scales the loss, since small gradients become 0 in float16",
        )
    if dtype == "bfloat16" and computes == "fp16":
        raise InputError(
            "dtype is bfloat16, but fp16 is set",
            expected="dtype: float16 with fp16: true, or dtype: bfloat16 with bf16: true",
        )


def check_scaler(accelerator: Accelerator) -> None:
    """Raise InputError if training in float16 would not scale the loss, or would scale it in an
    untested way.
    """
    sharded = getattr(accelerator.state, "fsdp_plugin", None) is not None
    if accelerator.mixed_precision == "fp16" and (sharded or accelerator.scaler is None):
        raise InputError(
            "fp16 is set on a CPU, with DeepSpeed or with FSDP",
            expected="one GPU, or several with DDP, since the loss is scaled only there",
            fix="set bf16: true, or leave fp16 out",
        )


def check_scale(accelerator: Accelerator) -> None:
    """Raise TrainingAborted if the scaler has halved its scale below 1, since no scale is small
    enough.
    """
    scaler = accelerator.scaler
    if scaler is not None and scaler.get_scale() < 1:
        raise TrainingAborted(
            "the gradient overflows float16 at a loss scale of 1",
            fix="compute in bfloat16 or float32",
        )


def overflow(model: torch.nn.Module) -> None:
    """Make every gradient infinite: the scaler of each rank then skips the step and halves its
    scale.
    """
    for parameter in model.parameters():
        gradient: Any = parameter.grad
        if gradient is not None:
            gradient.fill_(torch.inf)
