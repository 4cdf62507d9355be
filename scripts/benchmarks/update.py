"""One GRPO update: trained tokens a second against TRL's own trainer, and model FLOPs against the machine's matrix products.

Both trainers get the very same rows: real rollouts of the quickstart's policy on generated dialogues, padded as TRL pads them (all
rows of the generation batch to the longest prompt and the longest completion). ``ours`` is one ``training_step`` of
``MemoryGRPOTrainer``; ``trl`` is ``GRPOTrainer.training_step`` over the same rows, at the fastest per-device batch of those tried.
Both compute the dapo loss with entropies and clip statistics, forward and backward; neither generates, scores or steps the
optimizer. LoRA on every linear layer, float32. Each has a copy of the policy of its own. The relative difference of the two
gradients is in the details.

Model FLOPs of the update (``flops`` below), multiplications and additions counted apart, padding, recomputation and everything
element-wise not counted; L tokens go through the model (each shared prefix once), N of them predict a completion token:

    frozen linear layer (K inputs, M outputs)   2 K M L forward, 2 K M L backward for the gradient of its input; none for q, k, v of
                                                the lowest trained layer, whose input needs no gradient
    its adapter of rank r                       2 r (K + M) L forward; 4 r (K + M) L backward, of inputs and of weights; 2 r K L
                                                less where the input needs no gradient
    attention, A pairs of a token and one       4 D A a head forward, 8 D A backward (D = head size)
      that it sees
    LM head (H inputs, V outputs)               2 H V N forward, 2 H V N backward: the head is frozen

Layers below the lowest trained one count forward only. The peak is the fastest of several products of square and model-like float32
matrices with ``torch.mm`` at the same number of threads, timed in turn with the updates. Of both clocks the details have
every round; the processor's clock counts all threads.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks import common, policy

GEMM_SHAPES = ((1024, 1024, 1024), (2048, 2048, 2048), (512, 576, 1536), (1024, 1536, 576))
"""(m, k, n) of the products that may be the peak."""


def add_arguments(parser: Any) -> None:
    policy.add_model(parser)
    parser.add_argument("--instances", type=int, default=1, help="dialogues (default 1)")
    parser.add_argument("--group", type=int, default=8, help="rollouts of each (default 8)")
    parser.add_argument("--trl-batches", type=int, nargs="+", help="per-device batches tried for TRL (default 2 4 8)")
    parser.add_argument("--skip-trl", action="store_true", help="compare with the matrix products alone")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of the ratios; cpu for a machine that is shared")
    parser.add_argument("--rows-per-forward", type=int, default=24, help="ours; memory grows with it (default 24)")


def run(options: Any) -> dict[str, Any]:
    """Measure."""
    from memalpha.training.packed import Row

    ours, setup = our_trainer(options, options.folder)
    ours.model.train()
    batch = ours._prepare_inputs(next(iter(ours.get_train_dataloader())))  # rolled out, scored and padded as in training
    rounds = options.rounds or (1 if options.quick else 2)
    rows = [Row(row.prompt_ids, row.completion_ids, row.shared) for row in ours.rows if row]
    work = flops(ours.model, rows, ours.options.rows_per_forward)
    tokens = sum(len(row.prompt_ids) + len(row.completion_ids) for row in rows)
    padded = len(batch["row_order"]) * (batch["prompt_ids"].shape[1] + batch["completion_ids"].shape[1])
    details: dict[str, Any] = {"sizes": {"rows": len(rows), "tokens": tokens, "padded_tokens_trl": padded, **work}, "table": []}
    ratios = {}
    if not options.skip_trl:
        trl = trl_trainer(options, ours)
        best, details["trl_seconds_by_batch"] = _best_batch(trl, batch, options)
        details["gradient_difference"] = _difference(our_step(ours, batch), trl_step(trl, batch, best))
        variants = {"ours": lambda: our_step(ours, batch), "trl": lambda: trl_step(trl, batch, best)}
        against = common.alternate(variants, rounds, warmup=0)
        details["table"] += [_line("ours", against["ours"], tokens, work["total"]), _line("trl", against["trl"], tokens, None)]
        both = {clock: common.ratio(against["trl"], against["ours"], clock) for clock in ("wall", "cpu")}
        details["trl"] = {clock: list(ratio) for clock, ratio in both.items()}
        ratios["trl"] = both[options.clock].value
    products = matrix_products(options.quick)
    variants = {name: call for name, (_, call) in products.items()} | {"ours": lambda: our_step(ours, batch)}
    series = common.alternate(variants, 3 * rounds, warmup=0)
    details["peaks_gflops"] = {name: done / series[name].median(options.clock) / 1e9 for name, (done, _) in products.items()}
    peak = max(products, key=lambda name: details["peaks_gflops"][name])
    most = products[peak][0]
    shares = {
        clock: [
            work["total"] / a * b / most for a, b in zip(getattr(series["ours"], clock), getattr(series[peak], clock), strict=True)
        ]
        for clock in ("wall", "cpu")
    }
    details["table"] += [
        _line("ours, beside torch.mm", series["ours"], tokens, work["total"]),
        _line(f"torch.mm {peak}", series[peak], None, most),
    ]
    details |= {"gemm_peak_by_round": shares, "policy": policy.describe(setup)}
    return {
        "name": "update",
        "ratios": ratios | {"gemm_peak": statistics.median(shares[options.clock])},
        "details": details,
    }


def _best_batch(trl: Any, batch: Mapping[str, Any], options: Any) -> tuple[int, dict[int, float]]:
    """Return the per-device batch at which TRL is fastest on the first 8 rows, after a first pass, and the seconds of each."""
    first = {name: value if value.ndim == 0 else value[:8] for name, value in batch.items()}
    sizes = options.trl_batches or ([4] if options.quick else [2, 4, 8])
    trl_step(trl, first, sizes[-1])
    tried = {size: common.seconds(lambda size=size: trl_step(trl, first, size))[0] for size in sizes}
    common.progress(f"update: TRL's seconds for 8 rows by per-device batch {tried}")
    return min(tried, key=lambda size: tried[size]), tried


def _line(name: str, series: common.Series, tokens: int | None, work: float | None) -> dict[str, Any]:
    row = series.row(name)
    rates = (tokens and tokens / row["seconds"], work and work / row["seconds"] / 1e9)
    return {**row, "trained_tokens_s": rates[0], "gflops": rates[1]}


# -------------------------------------------------------------------------------------------- the two trainers
def our_trainer(options: Any, folder: str) -> tuple[Any, policy.Setup]:
    """Return a ``MemoryGRPOTrainer`` with LoRA on every layer."""
    from memalpha.training.run import build_trainer

    size = options.instances * options.group
    setup = policy.quickstart(
        options,
        f"{folder}/ours",
        *("--per_device_train_batch_size", str(size), "--num_generations", str(options.group)),
        *("--rows_per_forward", str(options.rows_per_forward), "--train_layers", "0"),
    )
    return build_trainer(setup.arguments, setup.parts), setup


def trl_trainer(options: Any, ours: Any) -> Any:
    """Return TRL's trainer with a fresh copy of the policy and the options of ``ours``; it takes rows that are ready."""
    from datasets import Dataset
    from trl import GRPOTrainer

    class Ready(GRPOTrainer):
        def _prepare_inputs(self, inputs: Any) -> Any:
            return inputs

    _, setup = our_trainer(options, f"{options.folder}/copy")

    def reward(**_: Any) -> list[float]:
        raise RuntimeError("rows are scored already")

    args = setup.arguments.grpo
    args.reward_weights = None
    return Ready(
        model=setup.parts.model,
        reward_funcs=reward,
        args=args,
        train_dataset=Dataset.from_list([{"prompt": ""}] * 64),
        processing_class=setup.parts.tokenizer,
    )


