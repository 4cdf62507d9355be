"""Options of model and trainer: each of GRPOConfig's is used, refused or without effect; LoRA, 4 bits, type of the weights."""

from dataclasses import MISSING, fields
from types import SimpleNamespace

import pytest
import torch

from memalpha.errors import InputError
from memalpha.training import config
from memalpha.training.config import MemoryGRPOConfig

USED = """
output_dir per_device_train_batch_size num_train_epochs max_steps learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps
optim optim_args weight_decay adam_beta1 adam_beta2 adam_epsilon optim_target_modules max_grad_norm bf16 tf32 use_cpu seed
full_determinism activation_checkpointing activation_checkpointing_kwargs gradient_checkpointing gradient_checkpointing_kwargs
use_cache torch_empty_cache_steps logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter log_level
log_level_replica disable_tqdm report_to run_name project trackio_space_id trackio_bucket_id trackio_static_space_id save_only_model
save_strategy save_steps save_on_each_node save_total_limit push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
hub_always_push hub_revision ignore_data_skip restore_callback_states_from_checkpoint accelerator_config dataloader_drop_last
dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers dataloader_prefetch_factor
dataloader_multiprocessing_context dataloader_in_order ddp_find_unused_parameters ddp_bucket_cap_mb ddp_broadcast_buffers
ddp_static_graph ddp_backend ddp_timeout fsdp fsdp_config deepspeed debug skip_memory_metrics
model_init_kwargs router_aux_loss_coef disable_dropout cast_lm_head_to_fp32 num_generations max_completion_length
ds3_gather_for_generation shuffle_dataset steps_per_generation temperature top_p top_k use_vllm beta num_iterations epsilon delta
epsilon_high importance_sampling_level scale_rewards loss_type mask_truncated_completions off_policy_mask_threshold
use_bias_correction_kl vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_importance_sampling_clip_max
vllm_importance_sampling_clip_min vllm_importance_sampling_cap
min_p repetition_penalty generation_kwargs vllm_mode vllm_structured_outputs_regex vllm_server_base_url vllm_server_host
vllm_server_port vllm_server_timeout vllm_group_port
""".split()
WITHOUT_EFFECT = {"set by the launcher": ["local_rank"], "a flag of transformers' example scripts": ["do_train"]}
CHECKED = {  # used or refused by value; a value that is refused, and more options without which it would not be read
    "max_steps": {"max_steps": 0}, "learning_rate": {"learning_rate": 0.0}, "seed": {"seed": -1}, "fp16": {"fp16": True},
    "per_device_train_batch_size": {"per_device_train_batch_size": 0}, "eval_strategy": {"eval_strategy": "steps"},
    "loss_type": {"loss_type": "sapo"}, "scale_rewards": {"scale_rewards": "none of these"}, "temperature": {"temperature": 0.0},
    "num_iterations": {"num_iterations": 0}, "steps_per_generation": {"steps_per_generation": 0},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 2}, "importance_sampling_level": {"importance_sampling_level": "x"},
    "pad_to_multiple_of": {"pad_to_multiple_of": 8}, "epsilon_high": {"epsilon_high": 0.28, "loss_type": "cispo"},
    "epsilon": {"epsilon": 0.3, "loss_type": "cispo", "epsilon_high": 5.0},
    "delta": {"delta": 4.0, "loss_type": "cispo", "epsilon_high": 5.0},
}  # fmt: skip
REFUSED = {*config.TRAINER, *config.GRPO, *config.WITHOUT_VLLM, *config.CISPO}


def other_value(name):
    of = {field.name: field for field in fields(MemoryGRPOConfig)}[name]
    default = of.default if of.default is not MISSING else of.default_factory()
    kinds = {bool: lambda: not default, int: lambda: default + 1, float: lambda: default + 0.25, list: lambda: ["x"]}
    return kinds.get(type(default), lambda: 1 if "int" in str(of.type) else "other")()


def test_every_option_of_trl_is_used_or_refused_or_known_to_have_no_effect():
    assert len(USED) == len(set(USED))
    groups = [set(USED), REFUSED - set(USED), {name for names in WITHOUT_EFFECT.values() for name in names}]
    assert sum(map(len, groups)) == len(set.union(*groups))
    assert set.union(*groups) == {field.name for field in fields(MemoryGRPOConfig)}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_is_refused_is_refused_by_its_value(name):
    with pytest.raises(InputError, match=f"^{name} is "):
        MemoryGRPOConfig(use_cpu=True, **CHECKED.get(name, {name: other_value(name)}))


def test_cispo_needs_a_bound_of_the_ratio_itself():
    with pytest.raises(InputError, match="epsilon_high is None"):
        MemoryGRPOConfig(use_cpu=True, loss_type="cispo")
    assert MemoryGRPOConfig(use_cpu=True, loss_type="cispo", epsilon_high=5.0).epsilon_high == 5.0
