"""Plant known faults, one at a time, and see whether the tests notice.

    python scripts/faults.py [--only NAME ...] [--jobs N] [--out FILE.json]

``scripts/faults.yaml`` lists the faults: ``{name, file, old, new, tests}``; the checkout is never
edited. A fault is ``caught`` (a test fails or hangs), ``survived``, ``stale`` (``old`` does not
stand exactly once in ``file``) or ``broken`` (its tests fail without it). The exit code is 0 only
if every fault is caught.
"""

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
PASSED, FAILED = 0, 1  # exit codes of pytest


class Fault(NamedTuple):  # paths are relative to the repository
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


class Result(NamedTuple):
    name: str
    verdict: str
    seconds: float
    said: str = ""


class Copy:
    """A copy of the repository's files as ``folder/tree``, in which a fault can be planted; the
    data beside it is linked."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        command = ["git", "ls-files", "-z", "-c", "-o", "--exclude-standard"]
        for name in filter(None, subprocess.check_output(command, cwd=ROOT, text=True).split("\0")):
            if (source := ROOT / name).is_file():
                target = self.tree / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        (folder / "shared").symlink_to(ROOT.parent / "shared")
        self._mtime = int(time.time())

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        path = self.tree / fault.file
        before, text = path.stat(), path.read_text(encoding="utf-8")
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        self._mtime += (
            2  # Python takes a compiled file for current by its source's size and seconds
        )
        os.utime(path, (self._mtime, self._mtime))
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def test(self, tests: tuple[str, ...], timeout: float) -> tuple[int, str]:
        options = "-m pytest -x -q --no-header -p no:cacheprovider --hypothesis-seed=0"
        command = [sys.executable, *options.split(), *tests]
        environment = {
            **os.environ,
            "PYTHONPATH": str(self.tree),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        process = subprocess.Popen(
            command, cwd=self.tree, env=environment, start_new_session=True, **pipes
        )  # to end all it starts
        try:
            said, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return FAILED, f"hangs for more than {timeout:.0f} s"
        lines = [
            line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))
        ] or said.splitlines()[-1:]
        return process.returncode, " ".join(lines)[:200]


def judge(fault: Fault, copy: Copy, clean: dict[tuple[str, ...], str], timeout: float) -> Result:
    """Plant a fault and run its tests; ``clean`` has for each set of tests what is wrong with it
    without a fault."""
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


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Plant known faults, one at a time, and see whether the tests notice."
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these faults alone")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        help="seconds after which tests count as hanging (default: 300)",
    )
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    options = parser.parse_args()
    rows = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    names = Counter(row["name"] for row in rows)
    if wrong := [name for name, count in names.items() if count > 1] + [
        name for name in options.only if name not in names
    ]:
        raise SystemExit(f"expected every name once, found otherwise: {', '.join(wrong)}")
    wanted = options.only or names
    faults = [
        Fault(**{**row, "tests": tuple(row["tests"])}) for row in rows if row["name"] in wanted
    ]
    with (
        tempfile.TemporaryDirectory(prefix="memalpha-faults-") as folder,
        ThreadPoolExecutor(options.jobs) as pool,
    ):
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
        for result in pool.map(
            lambda fault: with_copy(lambda copy: judge(fault, copy, clean, options.timeout)), faults
        ):
            results.append(result)
            print(
                f"{result.verdict:9}{result.seconds:7.1f} s  {result.name}  {result.said}",
                flush=True,
            )
    if options.out:
        rows = [
            json.dumps({"name": r.name, "caught": r.verdict == "caught", "seconds": r.seconds})
            for r in results
        ]
        options.out.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")
    counts = Counter(result.verdict for result in results)
    print(
        f"{len(results)} faults: {', '.join(f'{count} {verdict}' for verdict, count in counts.most_common())}"
    )
    return int(counts["caught"] < len(results))


if __name__ == "__main__":
    sys.exit(main())
