"""Fused LoRA layers, norms and the frozen head against PEFT, transformers and a log-softmax; and
where they stand back."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from test_packed import make_lora, make_model, make_rows
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from memalpha.generation import products
from memalpha.update import logps as logps_module
from memalpha.update.logps import hidden_logps, packed_logps, token_logps
from memalpha.update.prepare import LoraProduct, RMSNormProduct, base_model, prepare_policy


class Count:
    def __init__(self, monkeypatch, function):
        self.calls, apply = 0, function.apply

        def counted(*args):
            self.calls += 1
            return apply(*args)

        monkeypatch.setattr(function, "apply", counted)


def layer(bias=False, **options):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10, bias=bias))
    wrapped = get_peft_model(
        model, LoraConfig(r=3, lora_alpha=5, target_modules=["0"], **options)
    ).base_model.model[0]
    torch.nn.init.normal_(wrapped.lora_B["default"].weight)
    return wrapped


def gradients(module, x, weights):
    x = x.clone().requires_grad_()
    trained = [p for p in module.parameters() if p.requires_grad]
    y = module(x)
    return [y.detach(), *torch.autograd.grad((weights * y).sum(), [x, *trained])]


@pytest.mark.parametrize(
    ("shape", "bias", "frozen"), [((7,), False, False), ((2, 3), True, False), ((4,), False, True)]
)
def test_a_lora_layer_gives_pefts_values_and_gradients(monkeypatch, bias, shape, frozen):
    module, x, weights = (
        layer(bias).requires_grad_(not frozen),
        torch.randn(*shape, 6),
        torch.randn(*shape, 10),
    )
    module.base_layer.requires_grad_(False)
    expected = gradients(module, x, weights)
    prepare_policy(module, trained=False)
    count = Count(monkeypatch, LoraProduct)
    for got, wanted in zip(gradients(module, x, weights), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert count.calls == 1


def stands_back(monkeypatch, module, function=LoraProduct):
    x = torch.randn(4, 6, dtype=next(module.parameters()).dtype)
    expected = module(x)
    prepare_policy(module, trained=False)
    count = Count(monkeypatch, function)
    assert torch.equal(module(x), expected)
    assert count.calls == 0


def two_adapters(module):
    module.update_layer("other", 2, 4, LoraConfig(r=2, lora_alpha=4))
    torch.nn.init.normal_(module.lora_B["other"].weight)
    module.set_adapter(["default", "other"])


CHANGES = {
    "off": lambda module: module.enable_adapters(False),
    "merged": lambda module: module.merge(),
    "two": two_adapters,
    "dropout": lambda module: module.lora_dropout.update({"default": torch.nn.Dropout(0.5).eval()}),
    "base": lambda module: module.base_layer.weight.requires_grad_(True),
    "bfloat16": lambda module: module.bfloat16(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_pefts_own_code_runs_where_the_fused_one_does_not_fit(monkeypatch, change):
    module = layer()
    CHANGES[change](module)
    stands_back(monkeypatch, module)


def test_nothing_changes_bitwise_without_a_gradient(monkeypatch):
    with torch.no_grad():
        stands_back(monkeypatch, layer())
        stands_back(monkeypatch, LlamaRMSNorm(6), RMSNormProduct)


@pytest.mark.parametrize("bias", [False, True])
def test_under_autocast_a_lora_layer_is_that_of_float32_rounded(monkeypatch, bias):
    module, x, weights = layer(bias), torch.randn(40, 6), torch.randn(40, 10)
    expected, kind = gradients(module, x, weights), torch.bfloat16
    prepare_policy(module, trained=False)
    count = Count(monkeypatch, LoraProduct)
    for given in (x, x.to(kind)):
        with torch.autocast("cpu", kind):
            found = gradients(module, given, weights)
        assert [value.dtype for value in found] == [kind, given.dtype, torch.float32, torch.float32]
        for got, wanted in zip(found, expected, strict=True):
            assert (got.float() - wanted).norm() < 0.01 * wanted.norm()
    assert count.calls == 2
    with torch.no_grad():
        module.base_layer.weight.mul_(2)  # what was rounded before is outdated
    with torch.autocast("cpu", kind):
        module.lora_B["default"].weight.data.zero_()
        assert torch.equal(module(x), module.base_layer(x))


def test_on_every_device_a_lora_layer_keeps_its_input_once_and_in_16_bits(monkeypatch):
    """PEFT keeps it in float32 as well, which is most of what an update without gradient
    checkpointing keeps."""
    kept, on = {}, {"device": "meta", "dtype": torch.bfloat16}
    for name in ("peft", "ours"):
        module, sizes = layer().to("meta"), []
        module.base_layer.bfloat16().requires_grad_(False)
        if name == "ours":
            prepare_policy(module, trained=False)
            count = Count(monkeypatch, LoraProduct)
        keep = lambda tensor, sizes=sizes: (  # noqa: E731
            sizes.append((tuple(tensor.shape), tensor.dtype)) or tensor
        )
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            module(torch.empty(40, 6, requires_grad=True, **on))
        kept[name] = [dtype for shape, dtype in sizes if shape == (40, 6)]
    assert (kept["ours"], count.calls) == ([torch.bfloat16], 1)
    assert torch.float32 in kept["peft"]


def test_on_a_base_of_16_bits_a_lora_layer_is_that_of_float32_rounded(monkeypatch):
    module, x, weights = layer(), torch.randn(40, 6).bfloat16(), torch.randn(40, 10)
    module.base_layer.bfloat16().float()  # so that the type is the one difference
    expected = gradients(module, x.float(), weights)
    module.base_layer.bfloat16()
    prepare_policy(module, trained=False)
    count = Count(monkeypatch, LoraProduct)
    found = gradients(module, x, weights)
    assert [value.dtype for value in found] == [
        torch.bfloat16,
        torch.bfloat16,
        torch.float32,
        torch.float32,
    ]
    for got, wanted in zip(found, expected, strict=True):
        assert (got.float() - wanted).norm() < 0.01 * wanted.norm()
    assert count.calls == 1


@pytest.mark.parametrize("autocast", [False, True])
def test_in_16_bits_a_lora_layer_gives_the_same_bits_with_and_without_a_gradient(autocast):
    module, x = layer(), torch.randn(40, 6).bfloat16()
    module.base_layer.bfloat16().requires_grad_(False)
    prepare_policy(module, trained=False)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        trained = module(x)
        with torch.no_grad():
            assert torch.equal(module(x), trained)


def test_under_autocast_a_norm_stays_in_float32(monkeypatch):
    norm, x, weights = LlamaRMSNorm(8), torch.randn(5, 8), torch.randn(5, 8)
    expected = gradients(norm, x, weights)
    prepare_policy(norm, trained=False)
    count = Count(monkeypatch, RMSNormProduct)
    with torch.autocast("cpu", torch.bfloat16):
        found = gradients(norm, x, weights)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert count.calls == 1


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize("frozen", [True, False])
def test_a_norm_gives_transformers_values_and_gradients(monkeypatch, kind, frozen):
    torch.manual_seed(1)
    norm = kind(8, eps=1e-3)
    norm.weight.data.normal_().add_(1.0)
    norm.weight.requires_grad_(not frozen)
    x, weights = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 3, 8)
    expected = gradients(norm, x, weights)
    prepare_policy(norm, trained=False)
    count = Count(monkeypatch, RMSNormProduct)
    for got, wanted in zip(gradients(norm, x, weights), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert count.calls == 1
    assert isinstance(norm, kind)


def test_a_packed_call_uses_all_three(monkeypatch):
    model = make_lora("qwen3")
    counts = [
        Count(monkeypatch, f) for f in (LoraProduct, RMSNormProduct, logps_module._HiddenLogps)
    ]
    prepare_policy(model)
    packed_logps(model, make_rows())
    assert [count.calls for count in counts] == [
        2 * 7,
        2 * 4 + 1,
        1,
    ]  # layers x projections, norms of layers, heads and model


# ------------------------------------------------------------------------------------------------
# the frozen head
@pytest.mark.parametrize("blocks", [(512, 2**18), (2, 6), (3, 1)])
def test_hidden_logps_equal_a_log_softmax(monkeypatch, blocks):
    monkeypatch.setattr(logps_module, "TOKENS_AT_ONCE", blocks[0])
    monkeypatch.setattr(logps_module, "HEAD_ELEMENTS", blocks[1])
    draw = torch.Generator().manual_seed(4)
    hidden = (3 * torch.randn(5, 4, generator=draw)).requires_grad_()
    weight, targets = torch.randn(7, 4, generator=draw), torch.randint(0, 7, (5,), generator=draw)
    weights = torch.randn(5, generator=draw)
    scores = (hidden @ weight.t() / 0.6).log_softmax(-1)
    expected = scores.gather(-1, targets[:, None])[:, 0]
    (expected_gradient,) = torch.autograd.grad((weights * expected).sum(), hidden)
    result = hidden_logps(hidden, weight, targets, 0.6, compute_entropy=True)
    (gradient,) = torch.autograd.grad((weights * result.logps).sum(), hidden)
    torch.testing.assert_close(result.logps, expected)
    torch.testing.assert_close(gradient, expected_gradient)
    torch.testing.assert_close(result.entropies, -(scores.exp() * scores).sum(-1))
    assert not result.entropies.requires_grad
    with torch.no_grad():
        torch.testing.assert_close(hidden_logps(hidden, weight, targets, 0.6).logps, expected)
    monkeypatch.setattr(logps_module, "ELEMENTS_AT_ONCE", blocks[1])
    result = token_logps(hidden @ weight.t(), targets, 0.6, compute_entropy=True)
    torch.testing.assert_close(
        [result.logps, result.entropies], [expected, -(scores.exp() * scores).sum(-1)]
    )
    torch.testing.assert_close(
        torch.autograd.grad((weights * result.logps).sum(), hidden), (expected_gradient,)
    )


class LargestTensor(TorchDispatchMode):
    """Numbers in the largest tensor that an operation made."""

    largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        sizes = [
            x.numel()
            for x in (made if isinstance(made, tuple | list) else [made])
            if isinstance(x, torch.Tensor)
        ]
        self.largest = max(self.largest, *sizes, 0)
        return made


@pytest.mark.parametrize("how", ["16-bit weights", "autocast"])
def test_hidden_logps_in_16_bits_equal_those_of_16_bit_logits_which_are_never_all_there(
    monkeypatch, how
):
    monkeypatch.setattr(logps_module, "HEAD_ELEMENTS", 2**12)
    draw = torch.Generator().manual_seed(5)
    weight, targets = (
        torch.randn(4000, 32, generator=draw) / 4,
        torch.randint(0, 4000, (64,), generator=draw),
    )
    hidden, weights = torch.randn(64, 32, generator=draw), torch.randn(64, generator=draw)
    half, cast = weight.bfloat16(), how == "autocast"
    hidden = (hidden if cast else hidden.bfloat16()).requires_grad_()
    logits = (hidden.bfloat16() @ half.t()).float()
    expected = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    (wanted,) = torch.autograd.grad((weights * expected).sum(), hidden)
    with torch.autocast("cpu", torch.bfloat16, enabled=cast), LargestTensor() as seen:
        result = hidden_logps(hidden, weight if cast else half, targets, compute_entropy=True)
        (gradient,) = torch.autograd.grad((weights * result.logps).sum(), hidden)
    assert seen.largest <= max(weight.numel(), 2**12) < logits.numel()
    torch.testing.assert_close(result.logps, expected, atol=1e-4, rtol=1e-4)
    assert float((gradient - wanted).norm() / wanted.norm()) < 0.02
    torch.testing.assert_close(
        result.entropies, -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1), atol=0.02, rtol=0
    )


def test_hidden_logps_of_extreme_logits_and_of_no_tokens():
    hidden, weight = torch.tensor([[400.0], [-400.0]]), torch.tensor([[1.0], [-1.0], [0.5]])
    result = hidden_logps(hidden, weight, torch.tensor([0, 0]), compute_entropy=True)
    assert (result.logps.tolist(), result.entropies.tolist()) == ([0.0, -800.0], [0.0, 0.0])
    result = hidden_logps(
        hidden[:0], weight, torch.zeros(0, dtype=torch.long), compute_entropy=True
    )
    assert result.logps.shape == result.entropies.shape == (0,)


def test_heads_that_do_not_fit_are_left_to_the_model():
    assert logps_module.frozen_head(make_model()) is None  # it is trained
    base = base_model(make_lora())
    assert logps_module.frozen_head(base) is base.lm_head
    base.config.model_type = "granite"  # scales its logits afterwards
    assert logps_module.frozen_head(base) is None
    base.config.model_type = LlamaConfig.model_type
    with pytest.raises(RuntimeError), products.forwarding({base.lm_head: torch.neg}):
        assert logps_module.frozen_head(base) is None  # patched
        raise RuntimeError
    assert logps_module.frozen_head(base) is base.lm_head
    assert logps_module.frozen_head(base.bfloat16()) is base.lm_head
