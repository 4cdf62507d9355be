"""Options of a training run: one flat YAML file, every value overridable at the command line.

    memalpha train --config configs/train/X.yaml --learning_rate 1e-4

Four groups share one namespace (``memalpha.config``): ``RunOptions``, ``AgentConfig``, ``RewardConfig`` and TRL's ``GRPOConfig``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from trl import GRPOConfig

from memalpha.agent.config import AgentConfig
from memalpha.config import parse
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError
from memalpha.rewards.total import RewardConfig
from memalpha.training.advantages import Grouping, Scale

REPORTERS = ("tensorboard", "wandb", "trackio")
"""Values of ``report_to`` that are also package names."""

SUPPORTED_LOSSES = ("dapo", "grpo", "dr_grpo", "cispo")
MOST_SEED = 2**32 - 1  # numpy's limit

PositiveShare = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class RunOptions(EndpointOptions):
    """Options of data, model and scoring.

    Attributes:
        model: Registered name (see ``memalpha model list``), folder or Hub name of the base model.
        adapter: Folder of the warm-start LoRA adapter to go on from; empty starts a new adapter.
        dtype: Type of the base weights: ``float32``, or ``bfloat16`` for LoRA on GPUs (adapters stay in float32).
        train_data: Prepared folder, ``instances.jsonl`` or a generated source such as ``synthetic``; several separated by commas.
        train_options: Options of a generated source, e.g. ``{n: 400, preset: small}``.
        eval_data: Held-out instances, as ``train_data``; empty evaluates nothing.
        eval_options: As ``train_options``.
        eval_instances: Number of held-out instances evaluated before and after (0 = all).
        eval_temperature: Sampling temperature of the held-out rollouts (0 = greedy).
        lora_r: Rank of a new adapter.
        lora_alpha: Scale of a new adapter.
        full_finetuning: Train all weights instead of an adapter.
        warm_start_steps: Supervised steps on demonstrations of a generated ``train_data`` before GRPO (0 = none).
        warm_start_learning_rate: Their peak learning rate.
        train_layers: Train the adapters of this many top layers only (0 = all): cheaper updates.
        reader: ``recall`` (no model), ``base`` (the frozen base model) or ``endpoint``.
        content_judge: ``facts`` (annotations), ``grounded`` (lexical support), ``auto`` (facts, else grounded) or ``endpoint``.
        question_share: Share of an instance's questions asked in a training step, drawn anew each step; evaluation asks all.
        grouping: Rows compared with one another: ``step`` or ``instance`` (published).
        rows_per_forward: Rows of one forward and backward pass; determines memory use.
        share_prefix: Compute the common prefix of rows once in the update (exact).
        generation_rows: Most rollouts decoded in one batch.
        max_masked_share: Stop if more than this share of a step's rollouts, over all processes, cannot be scored.
        max_skipped_steps: Most steps in a row that may be skipped because the loss or gradient is not finite.
        shuffle_advantages: Permute the advantages: only for the control run of a learning test.
        overwrite: Replace an existing run folder.
        resume: Go on with an existing run folder, from its last complete checkpoint if there is one.
    """

    model: str = "smollm2-135m-instruct"
    adapter: str = ""
    dtype: str = "float32"
    train_data: str = "synthetic"
    train_options: dict[str, Any] = field(default_factory=dict)
    eval_data: str = ""
    eval_options: dict[str, Any] = field(default_factory=dict)
    eval_instances: NonNegativeInt = 0
    eval_temperature: NonNegativeFloat = 0.0
    lora_r: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    full_finetuning: bool = False
    warm_start_steps: NonNegativeInt = 0
    warm_start_learning_rate: PositiveFloat = 1e-3
    train_layers: NonNegativeInt = 0
    reader: Literal["recall", "base", "endpoint"] = "recall"
    content_judge: Literal["facts", "grounded", "auto", "endpoint"] = "grounded"
    question_share: PositiveShare = 1.0
    grouping: Grouping = Grouping.STEP
    rows_per_forward: PositiveInt = 8
    share_prefix: bool = True
    generation_rows: PositiveInt = 64
    max_masked_share: PositiveShare = 0.5
    max_skipped_steps: NonNegativeInt = 3
    shuffle_advantages: bool = False
    overwrite: bool = False
    resume: bool = False

    def check(self) -> None:
        """Check combinations of options; makes clients once to find wrong options before anything is loaded."""
        if self.full_finetuning and self.adapter:
            raise InputError(f"full_finetuning with the adapter {self.adapter!r}", expected="one of the two")
        if self.full_finetuning and self.dtype != "float32":
            raise InputError(
                f"full_finetuning with dtype {self.dtype}",
                expected="float32: a step of 1e-6 is lost in the rounding of a weight of 16 bits",
                fix="set bf16: true, which computes in bfloat16 and keeps the weights that train in float32",
            )
        if self.reader == "endpoint":
            self.reader_client()
        if self.content_judge == "endpoint" or self.has_judge:
            self.judge_client()


@dataclass
class MemoryGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's ``GRPOConfig`` with defaults for chunk-step training.

    ``per_device_train_batch_size`` counts rollouts per process, a multiple of ``num_generations`` (G): 16 = two instances of eight
    rollouts. Defaults that differ from TRL's: fp32, no gradient checkpointing, no KL term, every step logged, no reports to
    services.
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
        """Check what chunk-step training needs in addition to TRL's checks."""
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
        check_trainer(self)
        if self.num_iterations < 1 or (self.steps_per_generation is not None and self.steps_per_generation < 1):
            raise InputError(
                f"num_iterations is {self.num_iterations}, steps_per_generation {self.steps_per_generation}", expected="at least 1"
            )
        if not 0 < self.temperature < math.inf:
            raise InputError(f"temperature is {self.temperature}", expected="a number above 0: the rollouts of a group must differ")
        super().__post_init__()
        if self.scale_rewards not in tuple(Scale):
            raise InputError(f"scale_rewards is {self.scale_rewards!r}", expected=f"one of {', '.join(Scale)}")
        for name in self.report_to or ():
            if name in REPORTERS and not find_spec(name):
                raise InputError(f"report_to names {name}, which is not installed", fix=f"pip install {name}, or report_to: none")


