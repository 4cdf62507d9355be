"""Warm start: supervised training on demonstrations of a rule-based teacher, which teach the tool-call format and every tool.

The teacher's own calls build the memory in each demonstration, through ``AgentStep``, so prompts equal those of training. The loss
is the mean of -log p over completion tokens, over rows packed without padding (``memalpha.training.packed``). transformers'
``Trainer`` does the rest. The result is a LoRA adapter, or with ``full_finetuning`` a model.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, get_peft_model
from pydantic import NonNegativeInt, PositiveInt
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments, set_seed

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep, positions_of
from memalpha.config import Options, Share, parse
from memalpha.data import toy
from memalpha.data.excerpts import ExcerptConfig, excerpt_operations
from memalpha.data.load import load_data
from memalpha.data.teacher import TeacherConfig, teacher_operations
from memalpha.errors import InputError, RunFolderError
from memalpha.memory.memory import Memory
from memalpha.models import ADAPTER_RECORD, load_policy_model, name_base, resolve_model, write_adapter_record
from memalpha.provenance import masked
from memalpha.runs import holds_something, make_folder
from memalpha.training.config import check_trainer
from memalpha.training.packed import Row, packed_logps
from memalpha.types import Instance, Operation

WARMUP_RECORD = "memalpha_warmup.json"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.*", ADAPTER_RECORD)
_MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")

Report = Callable[[str, dict[str, Any]], None]


@dataclass(frozen=True)
class WarmupOptions(Options):
    """Options of the data and the model of a warm start.

    Attributes:
        model: Registered name, folder or Hub name of the base model.
        adapter: Folder of an adapter to go on from, whose rank and scale stay; empty starts a new one.
        data: As ``train_data`` of a training run; demonstrations come from annotated facts, else from excerpts of the text.
        data_options: Options of a generated source.
        coverage_low: Least share of an instance's facts or sentences that a demonstration keeps.
        coverage_high: Largest share; each instance draws its own in between.
        p_correct: Share of the changed and retracted facts that a demonstration corrects, see ``TeacherConfig``.
        p_update: Share of the corrected changes that are updates; the others are a deletion and an insertion.
        lora_r: Rank of the adapter.
        lora_alpha: Scale of the adapter.
        full_finetuning: Train all weights instead of an adapter.
        pack_tokens: Tokens of one forward.
        overwrite: Replace an existing folder.
    """

    model: str = "smollm2-135m-instruct"
    adapter: str = ""
    data: str = "synthetic"
    data_options: dict[str, Any] = field(default_factory=dict)
    coverage_low: Share = 1.0
    coverage_high: Share = 1.0
    p_correct: Share = 1.0
    p_update: Share = 0.5
    lora_r: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    full_finetuning: bool = False
    pack_tokens: NonNegativeInt = 1024
    overwrite: bool = False


@dataclass
class WarmupTrainingArguments(TrainingArguments):  # type: ignore[misc]
    """transformers' ``TrainingArguments`` with defaults for a warm start."""

    output_dir: str | None = field(default="runs/warmup", metadata={"help": "Folder of the adapter."})
    per_device_train_batch_size: int = field(default=8, metadata={"help": "Demonstrations a process and step."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Peak learning rate."})
    max_steps: int = field(default=100, metadata={"help": "Steps."})
    warmup_steps: float = field(default=5, metadata={"help": "Steps of rising learning rate."})
    logging_steps: float = field(default=5, metadata={"help": "Steps between log lines."})
    save_strategy: str = field(default="no", metadata={"help": "Checkpoints on the way."})
    report_to: None | str | list[str] = field(default="none", metadata={"help": "tensorboard, wandb, trackio, or none."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Keep false."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "Progress is shown by memalpha."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Every trained weight gets a gradient."})

    def __post_init__(self) -> None:
        """Check values that transformers would misread."""
        check_trainer(self)
        super().__post_init__()


class WarmupRunOptions(NamedTuple):
    """All options of a warm start."""

    warmup: WarmupOptions
    agent: AgentConfig
    training: WarmupTrainingArguments


WARMUP_GROUPS = (WarmupOptions, AgentConfig, WarmupTrainingArguments)
"""The groups of ``memalpha warmup``, in the order of ``WarmupRunOptions``."""


def parse_warmup_arguments(arguments: Sequence[str]) -> WarmupRunOptions:
    """Read ``--config FILE`` and overrides; InputError as for ``parse_train_arguments``."""
    return WarmupRunOptions(*parse(arguments, WARMUP_GROUPS, "memalpha warmup"))


def warm_up(arguments: WarmupRunOptions, report: Report = lambda event, data: None) -> Path:
    """Train on demonstrations, save, and return the folder of the adapter (or model).

    InputError if an option, model or source does not fit. RunFolderError if the folder exists without ``overwrite``, is no warm
    start's, is the base model's, or cannot be made.
    """
    warmup, training = arguments.warmup, arguments.training
    target = Path(str(training.output_dir))
    if holds_something(target):
        _check_replaceable(target, overwrite=warmup.overwrite)
    if Path(warmup.model).is_dir() and target.resolve() == Path(warmup.model).resolve():
        raise RunFolderError(f"output_dir {str(target)!r} is the base model's folder", expected="another folder")
    make_folder(target)
    set_seed(training.seed)
    report("load", {"what": f"{warmup.model} and demonstrations of {warmup.data}"})
    if warmup.full_finetuning and warmup.adapter:
        raise InputError(f"full_finetuning with the adapter {warmup.adapter!r}", expected="one of the two")
    policy = load_policy_model(warmup.model, adapter=warmup.adapter or None, trainable=True)
    agent = AgentStep(arguments.agent, policy.tokenizer)
    demonstrations, operations = make_demonstrations(warmup, agent, policy.tokenizer.eos_token_id, training.seed)
    model = policy.model
    check_positions(demonstrations, model.config)
    if not warmup.full_finetuning and not warmup.adapter:
        lora = LoraConfig(r=warmup.lora_r, lora_alpha=warmup.lora_alpha, target_modules="all-linear", task_type="CAUSAL_LM")
        model = get_peft_model(model, lora)
    trainer = WarmupTrainer(
        demonstrations,
        common_prefix(demonstrations),
        warmup.pack_tokens,
        model=model,
        args=training,
        processing_class=policy.tokenizer,
        callbacks=[ProgressCallback(lambda row: report("warmup", row))],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    name_base(model, warmup.model)
    if trainer.is_world_process_zero():
        _drop_other_kind(target, whole=warmup.full_finetuning)
    trainer.save_model(str(target))
    if trainer.is_world_process_zero():
        agent.config.save(target)
        record = {
            "method": "supervised warm start on demonstrations",
            "steps": trainer.state.global_step,
            "seed": training.seed,
            "demonstrations": len(demonstrations),
            "operations": dict(Counter(operation.kind.value for operation in operations)),
            "warmup": masked(asdict(warmup)),
        }
        (target / WARMUP_RECORD).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        if not warmup.full_finetuning:
            write_adapter_record(target, resolve_model(warmup.model), policy.model.config, policy.tokenizer, method="warmup")
    trainer.accelerator.wait_for_everyone()
    return target


def _check_replaceable(target: Path, *, overwrite: bool) -> None:
    """Raise RunFolderError unless the folder is a warm start's, finished or not, and ``overwrite`` is set."""
    if not (target / WARMUP_RECORD).is_file() and not all(path.name.startswith("checkpoint-") for path in target.iterdir()):
        raise RunFolderError(
            f"{str(target)!r} exists already and holds no warm start",
            expected="a new folder or a warm start's",
            fix="choose another --output_dir",
        )
    if not overwrite:
        raise RunFolderError(f"{str(target)!r} exists already", expected="a new folder", fix="add --overwrite")


def _drop_other_kind(target: Path, *, whole: bool) -> None:
    """Remove an earlier warm start's files of the other kind (adapter or whole model)."""
    for pattern in _ADAPTER_FILES if whole else _MODEL_FILES:
        for path in target.glob(pattern):
            path.unlink()


def make_demonstrations(
    warmup: WarmupOptions, agent: AgentStep, end_token: int, seed: int
) -> tuple[list[Demonstration], list[Operation]]:
    """Return the demonstrations of the options' source, and their operations."""
    if not warmup.data:
        raise InputError("data is empty", expected="a prepared folder, a file of instances, or the name of a generated one")
    instances = load_data(warmup.data, warmup.data_options, seed)
    pairs = list(demonstrate(instances, agent, _teacher(warmup), end_token, seed))
    return [demonstration for demonstration, _ in pairs], [operation for _, done in pairs for operation in done]


def check_positions(demonstrations: Sequence[Demonstration], model_config: Any) -> None:
    """Raise InputError if a demonstration has more tokens than the model was made for."""
    positions = positions_of(model_config)
    longest = max(len(demonstration.prompt_ids) + len(demonstration.completion_ids) for demonstration in demonstrations)
    if positions and longest > positions:
        raise InputError(
            f"a demonstration has {longest} tokens, prompt and completion together, and the model takes {positions}",
            expected=f"at most {positions} tokens",
            fix="lower view_tokens, or prepare the data with shorter chunks",
        )


def _teacher(warmup: WarmupOptions) -> Teacher:
    """The teacher of each instance: toy task, annotated facts, or plain text."""
    coverage = (warmup.coverage_low, warmup.coverage_high)
    facts = TeacherConfig(coverage, p_correct=warmup.p_correct, p_update=warmup.p_update)
    excerpts = ExcerptConfig(coverage)

    def teach(instance: Instance, index: int, memory: Memory, rng: random.Random) -> list[Operation]:
        if instance.source == toy.SOURCE:
            return toy.toy_teacher_operations(instance, index, memory, rng)
        if instance.facts:
            return teacher_operations(instance, index, memory, rng, facts)
        return excerpt_operations(instance, index, memory, rng, excerpts)

    return teach


class WarmupTrainer(Trainer):  # type: ignore[misc]
    """``Trainer`` over demonstrations; each forward of ``pack_tokens`` computes their common prefix once."""

    def __init__(self, demonstrations: Sequence[Demonstration], common_prefix: int, pack_tokens: int = 1024, **kwargs: Any) -> None:
        self.pack_tokens = pack_tokens
        self.common_prefix = common_prefix
        super().__init__(train_dataset=list(demonstrations), data_collator=lambda rows: {"rows": rows}, **kwargs)

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        return inputs

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        (Path(output_dir or self.args.output_dir) / "training_args.bin").unlink(missing_ok=True)  # may hold hub_token

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], None]:
        """Return the next micro-batches without a token count: each micro-batch has its own mean."""
        return [next(epoch_iterator) for _ in range(num_batches)], None

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """Mean of -log p over the completion tokens of the batch."""
        rows = [Row(d.prompt_ids, d.completion_ids, min(self.common_prefix, d.shared)) for d in inputs["rows"]]
        logps = packed_logps(model, rows, temperature=1.0, max_tokens=self.pack_tokens).logps
        return -torch.cat(list(logps)).mean()


def common_prefix(demonstrations: Sequence[Demonstration]) -> int:
    """Return how many leading prompt ids all demonstrations share."""
    first = demonstrations[0].prompt_ids
    length = len(first)
    for demonstration in demonstrations:
        ids = demonstration.prompt_ids
        while first[:length] != ids[:length]:
            length -= 1
    return length


class ProgressCallback(TrainerCallback):  # type: ignore[misc]
    """Passes every logged row to a function."""

    def __init__(self, report: Callable[[dict[str, Any]], None]) -> None:
        self.report = report

    def on_log(self, args: TrainingArguments, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report the row with its step."""
        if state.is_world_process_zero and logs:
            self.report({"step": state.global_step, "max_steps": state.max_steps, **logs})


Teacher = Callable[[Instance, int, Memory, random.Random], list[Operation]]
"""Returns the operations of a good agent for the chunk of this index, given the memory."""


class Demonstration(NamedTuple):
    """A prompt and the teacher's completion, as token ids; the completion includes the end token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    shared: int


def demonstrate(
    instances: Iterable[Instance], agent: AgentStep, teacher: Teacher, end_token: int, seed: int
) -> Iterator[tuple[Demonstration, list[Operation]]]:
    """Yield one demonstration per chunk and its operations; InputError if it is too long or one of its calls fails."""
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        memory = agent.new_memory()
        retriever = agent.new_retriever(memory)
        for index, chunk in enumerate(instance.chunks):
            prompt = agent.prompt(memory, retriever, chunk)
            operations = teacher(instance, index, memory, rng)
            text = agent.write(memory, operations)
            completion = (*agent.encoder.untrusted(text), end_token)
            if len(completion) > agent.config.max_completion_length:
                raise InputError(
                    f"a demonstration of {instance.id} has {len(completion)} tokens",
                    expected=f"at most max_completion_length = {agent.config.max_completion_length}",
                    fix="raise max_completion_length",
                )
            outcome = agent.apply(memory, index, chunk, text)
            if failed := [result for result in outcome.results if not result.ok]:
                raise InputError(f"the teacher's call fails on {instance.id}: {failed[0].message}", expected="calls that succeed")
            yield Demonstration(prompt.ids, completion, prompt.shared), operations
