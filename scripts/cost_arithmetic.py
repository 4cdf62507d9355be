"""The arithmetic of a training step: tokens, floating-point operations, seconds, bytes. What scripts/cost_model.py makes tables of.

A step is rollouts (prefill, then decoding in lockstep over chunks), questions and judgements on other GPUs, the update, and
exchange between GPUs; they follow one another. Matrix products count 2 operations a weight and token, attention 4 a head, channel
and visible pair; backward through frozen weights costs as much as forward, through trained ones twice that. Decoding reads the
weights once a step, and the keys and values of every row. What is assumed (utilisation, lengths) stands in the dataclasses.

Not covered: latency of single kernels, stragglers, start-up, evaluation and checkpoints; parsing, memory and retrieval (small).
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass

GB = 1e9


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


def rollout_seconds(model: Model, device: Device, setting: Setting, gpus: int, share: bool, cache: float) -> tuple[float, float]:
    """Seconds of (prefill, decoding)."""
    prefill = prefill_flops(model, setting, share) / (gpus * device.flops * device.prefill)
    return prefill, decode_seconds(model, device, setting, gpus, cache)


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


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).print_help()
