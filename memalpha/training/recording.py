"""Records the steps and rollouts of a training run, and the rows of held-out instances.

It also stops a run on Ctrl-C or SIGTERM, after it has saved the step.
"""

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from memalpha.agent.rollout import Rollout, StepCallback
from memalpha.record.folder import RunFolder, trajectory_name
from memalpha.record.measure import Examination, SearchedMemory, measure, rollout_memory
from memalpha.record.rows import (
    TOTAL,
    InstanceRow,
    QuestionRow,
    mean_rewards,
    rollout_to_json,
    summarise,
)
from memalpha.rewards import StepReward
from memalpha.signals import REPEATED_AFTER
from memalpha.training.build import RunComponents
from memalpha.training.config import TrainArguments
from memalpha.training.rows import TrainingRow
from memalpha.training.scoring import RolloutScorer, check_masked_share
from memalpha.types import EventReport, Instance, JsonObject, Sampling

_logger = logging.getLogger(__name__)

Draw = Callable[[Sequence[Instance], Sampling, StepCallback | None], list[Rollout]]
_NO_CURVE = ("kinds", "operations", "low", "high", "stderr", "n", "masked")


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes steps, validations and rollouts to the run folder."""

    state: TrainerState

    def __init__(self, folder: RunFolder, arguments: TrainArguments, report: EventReport) -> None:
        self.folder = folder
        self.arguments = arguments
        self.report = report

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Record the state at which training begins."""
        self.state = state

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: JsonObject | None = None,
        **_: Any,
    ) -> None:
        """Record the row; the last row, without a loss, is a summary and is skipped."""
        if not state.is_world_process_zero or not logs or "loss" not in logs:
            return
        row = {"step": state.global_step, "max_steps": state.max_steps, **logs}
        if logs.get("skipped") == 1:  # transformers logs a placeholder
            row["loss"] = None
        self.folder.append_line("metrics.jsonl", row)
        self.report("step", row)

    def write_validation(self, rows: Sequence[InstanceRow]) -> dict[str, float]:
        """Record an evaluation while training; return its means, also by kind of question, without
        their errors.
        """
        summary = summarise(rows)
        means = {name: value for name, value in summary.items() if name not in _NO_CURVE}
        for kind, row in summary["kinds"].items():
            means[f"accuracy_{kind}"] = row["accuracy"]
        if self.state.is_world_process_zero:
            curve = {f"eval_{name}": value for name, value in means.items()}
            place = {"step": self.state.global_step, "max_steps": self.state.max_steps}
            error = {"eval_stderr": summary["stderr"]}
            self.folder.append_line("metrics.jsonl", {**place, **curve, **error})
        return means

    def write_rollouts(
        self,
        rollouts: Sequence[Rollout],
        rows: Sequence[TrainingRow],
        rewards: Sequence[Sequence[StepReward]],
    ) -> None:
        """Record this process's rollouts of a step."""
        group = self.arguments.trainer.num_generations
        step = self.state.global_step + 1
        advantage = {(row.rollout_index, row.chunk_index): row.advantage for row in rows}
        lines = []
        for index, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True)):
            mine = [advantage[index, each.chunk_index] for each in rollout.steps]
            place = {"step": step, "group": index // group, "rollout": index}
            line = rollout_to_json(rollout, reward, self.arguments.reward, mine)
            lines.append({**place, **line})
        self.folder.write_lines(trajectory_name(step, PartialState().process_index), lines)


class StopOnSignal(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after a step in which any process received Ctrl-C or SIGTERM; a second Ctrl-C
    after at least a second stops at once.
    """

    def __init__(self) -> None:
        self.stopped = False
        self._received: float | None = None  # when the first came

    def handle(self, number: int, frame: Any) -> None:
        """Note the first signal, and stop at a second Ctrl-C."""
        if self._received is None:
            self._received = time.monotonic()
            name = signal.Signals(number).name
            # torch's launcher sends SIGTERM to the others where one process has failed
            failed = number == signal.SIGTERM and "TORCHELASTIC_RUN_ID" in os.environ
            if PartialState().is_main_process and not failed:
                _logger.warning(
                    "%s received: the run is saved after this step; Ctrl-C again stops at once",
                    name,
                )
        elif number == signal.SIGINT and time.monotonic() - self._received >= REPEATED_AFTER:
            raise KeyboardInterrupt

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        """Request a checkpoint and the end of training; all processes agree."""
        if any(gather_object([self._received is not None])):
            self.stopped = control.should_save = control.should_training_stop = True


@dataclass(frozen=True, slots=True)
class ScoringExaminer:
    """Asks and scores as in training: all parts of the reward."""

    scorer: RolloutScorer

    def __call__(self, instances: Sequence[Instance], memories: Sequence[Any]) -> list[Examination]:
        """Score the rollouts that wrote the memories."""
        config = self.scorer.reward_config
        rollouts = [memory.rollout for memory in memories]
        examinations = []
        for rollout, rewards in zip(rollouts, self.scorer.score(rollouts), strict=True):
            questions = tuple(starmap(QuestionRow.of, enumerate(rollout.questions)))
            recorded = rollout_to_json(rollout, rewards, config)
            parts = mean_rewards(rewards, config)
            examinations.append(Examination(questions, rewards=parts, rollout=recorded))
        return examinations


@dataclass(frozen=True)
class HeldOut:
    """Measures a run on held-out instances; ``draw`` makes the rollouts of the current policy."""

    parts: RunComponents
    draw: Draw
    folder: RunFolder
    seed: int
    report: EventReport

    def measure(self, instances: Sequence[Instance], name: str) -> list[InstanceRow]:
        """Measure instances, split among processes, into ``held_out/NAME.jsonl``; TrainingAborted
        if too few are scored.
        """
        if not instances:
            return []
        state = PartialState()
        clock = time.time()
        ((_, rows),) = measure(
            lambda mine: self._ingest(mine, name, len(instances)),
            instances[state.process_index :: state.num_processes],
            {"scorer": ScoringExaminer(self.parts.scorer)},
            names=("held out", "policy"),
            seed=self.seed,
            count=self.parts.agent.encoder.count,
            clock=no_time,
        )
        if state.num_processes > 1:
            order = {instance.id: index for index, instance in enumerate(instances)}
            rows = sorted(gather_object(rows), key=lambda row: order[row.instance])
        if state.is_main_process:
            self.folder.write_lines(f"held_out/{name}.jsonl", [row.to_json() for row in rows])
        errors = []
        for row in rows:
            recorded = row.rollout or {}
            errors += [part["error"] for part in (*recorded["questions"], *recorded["steps"])]
        unscored = sum(math.isnan(row.rewards[TOTAL]) for row in rows)
        check_masked_share(unscored, len(rows), self.parts.scorer.max_masked_share, errors)
        if state.is_main_process:
            seconds = round(time.time() - clock, 1)
            self.report("evaluated", {"name": name, "seconds": seconds, **summarise(rows)})
        return rows

    def _ingest(self, mine: Sequence[Instance], name: str, total: int) -> list[SearchedMemory]:
        config = self.parts.agent.config
        temperature = self.parts.eval_temperature
        seed = self.seed if temperature else None
        sampling = Sampling(config.max_completion_length, temperature, seed=seed)

        def tell(done: int, chunks: int) -> None:
            place = {"name": name, "done": done, "total": chunks, "instances": total}
            self.report("evaluate", place)

        rollouts = self.draw(mine, sampling, tell)
        return [rollout_memory(rollout, config.retrieve_k) for rollout in rollouts]


def no_time() -> float:
    """Return NaN, no time: a resumed run writes the same rows."""
    return math.nan
