"""Options of model and trainer: each of GRPOConfig's is used, refused or without effect; LoRA, 4
bits, type of the weights."""

from dataclasses import fields
from importlib.util import find_spec

import pytest
import torch
from runs_of_nano import OPTIONS, SHORT, train
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.models import load_policy_model
from memalpha.record.folder import RunFolder
from memalpha.training import config
from memalpha.training.build import build_parts, load_policy
from memalpha.training.config import MemoryGRPOConfig, RunOptions, parse_train_arguments
from memalpha.training.dtype import choose_dtype
from memalpha.training.packed import Row, packed_logps
from memalpha.training.sharding import Sharding, check_sharding
from memalpha.training.warm_start import parse_warmup_arguments
from memalpha.types import Prompt, Sampling

USED = [
    "output_dir",
    "per_device_train_batch_size",
    "num_train_epochs",
    "max_steps",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "optim_args",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "optim_target_modules",
    "max_grad_norm",
    "bf16",
    "tf32",
    "use_cpu",
    "seed",
    "full_determinism",
    "activation_checkpointing",
    "activation_checkpointing_kwargs",
    "gradient_checkpointing",
    "gradient_checkpointing_kwargs",
    "use_cache",
    "torch_empty_cache_steps",
    "logging_strategy",
    "logging_steps",
    "logging_first_step",
    "log_on_each_node",
    "logging_nan_inf_filter",
    "log_level",
    "log_level_replica",
    "disable_tqdm",
    "report_to",
    "run_name",
    "project",
    "trackio_space_id",
    "trackio_bucket_id",
    "trackio_static_space_id",
    "save_only_model",
    "save_strategy",
    "save_steps",
    "save_on_each_node",
    "save_total_limit",
    "push_to_hub",
    "hub_token",
    "hub_private_repo",
    "hub_model_id",
    "hub_strategy",
    "hub_always_push",
    "hub_revision",
    "ignore_data_skip",
    "restore_callback_states_from_checkpoint",
    "accelerator_config",
    "dataloader_drop_last",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_persistent_workers",
    "dataloader_prefetch_factor",
    "dataloader_multiprocessing_context",
    "dataloader_in_order",
    "ddp_find_unused_parameters",
    "ddp_bucket_cap_mb",
    "ddp_broadcast_buffers",
    "ddp_static_graph",
    "ddp_backend",
    "ddp_timeout",
    "fsdp",
    "fsdp_config",
    "deepspeed",
    "debug",
    "skip_memory_metrics",
    "model_init_kwargs",
    "router_aux_loss_coef",
    "disable_dropout",
    "cast_lm_head_to_fp32",
    "num_generations",
    "max_completion_length",
    "ds3_gather_for_generation",
    "shuffle_dataset",
    "steps_per_generation",
    "temperature",
    "top_p",
    "top_k",
    "use_vllm",
    "beta",
    "num_iterations",
    "epsilon",
    "delta",
    "epsilon_high",
    "importance_sampling_level",
    "scale_rewards",
    "loss_type",
    "mask_truncated_completions",
    "off_policy_mask_threshold",
    "use_bias_correction_kl",
    "vllm_importance_sampling_correction",
    "vllm_importance_sampling_mode",
    "vllm_importance_sampling_clip_max",
    "vllm_importance_sampling_clip_min",
    "vllm_importance_sampling_cap",
    "min_p",
    "repetition_penalty",
    "generation_kwargs",
    "vllm_mode",
    "eval_steps",
    "eval_delay",
    "load_best_model_at_end",
    "greater_is_better",
    "log_completions",
    "num_completions_to_print",
    "vllm_structured_outputs_regex",
    "vllm_server_base_url",
    "vllm_server_host",
    "vllm_server_port",
    "vllm_server_timeout",
    "vllm_group_port",
]
WITHOUT_EFFECT = {
    "set by the launcher": ["local_rank"],
    "a flag of transformers' example scripts": ["do_train"],
}
LIMITS = {
    "learning_rate": 0.0,
    "seed": -1,
    "temperature": 0.0,
    "num_iterations": 0,
    "steps_per_generation": 0,
    "epsilon_high": 0.3,
    "gradient_accumulation_steps": 0,
    "eval_strategy": "epoch",
    "save_strategy": "best",
}
REFUSED = {*config.TRAINER, *config.GRPO, *config.WITHOUT_VLLM, *config.CISPO}


