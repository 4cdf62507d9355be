"""One training run: load, evaluate before, train, evaluate after, write the summary. ``evaluate``
does not train.

Ctrl-C or SIGTERM finishes the step, saves and stops. A second Ctrl-C after at least one second
stops at once.
"""

import json
import logging
import math
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from itertools import starmap
from pathlib import Path
from typing import Any

from accelerate import PartialState
from accelerate.utils import broadcast_object_list, gather_object
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback

from memalpha.agent.rollout import Rollout, StepCallback, run_rollouts
from memalpha.config import names
from memalpha.data.load import source_names
from memalpha.data.schema import digest_instances
from memalpha.errors import InputError, RunFolderError, TrainingStopped
from memalpha.files import write_yaml
from memalpha.generation.products import float32_products
from memalpha.models import name_base, resolve_model, write_adapter_record
from memalpha.models.policy import ADAPTER_FILES, copy_files
from memalpha.protocols import EventReport
from memalpha.record.folder import (
    RunFolder,
    check_apart,
    checkpoint_step,
    checkpoints_in,
    environment,
    make_folder,
    masked,
    trajectory_name,
)
from memalpha.record.measure import (
    Examination,
    SearchedMemory,
    measure,
    rollout_memory,
)
from memalpha.record.rows import (
    TOTAL,
    InstanceRow,
    QuestionRow,
    mean_rewards,
    paired_difference,
    read_rows,
    rollout_to_json,
    summarise,
)
from memalpha.rewards.total import RewardConfig, full_name
from memalpha.training.build import Parts, build_parts, resolve_dtype
from memalpha.training.checkpoints import newest_whole
from memalpha.training.config import PolicyOptions, TrainArguments
from memalpha.training.rows import TrainingRow
from memalpha.training.scoring import RolloutScorer, check_masked_share
from memalpha.training.sharding import check_sharding, sharding_of
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.training.warm_start import (
    WarmupOptions,
    WarmupRunOptions,
    WarmupTrainerOptions,
    warm_up,
)
from memalpha.types import Instance, Sampling

logger = logging.getLogger(__name__)

Runner = Callable[[Sequence[Instance], Sampling, StepCallback | None], list[Rollout]]


