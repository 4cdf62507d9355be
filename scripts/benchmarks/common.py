"""What every benchmark shares: fair timing of several variants in one run, ratios with their spread, and what ran where.

A benchmark is a module ``scripts/benchmarks/NAME.py`` with ``run(options) -> {"name", "ratios", "details"}`` and, if it has
options of its own, ``add_arguments(parser)``. ``options`` always holds ``quick`` (a version of seconds, for tests), ``threads``,
``rounds`` (0 = the benchmark's own choice) and ``folder``, a temporary one. ``details`` holds ``sizes`` (what was measured on) and
``table``: flat dicts with the same keys.

``alternate`` times callables in turn (A B A B ...), so that a slow minute of the machine hits all of them. The processor time
counts all threads of this process alone: on a shared machine it is the one to trust. Nothing here imports numpy or torch.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

Clock = Literal["wall", "cpu"]


class Series(NamedTuple):
    """Readings of one variant in seconds, one a round: elapsed time, and processor time of all threads together."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def median(self, clock: Clock = "wall") -> float:
        return statistics.median(getattr(self, clock))

    def row(self, variant: str, scale: float = 1.0) -> dict[str, Any]:
        """The beginning of a row of a table."""
        seconds = {"seconds": self.median(), "least": min(self.wall), "cpu_seconds": self.median("cpu")}
        return {"variant": variant, **{name: value * scale for name, value in seconds.items()}}


class Ratio(NamedTuple):
    """How many times as long one variant takes as another: ratio of medians, and quartiles (under 4 rounds: extremes) of rounds."""

    value: float
    low: float
    high: float


def alternate(variants: Mapping[str, Callable[[], object]], rounds: int, *, warmup: int = 1) -> dict[str, Series]:
    """Time each variant once a round, in turn, after ``warmup`` rounds; a callable that needs fresh state keeps it itself."""
    for _ in range(warmup):
        for call in variants.values():
            call()
    readings: dict[str, list[tuple[float, float]]] = {name: [] for name in variants}
    gc.collect()
    gc.freeze()  # collections between readings look at what is new alone
    try:
        for _ in range(max(1, rounds)):
            for name, call in variants.items():
                readings[name].append(seconds(call))
    finally:
        gc.unfreeze()
    return {name: Series(*zip(*rows, strict=True)) for name, rows in readings.items()}


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """(wall, processor) seconds of one call; the garbage collector runs before it and not in it."""
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        wall, cpu = time.perf_counter(), time.process_time()
        call()
        return time.perf_counter() - wall, time.process_time() - cpu
    finally:
        if enabled:
            gc.enable()


def ratio(slow: Series, fast: Series, clock: Clock = "wall") -> Ratio:
    """How many times as long ``slow`` takes as ``fast``, rounds paired."""
    single = [a / b for a, b in zip(getattr(slow, clock), getattr(fast, clock), strict=True)]
    low, _, high = statistics.quantiles(single, n=4, method="inclusive") if len(single) >= 4 else (min(single), 0, max(single))
    return Ratio(slow.median(clock) / fast.median(clock), low, high)


def progress(text: str) -> None:
    """Say something to a person who waits, on stderr."""
    print(text, file=sys.stderr, flush=True)


def limit_threads(threads: int) -> None:
    """Make OpenMP, BLAS, FAISS and torch use that many threads; to be called before numpy is imported."""
    os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(threads)))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def environment(threads: int) -> dict[str, Any]:
    """The date, the machine and the versions, for ``details``."""
    from memalpha.runs import environment

    at = environment()
    machine = {"processor": at["processor"], "cores": at["cores"], "threads": threads, "load": round(os.getloadavg()[0], 2)}
    return {"date": at["started"], "machine": machine, "versions": {"python": at["python"], "code": at["code"], **at["packages"]}}