def refused_value(name):
    default = getattr(MemoryGRPOConfig, name, [])
    others = {
        bool: lambda: not default,
        int: lambda: default + 1,
        float: lambda: default + 0.25,
        list: lambda: ["x"],
    }
    return LIMITS.get(name, others.get(type(default), lambda: "other")())


def test_every_option_of_trl_is_used_or_refused_or_known_to_have_no_effect():
    assert len(USED) == len(set(USED))
    groups = [
        set(USED),
        REFUSED - set(USED),
        {name for names in WITHOUT_EFFECT.values() for name in names},
    ]
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert set.union(*groups) == {field.name for field in fields(MemoryGRPOConfig)}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_is_refused_by_its_value(name):
    cispo = {"loss_type": "cispo", "epsilon_high": 5.0} if name in config.CISPO else {}
    assert MemoryGRPOConfig(use_cpu=True, **cispo)
    with pytest.raises(InputError, match=f"^{name} is "):
        MemoryGRPOConfig(**{"use_cpu": True, **cispo, name: refused_value(name)})


def test_cispo_needs_a_bound_of_the_ratio_itself():
    with pytest.raises(InputError, match="epsilon_high is None"):
        MemoryGRPOConfig(use_cpu=True, loss_type="cispo")


def test_a_vllm_server_takes_options_that_are_refused_without_it():
    server = {"use_cpu": True, "use_vllm": True, "vllm_mode": "server"}
    MemoryGRPOConfig(
        **server, min_p=0.1, repetition_penalty=1.1, generation_kwargs={"frequency_penalty": 0.1}
    )
    for wrong in ({"generation_kwargs": {"n": 2}}, {"vllm_mode": "colocate"}):
        with pytest.raises(InputError, match=f"{next(iter(wrong))} is "):
            MemoryGRPOConfig(**{**server, **wrong})


# ------------------------------------------------------------------------------------------------
# the adapter and the base
def lora_shapes(model):
    """Rank and scale of each adapted layer, by the end of its name."""
    layers = [
        (name.split(".")[-1], layer)
        for name, layer in model.named_modules()
        if hasattr(layer, "lora_A")
    ]
    return {
        name: (layer.lora_A["default"].weight.shape[0], layer.scaling["default"])
        for name, layer in layers
    }


def test_an_adapter_has_the_layers_ranks_and_scale_of_its_options():
    given = [
        "--model",
        "nano",
        "--use_cpu",
        "true",
        "--lora_r",
        "4",
        "--lora_alpha",
        "8",
        "--lora_rank_pattern",
        "{v_proj: 32}",
    ]
    run = parse_train_arguments([*given, "--lora_targets", "q_proj", "v_proj"]).run
    assert lora_shapes(load_policy(run)[0]) == {"q_proj": (4, 2.0), "v_proj": (32, 0.25)}
    assert parse_train_arguments([*given[:4], "--lora_targets", "q_proj"]).run.lora_targets == [
        "q_proj"
    ]
    whole = lora_shapes(
        load_policy(parse_warmup_arguments([*given, "--lora_targets", "all-linear"]).warmup)[0]
    )
    others = dict.fromkeys(
        ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), (4, 2.0)
    )
    assert whole == {**others, "v_proj": (32, 0.25)}


@pytest.mark.parametrize(
    ("targets", "ranks", "named"),
    [
        (["q_proj", "q"], {}, "'q'"),
        (["lm_head"], {}, "'lm_head'"),
        (["q_proj"], {"v_proj": 2}, "'v_proj'"),
    ],
)
def test_a_name_that_fits_no_adapted_layer_is_refused(targets, ranks, named):
    with pytest.raises(InputError, match=f"names {named}"):
        load_policy(RunOptions(model="nano", lora_targets=targets, lora_rank_pattern=ranks))


