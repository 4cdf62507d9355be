"""Options of a training run: ``RunOptions``, ``AgentConfig``, ``RewardConfig`` and TRL's ``GRPOConfig``, in one flat namespace."""

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
from memalpha.training.rows import Grouping, Scale

SUPPORTED_LOSSES = ("dapo", "grpo", "dr_grpo", "cispo")

_PER_FORWARD = "the mean entropy would be that of rows_per_forward rows"
FIXED: dict[str, tuple[Any, str]] = {
    "gradient_accumulation_steps": (1, "a step's rows are already processed rows_per_forward at a time"),
    "multi_objective_aggregation": ("sum_then_normalize", "the reward is one weighted sum"),
    "reward_weights": (None, "the weights have names, such as accuracy_weight"),
    "top_entropy_quantile": (1.0, "the quantile would be that of rows_per_forward rows"),
    "entropy_coef": (0.0, _PER_FORWARD),
    "use_adaptive_entropy": (False, _PER_FORWARD),
    "remove_unused_columns": (False, "the column that names the instance would be removed"),
    "log_completions": (False, "every trajectory is in the run folder"),
}
"""Options of ``GRPOConfig`` that must keep their default, and why."""

VLLM_ONLY: dict[str, Any] = {"min_p": None, "repetition_penalty": 1.0, "generation_kwargs": None}
"""Options that only TRL's own generation knows."""

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
        log_rollouts: Steps between rollouts shown in the terminal (0 = none).
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
    log_rollouts: NonNegativeInt = 0
    overwrite: bool = False
    resume: bool = False

    def check(self) -> None:
        """Check combinations of options; makes clients once to find wrong options before anything is loaded."""
        if self.adapter and (self.full_finetuning or self.warm_start_steps):
            other = "full_finetuning" if self.full_finetuning else "warm_start_steps"
            raise InputError(f"{other} is {getattr(self, other)}, with the adapter {self.adapter!r}", expected="one of the two")
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
        check_trainer(self)
        given = {name: getattr(self, name) for name in (*FIXED, *VLLM_ONLY)}
        for name, (only, reason) in FIXED.items():
            check_value(given[name] == only, name, given[name], f"{only!r}: {reason}")
        for name, only in VLLM_ONLY.items():
            check_value(self.use_vllm or given[name] == only, name, given[name], f"{only!r} without use_vllm")
        if fixed := {"seed", "n"} & (self.generation_kwargs or {}).keys():
            raise InputError(
                f"generation_kwargs sets {', '.join(sorted(fixed))}",
                expected="neither seed nor n: rollouts of a group read the same first prompt, and one draw each must differ",
            )
        unchecked = "; bnpo would depend on how rows are packed, the others were not checked against an unpadded loss"
        check_value(self.loss_type in SUPPORTED_LOSSES, "loss_type", self.loss_type, " or ".join(SUPPORTED_LOSSES) + unchecked)
        generations, rollouts = self.num_generations or 0, self.per_device_train_batch_size
        whole = generations >= 2 and rollouts % generations == 0
        check_value(whole, "per_device_train_batch_size", rollouts, f"a multiple of num_generations {generations} > 1")
        for name in ("num_iterations", "steps_per_generation"):
            check_value(getattr(self, name) is None or getattr(self, name) >= 1, name, getattr(self, name), "at least 1")
        hot = 0 < self.temperature < math.inf
        check_value(hot, "temperature", self.temperature, "a number above 0: the rollouts of a group must differ")
        super().__post_init__()
        check_value(self.scale_rewards in tuple(Scale), "scale_rewards", self.scale_rewards, f"one of {', '.join(Scale)}")
        for name in self.report_to or ():
            if name in ("tensorboard", "wandb", "trackio") and not find_spec(name):
                raise InputError(f"report_to names {name}, which is not installed", fix=f"pip install {name}, or report_to: none")


def check_value(fits: bool, name: str, value: Any, expected: str) -> None:
    """Raise InputError, which names the option, unless its value fits."""
    if not fits:
        raise InputError(f"{name} is {value!r}", expected=expected)


def check_trainer(options: Any) -> None:
    """Raise InputError for options that transformers misreads or checks only after loading."""
    steps, rate = options.max_steps, options.learning_rate
    check_value(steps >= 1 or steps == -1, "max_steps", steps, "at least 1 step, or -1 for as many as num_train_epochs says")
    epochs = options.num_train_epochs
    check_value(steps != -1 or epochs > 0, "num_train_epochs", epochs, "more than 0, or max_steps")
    check_value(0 < rate < math.inf, "learning_rate", rate, "a number above 0, such as 1e-4")
    rows = options.per_device_train_batch_size
    check_value(rows >= 1, "per_device_train_batch_size", rows, "at least 1")
    check_value(0 <= options.seed < 2**32, "seed", options.seed, "from 0 to 2**32 - 1")
    when = options.eval_strategy
    check_value(when in ("no", False), "eval_strategy", str(when), "'no': held-out data are read before and after training")


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
