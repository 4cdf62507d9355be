"""What a training step costs, on paper: makes the tables of docs/scale.md, and checks the arithmetic against measured CPU runs.

    python scripts/cost_model.py            prints the tables
    python scripts/cost_model.py --write    puts them into docs/scale.md
    python scripts/cost_model.py --json     prints every number as one JSON object

The arithmetic, and what it assumes, is in scripts/cost_arithmetic.py.
"""

from __future__ import annotations

import argparse
import json
import math
import re
from dataclasses import asdict, replace
from pathlib import Path

from cost_arithmetic import (
    FULL,
    GB,
    H100,
    LORA,
    PUBLISHED,
    QWEN3_4B,
    QWEN3_32B,
    SMOLLM2_135M,
    Device,
    Setting,
    Training,
    decode_seconds,
    exchange_seconds,
    memory,
    prefill_flops,
    prefill_tokens,
    rollout_seconds,
    row_cache,
    service_seconds,
    update_flops,
    update_seconds,
    update_tokens,
)

ROOT = Path(__file__).resolve().parent.parent
DOC = ROOT / "docs" / "scale.md"
TIMES = ROOT / "docs" / "step_times.json"


# -------------------------------------------------------------------------------------------- tables
def step(gpus: int, training: Training, setting: Setting = PUBLISHED) -> dict[str, float]:
    """Seconds of one step by part, on so many H100 and as many again (at least two) that read and judge."""
    share = training.share_prefix
    cache = 0.35 * H100.memory if training.lora_rank else 20 * GB
    prefill, decode = rollout_seconds(QWEN3_4B, H100, setting, gpus, share, cache)
    parts = {
        "prefill": prefill,
        "decoding": decode,
        "reader and judge": service_seconds(QWEN3_32B, H100, setting, max(gpus, 2)),
        "update": update_seconds(QWEN3_4B, H100, setting, training, gpus),
        "exchange": exchange_seconds(QWEN3_4B, H100, setting, training, gpus),
    }
    return {**parts, "step": sum(parts.values())}


def cpu_device(times: dict) -> Device:
    """The CPU with rates fitted to one measured run; SmolLM2-135M in float32."""
    setting, training = cpu_setting(times)
    unit = Device("CPU", 1.0, 1.0, 1.0, 1.0, 1.0, 4)
    flops = update_flops(SMOLLM2_135M, setting, training) / times["update_seconds"]
    left = times["rollout_seconds"] - prefill_flops(SMOLLM2_135M, setting, True) / flops
    bandwidth = decode_seconds(SMOLLM2_135M, replace(unit, flops=math.inf), setting) / left
    return replace(unit, flops=flops, bandwidth=bandwidth)


def cpu_setting(times: dict) -> tuple[Setting, Training]:
    """What a measured run did in a step."""
    own = times["prompt"] - times["shared"]
    lengths = {"shared": times["shared"], "own": own, "completion": times["completion"], "longest": times["longest"]}
    setting = Setting(times["groups"], times["rollouts"], times["chunks"], **lengths)
    return setting, Training(16, times["trained_layers"], checkpointing=False)


def cpu_check() -> dict[str, dict[str, float]]:
    """Predicted and measured seconds of both runs, with the rates fitted to the first."""
    measured = json.loads(TIMES.read_text(encoding="utf-8"))
    device = cpu_device(measured["quickstart"])
    found = {}
    for name in ("quickstart", "squad"):
        setting, training = cpu_setting(measured[name])
        predicted = {
            "update": update_seconds(SMOLLM2_135M, device, setting, training),
            "rollouts": prefill_flops(SMOLLM2_135M, setting, True) / device.flops
            + decode_seconds(SMOLLM2_135M, replace(device, flops=math.inf), setting),
        }
        for part, key in (("update", "update_seconds"), ("rollouts", "rollout_seconds")):
            found[f"{name}, {part}, s"] = {
                "predicted": predicted[part], "measured": measured[name][key], "ratio": predicted[part] / measured[name][key],
            }  # fmt: skip
    return {"rates": {"GFLOP/s": device.flops / 1e9, "GB/s": device.bandwidth / 1e9}, **found}


SHARDED = {"FSDP2": "fsdp2", "ZeRO-2": "zero2", "ZeRO-3": "zero3"}
FEWER = replace(PUBLISHED, questions=PUBLISHED.questions / 5)
VARIANTS = {"LoRA": LORA, "LoRA, no shared prefixes": replace(LORA, share_prefix=False), "all weights": FULL}