def test_dropout_acts_in_updates_and_not_where_completions_are_drawn():
    model, tokenizer = load_policy(RunOptions(model="nano", lora_dropout=0.5))
    stir(model)
    prompt, generator = (
        Prompt((), tuple(range(5, 25))),
        HFGenerator(model.train(), tokenizer, logprobs=True),
    )
    (drawn,) = generator.generate([prompt], Sampling(9))
    first, second, exact = (
        packed_logps(model.train(mode), [Row(prompt.ids, drawn.ids)]).logps[0]
        for mode in (True, True, False)
    )
    assert not torch.allclose(first, second)
    assert exact.tolist() == pytest.approx(drawn.logprobs, abs=1e-4)


def stir(model):
    generator = torch.Generator().manual_seed(3)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1


def test_attention_of_another_kind_is_refused_before_anything_is_drawn_unless_rows_are_not_packed():
    eager = [
        *OPTIONS,
        *SHORT,
        "--full_finetuning",
        "false",
        "--model_init_kwargs",
        "{attn_implementation: eager}",
    ]
    with pytest.raises(InputError, match="share_prefix"):
        build_parts(parse_train_arguments(eager))
    arguments = parse_train_arguments([*eager, "--share_prefix", "false"])
    assert arguments.grpo.model_init_kwargs == {
        "attn_implementation": "eager"
    }  # TRL loads the reference of a KL term likewise
    assert build_parts(arguments).model.config._attn_implementation == "eager"
    with pytest.raises(InputError, match="model_init_kwargs holds device_map, dtype"):
        RunOptions(model_init_kwargs={"dtype": "float16", "device_map": "auto", "revision": "x"})


def test_the_revision_of_the_base_goes_to_model_and_tokenizer_and_is_kept_with_the_adapter(
    tmp_path, monkeypatch
):
    asked = []
    for kind in (AutoModelForCausalLM, AutoTokenizer):
        load = kind.from_pretrained
        fake = lambda *a, load=load, **more: asked.append(more["revision"]) or load(*a, **more)  # noqa: E731
        monkeypatch.setattr(kind, "from_pretrained", fake)
    model, _ = load_policy(RunOptions(model="nano", model_init_kwargs={"revision": "v7"}))
    model.save_pretrained(tmp_path)
    load_policy_model("nano", adapter=tmp_path)
    load_policy_model("nano")
    assert asked == ["v7"] * 4 + ["main"] * 2


# ------------------------------------------------------------------------------------------------
# dtype: auto
def test_the_faster_type_is_chosen_from_times_and_from_what_a_gpu_computes(monkeypatch):
    for times, expected in (
        ((1.3, 1.0), "bfloat16"),
        ((1.29, 1.0), "float32"),
        ((0.2, 1.0), "float32"),
    ):
        assert choose_dtype(torch.device("cpu"), lambda times=times: times)[0] == expected
    assert choose_dtype(torch.device("cpu"))[0] in ("float32", "bfloat16")
    assert choose_dtype(torch.device("mps"))[0] == "float32"
    for native in (True, False):  # a T4 emulates it
        monkeypatch.setattr(
            torch.cuda,
            "is_bf16_supported",
            lambda including_emulation=True, it=native: including_emulation or it,
        )
        assert choose_dtype(torch.device("cuda"))[0] == ("bfloat16" if native else "float32")


def test_a_resumed_run_keeps_the_type_and_the_adapter_it_began_with(tmp_path, monkeypatch):
    options = [
        *SHORT,
        "--full_finetuning",
        "false",
        "--dtype",
        "auto",
        "--warm_start_steps",
        "1",
        "--save_steps",
        "1",
    ]
    options += [
        "--lora_targets",
        "q_proj",
        "up_proj",
        "--lora_rank_pattern",
        "{up_proj: 3}",
        "--bf16",
        "true",
    ]  # as on a GPU
    monkeypatch.setattr(
        "memalpha.training.dtype.choose_dtype", lambda device: ("bfloat16", "measured")
    )
    assert train(tmp_path / "run", *options, "--max_steps", "1") == 0
    assert (
        train(
            tmp_path / "all", *options[:2], *options[4:8], "--full_finetuning", "--max_steps", "1"
        )
        == 0
    )
    assert RunFolder(tmp_path / "all").config["dtype"] == "float32"  # though bfloat16 is faster
    monkeypatch.setattr(
        "memalpha.training.dtype.choose_dtype", lambda device: ("float32", "measured elsewhere")
    )
    assert train(tmp_path / "run", *options, "--max_steps", "2", "--resume") == 0
    folder = RunFolder(tmp_path / "run")
    began = folder.read_json("environment.json")
    assert folder.config["dtype"] == "bfloat16" and len(folder.metrics()) == 2
    assert began["dtype"] == "bfloat16: measured" and began["resumed"][0]["dtype"].startswith(
        "bfloat16"
    )
    for part in ("adapter", "warm_start"):
        shapes = lora_shapes(load_policy_model("nano", adapter=folder.path / part).model)
        assert shapes == {"q_proj": (16, 2.0), "up_proj": (3, 32 / 3)}


