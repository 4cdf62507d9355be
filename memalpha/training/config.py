"""Options of a training run: ``RunOptions``, ``AgentConfig``, ``RewardConfig`` and TRL's ``GRPOConfig``, in one flat namespace."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
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

logger = logging.getLogger(__name__)

SUPPORTED_LOSSES = ("dapo", "grpo", "dr_grpo", "cispo")

Allowed = Mapping[str, tuple[Callable[[Any], bool], str]]  # for an option, which values fit, and what is expected

TRAINER: Allowed = {
    "max_steps": (lambda v: v >= 1 or v == -1, "at least 1 step, or -1 for as many as num_train_epochs says"),
    "learning_rate": (lambda v: 0 < v < math.inf, "a number above 0, such as 1e-4"),
    "per_device_train_batch_size": (lambda v: v >= 1, "at least 1"),
    "seed": (lambda v: 0 <= v < 2**32, "from 0 to 2**32 - 1"),
}
"""Options that transformers misreads or checks only after loading."""

PER_FORWARD = "the default: it would be computed over rows_per_forward rows"
VALIDATED = ("accuracy", "reward", "tool_success", "compression", "content")
GRPO: Allowed = {
    "loss_type": (lambda v: v in SUPPORTED_LOSSES, f"{', '.join(SUPPORTED_LOSSES)}: checked against a loss over unpadded rows"),
    "scale_rewards": (lambda v: v in (*Scale, True, False), f"one of {', '.join(Scale)}"),
    "temperature": (lambda v: 0 < v < math.inf, "a number above 0: the rollouts of a group must differ"),
    "fp16": (lambda v: not v, "false: the loss is not scaled as float16 needs; use bf16 or float32"),
    "num_iterations": (lambda v: v >= 1, "at least 1"),
    "steps_per_generation": (lambda v: v is None or v >= 1, "at least 1"),
    "gradient_accumulation_steps": (lambda v: v >= 1, "at least 1"),
    "eval_strategy": (lambda v: v in ("no", False, "steps"), "'no', or 'steps' with eval_steps"),
    "eval_on_start": (lambda v: not v, "false: held-out data are read before training anyway"),
    "save_strategy": (lambda v: v != "best", "'steps' (save_total_limit keeps the best one besides): --resume needs the newest"),
    "metric_for_best_model": (lambda v: str(v).removeprefix("eval_") in VALIDATED, f"one of {', '.join(VALIDATED)}"),
    "multi_objective_aggregation": (lambda v: v == "sum_then_normalize", "'sum_then_normalize': the reward is one weighted sum"),
    "reward_weights": (lambda v: v is None, "the weights by name, such as accuracy_weight: 1.0"),
    "top_entropy_quantile": (lambda v: v == 1.0, PER_FORWARD),
    "entropy_coef": (lambda v: v == 0.0, PER_FORWARD),
    "use_adaptive_entropy": (lambda v: not v, PER_FORWARD),
    "remove_unused_columns": (lambda v: not v, "false: the column that names the instance would be removed"),
    "log_unique_prompts": (lambda v: not v, "false: a table shows rows of all prompts"),
    "log_completions_hub_repo": (lambda v: v is None, "none: every trajectory is in the run folder"),
    "generation_kwargs": (lambda v: not {"seed", "n"} & (v or {}).keys(), "neither seed nor n: the draws of a group must differ"),
}
WITHOUT_VLLM: Allowed = {
    "min_p": (lambda v: v is None, "none without use_vllm"),
    "repetition_penalty": (lambda v: v == 1.0, "1.0 without use_vllm"),
    "generation_kwargs": (lambda v: not v, "none without use_vllm"),
}
WITH_VLLM: Allowed = {"vllm_mode": (lambda v: v == "server", "'server': vLLM runs beside the training, not inside it")}

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
        validation_instances: Held-out instances kept for validation while training (0 = those of before and after).
        early_stopping_patience: Stop after that many validations that were no better than the best one (0 = never).
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
        vllm_urls: vLLM servers that draw the rollouts of a LoRA policy, e.g. ``[http://localhost:8000/v1]`` (docs/scale.md).
        vllm_wait: Seconds to wait for a vLLM server that went away.
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
    validation_instances: NonNegativeInt = 0
    early_stopping_patience: NonNegativeInt = 0
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
    vllm_urls: list[str] = field(default_factory=list)
    vllm_wait: NonNegativeFloat = 300.0
    max_masked_share: PositiveShare = 0.5
    max_skipped_steps: NonNegativeInt = 3
    shuffle_advantages: bool = False
    overwrite: bool = False
    resume: bool = False

    def check(self) -> None:
        """Check combinations of options; makes clients once to find wrong options before anything is loaded."""
        if self.full_finetuning and (self.adapter or self.vllm_urls):
            said = f"full_finetuning with the adapter {self.adapter!r}" if self.adapter else "full_finetuning with vllm_urls"
            raise InputError(said, expected="an adapter without full_finetuning, or use_vllm with vllm_mode: server")
        if self.full_finetuning and self.dtype != "float32":
            said, why = f"full_finetuning with dtype {self.dtype}", "a step of 1e-6 is lost in the rounding of a weight of 16 bits"
            raise InputError(said, expected=f"float32: {why}", fix="set bf16: true, which computes in bfloat16 only")
        if self.reader == "endpoint":
            self.reader_client()
        if self.content_judge == "endpoint" or self.has_judge:
            self.judge_client()


@dataclass
class MemoryGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's ``GRPOConfig``, other defaults; ``per_device_train_batch_size`` counts rollouts, a multiple of G."""

    output_dir: str | None = field(default="runs/train", metadata={"help": "The run folder."})
    bf16: bool | None = field(default=False, metadata={"help": "Use bfloat16 (GPUs)."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Trade time for memory."})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Rollouts a process: instances x num_generations."})
    num_generations: int | None = field(default=8, metadata={"help": "G, the rollouts of one instance."})
    gradient_accumulation_steps: int = field(default=1, metadata={"help": "Multiplies per_device_train_batch_size."})
    steps_per_generation: int | None = field(default=1, metadata={"help": "Optimizer steps a batch of rollouts."})
    max_completion_length: int | None = field(default=1024, metadata={"help": "Longest completion of one chunk, in tokens."})
    learning_rate: float = field(default=1e-6, metadata={"help": "Peak learning rate."})
    beta: float = field(default=0.0, metadata={"help": "KL coefficient; 0 = off."})
    temperature: float = field(default=1.0, metadata={"help": "Sampling temperature of the rollouts."})
    logging_steps: float = field(default=1, metadata={"help": "Steps between log lines."})
    report_to: None | str | list[str] = field(default="none", metadata={"help": "tensorboard, wandb, trackio, or none."})
    vllm_importance_sampling_mode: str = field(default="token_truncate", metadata={"help": "Correction of other rounding."})
    vllm_importance_sampling_clip_max: float = field(default=2.0, metadata={"help": "Largest ratio of trained to sampled."})
    max_grad_norm: float = field(default=1.0, metadata={"help": "Gradient clipping, 0 = off."})
    ddp_find_unused_parameters: bool | None = field(default=False, metadata={"help": "Every adapter weight gets a gradient."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept, besides the best one."})
    metric_for_best_model: str | None = field(default="accuracy", metadata={"help": f"One of {', '.join(VALIDATED)}."})
    log_completions: bool = field(default=False, metadata={"help": "Send tables of rollouts to W&B or Trackio."})
    num_completions_to_print: int | None = field(default=8, metadata={"help": "Rows of such a table."})
    disable_tqdm: bool | None = field(default=True, metadata={"help": "Progress is shown by memalpha."})

    def __post_init__(self) -> None:
        """Check what chunk-step training needs in addition to TRL's checks."""
        check_values(self, {**TRAINER, **GRPO, **(WITH_VLLM if self.use_vllm else WITHOUT_VLLM)})
        self._accumulate_at_once()
        generations, rollouts = self.num_generations or 0, self.per_device_train_batch_size
        if generations < 2 or rollouts % generations:
            said = f"per_device_train_batch_size is {rollouts}, num_generations {generations}"
            raise InputError(said, expected="num_generations of at least 2, and a batch size that is a multiple of it")
        self.per_device_eval_batch_size = rollouts  # not used; TRL wants a multiple of num_generations
        super().__post_init__()
        if self.load_best_model_at_end and self.save_steps != self.eval_steps:
            said = f"load_best_model_at_end with save_steps {self.save_steps} and eval_steps {self.eval_steps}"
            raise InputError(said, expected="the same number: the best step needs a checkpoint")
        if self.log_completions and not {"wandb", "trackio"} & set(self.report_to or ()):
            raise InputError("log_completions without report_to", expected="report_to: wandb or trackio, which get the tables")
        for name in self.report_to or ():
            if name in ("tensorboard", "wandb", "trackio") and not find_spec(name):
                raise InputError(f"report_to names {name}, which is not installed", fix=f"pip install {name}, or report_to: none")

    def _accumulate_at_once(self) -> None:
        """Turn accumulation into larger batches: the same policy draws the same rows, and rows_per_forward bounds the memory."""
        times, splits = self.gradient_accumulation_steps, self.steps_per_generation
        if splits and splits % times and times % splits:
            raise InputError(f"steps_per_generation is {splits}, gradient_accumulation_steps {times}", expected="multiples")
        if times > 1:
            self.per_device_train_batch_size *= times
            self.steps_per_generation = splits and max(1, splits // times)
            self.gradient_accumulation_steps = 1
            told = "gradient_accumulation_steps %d: a step draws %d rollouts of each process at once"
            logger.warning(told, times, self.per_device_train_batch_size)


def check_values(options: Any, allowed: Allowed) -> None:
    """Raise InputError, which names the option, for a value that does not fit."""
    for name, (fits, expected) in allowed.items():
        if not fits(getattr(options, name)):
            raise InputError(f"{name} is {getattr(options, name)!r}", expected=expected)
    if options.max_steps == -1 and not options.num_train_epochs > 0:
        raise InputError(f"num_train_epochs is {options.num_train_epochs}", expected="more than 0, or max_steps")


class TrainArguments(NamedTuple):
    """All options of a training run."""

    run: RunOptions
    agent: AgentConfig
    reward: RewardConfig
    grpo: MemoryGRPOConfig


TRAIN_GROUPS = (RunOptions, AgentConfig, RewardConfig, MemoryGRPOConfig)  # in the order of ``TrainArguments``


def parse_train_arguments(arguments: Sequence[str]) -> TrainArguments:
    """Read ``--config FILE`` and overrides; InputError if a file or a value does not fit."""
    return TrainArguments(*parse(arguments, TRAIN_GROUPS, "memalpha train"))
