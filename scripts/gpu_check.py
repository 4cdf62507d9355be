"""Trains a few steps on one GPU, measures them, and says whether all is well; scripts/gpu_check.sh
installs and starts it.

Writes DIR/gpu_check.json and DIR/run; B1 to B7: docs/guides/gpus.md. Exit code 0: all is
well; 1: see ``failures``; 2: no GPU.
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
from unittest import mock

ROOT = Path(__file__).resolve().parent.parent
BOTH = {"dtype": "bfloat16", "bf16": "true", "save_strategy": "no"}
GPU_OPTIONS = {
    **BOTH,
    "config": "configs/train/quickstart.yaml",
    "train_data": "synthetic",
    "train_options": "{n: 400, split: train}",
    "eval_data": "synthetic",
    "eval_options": "{n: 48, split: test}",
    "use_cpu": "false",
    "train_layers": "0",
    "per_device_train_batch_size": "64",
    "rows_per_forward": "32",
    "generation_rows": "256",
}
CPU_OPTIONS = {
    **BOTH,
    "config": "configs/train/nano.yaml",
    "warm_start_steps": "20",
    "full_finetuning": "false",
    "lora_r": "4",
    "eval_instances": "4",
    "per_device_train_batch_size": "8",
}
FLOAT16 = {"dtype": "float16", "bf16": "false", "fp16": "true"}  # on a T4 or V100
MOST_APART = 0.2  # nats; rounding to 16 bits gives about .1
MOST_WAITS = 2  # a decoded token, prefill included


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cpu",
        action="store_true",
        help="run in small on the CPU: tests everything but the device",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("runs/gpu_check"), help="folder to write"
    )
    parser.add_argument(
        "--steps", type=int, default=8, help="training steps, at least 2: the first is not timed"
    )
    parser.add_argument(
        "--float16", action="store_true", help="as a GPU does that computes no bfloat16"
    )
    known = parser.parse_args(arguments)
    if known.steps < 2:
        parser.error(
            f"--steps {known.steps}: the first step is not timed, so at least 2 are needed"
        )
    os.environ.setdefault(
        "CUDA_VISIBLE_DEVICES", "0"
    )  # with several, the Trainer would copy the model to each
    import torch

    if not known.cpu and not torch.cuda.is_available():
        fix = "to fix: see what nvidia-smi says; then remove .venv and run scripts/install.sh again"
        print(
            f"gpu_check: torch {torch.__version__} sees no CUDA GPU; nothing was run\n  {fix}",
            file=sys.stderr,
        )
        return 2
    output = known.output.resolve()
    os.chdir(ROOT)
    options = {
        **(CPU_OPTIONS if known.cpu else GPU_OPTIONS),
        "max_steps": str(known.steps),
        "output_dir": str(output / "run"),
    }
    if known.float16 or not (known.cpu or torch.cuda.is_bf16_supported(including_emulation=False)):
        options |= FLOAT16
    found = measure(output / "run", options, "cpu" if known.cpu else "cuda") | {
        "device": "CPU",
        "peak_memory_GB": None,
    }
    if not known.cpu:
        found |= {
            "device": torch.cuda.get_device_name(0),
            "peak_memory_GB": torch.cuda.max_memory_allocated() / 1e9,
        }
    (output / "gpu_check.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for name, (well, said) in found.pop("checks", {}).items():
        print(f"{name} {'pass' if well else 'FAIL'}  {said}")
    print(
        json.dumps(
            {
                name: value
                for name, value in found.items()
                if name not in ("steps", "environment", "options")
            },
            indent=1,
        )
    )
    return 1 if found["failures"] else 0


def measure(run: Path, options: dict[str, str], device: str) -> dict[str, Any]:
    from memalpha import cli

    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    code = cli.run(["train", *words, "--overwrite"])
    if code:
        return {"options": options, "failures": [f"memalpha train ended with code {code}"]}
    files = {
        name: json.loads((run / f"{name}.json").read_text(encoding="utf-8"))
        for name in ("environment", "summary")
    }
    rows = [
        json.loads(line)
        for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    found = {
        "options": options,
        "environment": files["environment"],
        "steps": rows,
        "speed": speed(rows),
    }
    found["checks"] = checks(words, device, rows)
    found |= {name: files["summary"][name]["accuracy"] for name in ("before", "after")}
    return {**found, "failures": failures(rows, int(options["max_steps"]), found)}


def checks(
    words: list[str], device: str, rows: list[dict[str, Any]]
) -> dict[str, tuple[bool, str]]:
    """Whether each of the faults B1 to B7 is absent, and what was seen; ``rows``: the steps of a
    run in 16 bits."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from memalpha.errors import InputError
    from memalpha.generation.hf import HFGenerator
    from memalpha.training import precision, trainer
    from memalpha.training.build import build_components
    from memalpha.training.config import parse_train_arguments
    from memalpha.types import Prompt, Sampling
    from memalpha.update import logps, prepare

    class Watch(TorchDispatchMode):
        logits = square = waits = (
            # tokens whose logits are all there, side of a square, operations that wait for the
            # device
            0
        )

        def __torch_dispatch__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            made, name = function(*args, **(kwargs or {})), function.overloadpacket.__name__
            shapes = [
                x.shape
                for x in (made if isinstance(made, tuple | list) else [made])
                if isinstance(x, torch.Tensor)
            ]
            self.logits = max(
                self.logits,
                *(math.prod(shape[:-1]) for shape in shapes if shape[-1:] == (width,)),
                0,
            )
            self.square = max(
                self.square, *(min(shape[-2:]) for shape in shapes if len(shape) > 1), 0
            )
            chosen = args[1] if name in ("index", "index_put_") else ()
            masked = any(getattr(x, "dtype", None) is torch.bool for x in chosen)
            self.waits += masked or name in ("_local_scalar_dense", "nonzero", "equal")
            return made

    found, parts = {}, build_components(parse_train_arguments(words))
    model, tokens = parts.model.to(device), 8 * 256
    width = model.config.vocab_size
    kind = torch.float16 if "float16" in words else torch.bfloat16
    apart = [row.get("sampling/sampling_logp_difference/mean", math.inf) for row in rows] or [
        math.inf
    ]
    found["B1"] = (
        max(apart) < MOST_APART,
        f"log-probabilities sampled and trained: {max(apart):.3g} apart (< {MOST_APART})",
    )
    given = [logps.CompletionRow((1,), torch.randint(3, width, (256,)).tolist()) for _ in range(8)]
    with torch.autocast(device, kind), Watch() as seen:
        sum(of_row.logps.sum() for of_row in logps.packed_logps(model, given)).backward()
    found["B2"] = (
        seen.logits < tokens,
        f"logits of {seen.logits} of {tokens} tokens at once in the update",
    )
    found["B3"] = (
        seen.square < tokens,
        f"largest square of an update of {tokens} tokens: {seen.square}",
    )
    try:
        precision.check_types("float16", parse_train_arguments([]).trl_arguments)
        found["B4"] = False, "float16 without a scaled loss is accepted"
    except InputError as error:
        found["B4"] = True, f"refused: {str(error).splitlines()[0]}"
    gradient = next(
        parameter.grad for parameter in model.parameters() if parameter.grad is not None
    )
    finite = [
        trainer.finite_gradients(model),
        gradient.view(-1)[:1].fill_(math.inf) is None or trainer.finite_gradients(model),
    ]
    found["B5"] = (
        finite == [True, False],
        f"gradients are called finite: {finite[0]}, with an infinite number: {finite[1]}",
    )
    with (
        torch.autocast(device, kind),
        mock.patch.object(
            prepare.LoraProduct, "apply", side_effect=prepare.LoraProduct.apply
        ) as used,
    ):
        logps.packed_logps(model, given[:1])
    found["B6"] = (
        used.call_count > 0,
        f"LoRA layers that keep no input in 32 bits: {used.call_count}",
    )
    endless = type("Endless", (HFGenerator,), {"end_ids": frozenset()})(
        model, parts.tokenizer, merge_adapters=False, logprobs=True
    )
    began = time.perf_counter()
    with Watch() as seen:
        endless.generate(
            [Prompt((), tuple(row.completion_ids[:64])) for row in given], Sampling(40, 1.0, seed=1)
        )
    waits, ms = seen.waits / 40, 25 * (time.perf_counter() - began)
    found["B7"] = (
        waits < MOST_WAITS,
        f"waits for the device a decoded token: {waits:g} (< {MOST_WAITS}); {ms:.1f} ms, watched",
    )
    return found


