"""Warm start: supervised training on demonstrations of a rule-based teacher, which teach the
tool-call format and every tool.

The loss is the mean of -log p over completion tokens, over packed rows. The result is a LoRA
adapter, or with ``full_finetuning`` a model.
"""

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
)
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

from memalpha.agent.config import AgentConfig
from memalpha.agent.context import check_tokens, context_of, window_of
from memalpha.agent.step import AgentStep
from memalpha.config import OneOf, Share, parse
from memalpha.data.load import load_data, source_names
from memalpha.data.teacher import TeacherConfig
from memalpha.errors import InputError, RunFolderError, TrainingAborted
from memalpha.files import write_object
from memalpha.generation.products import Products, using
from memalpha.generation.small import is_apart
from memalpha.models import name_base, resolve_model, write_adapter_record
from memalpha.plugins import find_plugins, load_plugin, plugin_names
from memalpha.record.folder import (
    SAVED,
    check_made,
    check_reads,
    checkpoints_in,
    holds_something,
    make_folder,
    mask_options,
    remove_made,
)
from memalpha.record.lock import LOCK_FILE, FolderLock
from memalpha.text.encoding import in_common, turn_end
from memalpha.training.build import load_policy, resolve_dtype
from memalpha.training.config import PolicyOptions, TrainerOptions, clear_options
from memalpha.training.demonstrations import demonstrate, demonstrate_reading, rule_based
from memalpha.training.precision import check_scale, check_scaler, check_types, set_float16
from memalpha.training.teacher_start import start_from_teacher
from memalpha.types import EventReport, JsonObject, Operation
from memalpha.update.logps import CompletionRow, packed_logps, split_rows
from memalpha.upstream import FinishedInputs, WithoutArguments

WARMUP_RECORD = "memalpha_warmup.json"
MADE_BY_WARMUP = re.compile(
    rf"(checkpoint-[0-9]+/)?({SAVED})|{re.escape(LOCK_FILE)}|runs/.*tfevents.*"
)
"""The files that the folder of a warm start may hold."""


LESSONS = "memalpha.demonstrations"
"""Group of the entry points for further values of ``teaches``. Each is a function of instances,
agent, TeacherConfig, end token and seed that returns demonstrations, ``update.logps.Row``s;
InputError if the agent's options do not fit.
"""


def lesson_names() -> list[str]:
    """Return the names of all lessons."""
    return plugin_names(LESSONS, ("policy", "reader"))


@dataclass(frozen=True)
class WarmupOptions(PolicyOptions):
    """Options of the data and the model of a warm start.

    Attributes:
        teaches: The demonstrations teach the ``policy``, which writes the memory, the ``reader``,
            which answers questions from passages, or a role that a package adds
            (docs/guides/asker.md).
        data: Demonstrations are made from these instances, given as for ``train_data`` of a
            training run. They come from annotated facts, or from excerpts of the text where there
            are none.
        data_options: A generated source of ``data`` takes these options.
        rollout_chunks: Demonstrations cover at most this many chunks, the last ones, of an instance
            with annotated facts; 0 = all.
        coverage_low: A demonstration keeps at least this share of an instance's facts or sentences,
            from 0 to 1.
        coverage_high: A demonstration keeps at most this share. Each instance draws its own share
            between ``coverage_low`` and this.
        p_correct: A demonstration corrects a changed or retracted fact with this probability (see
            ``TeacherConfig``).
        p_update: A corrected change is an update with this probability, and otherwise a deletion
            and an insertion.
        unknown_share: A reader's examples leave out this share of the passages with the answer, and
            then the right answer is ``unknown``.
        pack_tokens: One forward pass takes at most this many tokens; lower it to save memory. 0 = a
            whole batch.
        overwrite: If true, an existing folder is replaced.
    """

    teaches: Annotated[str, AfterValidator(OneOf(lesson_names))] = "policy"
    data: str = "synthetic"
    data_options: JsonObject = field(default_factory=dict)
    rollout_chunks: NonNegativeInt = 0
    coverage_low: Share = 1.0
    coverage_high: Share = 1.0
    p_correct: Share = 1.0
    p_update: Share = 0.5
    unknown_share: Share = 0.15
    pack_tokens: NonNegativeInt = 1024
    overwrite: bool = False

    def check(self) -> None:
        """Check combinations of options."""
        super().check()
        if not self.data:
            raise InputError(
                "data is empty",
                expected="a prepared folder, a file of instances, or the name of a generated "
                "source",
            )
        if self.teaches != "policy" and self.rollout_chunks:
            raise InputError(
                f"rollout_chunks cannot be used with teaches: {self.teaches}",
                fix="leave rollout_chunks out",
            )


