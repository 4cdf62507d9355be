"""One GRPO update: trained tokens a second against TRL's own trainer, and model FLOPs against the
machine's matrix products.

Both trainers get the same rows, real rollouts on one dialogue, padded as TRL pads them. ``ours`` is
one ``training_step`` of
``MemoryGRPOTrainer``; ``trl`` is ``GRPOTrainer.training_step`` over the same rows, at the fastest
per-device batch of those tried: the dapo loss with entropies and clip statistics, forward and
backward, LoRA on every linear layer, float32. The peak is the fastest of several products of
float32 matrices (``torch.mm``) at the same number of threads, timed in turn with the updates.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import common

GEMM_SHAPES = (
    (1024, 1024, 1024),
    (2048, 2048, 2048),
    (512, 576, 1536),
    (1024, 1536, 576),
)  # (m, k, n)


def run(options: Any) -> dict[str, Any]:
    ours, _, _ = our_trainer(options, options.folder)
    ours.model.train()
    (batch,) = ours._next_update_batches()  # rolled out and scored as in training
    rounds = options.rounds or (1 if options.quick else 2)
    rows = batch.rows
    padded = trl_batch(ours, rows)
    work = flops(ours.model, rows, ours.options.rows_per_forward)
    tokens = sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    width = padded["prompt_ids"].shape[1] + padded["completion_ids"].shape[1]
    details: dict[str, Any] = {
        "sizes": {
            "rows": len(rows),
            "tokens": tokens,
            "padded_tokens_trl": len(rows) * width,
            **work,
        }
    }
    ratios, table = {}, []

    def line(name: str, series: common.Series, tokens: int | None, work: float | None) -> None:
        row = series.row(name)
        rates = (tokens and tokens / row["seconds"], work and work / row["seconds"] / 1e9)
        table.append({**row, "trained_tokens_s": rates[0], "gflops": rates[1]})

    if not options.skip_trl:
        trl = trl_trainer(options)
        first = {name: value if value.ndim == 0 else value[:8] for name, value in padded.items()}
        sizes = [4] if options.quick else [2, 4, 8]
        trl_step(trl, first, sizes[-1])  # not timed
        tried = {
            size: common.seconds(lambda size=size: trl_step(trl, first, size))[0] for size in sizes
        }
        best = min(sizes, key=tried.__getitem__)
        details["trl_seconds_by_batch"] = tried
        details["gradient_difference"] = difference(
            our_step(ours, batch), trl_step(trl, padded, best)
        )
        variants = {
            "ours": lambda: our_step(ours, batch),
            "trl": lambda: trl_step(trl, padded, best),
        }
        against = common.alternate(variants, rounds, warmup=0)
        line("ours", against["ours"], tokens, work["total"])
        line("trl", against["trl"], tokens, None)
        details["trl"] = {
            clock: common.ratio(against["trl"], against["ours"], clock) for clock in ("wall", "cpu")
        }
        ratios["trl"] = details["trl"][options.clock][0]
    products = {
        "x".join(map(str, shape)): product(*shape, 1e9 if options.quick else 6e10)
        for shape in GEMM_SHAPES
    }
    calls = {name: call for name, (_, call) in products.items()} | {
        "ours": lambda: our_step(ours, batch)
    }
    series = common.alternate(calls, 3 * rounds, warmup=0)
    peaks = {
        name: done / series[name].median(options.clock) / 1e9
        for name, (done, _) in products.items()
    }
    peak = max(peaks, key=peaks.__getitem__)
    most = products[peak][0]
    line("ours, beside torch.mm", series["ours"], tokens, work["total"])
    line(f"torch.mm {peak}", series[peak], None, most)
    pairs = zip(*(getattr(series[name], options.clock) for name in (peak, "ours")), strict=True)
    shares = [work["total"] / most * a / b for a, b in pairs]
    ratios["gemm_peak"] = statistics.median(shares)
    return {
        "ratios": ratios,
        "details": details | {"table": table, "peaks_gflops": peaks, "gemm_peak_by_round": shares},
    }


def our_trainer(options: Any, folder: str) -> tuple[Any, Any, Any]:
    """A ``MemoryGRPOTrainer`` with LoRA on every layer, its options and its parts."""
    from memalpha.training.build import build_components
    from memalpha.training.run import build_trainer

    sizes = ("--per_device_train_batch_size", "8", "--num_generations", "8", "--train_layers", "0")
    arguments = common.quickstart(
        options, f"{folder}/ours", *sizes, "--rows_per_forward", str(options.rows_per_forward)
    )
    parts = build_components(arguments)
    return build_trainer(arguments, parts), arguments, parts


def trl_trainer(options: Any) -> Any:
    """TRL's trainer with a fresh copy of the policy and the same options; it takes rows that are
    ready."""
    from datasets import Dataset
    from trl import GRPOTrainer

    from memalpha.upstream import FinishedInputs

    class Ready(FinishedInputs, GRPOTrainer):
        """Takes rows that are ready."""

    def reward(**_: Any) -> list[float]:
        raise RuntimeError("rows are scored already")

    _, arguments, parts = our_trainer(options, f"{options.folder}/copy")
    arguments.trl_arguments.reward_weights = None
    data = Dataset.from_list([{"prompt": ""}] * 64)
    return Ready(
        parts.model,
        reward_funcs=reward,
        args=arguments.trl_arguments,
        train_dataset=data,
        processing_class=parts.tokenizer,
    )


def trl_batch(trainer: Any, rows: Sequence[Any]) -> dict[str, Any]:
    """The rows as TRL pads them: prompts on the left, completions on the right."""
    import torch

    prompt = max(len(row.prompt_ids) for row in rows)
    completion = max(len(row.completion_ids) for row in rows)
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for row in rows:
        left = prompt - len(row.prompt_ids)
        right = completion - len(row.completion_ids)
        columns["prompt_ids"].append([0] * left + [*row.prompt_ids])
        columns["prompt_mask"].append([0] * left + [1] * len(row.prompt_ids))
        columns["completion_ids"].append([*row.completion_ids] + [0] * right)
        columns["completion_mask"].append([1] * len(row.completion_ids) + [0] * right)
    return {
        **{name: torch.tensor(values) for name, values in columns.items()},
        "advantages": torch.tensor([row.advantage for row in rows]),
        "num_items_in_batch": torch.tensor(sum(len(row.completion_ids) for row in rows)),
    }


def our_step(trainer: Any, batch: Any) -> Any:
    """Forward and backward; returns the model, which holds the gradients."""
    fresh(trainer)
    trainer.update_batches = [batch]
    trainer.state.global_step = 1  # amid a batch of rollouts, so that none is drawn
    trainer.args.steps_per_generation, trainer.num_iterations = 1, 2
    trainer.training_step(trainer.model, None)
    return trainer.model


def trl_step(trainer: Any, batch: Mapping[str, Any], size: int) -> Any:
    fresh(trainer)
    names = (
        "prompt_ids",
        "prompt_mask",
        "completion_ids",
        "completion_mask",
        "advantages",
    )
    for start in range(0, len(batch["advantages"]), size):
        part = {name: batch[name][start : start + size] for name in names}
        trainer.training_step(
            trainer.model, part | {"num_items_in_batch": batch["num_items_in_batch"]}, None
        )
    return trainer.model


def fresh(trainer: Any) -> None:
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.zero_grad(set_to_none=True)


def difference(*models: Any) -> float | None:
    """Relative distance of two models' gradients; None where they vanish (no reward differs)."""
    import torch

    found, expected = (
        torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
        for model in models
    )
    return float((found - expected).norm() / expected.norm()) if expected.any() else None


