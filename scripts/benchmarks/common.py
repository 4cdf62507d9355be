"""What every benchmark shares: fair timing of several variants in one run, ratios with their spread, and what ran where.

A benchmark is a module ``scripts/benchmarks/NAME.py`` with

    def run(options: argparse.Namespace) -> dict      # {"name": str, "ratios": {str: number}, "details": {...}}
    def add_arguments(parser) -> None                 # optional: options of its own

``options`` always holds ``quick`` (bool: a version of seconds, for tests; its numbers mean nothing), ``threads`` (int, already in
force for OpenMP, BLAS, FAISS and torch) and ``rounds`` (int, 0 = the benchmark's own choice). ``details`` should hold ``sizes``
(what was measured on) and ``table``: a list of flat dicts with the same keys, printed as a table. The front adds ``command``,
``date``, ``machine`` and ``versions`` to the details. Everything must be JSON: numbers finite, no numpy scalars.

``alternate`` times callables in turn (A B A B ...), so that a slow minute of the machine hits all of them. Each reading has a wall
and a processor time; the second counts all threads of this process and nothing else's, and is the one to trust on a shared
machine, as long as nothing waits for other processes. Nothing here imports numpy or torch.
"""

from __future__ import annotations

import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, NamedTuple

Clock = Literal["wall", "cpu"]


class Series(NamedTuple):
    """Readings of one variant, in seconds, one a round.

    Attributes:
        wall: Elapsed time.
        cpu: Processor time of the process, all threads together.
    """

    wall: tuple[float, ...]
    cpu: tuple[float, ...]

    def median(self, clock: Clock = "wall") -> float:
        """Median reading in seconds."""
        return statistics.median(getattr(self, clock))

    def summary(self) -> dict[str, float]:
        """Medians and extremes in seconds, and how many readings, ready for ``details``."""
        return {
            "wall": self.median("wall"),
            "wall_min": min(self.wall),
            "wall_max": max(self.wall),
            "cpu": self.median("cpu"),
            "rounds": len(self.wall),
        }


class Ratio(NamedTuple):
    """How many times as long one variant takes as another.

    Attributes:
        value: Ratio of the medians.
        low: Lower quartile of the ratios of single rounds (with fewer than 4 rounds: the least).
        high: Upper quartile (with fewer than 4 rounds: the greatest).
    """

    value: float
    low: float
    high: float


def alternate(variants: Mapping[str, Callable[[], object]], rounds: int, *, warmup: int = 1) -> dict[str, Series]:
    """Time each variant once a round, in turn.

    Args:
        variants: What to time, by name. A callable that needs fresh state keeps it itself.
        rounds: Readings of each, at least 1.
        warmup: Rounds before the first reading.

    Returns:
        The readings by name, in the order of ``variants``.
    """
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
    return {name: Series(tuple(wall for wall, _ in rows), tuple(cpu for _, cpu in rows)) for name, rows in readings.items()}


def seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Return (wall, processor) seconds of one call; the garbage collector runs before it and not in it."""
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
    """Return how many times as long ``slow`` takes as ``fast``, rounds paired."""
    single = [a / b for a, b in zip(getattr(slow, clock), getattr(fast, clock), strict=True)]
    if len(single) >= 4:
        low, _, high = statistics.quantiles(single, n=4, method="inclusive")
    else:
        low, high = min(single), max(single)
    return Ratio(slow.median(clock) / fast.median(clock), low, high)


def progress(text: str) -> None:
    """Say something to a person who waits, on stderr."""
    print(text, file=sys.stderr, flush=True)


# -------------------------------------------------------------------------------------------- what ran where
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def limit_threads(threads: int) -> None:
    """Make OpenMP, BLAS, FAISS and torch use that many threads; to be called before numpy is imported."""
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)


def environment(threads: int, packages: Sequence[str] = ("numpy", "torch", "transformers", "trl", "faiss-cpu")) -> dict[str, Any]:
    """Return the date, the machine and the versions, for ``details``; a package that is not installed has the version None."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "processor": processor_name(),
            "cores": os.cpu_count(),
            "threads": threads,
            "memory_gb": _memory_gb(),
            "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
            "system": platform.system(),
        },
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in ("memalpha", *packages)}},
    }


def processor_name() -> str:
    """Name of the processor as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _memory_gb() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    except (AttributeError, OSError, ValueError):
        return None


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
