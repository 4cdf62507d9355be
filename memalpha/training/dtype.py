"""``dtype: auto``: the type of the frozen base weights with which this machine computes faster."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

FASTER = 1.3
"""How much faster bfloat16 must be on a CPU: it costs exactness (rollouts are weighed by trained over sampled probability)."""


def product_seconds(repeats: int = 3) -> tuple[float, float]:
    """Median seconds of a (512, 576) by (576, 4096) product on the CPU in float32 and in bfloat16, timed in turns."""
    left, right = torch.rand(512, 576), torch.rand(576, 4096)
    pairs = [(left, right), (left.bfloat16(), right.bfloat16())]
    taken: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for seconds, (a, b) in zip(taken, pairs, strict=True):
            began = time.perf_counter()
            a @ b
            seconds.append(time.perf_counter() - began)
    first, second = (statistics.median(seconds[1:]) for seconds in taken)  # the first products warm up
    return first, second


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
