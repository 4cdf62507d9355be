"""Options of a training run: ``RunOptions``, ``AgentConfig``, ``RewardConfig`` and TRL's
``GRPOConfig``, in one flat namespace.
"""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from trl import GRPOConfig

from memalpha.agent.config import AgentConfig
from memalpha.config import Options, Share, names, parse
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError
from memalpha.rewards.total import Reward, RewardConfig
from memalpha.training.rows import Grouping, Scale

logger = logging.getLogger(__name__)

SUPPORTED_LOSSES = ("dapo", "grpo", "dr_grpo", "cispo")

Allowed = Mapping[
    str, tuple[Callable[[Any], bool], str]
]  # for an option, which values fit, and what is expected

TRAINER: Allowed = {
    "max_steps": (
        lambda v: v >= 1 or v == -1,
        "at least 1 step, or -1 for as many as num_train_epochs says",
    ),
    "learning_rate": (lambda v: 0 < v < math.inf, "a number above 0, such as 1e-4"),
    "per_device_train_batch_size": (lambda v: v >= 1, "at least 1"),
    "seed": (lambda v: 0 <= v < 2**32, "from 0 to 2**32 - 1"),
}
"""Options that transformers misreads or checks only after loading."""


def _fixed(reasons: Mapping[str, str]) -> Allowed:
    """Options that must keep GRPOConfig's default: ``{reason: names}``."""
    of = {
        name: (getattr(GRPOConfig, name, None), why)
        for why, names in reasons.items()
        for name in names.split()
    }
    return {
        name: ((lambda was: lambda v: v == was or not (v or was))(d), f"{d!r}: {why}")
        for name, (d, why) in of.items()
    }


VALIDATED = ("accuracy", "reward", "tool_success", "compression", "content")
GRPO: Allowed = {
    "loss_type": (
        lambda v: v in SUPPORTED_LOSSES,
        f"{', '.join(SUPPORTED_LOSSES)}: checked against a loss over unpadded rows",
    ),
    "scale_rewards": (lambda v: v in (*Scale, True, False), f"one of {', '.join(Scale)}"),
    "temperature": (
        lambda v: 0 < v < math.inf,
        "a number above 0: the rollouts of a group must differ",
    ),
    "fp16": (
        lambda v: not v,
        "false: the loss is not scaled as float16 needs; use bf16 or float32",
    ),
    "num_iterations": (lambda v: v >= 1, "at least 1"),
    "steps_per_generation": (lambda v: v is None or v >= 1, "at least 1"),
    "gradient_accumulation_steps": (lambda v: v >= 1, "at least 1"),
    "eval_strategy": (lambda v: v in ("no", False, "steps"), "'no', or 'steps' with eval_steps"),
    "eval_on_start": (lambda v: not v, "false: held-out data are read before training anyway"),
    "save_strategy": (
        lambda v: v != "best",
        "'steps' (save_total_limit keeps the best one besides): --resume needs the newest",
    ),
    "metric_for_best_model": (
        lambda v: str(v).removeprefix("eval_") in VALIDATED,
        f"one of {', '.join(VALIDATED)}",
    ),
    "generation_kwargs": (
        lambda v: not {"seed", "n"} & (v or {}).keys(),
        "neither seed nor n: the draws of a group must differ",
    ),
    "pad_to_multiple_of": (
        lambda v: v in ("auto", None),
        "auto: padding is cut before each forward",
    ),
    **_fixed(
        {
            "the reward is one sum; set weights by name, such as accuracy_weight: 1.0": "reward_weights multi_objective_aggregation",
            "it would be computed over rows_per_forward rows": "top_entropy_quantile entropy_coef use_adaptive_entropy "
            "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
            "every trajectory is in the run folder": "log_multimodal log_unique_prompts log_completions_hub_repo",
            "held-out data are read by memalpha": "per_device_eval_batch_size prediction_loss_only "
            "eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics do_eval "
            "do_predict bf16_full_eval fp16_full_eval label_names num_generations_eval",
            "memalpha writes the prompts and draws the completions": "chat_template_kwargs cache_implementation use_transformers_paged "
            "use_transformers_continuous_batching transformers_continuous_batching_config max_tool_calling_iterations",
            "it is an option of the vLLM server's command": "vllm_model_impl vllm_enable_sleep_mode vllm_gpu_memory_utilization "
            "vllm_max_model_length vllm_tensor_parallel_size",
            "its loss_type is refused": "sapo_temperature_neg sapo_temperature_pos vespo_k_pos vespo_lambda_pos vespo_k_neg "
            "vespo_lambda_neg",
            "the loss of GRPO does not read it": "label_smoothing_factor average_tokens_across_devices",
            "its noise depends on the length of a row, and rows are packed": "neftune_noise_alpha",
            "checkpoints do not hold a moving reference": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
            "seed alone orders the data": "data_seed train_sampling_strategy length_column_name",
            "num_tokens counts them": "include_num_input_tokens_seen",
            "steps_per_generation sets it": "generation_batch_size",
            "it would remove instance": "remove_unused_columns",
            "lower rows_per_forward": "auto_find_batch_size",
            "not tried with packed rows": "torch_compile torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config "
            "parallelism_config",
            "code of a model's repository is never run": "trust_remote_code",
            "SIGTERM saves already": "enable_jit_checkpoint",
            "resume: true goes on from the last complete checkpoint": "resume_from_checkpoint",
        }
    ),
}
WITHOUT_VLLM: Allowed = _fixed(
    {
        "without use_vllm": "min_p repetition_penalty generation_kwargs vllm_mode vllm_structured_outputs_regex vllm_server_base_url "
        "vllm_server_host vllm_server_port vllm_server_timeout vllm_group_port",
    }
)
WITH_VLLM: Allowed = {
    "vllm_mode": (lambda v: v == "server", "'server': vLLM runs beside the training, not inside it")
}
CISPO: Allowed = {
    "epsilon_high": (
        lambda v: v is not None and v >= 1,
        "such as 5.0 (ScaleRL): cispo clips the ratio at it, not at 1 more",
    ),
    **_fixed({"cispo clips at epsilon_high alone": "epsilon delta"}),
}

