"""Measure the speed of one part: ``python scripts/bench.py NAME --json``. Variants are timed in
turn in one run; never a test.

    rollout    lockstep rollouts against one after another and against plain generation
    update     trained tokens a second, against TRL's own trainer and the machine's matrix products
    load       time and memory of a fresh process until its first answer, against two models
    retrieval  search and update at 100, 10k and 1M entries against brute force and rank_bm25
    memory     import of 5k and 50k messages, and questions by the index against the process,
               sqlite-vec and Mem0

One JSON object on stdout, ``{"name", "ratios", "details"}``. Ratios above 1: ours is better.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Sequence

NAMES = ("rollout", "update", "load", "retrieval", "memory")


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(
        "bench.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", choices=NAMES, help="what to measure")
    parser.add_argument("--json", action="store_true", help="the object on one line")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a version of seconds that only shows that the benchmark runs",
    )
    parser.add_argument(
        "--threads",
        type=int,
        default=1,
        help="threads of OpenMP, BLAS, FAISS and torch (default 1)",
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=0,
        help="readings of each variant (0 = the benchmark's own choice)",
    )
    parser.add_argument(
        "--skip-trl", action="store_true", help="update: compare with the matrix products alone"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="update, load: of the ratios; cpu on a shared machine",
    )
    parser.add_argument(
        "--rows-per-forward",
        type=int,
        default=24,
        help="update: ours; memory grows with it (default 24)",
    )
    parser.add_argument(
        "--only", nargs="+", default=[], help="rollout: these variants beside lockstep"
    )
    parser.add_argument(
        "--vllm",
        default="",
        help="rollout: URL (with /v1) of a vLLM server of the base model, named base",
    )
    parser.add_argument(
        "--against", default="", help="load: folder of another checkout to compare with"
    )
    parser.add_argument(
        "--entries", type=int, nargs="+", help="retrieval: sizes (default 100 10000 1000000)"
    )
    parser.add_argument(
        "--messages", type=int, nargs="+", help="memory: sizes (default 5000 50000)"
    )
    parser.add_argument(
        "--beside",
        type=int,
        default=5_000,
        help="memory: largest size at which others are measured, too (default 5000)",
    )
    parser.add_argument(
        "--kinds",
        nargs="+",
        choices=("dense", "lexical"),
        default=["dense", "lexical"],
        help="retrieval",
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=200,
        help="retrieval: queries that recall is measured on (default 200)",
    )
    options = parser.parse_args(words)
    threads = (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
    )  # read when numpy is imported
    os.environ.update(dict.fromkeys(threads, str(options.threads)), TOKENIZERS_PARALLELISM="false")
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as options.folder:
        found = importlib.import_module(f"benchmarks.{options.name}").run(options)
    from memalpha.record.folder import environment

    at = {**environment(), "threads": options.threads, "load": round(os.getloadavg()[0], 2)}
    machine = {name: at[name] for name in ("processor", "cores", "threads", "load")}
    made = {
        "command": " ".join(["python scripts/bench.py", *words]),
        "date": at["started"],
        "machine": machine,
    }
    made["versions"] = {"python": at["python"], "code": at["code"], **at["packages"]}
    found = {"name": options.name, "ratios": found["ratios"], "details": made | found["details"]}
    print(json.dumps(found, allow_nan=False, indent=None if options.json else 1), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
