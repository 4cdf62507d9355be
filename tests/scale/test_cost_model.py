"""The arithmetic behind docs/scale.md against numbers worked by hand, real models' weights and
measured runs."""

import math
from dataclasses import replace

import cost_model as cost
import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from memalpha.training.logprobs import GPU_HEAD_ELEMENTS

# q 8x4, k and v 8x2 each, o 4x8, gate, up and down 8x10 each: 32 + 32 + 32 + 240 = 336 weights a
# layer
TINY = cost.Model(
    hidden=8, layers=3, heads=2, kv_heads=1, head_dim=2, intermediate=10, vocabulary=50
)
SMALL = cost.Setting(
    instances=2, rollouts=4, chunks=3, shared=100, own=20, completion=10, longest=16, questions=5
)
BARE = cost.Training(lora_rank=0, checkpointing=False)


@pytest.mark.parametrize("model", [cost.QWEN3_4B, cost.QWEN3_06B])
def test_weights_of_a_real_model_are_those_of_transformers(model):
    config = Qwen3Config(
        hidden_size=model.hidden,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.kv_heads,
        head_dim=model.head_dim,
        intermediate_size=model.intermediate,
        vocab_size=model.vocabulary,
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        real = AutoModelForCausalLM.from_config(config)
    assert model.parameters == sum(
        parameter.numel() for parameter in real.parameters() if parameter.ndim == 2
    )


def test_tokens_by_hand():
    assert (SMALL.rows, SMALL.groups) == (24, 6)
    assert cost.prefill_tokens(SMALL, True) == 6 * 100 + 24 * 20
    assert cost.prefill_tokens(SMALL, False) == 24 * 120
    assert cost.update_tokens(SMALL, BARE) == 6 * 100 + 24 * 30
    assert (
        cost.update_tokens(SMALL, replace(BARE, rows_per_forward=2)) == 12 * 100 + 24 * 30
    )  # each group in two packs
    assert cost.update_tokens(SMALL, replace(BARE, share_prefix=False)) == 24 * 130


def test_operations_of_the_update_by_hand():
    tokens, predicted, pairs = 1320, 240, 6 * (100**2 / 2 + 4 * (30 * 100 + 30**2 / 2))
    attention = 4 * 3 * 2 * 2 * pairs
    full = 6 * 1008 * tokens + 3 * attention + 6 * 400 * predicted
    assert cost.update_flops(TINY, SMALL, BARE) == full
    assert (
        cost.update_flops(TINY, SMALL, replace(BARE, checkpointing=True))
        == full + 2 * 1008 * tokens + attention
    )
    lora = 4 * 1008 * tokens + 3 * attention + 4 * 400 * predicted + 6 * TINY.lora(2) * tokens
    assert cost.update_flops(TINY, SMALL, replace(BARE, lora_rank=2)) == lora
    top = (
        (2 + 2 / 3) * 1008 * tokens
        + (1 + 2 / 3) * attention
        + 4 * 400 * predicted
        + (2 + 4 / 3) * TINY.lora(2) * tokens
    )
    assert cost.update_flops(TINY, SMALL, replace(BARE, lora_rank=2, layers=1)) == pytest.approx(
        top
    )


def test_decoding_reads_weights_once_a_step_and_waits_for_the_longest():
    weights, cache = 16 * TINY.parameters * 2, 8 * 10 * 125 * TINY.kv_elements * 2
    assert cost.decode_seconds(TINY, SMALL, math.inf, 1.0) == 3 * (weights + cache)
    assert cost.decode_seconds(TINY, SMALL, math.inf, 1.0, gpus=2) == 3 * (weights + cache / 2)
    row = (100 / 4 + 30) * TINY.kv_elements * 2
    assert cost.row_cache(TINY, SMALL, 2) == row
    assert cost.decode_seconds(TINY, SMALL, math.inf, 1.0, cache=4 * row) == 3 * (
        2 * weights + cache
    )  # in two waves
    assert cost.decode_seconds(TINY, SMALL, 1.0, math.inf) == 3 * 2 * 8 * 10 * TINY.parameters


def test_memory_by_hand():
    parts = cost.memory(TINY, 2, SMALL, replace(BARE, rows_per_forward=4), 8, "zero2")
    assert [parts[name] for name in ("weights", "gradients", "optimizer")] == [
        2 * 1408,
        2 * 1408 / 8,
        12 * 1408 / 8,
    ]
    assert parts["logits"] == 4 * 10 * 50 * 2 * 2
    inside = 8 * 8 + 4 * 10 + 2 * 3 * 2
    assert parts["activations"] == (100 + 4 * 30) * 2 * 3 * (8 + inside)
    adapters = cost.memory(TINY, 2, SMALL, replace(BARE, lora_rank=2), 8, "ddp")
    assert adapters["weights"] == 2 * 1408 + 6 * TINY.lora(2)
    assert adapters["optimizer"] == 8 * TINY.lora(2)
    assert adapters["logits"] == 80 * 50 * 6 + 80 * 8 * 12  # a frozen head: fewer than a block
    assert cost.HEAD_BLOCK == GPU_HEAD_ELEMENTS


def test_a_measured_run_is_predicted_from_another():
    """The rates are fitted to one run; the other has other lengths and is within a tenth."""
    found = cost.cpu_check()
    for name in ("quickstart, update, s", "quickstart, rollouts, s"):
        assert found[name]["ratio"] == pytest.approx(1.0)
    for name in ("squad, update, s", "squad, rollouts, s"):
        assert found[name]["ratio"] == pytest.approx(1.0, abs=0.1)
