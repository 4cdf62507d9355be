"""Lockstep rollouts with prefix reuse against one rollout after another and against plain batches of ``model.generate``.

``lockstep``        ``run_rollouts`` with ``HFGenerator``: all rollouts at once, what a group shares of its prompts computed once.
``plain_generate``  the same lockstep, each batch of prompts padded on the left and given to transformers' ``model.generate``.
``sequential``      ``model.generate`` at batch 1, one chunk after the other, one rollout after the other, as the public system with
                    nine categories does.

All variants read the very same prompts: a first run is recorded, and the memories of every variant are led by its completions,
while the tokens that the variant draws are timed and dropped. Same model, temperature 1, no top-k or top-p, and the same number of
new tokens, ``--new-tokens``, for every prompt (nothing ends a completion). ``model.generate`` gets the LoRA adapter merged for good
before the clock starts; ``lockstep`` merges it inside every call, as in training. Rollouts are independent, so ``sequential`` is
timed on ``--sample`` of them, spread evenly, and scaled up to their number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import common, policy


def add_arguments(parser: Any) -> None:
    policy.add_model(parser)
    parser.add_argument("--instances", type=int, default=4, help="dialogues of three chunks (default 4)")
    parser.add_argument("--group", type=int, default=8, help="rollouts of each (default 8)")
    parser.add_argument("--new-tokens", type=int, default=48, help="tokens drawn for each prompt (default 48)")
    parser.add_argument("--sample", type=int, default=1, help="rollouts that stand for all in sequential (default 1)")
    parser.add_argument("--plain-batch", type=int, default=0, help="rows of a call of model.generate (0 = all)")


class Replay:
    """Lets a generator draw, drops that, and returns what was recorded: for each call, some completions."""

    def __init__(self, inner: Any, recorded: Sequence[Sequence[Any]]) -> None:
        self._inner, self._recorded = inner, iter(recorded)

    def generate(self, prompts: Sequence[Any], sampling: Any) -> list[Any]:
        self._inner.generate(prompts, sampling)
        return list(next(self._recorded))


class PlainGenerate:
    """transformers' own ``generate`` over left-padded batches of ``batch`` rows (0 = all)."""

    def __init__(self, model: Any, tokenizer: Any, batch: int = 0) -> None:
        self._model, self._tokenizer, self._batch = model.eval(), tokenizer, batch
        model.generation_config.eos_token_id = None

    def generate(self, prompts: Sequence[Any], sampling: Any) -> None:
        import torch

        size = self._batch or len(prompts)
        for start in range(0, len(prompts), size):
            rows = {"input_ids": [list(prompt.ids) for prompt in prompts[start : start + size]]}
            padded = self._tokenizer.pad(rows, padding_side="left", return_tensors="pt")
            with torch.inference_mode():
                ids = self._model.generate(
                    **padded, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=sampling.max_new_tokens
                )
            if ids.shape[1] != padded["input_ids"].shape[1] + sampling.max_new_tokens:
                raise RuntimeError(f"{ids.shape[1] - padded['input_ids'].shape[1]} new tokens, not {sampling.max_new_tokens}")


def run(options: Any) -> dict[str, Any]:
    """Measure."""
    from memalpha.agent.rollout import run_rollouts
    from memalpha.generation.hf import HFGenerator
    from memalpha.types import Sampling

    size, new = (2, 4) if options.quick else (options.group, options.new_tokens)
    setup, other = (policy.quickstart(options, options.folder) for _ in range(2))
    agent, tokenizer = setup.parts.agent, setup.parts.tokenizer
    instances = [instance for instance in setup.parts.instances[: options.instances] for _ in range(size)]
    sampling = Sampling(new, 1.0, 1.0, 0, seed=1)
    ours = policy.endless(setup.parts.model, tokenizer, max_batch=setup.arguments.run.generation_rows)
    plain = other.parts.model.merge_and_unload()
    common.progress("rollout: recording")
    # Recorded with real ends, so that memories and prompts are those of training.
    rollouts = run_rollouts(instances, agent, HFGenerator(setup.parts.model, tokenizer), replace(sampling, max_new_tokens=48))
    completions = [[step.completion for step in rollout.steps] for rollout in rollouts]
    lockstep = [list(step) for step in zip(*completions, strict=True)]
    sample = range(0, len(rollouts), max(1, len(rollouts) // options.sample))

    def sequential() -> None:
        for index in sample:
            alone = Replay(PlainGenerate(plain, tokenizer), [[completion] for completion in completions[index]])
            run_rollouts([instances[index]], agent, alone, sampling)

    variants = {
        "lockstep": lambda: run_rollouts(instances, agent, Replay(ours, lockstep), sampling),
        "plain_generate": lambda: run_rollouts(
            instances, agent, Replay(PlainGenerate(plain, tokenizer, options.plain_batch), lockstep), sampling
        ),
        "sequential": sequential,
    }
    series = common.alternate(variants, options.rounds or (1 if options.quick else 3), warmup=0 if options.quick else 1)
    scale = {"lockstep": 1.0, "plain_generate": 1.0, "sequential": len(rollouts) / len(sample)}
    ratios = {name: common.ratio(series[name], series["lockstep"]) for name in ("sequential", "plain_generate")}
    prompts = [step.prompt for rollout in rollouts for step in rollout.steps]
    drawn = new * len(prompts)
    return {
        "name": "rollout",
        "ratios": {name: ratio.value * scale[name] for name, ratio in ratios.items()},
        "details": {
            "sizes": {
                "rollouts": len(rollouts),
                "chunks": len(lockstep),
                "new_tokens": drawn,
                "prompt_tokens": sum(len(prompt.ids) for prompt in prompts),
                "shared_prompt_tokens": sum(prompt.shared for prompt in prompts),
                "sequential_sample": len(sample),
            },
            "table": [
                {
                    **(row := series[name].row(name, scale[name])),
                    "new_tokens_s": drawn / row["seconds"],
                    "rollouts_s": len(rollouts) / row["seconds"],
                }
                for name in variants
            ],
            "policy": policy.describe(setup),
            "quartiles": {name: [ratio.low * scale[name], ratio.high * scale[name]] for name, ratio in ratios.items()},
            "cpu_ratios": {name: common.ratio(series[name], series["lockstep"], "cpu").value * scale[name] for name in ratios},
        },
    }
