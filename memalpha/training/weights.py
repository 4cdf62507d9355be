"""The weights with which rollouts are drawn, gathered from shards or handed to vLLM.

Every sharded forward needs all ranks, but ranks decode different numbers of tokens. So under FSDP2
and DeepSpeed ZeRO-3 the weights are gathered once, rollouts are drawn without communication, and
the weights are sharded again; each rank then holds the whole model. Other sharding is refused.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list
from torch.distributed.fsdp import FSDPModule

from memalpha.errors import InputError
from memalpha.files import file_sha256
from memalpha.models.adapters import ADAPTER_WEIGHTS
from memalpha.models.shipped import resolve_adapter
from memalpha.types import AdapterEngine, Generator

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch import nn


class Sharding(StrEnum):
    """The ways in which weights are sharded among ranks (not the optimizer's state)."""

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
    """Raise InputError if weights are sharded in 4 bits or drawing would deadlock; ``gathers``:
    ZeRO-3's are gathered for it.
    """
    sharded = sharding is not Sharding.NONE
    in_ram = os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true"
    for wrong, message, expected in (
        (sharding is Sharding.FSDP1, "fsdp_version is 1", "2, as --config_file fsdp2 has it"),
        (
            sharded and reader == "base",
            f"reader 'base' cannot be used with {sharding}",
            "reader recall or endpoint, or DDP",
        ),
        (
            sharded and in_4bit,
            f"load_in_4bit cannot be combined with {sharding}",
            "DDP, or one GPU",
        ),
        (
            sharding is Sharding.ZERO3 and not gathers,
            "ds3_gather_for_generation is false, but weights are sharded by ZeRO-3",
            "true",
        ),
        (
            sharding is Sharding.FSDP2 and in_ram,
            "fsdp_cpu_ram_efficient_loading is true",
            "false, since all ranks need the weights at the same time",
        ),
    ):
        if wrong:
            raise InputError(message, expected=expected)


@contextmanager
def whole_weights(model: nn.Module, accelerator: Accelerator) -> Iterator[None]:
    """Gather the weights for the block, which all ranks enter and leave together."""
    sharding = sharding_of(accelerator)
    parts: list[Any] = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if not parts:
        if sharding is Sharding.FSDP2 or accelerator.state.deepspeed_plugin is not None:
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
        if hasattr(root, "reset_iter_state"):  # else backward would prefetch for these forwards
            root.reset_iter_state()
        root.set_reshard_after_forward(bool(accelerator.state.fsdp_plugin.reshard_after_forward))


def adapter_name(folder: Path) -> str:
    """Return a name derived from the hash of the adapter's weights."""
    return f"memalpha-{file_sha256(folder / ADAPTER_WEIGHTS)[:16]}"


@contextmanager
def drawing_with(generator: Generator, adapter: str) -> Iterator[None]:
    """Give a saved adapter (an empty text is the base alone) to a generator with weights of its
    own, for the block.
    """
    if not isinstance(generator, AdapterEngine):
        yield
        return
    with generator.awake():
        if adapter:
            folder = resolve_adapter(adapter)
            generator.load(adapter_name(folder), folder)
        yield


def hand_over(model: Any, accelerator: Accelerator, engine: AdapterEngine, folder: Path) -> None:
    """Save the adapter of a PEFT model below ``folder``, under a name derived from its weights, and
    let the engine draw with it; earlier ones are deleted. All ranks call it together.
    """
    names: list[Any] = [None]
    with whole_weights(model, accelerator):
        policy = accelerator.unwrap_model(model)
        weights = {
            name: parameter.detach()
            for name, parameter in policy.named_parameters()
            if ".lora_" in name
        }
        if accelerator.is_main_process:
            policy.save_pretrained(folder / "next", state_dict=weights)
            names = [adapter_name(folder / "next")]
            if not (folder / names[0]).exists():
                (folder / "next").rename(folder / names[0])
            engine.load(names[0], folder / names[0])
            for path in folder.iterdir():
                if path.name != names[0]:
                    shutil.rmtree(path)
    broadcast_object_list(names)
    engine.use(names[0], folder / names[0])
