"""The share of a training step that is no forward, backward or optimizer pass of the model.

A real run (``memalpha.training.run.train`` with its recorder, metrics and run folder) of the quickstart's policy on generated
dialogues, a few steps. Functions of the library, of TRL and of Accelerate are wrapped by a clock that stops while a wrapped
function inside runs, so that the parts add up. From the end of the first step to the end of the last:

    forward      calls of the model, in generation and in the update, and the scoring of its output (the LM head's part of the work)
    backward     ``Accelerator.backward``
    optimizer    the optimizer's step
    overhead     all the rest: prompts, memory, retrieval, parsing, questions, rewards, rows, drawing tokens, merging the adapter,
                 packing, TRL's own work, clipping, checks, records, logs; ``rest`` is what no wrapped function accounts for
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from benchmarks import policy

WORK = ("forward", "backward", "optimizer")


def add_arguments(parser: Any) -> None:
    policy.add_model(parser)
    parser.add_argument("--steps", type=int, default=4, help="steps, the first of which is not counted (default 4)")
    parser.add_argument("--rollouts", type=int, default=16, help="rollouts a step, in groups of 8 (default 16)")


class Clock:
    """Adds up what each named part takes by itself, without the parts inside it, in wall and processor seconds."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])  # wall and processor seconds, calls
        self._inner: list[list[float]] = [[0.0, 0.0]]
        self.started = (0.0, 0.0)
        self.total: list[float] = []
        self.found: dict[str, tuple[float, ...]] = {}

    def start(self) -> None:
        """Start anew; no part may be running."""
        self.parts.clear()
        self.started = (time.perf_counter(), time.process_time())

    def stop(self) -> None:
        """Keep what was found since ``start``, and the rest that is in no part; no part may be running."""
        self.total = [time.perf_counter() - self.started[0], time.process_time() - self.started[1]]
        self.found = {name: tuple(value) for name, value in self.parts.items()}
        wall, cpu = (self.total[i] - sum(value[i] for value in self.found.values()) for i in range(2))
        self.found["rest"] = (wall, cpu, 0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the block."""
        self._inner.append([0.0, 0.0])
        before = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            took = time.perf_counter() - before[0], time.process_time() - before[1]
            inner = self._inner.pop()
            entry = self.parts[name]
            for i in range(2):
                entry[i] += took[i] - inner[i]
                self._inner[-1][i] += took[i]
            entry[2] += 1

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with its time counted."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return timed


def run(options: Any) -> dict[str, Any]:
    """Measure."""
    clock = Clock()
    with ExitStack() as stack:
        _train(options, clock, stack)
    steps, (wall, cpu) = max(1, options.steps - 1), clock.total
    table = [
        {"part": name, "seconds_a_step": value[0] / steps, "share": value[0] / wall, "cpu_share": value[1] / cpu, "calls": value[2]}
        for name, value in sorted(clock.found.items(), key=lambda item: -item[1][0])
    ]
    work = [sum(clock.found[name][i] for name in WORK) for i in range(2)]
    return {
        "name": "overhead",
        "ratios": {"overhead": 1 - work[0] / wall},
        "details": {
            "sizes": {"steps": steps, "rollouts": options.rollouts, "seconds_a_step": wall / steps},
            "table": table,
            "overhead_cpu": 1 - work[1] / cpu,
        },
    }


def _train(options: Any, clock: Clock, stack: ExitStack) -> None:
    from memalpha.training import run as run_module

    arguments = policy.quickstart_arguments(
        options,
        f"{options.folder}/run",
        *("--per_device_train_batch_size", str(options.rollouts), "--num_generations", "8", "--train_layers", "0"),
        *("--max_steps", str(options.steps)),
    )
    build = run_module.build_trainer

    def built(*args: Any) -> Any:
        trainer = build(*args)
        _watch_trainer(trainer, clock, options.steps)
        return trainer

    stack.enter_context(mock.patch.object(run_module, "build_trainer", built))
    _watch_library(clock, stack)
    run_module.train(arguments)


def _watch_library(clock: Clock, stack: ExitStack) -> None:
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
        stack.enter_context(mock.patch.object(owner, attribute, clock.wrap(name, getattr(owner, attribute))))
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


def _watch_trainer(trainer: Any, clock: Clock, steps: int) -> None:
    from transformers import TrainerCallback

    from memalpha.training.packed import base_model

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == 1:
                clock.start()
            if state.global_step == steps:
                clock.stop()

        def on_train_begin(self, *_: Any, optimizer: Any = None, **__: Any) -> None:
            optimizer.step = clock.wrap("optimizer", optimizer.step)

    base = base_model(trainer.model)
    base.forward = clock.wrap("forward", base.forward)
    trainer.accelerator.backward = clock.wrap("backward", trainer.accelerator.backward)
    trainer.accelerator.clip_grad_norm_ = clock.wrap("clip gradients", trainer.accelerator.clip_grad_norm_)
    trainer.add_callback(Steps())