NOT_INIT = {
    "dtype",
    "torch_dtype",
    "quantization_config",
    "load_in_4bit",
    "load_in_8bit",
    "trust_remote_code",
    "device_map",
}
PositiveShare = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class PolicyOptions(Options):
    """Options of the model and its adapter.

    Attributes:
        model: Registered name (``memalpha.models.MODELS``), folder or Hub name of the base model.
        adapter: Folder of an adapter to go on from, whose rank, scale and layers stay; empty starts
            a new one.
        model_init_kwargs: More arguments of ``from_pretrained``, e.g. ``{revision: v1.0}`` or
            ``{attn_implementation: eager}``. load_in_4bit: Hold the frozen base in 4 bits (NF4,
            double quantisation, products in bfloat16), for LoRA; needs bitsandbytes.
        lora_r: Rank of a new adapter.
        lora_alpha: Scale of a new adapter.
        lora_targets: Layers of a new adapter: ``all-linear`` (all but the head), or ends of names,
            e.g. ``[q_proj, v_proj]``.
        lora_dropout: Share of a new adapter's inputs dropped in updates; completions are drawn
            without, so GRPO wants 0.
        lora_rank_pattern: Other ranks in a new adapter, by the end of a layer's name, e.g.
            ``{down_proj: 32}``; the scale stays.
        full_finetuning: Train all weights instead of an adapter.
        dtype: Type of the base weights: ``float32``, ``bfloat16`` for LoRA (adapters stay in
            float32), or ``auto``: the faster.
    """

    model: str = "smollm2-135m-instruct"
    adapter: str = ""
    model_init_kwargs: dict[str, Any] = field(default_factory=dict)
    load_in_4bit: bool = False
    lora_r: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    lora_targets: list[str] | Literal["all-linear"] = "all-linear"
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    lora_rank_pattern: dict[str, PositiveInt] = field(default_factory=dict)
    full_finetuning: bool = False
    dtype: str = "float32"

    def check(self) -> None:
        """Check combinations of options."""
        other = f"the adapter {self.adapter!r}" if self.adapter else "load_in_4bit"
        InputError.raise_if(
            self.full_finetuning and (self.adapter or self.load_in_4bit),
            f"full_finetuning with {other}",
            expected="one of the two",
        )
        InputError.raise_if(
            self.full_finetuning and self.dtype not in ("float32", "auto"),
            f"full_finetuning with dtype {self.dtype}",
            expected="float32: a step of 1e-6 is lost in the rounding of a weight of 16 bits",
            fix="set bf16: true, which computes in bfloat16 only",
        )
        wrong = NOT_INIT & self.model_init_kwargs.keys()
        InputError.raise_if(
            wrong,
            f"model_init_kwargs holds {', '.join(sorted(wrong))}",
            expected="the options dtype and load_in_4bit",
        )
        InputError.raise_if(
            self.load_in_4bit and not find_spec("bitsandbytes"),
            "load_in_4bit needs bitsandbytes, which is not installed",
            fix="pip install bitsandbytes",
        )


