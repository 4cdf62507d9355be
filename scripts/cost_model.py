"""The arithmetic of a training step, and the tables of docs/scale.md (``python scripts/tables.py scale``).

A step is rollouts (prefill, then decoding in lockstep over chunks), questions and judgements on other GPUs, the update, and the
exchange between GPUs; they follow one another. Matrix products count 2 operations a weight and token, attention 4 a head, channel
and visible pair; backward through frozen weights costs as much as forward, through trained ones twice that. Decoding reads the
weights once a step, and the keys and values of every row. What is assumed (utilisation, lengths) stands in the dataclasses.

Not covered: latency of single kernels, stragglers, start-up, evaluation and checkpoints; parsing, memory and retrieval (small).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

GB = 1e9
TIMES = Path(__file__).resolve().parent.parent / "docs" / "step_times.json"


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer with tied embeddings; sizes as in its config."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int

    @property
    def linears(self) -> list[tuple[int, int]]:
        """(inputs, outputs) of every matrix of a layer: q, k, v, o, gate, up, down."""
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        d, m = self.hidden, self.intermediate
        return [(d, q), (d, kv), (d, kv), (q, d), (d, m), (d, m), (m, d)]

    @property
    def layer(self) -> int:
        """Weights of one layer."""
        return sum(a * b for a, b in self.linears)

    @property
    def head(self) -> int:
        """Weights of the embedding, which is the output head as well."""
        return self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """Weights in all, norms left out."""
        return self.layers * self.layer + self.head

    @property
    def kv_elements(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    def lora(self, rank: int) -> int:
        """Weights of adapters on every matrix."""
        return self.layers * rank * sum(a + b for a, b in self.linears)


@dataclass(frozen=True)
class Device:
    """What a processor delivers: its peak, and the shares of it that are assumed (GPUs) or fitted (CPUs)."""

    name: str
    flops: float  # of the number format used, a second
    bandwidth: float  # bytes a second
    update: float  # share of flops in the update
    prefill: float  # share of flops in prefill
    decode: float  # share of bandwidth in decoding
    bytes: int  # of a weight or activation
    memory: float = 0.0  # bytes
    link: float = math.inf  # bytes a second between GPUs of a machine
    network: float = math.inf  # bytes a second and GPU between machines


@dataclass(frozen=True)
class Setting:
    """One step. Lengths are means, in tokens; ``longest`` is the mean of the longest completion that a lockstep waits for."""

    instances: int = 32
    rollouts: int = 8
    chunks: int = 10
    shared: int = 700 + 1167  # system text and tools, chunk
    own: int = 600  # the memory shown
    completion: int = 400
    longest: int = 1200
    questions: float = 58.5  # an instance
    reader_prompt: int = 2500
    answer: int = 20
    verdict: int = 5

    @property
    def rows(self) -> int:
        """(rollout, chunk) pairs."""
        return self.instances * self.rollouts * self.chunks

    @property
    def groups(self) -> int:
        """Sets of rows with a common prefix."""
        return self.instances * self.chunks


@dataclass(frozen=True)
class Training:
    """How weights are trained."""

    lora_rank: int = 32  # 0: all weights
    layers: int = 0  # whose adapters train, from the top (0: all)
    checkpointing: bool = True
    share_prefix: bool = True
    rows_per_forward: int = 8


QWEN3_4B = Model("Qwen3-4B", 2560, 36, 32, 8, 128, 9728, 151936)
QWEN3_32B = Model("Qwen3-32B", 5120, 64, 64, 8, 128, 25600, 151936)  # embeddings counted once, though not tied
SMOLLM2_135M = Model("SmolLM2-135M", 576, 30, 9, 3, 64, 1536, 49152)
H100 = Device("H100 SXM", 989e12, 3.35e12, 0.35, 0.5, 0.6, 2, 80 * GB, 450 * GB, 50 * GB)
PUBLISHED = Setting()
LORA, FULL = Training(), Training(lora_rank=0, rows_per_forward=4)


# -------------------------------------------------------------------------------------------- tokens and operations
def update_tokens(setting: Setting, training: Training) -> float:
    """Tokens of the update's forward passes; a group's prefix counts once a pack."""
    packs = math.ceil(setting.rollouts / min(training.rows_per_forward, setting.rollouts))
    prefixes = setting.groups * packs if training.share_prefix else setting.rows
    return prefixes * setting.shared + setting.rows * (setting.own + setting.completion)


def prefill_tokens(setting: Setting, share_prefix: bool) -> float:
    """Tokens read before decoding."""
    return (setting.groups if share_prefix else setting.rows) * setting.shared + setting.rows * setting.own


def visible_pairs(prefix: float, own: float, rows: float, share: bool) -> float:
    """Pairs of a token and one it sees, for rows of a group: causal over prefix and own part."""
    if share:
        return prefix**2 / 2 + rows * (own * prefix + own**2 / 2)
    return rows * (prefix + own) ** 2 / 2


def attention_flops(model: Model, pairs: float) -> float:
    """Scores and weighted values, forward."""
    return 4 * model.layers * model.heads * model.head_dim * pairs


def update_flops(model: Model, setting: Setting, training: Training) -> float:
    """Operations of forward, backward and, with checkpointing, the second forward of the update."""
    tokens, predicted = update_tokens(setting, training), setting.rows * setting.completion
    pairs = setting.groups * visible_pairs(
        setting.shared, setting.own + setting.completion, setting.rollouts, training.share_prefix
    )
    forward = 2 * model.layers * model.layer * tokens + attention_flops(model, pairs)
    part = (training.layers or model.layers) / model.layers
    backward = part * ((2 if training.lora_rank else 4) * model.layers * model.layer * tokens + 2 * attention_flops(model, pairs))
    head = (4 if training.lora_rank else 6) * model.head * predicted
    adapters = (2 + 4 * part) * model.lora(training.lora_rank) * tokens
    return forward * (2 if training.checkpointing else 1) + backward + head + adapters


def prefill_flops(model: Model, setting: Setting, share: bool) -> float:
    """Operations of reading all prompts of a step."""
    pairs = setting.groups * visible_pairs(setting.shared, setting.own, setting.rollouts, share)
    return 2 * model.layers * model.layer * prefill_tokens(setting, share) + attention_flops(model, pairs)


# -------------------------------------------------------------------------------------------- seconds
def decode_seconds(model: Model, device: Device, setting: Setting, gpus: int = 1, cache: float = math.inf) -> float:
    """Seconds of decoding, rows split over GPUs; ``cache``: bytes for keys and values on a GPU, more rows wait for their turn.

    A step reads the weights once and each row's keys and values, or computes, whichever takes longer.
    """
    rows = setting.instances * setting.rollouts / gpus
    context = setting.shared + setting.own + setting.completion / 2
    waves = math.ceil(rows * row_cache(model, setting, device.bytes) / cache) if cache < math.inf else 1
    read = waves * setting.longest * model.parameters * device.bytes
    read += rows * setting.completion * context * model.kv_elements * device.bytes
    moved = read / (device.bandwidth * device.decode)
    computed = 2 * rows * setting.completion * model.parameters / (device.flops * device.prefill)
    return setting.chunks * max(moved, computed)


def row_cache(model: Model, setting: Setting, width: int) -> float:
    """Bytes of a row's keys and values, its share of the common prefix included."""
    return (setting.shared / setting.rollouts + setting.own + setting.completion) * model.kv_elements * width


