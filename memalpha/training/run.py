"""A training run in named steps: open it, measure before, fit, save the agent, measure after.

``roll_out`` measures and does not train. Ctrl-C or SIGTERM finishes the step, saves and stops.
"""

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PrinterCallback

from memalpha.agent.rollout import Rollout, StepCallback, run_episodes
from memalpha.config import names
from memalpha.data.load import source_names
from memalpha.data.rows import digest_instances
from memalpha.errors import InputError, RunFolderError, TrainingStopped
from memalpha.models import name_base, resolve_model, write_adapter_record
from memalpha.models.adapters import ADAPTER_FILES, copy_files
from memalpha.models.shipped import resolve_adapter
from memalpha.record.folder import (
    MARKER,
    RunFolder,
    check_place,
    checkpoint_step,
    checkpoints_in,
    environment,
)
from memalpha.record.lock import FolderLock
from memalpha.record.rows import InstanceRow, paired_difference, read_rows, summarise
from memalpha.rewards import full_name
from memalpha.signals import handle_signals
from memalpha.training.build import RunComponents, build_components, resolve_dtype
from memalpha.training.checkpoints import newest_whole
from memalpha.training.config import REPLACED_OPTIONS, PolicyOptions, TrainArguments, clear_options
from memalpha.training.precision import check_types, set_float16
from memalpha.training.recording import HeldOut, Recorder, StopOnSignal
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.training.warm_start import (
    WarmupOptions,
    WarmupRunOptions,
    WarmupTrainerOptions,
    warm_up,
)
from memalpha.training.weights import check_sharding, drawing_with, sharding_of
from memalpha.types import EventReport, JsonObject, silent


class Run(NamedTuple):
    """A training run that is open."""

    arguments: TrainArguments
    parts: RunComponents
    trainer: MemoryGRPOTrainer
    folder: RunFolder
    checkpoint: Path | None  # to go on from
    held_out: HeldOut


def train(
    arguments: TrainArguments,
    report: EventReport = silent,
    trainer_class: type[MemoryGRPOTrainer] = MemoryGRPOTrainer,
) -> JsonObject:
    """Train a memory agent with GRPO (TRL's loss; the reward of arXiv 2509.25911, section 3.3).

    Args:
        arguments: The options, as ``parse_train_arguments`` returns them.
        report: A function that is told events (``load``, ``evaluate``, ``step``, ``done``) and
            their data.
        trainer_class: The class of the trainer.

    Returns:
        The summary of the run, which is also in its folder.

    Raises:
        InputError: The options do not fit the data or models.
        RunFolderError: The run folder cannot be used.
        TrainingAborted: The run had to stop.
        TrainingStopped: The run was stopped by request, and is saved.
    """
    start = time.time()
    with FolderLock(arguments.trainer.output_dir, takes=PartialState().is_main_process) as lock:
        run = open_run(arguments, report, lock, trainer_class)
        before = measure_before(run)
        step = fit(run)
        save_agent(run)
        after = measure_after(run, step)
        summary = summarise_run(run, step, before, after)
        summary["seconds"] = round(time.time() - start, 1)
        if PartialState().is_main_process:
            run.folder.write_json("summary.json", summary)
            report("done", summary)
        PartialState().wait_for_everyone()
    return summary


def roll_out(arguments: TrainArguments, report: EventReport = silent) -> JsonObject:
    """Measure the named adapter on held-out instances; return the summary. InputError if options,
    files or folder do not fit.
    """
    options = arguments.run
    start = time.time()
    if not options.eval_data:
        raise InputError(
            "eval_data is empty",
            expected="held-out instances",
            fix="add --eval_data",
        )
    path = arguments.trainer.output_dir
    check_place(path, overwrite=options.overwrite, reads=files_read(arguments))
    report("load", {"what": f"{options.model} and {options.eval_data}"})
    arguments, why = choose_dtype(arguments, report)
    parts = build_components(arguments, training=False)
    about = {**environment(), "dtype": why}
    seed = arguments.trainer.seed

    def draw(instances: Any, sampling: Any, on_step: StepCallback | None) -> list[Rollout]:
        episodes = parts.begin(instances, parts.agent)
        return run_episodes(episodes, parts.generator, sampling, on_step)

    with FolderLock(path) as lock:
        lock.take(where=MARKER)
        folder = RunFolder.begin(
            path,
            all_options(arguments),
            _inputs(parts),
            about,
            overwrite=options.overwrite,
            resume=False,
        )
        lock.take()
        with drawing_with(parts.generator, options.adapter):
            rows = HeldOut(parts, draw, folder, seed, report).measure(parts.held_out, "rollouts")
        summary = {
            "model": options.model,
            "adapter": options.adapter,
            "seed": seed,
            "seconds": round(time.time() - start, 1),
            **summarise(rows),
        }
        folder.write_json("summary.json", summary)
    return summary


