"""oneDNN's products against PyTorch's, and that a weight that changes is laid out again."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn

from memalpha.generation import products
from memalpha.generation.products import fast_linears, product
from memalpha.training import fast_layers
from memalpha.training.fast_layers import use_fast_layers

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this PyTorch has no oneDNN operations")


@pytest.fixture(autouse=True)
def used(monkeypatch):
    monkeypatch.setattr(products, "faster", lambda: True)
    monkeypatch.setattr(products, "LEAST", 1)


def weight(rows=96, columns=40, seed=0):
    return nn.Parameter(torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)), requires_grad=False)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_products_are_pytorchs(rows):
    w, x, g = weight(), torch.randn(rows, 40), torch.randn(rows, 96)
    torch.testing.assert_close(product(x, w), x @ w.t())
    torch.testing.assert_close(product(g, w, transposed=True), g @ w)
    assert set(w._made[1]) == {False, True}
    laid_out = w._made[1][False]
    product(x, w)
    assert w._made[1][False] is laid_out  # once


def test_a_weight_that_changed_is_laid_out_again():
    w, x = weight(), torch.randn(3, 40)
    product(x, w)
    with torch.no_grad():
        w.mul_(2)
    torch.testing.assert_close(product(x, w), x @ w.t())
    w.data = torch.randn(96, 40)
    torch.testing.assert_close(product(x, w), x @ w.t())


def test_linear_layers_use_it_inside_the_block_alone_and_lora_gradients_are_pytorchs(monkeypatch):
    monkeypatch.setattr(products, "LEAST", 1000)  # the thin factors are smaller
    model = nn.Sequential(nn.Linear(40, 96), nn.Linear(96, 40, bias=False))
    policy = get_peft_model(model, LoraConfig(r=4, target_modules=["0", "1"], init_lora_weights=False))
    x = torch.randn(2, 5, 40)
    with torch.no_grad():
        expected, calls = policy(x), []
        monkeypatch.setattr(products, "product", lambda *args, **more: calls.append(1) or product(*args, **more))
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
    use_fast_layers(policy)
    monkeypatch.setattr(fast_layers, "product", lambda *args, **more: calls.append(1) or product(*args, **more))
    for found, wanted in zip(gradients(), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)
    assert len(calls) == 6  # forward and backward of both
