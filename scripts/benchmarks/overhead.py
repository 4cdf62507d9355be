"""The share of a training step that is no forward, backward or optimizer pass of the model.

A run of the quickstart's policy on generated dialogues, from the end of the first step to that of
the last. Functions are wrapped by a clock that stops while a wrapped function inside runs;
``forward`` holds the LM head, ``rest`` what no function accounts for.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from benchmarks import common


class Clock:
    """Adds up the seconds that each named part takes by itself, without the parts inside it."""

    def __init__(self) -> None:
        self.parts: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block; also decorates a function."""
        self._inner.append(0.0)
        began = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - began
            self.parts[name] += took - self._inner.pop()
            self._inner[-1] += took


def run(options: Any) -> dict[str, Any]:
    from accelerate import Accelerator
    from accelerate.optimizer import AcceleratedOptimizer
    from transformers.models.llama.modeling_llama import LlamaModel
    from transformers.trainer_callback import CallbackHandler

    from memalpha.agent import step
    from memalpha.generation import hf
    from memalpha.training import packed, scoring, trainer
    from memalpha.training.run import train

    clock = Clock()
    found: dict[str, float] = {}
    targets: list[tuple[str, Any, str]] = [
        ("forward", LlamaModel, "forward"),
        ("forward", packed, "hidden_scores"),
        ("forward", packed, "token_scores"),
        ("backward", Accelerator, "backward"),
        ("optimizer", AcceleratedOptimizer, "step"),
        ("clip gradients", Accelerator, "clip_grad_norm_"),
        ("prompt: memory view, retrieval, tokens", step.AgentStep, "prompt"),
        ("apply: parsing, memory, index", step.AgentStep, "apply"),
        ("score: questions, judge, rewards", scoring.RolloutScorer, "score"),
        ("metrics of rollouts", trainer.MemoryGRPOTrainer, "_log_rollouts"),
        ("rows and advantages", trainer, "build_rows"),
        ("draw tokens", hf, "draw"),
        ("generate: cache, masks, decoding texts", hf.HFGenerator, "generate"),
        ("pack rows", packed, "pack_rows"),
        ("check: gradients are finite", trainer, "finite_gradients"),
        ("TRL: batch of ready rows", trainer.GRPOTrainer, "_generate_and_score_completions"),
        ("TRL: loss and its metrics", trainer.GRPOTrainer, "_compute_loss"),
        ("TRL: log", trainer.GRPOTrainer, "log"),
        ("step: order, parts", trainer.MemoryGRPOTrainer, "training_step"),
    ]
    merged, step_ended = hf.merged_lora, CallbackHandler.on_step_end

    @contextmanager
    def merging(model: Any) -> Iterator[None]:
        with ExitStack() as block:
            with clock.part("merge the adapter"):
                block.enter_context(merged(model))
            yield
            with clock.part("merge the adapter"):
                block.close()

    def on_step_end(handler: Any, args: Any, state: Any, control: Any) -> Any:
        if state.global_step == 1:
            clock.parts.clear()
            found["began"] = time.perf_counter()
        if state.global_step == options.steps:
            found.update(clock.parts, total=time.perf_counter() - found.pop("began"))
        return step_ended(handler, args, state, control)

    with ExitStack() as stack:
        for name, owner, attribute in targets:
            stack.enter_context(
                mock.patch.object(owner, attribute, clock.part(name)(getattr(owner, attribute)))
            )
        stack.enter_context(mock.patch.object(hf, "merged_lora", merging))
        stack.enter_context(mock.patch.object(CallbackHandler, "on_step_end", on_step_end))
        sizes = (
            "--per_device_train_batch_size",
            "16",
            "--num_generations",
            "8",
            "--max_steps",
            str(options.steps),
        )
        train(common.quickstart(options, f"{options.folder}/run", *sizes, "--train_layers", "0"))
    total, steps = found.pop("total"), max(1, options.steps - 1)
    parts = sorted(
        {**found, "rest": total - sum(found.values())}.items(), key=lambda item: -item[1]
    )
    table = [
        {"part": name, "seconds_a_step": seconds / steps, "share": seconds / total}
        for name, seconds in parts
    ]
    ratios = {
        "overhead": 1 - sum(found[name] for name in ("forward", "backward", "optimizer")) / total
    }
    return {
        "ratios": ratios,
        "details": {"sizes": {"steps": steps, "seconds_a_step": total / steps}, "table": table},
    }