def train(
    arguments: TrainArguments, report: EventReport = lambda event, data: None
) -> dict[str, Any]:
    """Run training and return the summary; InputError if options do not fit, TrainingAborted if the
    run had to stop.
    """
    started, seed = time.time(), arguments.grpo.seed
    state = PartialState()
    if state.is_main_process:
        check_place(arguments)
    arguments, why = settle_dtype(arguments, report)
    parts = build_parts(arguments)
    trainer = None if arguments.run.warm_start_steps else build_trainer(arguments, parts)
    folder = open_folder(arguments, parts, why)
    checkpoint = _checkpoint(arguments, folder, state, report)
    if trainer is None:
        parts = build_parts(_warm_started(arguments, folder, report))
        trainer = build_trainer(arguments, parts)
    callback = RunCallback(trainer, arguments.reward, folder, report)
    trainer.on_rollouts = callback.on_rollouts
    watched = parts._replace(held_out=list(parts.validation or parts.held_out))

    def validate() -> dict[str, float]:
        name = f"step-{trainer.state.global_step:06d}"
        return callback.on_validated(
            evaluate_held_out(watched, trainer.run_rollouts, folder, name, report, seed)
        )

    trainer.validate = validate
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(callback)
    before = read_rows(folder.path / "held_out" / "before.jsonl") if arguments.run.resume else []
    if parts.held_out and not before:
        before = evaluate_held_out(parts, trainer.run_rollouts, folder, "before", report, seed)
    with callback.listening():
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    step, steps = trainer.state.global_step, trainer.state.max_steps
    TrainingStopped.raise_if(
        callback.stopped and step < steps,
        f"stopped after step {step} of {steps}, saved as {folder.path / f'checkpoint-{step}'}\n"
        "  to go on: the same command with --resume",
    )
    kept = trainer.load_best() if arguments.grpo.load_best_model_at_end else step
    adapter, model = folder.path / "adapter", trainer.accelerator.unwrap_model(trainer.model)
    name_base(model, arguments.run.model)
    trainer.save_model(str(adapter))
    if state.is_main_process:
        parts.agent.config.save(adapter)
        own = {"reader": "reader"} if arguments.run.reader == "trained" else {}
        if own:  # the agent's folder stands alone
            copy_files(Path(arguments.run.reader_adapter), adapter / "reader", ADAPTER_FILES)
        write_adapter_record(
            adapter,
            resolve_model(arguments.run.model),
            model.config,
            parts.tokenizer,
            method="grpo",
            **own,
        )
    state.wait_for_everyone()
    known = f"step-{kept:06d}"  # the same weights on the same instances
    after = [] if parts.validation else read_rows(folder.path / "held_out" / f"{known}.jsonl")
    if after and state.is_main_process:
        folder.write_lines("held_out/after.jsonl", folder.read_lines(f"held_out/{known}.jsonl"))
    if parts.held_out and not after:
        after = evaluate_held_out(parts, trainer.run_rollouts, folder, "after", report, seed)
    summary: dict[str, Any] = {
        "model": arguments.run.model,
        "seed": seed,
        "steps": step,
        "seconds": round(time.time() - started, 1),
    }
    if parts.held_out:
        summary |= {
            "before": summarise(before),
            "after": summarise(after),
            "delta": paired_difference(before, after),
        }
    if arguments.grpo.load_best_model_at_end:
        summary["selection"] = {
            "step": kept,
            "metric": arguments.grpo.metric_for_best_model,
            "value": trainer.state.best_metric,
            "instances": len(watched.held_out),
            "on_after": not parts.validation,
        }
    if state.is_main_process:
        folder.write_json("summary.json", summary)
        report("done", summary)
    trainer.accelerator.wait_for_everyone()
    return summary


def _warm_started(
    arguments: TrainArguments, folder: RunFolder, report: EventReport
) -> TrainArguments:
    run, target, state = arguments.run, folder.path / "warm_start", PartialState()
    if not target.exists():
        unfinished = target.with_name(".warm_start")
        if state.is_main_process and unfinished.exists():  # left by a killed run
            shutil.rmtree(unfinished)
        state.wait_for_everyone()
        same = {name: getattr(run, name) for name in names(PolicyOptions)}
        training = WarmupTrainerOptions(
            output_dir=str(unfinished),
            max_steps=run.warm_start_steps,
            learning_rate=run.warm_start_learning_rate,
            seed=arguments.grpo.seed,
            use_cpu=arguments.grpo.use_cpu,
            bf16=arguments.grpo.bf16,  # one precision per process
        )
        options = WarmupOptions(
            data=run.train_data,
            data_options=run.train_options,
            rollout_chunks=run.rollout_chunks,
            **same,
        )
        warm_up(WarmupRunOptions(options, arguments.agent, training.arguments()), report)
        if state.is_main_process:
            unfinished.rename(target)
        state.wait_for_everyone()
    start: dict[str, Any] = {"model" if run.full_finetuning else "adapter": str(target)}
    return arguments._replace(run=replace(run, warm_start_steps=0, **start))


