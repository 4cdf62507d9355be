"""How many threads compute, and how they wait for each other: settled before torch is loaded.

The threads of OpenMP meet after every product. The one that comes first spins: by default some
300,000 times in GNU's runtime (libgomp), and for 200 ms in Intel's and LLVM's (libomp). Where other
programs are busy, the thread it waits for often has no processor, and the spinning takes the one it
could have. The runtimes read their settings when they are loaded, so these functions come first and
import nothing heavy. docs/performance.md has what was measured.
"""

import math
import os
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path

SPINS = 20_000
"""Turns of libgomp's waiting loop before a thread sleeps, about a millisecond."""

BLOCK_MS = 1
"""The same for libomp, in milliseconds."""

WAITING = {"GOMP_SPINCOUNT": str(SPINS), "KMP_BLOCKTIME": str(BLOCK_MS)}
"""What is set; a runtime reads its own and ignores the other."""

_OWN = ("OMP_WAIT_POLICY", "KMP_LIBRARY", *WAITING)  # any of them is a user's choice
_THREADS = "OMP_NUM_THREADS"
_CGROUPS = Path("/sys/fs/cgroup")


def prepare_threads(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables of OpenMP that the user has not set. Call it before torch is imported;
    afterwards it does nothing.

    Args:
        environment: The variables to complete, by default those of this process.
    """
    if "torch" in sys.modules:
        return
    if not environment.keys() & set(_OWN):
        environment.update(WAITING)
    share = quota()
    if _THREADS not in environment and share < processors():
        environment[_THREADS] = str(max(1, math.floor(share)))


def describe_threads(environment: Mapping[str, str] = os.environ) -> str:
    """Say in a line how many threads compute, and how they wait."""
    given = environment.get(_THREADS, "").split(",")[0]  # a list is for nested loops
    count = given if given.isdigit() and int(given) else processors()  # OpenMP ignores others
    waits = ", ".join(f"{name}={environment[name]}" for name in _OWN if name in environment)
    return f"{count} on {os.cpu_count()} processors; waiting: {waits or 'as OpenMP does'}"


def processors() -> int:
    """Return on how many processors this process may run, which the runtimes see by themselves."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS has no affinity


def quota(root: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> float:
    """Return how many processors' time the control groups of this process allow, which the
    runtimes do not see; infinite without a limit.

    Args:
        root: The folder where the control groups are mounted, of version 1 or 2.
        own: The file with the groups of this process.

    Returns:
        The lowest limit of the group and of those above it.
    """
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return math.inf
    limits = [math.inf]
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        files: tuple[str, ...] = ("cpu.max",)
        if not controllers:
            base = root
        elif "cpu" in controllers.split(","):
            base, files = root / "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        else:
            continue
        group = base / path.strip("/")
        while group.is_relative_to(base):  # a container sees its own group at the root
            limits.append(_limit(group, files))
            group = group.parent
    return min(limits)


def _limit(group: Path, files: tuple[str, ...]) -> float:
    """The limit of one group, from a file ``QUOTA PERIOD`` or from a file for each."""
    try:
        words = " ".join((group / name).read_text(encoding="utf-8") for name in files).split()
        allowed, period = map(int, words)
    except (OSError, ValueError):  # no such group, or "max"
        return math.inf
    return allowed / period if allowed > 0 and period > 0 else math.inf
