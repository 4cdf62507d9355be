"""The arithmetic of a training step, and the tables of docs/scale.md (``python scripts/tables.py
scale``).

A step is rollouts (prefill, then decoding in lockstep over chunks), questions and judgements on
other GPUs, the update, and the exchange between GPUs; they follow one another. Matrix products
count 2 operations a weight and token, attention 4 a head, channel and visible pair; backward
through frozen weights costs as much as forward, through trained ones twice that.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

GB = 1e9
TIMES = Path(__file__).resolve().parent.parent / "docs" / "step_times.json"


class Model:
    """A decoder-only transformer with tied embeddings; sizes as in its config."""

    def __init__(
        self,
        hidden: int,
        layers: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        intermediate: int,
        vocabulary: int,
    ):
        self.hidden, self.layers, self.heads, self.kv_heads, self.head_dim = (
            hidden,
            layers,
            heads,
            kv_heads,
            head_dim,
        )
        self.intermediate, self.vocabulary = intermediate, vocabulary
        q, kv, up = heads * head_dim, kv_heads * head_dim, (hidden, intermediate)
        self.linears = [
            (hidden, q),
            (hidden, kv),
            (hidden, kv),
            (q, hidden),
            up,
            up,
            up[::-1],
        ]  # (inputs, outputs)
        self.layer = sum(a * b for a, b in self.linears)  # weights of one layer
        self.head = vocabulary * hidden  # of the embedding, which is the output head as well
        self.parameters = layers * self.layer + self.head  # norms left out
        self.kv_elements = 2 * layers * kv  # keys and values of one token

    def lora(self, rank: int) -> int:
        return self.layers * rank * sum(a + b for a, b in self.linears)


@dataclass(frozen=True)
# lengths are means, in tokens; ``longest``: of the longest completion that a lockstep waits for
class Setting:
    instances: int = 32
    rollouts: int = 8
    chunks: int = 10
    shared: int = 700 + 1167  # system text and tools, chunk
    own: int = 600  # the memory shown
    completion: int = 400
    longest: int = 1200
    questions: float = 58.5  # an instance

    @property
    def rows(self) -> int:  # (rollout, chunk) pairs
        return self.instances * self.rollouts * self.chunks

    @property
    def groups(self) -> int:  # sets of rows with a common prefix
        return self.instances * self.chunks


@dataclass(frozen=True)
class Training:
    lora_rank: int = 32  # 0: all weights
    layers: int = 0  # whose adapters train, from the top (0: all)
    checkpointing: bool = True
    share_prefix: bool = True
    rows_per_forward: int = 8


QWEN3_4B = Model(2560, 36, 32, 8, 128, 9728, 151936)
QWEN3_32B = Model(5120, 64, 64, 8, 128, 25600, 151936)  # embeddings counted once, though not tied
QWEN3_06B = Model(1024, 28, 16, 8, 128, 3072, 151936)
SMOLLM2_135M = Model(576, 30, 9, 3, 64, 1536, 49152)
PEAK = 989e12  # operations a second of an H100 SXM in bfloat16, as of an H200
UPDATE, PREFILL, DECODE = (
    0.19 * PEAK,
    0.5 * PEAK,
    0.6 * 3.35e12,
)  # by part; the first share is measured (gpu.json)
PUBLISHED = Setting()
LORA, FULL = Training(), Training(lora_rank=0, rows_per_forward=4)
HEAD_BLOCK = 2**26  # logits of a frozen head that are there at once (memalpha.training.logprobs)


def update_tokens(setting: Setting, training: Training) -> float:
    packs = math.ceil(setting.rollouts / min(training.rows_per_forward, setting.rollouts))
    prefixes = setting.groups * packs if training.share_prefix else setting.rows
    return prefixes * setting.shared + setting.rows * (setting.own + setting.completion)


def prefill_tokens(setting: Setting, share: bool) -> float:
    return (setting.groups if share else setting.rows) * setting.shared + setting.rows * setting.own


def visible_pairs(prefix: float, own: float, rows: float, share: bool) -> float:
    """Pairs of a token and one it sees, for rows of a group."""
    return (
        prefix**2 / 2 + rows * (own * prefix + own**2 / 2)
        if share
        else rows * (prefix + own) ** 2 / 2
    )


def attention_flops(model: Model, setting: Setting, own: float, share: bool) -> float:
    pairs = setting.groups * visible_pairs(setting.shared, own, setting.rollouts, share)
    return (
        4 * model.layers * model.heads * model.head_dim * pairs
    )  # forward: scores and weighted values


def update_flops(model: Model, setting: Setting, training: Training) -> float:
    tokens, lora = update_tokens(setting, training), training.lora_rank > 0
    attention = attention_flops(
        model, setting, setting.own + setting.completion, training.share_prefix
    )
    forward = 2 * model.layers * model.layer * tokens + attention
    part = (training.layers or model.layers) / model.layers
    backward = part * ((2 if lora else 4) * model.layers * model.layer * tokens + 2 * attention)
    head = (4 if lora else 6) * model.head * setting.rows * setting.completion
    adapters = (2 + 4 * part) * model.lora(training.lora_rank) * tokens
    return forward * (2 if training.checkpointing else 1) + backward + head + adapters


def prefill_flops(model: Model, setting: Setting, share: bool) -> float:
    return 2 * model.layers * model.layer * prefill_tokens(setting, share) + attention_flops(
        model, setting, setting.own, share
    )


def row_cache(model: Model, setting: Setting, width: int) -> float:
    return (
        (setting.shared / setting.rollouts + setting.own + setting.completion)
        * model.kv_elements
        * width
    )


def decode_seconds(
    model: Model,
    setting: Setting,
    flops: float,
    bandwidth: float,
    width: int = 2,
    gpus: int = 1,
    cache: float = math.inf,
) -> float:
    """Seconds of decoding, rows split over GPUs; ``cache``: bytes for keys and values on a GPU,
    more rows wait for their turn."""
    rows = setting.instances * setting.rollouts / gpus
    context = setting.shared + setting.own + setting.completion / 2
    waves = math.ceil(rows * row_cache(model, setting, width) / cache) if cache < math.inf else 1
    read = (
        waves * setting.longest * model.parameters
        + rows * setting.completion * context * model.kv_elements
    )
    computed = 2 * rows * setting.completion * model.parameters / flops
    return setting.chunks * max(read * width / bandwidth, computed)


STATE = {
    "ddp": lambda gpus: (6, 4, 8),  # float32 and the copy of autocast; gradients; two moments
    "zero2": lambda gpus: (
        2,
        2 / gpus,
        12 / gpus,
    ),  # 16 bits; float32 weights and two moments are shared
    "zero3": lambda gpus: (2 / gpus, 2 / gpus, 12 / gpus),
    "fsdp2": lambda gpus: (
        4 / gpus,
        4,
        8 / gpus,
    ),  # gradients stay whole until the last pack of a step
}
"""Bytes a weight that trains on one GPU: weights, gradients, optimizer."""


def memory(
    model: Model, width: int, setting: Setting, training: Training, gpus: int, sharding: str
) -> dict[str, float]:
    """Bytes on one GPU during the update, by part; ``width``: of a frozen weight or an
    activation."""
    trained = model.lora(training.lora_rank) if training.lora_rank else model.parameters
    weights, gradients, optimizer = (trained * state for state in STATE[sharding](gpus))
    weights += model.parameters * width if training.lora_rank else 0
    tokens = setting.shared + training.rows_per_forward * (setting.own + setting.completion)
    layers = 1 if training.checkpointing else model.layers
    inside = (
        8 * model.hidden
        + 4 * model.intermediate
        + 2 * (model.heads + model.kv_heads) * model.head_dim
    )
    activations = tokens * width * (model.layers * model.hidden + layers * inside)
    predicted = training.rows_per_forward * setting.completion
    logits = (
        predicted * model.vocabulary * 2 * width
    )  # a trained head: all of them, and their gradient
    if (
        training.lora_rank
    ):  # a frozen one: a block of them, also in float32, and three times the hidden states
        logits = (
            min(HEAD_BLOCK, predicted * model.vocabulary) * (width + 4)
            + predicted * model.hidden * 12
        )
    parts = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": activations,
        "logits": logits,
    }
    return {**parts, "sum": sum(parts.values())}


def step(gpus: int, training: Training, setting: Setting = PUBLISHED) -> dict[str, float]:
    """Seconds of one step by part, on so many H100, and as many again (at least two) that read and
    judge, 128 requests at once."""
    policy, reader, readers = QWEN3_4B, QWEN3_32B.parameters, max(gpus, 2)
    asked = (
        setting.instances * setting.rollouts * setting.questions
    )  # a prompt of 2,500 tokens and an answer of 20
    read = asked * 2500 + setting.rows * (setting.shared + setting.completion)  # a verdict has 5
    service = 2 * reader * read / (readers * PREFILL) + (
        asked * 20 + setting.rows * 5
    ) / 128 * reader * 2 / (readers * DECODE)
    moved = (
        2 * 4 * policy.lora(training.lora_rank)
    )  # gradients under DDP; or weights twice a pack and gradients once under FSDP2
    if not training.lora_rank:
        moved = (2 * setting.rows / gpus / training.rows_per_forward * 2 + 4) * policy.parameters
    parts = {
        "prefill": prefill_flops(policy, setting, training.share_prefix) / (gpus * PREFILL),
        "decoding": decode_seconds(
            policy, setting, PREFILL, DECODE, 2, gpus, (28 if training.lora_rank else 20) * GB
        ),
        "reader and judge": service,
        "update": update_flops(policy, setting, training) / (gpus * UPDATE),
        "exchange": 0.0
        if gpus == 1
        else moved / ((450 if gpus <= 8 else 50) * GB),  # in a machine, between machines
    }
    seconds = sum(parts.values())
    return {**parts, "step": seconds, "hours of 205 steps": seconds * 205 / 3600}


def cpu_check() -> dict[str, dict[str, float]]:
    """Predicted and measured seconds of two runs of SmolLM2-135M in float32 on a CPU, whose two
    rates are fitted to the first."""
    model, found = SMOLLM2_135M, {}
    measured_runs = json.loads(TIMES.read_text(encoding="utf-8"))
    flops = bandwidth = 0.0
    for name in ("quickstart", "squad"):
        run = measured_runs[name]
        lengths = {key: run[key] for key in ("shared", "completion", "longest")}
        setting = Setting(
            run["groups"],
            run["rollouts"],
            run["chunks"],
            own=run["prompt"] - run["shared"],
            **lengths,
        )
        work = update_flops(
            model, setting, Training(16, run["trained_layers"], checkpointing=False)
        )
        prefill, moved = (
            prefill_flops(model, setting, True),
            decode_seconds(model, setting, math.inf, 1.0, 4),
        )  # at 1 byte a second
        if not found:
            flops = work / run["update_seconds"]
            bandwidth = moved / (run["rollout_seconds"] - prefill / flops)
            found["rates"] = {"GFLOP/s": flops / 1e9, "GB/s": bandwidth / 1e9}
        for part, predicted in (
            ("update", work / flops),
            ("rollout", prefill / flops + moved / bandwidth),
        ):
            measured = run[f"{part}_seconds"]
            row = {"predicted": predicted, "measured": measured, "ratio": predicted / measured}
            found[f"{name}, {part}{'s' * (part == 'rollout')}, s"] = row
    return found


def measured() -> dict[str, dict[str, float]]:
    """Of ``scripts/gpu_rates.py``: each part on each GPU that held it."""
    rates = json.loads((TIMES.parent / "results" / "gpu.json").read_text(encoding="utf-8"))["rates"]
    rows = {}
    for gpu, part, of in (
        (gpu, part, of)
        for gpu, parts in rates.items()
        for part, of in parts.items()
        if "seconds" in of
    ):
        memory = {"GB": of["peak_GB"], "GB reckoned": of["predicted_GB"]}
        share = {"share of the peak": of["TFLOP/s"] * 1e12 / PEAK}
        rows[f"{gpu.split()[1]}, {part}"] = {
            "seconds": of["seconds"],
            "TFLOP/s": of["TFLOP/s"],
            **memory,
            **share,
        }
    return rows


VARIANTS = {
    "LoRA": LORA,
    "LoRA, no shared prefixes": replace(LORA, share_prefix=False),
    "all weights": FULL,
}
STEPS = {name: (variant, PUBLISHED) for name, variant in VARIANTS.items()}
STEPS["LoRA, a fifth of the questions"] = (
    LORA,
    replace(PUBLISHED, questions=PUBLISHED.questions / 5),
)
LAYOUTS = {"LoRA, DDP": (LORA, 8, "ddp"), "all weights, one GPU": (FULL, 1, "ddp")}
LAYOUTS |= {
    f"all weights, {name}, 8 GPUs": (FULL, 8, name.replace("-", "").lower())
    for name in ("FSDP2", "ZeRO-2", "ZeRO-3")
}
ONE_GPU = (
    Setting(8, 8, 3, shared=320, own=256, completion=96),
    Training(16, checkpointing=False),
)  # configs/train/one-gpu.yaml
SIZES = {
    "weights in 16 bits, GB": QWEN3_4B.parameters * 2 / GB,
    "adapter of rank 32, million weights": QWEN3_4B.lora(32) / 1e6,
    "keys and values of a token, kB": QWEN3_4B.kv_elements * 2 / 1e3,
    "of a row, GB": row_cache(QWEN3_4B, PUBLISHED, 2) / GB,
    "of the 256 rows of a chunk, GB": row_cache(QWEN3_4B, PUBLISHED, 2) * 256 / GB,
    "reader in 16 bits, GB": QWEN3_32B.parameters * 2 / GB,
}


def work(training: Training) -> dict[str, float]:
    return {
        "tokens read by the policy, millions": prefill_tokens(PUBLISHED, training.share_prefix)
        / 1e6,
        "tokens written, millions": PUBLISHED.rows * PUBLISHED.completion / 1e6,
        "tokens of the update, millions": update_tokens(PUBLISHED, training) / 1e6,
        "prefill, PFLOP": prefill_flops(QWEN3_4B, PUBLISHED, training.share_prefix) / 1e15,
        "update, PFLOP": update_flops(QWEN3_4B, PUBLISHED, training) / 1e15,
    }


def table(rows: Mapping[str, Mapping[str, float]], *, turned: bool = False, unit: float = 1) -> str:
    """A Markdown table with three digits that matter, one line an entry, or one column if
    ``turned``."""

    def shown(value: float) -> str:
        return f"{value / unit:,.{0 if value >= 100 * unit else 1 if value >= 10 * unit else 2}f}"

    if turned:
        rows = {
            key: {name: row[key] for name, row in rows.items()} for key in next(iter(rows.values()))
        }
    columns = list(next(iter(rows.values())))
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    return "\n".join(
        [
            *lines,
            *(
                f"| {name} | " + " | ".join(map(shown, row.values())) + " |"
                for name, row in rows.items()
            ),
        ]
    )


TABLES: dict[str, Callable[[], str]] = {
    "work": lambda: table({name: work(variant) for name, variant in VARIANTS.items()}, turned=True),
    "sizes": lambda: table({"Qwen3-4B": SIZES}, turned=True),
    "memory": lambda: table(
        {name: memory(QWEN3_4B, 2, PUBLISHED, *layout) for name, layout in LAYOUTS.items()}
        | {"Qwen3-0.6B, `one-gpu.yaml`": memory(QWEN3_06B, 2, *ONE_GPU, 1, "ddp")},
        unit=GB,
    ),
    "step": lambda: table(
        {f"{name}, {gpus}": step(gpus, *of) for name, of in STEPS.items() for gpus in (1, 8, 32)}
    ),
    "gpu": lambda: table(measured()),
    "cpu": lambda: table({name: row for name, row in cpu_check().items() if name != "rates"}),
    "rates": lambda: table({"fitted to quickstart": cpu_check()["rates"]}),
}
