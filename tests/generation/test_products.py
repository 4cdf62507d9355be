"""oneDNN's products against PyTorch's, with weights and adapters that change in every way."""

from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from memalpha.generation import products
from memalpha.generation.hf import HFGenerator
from memalpha.generation.products import (
    Products,
    blocks,
    fast_linears,
    merged_lora,
    multiply,
    product,
    round_weight,
    using,
)
from memalpha.models import load_policy_model, resolve_model
from memalpha.types import Prompt, Sampling
from memalpha.update import prepare
from memalpha.update.prepare import prepare_policy

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"),
    reason="this PyTorch has no oneDNN operations",
)


@pytest.fixture(autouse=True)
def used(monkeypatch):
    monkeypatch.setattr(products, "faster", lambda: True)
    monkeypatch.setattr(products, "LEAST", 1)


def weight(rows=96, columns=40, seed=0):
    return nn.Parameter(
        torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)),
        requires_grad=False,
    )


@pytest.fixture
def laid_out(monkeypatch):
    """Each weight that was laid out, and whether transposed."""
    calls, real = [], products._lay_out
    monkeypatch.setattr(
        products,
        "_lay_out",
        lambda w, transposed: calls.append((id(w), transposed)) or real(w, transposed),
    )
    return calls


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_products_are_pytorchs_and_a_weight_is_laid_out_once_as_long_as_they_are_kept(
    rows, laid_out
):
    w, x, g = weight(), torch.randn(rows, 40), torch.randn(rows, 96)
    kept = Products()
    for _ in range(2):
        torch.testing.assert_close(product(x, w), x @ w.t())
        with using(kept):
            torch.testing.assert_close(product(x, w), x @ w.t())
            torch.testing.assert_close(product(g, w, transposed=True), g @ w)
    assert laid_out == [(id(w), False), (id(w), True)]
    kept.clear()
    w.data.mul_(3)
    with using(kept):
        torch.testing.assert_close(product(x, w), x @ w.t())
    assert len(laid_out) == 3


def stepped(kind, **options):
    def step(layer):
        layer.weight.requires_grad_(True)
        layer.weight.grad = torch.randn_like(layer.weight)
        kind([layer.weight], lr=0.3, **options).step()
        layer.weight.requires_grad_(False)

    return step


def replaced(layer):
    """By a tensor that the allocator puts where the one before was."""
    values = torch.randn_like(layer.weight)
    layer.weight.data = torch.empty(0)
    layer.weight.data = values.clone()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_products_of_what_changes_are_pytorchs_with_gaps_and_transposed(monkeypatch, kind):
    monkeypatch.setattr(products, "faster", lambda: True)
    x, y = torch.randn(30, 20).to(kind), torch.randn(40, 20).to(kind)
    for right in (y, y.t().contiguous().t(), torch.cat([y, y], dim=1)[:, :20]):
        torch.testing.assert_close(multiply(x, right), x @ y.t())
        torch.testing.assert_close(multiply(x.t().contiguous().t(), right), x @ y.t())


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(-2),
    "through data": lambda layer: layer.weight.data.mul_(-2),
    "replaced": replaced,
    "loaded": lambda layer: layer.load_state_dict(nn.Linear(40, 96).state_dict()),
    "SGD": stepped(torch.optim.SGD),
    "AdamW": stepped(torch.optim.AdamW),
    "AdamW fused": stepped(torch.optim.AdamW, fused=True),
    "AdamW foreach": stepped(torch.optim.AdamW, foreach=True),
    "of numpy": lambda layer: layer.weight.numpy().fill(0.5),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_layer_computes_with_the_weight_of_now_however_it_changed(change):
    layer, x = nn.Linear(40, 96).requires_grad_(False), torch.randn(5, 40)
    with torch.no_grad():
        for _ in range(5):
            with fast_linears(layer):
                torch.testing.assert_close(
                    layer(x), torch.nn.functional.linear(x, layer.weight, layer.bias)
                )
            torch.testing.assert_close(product(x, layer.weight), x @ layer.weight.t())
            torch.testing.assert_close(torch.cat(list(blocks(layer.weight, 7))), layer.weight)
            torch.testing.assert_close(
                round_weight(layer.weight, torch.bfloat16), layer.weight.bfloat16()
            )
            CHANGES[change](layer)


def adapted(seed, bias=True, **options):
    linear = nn.Sequential(nn.Linear(40, 96, bias=bias))
    config = LoraConfig(r=4, lora_alpha=5, target_modules=["0"], **options)
    policy = get_peft_model(linear, config)
    renewed(policy, seed)
    return policy