def build_trainer(arguments: TrainArguments, parts: Parts) -> MemoryGRPOTrainer:
    """Put the trainer together; InputError if there are too few instances, or an option needs a
    missing package.
    """
    run, grpo = arguments.run, arguments.grpo
    splits = grpo.steps_per_generation or 1
    groups = (
        grpo.per_device_train_batch_size * grpo.world_size * splits // (grpo.num_generations or 1)
    )
    InputError.raise_if(
        len(parts.instances) < groups,
        f"{len(parts.instances)} training instances are fewer than the {groups} of one step",
        fix="prepare more instances, or lower per_device_train_batch_size or steps_per_generation",
    )
    try:
        rows = [{"prompt": "", "instance": index} for index in range(len(parts.instances))]
        trainer = MemoryGRPOTrainer(
            model=parts.model,
            args=grpo,
            train_dataset=Dataset.from_list(rows),
            processing_class=parts.tokenizer,
            agent=parts.agent,
            instances=parts.instances,
            scorer=parts.scorer,
            options=run,
            eval_dataset=None
            if grpo.eval_strategy == "no"
            else Dataset.from_list(rows),  # not read: see evaluate
            generator=None if grpo.use_vllm else parts.generator,
        )
    except ImportError as error:  # such as vLLM
        raise InputError(
            f"an option needs a package that is not there: {error}", fix="install it"
        ) from error
    InputError.raise_if(
        grpo.load_best_model_at_end and (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled),
        "load_best_model_at_end with FSDP or DeepSpeed",
        expected="false: weights that are sharded hang when loaded",
    )
    check_sharding(
        sharding_of(trainer.accelerator),
        run.reader,
        grpo.ds3_gather_for_generation or grpo.use_vllm,
        run.load_in_4bit,
    )
    return trainer


def untimed() -> float:
    """Return 0: a resumed run writes the same rows."""
    return 0.0


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


def evaluate_held_out(
    parts: Parts, run: Runner, folder: RunFolder, name: str, report: EventReport, seed: int
) -> list[InstanceRow]:
    """Evaluate held-out instances, split among ranks, into ``held_out/NAME.jsonl``; TrainingAborted
    if too few are scored.
    """
    state, clock, instances = PartialState(), time.time(), parts.held_out
    sampling = Sampling(
        parts.agent.config.max_completion_length,
        parts.eval_temperature,
        seed=seed if parts.eval_temperature else None,
    )

    def tell(done: int, total: int) -> None:
        report(
            "evaluate", {"name": name, "done": done, "total": total, "instances": len(instances)}
        )

    def ingest(chosen: Sequence[Instance]) -> list[SearchedMemory]:
        rollouts = run(chosen, sampling, tell)
        return [rollout_memory(rollout, parts.agent.config.retrieve_k) for rollout in rollouts]

    scorer = ScoringExaminer(parts.scorer)
    mine = instances[state.process_index :: state.num_processes]
    ((_, rows),) = measure(
        ingest,
        mine,
        {"scorer": scorer},
        names=("held out", "policy"),
        seed=seed,
        count=parts.agent.encoder.count,
        clock=untimed,
    )
    if state.num_processes > 1:
        order = {instance.id: index for index, instance in enumerate(instances)}
        rows = sorted(gather_object(rows), key=lambda row: order[row.instance])
    if state.is_main_process:
        folder.write_lines(f"held_out/{name}.jsonl", [row.to_json() for row in rows])
    rollouts = [row.rollout or {} for row in rows]
    errors = [
        part["error"] for rollout in rollouts for part in (*rollout["questions"], *rollout["steps"])
    ]
    check_masked_share(
        sum(math.isnan(row.rewards[TOTAL]) for row in rows),
        len(rows),
        parts.scorer.max_masked_share,
        errors,
    )
    if state.is_main_process:
        report(
            "evaluated",
            {"name": name, "seconds": round(time.time() - clock, 1), **summarise(rows)},
        )
    return rows