def flops(model: Any, rows: Sequence[Any], rows_per_forward: int) -> dict[str, float]:
    """Model FLOPs of one update, multiplications and additions counted apart; no padding,
    recomputation or element-wise work.

    L tokens go through the model (shared prefixes once), N predict a token. A frozen layer (K, M)
    takes 2 K M L each way; its adapter of rank r 2 r (K + M) L forward and 4 r (K + M) L backward;
    attention 4 D and 8 D a head of size D and visible pair; the LM head (H, V) 2 H V N each way.
    Below the lowest trained layer only forward counts; there q, k, v need no input gradient.
    """
    from memalpha.update.attention import base_model
    from memalpha.update.logps import pack_rows

    config = base_model(model).config
    packs = [
        pack_rows(rows[start : start + rows_per_forward])
        for start in range(0, len(rows), rows_per_forward)
    ]
    tokens = sum(pack.input_ids.shape[1] for pack in packs)
    predicted = sum(len(pack.targets) for pack in packs)
    pairs = 0
    for _, prefix, lengths in (
        group for pack in packs for group in pack.groups
    ):  # causal, and each own part sees the prefix
        pairs += prefix * (prefix + 1) // 2 + sum(
            own * prefix + own * (own + 1) // 2 for own in lengths
        )

    def layer_of(name: str) -> int:
        return int(name.split(".layers.")[1].split(".")[0])

    lowest = min(
        layer_of(name) for name, parameter in model.named_parameters() if parameter.requires_grad
    )
    linear = lora = 0
    for name, module in model.named_modules():
        if not getattr(module, "lora_A", None):
            continue
        layer = layer_of(name)
        below = layer < lowest or (
            layer == lowest and name.endswith(("q_proj", "k_proj", "v_proj"))
        )
        inputs, outputs, rank = (
            module.in_features,
            module.out_features,
            next(iter(module.r.values())),
        )
        linear += 2 * inputs * outputs * tokens * (1 if below else 2)
        passes = (
            inputs + outputs
            if layer < lowest
            else 3 * (inputs + outputs) - (inputs if below else 0)
        )
        lora += 2 * rank * passes * tokens
    head_size = (
        getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    )
    layers = config.num_hidden_layers
    attention = (
        4 * head_size * config.num_attention_heads * pairs * (layers + 2 * (layers - lowest))
    )
    head = 4 * config.hidden_size * config.vocab_size * predicted
    parts = {"linear": linear, "adapters": lora, "attention": attention, "head": head}
    work = {f"gflop_{name}": value / 1e9 for name, value in parts.items()}
    return {
        "packed_tokens": tokens,
        "predicted_tokens": predicted,
        **work,
        "total": float(sum(parts.values())),
    }


def product(m: int, k: int, n: int, work: float) -> tuple[float, Callable[[], object]]:
    """Some equal products in a row, ``work`` FLOPs or one product: their FLOPs, and what computes
    them."""
    import torch

    a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
    times = max(1, int(work / (2 * m * k * n)))
    return 2.0 * m * k * n * times, lambda: [torch.mm(a, b, out=out) for _ in range(times)]