def work(training: Training) -> dict[str, float]:
    """What a step has to do."""
    share = training.share_prefix
    return {
        "tokens read by the policy, millions": prefill_tokens(PUBLISHED, share) / 1e6,
        "tokens written, millions": PUBLISHED.rows * PUBLISHED.completion / 1e6,
        "tokens of the update, millions": update_tokens(PUBLISHED, training) / 1e6,
        "prefill, PFLOP": prefill_flops(QWEN3_4B, PUBLISHED, share) / 1e15,
        "update, PFLOP": update_flops(QWEN3_4B, PUBLISHED, training) / 1e15,
    }


def sizes() -> dict[str, float]:
    """How large what is kept is."""
    return {
        "weights in 16 bits, GB": QWEN3_4B.parameters * 2 / GB,
        "adapter of rank 32, million weights": QWEN3_4B.lora(32) / 1e6,
        "keys and values of a token, kB": QWEN3_4B.kv_elements * 2 / 1e3,
        "of a row, GB": row_cache(QWEN3_4B, PUBLISHED, 2) / GB,
        "of the 256 rows of a chunk, GB": row_cache(QWEN3_4B, PUBLISHED, 2) * 256 / GB,
        "reader in 16 bits, GB": QWEN3_32B.parameters * 2 / GB,
    }


def numbers() -> dict:
    """Every number of the document."""
    layouts = {"LoRA, DDP": (LORA, 8, "ddp"), "all weights, one GPU": (FULL, 1, "ddp")}
    layouts |= {f"all weights, {name}, 8 GPUs": (FULL, 8, kind) for name, kind in SHARDED.items()}
    held = {name: memory(QWEN3_4B, H100, PUBLISHED, *layout) for name, layout in layouts.items()}
    steps = {f"{name}, {gpus}": step(gpus, variant) for name, variant in VARIANTS.items() for gpus in (1, 8, 32)}
    steps |= {f"LoRA, a fifth of the questions, {gpus}": step(gpus, LORA, FEWER) for gpus in (1, 8, 32)}
    return {
        "work": {name: work(variant) for name, variant in VARIANTS.items()},
        "sizes": {"Qwen3-4B": sizes()},
        "memory": {name: {**parts, "sum": sum(parts.values())} for name, parts in held.items()},
        "step": {name: {**parts, "hours of 205 steps": parts["step"] * 205 / 3600} for name, parts in steps.items()},
        "cpu": cpu_check(),
        "settings": {"published": asdict(PUBLISHED), "H100": asdict(H100)},
    }


def shown(value: float) -> str:
    """Three digits that matter."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def table(rows: dict[str, dict[str, float]], scale: float = 1.0, *, turned: bool = False) -> str:
    """A Markdown table, one line an entry, or one column if ``turned``."""
    if turned:
        rows = {key: {name: row[key] for name, row in rows.items()} for key in next(iter(rows.values()))}
    columns = list(next(iter(rows.values())))
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    lines += [f"| {name} | " + " | ".join(shown(value / scale) for value in row.values()) + " |" for name, row in rows.items()]
    return "\n".join(lines)


def tables() -> dict[str, str]:
    """The tables of the document, by the name of their place in it."""
    found = numbers()
    rates = {"fitted to quickstart": found["cpu"].pop("rates")}
    return {
        "work": table(found["work"], turned=True),
        "sizes": table(found["sizes"], turned=True),
        "memory": table(found["memory"], GB),
        "step": table(found["step"]),
        "cpu": table(found["cpu"]),
        "rates": table(rates),
    }


def filled(text: str) -> str:
    """The document with its tables replaced by those of now."""
    for name, content in tables().items():
        place = re.compile(rf"(<!-- {name} -->\n)[^<]*(<!-- end -->)")
        if not place.search(text):
            raise SystemExit(f"cost_model: {DOC} has no place for {name}: <!-- {name} --> ... <!-- end -->")
        text = place.sub(lambda match, content=content: f"{match[1]}\n{content}\n\n{match[2]}", text)
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scale.md")
    parser.add_argument("--json", action="store_true", help="print all numbers as JSON")
    arguments = parser.parse_args()
    if arguments.json:
        print(json.dumps(numbers(), indent=1))
    elif arguments.write:
        DOC.write_text(filled(DOC.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        for name, content in tables().items():
            print(f"{name}\n\n{content}\n")


if __name__ == "__main__":
    main()