# ------------------------------------------------------------------------------------------------
# the steps
def open_run(
    arguments: TrainArguments,
    report: EventReport,
    lock: FolderLock,
    trainer_class: type[MemoryGRPOTrainer] = MemoryGRPOTrainer,
) -> Run:
    """Load and check all parts, make or resume the folder and take its lock, and run the warm start
    if the options ask for one.
    """
    options = arguments.run
    path = arguments.trainer.output_dir
    if PartialState().is_main_process:
        reads = {**files_read(arguments), "working directory": [str(Path.cwd())]}
        check_place(path, overwrite=options.overwrite, resume=options.resume, reads=reads)
        lock.take(where=MARKER)
        if options.resume:
            check_options_of_then(RunFolder(path))
    arguments, why = choose_dtype(arguments, report)
    check_types(arguments.run.dtype, arguments.trl_arguments)
    parts = build_components(arguments)
    trainer = None
    if not options.warm_start_steps:
        trainer = build_trainer(arguments, parts, trainer_class)
    folder = open_folder(arguments, parts, why)
    lock.take()
    checkpoint = last_checkpoint(folder, report) if options.resume else None
    if trainer is None:
        warm = warm_started(arguments, folder, report)
        parts = build_components(warm)
        trainer = build_trainer(warm, parts, trainer_class)
    held_out = HeldOut(parts, trainer.draw_rollouts, folder, arguments.trainer.seed, report)
    return Run(arguments, parts, trainer, folder, checkpoint, held_out)


def measure_before(run: Run) -> list[InstanceRow]:
    """Measure the policy with which training starts, once."""
    rows = _all_of(run.parts.held_out, read_rows(run.folder.path / "held_out" / "before.jsonl"))
    return rows or run.held_out.measure(run.parts.held_out, "before")


def fit(run: Run) -> int:
    """Train, and return the step of the weights that the policy then has, the last or the best."""
    trainer = run.trainer
    paid = run.arguments._replace(reward=run.parts.scorer.reward_config)
    recorder = Recorder(run.folder, paid, run.held_out.report)
    stop = StopOnSignal()
    trainer.on_rollouts = recorder.write_rollouts
    trainer.validate = partial(validate, run, recorder)
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(recorder)
    trainer.add_callback(stop)
    with handle_signals(stop.handle):
        trainer.train(resume_from_checkpoint=run.checkpoint and str(run.checkpoint))
    step = int(trainer.state.global_step)
    if stop.stopped and step < trainer.state.max_steps:
        raise TrainingStopped(
            f"stopped after step {step} of {trainer.state.max_steps}, saved as "
            f"{run.folder.path / f'checkpoint-{step}'}\n"
            "  to continue: run the same command with --resume",
        )
    return trainer.load_best() if run.arguments.trainer.load_best_model_at_end else step


def validate(run: Run, recorder: Recorder) -> dict[str, float]:
    """Measure the policy during training on the validation instances, and return the means."""
    options = run.arguments.trainer
    rows = run.held_out.measure(_validate(run.parts), f"step-{run.trainer.state.global_step:06d}")
    means = recorder.write_validation(rows)
    best = means.get(options.metric_for_best_model, math.nan)
    if options.load_best_model_at_end and math.isnan(best):
        raise InputError(
            f"metric_for_best_model is {options.metric_for_best_model!r}, which has no value",
            expected="accuracy",
        )
    return means


def save_agent(run: Run) -> None:
    """Save the adapter (or whole model) with all files that its use needs."""
    options = run.arguments.run
    adapter = run.folder.path / "adapter"
    model = run.trainer.accelerator.unwrap_model(run.trainer.model)
    name_base(model, options.model)
    run.trainer.save_model(str(adapter))
    if PartialState().is_main_process:
        run.parts.agent.config.save(adapter)
        reader = {}
        if options.reader == "trained":  # the agent's folder stands alone
            copy_files(resolve_adapter(options.reader_adapter), adapter / "reader", ADAPTER_FILES)
            reader = {"reader": "reader"}
        base = resolve_model(options.model)
        tokenizer = run.parts.tokenizer
        write_adapter_record(adapter, base, model.config, tokenizer, method="grpo", **reader)
    PartialState().wait_for_everyone()


def measure_after(run: Run, step: int) -> list[InstanceRow]:
    """Measure the trained policy, or take the validation of the same weights and instances."""
    same = run.folder.path / "held_out" / f"step-{step:06d}.jsonl"
    rows = [] if run.parts.validation else _all_of(run.parts.held_out, read_rows(same))
    if rows and PartialState().is_main_process:
        shutil.copyfile(same, same.with_name("after.jsonl"))
    return rows or run.held_out.measure(run.parts.held_out, "after")