@dataclass(frozen=True)
class RunOptions(PolicyOptions, EndpointOptions):
    """Options of data, model and scoring.

    Attributes:
        train_data: Prepared folder, ``instances.jsonl`` or a generated source such as
            ``synthetic``; several separated by commas.
        train_options: Options of a generated source, e.g. ``{n: 400, preset: small}``.
        rollout_chunks: Most chunks of a training instance with annotated facts that a rollout
            reads, its last ones (0 = all): a
            teacher reads those before, and the rollout begins with its memory.
        rollout_cut: End each of these instances after a chunk drawn from the seed, not its last;
            questions are asked as of then.
        rollout_coverage: Least share of the facts of the chunks before that the memory holds; each
            instance draws its own.
        eval_data: Held-out instances, as ``train_data``; empty evaluates nothing.
        eval_options: As ``train_options``.
        eval_instances: Number of held-out instances evaluated before and after (0 = all).
        eval_temperature: Sampling temperature of the held-out rollouts (0 = greedy).
        validation_instances: Held-out instances kept for validation while training (0 = those of
            before and after).
        early_stopping_patience: Stop after that many validations that were no better than the best
            one (0 = never).
        warm_start_steps: Supervised steps on demonstrations of a generated ``train_data`` before
            GRPO (0 = none).
        warm_start_learning_rate: Their peak learning rate.
        train_layers: Train the adapters of this many top layers only (0 = all): cheaper updates.
        reader: ``recall`` (no model), ``base`` (the frozen base model), ``trained`` (a reader's
            adapter) or ``endpoint``.
        reader_adapter: Folder of the trained reader, on a frozen base of its own.
        content_judge: ``facts`` (annotations), ``grounded`` (lexical support), ``auto`` (facts,
            else grounded) or ``endpoint``.
        question_share: Share of an instance's questions asked in a training step, drawn anew each
            step; evaluation asks all.
        grouping: Rows compared with one another: ``step`` or ``instance`` (published).
        rows_per_forward: Rows of one forward and backward pass; determines memory use.
        share_prefix: Compute the common prefix of rows once in the update (exact).
        generation_rows: Most rollouts decoded in one batch.
        vllm_urls: vLLM servers that draw the rollouts of a LoRA policy, e.g.
            ``[http://localhost:8000/v1]`` (docs/scale.md).
        vllm_wait: Seconds to wait for a vLLM server that went away.
        scoring_parts: Parts in which a batch is drawn: one is scored while the next is drawn (1 =
            no overlap).
        staleness: Batches drawn ahead, before the update of the one at hand (0 = on policy);
            importance weights correct for it.
        max_masked_share: Stop if more than this share of a step's rollouts, over all processes,
            cannot be scored.
        max_skipped_steps: Most steps in a row that may be skipped because the loss or gradient is
            not finite.
        shuffle_advantages: Permute the advantages: only for the control run of a learning test.
        overwrite: Replace an existing run folder.
        resume: Go on with an existing run folder, from its last complete checkpoint if there is
            one.
    """

    train_data: str = "synthetic"
    train_options: dict[str, Any] = field(default_factory=dict)
    rollout_chunks: NonNegativeInt = 0
    rollout_cut: bool = False
    rollout_coverage: Share = 1.0
    eval_data: str = ""
    eval_options: dict[str, Any] = field(default_factory=dict)
    eval_instances: NonNegativeInt = 0
    eval_temperature: NonNegativeFloat = 0.0
    validation_instances: NonNegativeInt = 0
    early_stopping_patience: NonNegativeInt = 0
    warm_start_steps: NonNegativeInt = 0
    warm_start_learning_rate: PositiveFloat = 1e-3
    train_layers: NonNegativeInt = 0
    reader: Literal["recall", "base", "trained", "endpoint"] = "recall"
    reader_adapter: str = ""
    content_judge: Literal["facts", "grounded", "auto", "endpoint"] = "grounded"
    question_share: PositiveShare = 1.0
    grouping: Grouping = Grouping.STEP
    rows_per_forward: PositiveInt = 8
    share_prefix: bool = True
    generation_rows: PositiveInt = 64
    vllm_urls: list[str] = field(default_factory=list)
    vllm_wait: NonNegativeFloat = 300.0
    scoring_parts: PositiveInt = 1
    staleness: NonNegativeInt = 0
    max_masked_share: PositiveShare = 0.5
    max_skipped_steps: NonNegativeInt = 3
    shuffle_advantages: bool = False
    overwrite: bool = False
    resume: bool = False

    @property
    def overlaps(self) -> bool:
        """Whether rollouts are scored in the background."""
        return self.scoring_parts > 1 or self.staleness > 0

    def check(self) -> None:
        """Check combinations of options; makes clients once to find wrong options before anything
        is loaded.
        """
        super().check()
        InputError.raise_if(
            self.full_finetuning and self.vllm_urls,
            "full_finetuning with vllm_urls",
            expected="an adapter, or use_vllm with vllm_mode: server",
        )
        InputError.raise_if(
            (self.rollout_cut or self.rollout_coverage < 1) and not self.rollout_chunks,
            "rollout_cut or rollout_coverage without rollout_chunks",
            expected="how many chunks a rollout reads",
        )
        InputError.raise_if(
            self.overlaps and self.reader == "base",
            f"reader 'base' with scoring_parts {self.scoring_parts} and staleness {self.staleness}",
            expected="another reader: the policy cannot draw and answer at once",
        )
        InputError.raise_if(
            (self.reader == "trained") is not bool(self.reader_adapter),
            f"reader {self.reader} with reader_adapter {self.reader_adapter!r}",
            expected="reader: trained, and the folder of a reader",
        )
        if self.reader == "endpoint":
            self.reader_client()
        if self.content_judge == "endpoint" or self.has_judge:
            self.judge_client()


