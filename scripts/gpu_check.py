"""Trains a few steps on one GPU, measures them, and says whether all is well; scripts/gpu_check.sh installs and starts it.

    python scripts/gpu_check.py [--output runs/gpu_check] [--steps 8]     GRPO with LoRA in bfloat16 on SmolLM2-135M
    python scripts/gpu_check.py --cpu --output DIR                        in small, on the CPU: tests everything but the device

Writes DIR/gpu_check.json and the run folder DIR/run, prints one table. Exit code 0: all is well; 1: something is not, named in the
last line and in ``failures``; 2: there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent

GPU_OPTIONS = {
    "config": "configs/train/quickstart.yaml",
    "train_data": "synthetic",
    "train_options": "{n: 400, split: train}",
    "eval_data": "synthetic",
    "eval_options": "{n: 48, split: test}",
    "use_cpu": "false",
    "dtype": "bfloat16",
    "bf16": "true",
    "train_layers": "0",
    "per_device_train_batch_size": "64",
    "rows_per_forward": "32",
    "generation_rows": "256",
}
CPU_OPTIONS = {
    "config": "configs/train/nano.yaml",
    "warm_start_steps": "20",
    "full_finetuning": "false",
    "lora_r": "4",
    "dtype": "bfloat16",
    "bf16": "true",
    "eval_instances": "4",
    "per_device_train_batch_size": "8",
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cpu", action="store_true", help="run in small on the CPU")
    parser.add_argument("--output", type=Path, default=Path("runs/gpu_check"), help="folder to write")
    parser.add_argument("--steps", type=int, default=8, help="training steps, at least 2: the first is not timed")
    known = parser.parse_args(arguments)
    if known.steps < 2:
        parser.error(f"--steps {known.steps}: the first step is not timed, so at least 2 are needed")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # with several, the Trainer would copy the model to each
    if problem := None if known.cpu else missing_gpu():
        print(problem, file=sys.stderr)
        return 2
    found = measure(known.output.resolve(), known.steps, cpu=known.cpu)
    show(found)
    return 1 if found["failures"] else 0


def missing_gpu() -> str | None:
    """Say what stands in the way of a CUDA GPU, or None."""
    import torch

    if torch.cuda.is_available():
        return None
    return (
        f"gpu_check: torch {torch.__version__} sees no CUDA GPU; nothing was run\n"
        "  expected: one NVIDIA GPU with a driver, and a CUDA build of torch\n"
        "  to fix: see what nvidia-smi says; after installing a driver remove .venv and run scripts/install.sh again"
    )


def measure(output: Path, steps: int, *, cpu: bool) -> dict[str, Any]:
    """Train, and return what ``gpu_check.json`` holds."""
    import torch

    from memalpha.training.config import parse_train_arguments
    from memalpha.training.run import train

    options = {
        **(CPU_OPTIONS if cpu else GPU_OPTIONS), "max_steps": str(steps), "save_strategy": "no", "output_dir": str(output / "run"),
    }  # fmt: skip
    given = [word for name, value in options.items() for word in (f"--{name}", value)]
    output.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    if not cpu:
        torch.cuda.reset_peak_memory_stats()
    rows: list[dict[str, Any]] = []
    summary = train(parse_train_arguments([*given, "--overwrite"]), lambda event, data: keep(rows, event, data))
    found = {
        "device": device(cpu),
        "environment": json.loads((output / "run" / "environment.json").read_text(encoding="utf-8")),
        "options": options,
        "steps": rows,
        "speed": speed(rows),
        "peak_memory_GB": None if cpu else torch.cuda.max_memory_allocated() / 1e9,
        "before": summary["before"]["accuracy"],
        "after": summary["after"]["accuracy"],
        "delta": summary["delta"],
        "seconds": summary["seconds"],
    }
    found["failures"] = failures(rows, steps, found)
    (output / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


def keep(rows: list[dict[str, Any]], event: str, data: dict[str, Any]) -> None:
    """Keep what a step logged, with the time."""
    if event == "step":
        rows.append({**data, "clock": time.perf_counter()})
    print(f"[gpu_check] {event} {data.get('step', data.get('name', ''))}", file=sys.stderr)


def device(cpu: bool) -> dict[str, Any]:
    """What the run is on."""
    import torch

    if cpu:
        return {"name": "CPU", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(0)
    return {
        "name": properties.name,
        "memory_GB": properties.total_memory / 1e9,
        "capability": f"{properties.major}.{properties.minor}",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "bf16": torch.cuda.is_bf16_supported(),
    }


def speed(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rates over all steps but the first. What is not the update counts as rollouts: generation, memory, questions, rewards."""
    timed = rows[1:]
    whole = rows[-1]["clock"] - rows[0]["clock"]
    update = sum(row["step_time"] for row in timed)
    written = sum(row["rows"] * row["completions/mean_length"] for row in timed)
    trained = written + sum(row["rows"] * row["prompts/mean_length"] for row in timed)
    return {
        "seconds_a_step": whole / len(timed),
        "update_seconds_a_step": update / len(timed),
        "generated_tokens_a_second": written / (whole - update),
        "trained_tokens_a_second": trained / update,
    }


def failures(rows: list[dict[str, Any]], steps: int, found: dict[str, Any]) -> list[str]:
    """What is not well, one line each."""
    said = []
    if len(rows) != steps:
        said.append(f"{len(rows)} steps were logged, {steps} asked for")
    said += [
        f"step {row['step']}: {name} is {row.get(name)}"
        for row in rows
        for name in ("loss", "grad_norm")
        if not isinstance(row.get(name), int | float) or not math.isfinite(row[name])
    ]
    if rows and all(row["loss"] == 0 for row in rows):
        said.append("the loss is 0 at every step: no rollout differed from its group")
    said += [f"accuracy {name} is {found[name]}" for name in ("before", "after") if not 0 <= found[name] <= 1]
    return said


def show(found: dict[str, Any]) -> None:
    """Print one table."""
    from rich.console import Console
    from rich.table import Table

    rates, memory = found["speed"], found["peak_memory_GB"]
    table = Table("", found["device"]["name"], title="gpu_check")
    for name, value in {
        "torch": found["device"]["torch"],
        "CUDA": found["device"].get("cuda") or "none",
        "seconds a step": f"{rates['seconds_a_step']:.2f}",
        "tokens generated a second": f"{rates['generated_tokens_a_second']:,.0f}",
        "tokens trained a second": f"{rates['trained_tokens_a_second']:,.0f}",
        "peak memory": "not measured" if memory is None else f"{memory:.1f} GB",
        "losses": " ".join(f"{row['loss']:.3f}" for row in found["steps"]),
        "held-out accuracy": f"{found['before']:.3f} before, {found['after']:.3f} after",
        "verdict": "all is well" if not found["failures"] else "; ".join(found["failures"]),
    }.items():
        table.add_row(name, value)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
