"""Measure the speed of one part: ``python scripts/bench.py NAME --json``. Variants are timed in turn in one run; never a test.

NAME is one of
    rollout    lockstep rollouts against one after another and against plain generation
    update     trained tokens a second against TRL's own trainer and against the machine's matrix products
    overhead   the share of a training step that is no model forward or backward
    growth     seconds a chunk at 1,000 chunks against 10
    retrieval  search and update at 100, 10k and 1M entries against brute force and rank_bm25
    agent      texts a second that one agent reads for many clients
    prepare    seconds and peak memory of preparing a data set

The last line on stdout is one JSON object ``{"name", "ratios", "details"}``; with ``--json`` it is all there is there. Ratios above
1 mean that ours is better, but for ``overhead`` (share of a step) and ``growth``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchmarks import common

if TYPE_CHECKING:
    from types import ModuleType

NAMES = ("rollout", "update", "overhead", "growth", "retrieval", "agent", "prepare")


def parse(argv: Sequence[str]) -> tuple[argparse.Namespace, ModuleType]:
    """Return the options and the benchmark's module, imported once the number of threads is in force."""
    parser = argparse.ArgumentParser("bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=NAMES, help="what to measure")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="a version of seconds that only shows that the benchmark runs")
    parser.add_argument("--threads", type=int, default=1, help="threads of OpenMP, BLAS, FAISS and torch (default 1)")
    parser.add_argument("--rounds", type=int, default=0, help="readings of each variant (0 = the benchmark's own choice)")
    known, _ = parser.parse_known_args([word for word in argv if word not in ("-h", "--help") or not set(NAMES) & set(argv)])
    common.limit_threads(known.threads)
    module = importlib.import_module(f"benchmarks.{known.name}")
    if hasattr(module, "add_arguments"):
        module.add_arguments(parser.add_argument_group(f"options of {known.name}"))
    return parser.parse_args(argv), module


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "-" if value is None else str(value)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one benchmark and print what it found."""
    words = list(sys.argv[1:] if argv is None else argv)
    options, module = parse(words)
    with tempfile.TemporaryDirectory() as options.folder:
        found = module.run(options)
    command = " ".join(["python scripts/bench.py", *words])
    details = {"command": command, **common.environment(options.threads), **found["details"]}
    human = sys.stderr if options.json else sys.stdout
    cells = [[*row] for row in details.get("table", [])[:1]] + [[*map(_cell, row.values())] for row in details.get("table", [])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)), file=human)
    for name, value in found["ratios"].items():
        print(f"{found['name']}: {name} = {_cell(value)}", file=human)
    sys.stderr.flush()
    print(json.dumps({"name": found["name"], "ratios": found["ratios"], "details": details}, allow_nan=False), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