def renewed(policy, seed):
    torch.manual_seed(seed)
    for name, parameter in policy.named_parameters():
        if "lora_" in name:
            nn.init.normal_(parameter.data)


@pytest.mark.parametrize("inside", [False, True], ids=["alone", "inside another's products"])
def test_adapters_in_turn_through_one_layer(inside):
    policy, x = adapted(0), torch.randn(5, 40)
    with torch.no_grad(), using(Products()) if inside else nullcontext():
        for seed in (1, 2, 3, 1, 4, 5, 6, 2):
            renewed(policy, seed)
            expected = policy(x)
            with merged_lora(policy), fast_linears(policy):
                torch.testing.assert_close(policy(x), expected, rtol=1e-4, atol=1e-4)


def drawn(model, tokenizer):
    texts = ("apple boat", "candle door", "engine", "table violin window", "yacht")
    prompts = [Prompt((), tuple(tokenizer(text).input_ids)) for text in texts]
    completions = HFGenerator(model, tokenizer, logprobs=True).generate(prompts, Sampling(8))
    return [(c.ids, c.logprobs) for c in completions]


@pytest.mark.parametrize("kind", ["adapter", "all weights"])
def test_a_generator_draws_with_the_weights_that_an_optimizer_left(monkeypatch, kind):
    model, tokenizer = load_policy_model(resolve_model("nano"))
    if kind == "adapter":
        model = get_peft_model(
            model, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
        )
        renewed(model, 0)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=0.05, fused=True
    )
    seen = set()
    for _ in range(6):
        with monkeypatch.context() as patch:
            patch.setattr(products, "faster", lambda: False)
            expected = drawn(model, tokenizer)
        for (ids, logps), (right, of_right) in zip(drawn(model, tokenizer), expected, strict=True):
            assert ids == right
            assert logps == pytest.approx(of_right, abs=1e-3)
        seen.add(tuple(ids for ids, _ in expected))
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter) if parameter.requires_grad else None
        optimizer.step()
    assert len(seen) > 3  # else it could not fail


def test_gradients_of_an_adapter_and_of_what_goes_in_are_pytorchs(monkeypatch):
    monkeypatch.setattr(products, "LEAST", 1000)  # the thin factors are smaller
    model = nn.Sequential(nn.Linear(40, 96), nn.Linear(96, 40, bias=False))
    config = LoraConfig(r=4, target_modules=["0", "1"], init_lora_weights=False)
    policy = get_peft_model(model, config)
    x = torch.randn(2, 5, 40, requires_grad=True)
    inputs = [x, *[p for p in policy.parameters() if p.requires_grad]]
    expected = torch.autograd.grad((policy(x) ** 2).sum(), inputs)
    prepare_policy(policy, trained=False)
    counted = Mock(wraps=product)
    monkeypatch.setattr(prepare, "product", counted)
    gradients = torch.autograd.grad((policy(x) ** 2).sum(), inputs)
    torch.testing.assert_close(gradients, expected, rtol=1e-4, atol=1e-4)
    assert counted.call_count == 4  # forward and backward of both


# --------------------------------------------------------------------------------------------
# merged weights
def test_a_plain_adapter_adds_its_scaled_product():
    layer = adapted(0).base_model.model[0]
    weight, lora = layer.base_layer.weight.detach().clone(), (layer.lora_B, layer.lora_A)
    b, a = [each["default"].weight.detach() for each in lora]
    with merged_lora(layer):
        torch.testing.assert_close(layer.base_layer.weight.detach(), weight + 5 / 4 * (b @ a))
    assert torch.equal(layer.base_layer.weight, weight) and not layer.merged


@pytest.mark.parametrize(
    ("dtype", "options"),
    [
        (torch.float32, {"use_dora": True}),
        (torch.float32, {"lora_bias": True}),
        (torch.bfloat16, {}),
        (torch.float64, {}),
    ],
    ids=["dora", "lora_bias", "bfloat16", "float64"],
)
def test_what_is_not_plain_float32_is_computed_by_peft(dtype, options):
    layer = adapted(0, **options).base_model.model[0].to(dtype)
    weight = layer.base_layer.weight.detach().clone()
    x = torch.randn(2, 40).to(dtype)
    expected = layer(x)
    with merged_lora(layer):
        assert torch.equal(layer.base_layer.weight, weight) and not layer.merged
        assert torch.equal(layer(x), expected)