def summarise_run(
    run: Run, step: int, before: list[InstanceRow], after: list[InstanceRow]
) -> JsonObject:
    """Return the summary of a run; ``step`` is the step of its last weights."""
    options = run.arguments.trainer
    state = run.trainer.state
    summary: JsonObject = {
        "model": run.arguments.run.model,
        "seed": options.seed,
        "steps": int(state.global_step),
    }
    if after:
        summary["before"] = summarise(before)
        summary["after"] = summarise(after)
        summary["delta"] = paired_difference(before, after)
    if options.load_best_model_at_end:
        summary["selection"] = {
            "step": step,
            "metric": options.metric_for_best_model,
            "value": state.best_metric,
            "instances": len(_validate(run.parts)),
            "on_after": not run.parts.validation,
        }
    return summary


def _all_of(instances: Sequence[Any], rows: list[InstanceRow]) -> list[InstanceRow]:
    """Return the rows of a file if they are of all these instances, else none: it was damaged."""
    whole = [row.instance for row in rows] == [instance.id for instance in instances]
    return rows if whole else []


def _validate(parts: RunComponents) -> list[Any]:
    return list(parts.validation or parts.held_out)


# ------------------------------------------------------------------------------------------------
# opening
def choose_dtype(arguments: TrainArguments, report: EventReport) -> tuple[TrainArguments, str]:
    """Replace ``dtype: auto`` by a type, also the same after a resume, and say why it is this
    one.
    """
    options = arguments.run
    why = "the run began with it"
    if options.dtype == "auto" and options.resume:
        folder = RunFolder(arguments.trainer.output_dir)
        options = replace(options, dtype=folder.config["dtype"])
    else:
        options, why = resolve_dtype(options, arguments.trl_arguments.device)
        if arguments.run.dtype == "auto":
            report("load", {"what": f"the base in {options.dtype} ({why})"})
    chosen = arguments.run.dtype == "auto" and options.dtype == "float16"
    if chosen and not arguments.trainer.bf16:
        set_float16(arguments.trl_arguments)
        arguments = arguments._replace(trainer=replace(arguments.trainer, fp16=True))
    return arguments._replace(run=options), f"{options.dtype}: {why}"


def build_trainer(
    arguments: TrainArguments,
    parts: RunComponents,
    trainer_class: type[MemoryGRPOTrainer] = MemoryGRPOTrainer,
) -> MemoryGRPOTrainer:
    """Put the trainer together; InputError if there are too few instances, or an option needs a
    missing package.
    """
    options = arguments.run
    trl_arguments = arguments.trl_arguments
    splits = trl_arguments.steps_per_generation or 1
    groups = (
        trl_arguments.per_device_train_batch_size
        * trl_arguments.world_size
        * splits
        // (trl_arguments.num_generations or 1)
    )
    if len(parts.instances) < groups:
        raise InputError(
            f"{len(parts.instances)} training instances are fewer than the {groups} of one step",
            fix="prepare more instances, or lower per_device_train_batch_size or "
            "steps_per_generation",
        )
    try:
        with clear_options():
            trainer_class.get_optimizer_cls_and_kwargs(trl_arguments, parts.model)
            trainer = trainer_class(
                model=parts.model,
                args=trl_arguments,
                processing_class=parts.tokenizer,
                agent=parts.agent,
                instances=parts.instances,
                scorer=parts.scorer,
                options=options,
                generator=parts.generator,
                begin=parts.begin,
            )
    except OSError as error:  # of the Hub's client, which makes the repository at once
        if not trl_arguments.push_to_hub:
            raise
        raise InputError(
            f"push_to_hub is set, but no repository can be made: {error}",
            fix="log in with hf auth login, or leave push_to_hub out",
        ) from error
    if trl_arguments.load_best_model_at_end and (
        trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    ):
        raise InputError(
            "load_best_model_at_end cannot be used with FSDP or DeepSpeed",
            expected="false, since loading hangs when the weights are sharded",
        )
    check_sharding(
        sharding_of(trainer.accelerator),
        options.reader,
        trl_arguments.ds3_gather_for_generation,
        options.load_in_4bit,
    )
    return trainer


def open_folder(arguments: TrainArguments, parts: RunComponents, dtype: str) -> RunFolder:
    """Make, overwrite or resume the folder of a run, after loading; RunFolderError if it cannot, or
    if options or data differ.
    """
    state = PartialState()
    trainer_options = arguments.trainer
    options = arguments.run
    if state.is_main_process:
        path = Path(trainer_options.output_dir)
        if options.resume:
            done = max(map(checkpoint_step, checkpoints_in(path)), default=0)
            if 0 < trainer_options.max_steps < done:
                raise RunFolderError(
                    f"max_steps is {trainer_options.max_steps}, but the run has a "
                    f"checkpoint of step {done}",
                    expected=f"{done} or more",
                )
        rollouts = trainer_options.per_device_train_batch_size * state.num_processes
        inputs = {**_inputs(parts), "run": {"rollouts of a step": rollouts}}
        about = {**environment(state.num_processes), "dtype": dtype}
        RunFolder.begin(
            path,
            all_options(arguments),
            inputs,
            about,
            overwrite=options.overwrite,
            resume=options.resume,
        )
    state.wait_for_everyone()
    return RunFolder(trainer_options.output_dir)


