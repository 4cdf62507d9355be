"""Trains one change at a time: the variants of configs/train/ablations.yaml, one run after another.

    python scripts/ablations.py runs/ablations --only control,no_immediate --seeds 1,2 --max_steps
    16

Further arguments are options of ``memalpha train`` for all variants alike. Makes
RUNS/VARIANT/seed-N; ``default`` has no change. Finished runs are kept, and a run that was cut short
goes on. Then ``python scripts/record.py ablations RUNS`` keeps the numbers.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    changes = {
        "default": {},
        **yaml.safe_load(
            (ROOT / "configs" / "train" / "ablations.yaml").read_text(encoding="utf-8")
        ),
    }
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, help="folder of the runs")
    parser.add_argument("--config", default="configs/train/mixed.yaml")
    parser.add_argument("--seeds", default="1", help="with commas between them")
    parser.add_argument(
        "--only", default=",".join(changes), help="names of variants, with commas between them"
    )
    given, options = parser.parse_known_args()
    if unknown := [name for name in given.only.split(",") if name not in changes]:
        parser.error(f"no ablation {unknown[0]!r}; expected: some of {', '.join(changes)}")
    for name in given.only.split(","):
        change = [word for key, value in changes[name].items() for word in (f"--{key}", str(value))]
        for seed in given.seeds.split(","):
            run = given.runs / name / f"seed-{seed}"
            if (run / "summary.json").is_file():
                print(f"{run} is finished", flush=True)
                continue
            resume = ["--resume"] if (run / "config.yaml").is_file() else []
            words = [
                "train",
                "--config",
                given.config,
                "--output_dir",
                str(run),
                "--seed",
                seed,
                *options,
                *change,
                *resume,
            ]
            print(f"memalpha {' '.join(words)}", flush=True)
            subprocess.run([sys.executable, "-m", "memalpha", *words], check=True)


if __name__ == "__main__":
    main()