@dataclass
class MemoryGRPOConfig(GRPOConfig):  # type: ignore[misc]
    """TRL's ``GRPOConfig``, other defaults; ``per_device_train_batch_size`` counts rollouts."""

    output_dir: str | None = field(default="runs/train", metadata={"help": "The run folder."})
    bf16: bool | None = field(default=False, metadata={"help": "Use bfloat16 (GPUs)."})
    gradient_checkpointing: bool = field(default=False, metadata={"help": "Trade time for memory."})
    per_device_train_batch_size: int = field(
        default=16, metadata={"help": "Rollouts a process and optimizer step."}
    )
    num_generations: int | None = field(
        default=8, metadata={"help": "G, the rollouts of one instance."}
    )
    gradient_accumulation_steps: int = field(
        default=1, metadata={"help": "Multiplies per_device_train_batch_size."}
    )
    steps_per_generation: int | None = field(
        default=1, metadata={"help": "Optimizer steps a batch of rollouts."}
    )
    max_completion_length: int | None = field(
        default=1024, metadata={"help": "Longest completion of one chunk, in tokens."}
    )
    learning_rate: float = field(default=1e-6, metadata={"help": "Peak learning rate."})
    beta: float = field(default=0.0, metadata={"help": "KL coefficient; 0 = off."})
    temperature: float = field(
        default=1.0, metadata={"help": "Sampling temperature of the rollouts."}
    )
    logging_steps: float = field(default=1, metadata={"help": "Steps between log lines."})
    report_to: None | str | list[str] = field(
        default="none", metadata={"help": "tensorboard, wandb, trackio, or none."}
    )
    vllm_importance_sampling_mode: str = field(
        default="token_truncate", metadata={"help": "Correction of other rounding."}
    )
    vllm_importance_sampling_clip_max: float = field(
        default=2.0, metadata={"help": "Largest ratio of trained to sampled."}
    )
    max_grad_norm: float = field(default=1.0, metadata={"help": "Gradient clipping, 0 = off."})
    ddp_find_unused_parameters: bool | None = field(
        default=False, metadata={"help": "Every adapter weight gets a gradient."}
    )
    save_total_limit: int | None = field(
        default=2, metadata={"help": "Checkpoints kept, besides the best one."}
    )
    metric_for_best_model: str | None = field(
        default="accuracy", metadata={"help": f"One of {', '.join(VALIDATED)}."}
    )
    log_completions: bool = field(
        default=False, metadata={"help": "Send tables of rollouts to W&B or Trackio."}
    )
    num_completions_to_print: int | None = field(
        default=8, metadata={"help": "Rows of such a table."}
    )
    disable_tqdm: bool | None = field(
        default=True, metadata={"help": "Progress is shown by memalpha."}
    )

    def __post_init__(self) -> None:
        """Check what chunk-step training needs in addition to TRL's checks."""
        cispo = CISPO if self.loss_type == "cispo" else {}
        check_values(
            self, {**TRAINER, **GRPO, **(WITH_VLLM if self.use_vllm else WITHOUT_VLLM), **cispo}
        )
        self._accumulate_at_once()
        generations, rollouts, splits = (
            self.num_generations or 0,
            self.per_device_train_batch_size,
            self.steps_per_generation or 1,
        )
        InputError.raise_if(
            generations < 2 or rollouts * splits % generations,
            f"per_device_train_batch_size is {rollouts}, steps_per_generation {splits}, num_generations {generations}",
            expected="num_generations of at least 2, and a product of the others that is a multiple of it",
        )
        self.given = {
            name: deepcopy(getattr(self, name)) for name in names(type(self))
        }  # before TRL derives others
        self.per_device_eval_batch_size = (
            rollouts * splits
        )  # not used; TRL wants a multiple of num_generations
        super().__post_init__()
        InputError.raise_if(
            self.load_best_model_at_end and self.save_steps != self.eval_steps,
            f"load_best_model_at_end with save_steps {self.save_steps} and eval_steps {self.eval_steps}",
            expected="the same number: the best step needs a checkpoint",
        )
        InputError.raise_if(
            self.log_completions and not {"wandb", "trackio"} & set(self.report_to or ()),
            "log_completions without report_to",
            expected="report_to: wandb or trackio, which get the tables",
        )
        for name in self.report_to or ():
            InputError.raise_if(
                name in ("tensorboard", "wandb", "trackio") and not find_spec(name),
                f"report_to names {name}, which is not installed",
                fix=f"pip install {name}, or report_to: none",
            )

    def _accumulate_at_once(self) -> None:
        """Turn accumulation into larger batches: the same policy draws the same rows, and
        rows_per_forward bounds the memory.
        """
        times, splits = self.gradient_accumulation_steps, self.steps_per_generation
        InputError.raise_if(
            splits and splits % times and times % splits,
            f"steps_per_generation is {splits}, gradient_accumulation_steps {times}",
            expected="multiples",
        )
        if times > 1:
            self.per_device_train_batch_size *= times
            self.steps_per_generation = splits and max(1, splits // times)
            self.gradient_accumulation_steps = 1
            logger.warning(
                "gradient_accumulation_steps %d: a step draws %d rollouts of each process at once",
                times,
                self.per_device_train_batch_size,
            )


def check_values(options: Any, allowed: Allowed) -> None:
    """Raise InputError, which names the option, for a value that does not fit."""
    for name, (fits, expected) in allowed.items():
        InputError.raise_if(
            not fits(getattr(options, name)),
            f"{name} is {getattr(options, name)!r}",
            expected=expected,
        )
    InputError.raise_if(
        options.max_steps == -1 and not options.num_train_epochs > 0,
        f"num_train_epochs is {options.num_train_epochs}",
        expected="more than 0, or max_steps",
    )


class TrainArguments(NamedTuple):
    """All options of a training run."""

    run: RunOptions
    agent: AgentConfig
    reward: RewardConfig
    grpo: MemoryGRPOConfig


TRAIN_GROUPS = (
    RunOptions,
    AgentConfig,
    RewardConfig,
    MemoryGRPOConfig,
)  # in the order of ``TrainArguments``


def parse_train_arguments(
    arguments: Sequence[str], rewards: Mapping[str | Reward, float] | None = None
) -> TrainArguments:
    """Read ``--config FILE``, ``preset: published`` and overrides, and add ``rewards``; InputError
    if something does not fit.
    """
    given = TrainArguments(
        *parse(arguments, TRAIN_GROUPS, "memalpha train", Path(__file__).parent / "presets")
    )
    return given._replace(
        reward=replace(given.reward, rewards={**given.reward.rewards, **(rewards or {})})
    )