@dataclass(frozen=True)
class WarmupTrainerOptions(TrainerOptions):
    """Options of the trainer with defaults for a warm start."""

    output_dir: str = "runs/warmup"
    per_device_train_batch_size: PositiveInt = 8
    max_steps: Annotated[int, Field(ge=-1)] = 100
    learning_rate: PositiveFloat = 1e-3
    warmup_steps: NonNegativeInt | NonNegativeFloat = 5
    logging_steps: PositiveInt = 5
    save_strategy: Literal["no", "steps", "epoch", False] = "no"
    save_total_limit: PositiveInt | None = None

    def arguments(self) -> TrainingArguments:
        """Return transformers' arguments; processes may differ in their forwards."""
        fixed = {"remove_unused_columns": False, "ddp_broadcast_buffers": False}
        return self.passed_on(TrainingArguments, fixed)


class WarmupRunOptions(NamedTuple):
    """All options of a warm start."""

    warmup: WarmupOptions
    agent: AgentConfig
    training: TrainingArguments


WARMUP_GROUPS = (WarmupOptions, AgentConfig, WarmupTrainerOptions)


def parse_warmup_arguments(arguments: Sequence[str]) -> WarmupRunOptions:
    """Read ``--config FILE`` and overrides; InputError as for ``parse_train_arguments``."""
    warmup, agent, trainer = parse(arguments, WARMUP_GROUPS, "memalpha warmup", kind="train")
    return WarmupRunOptions(warmup, agent, trainer.arguments())


def warm_up(arguments: WarmupRunOptions, report: EventReport = lambda event, data: None) -> Path:
    """Train on demonstrations; return the folder of the adapter (or model); InputError if options
    or folder do not fit.
    """
    training = arguments.training
    target = Path(str(training.output_dir))
    with FolderLock(target, takes=training.process_index == 0) as lock:
        _check_place(target, arguments.warmup)
        make_folder(target)
        lock.take()
        _train(arguments, target, report)
    return target


def _train(arguments: WarmupRunOptions, target: Path, report: EventReport) -> None:
    training = arguments.training
    set_seed(training.seed)
    warmup, why = resolve_dtype(arguments.warmup, training.device)
    if arguments.warmup.dtype == "auto" and warmup.dtype == "float16" and not training.bf16:
        set_float16(training)
    check_types(warmup.dtype, training)
    base = f"{warmup.model} in {warmup.dtype} ({why})"
    report("load", {"what": f"{base} and demonstrations of {warmup.data}"})
    model, tokenizer = load_policy(warmup)
    agent = AgentStep(arguments.agent, tokenizer)
    end = turn_end(tokenizer)
    assert end is not None  # a loaded tokenizer has an end token
    demonstrations, operations = make_demonstrations(warmup, agent, end, training.seed)
    positions = context_of(model.config)
    longest = max(len((*row.prompt_ids, *row.completion_ids)) for row in demonstrations)
    if positions and longest > positions:
        raise InputError(
            f"a demonstration has {longest} tokens, prompt and completion together, "
            f"but the model takes {positions}"
            + (" (its window)" if positions == window_of(model.config) else ""),
            fix="lower view_tokens, or prepare the data with shorter chunks",
        )
    for row in demonstrations:
        check_tokens((*row.prompt_ids, *row.completion_ids), model.config)
    with clear_options():
        WarmupTrainer.get_optimizer_cls_and_kwargs(training, model)
        trainer = WarmupTrainer(
            demonstrations,
            warmup.pack_tokens,
            model=model,
            args=training,
            processing_class=tokenizer,
        )
    if training.process_index == 0:  # an earlier warm start goes, perhaps one of the other kind
        remove_made(target)
    trainer.add_callback(ProgressCallback(report))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    trained = [each for each in model.parameters() if each.requires_grad and not is_apart(each)]
    if not all(each.isfinite().all() for each in trained):
        raise TrainingAborted(
            f"the weights are not finite after step {trainer.state.global_step} of the warm start",
            fix="lower learning_rate",
        )
    name_base(model, warmup.model)
    trainer.save_model(str(target))
    if trainer.is_world_process_zero():
        agent.config.save(target)
        record = {
            "method": "supervised warm start on demonstrations",
            "steps": trainer.state.global_step,
            "seed": training.seed,
            "demonstrations": len(demonstrations),
            "operations": Counter(operation.kind.value for operation in operations),
            "warmup": mask_options(asdict(warmup)),
        }
        write_object(target / WARMUP_RECORD, record)
        if not warmup.full_finetuning:
            base_folder = resolve_model(warmup.model)
            write_adapter_record(target, base_folder, model.config, tokenizer, method="warmup")
    trainer.accelerator.wait_for_everyone()


