"""``dtype: auto``: the type of the frozen base weights with which this machine computes faster."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from timeit import timeit
from typing import Any, TypeVar

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list

from memalpha.generation.products import Products, product, using
from memalpha.training.config import PolicyOptions

# how much faster bfloat16 must be on a CPU: rollouts are then weighed by trained over sampled
# probability
FASTER = 1.3


Report = Callable[[str, dict[str, Any]], None]
"""Called with the name of an event (``evaluate``, ``step``, ``done``) and its data; shown by the command line."""

Kind = TypeVar("Kind", bound=PolicyOptions)


def product_seconds() -> tuple[float, float]:
    """Median seconds of a product of (512, 576) with a weight (4096, 576) on the CPU in float32 and
    in bfloat16, timed in turns.
    """
    left, weight = torch.rand(512, 576), torch.rand(4096, 576)
    pairs = [(left, weight), (left.bfloat16(), weight.bfloat16())]
    with using(Products()):
        rounds = [[timeit(partial(product, *pair), number=1) for pair in pairs] for _ in range(4)][
            1:
        ]  # the first warms up
    return median(first for first, _ in rounds), median(second for _, second in rounds)


def choose_dtype(
    device: torch.device, timed: Callable[[], tuple[float, float]] = product_seconds
) -> tuple[str, str]:
    """Return ``float32`` or ``bfloat16`` for a device, and why."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return (
            "bfloat16" if native else "float32"
        ), f"the GPU {'computes' if native else 'only emulates'} bfloat16"
    if device.type != "cpu":
        return "float32", f"nothing is known about {device.type}"
    exact, rounded = timed()
    return (
        "bfloat16" if exact >= FASTER * rounded else "float32",
        f"a product takes {exact * 1e3:.1f} ms in float32 and {rounded * 1e3:.1f} ms in bfloat16",
    )


def settled(options: Kind, device: torch.device, report: Report) -> tuple[Kind, str]:
    """Replace ``dtype: auto`` by a type, the same on every rank, and say why it is this one."""
    if options.dtype != "auto":
        return options, "the option dtype"
    whole = ("float32", "weights of 16 bits lose small steps")
    found = (
        [whole if options.full_finetuning else choose_dtype(device)]
        if PartialState().is_main_process
        else [("", "")]
    )
    ((dtype, why),) = broadcast_object_list(found) if PartialState().num_processes > 1 else found
    if PartialState().is_main_process:
        report("load", {"what": f"the base in {dtype} ({why})"})
    return replace(options, dtype=dtype), why