def check_options_of_then(folder: RunFolder) -> None:
    """Raise RunFolderError for a run that was begun with an option which this version does not
    have.
    """
    for name, instead in REPLACED_OPTIONS.items():
        if name in folder.config:
            raise RunFolderError(
                f"{str(folder.path)!r} was begun with the option {name}: "
                f"{folder.config.get(name)}, which this version does not have",
                expected=instead,
                fix="train again, or continue with the version that began the run",
            )


def _inputs(parts: RunComponents) -> dict[str, JsonObject]:
    data = {"train_data": parts.instances, "eval_data": parts.held_out}
    return {"data": {name: digest_instances(instances) for name, instances in data.items()}}


def all_options(arguments: TrainArguments) -> JsonObject:
    """Every option of a run, flat, as ``--config`` takes them; ``overwrite`` and ``resume`` are of
    a command, not of the run.
    """
    rewards = {full_name(reward): weight for reward, weight in arguments.reward.rewards.items()}
    reward = {**asdict(replace(arguments.reward, rewards={})), "rewards": rewards}
    run = replace(arguments.run, overwrite=False, resume=False)
    return {**asdict(run), **asdict(arguments.agent), **reward, **asdict(arguments.trainer)}


def files_read(arguments: TrainArguments) -> dict[str, list[str]]:
    """Names (possibly paths) of the inputs of a run, by option name."""
    options = arguments.run
    return {
        "adapter": [options.adapter],
        "reader_adapter": [options.reader_adapter],
        "model": [options.model],
        "train_data": source_names(options.train_data),
        "eval_data": source_names(options.eval_data),
    }


def last_checkpoint(folder: RunFolder, report: EventReport) -> Path | None:
    """Return the newest complete checkpoint, the same on all processes, and delete all later files;
    None if there is no checkpoint. RunFolderError if all are damaged.
    """
    state = PartialState()
    newest: list[Any] = [None]
    if state.is_main_process:
        newest[0], damaged = newest_whole(checkpoints_in(folder.path))
        if damaged and not newest[0]:
            raise RunFolderError(
                f"{str(folder.path)!r} has no checkpoint from which it can continue: "
                + "; ".join(f"{name}: {reason}" for name, reason in damaged.items()),
                expected="one complete checkpoint",
                fix="restore one from a copy, or start again at step 1 with --overwrite "
                "instead of --resume",
            )
        folder.drop_after(checkpoint_step(newest[0]) if newest[0] else 0)
        name = newest[0].name if newest[0] else "step 0: no checkpoint was made yet"
        report("resume", {"checkpoint": name, "damaged": damaged})
    if state.num_processes > 1:
        broadcast_object_list(newest)
    return newest[0]  # type: ignore[no-any-return]


def warm_started(
    arguments: TrainArguments, folder: RunFolder, report: EventReport
) -> TrainArguments:
    """Train on demonstrations first, unless the run has done so, and return the options with which
    it continues.
    """
    state = PartialState()
    options = arguments.run
    trainer_options = arguments.trainer
    target = folder.path / "warm_start"
    unfinished = target.with_name(".warm_start")
    if not target.exists():
        if state.is_main_process:  # left by a killed run
            shutil.rmtree(unfinished, ignore_errors=True)
        state.wait_for_everyone()
        training = WarmupTrainerOptions(
            output_dir=str(unfinished),
            max_steps=options.warm_start_steps,
            learning_rate=options.warm_start_learning_rate,
            seed=trainer_options.seed,
            use_cpu=trainer_options.use_cpu,
            bf16=trainer_options.bf16,  # one precision per process
            fp16=trainer_options.fp16,
        )
        demonstrations = WarmupOptions(
            data=options.train_data,
            data_options=options.train_options,
            rollout_chunks=options.rollout_chunks,
            **{name: getattr(options, name) for name in names(PolicyOptions)},
        )
        warm_up(WarmupRunOptions(demonstrations, arguments.agent, training.arguments()), report)
        if state.is_main_process:
            unfinished.rename(target)
        state.wait_for_everyone()
    start: JsonObject = {"model" if options.full_finetuning else "adapter": str(target)}
    return arguments._replace(run=replace(options, warm_start_steps=0, **start))