class RunCallback(TrainerCallback):  # type: ignore[misc]
    """Writes steps and rollouts to the run folder; saves and stops after a step in which any rank
    received a signal.
    """

    repeated_after = 1.0  # seconds before which a second Ctrl-C is ignored

    def __init__(
        self, trainer: Any, reward_config: RewardConfig, folder: RunFolder, report: EventReport
    ) -> None:
        self.trainer, self.reward_config, self.folder, self.report = (
            trainer,
            reward_config,
            folder,
            report,
        )
        self.signal: signal.Signals | None = None
        self.stopped, self._since = False, 0.0
        self._table: list[
            dict[str, Any]
        ] = []  # some of the last batch's rows, over the whole batch

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """Record the row; the last row, without a loss, is a summary and is skipped."""
        if state.is_world_process_zero and logs and "loss" in logs:
            row = {"step": state.global_step, "max_steps": state.max_steps, **logs}
            if logs.get("skipped") == 1:  # transformers logs a placeholder
                row["loss"] = None
            self.folder.append_line("metrics.jsonl", row)
            self.report("step", row)
            for name in (
                sorted({"wandb", "trackio"} & set(args.report_to)) if args.log_completions else ()
            ):
                tracker, frame = import_module(name), Dataset.from_list(self._table).to_pandas()
                tracker.log(
                    {
                        "rollouts": tracker.Table(dataframe=frame),
                        "train/global_step": state.global_step,
                    }
                )

    def on_validated(self, results: Sequence[InstanceRow]) -> dict[str, float]:
        """Record an evaluation while training; return its means, also by kind of question, without
        their errors.
        """
        found = summarise(results)
        means = {
            name: value
            for name, value in found.items()
            if name not in ("kinds", "operations", "low", "high", "stderr", "n", "masked")
        }
        means |= {f"accuracy_{kind}": data["accuracy"] for kind, data in found["kinds"].items()}
        now = self.trainer.state
        if now.is_world_process_zero:
            row = {
                f"eval_{name}": value
                for name, value in {**means, "stderr": found["stderr"]}.items()
            }
            self.folder.append_line(
                "metrics.jsonl", {"step": now.global_step, "max_steps": now.max_steps, **row}
            )
        return means

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stop after ``early_stopping_patience`` evaluations that were no better than the best
        one.
        """
        name, sign = (
            f"eval_{args.metric_for_best_model.removeprefix('eval_')}",
            1 if args.greater_is_better else -1,
        )
        values = [sign * row[name] for row in state.log_history if name in row]
        patience = self.trainer.options.early_stopping_patience
        InputError.raise_if(
            args.load_best_model_at_end and any(map(math.isnan, values)),
            f"metric_for_best_model is {args.metric_for_best_model!r}, which has no value",
            expected="accuracy",
        )
        if patience and values and len(values) - 1 - values.index(max(values)) >= patience:
            control.should_training_stop = True

    on_train_begin = on_evaluate  # a resumed run may have stopped

    def on_rollouts(
        self, rollouts: Sequence[Rollout], rows: Sequence[TrainingRow], rewards: Sequence[Any]
    ) -> None:
        """Record a step's rollouts."""
        advantage = {(row.rollout_index, row.chunk_index): row.advantage for row in rows}
        size, step = self.trainer.num_generations, self.trainer.state.global_step + 1
        lines = []
        for index, rollout in enumerate(rollouts):
            mine = [advantage[index, step.chunk_index] for step in rollout.steps]
            place = {"step": step, "group": index // size, "rollout": index}
            lines.append(place | rollout_to_json(rollout, rewards[index], self.reward_config, mine))
        self.folder.write_lines(
            trajectory_name(step, self.trainer.accelerator.process_index), lines
        )
        drawn = [
            {"step": step, "instance": line["instance"], **chunk}
            for line in lines
            for chunk in line["steps"]
        ]
        last, wanted = len(drawn) - 1, self.trainer.args.num_completions_to_print or len(drawn)
        places = sorted({place * last // max(wanted - 1, 1) for place in range(wanted)})
        columns = ("step", "instance", "chunk", "text", "completion", "advantage")
        self._table = [
            {name: drawn[i][name] for name in columns} | {"reward": drawn[i]["total"]}
            for i in places
        ]

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM inside the block, if it runs in the main thread."""
        numbers = (
            [signal.SIGINT, signal.SIGTERM]
            if threading.current_thread() is threading.main_thread()
            else []
        )
        before = {number: signal.signal(number, self._handle) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: Any) -> None:
        if self.signal is None:
            self.signal, self._since = signal.Signals(number), time.monotonic()
            logger.warning(
                "%s: saving after this step; Ctrl-C again stops at once", self.signal.name
            )
        elif number == signal.SIGINT and time.monotonic() - self._since >= self.repeated_after:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Request a checkpoint and the end of training; all ranks agree."""
        if self.trainer.sum_over_ranks([self.signal is not None]):
            self.stopped = control.should_save = control.should_training_stop = True


def evaluate(
    arguments: TrainArguments, report: EventReport = lambda event, data: None
) -> dict[str, Any]:
    """Evaluate the named adapter on held-out instances; return the summary. InputError if options,
    files or folder do not fit.
    """
    run, clock = arguments.run, time.time()
    InputError.raise_if(
        not run.eval_data,
        "eval_data is empty",
        expected="held-out instances",
        fix="add --eval_data",
    )
    path = Path(str(arguments.grpo.output_dir))
    if RunFolder.check_free(path, overwrite=run.overwrite):
        check_apart(path, inputs(arguments))
    report("load", {"what": f"{run.model} and {run.eval_data}"})
    arguments, why = settle_dtype(arguments, report)
    parts = build_parts(arguments, training=False)
    folder = RunFolder.create(path, all_options(arguments), overwrite=run.overwrite)
    folder.write_json(
        "environment.json", {**environment(), "dtype": why, "float32_products": float32_products()}
    )

    def runner(
        instances: Sequence[Instance], sampling: Sampling, on_step: StepCallback | None
    ) -> list[Rollout]:
        return run_rollouts(instances, parts.agent, parts.generator, sampling, on_step=on_step)

    results = evaluate_held_out(parts, runner, folder, "rollouts", report, arguments.grpo.seed)
    summary = {
        "model": run.model,
        "adapter": run.adapter,
        "seed": arguments.grpo.seed,
        "seconds": round(time.time() - clock, 1),
        **summarise(results),
    }
    folder.write_json("summary.json", summary)
    return summary


def check_place(arguments: TrainArguments) -> None:
    """Check, before anything is loaded, that the run can use its folder; InputError if it reads
    from the folder it overwrites.
    """
    run, path = arguments.run, Path(str(arguments.grpo.output_dir))
    InputError.raise_if(
        run.warm_start_steps and run.adapter,
        f"warm_start_steps is {run.warm_start_steps}, with the adapter {run.adapter!r}, which would not be used",
        expected="one of the two",
        fix="memalpha warmup --adapter goes on from an adapter",
    )
    if run.resume:
        RunFolder(path)
    elif RunFolder.check_free(path, overwrite=run.overwrite, resumable=True):
        check_apart(path, {**inputs(arguments), "working directory": [str(Path.cwd())]})
    if not path.exists():  # check that it can be made
        make_folder(path)
        path.rmdir()


def settle_dtype(arguments: TrainArguments, report: EventReport) -> tuple[TrainArguments, str]:
    """Replace ``dtype: auto`` by a type, also the same after a resume, and say why it is this
    one.
    """
    run, why = arguments.run, "the run began with it"
    if run.dtype == "auto" and run.resume:
        run = replace(run, dtype=RunFolder(str(arguments.grpo.output_dir)).config["dtype"])
    else:
        run, why = resolve_dtype(run, arguments.grpo.device)
        report("load", {"what": f"the base in {run.dtype} ({why})"})
    return arguments._replace(run=run), f"{run.dtype}: {why}"


def open_folder(arguments: TrainArguments, parts: Parts, dtype: str) -> RunFolder:
    """Make, overwrite or resume the folder of a run, after loading; RunFolderError if it cannot, or
    if options or data differ.
    """
    state, run, path = PartialState(), arguments.run, str(arguments.grpo.output_dir)
    if state.is_main_process:
        config = all_options(arguments)
        here = {
            **environment(state.num_processes),
            "dtype": dtype,
            "float32_products": float32_products(),
            "rollouts_of_a_step": config["per_device_train_batch_size"] * state.num_processes,
            "data": {
                "train_data": digest_instances(parts.instances),
                "eval_data": digest_instances(parts.held_out),
            },
        }
        folder = RunFolder.create(path, config, overwrite=run.overwrite, resume=run.resume)
        if run.resume:
            folder.check_training()
            began = folder.read_json("environment.json")
            check_same(
                {**folder.config, **_beyond_options(began)},
                {**masked(config), **_beyond_options(here)},
            )
            done = max(map(checkpoint_step, checkpoints_in(folder.path)), default=0)
            RunFolderError.raise_if(
                0 < config["max_steps"] < done,
                f"max_steps is {config['max_steps']}, and the run has a checkpoint of step {done}",
                expected=f"{done} or more",
            )
            write_yaml(folder.path / "config.yaml", masked(config))
            here = {**began, "resumed": [*began.get("resumed", []), here]}
        folder.write_json("environment.json", here)
    state.wait_for_everyone()
    return RunFolder(path)


def all_options(arguments: TrainArguments) -> dict[str, Any]:
    """Every option of a run, flat, as ``--config`` takes them; ``overwrite`` and ``resume`` are of
    a command, not of the run.
    """
    rewards = {full_name(reward): weight for reward, weight in arguments.reward.rewards.items()}
    reward = {**asdict(replace(arguments.reward, rewards={})), "rewards": rewards}
    run = replace(arguments.run, overwrite=False, resume=False)
    return {**asdict(run), **asdict(arguments.agent), **reward, **asdict(arguments.trainer)}


def inputs(arguments: TrainArguments) -> dict[str, list[str]]:
    """Names (possibly paths) of the inputs of a run, by option name."""
    run = arguments.run
    return {
        "adapter": [run.adapter],
        "reader_adapter": [run.reader_adapter],
        "model": [run.model],
        "train_data": source_names(run.train_data),
        "eval_data": source_names(run.eval_data),
    }


MAY_CHANGE = frozenset(
    {
        "output_dir",
        "overwrite",
        "resume",
        "max_steps",
        "rows_per_forward",
        "generation_rows",
        "max_masked_share",
        "max_skipped_steps",
        "endpoint_url",
        "endpoint_timeout",
        "endpoint_retries",
        "endpoint_backoff",
        "endpoint_concurrency",
        "judge_url",
        "vllm_urls",
        "vllm_wait",
        "report_to",
        "ddp_timeout",
        "project",
        "per_device_train_batch_size",
    }
)
"""Options that do not change results, only duration and memory use. Rollouts of a step over all processes must stay."""

MAY_CHANGE_FROM = ("save_", "logging_", "log_")  # prefixes of more such options


def _beyond_options(environment: Mapping[str, Any]) -> dict[str, Any]:
    sets = environment.get("data", {}).items()
    digests = {
        f"content of {name}": f"{digest['instances']} instances, sha256 {digest['sha256'][:12]}"
        for name, digest in sets
    }
    return {"rollouts of a step": environment.get("rollouts_of_a_step"), **digests}


def check_same(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise RunFolderError if what changes results differs between the beginning of a run and
    now.
    """
    now = json.loads(json.dumps(now))
    different = [
        f"{name} was {began.get(name, 'not there')!r} and is {now.get(name, 'not there')!r}"
        for name in sorted({*began, *now})
        if began.get(name, ...) != now.get(name, ...)
        and name not in MAY_CHANGE
        and not name.startswith(MAY_CHANGE_FROM)
    ]
    RunFolderError.raise_if(
        different,
        "the run began otherwise: " + "; ".join(different),
        expected="the options and data it began with",
        fix="give the same command; or start a new run from this one's adapter with --adapter RUN/adapter",
    )


def _checkpoint(
    arguments: TrainArguments, folder: RunFolder, state: PartialState, report: EventReport
) -> Path | None:
    found: list[Any] = [None]
    if arguments.run.resume and state.is_main_process:
        found[0], damaged = newest_whole(checkpoints_in(folder.path))
        folder.drop_after(checkpoint_step(found[0]) if found[0] else 0)
        report("resume", {"checkpoint": found[0].name if found[0] else "", "damaged": damaged})
    return broadcast_object_list(found)[0] if state.num_processes > 1 else found[0]  # type: ignore[no-any-return]