def our_step(trainer: Any, batch: Mapping[str, Any]) -> Any:
    """One update's forward and backward; returns the model, which holds the gradients."""
    _fresh(trainer)
    trainer.training_step(trainer.model, dict(batch))
    return trainer.model


def trl_step(trainer: Any, batch: Mapping[str, Any], size: int) -> Any:
    """The same rows, ``size`` at a time, gradients adding up."""
    _fresh(trainer)
    names = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask", "advantages", "tool_mask")
    for start in range(0, len(batch["row_order"]), size):
        part = {name: batch[name][start : start + size] for name in names}
        trainer.training_step(trainer.model, part | {"num_items_in_batch": batch["num_items_in_batch"]}, None)
    return trainer.model


def _fresh(trainer: Any) -> None:
    trainer.current_gradient_accumulation_steps = 1
    trainer.model.zero_grad(set_to_none=True)
    trainer._step = 0
    trainer._current_train_step_time = 0.0
    trainer._metrics["train"].clear()


def _difference(model: Any, other: Any) -> float | None:
    """Relative distance of two models' gradients; None where they vanish (no reward differs)."""
    import torch

    def vector(m: Any) -> Any:
        return torch.cat([p.grad.flatten() for p in m.parameters() if p.requires_grad])

    expected = vector(other)
    return float((vector(model) - expected).norm() / expected.norm()) if expected.any() else None


