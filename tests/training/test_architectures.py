"""What is trained and drawn is right on other people's architectures, or is refused by name."""

import copy
import random

import pytest
import torch
import transformers

from memalpha.agent.context import context_of, window_of
from memalpha.errors import InputError
from memalpha.generation.hf import HFGenerator
from memalpha.generation.small import ask_copy, small_copy
from memalpha.types import Prompt, Sampling
from memalpha.update.attention import NAME
from memalpha.update.logps import CompletionRow, packed_logps
from memalpha.update.prepare import prepare_policy, try_update
from memalpha.update.trial import Trial
from tests.helpers.architectures import (
    EXACT,
    LONG,
    PAGE,
    SHORT,
    Ids,
    drawing_error,
    page,
    update_error,
    walk,
)

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LATENT = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
}
SLIDING = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}

# of each: its class, its options, how it is trained, and whether it is drawn from
MODELS = {
    "llama": ("Llama", {}, "packed", True),
    "phi, partial rotation": ("Phi", {}, "packed", True),
    "cohere, scaled logits": ("Cohere", {}, "packed", True),
    "mixtral": ("Mixtral", {"num_local_experts": 4}, "packed", True),
    "mistral, window": ("Mistral", {"sliding_window": 12}, "packed", True),
    "phi 3, window": ("Phi3", {"sliding_window": 12}, "packed", True),
    "starcoder 2, window": ("Starcoder2", {"sliding_window": 12}, "packed", True),
    "latent, minicpm 3": ("MiniCPM3", LATENT, "packed", True),
    "latent, deepseek 3": ("DeepseekV3", {**LATENT, **EXPERTS}, "packed", True),
    "latent, glm 4": ("Glm4MoeLite", {**LATENT, **EXPERTS}, "packed", True),
    "nemotron": ("Nemotron", {"head_dim": 16}, "do not keep packed rows apart", True),
    "stablelm": ("StableLm", {}, "do not keep packed rows apart", True),
    "gemma 2": ("Gemma2", {"head_dim": 16, "sliding_window": 12, **SLIDING}, "eager", True),
    "gemma 3": ("Gemma3", {"head_dim": 16, "sliding_window": 12, **SLIDING}, "sliding", True),
    "mamba": ("Mamba", {"state_size": 8, "time_step_rank": 4}, "linear_attention", False),
    "bloom": ("Bloom", {"n_head": 4, "n_layer": 2}, "eager", False),
}
CONFIGS = {"Gemma3": "Gemma3TextConfig"}


def make(family, options):
    torch.manual_seed(0)
    kind = getattr(transformers, CONFIGS.get(family, f"{family}Config"))
    return getattr(transformers, f"{family}ForCausalLM")(kind(**{**SIZES, **options})).eval()


@pytest.mark.parametrize("name", MODELS)
def test_draws_and_updates_are_those_of_transformers_own_forward(name, caplog):
    family, options, update, draws = MODELS[name]
    model = make(family, options)
    state = torch.get_rng_state(), random.getstate()
    if draws:
        assert drawing_error(copy.deepcopy(model)) < EXACT
    else:
        with pytest.raises(InputError, match=r"cannot be drawn from here|attention"):
            HFGenerator(model, Ids())
    caplog.clear()
    assert update_error(model, [*SHORT, *LONG]) < EXACT
    if update == "packed":
        assert model.config._attn_implementation == NAME and not caplog.messages
    else:
        assert update in caplog.text and "every row by itself" in caplog.text
    assert torch.equal(torch.get_rng_state(), state[0]) and random.getstate() == state[1]


def test_rows_within_a_window_share_a_forward_and_longer_ones_do_not():
    model = make("Mistral", {"sliding_window": 12})
    prepare_policy(model)
    lengths = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    packed_logps(model, SHORT)
    packed_logps(model, [*SHORT[:1], CompletionRow(tuple(range(3, 13)), (5, 6, 7), 2)])
    assert lengths == [2 + 5 + 2 + 3 + 1, 7, 12]


def test_a_model_that_sees_later_tokens_is_refused_before_it_draws_or_trains():
    model = transformers.BertLMHeadModel(transformers.BertConfig(**SIZES)).eval()
    with pytest.raises(InputError, match=r"BertLMHeadModel cannot be trained.* later tokens"):
        prepare_policy(model)
    with pytest.raises(InputError, match="BertLMHeadModel cannot be drawn from here"):
        HFGenerator(model, Ids())


def test_a_model_that_computes_nothing_of_ids_is_refused():
    config = transformers.XmodConfig(**SIZES, languages=["en"])
    model = transformers.XmodForCausalLM(config).eval()  # wants a language
    for use in (prepare_policy, lambda model: HFGenerator(model, Ids())):
        with pytest.raises(InputError, match="XmodForCausalLM computes nothing of token ids"):
            use(model)


class Forgets(transformers.LlamaForCausalLM):
    """As code that a model brings along: its forward leaves out what it does not know."""

    def forward(self, input_ids, past_key_values=None, use_cache=None, **_):
        return super().forward(
            input_ids=input_ids, past_key_values=past_key_values, use_cache=use_cache
        )