def _check_place(target: Path, warmup: WarmupOptions) -> None:
    if Path(warmup.model).is_dir() and target.resolve() == Path(warmup.model).resolve():
        raise RunFolderError(
            f"output_dir is {str(target)!r}, the folder of the base model",
            expected="another folder",
        )
    if holds_something(target):
        others = [path for path in target.iterdir() if path.name != LOCK_FILE]
        ours = (target / WARMUP_RECORD).is_file() or set(others) <= set(checkpoints_in(target))
        if not (ours and warmup.overwrite):
            raise RunFolderError(
                f"{str(target)!r} exists already" + ("" if ours else " and holds no warm start"),
                expected="a new folder, or the folder of a warm start",
                fix="add --overwrite" if ours else "choose another --output_dir",
            )
        reads = {
            "model": [warmup.model],
            "adapter": [warmup.adapter],
            "data": source_names(warmup.data),
        }
        check_reads(target, reads)
        check_made(target, MADE_BY_WARMUP, "warm start")


def make_demonstrations(
    warmup: WarmupOptions, agent: AgentStep, end_token: int, seed: int
) -> tuple[list[CompletionRow], list[Operation]]:
    """Return the demonstrations of the options' source, and their operations."""
    instances = load_data(warmup.data, warmup.data_options, seed)
    teacher = TeacherConfig(
        (warmup.coverage_low, warmup.coverage_high),
        p_correct=warmup.p_correct,
        p_update=warmup.p_update,
        dates=agent.config.show_times,
    )
    if warmup.teaches == "reader":
        share = warmup.unknown_share
        return demonstrate_reading(instances, agent, teacher, end_token, seed, share), []
    if warmup.teaches != "policy":
        demonstrations_of = load_plugin(find_plugins(LESSONS)[warmup.teaches])
        return list(demonstrations_of(instances, agent, teacher, end_token, seed)), []
    instances = start_from_teacher(instances, agent, warmup.rollout_chunks, seed)
    demonstrations: list[CompletionRow] = []
    operations: list[Operation] = []
    for row, written in demonstrate(instances, agent, rule_based(teacher), end_token, seed):
        demonstrations.append(row)
        operations.extend(written)
    return demonstrations, operations


class WarmupTrainer(WithoutArguments, FinishedInputs, Trainer):  # type: ignore[misc]
    """``Trainer`` over demonstrations; each forward and backward of ``pack_tokens`` computes their
    common prefix once.
    """

    def __init__(
        self, demonstrations: Sequence[CompletionRow], pack_tokens: int = 1024, **kwargs: Any
    ) -> None:
        self.pack_tokens = pack_tokens
        self._products = Products()  # of frozen weights: only adapters change
        prefix = in_common([tuple(row.prompt_ids) for row in demonstrations])
        rows = [row._replace(shared=min(prefix, row.shared)) for row in demonstrations]
        super().__init__(train_dataset=rows, data_collator=lambda batch: {"rows": batch}, **kwargs)
        check_scaler(self.accelerator)

    def training_step(
        self, model: Any, inputs: JsonObject, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Go forward and backward pack by pack, which bounds the memory; gradients sync once, at
        the end. TrainingAborted if the loss is not finite.
        """
        check_scale(self.accelerator)
        rows: list[CompletionRow] = inputs["rows"]
        count = sum(len(row.completion_ids) for row in rows)
        total = torch.zeros((), device=self.args.device)
        packs = split_rows(rows, self.pack_tokens)
        for pack in packs:
            sync = nullcontext() if pack is packs[-1] else self.accelerator.no_sync(model)
            part = {"rows": [rows[i] for i in pack], "count": count}
            with using(self._products), sync:
                total = total + super().training_step(model, part, num_items_in_batch)
        if self.accelerator.scaler is None and not total.isfinite():
            raise TrainingAborted(  # a scaler skips such a step
                f"the loss of step {self.state.global_step + 1} of the warm start is "
                f"{total.item()}",
                fix="lower learning_rate",
            )
        return total

    def compute_loss(
        self, model: Any, inputs: JsonObject, return_outputs: bool = False, **_: Any
    ) -> torch.Tensor:
        """Sum of -log p over the completion tokens of some rows, by the ``count`` of all."""
        with self.accelerator.autocast():  # the head is computed outside the model's forward
            scores = packed_logps(model, inputs["rows"])
        logps = torch.cat([of_row.logps for of_row in scores])
        loss: torch.Tensor = -logps.sum() / inputs["count"]
        return loss


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Reports every logged row with its step."""

    def __init__(self, report: EventReport) -> None:
        self.report = report

    def on_log(
        self, args: Any, state: Any, control: Any, logs: JsonObject | None = None, **_: Any
    ) -> None:
        """Report a row."""
        if state.is_world_process_zero and logs:
            self.report("warmup", {"step": state.global_step, "max_steps": state.max_steps, **logs})
