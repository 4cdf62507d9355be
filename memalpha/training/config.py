"""Options of a training run: one flat YAML file, every value overridable at the command line, as TRL's own parser does.

    memalpha train --config configs/train/X.yaml --learning_rate 1e-4

Four groups of options make one namespace: the data and model (``RunArguments``), how the agent reads and writes
(``AgentArguments``), the reward (``memalpha.rewards.total.RewardConfig``) and everything of TRL's ``GRPOConfig``
(``MemoryGRPOConfig``, with defaults of our own).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from trl import GRPOConfig, TrlParser

from memalpha.agent.config import AgentConfig
from memalpha.endpoints import EndpointArguments
from memalpha.errors import InputError
from memalpha.retrieval.config import RetrievalConfig, RetrievalMode
from memalpha.rewards.total import RewardConfig
from memalpha.training.advantages import Scale
from memalpha.training.options import as_texts, check_file, check_flags, check_least, check_rate, check_training

REPORTERS = ("tensorboard", "wandb", "trackio")
"""Packages that ``report_to`` asks for by their own names."""

SUPPORTED_LOSSES = ("dapo", "grpo", "dr_grpo", "cispo")


@dataclass
class RunArguments(EndpointArguments):
    """What is trained on what, and how it is scored; the servers it asks are ``EndpointArguments``.

    Attributes:
        model: Registered name (see ``memalpha model list``), folder or Hub name of the base model.
        adapter: Folder of the warm-start LoRA adapter to go on from; empty starts a new adapter.
        dtype: Type of the base weights: ``float32``, or ``bfloat16`` for LoRA on GPUs (adapters stay in float32).
        train_data: Prepared folder, ``instances.jsonl``, or the name of a generated source such as ``synthetic``; several with
            commas in between, whose instances are spread evenly over the steps.
        train_options: Options of a generated source, e.g. ``{n: 400, preset: small}``.
        eval_data: As ``train_data``, for the held-out instances; empty evaluates nothing.
        eval_options: As ``train_options``.
        eval_instances: How many held-out instances are evaluated before and after (0 = all).
        eval_temperature: Sampling temperature of the held-out rollouts (0 = greedy).
        lora_r: Rank of a new adapter.
        lora_alpha: Scale of a new adapter.
        full_finetuning: Train all weights instead of an adapter.
        warm_start_steps: Supervised steps on demonstrations of a generated ``train_data`` before GRPO (0 = none).
        warm_start_learning_rate: Their peak learning rate.
        train_layers: Train the adapters of the top layers only, so many of them (0 = all): cheaper updates.
        reader: ``recall`` (no model), ``base`` (the frozen base model) or ``endpoint``.
        reader_tokens: Budget of what a reader sees, in tokens.
        retrieve_k: How many entries are retrieved for a question.
        content_judge: Who judges writes: ``facts`` (annotations of generated data), ``grounded`` (lexical support), ``auto``
            (``facts`` where an instance has any, else ``grounded``) or ``endpoint``.
        question_share: Share of an instance's questions that a training step asks, drawn anew each step; evaluation asks all.
        grouping: Rows compared with one another: ``step`` or ``instance`` (published).
        rows_per_forward: Rows of one forward and backward pass; what memory depends on.
        share_prefix: Compute the common prefix of rows once in the update (exact).
        generation_rows: Most rollouts decoded in one batch.
        max_masked_share: Share of a step's rollouts, over all processes, with something unscorable past which the run is stopped.
        max_skipped_steps: Steps in a row whose loss or gradient is not finite that are skipped before the run is stopped.
        shuffle_advantages: Permute the advantages: the control of a learning test, never a training option.
        log_rollouts: Steps between rollouts shown in the terminal (0 = none).
        overwrite: Replace an existing run folder.
        resume: Go on with an existing run folder, from its last whole checkpoint if there is one.
    """

    model: str = "smollm2-135m-instruct"
    adapter: str = ""
    dtype: str = "float32"
    train_data: str = "synthetic"
    train_options: None | str | dict[str, Any] = None  # in this order: the parser takes the second as its type
    eval_data: str = ""
    eval_options: None | str | dict[str, Any] = None  # in this order: the parser takes the second as its type
    eval_instances: int = 0
    eval_temperature: float = 0.0
    lora_r: int = 16
    lora_alpha: int = 32
    full_finetuning: bool = False
    warm_start_steps: int = 0
    warm_start_learning_rate: float = 1e-3
    train_layers: int = 0
    reader: str = "recall"
    reader_tokens: int = 256
    retrieve_k: int = 10
    content_judge: str = "grounded"
    question_share: float = 1.0
    grouping: str = "step"
    rows_per_forward: int = 8
    share_prefix: bool = True
    generation_rows: int = 64
    max_masked_share: float = 0.5
    max_skipped_steps: int = 3
    shuffle_advantages: bool = False
    log_rollouts: int = 0
    overwrite: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        """Check values that no type checks."""
        as_texts(self)
        for name, allowed in {
            "reader": ("recall", "base", "endpoint"),
            "content_judge": ("facts", "grounded", "auto", "endpoint"),
            "grouping": ("step", "instance"),
        }.items():
            if getattr(self, name) not in allowed:
                raise InputError(f"{name} is {getattr(self, name)!r}", expected=f"one of {', '.join(allowed)}")
        check_least(self, rows_per_forward=1, generation_rows=1, lora_r=1, lora_alpha=1, retrieve_k=1, reader_tokens=1)
        check_least(self, eval_instances=0, warm_start_steps=0, train_layers=0, max_skipped_steps=0, log_rollouts=0)
        if not 0 <= self.eval_temperature < math.inf:
            raise InputError(f"eval_temperature is {self.eval_temperature}", expected="a number of 0 (greedy) or more")
        check_rate("warm_start_learning_rate", self.warm_start_learning_rate)
        for name in ("max_masked_share", "question_share"):
            if not 0 < getattr(self, name) <= 1:
                raise InputError(f"{name} is {getattr(self, name)}", expected="a share in (0, 1]")
        self.judge_extra = self.endpoint_extra if self.judge_extra is None else self.judge_extra
        for name in ("train_options", "eval_options", "endpoint_extra", "judge_extra"):
            setattr(self, name, as_mapping(name, getattr(self, name)))
        if self.reader == "endpoint":
            self.reader_client()  # made once here, so that a wrong option is found before anything is loaded
        if self.content_judge == "endpoint" or self.has_judge_endpoint:
            self.judge_client()


def as_mapping(name: str, value: dict[str, Any] | str | None) -> dict[str, Any]:
    """Return a mapping given as such, as YAML text (at the command line), or not at all; InputError for anything else."""
    try:
        parsed = yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError:
        parsed = value
    if parsed is None:
        return {}
    if not isinstance(parsed, dict):
        raise InputError(f"{name} is {value!r}", expected="a mapping such as {n: 400}")
    return parsed


@dataclass
class AgentArguments:
    """How the agent reads and writes; see ``memalpha.agent.config.AgentConfig``. Completions end at ``max_completion_length``.

    Attributes:
        schema: Preset name or YAML path of the memory schema.
        codec: ``compact``, ``compact_text`` or ``hermes``.
        max_chunk_tokens: Longest chunk accepted, in tokens.
        view_tokens: Budget of the memory shown while writing, in tokens.
        view_recent: How many of the newest entries the view prefers.
        view_related: Whether the view also shows the entries most related to the chunk (published: the newest alone).
        show_times: Whether the view shows times.
        retrieval: ``lexical``, ``dense`` or ``hybrid``.
        embedder: Embedder of ``dense`` and ``hybrid``.
        sections_kept: Sections that layer 1 keeps (0 = all).
        router: Trained section router that layer 1 asks (empty = the built-in ranking).
    """

    schema: str = "mem_alpha"
    codec: str = "hermes"
    max_chunk_tokens: int = 2048
    view_tokens: int = 1024
    view_recent: int = 5
    view_related: bool = True
    show_times: bool = True
    retrieval: str = "lexical"
    embedder: str = "minilm"
    sections_kept: int = 0
    router: str = ""

    def __post_init__(self) -> None:
        """Check values that no type checks."""
        as_texts(self)
        if self.retrieval not in tuple(RetrievalMode):
            raise InputError(f"retrieval is {self.retrieval!r}", expected=f"one of {', '.join(RetrievalMode)}")
        if not self.schema:
            raise InputError("schema is empty", expected="the name of a memory schema, or a YAML file")

    def config(self, max_new_tokens: int) -> AgentConfig:
        """Return the agent's configuration."""
        retrieval = RetrievalConfig(
            mode=RetrievalMode(self.retrieval), embedder=self.embedder, sections_kept=self.sections_kept, router=self.router
        )
        return AgentConfig(
            schema=self.schema,
            codec=self.codec,
            max_chunk_tokens=self.max_chunk_tokens,
            view_tokens=self.view_tokens,
            view_recent=self.view_recent,
            view_related=self.view_related,
            max_new_tokens=max_new_tokens,
            show_times=self.show_times,
            retrieval=retrieval,
        )


