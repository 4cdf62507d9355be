"""Options of a training run: of the model, the data, the agent, the reward and the trainer.

They share one flat namespace. The trainer is TRL's; its options that act here are listed in
``TrainerOptions`` and ``GRPOOptions``, and those of ``PASSED_ON`` go to it through ``trl: {name:
value}``. Any other is refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_type_hints

import torch
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from transformers import TrainingArguments, get_scheduler
from trl import GRPOConfig

from memalpha.agent.config import AgentConfig
from memalpha.config import OneOf, Options, Share, check_name, names, parse
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError
from memalpha.qa.readers import reader_names
from memalpha.record.folder import mask_options
from memalpha.record.rows import summary_names
from memalpha.rewards import RewardConfig, RewardFunction
from memalpha.training.credit import credit_names, make_credit
from memalpha.training.role import WRITER, make_role, role_names
from memalpha.types import JsonMapping, JsonObject

Loss = Literal["dapo", "grpo", "dr_grpo", "cispo"]
"""Those that are checked against a loss over unpadded rows."""
Correction = Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
NOT_INIT = {
    "dtype",
    "torch_dtype",
    "quantization_config",
    "load_in_4bit",
    "load_in_8bit",
    "trust_remote_code",
    "device_map",
}
_INSTEAD: Mapping[str, Sequence[str]] = {
    "a fixed reference: checkpoints hold no moving one": (
        *("sync_ref_model", "ref_model_mixup_alpha", "ref_model_sync_steps"),
    ),
    "a larger per_device_train_batch_size": ("gradient_accumulation_steps",),
    "memalpha launch, with its option --config_file": (
        *("accelerator_config", "local_rank", "parallelism_config"),
    ),
    "compile, which compiles the layers of the update": (
        *("torch_compile", "torch_compile_backend", "torch_compile_mode"),
    ),
    "dtype: float32, in which the head is computed, too": ("cast_lm_head_to_fp32",),
    "eval_temperature and eval_instances: an instance is read once, by the rollouts of training": (
        *("num_generations_eval", "per_device_eval_batch_size", "prediction_loss_only"),
        *("eval_accumulation_steps", "eval_do_concat_batches", "eval_use_gather_object"),
        *("batch_eval_metrics", "include_for_metrics", "bf16_full_eval", "fp16_full_eval"),
    ),
    "generator: vllm, in this process or at vllm_urls, with vllm_wait and vllm_memory": (
        *("use_vllm", "vllm_mode", "vllm_model_impl", "vllm_enable_sleep_mode"),
        *("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "vllm_server_timeout"),
        *("vllm_group_port", "vllm_gpu_memory_utilization", "vllm_max_model_length"),
        "vllm_tensor_parallel_size",
    ),
    "held-out data are read before training anyway": ("eval_on_start",),
    "lower rows_per_forward": ("auto_find_batch_size",),
    "loss_type dapo, grpo, dr_grpo or cispo, which has no such option": (
        *("sapo_temperature_neg", "sapo_temperature_pos", "vespo_k_pos", "vespo_lambda_pos"),
        *("vespo_k_neg", "vespo_lambda_neg"),
    ),
    "memalpha train, which trains, and eval_data, which is read before and after": (
        *("do_train", "do_eval", "do_predict"),
    ),
    "no column to go: rows are instances": (
        *("remove_unused_columns", "label_names", "length_column_name"),
    ),
    "memalpha train, which validates: a warm start does not": (
        *("eval_strategy", "eval_steps", "load_best_model_at_end", "metric_for_best_model"),
    ),
    "no code of a model's repository, which is never run": ("trust_remote_code",),
    "no entropy term: it would be computed over rows_per_forward rows": (
        *("entropy_coef", "use_adaptive_entropy", "entropy_coef_min", "entropy_coef_max"),
        *("entropy_coef_delta", "entropy_target"),
    ),
    "no loader's options: instances are in memory, and each step takes its own": (
        *("dataloader_drop_last", "dataloader_num_workers", "dataloader_pin_memory"),
        *("dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_in_order"),
        "dataloader_multiprocessing_context",
    ),
    "no noise: it depends on the length of a row, and rows are packed": ("neftune_noise_alpha",),
    "no padding: rows are packed": ("pad_to_multiple_of",),
    "no smoothing: the loss is that of drawn tokens": ("label_smoothing_factor",),
    "no such choice: it would be made among rows_per_forward rows": ("top_entropy_quantile",),
    "num_tokens and the other metrics that are logged": (
        *("include_num_input_tokens_seen", "skip_memory_metrics"),
    ),
    "one mean over the tokens of all processes, as it is computed anyway": (
        "average_tokens_across_devices",
    ),
    "resume: true": (
        *("resume_from_checkpoint", "ignore_data_skip", "restore_callback_states_from_checkpoint"),
    ),
    "resume: true, which needs whole checkpoints on a file system that all nodes share": (
        *("save_only_model", "save_on_each_node"),
    ),
    "SIGTERM, after which a run is saved and stops anyway": ("enable_jit_checkpoint",),
    "scale_rewards, of the weighted sum of the parts": ("multi_objective_aggregation",),
    "searches, the most searches of a reader": ("max_tool_calling_iterations",),
    "seed alone, which orders the data": (
        *("data_seed", "shuffle_dataset", "train_sampling_strategy"),
    ),
    "steps_per_generation": ("generation_batch_size",),
    "temperature, top_p and top_k": (
        *("generation_kwargs", "min_p", "repetition_penalty", "vllm_structured_outputs_regex"),
    ),
    "the codec, which says what a prompt holds; or a model with another chat template": (
        "chat_template_kwargs",
    ),
    "the generator here, which keeps its own cache": (
        *("cache_implementation", "use_cache", "use_transformers_continuous_batching"),
        *("transformers_continuous_batching_config", "use_transformers_paged"),
    ),
    "the loss over packed rows": ("use_liger_kernel", "liger_kernel_config"),
    "the option of the agent": ("max_completion_length",),
    "the option of the model": ("model_init_kwargs",),
    "the site of a run, memalpha report, which has every rollout": (
        *("log_completions", "log_completions_hub_repo", "log_multimodal", "log_unique_prompts"),
        "num_completions_to_print",
    ),
    "true, its default: with ZeRO-3 each process needs whole weights to draw": (
        "ds3_gather_for_generation",
    ),
    "vllm_importance_sampling_clip_max": ("vllm_importance_sampling_cap",),
    "weights by name, such as accuracy_weight: 1.0": ("reward_weights",),
}
REFUSED: Mapping[str, str] = {
    name: instead for instead, refused in _INSTEAD.items() for name in refused
}
"""Options of the trainer that would break what holds here or do nothing, and what to use."""
PASSED_ON = frozenset(
    [
        # of TRL: the model, what is drawn, the loss
        *("disable_dropout", "router_aux_loss_coef", "top_k", "top_p", "delta"),
        *("importance_sampling_level", "mask_truncated_completions", "off_policy_mask_threshold"),
        *("use_bias_correction_kl", "vllm_importance_sampling_clip_max"),
        "vllm_importance_sampling_clip_min",
        # of transformers: the optimizer
        *("adam_beta1", "adam_epsilon", "lr_scheduler_kwargs", "optim", "optim_args"),
        *("optim_target_modules", "weight_decay"),
        # speed, memory and exactness
        *("activation_checkpointing", "activation_checkpointing_kwargs", "full_determinism"),
        *("gradient_checkpointing_kwargs", "tf32", "torch_empty_cache_steps"),
        # several processes
        *("ddp_backend", "ddp_broadcast_buffers", "ddp_bucket_cap_mb"),
        *("ddp_find_unused_parameters", "ddp_static_graph", "deepspeed", "fsdp", "fsdp_config"),
        # what is logged, validated and published
        *("debug", "disable_tqdm", "eval_delay", "greater_is_better", "log_level"),
        *("log_level_replica", "log_on_each_node", "logging_first_step", "logging_nan_inf_filter"),
        *("logging_strategy", "project", "run_name", "trackio_bucket_id", "trackio_space_id"),
        *("trackio_static_space_id", "hub_always_push", "hub_model_id", "hub_private_repo"),
        *("hub_revision", "hub_strategy", "hub_token", "push_to_hub"),
    ]
)
"""Options of the trainer that are no options here and that act."""
_CHECKED_BY_TRAINER = ("debug", "deepspeed", "fsdp", "optim_target_modules")
_Level = Literal["debug", "info", "warning", "error", "critical", "passive", "detail"]
_LIMITS: Mapping[str, Any] = {
    "adam_beta1": Annotated[float, Field(ge=0, lt=1)],
    "adam_epsilon": PositiveFloat,
    "delta": PositiveFloat,
    "eval_delay": NonNegativeFloat,
    "importance_sampling_level": Literal["token", "sequence"],
    "log_level": _Level,
    "log_level_replica": _Level,
    "off_policy_mask_threshold": NonNegativeFloat,
    "router_aux_loss_coef": NonNegativeFloat,
    "top_k": NonNegativeInt,
    "top_p": Annotated[float, Field(gt=0, le=1)],
    "vllm_importance_sampling_clip_max": PositiveFloat,
    "vllm_importance_sampling_clip_min": NonNegativeFloat,
    "weight_decay": NonNegativeFloat,
}
"""Values of those that the trainer takes without a check, or after the model is loaded."""
REPLACED_OPTIONS: Mapping[str, str] = {
    "grouping": "credit: step for grouping: step, credit: trajectory for grouping: instance",
}
"""Options that are gone, and what took their place."""

PositiveShare = Annotated[float, Field(gt=0, le=1)]
Words = Annotated[
    list[str], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
]
"""Texts, or one."""


@dataclass(frozen=True)
class PolicyOptions(Options):
    """Options of the model and its adapter.

    Attributes:
        model: This base model is trained: a registered name (``memalpha.models.MODELS``), a folder
            or a Hub name.
        adapter: Training continues from this adapter, with its rank, scale and layers: a folder,
            the name of a shipped adapter (``memalpha fetch``) or a Hub name. An empty text starts a
            new adapter.
        model_init_kwargs: ``from_pretrained`` gets these further arguments, e.g. ``{revision:
            v1.0}`` or ``{attn_implementation: eager}``.
        load_in_4bit: If true, the frozen base is held in 4 bits for LoRA (NF4 with double
            quantisation; needs bitsandbytes). Products are computed in float16 if ``dtype`` says
            so, else in bfloat16.
        lora_r: A new adapter has this rank.
        lora_alpha: A new adapter is scaled by ``lora_alpha`` / ``lora_r``.
        lora_targets: A new adapter covers these layers: ``all-linear`` (all linear layers but the
            head), or the ends of their names, e.g. ``[q_proj, v_proj]``.
        lora_dropout: Updates drop this share of a new adapter's inputs, from 0 to below 1.
            Completions are drawn without dropout, so use 0 for GRPO.
        full_finetuning: If true, all weights are trained instead of an adapter.
        dtype: The base weights have this type: ``float32``, or for LoRA ``bfloat16``, or
            ``float16`` together with ``fp16``; adapters stay in float32. ``auto`` takes bfloat16 on
            hardware that computes it natively, and float16 with ``fp16`` on other GPUs from a V100
            on.
        compile: ``torch.compile`` compiles the layers of the update, which takes a minute at the
            first step. ``auto`` does so on CUDA with a C compiler, for dense models from a billion
            parameters whose weights are neither in 4 bits nor sharded.
    """

    model: str = "smollm2-135m-instruct"
    adapter: str = ""
    model_init_kwargs: JsonObject = field(default_factory=dict)
    load_in_4bit: bool = False
    lora_r: PositiveInt = 16
    lora_alpha: PositiveInt = 32
    lora_targets: Literal["all-linear"] | Words = "all-linear"
    lora_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    full_finetuning: bool = False
    dtype: str = "float32"
    compile: Literal["auto"] | bool = "auto"

    def check(self) -> None:
        """Check combinations of options."""
        other = f"the adapter {self.adapter!r}" if self.adapter else "load_in_4bit"
        if self.full_finetuning and (self.adapter or self.load_in_4bit):
            raise InputError(
                f"full_finetuning cannot be combined with {other}",
                expected="only one of the two",
            )
        if self.full_finetuning and self.dtype not in ("float32", "auto"):
            raise InputError(
                f"full_finetuning cannot be used with dtype {self.dtype}",
                expected="float32, since a step of 1e-6 is lost in the rounding of a 16-bit weight",
                fix="set bf16: true, which computes in bfloat16 and keeps the weights in float32",
            )
        wrong = NOT_INIT & self.model_init_kwargs.keys()
        if wrong:
            raise InputError(
                f"model_init_kwargs holds {', '.join(sorted(wrong))}",
                expected="the options dtype and load_in_4bit instead",
            )
        if self.load_in_4bit and not find_spec("bitsandbytes"):
            raise InputError(
                "load_in_4bit needs bitsandbytes, which is not installed",
                fix="pip install bitsandbytes",
            )


@dataclass(frozen=True)
class RunOptions(PolicyOptions, EndpointOptions):
    """Options of data, model and scoring.

    Attributes:
        role: This part is trained: ``writer``, which reads chunks and writes the memory, or another
            role (docs/guides/asker.md).
        writer: A role other than ``writer`` is asked about memories that this agent writes, given
            as ``adapter`` is. With an empty text nobody writes, and the role searches the archive
            alone.
        train_data: The policy trains on a prepared folder, an ``instances.jsonl`` or a generated
            source such as ``synthetic``. Separate several by commas.
        train_options: A generated source of ``train_data`` takes these options, e.g. ``{n: 400,
            preset: small}``.
        rollout_chunks: A rollout reads at most this many chunks, the last ones, of a training
            instance with annotated facts; 0 = all. A teacher reads the chunks in front of these,
            and the rollout begins with the teacher's memory.
        rollout_cut: If true, each instance that ``rollout_chunks`` shortens ends after a chunk
            drawn from the seed, not after its last. Its questions are then asked as of that chunk.
        rollout_coverage: The teacher's memory holds at least this share of the facts of the chunks
            that it reads, from 0 to 1. Each instance draws its own share above it.
        eval_data: The run is evaluated on these held-out instances, given as for ``train_data``; an
            empty text evaluates nothing.
        eval_options: A generated source of ``eval_data`` takes these options.
        eval_instances: This many held-out instances are evaluated before and after training; 0 =
            all.
        eval_temperature: Held-out rollouts are sampled at this temperature; 0 = greedy.
        validation_instances: This many held-out instances are set aside for validation during
            training; with 0 the evaluated ones are used.
        warm_start_steps: The policy first takes this many supervised steps on demonstrations of a
            generated ``train_data``; 0 = none.
        warm_start_learning_rate: The supervised steps have this peak learning rate.
        train_layers: Only the adapters of this many top layers are trained, which makes updates
            cheaper; 0 = all.
        reader: This reader answers the questions: ``recall`` (no model, the passages are the
            answer), ``base`` (the frozen base model), ``trained`` (a reader's adapter),
            ``endpoint`` (a server) or the reader of an installed package.
        reader_adapter: ``reader: trained`` loads this adapter, given as ``adapter`` is, on a frozen
            base of its own.
        content_judge: This judge decides which written entries are right: ``facts`` (annotations),
            ``grounded`` (words of the chunk), ``auto`` (facts if there are some, else grounded) or
            ``endpoint`` (a model on a server).
        question_share: A training step asks this share of an instance's questions, above 0 up to 1.
            They are drawn anew in each step, from every kind of question; evaluation asks all.
        credit: This rule decides which chunk steps a reward is for
            (docs/guides/training-options.md). The default, ``step``, compares the steps at one
            chunk; ``trajectory`` compares all steps of an instance, as published.
        rows_per_forward: One forward and backward pass takes this many rows; lower it to save
            memory.
        generation_rows: At most this many rollouts are decoded in one batch.
        generator: ``transformers`` draws the rollouts with the trained weights; ``vllm`` is faster
            on GPUs and gets the LoRA adapter after each update (docs/guides/gpus.md).
        vllm_urls: These vLLM servers draw the rollouts, e.g. ``[http://localhost:8000/v1]``.
            Without a URL vLLM runs in this process, on the same GPU (extra ``vllm``).
        vllm_wait: The run waits at most this many seconds for a vLLM server that has gone away.
        vllm_memory: The vLLM in this process takes this share of the GPU's memory while it draws
            (its ``gpu_memory_utilization``), above 0 up to 1. On CPUs it is a share of the main
            memory, which vLLM also holds between draws.
        staleness: Rollouts are drawn this many draws ahead of the update, so that drawing and
            updating overlap; 0 = on policy. Importance weights correct for the older policy.
        max_masked_share: The run stops if more than this share of a step's rollouts, over all
            processes, cannot be scored.
        max_skipped_steps: The run stops if more steps than this in a row are skipped because the
            loss or gradient is not finite.
        shuffle_advantages: If true, the advantages are permuted at random. This is the control run
            of a learning test, in which nothing can be learned.
        overwrite: If true, an existing run folder is replaced.
        resume: If true, an existing run folder is continued from its last complete checkpoint, or
            from the start if it has none.
    """

    role: Annotated[str, AfterValidator(OneOf(role_names))] = WRITER
    writer: str = ""
    train_data: str = "synthetic"
    train_options: JsonObject = field(default_factory=dict)
    rollout_chunks: NonNegativeInt = 0
    rollout_cut: bool = False
    rollout_coverage: Share = 1.0
    eval_data: str = ""
    eval_options: JsonObject = field(default_factory=dict)
    eval_instances: NonNegativeInt = 0
    eval_temperature: NonNegativeFloat = 0.0
    validation_instances: NonNegativeInt = 0
    warm_start_steps: NonNegativeInt = 0
    warm_start_learning_rate: PositiveFloat = 1e-3
    train_layers: NonNegativeInt = 0
    reader: Annotated[str, AfterValidator(OneOf(reader_names))] = "recall"
    reader_adapter: str = ""
    content_judge: Literal["facts", "grounded", "auto", "endpoint"] = "grounded"
    question_share: PositiveShare = 1.0
    credit: Annotated[str, AfterValidator(OneOf(credit_names))] = "step"
    rows_per_forward: PositiveInt = 8
    generation_rows: PositiveInt = 64
    generator: Literal["transformers", "vllm"] = "transformers"
    vllm_urls: list[str] = field(default_factory=list)
    vllm_wait: NonNegativeFloat = 300.0
    vllm_memory: PositiveShare = 0.3
    staleness: NonNegativeInt = 0
    max_masked_share: PositiveShare = 0.5
    max_skipped_steps: NonNegativeInt = 3
    shuffle_advantages: bool = False
    overwrite: bool = False
    resume: bool = False

    def check(self) -> None:
        """Check combinations of options; makes clients once to find wrong options before anything
        is loaded.
        """
        super().check()
        self._check_generator()
        if (self.rollout_cut or self.rollout_coverage < 1) and not self.rollout_chunks:
            raise InputError(
                "rollout_cut or rollout_coverage is given without rollout_chunks",
                expected="rollout_chunks, the number of chunks that a rollout reads",
            )
        if self.staleness and self.reader == "base":
            raise InputError(
                f"reader 'base' cannot be used with staleness {self.staleness}",
                expected="another reader, since the policy cannot draw and answer at the same time",
            )
        if (self.reader == "trained") is not bool(self.reader_adapter):
            raise InputError(
                f"reader is {self.reader}, but reader_adapter is {self.reader_adapter!r}",
                expected="reader: trained together with the folder of a reader",
            )
        if self.writer and self.role == WRITER:
            raise InputError(
                f"writer is {self.writer!r}, but role is {self.role}",
                expected="another role, which is asked about the memories of a writer",
            )
        if self.reader == "endpoint":
            self.reader_client()
        if self.content_judge == "endpoint" or self.has_judge:
            self.judge_client()

    def _check_generator(self) -> None:
        vllm = self.generator == "vllm"
        if self.vllm_urls and not vllm:
            raise InputError(
                f"vllm_urls is given, but generator is {self.generator}",
                expected="generator: vllm",
            )
        if vllm and self.full_finetuning:
            raise InputError(
                "full_finetuning cannot be combined with generator vllm",
                expected="an adapter, which vLLM can load",
            )
        if vllm and not self.vllm_urls:
            if self.load_in_4bit:
                raise InputError(
                    "load_in_4bit cannot be used with vLLM in this process, which would "
                    "hold a second base",
                    expected="servers in vllm_urls, or generator: transformers",
                )
            if not find_spec("vllm"):
                raise InputError(
                    "generator vllm needs the package vLLM, which is not installed",
                    expected="an installed vLLM, or servers in vllm_urls",
                    fix="pip install 'memalpha[vllm]'",
                )


@dataclass(frozen=True)
class TrainerOptions(Options):
    """Options of transformers' trainer, for a training run and a warm start.

    Attributes:
        output_dir: The run writes into this folder.
        per_device_train_batch_size: Each process takes this many rollouts (in a warm start,
            demonstrations) for one optimizer step.
        max_steps: The run takes this many optimizer steps; -1 takes as many as ``num_train_epochs``
            needs.
        num_train_epochs: The run goes through the training data this many times, unless
            ``max_steps`` is given.
        learning_rate: This is the peak of the learning rate.
        lr_scheduler_type: The learning rate follows this schedule of transformers, such as
            ``linear`` or ``constant_with_warmup``.
        warmup_steps: The learning rate rises over this many steps; a number below 1 is a share of
            all steps, and 0 = off.
        adam_beta2: Adam's second moment decays by this factor in each step, from 0 to 1.
        max_grad_norm: A gradient with a larger norm is scaled down to this norm; 0 = off.
        bf16: If true, the update is computed in bfloat16, on GPUs that have it.
        fp16: If true, the update is computed in float16 with a scaled loss, for GPUs without
            bfloat16 (T4, V100).
        use_cpu: If true, the run uses the CPU even if there is a GPU.
        gradient_checkpointing: If true, the backward pass computes activations again instead of
            storing them, which takes time and saves memory.
        seed: This number fixes everything that is drawn at random.
        logging_steps: A line is logged every so many steps.
        report_to: Metrics are sent to these trackers: ``tensorboard``, ``wandb`` or ``trackio``;
            ``none`` sends nothing.
        save_strategy: Checkpoints are saved every ``save_steps`` steps (``steps``), after each pass
            over the data (``epoch``) or never (``no``).
        save_steps: This many steps lie between two checkpoints.
        save_total_limit: This many of the newest checkpoints are kept, besides the best one; null
            keeps all.
        ddp_timeout: A process waits at most this many seconds for the others.
        trl: These further options go to the trainer, e.g. ``{adam_beta1: 0.8, push_to_hub: true}``.
            It is TRL's ``GRPOConfig``, or transformers' ``TrainingArguments`` in a warm start.
    """

    output_dir: str = "runs/train"
    per_device_train_batch_size: PositiveInt = 16
    max_steps: Annotated[int, Field(ge=-1)] = -1
    num_train_epochs: PositiveFloat = 3.0
    learning_rate: PositiveFloat = 1e-6
    lr_scheduler_type: str = "linear"
    warmup_steps: NonNegativeInt | NonNegativeFloat = 0
    adam_beta2: Share = 0.999
    max_grad_norm: NonNegativeFloat = 1.0
    bf16: bool = False
    fp16: bool = False
    use_cpu: bool = False
    gradient_checkpointing: bool = False
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 42
    logging_steps: PositiveInt = 1
    report_to: list[str] = field(default_factory=lambda: ["none"])
    save_strategy: Literal["no", "steps", "epoch", False] = "steps"
    save_steps: PositiveInt = 500
    save_total_limit: PositiveInt | None = 2
    ddp_timeout: PositiveInt = 1800
    trl: JsonObject = field(default_factory=dict)

    def check(self) -> None:
        """Refuse options that would break a guarantee of this package, and trackers that are not
        installed.
        """
        if self.max_steps == 0:
            raise InputError(
                "max_steps is 0",
                expected="at least 1 step, or -1 for as many as num_train_epochs says",
            )
        if self.bf16 and self.fp16:
            raise InputError("both bf16 and fp16 are set", expected="only one of the two")
        for name in self.trl:
            own = "the option of this name" if name in names(type(self)) else ""
            expected = own or REFUSED.get(name, "")
            if expected:
                raise InputError(f"trl holds {name}", expected=expected)
        for name in self.report_to:
            if name in ("tensorboard", "wandb", "trackio") and not find_spec(name):
                raise InputError(
                    f"report_to names {name}, which is not installed",
                    fix=f"pip install {name}, or set report_to: none",
                )

    def passed_on(self, kind: type, more: JsonMapping) -> Any:
        """Make the trainer's own ``kind`` of arguments, with ``more`` of them."""
        for name in self.trl:
            check_name(name, [kind], "trl")
            if name not in PASSED_ON:
                raise InputError(
                    f"trl holds {name}, which has no effect in this version",
                    expected=f"one of {', '.join(sorted(PASSED_ON & set(names(kind))))}",
                )
        own = {name: getattr(self, name) for name in names(type(self)) if name != "trl"}
        fixed = {"disable_tqdm": True, "ddp_find_unused_parameters": False}
        given = _fitting(self.trl, kind)
        try:
            arguments = kind(**{**own, **fixed, **more, **given})
            _try_scheduler(arguments)
        except InputError:
            raise
        except (ValueError, TypeError, ImportError, OSError) as error:
            raise InputError(f"the options of the trainer do not fit: {error}") from error
        return arguments


@contextmanager
def clear_options() -> Iterator[None]:
    """Turn the errors that a trainer raises for its options into InputError."""
    try:
        yield
    except InputError:
        raise
    except ImportError as error:  # such as vLLM, or the package of an optimizer
        raise InputError(
            f"an option needs a package that is not installed: {error}", fix="install the package"
        ) from error
    except ValueError as error:
        raise InputError(
            f"the options of the trainer do not fit: {error}", expected="options that go together"
        ) from error


def _fitting(given: JsonMapping, kind: type) -> JsonObject:
    """Return options of the trainer in their types; InputError for a value that does not fit."""
    hints = get_type_hints(kind)
    values = deepcopy(dict(given))
    for name in values.keys() - set(_CHECKED_BY_TRAINER):
        try:
            values[name] = TypeAdapter(hints[name]).validate_python(values[name])
            if name in _LIMITS and values[name] is not None:
                TypeAdapter(_LIMITS[name]).validate_python(values[name])
        except ValidationError as error:
            raise InputError(
                f"trl holds {name}: {mask_options(given[name], name)!r:.200}",
                expected=error.errors()[0]["msg"],
            ) from error
    return values


def _try_scheduler(arguments: TrainingArguments) -> None:
    """Make a learning rate's schedule, whose options are checked nowhere else before a run begins.
    Raises what transformers does.
    """
    get_scheduler(
        arguments.lr_scheduler_type,
        torch.optim.SGD([torch.zeros(1)], lr=1.0),
        num_warmup_steps=0,
        num_training_steps=1,
        scheduler_specific_kwargs=arguments.lr_scheduler_kwargs,
    )


@dataclass(frozen=True)
class GRPOOptions(TrainerOptions):
    """Options of TRL's GRPO (arXiv 2402.03300).

    Attributes:
        num_generations: A group has this many rollouts of one instance, at least 2 (G in GRPO).
        steps_per_generation: This many optimizer steps share one draw of rollouts.
        num_iterations: Each draw is used for this many passes of updates.
        temperature: The rollouts are sampled at this temperature.
        loss_type: The loss is ``dapo``, ``grpo``, ``dr_grpo`` or ``cispo``, as TRL defines them.
        beta: The KL divergence from the reference model has this coefficient; 0 = off.
        vllm_importance_sampling_correction: If true, the loss is weighted by the ratio of the
            trained to the sampled probability. It acts where the sampled one is kept (16 bits,
            vLLM, ``staleness``).
        vllm_importance_sampling_mode: The ratio is taken of each ``token`` or of the whole
            ``sequence``. Above ``vllm_importance_sampling_clip_max`` it is set to this maximum
            (``truncate``) or to 0 (``mask``).
        epsilon: The probability ratio of the loss is clipped below 1 minus this number. Without
            ``epsilon_high`` it is also clipped above 1 plus this number.
        epsilon_high: The probability ratio is clipped above 1 plus this number; null takes
            ``epsilon``. With ``cispo`` it is the bound of the ratio itself, such as 5.0 (ScaleRL).
        scale_rewards: Advantages are divided by the standard deviation of the rewards of a
            ``group`` or of the ``batch``, or by nothing (``none``).
        eval_strategy: ``steps`` validates every ``eval_steps`` steps; ``no`` evaluates only before
            and after training.
        eval_steps: This many steps lie between two validations; null takes ``logging_steps``.
        load_best_model_at_end: If true, the run ends with the weights of the best validation.
        metric_for_best_model: The best validation has the highest value of this metric:
            ``accuracy``, ``reward``, ``tool_success``, ``compression`` or ``content``. Other parts
            of the reward are called ``reward_NAME``.
    """

    num_generations: Annotated[int, Field(ge=2)] = 8
    steps_per_generation: PositiveInt = 1
    num_iterations: PositiveInt = 1
    temperature: PositiveFloat = 1.0
    loss_type: Loss = "dapo"
    beta: NonNegativeFloat = 0.0
    vllm_importance_sampling_correction: bool = True
    vllm_importance_sampling_mode: Correction = "token_truncate"
    epsilon: NonNegativeFloat = 0.2
    epsilon_high: NonNegativeFloat | None = None
    scale_rewards: Literal["group", "batch", "none"] | bool = "group"
    eval_strategy: Literal["no", "steps", False] = "no"
    eval_steps: PositiveInt | None = None
    load_best_model_at_end: bool = False
    metric_for_best_model: str = "accuracy"

    def check(self) -> None:
        """Check combinations of options."""
        super().check()
        rollouts = self.per_device_train_batch_size * self.steps_per_generation
        if rollouts % self.num_generations:
            raise InputError(
                f"num_generations is {self.num_generations}, which does not divide the "
                f"{rollouts} rollouts of a process",
                expected="a product per_device_train_batch_size x steps_per_generation that is "
                "a multiple of num_generations",
            )
        if "use_bias_correction_kl" in self.trl and not self.beta:
            raise InputError(
                "trl holds use_bias_correction_kl, but beta is 0",
                expected="a beta above 0, since there is no KL term without it",
            )
        if "delta" in self.trl and self.loss_type == "cispo":
            raise InputError(
                "trl holds delta, but loss_type is cispo",
                expected="epsilon_high, which is the bound of cispo",
            )
        if self.loss_type == "cispo" and not (self.epsilon_high and self.epsilon_high >= 1):
            raise InputError(
                f"epsilon_high is {self.epsilon_high}, but loss_type is cispo",
                expected="a number such as 5.0 (ScaleRL), since cispo clips the ratio at this "
                "number, not at 1 plus it",
            )
        if self.load_best_model_at_end and self.save_steps != self.eval_steps:
            raise InputError(
                f"load_best_model_at_end is set, but save_steps is {self.save_steps} "
                f"and eval_steps is {self.eval_steps}",
                expected="the same number for both, since the best step needs a checkpoint",
            )

    def arguments(self, **more: Any) -> GRPOConfig:
        """Return TRL's arguments, ``more`` of them given here."""
        rollouts = self.per_device_train_batch_size * self.steps_per_generation
        fixed = {
            "greater_is_better": True,
            "vllm_importance_sampling_clip_max": 2.0,
            "per_device_eval_batch_size": rollouts,  # not used; TRL wants a multiple of a group
        }
        return self.passed_on(GRPOConfig, {**fixed, **more})


class TrainArguments(NamedTuple):
    """All options of a training run; ``trl_arguments`` are the trainer's options in TRL's form."""

    run: RunOptions
    agent: AgentConfig
    reward: RewardConfig
    trl_arguments: GRPOConfig
    trainer: GRPOOptions


TRAIN_GROUPS = (RunOptions, AgentConfig, RewardConfig, GRPOOptions)


def check_together(run: RunOptions, reward: RewardConfig, trainer: GRPOOptions) -> None:
    """Check combinations of options of several groups."""
    make_credit(run.credit).check(run, trainer.num_generations)
    make_role(run.role).check(run, reward)
    if reward.graded_accuracy and run.reader not in ("base", "trained"):
        raise InputError(
            f"graded_accuracy cannot be used with reader {run.reader}",
            expected="reader base or trained, whose model gives the probability of an answer",
        )


def parse_train_arguments(
    arguments: Sequence[str],
    rewards: Mapping[str | RewardFunction, float] | None = None,
    given: Mapping[str, object] | None = None,
) -> TrainArguments:
    """Read the options of a training run from a file and a command line.

    Args:
        arguments: Words such as ``--config FILE`` and ``--name value``, which override the others.
            The file may be a name, such as ``nano``. ``preset: published`` in the file takes the
            published values.
        rewards: Weights of reward functions, in addition to the option ``rewards``.
        given: Options by name, which override those of the file.

    Returns:
        All options of the run, checked.

    Raises:
        InputError: An option is unknown, is missing or does not fit.
    """
    presets = Path(__file__).parent / "presets"
    run, agent, reward, trainer = parse(
        arguments, TRAIN_GROUPS, "memalpha train", presets, REPLACED_OPTIONS, given, "train"
    )
    check_together(run, reward, trainer)
    trl_arguments = trainer.arguments(
        max_completion_length=agent.max_completion_length,
        model_init_kwargs=run.model_init_kwargs or None,
    )
    reward = replace(reward, rewards={**reward.rewards, **(rewards or {})})
    # imports the functions of ``rewards`` before a model is loaded
    parts = make_credit(run.credit).reward(reward).parts
    metrics = ["accuracy", *summary_names(parts).values()]
    if trainer.metric_for_best_model not in metrics:
        raise InputError(
            f"metric_for_best_model is {trainer.metric_for_best_model!r}",
            expected=f"one of {', '.join(metrics)}",
        )
    return TrainArguments(run, agent, reward, trl_arguments, trainer)
