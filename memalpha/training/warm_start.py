"""Warm start: supervised training on demonstrations of a rule-based teacher, which teach the
tool-call format and every tool.

The teacher's own calls build the memory in each demonstration, through ``AgentStep``, so prompts
equal those of training. The loss is the mean of -log p over completion tokens, over packed rows.
The result is a LoRA adapter, or with ``full_finetuning`` a model.
"""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

from memalpha.agent.config import AgentConfig
from memalpha.agent.limits import positions_of
from memalpha.agent.step import AgentStep
from memalpha.config import Share, parse
from memalpha.data import toy
from memalpha.data.load import load_data
from memalpha.data.teacher import TeacherConfig, excerpt_operations, teacher_operations
from memalpha.errors import InputError, RunFolderError
from memalpha.generation.products import Products, using
from memalpha.memory.memory import Memory
from memalpha.models import name_base, resolve_model, write_adapter_record
from memalpha.qa.readers import reader_messages
from memalpha.record.folder import holds_something, make_folder, masked
from memalpha.text import chat_ids, in_common
from memalpha.training.build import load_policy
from memalpha.training.checkpoints import WithoutArguments
from memalpha.training.config import PolicyOptions, TrainerOptions
from memalpha.training.dtype import Report, settled
from memalpha.training.opening import begun
from memalpha.training.packed import Row, packed_logps, split_rows
from memalpha.training.readings import make_readings
from memalpha.types import (
    Instance,
    Operation,
    OperationKind,
)

WARMUP_RECORD = "memalpha_warmup.json"

Teacher = Callable[[Instance, int, Memory, random.Random], list[Operation]]
"""Returns the operations of a good agent for the chunk of this index, given the memory."""