@dataclass
class MemoryGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's ``GRPOConfig`` with defaults that fit chunk-step training.

    ``per_device_train_batch_size`` counts rollouts a process and must be a multiple of ``num_generations`` (G): two instances of
    eight rollouts are 16. Departures from TRL's defaults: fp32 and no gradient checkpointing unless asked for (bf16 is slower
    than fp32 on CPUs without AMX), no KL term, every step logged, nothing reported to outside services.
    """

    output_dir: str | None = field(default="runs/train", metadata={"help": "The run folder."})
    bf16: bool | None = field(default=False, metadata={"help": "Use bfloat16 (GPUs)."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Trade time for memory."})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Rollouts a process: instances x num_generations."})
    num_generations: int | None = field(default=8, metadata={"help": "G, the rollouts of one instance."})
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "Keep 1; memory is set by rows_per_forward."})
    steps_per_generation: int | None = field(default=1, metadata={"help": "Optimizer steps a batch of rollouts."})
    max_completion_length: int | None = field(default=1024, metadata={"help": "Longest completion of one chunk, in tokens."})
    learning_rate: float = field(default=1e-6, metadata={"help": "Peak learning rate."})
    beta: float = field(default=0.0, metadata={"help": "KL coefficient; 0 = off."})
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of the rollouts."})
    logging_steps: float = field(default=1, metadata={"help": "Steps between log lines."})
    report_to: None | str | list[str] = field(default="none", metadata={"help": "tensorboard, wandb, trackio, or none."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Gradient clipping, 0 = off."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Every adapter weight gets a gradient."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "Progress is shown by memalpha."})

    def __post_init__(self) -> None:
        """Check what chunk-step training needs on top of TRL's own checks."""
        if self.loss_type not in SUPPORTED_LOSSES:
            raise InputError(
                f"loss_type is {self.loss_type!r}",
                expected=f"one of {', '.join(SUPPORTED_LOSSES)}",
                fix="bnpo would depend on how rows are packed; the others have not been checked against an unpadded loss",
            )
        if self.gradient_accumulation_steps != 1:
            raise InputError(
                f"gradient_accumulation_steps is {self.gradient_accumulation_steps}",
                expected="1: a step's rows are already processed rows_per_forward at a time",
                fix="raise per_device_train_batch_size instead; memory does not grow with it",
            )
        generations = self.num_generations or 0
        if generations < 2 or self.per_device_train_batch_size % generations:
            raise InputError(
                f"per_device_train_batch_size is {self.per_device_train_batch_size}, num_generations {generations}",
                expected="num_generations of at least 2, and a batch size that is a multiple of it",
            )
        check_training(self)
        check_least(self, num_iterations=1)
        if self.steps_per_generation is not None:
            check_least(self, steps_per_generation=1)
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}", expected="a number above 0: the rollouts of a group must differ")
        super().__post_init__()
        if self.scale_rewards not in tuple(Scale):
            raise InputError(f"scale_rewards is {self.scale_rewards!r}", expected=f"one of {', '.join(Scale)}")
        for name in self.report_to or ():
            if name in REPORTERS and not find_spec(name):
                raise InputError(f"report_to names {name}, which is not installed", fix=f"pip install {name}, or report_to: none")