def speed(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Rates over all steps but the first; generation counts with memory, questions and rewards."""
    timed = rows[1:]
    update = sum(row["step_time"] for row in timed)
    rollouts = sum(row["time/rollouts"] + row["time/scoring"] for row in timed)
    written, read = (
        sum(row["rows"] * row[f"{part}/mean_length"] for row in timed)
        for part in ("completions", "prompts")
    )
    seconds = {
        "seconds_a_step": (update + rollouts) / len(timed),
        "update_seconds_a_step": update / len(timed),
    }
    return {
        **seconds,
        "generated_tokens_a_second": written / rollouts,
        "trained_tokens_a_second": (written + read) / update,
    }


def failures(rows: list[dict[str, Any]], steps: int, found: dict[str, Any]) -> list[str]:
    said = [] if len(rows) == steps else [f"{len(rows)} steps were logged, {steps} asked for"]
    for row in rows:
        bad = [
            name
            for name in ("loss", "grad_norm")
            if not isinstance(row.get(name), int | float) or not math.isfinite(row[name])
        ]
        said += [f"step {row['step']}: {name} is {row.get(name)}" for name in bad]
    if rows and all(row["loss"] == 0 for row in rows):
        said.append("the loss is 0 at every step: no rollout differed from its group")
    said += [
        f"{name}: {seen}" for name, (well, seen) in found.get("checks", {}).items() if not well
    ]
    scores = {
        name: math.nan if found[name] is None else found[name] for name in ("before", "after")
    }
    return said + [
        f"accuracy {name} is {score}" for name, score in scores.items() if not 0 <= score <= 1
    ]


if __name__ == "__main__":
    sys.exit(main())
