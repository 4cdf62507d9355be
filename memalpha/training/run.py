"""One training run: load, evaluate before, train, evaluate after, write the summary. ``evaluate`` does not train.

Ctrl-C or SIGTERM finishes the step, saves and stops. A second Ctrl-C after at least one second stops at once; earlier repeats, as
launchers send them, are ignored.
"""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from memalpha.agent.rollout import Rollout, run_rollouts
from memalpha.errors import InputError, TrainingStopped
from memalpha.models import name_base, resolve_model, write_adapter_record
from memalpha.rewards.total import StepReward
from memalpha.runs import RunFolder, check_apart, environment, trajectory_name
from memalpha.training.build import Parts, build_parts
from memalpha.training.config import TrainArguments
from memalpha.training.guards import explain_missing_package
from memalpha.training.results import (
    InstanceResult,
    check_results,
    evaluate_instances,
    paired_difference,
    read_results,
    rollout_to_json,
    summarise,
)
from memalpha.training.rows import TrainingRow
from memalpha.training.run_folder import check_place, check_same_data, inputs, last_checkpoint, open_folder, step_of
from memalpha.training.sharding import Sharding, check_sharding, sharding_of
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.training.warm_start import WarmupOptions, WarmupRunOptions, WarmupTrainingArguments, warm_up
from memalpha.types import Instance

logger = logging.getLogger(__name__)

Report = Callable[[str, dict[str, Any]], None]
"""Called with the name of an event (``evaluate``, ``step``, ``done``) and its data; shown by the command line."""


def train(arguments: TrainArguments, report: Report = lambda event, data: None) -> dict[str, Any]:
    """Run training and return the summary; InputError if options do not fit, TrainingAborted if the run had to stop."""
    started = time.time()
    state = PartialState()
    if state.is_main_process:
        check_place(arguments)
    parts = build_parts(arguments)
    trainer = None if arguments.run.warm_start_steps else build_trainer(arguments, parts)
    folder = open_folder(arguments)
    if state.is_main_process:
        check_same_data(folder, train_data=parts.instances, eval_data=parts.held_out)
    checkpoint = _checkpoint(arguments, folder, state, report)
    if trainer is None:
        parts = build_parts(_warm_started(arguments, folder, report))
        trainer = build_trainer(arguments, parts)
    trainer.on_rollouts = _recorder(trainer, arguments, folder)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(RunCallback(folder, report, trainer))
    held_out = parts.held_out
    before: list[InstanceResult] = []
    if held_out:
        before = read_results(folder, "before") if arguments.run.resume else []
        before = before or evaluate_held_out(trainer, parts, held_out, folder, "before", report)
    _run_steps(trainer, folder, checkpoint)
    save_adapter(trainer, parts, arguments, folder.path / "adapter")
    after = evaluate_held_out(trainer, parts, held_out, folder, "after", report) if held_out else []
    summary: dict[str, Any] = {
        "model": arguments.run.model,
        "seed": arguments.grpo.seed,
        "steps": trainer.state.global_step,
        "seconds": round(time.time() - started, 1),
    }
    if held_out:
        summary |= {"before": summarise(before), "after": summarise(after), "delta": paired_difference(before, after)}
    if state.is_main_process:
        folder.write_json("summary.json", summary)
        report("done", summary)
    trainer.accelerator.wait_for_everyone()
    return summary


def _run_steps(trainer: MemoryGRPOTrainer, folder: RunFolder, checkpoint: Path | None) -> None:
    if trainer.accelerator.is_main_process or sharding_of(trainer.accelerator) is Sharding.NONE:  # else rank 0 does it
        trainer.policy = next((row["policy"] for row in folder.metrics() if row["step"] == step_of(checkpoint)), "")
    with stop_request() as request:
        stopping = StopCallback(request, lambda asked: bool(trainer.sum_over_ranks([asked])))
        trainer.add_callback(stopping)
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if stopping.stopped and trainer.state.global_step < trainer.state.max_steps:
        step = trainer.state.global_step
        raise TrainingStopped(
            f"stopped after step {step} of {trainer.state.max_steps}, saved as {folder.path / f'checkpoint-{step}'}\n"
            "  to go on: the same command with --resume"
        )