class Guarded(transformers.LlamaForCausalLM):
    """One that cannot be built twice."""

    def __init__(self, config):
        if config.vocab_size == 64 and getattr(config, "first", True) is False:
            raise RuntimeError("no second one")
        super().__init__(config)
        config.first = False


def test_a_forward_that_leaves_inputs_out_is_updated_row_by_row(caplog):
    config = transformers.LlamaConfig(**SIZES)
    model = Forgets(config).eval()
    assert update_error(model, [*SHORT, *LONG]) < EXACT
    assert "every row by itself" in caplog.text
    with pytest.raises(InputError, match="Forgets cannot be drawn from here"):
        HFGenerator(model, Ids())


def test_a_model_without_a_small_copy_is_updated_row_by_row(caplog):
    model = Guarded(transformers.LlamaConfig(**SIZES)).eval()
    assert update_error(model, SHORT) < EXACT
    assert "no small copy of Guarded computes (RuntimeError: no second one)" in caplog.text


def test_an_architecture_is_tried_once_whatever_its_sizes():
    tried = []

    def question(copy):
        tried.append(sum(weight.numel() for weight in copy.parameters()))
        return len(tried)

    for width, layers in ((256, 3), (512, 9), (256, 3)):
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 2 * width}
        config = transformers.Qwen2Config(**{**SIZES, **sizes, "num_attention_heads": 4})
        with torch.device("meta"):
            base = transformers.Qwen2ForCausalLM(config)
        assert ask_copy(base, question) <= 2
    window = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}
    with torch.device("meta"):
        base = transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**SIZES, **window))
    before = len(tried)
    assert ask_copy(base, question) == before + 1 == len(tried)
    assert max(tried) < 10**6


def test_upper_layers_of_a_model_that_names_its_layers_otherwise_are_refused():
    options = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 64}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**options))
    with pytest.raises(InputError, match=r"train_layers is 1, but the layers of .* are unknown"):
        prepare_policy(model, top_layers=1)


# sizes of published models
LARGE = {
    "Llama": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "eos_token_id": [128001, 128009],
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "Phi3": {
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32064,
        "sliding_window": 2047,
    },
    "Qwen3Moe": {
        "hidden_size": 2048,
        "head_dim": 128,
        "moe_intermediate_size": 768,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "vocab_size": 151936,
    },
    "Gemma2": {
        "hidden_size": 3584,
        "head_dim": 256,
        "intermediate_size": 14336,
        "num_hidden_layers": 42,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 256000,
    },
}


@pytest.mark.parametrize("family", LARGE)
def test_the_copy_of_a_large_model_is_small_and_computes(family):
    config = getattr(transformers, f"{family}Config")(**LARGE[family])
    with torch.device("meta"):
        base = getattr(transformers, f"{family}ForCausalLM")(config)
    found = small_copy(base)
    assert sum(weight.numel() for weight in found.parameters()) < 4 * 10**6
    assert found(input_ids=torch.arange(3, 9)[None]).logits.isfinite().all()


def test_rows_that_longrope_computes_otherwise_are_not_mixed():
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0] * 8,
        "long_factor": [4.0] * 8,
        "original_max_position_embeddings": 20,
    }
    config = {"rope_parameters": rope, "original_max_position_embeddings": 20}
    model = make("Phi3", config)
    assert window_of(model.config) == 20 and context_of(model.config) == 20
    assert update_error(model, [*SHORT, *LONG]) < EXACT
    with pytest.raises(InputError, match="window of 20"):
        HFGenerator(model, Ids()).generate([Prompt((), tuple(range(3, 20)))], Sampling(8))


@pytest.mark.parametrize(("partial", "pairs"), [(1.0, 48), (0.75, 48)])
def test_a_model_of_published_size_with_longrope_is_tried_and_packed(partial, pairs):
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 9 for i in range(pairs)],
        "long_factor": [2.0 + i for i in range(pairs)],
        "original_max_position_embeddings": 4096,
        "partial_rotary_factor": partial,
    }
    sizes = {"vocab_size": 32064, "hidden_size": 3072, "num_hidden_layers": 32}
    heads = {"num_attention_heads": int(32 * partial), "num_key_value_heads": 8}
    more = {"original_max_position_embeddings": 4096, "max_position_embeddings": 131072}
    config = transformers.Phi3Config(**sizes, **heads, **more, rope_parameters=rope)
    with torch.device("meta"):
        base = transformers.Phi3ForCausalLM(config)
    assert try_update(base) == Trial()
    small = small_copy(base).config.rope_parameters
    assert small["short_factor"] == rope["short_factor"][: len(small["short_factor"])]
    assert config.rope_parameters["long_factor"] == rope["long_factor"]


@pytest.mark.slow
def test_every_causal_lm_is_right_or_refused_and_the_page_says_which():
    records = walk()
    assert len(records) > 100
    assert page(records) == PAGE.read_text(encoding="utf-8")
