"""Rates of this project's update and drawing with Qwen3-4B's shape and random weights, beside those
that cost_model.py assumes.

    python scripts/gpu_rates.py runs/gpu_rates.json     two minutes on an H200; nothing is
    downloaded

The lengths are those of docs/scale.md, one group of rollouts a pack. What does not fit the GPU's
memory is recorded as that.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cost_model as cost
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Qwen3Config

from memalpha.generation.hf import HFGenerator
from memalpha.record.folder import environment
from memalpha.training.packed import Row, packed_logps
from memalpha.types import Prompt, Sampling

UPDATES = {
    "update, checkpointing": (8, True, True),
    "update": (8, True, False),
    "update, 4 rows": (4, True, False),
}
UPDATES["update, checkpointing, no shared prefixes"] = 8, False, True  # rows, shared, checkpointing
DRAWS = {"drawing, 64 rows": 8, "drawing, 16 rows": 2}  # groups of 8
Found = dict[str, Any]


def main(
    arguments: list[str] | None = None,
    shape: cost.Model = cost.QWEN3_4B,
    of: cost.Setting = cost.PUBLISHED,
) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path, help="file to write")
    known = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    name = torch.cuda.get_device_name(0) if device == "cuda" else "CPU"
    found: Found = {"device": name, "environment": environment(), "parts": {}}
    model, ids = random_model(shape, device), random_ids(shape.vocabulary)
    tasks: dict[str, Callable[[], Found]] = {
        name: lambda how=how: update(model, shape, of, ids, *how) for name, how in UPDATES.items()
    }
    tasks |= {
        name: lambda groups=groups: draw(model, shape, of, ids, groups)
        for name, groups in DRAWS.items()
    }
    for name, task in tasks.items():
        if device == "cuda":
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        try:
            found["parts"][name] = task() | (
                {"peak_GB": torch.cuda.max_memory_allocated() / 1e9} if device == "cuda" else {}
            )
        except Exception as error:  # HFGenerator has an error of its own for this
            if not isinstance(error.__cause__ or error, torch.OutOfMemoryError):
                raise
            found["parts"][name] = {"out of memory": True}
        print(name, json.dumps(found["parts"][name]), flush=True)
        known.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


def random_model(shape: cost.Model, device: str) -> Any:
    config = Qwen3Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        tie_word_embeddings=True,
    )
    with torch.device(device):
        base = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model = get_peft_model(
        base, LoraConfig(r=cost.LORA.lora_rank, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    model.enable_input_require_grads()
    return model


def random_ids(vocabulary: int) -> Callable[[int], list[int]]:
    random = torch.Generator().manual_seed(0)
    return lambda count: torch.randint(3, vocabulary, (count,), generator=random).tolist()


def seconds(task: Callable[[], Any], times: int = 2) -> float:
    """The shortest of some runs, after one that is not timed."""
    taken = []
    for _ in range(1 + times):
        began = time.perf_counter()
        task()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken[1:])


def update(
    model: Any,
    shape: cost.Model,
    of: cost.Setting,
    ids: Any,
    rows: int,
    shared: bool,
    checkpointing: bool,
) -> Found:
    model.train()
    model.gradient_checkpointing_disable()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    common = ids(of.shared)
    given = [
        Row(common + ids(of.own), ids(of.completion), of.shared if shared else 0)
        for _ in range(rows)
    ]

    def step() -> None:
        with torch.autocast(model.device.type, torch.bfloat16):
            scores = torch.cat(packed_logps(model, given).logps)
        scores.sum().backward()
        model.zero_grad()

    one = cost.Setting(1, rows, 1, of.shared, of.own, of.completion)
    how = cost.Training(checkpointing=checkpointing, share_prefix=shared, rows_per_forward=rows)
    taken, work = seconds(step), cost.update_flops(shape, one, how)
    memory = cost.memory(shape, 2, one, how, 1, "ddp")["sum"]
    return {"seconds": taken, "TFLOP/s": work / taken / 1e12, "predicted_GB": memory / 1e9}


def draw(model: Any, shape: cost.Model, of: cost.Setting, ids: Any, groups: int) -> Found:
    """Two lengths of completions; their difference is decoding, what is left of the shorter one is
    prefill."""
    model.eval()
    decoder = type("Decoder", (), {"decode": lambda self, ids, **_: "", "added_tokens_decoder": {}})
    endless = type("Endless", (HFGenerator,), {"end_ids": frozenset()})
    generator = endless(model, decoder(), max_batch=8 * groups, merge_adapters=False, logprobs=True)
    prompts = [
        Prompt((), tuple(common + ids(of.own)), of.shared)
        for common in (ids(of.shared) for _ in range(groups))
        for _ in range(8)
    ]
    short, long = 8, 40
    taken = {
        new: seconds(lambda new=new: generator.generate(prompts, Sampling(new, 1.0, seed=1)), 1)
        for new in (short, long)
    }
    token = (taken[long] - taken[short]) / (long - short)
    one = cost.Setting(groups, 8, 1, of.shared, of.own)
    read = 2 * (
        shape.parameters
        + len(prompts) * (of.shared + of.own + (short + long) / 2) * shape.kv_elements
    )
    prefill = taken[short] - short * token
    rates = {
        "prefill TFLOP/s": cost.prefill_flops(shape, one, True) / prefill / 1e12,
        "decoding GB/s": read / token / 1e9,
    }
    return {"ms a token": 1000 * token, "prefill seconds": prefill, **rates}


if __name__ == "__main__":
    sys.exit(main())