# ------------------------------------------------------------------------------------------------ a
# base in 4 bits
needs_bitsandbytes = pytest.mark.skipif(
    not find_spec("bitsandbytes"), reason="bitsandbytes is not installed"
)


def test_4_bits_are_refused_without_their_library_and_for_weights_that_train_or_are_sharded(
    monkeypatch,
):
    with pytest.raises(InputError, match="full_finetuning with load_in_4bit"):
        RunOptions(full_finetuning=True, load_in_4bit=True)
    with pytest.raises(InputError, match="load_in_4bit with zero3"):
        check_sharding(Sharding.ZERO3, "recall", gathers=True, in_4bit=True)
    monkeypatch.setattr(config, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install bitsandbytes"):
        RunOptions(load_in_4bit=True)


@needs_bitsandbytes
def test_the_gradient_through_a_4_bit_base_is_that_of_its_weights_after_completions_were_drawn(
    tmp_path,
):
    from bitsandbytes.functional import dequantize_4bit

    model, tokenizer = load_policy(RunOptions(model="nano", load_in_4bit=True, lora_r=4))
    stir(model)
    plain, _ = load_policy(RunOptions(model="nano", lora_r=4))
    stir(plain)
    for (name, layer), mirror in zip(model.named_modules(), plain.modules(), strict=True):
        if type(layer).__name__ == "Linear4bit" and "base_layer" in name:
            mirror.weight.data = dequantize_4bit(
                layer.weight.data, layer.weight.quant_state
            ).float()
    prompt = Prompt((), tuple(range(5, 25)))
    (drawn,) = HFGenerator(model, tokenizer, logprobs=True).generate([prompt], Sampling(12))
    gradients = []
    for policy in (model.train(), plain.train()):
        (logps,) = packed_logps(policy, [Row(prompt.ids, drawn.ids)]).logps
        assert logps.tolist() == pytest.approx(drawn.logprobs, abs=0.05)
        logps.sum().backward()
        gradients.append(
            torch.cat(
                [p.grad.flatten() for name, p in policy.named_parameters() if "lora_" in name]
            )
        )
    assert (gradients[0] - gradients[1]).norm() < 0.05 * gradients[
        1
    ].norm()  # products are rounded to bfloat16


@needs_bitsandbytes
def test_a_run_on_a_4_bit_base_trains_float32_adapters_and_weighs_by_what_was_drawn(tmp_path):
    options = [
        *SHORT,
        "--full_finetuning",
        "false",
        "--load_in_4bit",
        "--warm_start_steps",
        "30",
        "--gradient_checkpointing",
    ]
    assert (
        train(
            tmp_path / "run",
            *options,
            "--max_steps",
            "2",
            "--learning_rate",
            "1e-6",
            "--lora_r",
            "4",
        )
        == 0
    )
    (first, _), folder = RunFolder(tmp_path / "run").metrics(), tmp_path / "run"
    assert first["sampling/sampling_logp_difference/max"] < 0.05
    before, after = (
        load_file(folder / part / "adapter_model.safetensors") for part in ("warm_start", "adapter")
    )
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    moved = torch.cat([(after[name] - before[name]).abs().flatten() for name in after])
    assert 0 < moved.max() < 3e-6  # two steps of 1e-6, not the rounding of 16 bits