class TrainArguments(NamedTuple):
    """All options of a training run."""

    run: RunArguments
    agent: AgentArguments
    reward: RewardConfig
    grpo: MemoryGRPOConfig


def parse_train_arguments(arguments: Sequence[str]) -> TrainArguments:
    """Read ``--config FILE`` and overrides.

    Raises:
        InputError: If the file is missing, is no YAML mapping, or holds an option that does not exist; or a value does not fit.
    """
    return TrainArguments(
        *parse_options(arguments, [RunArguments, AgentArguments, RewardConfig, MemoryGRPOConfig], "memalpha train")
    )


def parse_options(arguments: Sequence[str], groups: Sequence[type], program: str) -> tuple[Any, ...]:
    """Read ``--config FILE`` and overrides into one object of each dataclass of ``groups``.

    Raises:
        InputError: If the file is missing, is no YAML mapping, or holds an option that does not exist; or a value does not fit.
    """
    arguments = [word for given in arguments for word in (given.split("=", 1) if given.startswith("--config=") else (given,))]
    flags = arguments
    if "--config" in arguments:
        at = arguments.index("--config") + 1
        check_file(Path(arguments[at]) if at < len(arguments) else Path(), groups, program)
        flags = arguments[: at - 1] + arguments[at + 1 :]
    parser = TrlParser(list(groups), prog=program, allow_abbrev=False)
    check_flags(parser.parse_known_args(flags)[1], groups, program)
    try:
        return tuple(parser.parse_args_and_config(arguments))
    except InputError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(f"the options do not fit: {error}", expected=f"options that {program} --options lists") from error
