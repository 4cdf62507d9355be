"""``dtype: auto``: the type of the frozen base weights with which this machine computes faster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from timeit import timeit

import torch

from memalpha.generation.products import product

FASTER = 1.3  # how much faster bfloat16 must be on a CPU: rollouts are then weighed by trained over sampled probability


def product_seconds() -> tuple[float, float]:
    """Median seconds of a product of (512, 576) with a weight (4096, 576) on the CPU in float32 and in bfloat16, timed in turns."""
    left, weight = torch.rand(512, 576), torch.rand(4096, 576)
    pairs = [(left, weight), (left.bfloat16(), weight.bfloat16())]
    rounds = [[timeit(partial(product, *pair), number=1) for pair in pairs] for _ in range(4)][1:]  # the first warms up
    return median(first for first, _ in rounds), median(second for _, second in rounds)


def choose_dtype(device: torch.device, timed: Callable[[], tuple[float, float]] = product_seconds) -> tuple[str, str]:
    """Return ``float32`` or ``bfloat16`` for a device, and why."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return ("bfloat16" if native else "float32"), f"the GPU {'computes' if native else 'only emulates'} bfloat16"
    if device.type != "cpu":
        return "float32", f"nothing is known about {device.type}"
    exact, rounded = timed()
    found = f"a product takes {exact * 1e3:.1f} ms in float32 and {rounded * 1e3:.1f} ms in bfloat16"
    return ("bfloat16" if exact >= FASTER * rounded else "float32"), found