def check_trainer(options: Any) -> None:
    """Raise InputError for options that transformers misreads or checks only after loading."""
    steps = options.max_steps
    if steps < 1 and steps != -1:
        raise InputError(f"max_steps is {steps}", expected="at least 1 step, or -1 for as many as num_train_epochs says")
    if steps == -1 and not options.num_train_epochs > 0:
        raise InputError(f"num_train_epochs is {options.num_train_epochs}", expected="more than 0, or max_steps")
    if not 0 < options.learning_rate < math.inf:
        raise InputError(f"learning_rate is {options.learning_rate}", expected="a number above 0, such as 1e-4")
    if options.per_device_train_batch_size < 1:
        raise InputError(f"per_device_train_batch_size is {options.per_device_train_batch_size}", expected="at least 1")
    if not 0 <= options.seed <= MOST_SEED:
        raise InputError(f"seed is {options.seed}", expected=f"from 0 to {MOST_SEED}")
    if options.eval_strategy not in ("no", False):
        raise InputError(
            f"eval_strategy is {str(options.eval_strategy)!r}", expected="'no': held-out data are read before and after training"
        )


class TrainArguments(NamedTuple):
    """All options of a training run."""

    run: RunOptions
    agent: AgentConfig
    reward: RewardConfig
    grpo: MemoryGRPOConfig


TRAIN_GROUPS = (RunOptions, AgentConfig, RewardConfig, MemoryGRPOConfig)
"""The groups of ``memalpha train`` and ``memalpha rollout``, in the order of ``TrainArguments``."""


def parse_train_arguments(arguments: Sequence[str]) -> TrainArguments:
    """Read ``--config FILE`` and overrides; InputError if a file or a value does not fit."""
    return TrainArguments(*parse(arguments, TRAIN_GROUPS, "memalpha train"))
