"""Whole weights for generation under FSDP2 and DeepSpeed ZeRO-3; other sharding is refused.

Every sharded forward needs all ranks, but ranks decode different numbers of tokens. So
:func:`whole_weights` gathers the weights once, generates without communication, and shards them
again; each rank then holds the whole model.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from memalpha.errors import InputError

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


class Sharding(StrEnum):
    """How weights are sharded among ranks (not the optimizer's state)."""

    NONE = "none"
    FSDP1 = "fsdp1"
    FSDP2 = "fsdp2"
    ZERO3 = "zero3"


def sharding_of(accelerator: Accelerator) -> Sharding:
    """Return how the launcher's configuration shards the weights."""
    fsdp = getattr(accelerator.state, "fsdp_plugin", None)
    if fsdp is not None:
        return Sharding.FSDP2 if fsdp.fsdp_version == 2 else Sharding.FSDP1
    zero = accelerator.state.deepspeed_plugin
    return Sharding.ZERO3 if zero is not None and zero.zero_stage == 3 else Sharding.NONE


def check_sharding(sharding: Sharding, reader: str, gathers: bool, in_4bit: bool = False) -> None:
    """Raise InputError if weights are sharded in 4 bits or generation would deadlock; ``gathers``:
    ZeRO-3's are gathered for it.
    """
    in_ram = os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true"
    for wrong, said, expected in (
        (sharding is Sharding.FSDP1, "fsdp_version is 1", "2, as in configs/accelerate/fsdp2.yaml"),
        (
            sharding is not Sharding.NONE and reader == "base",
            f"reader is 'base' with {sharding}",
            "recall or endpoint, or DDP",
        ),
        (
            sharding is not Sharding.NONE and in_4bit,
            f"load_in_4bit with {sharding}",
            "DDP, or one GPU",
        ),
        (
            sharding is Sharding.ZERO3 and not gathers,
            "ds3_gather_for_generation is false with ZeRO-3",
            "true, or use_vllm",
        ),
        (
            sharding is Sharding.FSDP2 and in_ram,
            "fsdp_cpu_ram_efficient_loading is true",
            "false: all ranks need weights at once",
        ),
    ):
        InputError.raise_if(wrong, said, expected=expected)


@contextmanager
def whole_weights(model: nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Gather FSDP2's weights for the block, which all ranks enter and leave together; ZeRO-3 is
    left to TRL.
    """
    from torch.distributed.fsdp import FSDPModule

    parts: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not parts:
        if (
            sharding_of(accelerator) is Sharding.FSDP2
            or accelerator.state.deepspeed_plugin is not None
        ):
            model.to(accelerator.device)  # the Trainer leaves it on the CPU until the first step
        yield
        return
    root: Any = model
    root.set_reshard_after_forward(False)
    try:
        for part in parts:
            part.unshard()
        yield
    finally:
        for part in parts:
            part.reshard()
        if hasattr(
            root, "reset_iter_state"
        ):  # forgets these forwards, else backward would prefetch for them
            root.reset_iter_state()
        root.set_reshard_after_forward(bool(accelerator.state.fsdp_plugin.reshard_after_forward))
