"""Trains a few steps on one GPU, measures them, and says whether all is well; scripts/gpu_check.sh installs and starts it.

Writes DIR/gpu_check.json and DIR/run. Exit code 0: all is well; 1: something is not, see ``failures``; 2: no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BOTH = {"dtype": "bfloat16", "bf16": "true", "save_strategy": "no"}
GPU_OPTIONS = {
    **BOTH, "config": "configs/train/quickstart.yaml", "train_data": "synthetic", "train_options": "{n: 400, split: train}",
    "eval_data": "synthetic", "eval_options": "{n: 48, split: test}", "use_cpu": "false", "train_layers": "0",
    "per_device_train_batch_size": "64", "rows_per_forward": "32", "generation_rows": "256",
}  # fmt: skip
CPU_OPTIONS = {
    **BOTH, "config": "configs/train/nano.yaml", "warm_start_steps": "20", "full_finetuning": "false", "lora_r": "4",
    "eval_instances": "4", "per_device_train_batch_size": "8",
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="run in small on the CPU: tests everything but the device")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check"), help="folder to write")
    parser.add_argument("--steps", type=int, default=8, help="training steps, at least 2: the first is not timed")
    known = parser.parse_args(arguments)
    if known.steps < 2:
        parser.error(f"--steps {known.steps}: the first step is not timed, so at least 2 are needed")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # with several, the Trainer would copy the model to each
    import torch

    if not known.cpu and not torch.cuda.is_available():
        fix = "to fix: see what nvidia-smi says; then remove .venv and run scripts/install.sh again"
        print(f"gpu_check: torch {torch.__version__} sees no CUDA GPU; nothing was run\n  {fix}", file=sys.stderr)
        return 2
    output = known.output.resolve()
    os.chdir(ROOT)
    options = {**(CPU_OPTIONS if known.cpu else GPU_OPTIONS), "max_steps": str(known.steps), "output_dir": str(output / "run")}
    found = measure(output / "run", options) | {"device": "CPU", "peak_memory_GB": None}
    if not known.cpu:
        found |= {"device": torch.cuda.get_device_name(0), "peak_memory_GB": torch.cuda.max_memory_allocated() / 1e9}
    (output / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: value for name, value in found.items() if name not in ("steps", "environment", "options")}, indent=1))
    return 1 if found["failures"] else 0


def measure(run: Path, options: dict[str, str]) -> dict[str, Any]:
    from memalpha import cli

    code = cli.run(["train", *(word for name, value in options.items() for word in (f"--{name}", value)), "--overwrite"])
    if code:
        return {"options": options, "failures": [f"memalpha train ended with code {code}"]}
    files = {name: json.loads((run / f"{name}.json").read_text(encoding="utf-8")) for name in ("environment", "summary")}
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {"options": options, "environment": files["environment"], "steps": rows, "speed": speed(rows)}
    found |= {name: files["summary"][name]["accuracy"] for name in ("before", "after")}
    return {**found, "failures": failures(rows, int(options["max_steps"]), found)}


def speed(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rates over all steps but the first; generation counts with memory, questions and rewards."""
    timed = rows[1:]
    update = sum(row["step_time"] for row in timed)
    rollouts = sum(row["time/rollouts"] + row["time/scoring"] for row in timed)
    written, read = (sum(row["rows"] * row[f"{part}/mean_length"] for row in timed) for part in ("completions", "prompts"))
    seconds = {"seconds_a_step": (update + rollouts) / len(timed), "update_seconds_a_step": update / len(timed)}
    return {**seconds, "generated_tokens_a_second": written / rollouts, "trained_tokens_a_second": (written + read) / update}


def failures(rows: list[dict[str, Any]], steps: int, found: dict[str, Any]) -> list[str]:
    said = [] if len(rows) == steps else [f"{len(rows)} steps were logged, {steps} asked for"]
    for row in rows:
        bad = [name for name in ("loss", "grad_norm") if not isinstance(row.get(name), int | float) or not math.isfinite(row[name])]
        said += [f"step {row['step']}: {name} is {row.get(name)}" for name in bad]
    if rows and all(row["loss"] == 0 for row in rows):
        said.append("the loss is 0 at every step: no rollout differed from its group")
    scores = {name: math.nan if found[name] is None else found[name] for name in ("before", "after")}
    return said + [f"accuracy {name} is {score}" for name, score in scores.items() if not 0 <= score <= 1]


if __name__ == "__main__":
    sys.exit(main())