def _warm_started(arguments: TrainArguments, folder: RunFolder, report: Report) -> TrainArguments:
    """Run the requested warm start unless a resumed run has one; return options that start from it."""
    run, target = arguments.run, folder.path / "warm_start"
    if not run.warm_start_steps:
        return arguments
    if not target.exists():
        unfinished = target.with_name(".warm_start")
        if PartialState().is_main_process and unfinished.exists():  # left by a killed run
            shutil.rmtree(unfinished)
        PartialState().wait_for_everyone()
        warm_up(
            WarmupRunOptions(
                WarmupOptions(
                    model=run.model,
                    data=run.train_data,
                    data_options=run.train_options,
                    lora_r=run.lora_r,
                    lora_alpha=run.lora_alpha,
                    full_finetuning=run.full_finetuning,
                ),
                arguments.agent,
                WarmupTrainingArguments(
                    output_dir=str(unfinished),
                    max_steps=run.warm_start_steps,
                    learning_rate=run.warm_start_learning_rate,
                    seed=arguments.grpo.seed,
                    use_cpu=arguments.grpo.use_cpu,
                    bf16=arguments.grpo.bf16,  # one precision per process
                ),
            ),
            report,
        )
        if PartialState().is_main_process:
            unfinished.rename(target)
        PartialState().wait_for_everyone()
    run = replace(run, warm_start_steps=0)
    return arguments._replace(run=replace(run, model=str(target)) if run.full_finetuning else replace(run, adapter=str(target)))


def build_trainer(arguments: TrainArguments, parts: Parts) -> MemoryGRPOTrainer:
    """Put the trainer together."""
    run = arguments.run
    grpo = arguments.grpo
    splits = grpo.steps_per_generation or 1
    groups = grpo.per_device_train_batch_size * grpo.world_size * splits // (grpo.num_generations or 1)
    if len(parts.instances) < groups:
        raise InputError(
            f"{len(parts.instances)} training instances are fewer than the {groups} of one step",
            expected=f"at least {groups}: an incomplete batch is never trained",
            fix="prepare more instances, or lower per_device_train_batch_size or steps_per_generation",
        )
    rows = [{"prompt": "", "instance": index} for index in range(len(parts.instances))]
    with explain_missing_package():
        trainer = MemoryGRPOTrainer(
            model=parts.model,
            args=arguments.grpo,
            train_dataset=Dataset.from_list(rows),
            processing_class=parts.tokenizer,
            agent=parts.agent,
            instances=parts.instances,
            generator=None if arguments.grpo.use_vllm else parts.generator,
            scorer=parts.scorer,
            reward_config=arguments.reward,
            grouping=parts.grouping,
            rows_per_forward=run.rows_per_forward,
            share_prefix=run.share_prefix,
            question_share=run.question_share,
            shuffled_advantages=run.shuffle_advantages,
            max_skipped_steps=run.max_skipped_steps,
        )
    check_sharding(
        sharding_of(trainer.accelerator),
        reader=run.reader,
        gather=arguments.grpo.ds3_gather_for_generation,
        use_vllm=arguments.grpo.use_vllm,
    )
    return trainer


def evaluate_held_out(
    trainer: MemoryGRPOTrainer, parts: Parts, instances: Sequence[Instance], folder: RunFolder, name: str, report: Report
) -> list[InstanceResult]:
    """Evaluate on held-out instances, split among ranks; write trajectories to ``held_out/NAME.jsonl``."""
    rank, world = trainer.accelerator.process_index, trainer.accelerator.num_processes
    clock = time.time()
    found = evaluate_instances(
        instances[rank::world],
        trainer.run_rollouts,
        parts.agent,
        parts.scorer,
        lambda done, total: report("evaluate", {"name": name, "done": done, "total": total, "instances": len(instances)}),
        parts.eval_temperature,
        trainer.args.seed,
    )
    gathered = gather_object(found) if world > 1 else found
    order = {instance.id: index for index, instance in enumerate(instances)}
    gathered = sorted(gathered, key=lambda pair: order[pair[0].instance])
    results = [result for result, _ in gathered]
    if rank == 0:
        folder.write_lines(f"held_out/{name}.jsonl", [{"result": asdict(r), "rollout": rollout} for r, rollout in gathered])
    check_results(gathered, parts.scorer.max_masked_share)
    if rank == 0:
        report("evaluated", {"name": name, "seconds": round(time.time() - clock, 1), **summarise(results)})
    return results


