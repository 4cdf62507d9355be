"""Small models whose ids are letters, prompts for them, and completions by transformers alone."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from memalpha.generation.hf import HFGenerator
from memalpha.types import Prompt

VOCABULARY = 61
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "initializer_range": 0.15,
    "eos_token_id": None,
    "bos_token_id": None,
}


class LetterTokenizer:
    """Stands for a tokenizer: id i is one letter, ids below 2 are special."""

    eos_token_id = None

    def __init__(self):
        self.added_tokens_decoder = {}

    def decode(self, ids, skip_special_tokens):
        assert skip_special_tokens
        return "".join(chr(ord("A") + i) for i in ids if i >= 2)


def make_model(kind="llama", attention="sdpa"):
    torch.manual_seed(0)
    if kind == "gpt2":  # learned absolute positions
        config = GPT2Config(
            vocab_size=VOCABULARY,
            n_embd=64,
            n_layer=2,
            n_head=4,
            n_positions=40,
            initializer_range=0.15,
        )
        config.eos_token_id = config.bos_token_id = None
        return GPT2LMHeadModel(config).eval()
    config, model = {
        "llama": (LlamaConfig, LlamaForCausalLM),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    }[kind]
    return model(config(**SIZES, attn_implementation=attention)).eval()


def with_weights(policy, std):
    """A policy whose new adapter is not zero."""
    torch.manual_seed(0)
    for name, parameter in policy.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=std)
    return policy


def make_lora(kind="llama", dropout=0.0):
    config = LoraConfig(
        r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=dropout
    )
    return with_weights(get_peft_model(make_model(kind), config), 0.2)


def ids(count, seed):
    return tuple(
        torch.randint(
            2, VOCABULARY, (count,), generator=torch.Generator().manual_seed(seed)
        ).tolist()
    )


def ragged_prompts():
    """Two groups with interleaved rows, a lone row, one without a shared part, one that is all
    shared."""
    a, b = ids(11, 1), ids(5, 2)
    rows = [
        (a + ids(4, 3), 11),
        (b + ids(9, 4), 5),
        (a + ids(1, 5), 11),
        (ids(7, 6), 0),
        (b + ids(2, 7), 5),
        (a, 11),
        (ids(8, 8), 3),
    ]
    return [Prompt((), row, shared) for row, shared in rows]


def alone(model, prompt, new_tokens, ends=None):
    given = torch.tensor([prompt.ids])
    options = {
        "do_sample": False,
        "max_new_tokens": new_tokens,
        "eos_token_id": ends,
        "pad_token_id": 0,
    }
    output = model.generate(input_ids=given, attention_mask=torch.ones_like(given), **options)
    return tuple(output[0, len(prompt.ids) :].tolist())


def generate(model, prompts, sampling, **options):
    return HFGenerator(model, LetterTokenizer(), **options).generate(prompts, sampling)


def some_ends(model, prompts, count=3):
    """Ids that greedy completions really contain, at different places."""
    return sorted({alone(model, prompt, 12)[2 + 2 * i] for i, prompt in enumerate(prompts[:count])})
