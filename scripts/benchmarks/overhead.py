"""The share of a training step that is no forward, backward or optimizer pass of the model.

A real run of the quickstart's policy on generated dialogues, a few steps, from the end of the first to the end of the last.
Functions of the library, of TRL and of Accelerate are wrapped by a clock that stops while a wrapped function inside runs, so that
the parts add up; ``forward`` holds the scoring of the model's output (the LM head), ``rest`` what no wrapped function accounts for.
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
    from memalpha.training import run as run_module

    clock, found = Clock(), {}
    sizes = ("--per_device_train_batch_size", "16", "--num_generations", "8", "--max_steps", str(options.steps))
    build = run_module.build_trainer

    def built(*args: Any) -> Any:
        trainer = build(*args)
        watch_trainer(trainer, clock, options.steps, found)
        return trainer

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(run_module, "build_trainer", built))
        watch_library(clock, stack)
        run_module.train(common.quickstart(options, f"{options.folder}/run", *sizes, "--train_layers", "0"))
    total, steps = found.pop("total"), max(1, options.steps - 1)
    parts = sorted({**found, "rest": total - sum(found.values())}.items(), key=lambda item: -item[1])
    table = [{"part": name, "seconds_a_step": seconds / steps, "share": seconds / total} for name, seconds in parts]
    return {
        "ratios": {"overhead": 1 - sum(found[name] for name in ("forward", "backward", "optimizer")) / total},
        "details": {"sizes": {"steps": steps, "seconds_a_step": total / steps}, "table": table},
    }


def watch_library(clock: Clock, stack: ExitStack) -> None:
    from memalpha.agent import step
    from memalpha.generation import hf
    from memalpha.training import packed, scoring, trainer

    targets: list[tuple[str, Any, str]] = [
        ("prompt: memory view, retrieval, tokens", step.AgentStep, "prompt"),
        ("apply: parsing, memory, index", step.AgentStep, "apply"),
        ("score: questions, judge, rewards", scoring.RolloutScorer, "score"),
        ("metrics of rollouts", trainer.MemoryGRPOTrainer, "_log_rollouts"),
        ("rows and advantages", trainer, "build_rows"),
        ("draw tokens", hf, "draw"),
        ("generate: cache, masks, decoding texts", hf.HFGenerator, "generate"),
        ("pack rows", packed, "pack_rows"),
        ("forward", packed, "hidden_scores"),
        ("forward", packed, "token_scores"),
        ("check: gradients are finite", trainer, "finite_gradients"),
        ("TRL: batch of ready rows", trainer.GRPOTrainer, "_generate_and_score_completions"),
        ("TRL: loss and its metrics", trainer.GRPOTrainer, "_compute_loss"),
        ("TRL: log", trainer.GRPOTrainer, "log"),
        ("step: order, parts", trainer.MemoryGRPOTrainer, "training_step"),
    ]
    for name, owner, attribute in targets:
        stack.enter_context(mock.patch.object(owner, attribute, clock.part(name)(getattr(owner, attribute))))
    merged = hf.merged_lora

    @contextmanager
    def timed(model: Any) -> Iterator[None]:
        block = merged(model)
        with clock.part("merge the adapter"):
            block.__enter__()
        try:
            yield
        finally:
            with clock.part("merge the adapter"):
                block.__exit__(None, None, None)

    stack.enter_context(mock.patch.object(hf, "merged_lora", timed))


def watch_trainer(trainer: Any, clock: Clock, steps: int, found: dict[str, float]) -> None:
    """Wrap what belongs to the trainer alone; after the last step ``found`` has the seconds of each part, and ``total``."""
    from transformers import TrainerCallback

    from memalpha.training.packed import base_model

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                clock.parts.clear()
                self.began = time.perf_counter()
            if state.global_step == steps:
                found.update(clock.parts, total=time.perf_counter() - self.began)

        def on_train_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            optimizer.step = clock.part("optimizer")(optimizer.step)

    base, accelerator = base_model(trainer.model), trainer.accelerator
    for name, owner, attribute in (
        ("forward", base, "forward"),
        ("backward", accelerator, "backward"),
        ("clip gradients", accelerator, "clip_grad_norm_"),
    ):
        setattr(owner, attribute, clock.part(name)(getattr(owner, attribute)))
    trainer.add_callback(Steps())