# -------------------------------------------------------------------------------------------- work and peak
def flops(model: Any, rows: Sequence[Any], rows_per_forward: int) -> dict[str, float]:
    """Model FLOPs of one update, by the formula at the top of this module."""
    from memalpha.training.packed import base_model, pack_rows

    config = base_model(model).config
    packs = [pack_rows(rows[start : start + rows_per_forward]) for start in range(0, len(rows), rows_per_forward)]
    tokens = sum(pack.input_ids.shape[1] for pack in packs)
    predicted = sum(len(pack.targets) for pack in packs)
    pairs = 0
    for _, prefix, lengths in (group for pack in packs for group in pack.groups):  # causal, and each own part sees the prefix
        pairs += prefix * (prefix + 1) // 2 + sum(own * prefix + own * (own + 1) // 2 for own in lengths)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    lowest = min(int(name.split(".layers.")[1].split(".")[0]) for name in trained)
    linear = lora = 0
    for name, module in model.named_modules():
        if not hasattr(module, "lora_A") or not module.lora_A:
            continue
        layer = int(name.split(".layers.")[1].split(".")[0])
        below = layer < lowest or (layer == lowest and name.endswith(("q_proj", "k_proj", "v_proj")))
        inputs, outputs, rank = module.in_features, module.out_features, next(iter(module.r.values()))
        linear += 2 * inputs * outputs * tokens * (1 if below else 2)
        passes = inputs + outputs if layer < lowest else 3 * (inputs + outputs) - (inputs if below else 0)
        lora += 2 * rank * passes * tokens
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    layers = config.num_hidden_layers
    attention = 4 * head_size * config.num_attention_heads * pairs * (layers + 2 * (layers - lowest))
    head = 4 * config.hidden_size * config.vocab_size * predicted
    parts = {"linear": linear, "adapters": lora, "attention": attention, "head": head}
    work = {f"gflop_{name}": value / 1e9 for name, value in parts.items()}
    return {"packed_tokens": tokens, "predicted_tokens": predicted, **work, "total": float(sum(parts.values()))}


def matrix_products(quick: bool) -> dict[str, tuple[float, Callable[[], object]]]:
    """For each of ``GEMM_SHAPES`` some equal products in a row: their FLOPs, and what computes them."""
    import torch

    torch.manual_seed(0)

    def product(m: int, k: int, n: int) -> tuple[float, Callable[[], object]]:
        a, b, out = torch.randn(m, k), torch.randn(k, n), torch.empty(m, n)
        times = max(1, int((1e9 if quick else 6e10) / (2 * m * k * n)))

        def go() -> None:
            for _ in range(times):
                torch.mm(a, b, out=out)

        return 2.0 * m * k * n * times, go

    return {"x".join(map(str, shape)): product(*shape) for shape in GEMM_SHAPES}
