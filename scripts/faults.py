"""Plant known faults, one at a time, and see whether the tests notice.

    python scripts/faults.py [--only NAME ...] [--jobs N] [--out FILE.json]

``scripts/faults.yaml`` lists the faults: ``{name, file, old, new, tests}``. ``old`` is a snippet that stands exactly once in
``file``, ``new`` what is put in its place, ``tests`` what pytest is to run (files or single tests). The package is copied to a
temporary folder; the checkout is never edited. A fault is

* ``caught``: a test fails (or hangs longer than ``--timeout``), as it should;
* ``survived``: all its tests pass, so they do not look at what the fault breaks;
* ``stale``: ``old`` does not stand exactly once in ``file``;
* ``broken``: its tests fail without the fault, or cannot be run at all.

The exit code is 0 only if every fault is caught.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

import yaml

ROOT = Path(__file__).resolve().parents[1]
PASSED, FAILED = 0, 1
"""Exit codes of pytest; any other says that the tests could not be run."""


class Fault(NamedTuple):
    """One fault; paths are relative to the repository."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Result(NamedTuple):
    """What became of a fault."""

    name: str
    verdict: str
    seconds: float
    said: str = ""


def read_faults(path: Path, only: list[str]) -> list[Fault]:
    faults = [Fault(**{**row, "tests": tuple(row["tests"])}) for row in yaml.safe_load(path.read_text(encoding="utf-8"))]
    names = Counter(fault.name for fault in faults)
    if wrong := [name for name, count in names.items() if count > 1] + [name for name in only if name not in names]:
        raise SystemExit(f"{path}: expected every name once, found otherwise: {', '.join(wrong)}")
    return [fault for fault in faults if not only or fault.name in only]


class Copy:
    """A copy of the tracked files in a folder of its own, in which a fault can be planted.

    Args:
        folder: An empty folder. The copy is ``folder/tree``; the data beside the repository is linked beside it.
    """

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        for name in filter(None, listed.stdout.split("\0")):
            if (source := ROOT / name).is_file():
                target = self.tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        if (ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
        self._mtime = int(time.time())

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        path = self.tree / fault.file
        before, text = path.stat(), path.read_text(encoding="utf-8")
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        self._mtime += 2  # Python takes a compiled file for current by its source's size and seconds
        os.utime(path, (self._mtime, self._mtime))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def test(self, tests: tuple[str, ...], timeout: float) -> tuple[int, str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "-p",
            "no:cacheprovider",
            "--hypothesis-seed=0",
            *tests,
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.tree), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        # A session of its own, so that whatever a test started ends with it.
        process = subprocess.Popen(command, cwd=self.tree, env=environment, start_new_session=True, **pipes)
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return FAILED, f"hangs for more than {timeout:.0f} s"
        lines = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))] or said.splitlines()[-1:]
        return process.returncode, " ".join(lines)[:200]


def judge(fault: Fault, copy: Copy, clean: dict[tuple[str, ...], str], timeout: float) -> Result:
    """Plant a fault and run its tests.

    Args:
        fault: The fault.
        copy: Where to plant it.
        clean: For each set of tests, what is wrong with it without a fault; empty if nothing is.
        timeout: Seconds that the tests may take.
    """
    path = copy.tree / fault.file
    count = path.read_text(encoding="utf-8").count(fault.old) if path.is_file() else 0
    if count != 1 or fault.old == fault.new:
        return Result(fault.name, "stale", 0.0, f"'old' stands {count} times in {fault.file}")
    if wrong := clean[fault.tests]:
        return Result(fault.name, "broken", 0.0, f"without the fault: {wrong}")
    clock = time.monotonic()
    with copy.planted(fault):
        code, said = copy.test(fault.tests, timeout)
    verdict = {PASSED: "survived", FAILED: "caught"}.get(code, "broken")
    return Result(fault.name, verdict, round(time.monotonic() - clock, 1), said)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Plant known faults, one at a time, and see whether the tests notice.")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds after which tests count as hanging (default: 300)")
    parser.add_argument("--list", type=Path, default=Path(__file__).with_suffix(".yaml"), help="the list of faults")
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args(arguments)
    faults = read_faults(options.list, options.only)
    with tempfile.TemporaryDirectory(prefix="memalpha-faults-") as folder, ThreadPoolExecutor(options.jobs) as pool:
        copies: SimpleQueue[Copy] = SimpleQueue()
        for number in range(options.jobs):
            copies.put(Copy(Path(folder, str(number))))

        def with_copy(action: Callable[[Copy], Any]) -> Any:
            copy = copies.get()
            try:
                return action(copy)
            finally:
                copies.put(copy)

        def check(tests: tuple[str, ...]) -> str:
            code, said = with_copy(lambda copy: copy.test(tests, options.timeout))
            return "" if code == PASSED else said

        sets = list(dict.fromkeys(fault.tests for fault in faults))
        clean = dict(zip(sets, pool.map(check, sets), strict=True))
        results = []
        for result in pool.map(lambda fault: with_copy(lambda copy: judge(fault, copy, clean, options.timeout)), faults):
            results.append(result)
            print(f"{result.verdict:9}{result.seconds:7.1f} s  {result.name}  {result.said}", flush=True)
    if options.out:
        rows = [json.dumps({"name": r.name, "caught": r.verdict == "caught", "seconds": r.seconds}) for r in results]
        options.out.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    counts = Counter(result.verdict for result in results)
    print(f"{len(results)} faults: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}")
    return int(counts["caught"] < len(results))


if __name__ == "__main__":
    sys.exit(main())
