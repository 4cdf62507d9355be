"""Packed scores and gradients against plain forwards over one unpadded row at a time."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from memalpha.errors import InputError
from memalpha.update import prepare
from memalpha.update.logps import Row, pack_rows, packed_logps, split_rows
from memalpha.update.prepare import prepare_policy

VOCABULARY = 101
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
}


def make_model(kind="llama", attention="sdpa"):
    torch.manual_seed(0)
    config, model = (
        (LlamaConfig, LlamaForCausalLM) if kind == "llama" else (Qwen3Config, Qwen3ForCausalLM)
    )
    return model(config(**SIZES, attn_implementation=attention)).float()


def make_lora(kind="llama"):
    model = get_peft_model(
        make_model(kind), LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def make_rows():
    """Two groups with interleaved rows, a lone row, shared and equal prompts, an empty completion,
    a prefix of the same length."""
    draw = torch.Generator().manual_seed(1)

    def ids(n):
        return tuple(torch.randint(0, VOCABULARY, (n,), generator=draw).tolist())

    a, b, c = ids(9), ids(6), ids(8)
    return [
        Row(a + ids(4), ids(5), 9),
        Row(b + ids(2), ids(3), 6),
        Row(a + ids(1), ids(1), 9),
        Row(ids(7), ids(4), 0),
        Row(a, ids(6), 9),
        Row(b + ids(3), ids(2), 6),
        Row(a + ids(2), (), 9),
        Row(b, ids(2), 6),
        Row(ids(9) + ids(2), ids(3), 9),
        Row(c, ids(2), 8),
        Row(c, ids(5), 8),
        Row(c, (), 8),
    ]


def plain(model, row, temperature):
    """Log-probabilities and entropies by a forward over the row alone."""
    logits = model(input_ids=torch.tensor([[*row.prompt_ids, *row.completion_ids]])).logits[0]
    scores = (logits[len(row.prompt_ids) - 1 : -1] / temperature).log_softmax(-1)
    targets = torch.tensor(row.completion_ids, dtype=torch.long)
    return scores.gather(-1, targets[:, None])[:, 0], -(scores.exp() * scores).sum(-1)


def weights_of(rows):
    draw = torch.Generator().manual_seed(2)
    return [torch.randn(len(row.completion_ids), generator=draw) for row in rows]


def gradients(model, logps, weights):
    model.zero_grad()
    sum((w * x).sum() for w, x in zip(weights, logps, strict=True)).backward()
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])


@pytest.mark.parametrize(
    "model",
    [
        make_lora,
        lambda: make_lora("qwen3"),
        make_model,
        lambda: make_model(attention="eager"),
    ],
    ids=["llama", "qwen3", "all weights", "not packed"],
)
def test_values_and_gradients_equal_plain_forwards(model):
    model, rows = model(), make_rows()
    weights = weights_of(rows)
    expected = [plain(model, row, 0.7) for row in rows]
    expected_gradient = gradients(model, [e[0] for e in expected], weights)
    prepare_policy(model)
    scores = packed_logps(model, rows, temperature=0.7, compute_entropy=True)
    gradient = gradients(model, [of_row.logps for of_row in scores], weights)
    for of_row, (logps, entropies) in zip(scores, expected, strict=True):
        torch.testing.assert_close(of_row.logps, logps, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(of_row.entropies, entropies, rtol=1e-5, atol=1e-5)
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < 1e-5
    assert all(not of_row.entropies.requires_grad for of_row in scores)


def test_gradient_checkpointing_gives_the_same_gradient():
    model, rows = make_lora("qwen3").train(), make_rows()
    prepare_policy(model)
    weights = weights_of(rows)

    def gradient():
        return gradients(model, [scores.logps for scores in packed_logps(model, rows)], weights)

    expected = gradient()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    assert model.is_gradient_checkpointing
    torch.testing.assert_close(gradient(), expected, rtol=1e-5, atol=1e-6)


def test_a_model_switched_to_prefix_attention_is_unchanged_elsewhere(tmp_path):
    model, ids = make_model(), torch.arange(2, 26).view(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    before = model(input_ids=ids, attention_mask=mask).logits
    prepare_policy(model)
    assert model.config._attn_implementation == prepare.NAME
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)
    model.save_pretrained(tmp_path)
    assert LlamaForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_split_keeps_groups_together_and_under_the_budget():
    a, b = (1,) * 10, (2,) * 10
    rows = [
        Row((*a, 5), (6,) * 5, 10),
        Row((*b, 5), (6,) * 5, 10),
        Row((*a, 5), (6,) * 5, 10),
        Row(b + (5,) * 40, (6,), 10),
    ]
    assert split_rows(rows) == [[0, 2, 1, 3]]
    assert split_rows(rows, 20) == [[0, 2], [1], [3]]
    assert split_rows(rows, 15) == [[0], [2], [1], [3]]
    for part in split_rows(rows, 35):
        assert len(part) == 1 or pack_rows([rows[i] for i in part]).input_ids.shape[1] <= 35


def test_rows_without_a_prompt_are_refused():
    for row in (Row((), (1,), 0), Row((1,), (1,), 2), Row((1,), (1,), -1)):
        with pytest.raises(InputError, match="prompt ids"):
            packed_logps(make_model(), [row])


def test_an_attention_that_cannot_share_prefixes_is_left_alone_with_a_warning(caplog):
    sliding = make_model()
    sliding.config.layer_types = ["full_attention", "sliding_attention"]
    for model, named in ((sliding, "sliding_attention"), (make_model(attention="eager"), "eager")):
        prepare_policy(model)
        assert named in caplog.messages[-1] and "every row by itself" in caplog.messages[-1]
        assert model.config._attn_implementation != prepare.NAME
