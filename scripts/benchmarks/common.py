"""What the benchmarks share: fair timing of several variants, ratios with their spread, and the run
that they measure.

A benchmark is a module with ``run(options) -> {"ratios", "details"}``; in ``details`` are
``sizes``, and ``table`` of flat dicts.
Processor time counts all threads of this process alone: on a shared machine it is the one to trust.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Series(NamedTuple):
    """Readings of one variant in seconds, one a round: elapsed time, and processor time."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def median(self, clock: str = "wall") -> float:
        return statistics.median(getattr(self, clock))

    def row(self, variant: str, scale: float = 1.0) -> dict[str, Any]:
        """The beginning of a row of a table."""
        seconds = {
            "seconds": self.median(),
            "least": min(self.wall),
            "cpu_seconds": self.median("cpu"),
        }
        return {"variant": variant, **{name: value * scale for name, value in seconds.items()}}


def alternate(
    variants: Mapping[str, Callable[[], object]], rounds: int, *, warmup: int = 1
) -> dict[str, Series]:
    """Time each variant once a round, in turn (a slow minute hits all of them)."""
    for _ in range(warmup):
        for call in variants.values():
            call()
    gc.collect()
    gc.freeze()  # collections between readings look at what is new alone
    try:
        readings = [[seconds(call) for call in variants.values()] for _ in range(max(1, rounds))]
    finally:
        gc.unfreeze()
    return {
        name: Series(*zip(*rows, strict=True))
        for name, rows in zip(variants, zip(*readings, strict=True), strict=True)
    }


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """(wall, processor) seconds of one call, the garbage collector not in it."""
    gc.collect()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        return time.perf_counter() - wall, time.process_time() - cpu
    finally:
        gc.enable()


def ratio(slow: Series, fast: Series, clock: str = "wall") -> tuple[float, float, float]:
    """How many times as long ``slow`` takes: ratio of medians, and quartiles (under 4 rounds:
    extremes) of single rounds."""
    single = [a / b for a, b in zip(getattr(slow, clock), getattr(fast, clock), strict=True)]
    low, _, high = (
        statistics.quantiles(single, n=4, method="inclusive")
        if len(single) >= 4
        else (min(single), 0, max(single))
    )
    return slow.median(clock) / fast.median(clock), low, high


def quickstart(options: Any, output_dir: str, *overrides: str) -> Any:
    """Options of a run of the quickstart's policy on generated dialogues; with ``--quick`` of the
    nano policy on the toy task."""
    from transformers.utils import logging

    from memalpha.training.config import parse_train_arguments

    warnings.filterwarnings("ignore", category=UserWarning)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    name, data, some = (
        ("nano", "toy", "{n: 8}")
        if options.quick
        else ("quickstart", "synthetic", "{n: 16, preset: small}")
    )
    more = ["--full_finetuning", "false", "--warm_start_steps", "0"] if options.quick else []
    config = Path(__file__).parents[2] / "configs" / "train" / f"{name}.yaml"
    words = [
        "--config",
        str(config),
        "--output_dir",
        output_dir,
        "--overwrite",
        "true",
        "--eval_data",
        "",
    ]
    return parse_train_arguments(
        [*words, "--train_data", data, "--train_options", some, *more, *overrides]
    )
