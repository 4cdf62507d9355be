"""Merged weights against ``weight + scaling * B A`` and against PEFT's own merge, for every kind of
adapter."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from memalpha.generation.products import merged_lora


def make_layer(dtype=torch.float32, bias=False, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10, bias=bias))
    layer = get_peft_model(
        model, LoraConfig(r=3, lora_alpha=5, target_modules=["0"], **options)
    ).base_model.model[0]
    for parameter in (*layer.lora_B.parameters(), *layer.lora_A.parameters()):
        torch.nn.init.normal_(parameter)
    return layer.to(dtype)


def test_a_plain_adapter_adds_its_scaled_product():
    layer = make_layer()
    weight = layer.base_layer.weight.detach().clone()
    a, b = layer.lora_A["default"].weight.detach(), layer.lora_B["default"].weight.detach()
    with merged_lora(layer):
        torch.testing.assert_close(layer.base_layer.weight.detach(), weight + 5 / 3 * (b @ a))
        assert layer.merged
    assert torch.equal(layer.base_layer.weight, weight)
    assert not layer.merged


@pytest.mark.parametrize(
    "options",
    [
        {"use_dora": True},
        {"lora_bias": True, "bias": True},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
    ],
    ids=["dora", "lora_bias", "bfloat16", "float64"],
)
def test_what_is_not_plain_float32_is_computed_by_peft(options):
    layer = make_layer(**options)
    weight = layer.base_layer.weight.detach().clone()
    x = torch.randn(2, 6).to(weight.dtype)
    expected = layer(x)
    with merged_lora(layer):
        assert torch.equal(layer.base_layer.weight, weight) and not layer.merged
        assert torch.equal(layer(x), expected)