def update_seconds(model: Model, device: Device, setting: Setting, training: Training, gpus: int = 1) -> float:
    """Seconds of the update's arithmetic."""
    return update_flops(model, setting, training) / (gpus * device.flops * device.update)


def exchange_seconds(model: Model, device: Device, setting: Setting, training: Training, gpus: int, machine: int = 8) -> float:
    """Seconds of moving gradients (LoRA, DDP), or of weights put together twice a pack and gradients once (all weights, FSDP2)."""
    if gpus == 1:
        return 0.0
    link = device.link if gpus <= machine else device.network
    if training.lora_rank:
        return 2 * 4 * model.lora(training.lora_rank) / link
    packs = setting.rows / gpus / training.rows_per_forward
    return (2 * packs * device.bytes + 4) * model.parameters / link


def service_seconds(reader: Model, device: Device, setting: Setting, gpus: int) -> float:
    """Seconds of the reader's answers and the judge's verdicts, on servers of two GPUs with 128 requests at once."""
    asked = setting.instances * setting.rollouts * setting.questions
    judged = setting.shared + setting.completion
    read = asked * setting.reader_prompt + setting.rows * judged
    written = asked * setting.answer + setting.rows * setting.verdict
    prefill = 2 * reader.parameters * read / (gpus * device.flops * device.prefill)
    decode = written / 128 * reader.parameters * device.bytes / (gpus * device.bandwidth * device.decode)
    return prefill + decode


# -------------------------------------------------------------------------------------------- memory
STATE = {
    "ddp": lambda gpus: (6, 4, 8),  # float32 and the copy of autocast; gradients; two moments
    "zero2": lambda gpus: (2, 2 / gpus, 12 / gpus),  # 16 bits; float32 weights and two moments are shared
    "zero3": lambda gpus: (2 / gpus, 2 / gpus, 12 / gpus),
    "fsdp2": lambda gpus: (4 / gpus, 4, 8 / gpus),  # gradients stay whole until the last pack of a step
}
"""Bytes a weight that trains on one GPU: weights, gradients, optimizer."""


def memory(model: Model, device: Device, setting: Setting, training: Training, gpus: int, sharding: str) -> dict[str, float]:
    """Bytes on one GPU during the update, by part."""
    weights, gradients, optimizer = STATE[sharding](gpus)
    trained = model.lora(training.lora_rank) if training.lora_rank else model.parameters
    frozen = model.parameters * device.bytes if training.lora_rank else 0
    tokens = setting.shared + training.rows_per_forward * (setting.own + setting.completion)
    layers = 1 if training.checkpointing else model.layers
    inside = 8 * model.hidden + 4 * model.intermediate + 2 * (model.heads + model.kv_heads) * model.head_dim
    return {
        "weights": frozen + trained * weights,
        "gradients": trained * gradients,
        "optimizer": trained * optimizer,
        "activations": tokens * device.bytes * (model.layers * model.hidden + layers * inside),
        "logits": training.rows_per_forward * setting.completion * model.vocabulary * 2 * device.bytes,
    }