@dataclass(frozen=True)
class WarmupOptions(PolicyOptions):
    """Options of the data and the model of a warm start.

    Attributes:
        teaches: What is learned: ``policy`` (which writes the memory) or ``reader`` (which answers
            questions from passages).
        data: As ``train_data`` of a training run; demonstrations come from annotated facts, else
            from excerpts of the text.
        data_options: Options of a generated source.
        rollout_chunks: As in a training run: the chunks before become no demonstrations.
        coverage_low: Least share of an instance's facts or sentences that a demonstration keeps.
        coverage_high: Largest share; each instance draws its own in between.
        p_correct: Share of the changed and retracted facts that a demonstration corrects, see
            ``TeacherConfig``.
        p_update: Share of the corrected changes that are updates; the others are a deletion and an
            insertion.
        corrections_share: Share of demonstrations that update or delete, reached by repeating them
            (0: as they come).
        unknown_share: Share of the passages with the answer that a reader's examples leave out:
            there it is ``unknown``.
        pack_tokens: Tokens of one forward.
        overwrite: Replace an existing folder.
    """

    teaches: Literal["policy", "reader"] = "policy"
    data: str = "synthetic"
    data_options: dict[str, Any] = field(default_factory=dict)
    rollout_chunks: NonNegativeInt = 0
    coverage_low: Share = 1.0
    coverage_high: Share = 1.0
    p_correct: Share = 1.0
    p_update: Share = 0.5
    corrections_share: Annotated[float, Field(ge=0, lt=1)] = 0.0
    unknown_share: Share = 0.15
    pack_tokens: NonNegativeInt = 1024
    overwrite: bool = False

    def check(self) -> None:
        """Check combinations of options."""
        super().check()
        InputError.raise_if(
            not self.data,
            "data is empty",
            expected="a prepared folder, a file of instances, or the name of a generated one",
        )
        InputError.raise_if(
            self.teaches == "reader" and (self.rollout_chunks or self.corrections_share),
            "rollout_chunks or corrections_share with teaches: reader",
            fix="leave both out",
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
    warmup, agent, trainer = parse(arguments, WARMUP_GROUPS, "memalpha warmup")
    return WarmupRunOptions(warmup, agent, trainer.arguments())


def warm_up(arguments: WarmupRunOptions, report: Report = lambda event, data: None) -> Path:
    """Train on demonstrations; return the folder of the adapter (or model); InputError if options
    or folder do not fit.
    """
    training, target = arguments.training, Path(str(arguments.training.output_dir))
    _check_place(target, arguments.warmup)
    make_folder(target)
    set_seed(training.seed)
    warmup, _ = settled(arguments.warmup, training.device, report)
    report("load", {"what": f"{warmup.model} and demonstrations of {warmup.data}"})
    model, tokenizer = load_policy(warmup)
    agent = AgentStep(arguments.agent, tokenizer)
    demonstrations, operations = make_demonstrations(
        warmup, agent, tokenizer.eos_token_id, training.seed
    )
    check_positions(demonstrations, model.config)
    trainer = WarmupTrainer(
        demonstrations, warmup.pack_tokens, model=model, args=training, processing_class=tokenizer
    )
    trainer.add_callback(ProgressCallback(report))
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    name_base(model, warmup.model)
    if trainer.is_world_process_zero():
        for path in target.iterdir():  # files of an earlier warm start, perhaps of the other kind
            if path.is_file():
                path.unlink()
    trainer.save_model(str(target))
    if trainer.is_world_process_zero():
        agent.config.save(target)
        kinds = dict(Counter(operation.kind.value for operation in operations))
        record = {
            "method": "supervised warm start on demonstrations",
            "steps": trainer.state.global_step,
            "seed": training.seed,
            "demonstrations": len(demonstrations),
            "operations": kinds,
            "warmup": masked(asdict(warmup)),
        }
        (target / WARMUP_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if not warmup.full_finetuning:
            write_adapter_record(
                target, resolve_model(warmup.model), model.config, tokenizer, method="warmup"
            )
    trainer.accelerator.wait_for_everyone()
    return target


def _check_place(target: Path, warmup: WarmupOptions) -> None:
    RunFolderError.raise_if(
        Path(warmup.model).is_dir() and target.resolve() == Path(warmup.model).resolve(),
        f"output_dir {str(target)!r} is the base model's folder",
        expected="another folder",
    )
    if holds_something(target):
        ours = (target / WARMUP_RECORD).is_file() or all(
            path.name.startswith("checkpoint-") for path in target.iterdir()
        )
        RunFolderError.raise_if(
            not (ours and warmup.overwrite),
            f"{str(target)!r} exists already" + ("" if ours else " and holds no warm start"),
            expected="a new folder or a warm start's",
            fix="add --overwrite" if ours else "choose another --output_dir",
        )


class Demonstration(NamedTuple):
    """A prompt and the teacher's completion, as token ids; the completion includes the end token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    shared: int


def make_demonstrations(
    warmup: WarmupOptions, agent: AgentStep, end: int, seed: int
) -> tuple[list[Any], list[Operation]]:
    """Return the demonstrations of the options' source, and their operations."""
    instances = load_data(warmup.data, warmup.data_options, seed)
    teacher = TeacherConfig(
        (warmup.coverage_low, warmup.coverage_high),
        p_correct=warmup.p_correct,
        p_update=warmup.p_update,
        dates=agent.config.show_times,
    )
    if warmup.teaches == "reader":
        encode, plain = agent.encoder.tokenizer, agent.encoder.untrusted
        readings = make_readings(instances, agent, seed, warmup.unknown_share, teacher)
        asked = (
            (chat_ids(encode, reader_messages(r.question, r.passages)), plain(r.answer))
            for r in readings
        )
        return [Demonstration(ids, (*answer, end), len(ids)) for ids, answer in asked], []
    started = begun(instances, agent, warmup.rollout_chunks, seed)
    pairs = list(demonstrate(started, agent, partial(_operations, config=teacher), end, seed))
    pairs += _corrections_again(pairs, warmup.corrections_share)
    return [demonstration for demonstration, _ in pairs], [
        operation for _, done in pairs for operation in done
    ]


def _corrections_again(pairs: list[Any], share: float) -> list[Any]:
    """Return as many repeated demonstrations that update or delete as make ``share`` of all;
    InputError if there are none.
    """
    kinds = {OperationKind.UPDATE, OperationKind.DELETE}
    corrections = [
        pair for pair in pairs if not kinds.isdisjoint(operation.kind for operation in pair[1])
    ]
    InputError.raise_if(
        share and not corrections,
        "no demonstration updates or deletes",
        expected=f"corrections_share {share} of them",
        fix="set it to 0",
    )
    missing = round((share * len(pairs) - len(corrections)) / (1 - share))
    return list(islice(cycle(corrections), max(0, missing)))


def _operations(
    instance: Instance, index: int, memory: Memory, rng: random.Random, config: TeacherConfig
) -> list[Operation]:
    if instance.source == toy.SOURCE:
        return toy.toy_teacher_operations(instance, index, memory, rng)
    teach = teacher_operations if instance.facts else excerpt_operations
    return teach(instance, index, memory, rng, config)


def demonstrate(
    instances: Iterable[Instance], agent: AgentStep, teacher: Teacher, end_token: int, seed: int
) -> Iterator[tuple[Demonstration, list[Operation]]]:
    """Yield demonstration and operations of each chunk from ``begin`` on; InputError if it is too
    long or a call fails.
    """
    limit = agent.config.max_completion_length
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        memory = agent.new_memory(instance.held)
        retriever = agent.new_retriever(memory)
        for index, chunk in enumerate(instance.chunks[instance.begin :], instance.begin):
            prompt = agent.prompt(memory, retriever, chunk)
            operations = teacher(instance, index, memory, rng)
            text = agent.write(memory, operations)
            ids = (*agent.encoder.untrusted(text), end_token)
            InputError.raise_if(
                len(ids) > limit,
                f"a demonstration of {instance.id} has {len(ids)} tokens",
                expected=f"at most max_completion_length = {limit}",
                fix="raise max_completion_length",
            )
            outcome = agent.apply(memory, index, chunk, text)
            if failed := [result for result in outcome.results if not result.ok]:
                raise InputError(
                    f"the teacher's call fails on {instance.id}: {failed[0].message}",
                    expected="calls that succeed",
                )
            yield Demonstration(prompt.ids, ids, prompt.shared), operations


def check_positions(demonstrations: Sequence[Demonstration], model_config: Any) -> None:
    """Raise InputError if a demonstration has more tokens than the model was made for."""
    positions = positions_of(model_config)
    longest = max(
        len(demonstration.prompt_ids) + len(demonstration.completion_ids)
        for demonstration in demonstrations
    )
    InputError.raise_if(
        positions and longest > positions,
        f"a demonstration has {longest} tokens, prompt and completion together, and the model takes {positions}",
        fix="lower view_tokens, or prepare the data with shorter chunks",
    )


class WarmupTrainer(WithoutArguments, Trainer):  # type: ignore[misc]
    """``Trainer`` over demonstrations; each forward and backward of ``pack_tokens`` computes their
    common prefix once.
    """

    def __init__(
        self, demonstrations: Sequence[Demonstration], pack_tokens: int = 1024, **kwargs: Any
    ) -> None:
        self.pack_tokens, self._products = (
            pack_tokens,
            Products(),
        )  # of frozen weights: only adapters change
        self.common_prefix = in_common(
            [demonstration.prompt_ids for demonstration in demonstrations]
        )
        super().__init__(
            train_dataset=list(demonstrations), data_collator=lambda rows: {"rows": rows}, **kwargs
        )

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def training_step(
        self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Go forward and backward pack by pack, which bounds the memory; gradients sync once, at
        the end.
        """
        rows, total = inputs["rows"], torch.zeros((), device=self.args.device)
        packs, count = (
            split_rows(self._rows(rows), self.pack_tokens),
            sum(len(row.completion_ids) for row in rows),
        )
        for pack in packs:
            with (
                using(self._products),
                nullcontext() if pack is packs[-1] else self.accelerator.no_sync(model),
            ):
                total = total + super().training_step(
                    model, {"rows": [rows[i] for i in pack], "count": count}, num_items_in_batch
                )
        return total

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, **_: Any
    ) -> torch.Tensor:
        """Mean of -log p over the completion tokens; a part
        has its share of the mean.
        """
        with self.accelerator.autocast():  # the head is computed outside the model's forward
            logps = packed_logps(
                model, self._rows(inputs["rows"]), temperature=1.0, max_tokens=self.pack_tokens
            ).logps
        trained = torch.cat(list(logps))
        loss: torch.Tensor = -trained.sum() / inputs.get("count", len(trained))
        return loss

    def _rows(self, demonstrations: Sequence[Demonstration]) -> list[Row]:
        return [
            Row(d.prompt_ids, d.completion_ids, min(self.common_prefix, d.shared))
            for d in demonstrations
        ]


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Reports every logged row with its step."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def on_log(
        self,
        args: TrainingArguments,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """Report a row."""
        if state.is_world_process_zero and logs:
            self.report("warmup", {"step": state.global_step, "max_steps": state.max_steps, **logs})
