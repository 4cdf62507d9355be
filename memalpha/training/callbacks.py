"""What watches a training run: the recorder of its steps, the early stop, the stop on Ctrl-C."""

import logging
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object
from transformers import TrainerCallback, TrainerState

from memalpha.agent.rollout import Rollout
from memalpha.errors import InputError
from memalpha.protocols import EventReport
from memalpha.record.folder import RunFolder, trajectory_name
from memalpha.record.rows import InstanceRow, rollout_to_json, summarise
from memalpha.rewards.total import StepReward
from memalpha.training.config import TrainArguments
from memalpha.training.rows import TrainingRow

logger = logging.getLogger(__name__)

_NO_CURVE = ("kinds", "operations", "low", "high", "stderr", "n", "masked")


class Recorder(TrainerCallback):  # type: ignore[misc]
    """Writes steps, validations and rollouts to the run folder."""

    state: TrainerState

    def __init__(self, folder: RunFolder, arguments: TrainArguments, report: EventReport) -> None:
        self.folder, self.arguments, self.report = folder, arguments, report

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **_: Any) -> None:
        """Know where the training stands."""
        self.state = state

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
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


class EarlyStop(TrainerCallback):  # type: ignore[misc]
    """Stops after ``patience`` validations that were no better than the best one (0 = never).

    Unlike transformers' own it counts in the log, so a resumed run that had stopped stays stopped.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop, or not; InputError if the metric has no value."""
        name = f"eval_{args.metric_for_best_model.removeprefix('eval_')}"
        sign = 1 if args.greater_is_better else -1
        values = [sign * row[name] for row in state.log_history if name in row]
        InputError.raise_if(
            args.load_best_model_at_end and any(map(math.isnan, values)),
            f"metric_for_best_model is {args.metric_for_best_model!r}, which has no value",
            expected="accuracy",
        )
        since = len(values) - 1 - values.index(max(values)) if values else 0
        if 0 < self.patience <= since:
            control.should_training_stop = True

    on_train_begin = on_evaluate


class StopOnSignal(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after a step in which any process received Ctrl-C or SIGTERM; a second Ctrl-C
    after at least a second stops at once.
    """

    repeated_after = 1.0  # seconds before which a second Ctrl-C is ignored

    def __init__(self) -> None:
        self.stopped = False
        self._received: float | None = None  # when the first came

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle the signals inside the block, if it runs in the main thread."""
        main = threading.current_thread() is threading.main_thread()
        numbers = (signal.SIGINT, signal.SIGTERM) if main else ()
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self._received is None:
            self._received = time.monotonic()
            name = signal.Signals(number).name
            logger.warning("%s: saving after this step; Ctrl-C again stops at once", name)
        elif number == signal.SIGINT and time.monotonic() - self._received >= self.repeated_after:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Request a checkpoint and the end of training; all processes agree."""
        if any(gather_object([self._received is not None])):
            self.stopped = control.should_save = control.should_training_stop = True
