"""Lockstep rollouts with prefix reuse against one rollout after another and against plain batches
of ``model.generate``.

``lockstep``        ``run_rollouts`` with ``HFGenerator``: all rollouts at once, what a group shares
of its prompts computed once.
``plain_generate``  the same lockstep, all prompts padded on the left and given to transformers'
``model.generate``.
``sequential``      ``model.generate`` at batch 1, one chunk and one rollout after the other; timed
on one and scaled up.
``bfloat16``        ``lockstep`` as in 16-bit training: weights in bfloat16, the adapter beside
them, log-probabilities kept.
``vllm``            the same lockstep at a vLLM server (``--vllm URL``) of the base without an
adapter, which is its fastest way.

All read the same prompts: a first run is recorded, and its completions lead the memories of every
variant, while the tokens that the variant draws are timed and dropped. Every completion has the
same number of tokens. ``model.generate`` gets the adapter merged for good before the clock starts;
``lockstep`` merges it inside every call, as in training.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks import common


class Replay:
    """Lets a generator draw, drops that, and returns what was recorded: for each call, some
    completions."""

    def __init__(self, draw: Any, recorded: Sequence[Sequence[Any]]) -> None:
        self._draw, self._recorded = draw, iter(recorded)

    def generate(self, prompts: Sequence[Any], sampling: Any) -> list[Any]:
        self._draw(prompts, sampling)
        return list(next(self._recorded))


def run(options: Any) -> dict[str, Any]:
    import torch

    from memalpha.agent.rollout import run_rollouts
    from memalpha.generation.hf import HFGenerator
    from memalpha.generation.vllm_server import VLLMServers
    from memalpha.training.build import build_components
    from memalpha.types import Sampling

    class Endless(HFGenerator):
        end_ids = frozenset()  # type: ignore[assignment]

    group, new = (2, 4) if options.quick else (8, 48)
    arguments = common.quickstart(options, options.folder)
    parts, other = build_components(arguments), build_components(arguments)
    instances = [instance for instance in parts.instances[:4] for _ in range(group)]
    sampling = Sampling(new, 1.0, 1.0, 0, seed=1)
    ours = Endless(parts.model, parts.tokenizer, max_batch=arguments.run.generation_rows)
    half = build_components(common.quickstart(options, options.folder, "--dtype", "bfloat16")).model
    lower = Endless(
        half,
        parts.tokenizer,
        max_batch=arguments.run.generation_rows,
        merge_adapters=False,
        logprobs=True,
    )
    plain = other.model.merge_and_unload().eval()
    plain.generation_config.eos_token_id = None

    def generate(prompts: Sequence[Any], sampling: Any) -> None:
        rows = {"input_ids": [list(prompt.ids) for prompt in prompts]}
        padded = parts.tokenizer.pad(rows, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            ids = plain.generate(
                **padded, do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new
            )
        if ids.shape[1] != padded["input_ids"].shape[1] + new:
            raise RuntimeError(
                f"{ids.shape[1] - padded['input_ids'].shape[1]} new tokens, not {new}"
            )

    # Recorded with real ends, so that memories and prompts are those of training.
    recorder = HFGenerator(parts.model, parts.tokenizer)
    rollouts = run_rollouts(instances, parts.agent, recorder, replace(sampling, max_new_tokens=48))
    lockstep = list(
        zip(*([step.completion for step in rollout.steps] for rollout in rollouts), strict=True)
    )
    alone = [[completions[0]] for completions in lockstep]
    variants = {
        "lockstep": lambda: run_rollouts(
            instances, parts.agent, Replay(ours.generate, lockstep), sampling
        ),
        "plain_generate": lambda: run_rollouts(
            instances, parts.agent, Replay(generate, lockstep), sampling
        ),
        "sequential": lambda: run_rollouts(
            instances[:1], parts.agent, Replay(generate, alone), sampling
        ),
        "bfloat16": lambda: run_rollouts(
            instances, parts.agent, Replay(lower.generate, lockstep), sampling
        ),
    }
    if options.vllm:
        (client,) = (
            servers := VLLMServers([options.vllm], parts.tokenizer, parts.model.config.vocab_size)
        )._clients

        def served() -> None:
            client.extra = {
                "ignore_eos": True,
                "cache_salt": str(time.time()),
            }  # its cache holds no prompts of earlier rounds
            run_rollouts(instances, parts.agent, Replay(servers.generate, lockstep), sampling)

        variants["vllm"] = served
    variants = {
        name: call
        for name, call in variants.items()
        if name in ("lockstep", *(options.only or variants))
    }
    series = common.alternate(
        variants, options.rounds or (1 if options.quick else 3), warmup=0 if options.quick else 1
    )
    scale = dict.fromkeys(variants, 1) | {"sequential": len(rollouts)}
    table = [series[name].row(name, scale[name]) for name in variants]
    prompts = [step.prompt for rollout in rollouts for step in rollout.steps]
    for row in table:
        row |= {
            "new_tokens_s": new * len(prompts) / row["seconds"],
            "rollouts_s": len(rollouts) / row["seconds"],
        }
    tokens = {
        "prompt_tokens": sum(len(prompt.ids) for prompt in prompts),
        "shared_tokens": sum(prompt.shared for prompt in prompts),
    }
    details = {
        "sizes": {"rollouts": len(rollouts), "chunks": len(lockstep), **tokens},
        "table": table,
    }

    def ratios(clock: str) -> dict[str, list[float]]:
        found = {
            name: common.ratio(series[name], series["lockstep"], clock)
            for name in variants
            if name != "lockstep"
        }
        return {name: [value * scale[name] for value in values] for name, values in found.items()}

    details["ratios_and_quartiles"] = {clock: ratios(clock) for clock in ("wall", "cpu")}
    return {
        "ratios": {name: values[0] for name, values in ratios("wall").items()},
        "details": details,
    }
