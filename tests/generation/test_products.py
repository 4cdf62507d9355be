"""oneDNN's products against PyTorch's, with weights and adapters that change in every way."""

from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_packed import make_lora, make_rows
from torch import nn

from memalpha.generation import products
from memalpha.generation.hf import HFGenerator
from memalpha.generation.products import (
    Products,
    blocks,
    fast_linears,
    merged_lora,
    product,
    rounded,
    using,
)
from memalpha.models import load_policy_model, resolve_model
from memalpha.types import Prompt, Sampling
from memalpha.update import prepare
from memalpha.update.logps import packed_logps
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
                rounded(layer.weight, torch.bfloat16), layer.weight.bfloat16()
            )
            CHANGES[change](layer)


def adapted(seed):
    policy = get_peft_model(nn.Sequential(nn.Linear(40, 96)), LoraConfig(r=4, target_modules=["0"]))
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
        base = policy.base_model.model[0].base_layer
        torch.testing.assert_close(product(x, base.weight), x @ base.weight.t())  # the base's again


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


def test_a_generator_of_weights_that_never_change_lays_them_out_once(laid_out):
    model, tokenizer = load_policy_model(resolve_model("nano"))
    prompts = [
        Prompt((), tuple(tokenizer(text).input_ids)) for text in ("apple", "boat", "candle", "door")
    ]
    for keep, times in ((True, 1), (False, 2)):
        generator = HFGenerator(model, tokenizer, keep_prefix=keep)
        laid_out.clear()
        assert generator.generate(prompts, Sampling(4)) == generator.generate(prompts, Sampling(4))
        assert len(laid_out) == times * len(set(laid_out)) > 0


def test_an_update_lays_each_frozen_weight_out_once_a_direction(laid_out):
    policy = make_lora("qwen3")
    with using(Products()):
        for _ in range(3):
            logps = [scores.logps for scores in packed_logps(policy, make_rows())]
            sum(row.sum() for row in logps).backward()
    assert len(laid_out) == len(set(laid_out)) and {transposed for _, transposed in laid_out} == {
        False,
        True,
    }


def test_linear_layers_use_it_inside_the_block_alone_and_lora_gradients_are_pytorchs(monkeypatch):
    monkeypatch.setattr(products, "LEAST", 1000)  # the thin factors are smaller
    model = nn.Sequential(nn.Linear(40, 96), nn.Linear(96, 40, bias=False))
    policy = get_peft_model(
        model, LoraConfig(r=4, target_modules=["0", "1"], init_lora_weights=False)
    )
    x = torch.randn(2, 5, 40)
    with torch.no_grad():
        expected, calls = policy(x), []
        monkeypatch.setattr(
            products, "product", lambda *args, **more: calls.append(1) or product(*args, **more)
        )
        with fast_linears(policy):
            torch.testing.assert_close(policy(x), expected)
        assert len(calls) == 2
        policy(x)
        assert len(calls) == 2 and not any("forward" in vars(layer) for layer in policy.modules())

    def gradients():
        policy.zero_grad()
        inputs = x.clone().requires_grad_(True)
        (policy(inputs) ** 2).sum().backward()
        return [inputs.grad, *[p.grad.clone() for p in policy.parameters() if p.requires_grad]]

    expected = gradients()
    prepare_policy(policy, trained=False)
    monkeypatch.setattr(
        prepare, "product", lambda *args, **more: calls.append(1) or product(*args, **more)
    )
    for found, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(calls) == 6  # forward and backward of both