def save_adapter(trainer: MemoryGRPOTrainer, parts: Parts, arguments: TrainArguments, target: Path) -> None:
    """Save the trained adapter with the agent's options and the name of its base."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    name_base(model, arguments.run.model)
    trainer.save_model(str(target))
    if trainer.accelerator.process_index == 0:
        parts.agent.config.save(target)
        write_adapter_record(target, resolve_model(arguments.run.model), model.config, parts.tokenizer, method="grpo")


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Writes every logged step to the run folder and reports it."""

    def __init__(self, folder: RunFolder, report: Report, trainer: MemoryGRPOTrainer) -> None:
        self.folder, self.report, self.trainer = folder, report, trainer

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Record the row; the last row, without a loss, is a summary and is skipped."""
        if state.is_world_process_zero and logs and "loss" in logs:
            row = {"step": state.global_step, "max_steps": state.max_steps, "policy": self.trainer.policy, **logs}
            if logs.get("skipped") == 1:  # transformers logs a placeholder
                row["loss"] = None
            self.folder.append_line("metrics.jsonl", row)
            self.report("step", row)


def _recorder(trainer: MemoryGRPOTrainer, arguments: TrainArguments, folder: RunFolder) -> Any:
    def record(rollouts: Sequence[Rollout], rows: Sequence[TrainingRow], rewards: Sequence[Sequence[StepReward]]) -> None:
        advantage = {(row.rollout_index, row.chunk_index): row.advantage for row in rows}
        size, step = arguments.grpo.num_generations or 1, trainer.state.global_step + 1
        lines = []
        for index, rollout in enumerate(rollouts):
            totals = [reward.total(arguments.reward) for reward in rewards[index]]
            mine = [advantage[index, t] for t in range(len(rollout.steps))]
            row = rollout_to_json(rollout, rewards[index], totals, mine)
            lines.append({"step": step, "policy": trainer.policy, "group": index // size, "rollout": index, **row})
        folder.write_lines(trajectory_name(step, trainer.accelerator.process_index), lines)

    return record


def _checkpoint(arguments: TrainArguments, folder: RunFolder, state: PartialState, report: Report) -> Path | None:
    """Return the checkpoint to resume from, the same on all ranks; None starts from the beginning."""
    found: list[Any] = [None]
    if arguments.run.resume and state.is_main_process:
        found[0], damaged = last_checkpoint(folder)
        report("resume", {"checkpoint": found[0].name if found[0] else "", "damaged": damaged})
    return broadcast_object_list(found)[0] if state.num_processes > 1 else found[0]  # type: ignore[no-any-return]


logger = logging.getLogger(__name__)

REPEATED_AFTER = 1.0
"""Seconds before which a second Ctrl-C is ignored."""


class StopRequest:
    """The signal that asked to stop, and when."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._since = 0.0

    def __call__(self, number: int, frame: Any) -> None:
        """Handle a signal."""
        again = self.signal is not None and number == signal.SIGINT and time.monotonic() - self._since >= REPEATED_AFTER
        if again:
            raise KeyboardInterrupt
        if self.signal is None:
            self.signal, self._since = signal.Signals(number), time.monotonic()
            logger.warning("%s: saving after this step; Ctrl-C again stops at once", self.signal.name)


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Handle SIGINT and SIGTERM inside the block, if it runs in the main thread."""
    request = StopRequest()
    numbers = [signal.SIGINT, signal.SIGTERM] if threading.current_thread() is threading.main_thread() else []
    before = {number: signal.signal(number, request) for number in numbers}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Saves and stops after a step in which any rank received a signal; all ranks call ``any_rank`` after each step."""

    def __init__(self, request: StopRequest, any_rank: Callable[[bool], bool]) -> None:
        self.request, self.any_rank = request, any_rank
        self.stopped = False

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Request a checkpoint and the end of training."""
        if self.any_rank(self.request.signal is not None):
            self.stopped = control.should_save = control.should_training_stop = True


def evaluate(arguments: TrainArguments, report: Report = lambda event, data: None) -> dict[str, Any]:
    """Evaluate the adapter the options name on held-out instances; return the summary (also ``summary.json``).

    InputError if an option, file, model or adapter does not fit, no held-out data are named, or the run to overwrite contains them
    or the adapter. TrainingAborted if too many instances could not be scored; rollouts are still written.
    """
    if not arguments.run.eval_data:
        raise InputError("eval_data is empty", expected="held-out instances", fix="add --eval_data")
    path = Path(str(arguments.grpo.output_dir))
    if RunFolder.check_free(path, overwrite=arguments.run.overwrite):
        check_apart(path, inputs(arguments))
    clock = time.time()
    report("load", {"what": f"{arguments.run.model} and {arguments.run.eval_data}"})
    parts = build_parts(arguments, training=False)
    config = {**asdict(arguments.run), **asdict(arguments.agent), **asdict(arguments.reward), **arguments.grpo.to_dict()}
    folder = RunFolder.create(path, config, overwrite=arguments.run.overwrite)
    folder.write_json("environment.json", environment())
    shown = {"name": "held out", "instances": len(parts.held_out)}
    found = evaluate_instances(
        parts.held_out,
        lambda instances, sampling, on_step: run_rollouts(instances, parts.agent, parts.generator, sampling, on_step=on_step),
        parts.agent,
        parts.scorer,
        lambda done, total: report("evaluate", {**shown, "done": done, "total": total}),
        parts.eval_temperature,
        arguments.grpo.seed,
    )
    folder.write_lines("held_out/rollouts.jsonl", [{"result": asdict(result), "rollout": rollout} for result, rollout in found])
    check_results(found, parts.scorer.max_masked_share)
    summary = {
        "model": arguments.run.model,
        "adapter": arguments.run.adapter,
        "seed": arguments.grpo.seed,
        "seconds": round(time.time() - clock, 1),
        **summarise([result for result, _ in found]),
    }
    folder.write_json("summary.json", summary)
    report("evaluated", {"name": "held out", **summary})
    return summary