# -------------------------------------------------------------------------------------------- tables
def step(gpus: int, training: Training, setting: Setting = PUBLISHED) -> dict[str, float]:
    """Seconds of one step by part, on so many H100 and as many again (at least two) that read and judge."""
    cache = 0.35 * H100.memory if training.lora_rank else 20 * GB
    prefill = prefill_flops(QWEN3_4B, setting, training.share_prefix) / (gpus * H100.flops * H100.prefill)
    parts = {
        "prefill": prefill,
        "decoding": decode_seconds(QWEN3_4B, H100, setting, gpus, cache),
        "reader and judge": service_seconds(QWEN3_32B, H100, setting, max(gpus, 2)),
        "update": update_seconds(QWEN3_4B, H100, setting, training, gpus),
        "exchange": exchange_seconds(QWEN3_4B, H100, setting, training, gpus),
    }
    seconds = sum(parts.values())
    return {**parts, "step": seconds, "hours of 205 steps": seconds * 205 / 3600}


def cpu_check() -> dict[str, dict[str, float]]:
    """Predicted and measured seconds of two runs of SmolLM2-135M in float32 on a CPU, whose two rates are fitted to the first."""
    model, found, device = SMOLLM2_135M, {}, Device("CPU", 1.0, 1.0, 1.0, 1.0, 1.0, 4)
    measured_runs = json.loads(TIMES.read_text(encoding="utf-8"))
    for name, run in ((name, measured_runs[name]) for name in ("quickstart", "squad")):
        lengths = {key: run[key] for key in ("shared", "completion", "longest")}
        setting = Setting(run["groups"], run["rollouts"], run["chunks"], own=run["prompt"] - run["shared"], **lengths)
        work = update_flops(model, setting, Training(16, run["trained_layers"], checkpointing=False))
        prefill = prefill_flops(model, setting, share=True)
        if not found:
            flops = work / run["update_seconds"]
            decoding = decode_seconds(model, replace(device, flops=math.inf), setting)  # at 1 byte a second
            device = replace(device, flops=flops, bandwidth=decoding / (run["rollout_seconds"] - prefill / flops))
            found["rates"] = {"GFLOP/s": device.flops / 1e9, "GB/s": device.bandwidth / 1e9}
        decoding = decode_seconds(model, replace(device, flops=math.inf), setting)
        for part, predicted in (("update", work / device.flops), ("rollout", prefill / device.flops + decoding)):
            measured = run[f"{part}_seconds"]
            row = {"predicted": predicted, "measured": measured, "ratio": predicted / measured}
            found[f"{name}, {part}{'s' * (part == 'rollout')}, s"] = row
    return found


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


def held() -> dict[str, dict[str, float]]:
    """GB on one GPU during the update, by way of sharding."""
    layouts = {"LoRA, DDP": (LORA, 8, "ddp"), "all weights, one GPU": (FULL, 1, "ddp")}
    layouts |= {f"all weights, {name}, 8 GPUs": (FULL, 8, name.replace("-", "").lower()) for name in ("FSDP2", "ZeRO-2", "ZeRO-3")}
    parts = {name: memory(QWEN3_4B, H100, PUBLISHED, *layout) for name, layout in layouts.items()}
    return {name: {part: value / GB for part, value in {**row, "sum": sum(row.values())}.items()} for name, row in parts.items()}


def steps() -> dict[str, dict[str, float]]:
    """Seconds of a step, by variant and number of GPUs."""
    found = {f"{name}, {gpus}": step(gpus, variant) for name, variant in VARIANTS.items() for gpus in (1, 8, 32)}
    fewer = replace(PUBLISHED, questions=PUBLISHED.questions / 5)
    return found | {f"LoRA, a fifth of the questions, {gpus}": step(gpus, LORA, fewer) for gpus in (1, 8, 32)}


def table(rows: Mapping[str, Mapping[str, float]], *, turned: bool = False) -> str:
    """A Markdown table with three digits that matter, one line an entry, or one column if ``turned``."""
    if turned:
        rows = {key: {name: row[key] for name, row in rows.items()} for key in next(iter(rows.values()))}
    columns = list(next(iter(rows.values())))
    lines = ["| | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    return "\n".join([*lines, *(f"| {name} | " + " | ".join(map(shown, row.values())) + " |" for name, row in rows.items())])


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


TABLES: dict[str, Callable[[], str]] = {
    "work": lambda: table({name: work(variant) for name, variant in VARIANTS.items()}, turned=True),
    "sizes": lambda: table({"Qwen3-4B": sizes()}, turned=True),
    "memory": lambda: table(held()),
    "step": lambda: table(steps()),
    "cpu": lambda: table({name: row for name, row in cpu_check().items() if name != "rates"}),
    "rates": lambda: table({"fitted to quickstart": cpu_check()["rates"]}),
}
"""Each table of docs/scale.md, by the name of its place."""
