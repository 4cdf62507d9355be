"""Packed scores, fused layers and the frozen head against plain forwards and gradients."""

from itertools import pairwise

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from memalpha.generation import products
from memalpha.update import attention, prepare
from memalpha.update import logps as logps_module
from memalpha.update.attention import base_model
from memalpha.update.logps import (
    CompletionRow,
    hidden_logps,
    packed_logps,
    split_rows,
    token_logps,
)
from memalpha.update.prepare import LoraProduct, RMSNormProduct, prepare_policy
from tests.helpers.gradient_check import Case, make_base, make_policy

VOCABULARY = 101


def make_lora(architecture="llama"):
    return make_policy(Case(architecture=architecture))


def make_rows():
    """Two groups with interleaved rows, a lone row, shared and equal prompts, an empty completion,
    a prefix of the same length."""
    draw = torch.Generator().manual_seed(1)

    def ids(n):
        return tuple(torch.randint(0, VOCABULARY, (n,), generator=draw).tolist())

    a, b, c = ids(9), ids(6), ids(8)
    return [
        CompletionRow(a + ids(4), ids(5), 9),
        CompletionRow(b + ids(2), ids(3), 6),
        CompletionRow(a + ids(1), ids(1), 9),
        CompletionRow(ids(7), ids(4), 0),
        CompletionRow(a, ids(6), 9),
        CompletionRow(b + ids(3), ids(2), 6),
        CompletionRow(a + ids(2), (), 9),
        CompletionRow(b, ids(2), 6),
        CompletionRow(ids(9) + ids(2), ids(3), 9),
        CompletionRow(c, ids(2), 8),
        CompletionRow(c, ids(5), 8),
        CompletionRow(c, (), 8),
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


def each(lengths):
    """The slice of each of some segments."""
    bounds = lengths.bounds.tolist()
    return [slice(*pair) for pair in pairwise(bounds)]


def attended(query, key, causal, scale):
    """Scores of (tokens, heads, size), masked keys at minus infinity: (heads, queries, keys)."""
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    scores = torch.einsum("qhs,khs->hqk", query, key) * scale
    return (
        scores.masked_fill(~torch.ones(scores.shape[1:]).tril().bool(), -torch.inf)
        if causal
        else scores
    )


def flash(query, key, value, queries, keys, causal, scale):
    """What the kernel computes, by its definition."""
    out, norms = torch.empty_like(query), torch.empty(query.shape[1], len(query))
    for own, seen in zip(each(queries), each(keys), strict=True):
        scores = attended(query[own], key[seen], causal, scale)
        values = value[seen].repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        out[own] = torch.einsum("hqk,khs->qhs", scores.softmax(-1), values)
        norms[:, own] = scores.logsumexp(-1)
    return out, norms


def flash_gradient(grad, states, out, norms, queries, keys, causal, scale):
    """The kernel's gradient: softmax from the normalisers given, row sums from the output given."""
    query, key, value = states
    groups = query.shape[1] // key.shape[1]
    sums = [torch.zeros_like(state) for state in states]
    for own, seen in zip(each(queries), each(keys), strict=True):
        weights = (attended(query[own], key[seen], causal, scale) - norms[:, own, None]).exp()
        values = value[seen].repeat_interleave(groups, dim=1)
        keys_here = key[seen].repeat_interleave(groups, dim=1)
        change = torch.einsum("qhs,khs->hqk", grad[own], values)
        mean = (grad[own] * out[own]).sum(-1).t()[..., None]
        of_scores = weights * (change - mean) * scale
        sums[0][own] += torch.einsum("hqk,khs->qhs", of_scores, keys_here)
        for total, part in (
            (sums[1], torch.einsum("hqk,qhs->khs", of_scores, query[own])),
            (sums[2], torch.einsum("hqk,qhs->khs", weights, grad[own])),
        ):
            total[seen] += part.unflatten(1, (-1, groups)).sum(2)
    return tuple(sums)


@pytest.mark.parametrize(
    "model",
    [
        make_lora,
        lambda: make_lora("qwen3"),
        lambda: make_lora("qwen3"),
        lambda: make_lora("qwen3"),
        lambda: make_lora("qwen3"),
        lambda: make_lora("qwen3"),
        lambda: make_lora("qwen3").train(),
        lambda: make_base("llama"),
        lambda: make_base("llama", "eager"),
    ],
    ids=[
        "llama",
        "qwen3",
        "small tiles",
        "padded",
        "flash",
        "compiled",
        "checkpointing",
        "all weights",
        "not packed",
    ],
)
def test_values_and_gradients_equal_plain_forwards(model, request, monkeypatch):
    model, rows = model(), make_rows()
    case = request.node.callspec.id
    if case == "flash":
        monkeypatch.setattr(attention, "runs_flash", lambda *_: True)
        monkeypatch.setattr(attention, "flash", flash)
        monkeypatch.setattr(attention, "flash_gradient", flash_gradient)
    monkeypatch.setattr(prepare, "BACKEND", "aot_eager")
    if case == "small tiles":
        monkeypatch.setattr(attention, "TILE", 4)
    if case == "padded":
        monkeypatch.setattr(attention, "runs_tiles", lambda *_: False)
    weights = weights_of(rows)
    expected = [plain(model, row, 0.7) for row in rows]
    expected_gradient = gradients(model, [e[0] for e in expected], weights)
    prepare_policy(model, compiled=case == "compiled")
    packs = model.config._attn_implementation == attention.NAME
    assert packs is (case != "not packed"), "a fault would turn packing off and stay unseen"
    if case == "checkpointing":
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    scores = packed_logps(model, rows, temperature=0.7, compute_entropy=True)
    gradient = gradients(model, [of_row.logps for of_row in scores], weights)
    for of_row, (logps, entropies) in zip(scores, expected, strict=True):
        torch.testing.assert_close(of_row.logps, logps, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(of_row.entropies, entropies, rtol=1e-5, atol=1e-5)
    assert (gradient - expected_gradient).norm() / expected_gradient.norm() < 1e-5
    assert all(not of_row.entropies.requires_grad for of_row in scores)


def test_a_model_switched_to_prefix_attention_is_unchanged_elsewhere(tmp_path):
    model, ids = make_base("llama"), torch.arange(2, 26).view(2, 12)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    before = model(input_ids=ids, attention_mask=mask).logits
    prepare_policy(model)
    assert model.config._attn_implementation == attention.NAME
    assert torch.equal(model(input_ids=ids, attention_mask=mask).logits, before)
    model.save_pretrained(tmp_path)
    assert LlamaForCausalLM.from_pretrained(tmp_path).config._attn_implementation == "sdpa"


def test_split_keeps_groups_together_and_under_the_budget():
    a, b = (1,) * 10, (2,) * 10
    rows = [
        CompletionRow((*a, 5), (6,) * 5, 10),
        CompletionRow((*b, 5), (6,) * 5, 10),
        CompletionRow((*a, 5), (6,) * 5, 10),
        CompletionRow(b + (5,) * 40, (6,), 10),
    ]
    assert split_rows(rows) == [[0, 2, 1, 3]]
    assert split_rows(rows, 20) == [[0, 2], [1], [3]]
    assert split_rows(rows, 15) == [[0], [2], [1], [3]]


def test_an_attention_that_cannot_share_prefixes_is_left_alone_with_a_warning(caplog):
    sliding = make_base("llama")
    sliding.config.layer_types = ["full_attention", "sliding_attention"]
    for model, named in ((sliding, "sliding_attention"), (make_base("llama", "eager"), "eager")):
        prepare_policy(model)
        assert named in caplog.messages[-1] and "every row by itself" in caplog.messages[-1]
        assert model.config._attn_implementation != attention.NAME


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


def layer_gradients(module, x, weights):
    x = x.clone().requires_grad_()
    trained = [p for p in module.parameters() if p.requires_grad]
    y = module(x)
    return [y.detach(), *torch.autograd.grad((weights * y).sum(), [x, *trained])]


@pytest.mark.parametrize(
    ("shape", "bias", "frozen"), [((7,), False, False), ((2, 3), True, False), ((4,), False, True)]
)
def test_a_lora_layer_gives_pefts_values_and_layer_gradients(monkeypatch, bias, shape, frozen):
    module, x, weights = (
        layer(bias).requires_grad_(not frozen),
        torch.randn(*shape, 6),
        torch.randn(*shape, 10),
    )
    module.base_layer.requires_grad_(False)
    expected = layer_gradients(module, x, weights)
    prepare_policy(module, trained=False)
    count = Count(monkeypatch, LoraProduct)
    for got, wanted in zip(layer_gradients(module, x, weights), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    assert count.calls == 1


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
    "no gradient": lambda module: None,
}


@pytest.mark.parametrize("change", CHANGES)
def test_pefts_own_code_runs_where_the_fused_one_does_not_fit(monkeypatch, change):
    module = layer()
    CHANGES[change](module)
    x = torch.randn(4, 6, dtype=next(module.parameters()).dtype)
    with torch.set_grad_enabled(change != "no gradient"):
        expected = module(x)
        prepare_policy(module, trained=False)
        count = Count(monkeypatch, LoraProduct)
        assert torch.equal(module(x), expected)
    assert count.calls == 0


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize(("bias", "autocast"), [(False, True), (True, True), (False, False)])
def test_in_16_bits_a_lora_layer_is_that_of_float32_rounded(monkeypatch, bias, autocast, kind):
    module, weights = layer(bias), torch.randn(40, 10)
    x = torch.randn(40, 6).to(kind)
    module.base_layer.to(kind).float()  # so that the type is the one difference
    expected = layer_gradients(module, x.float(), weights)
    if not autocast:
        module.base_layer.to(kind)
    prepare_policy(module, trained=False)
    count = Count(monkeypatch, LoraProduct)
    with torch.autocast("cpu", kind, enabled=autocast):
        found = layer_gradients(module, x, weights)
    assert [value.dtype for value in found] == [kind, kind, torch.float32, torch.float32]
    for got, wanted in zip(found, expected, strict=True):
        assert (got.float() - wanted).norm() < 0.01 * wanted.norm()
    assert count.calls == 1


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("autocast", [False, True])
def test_in_16_bits_a_lora_layer_gives_the_same_bits_with_and_without_a_gradient(autocast, kind):
    module, x = layer(), torch.randn(40, 6).to(kind)
    module.base_layer.to(kind).requires_grad_(False)
    prepare_policy(module, trained=False)
    with torch.autocast("cpu", kind, enabled=autocast):
        trained = module(x)
        with torch.no_grad():
            assert torch.equal(module(x), trained)


@pytest.mark.parametrize("kind", [LlamaRMSNorm, Qwen3RMSNorm])
@pytest.mark.parametrize(("frozen", "autocast"), [(True, False), (False, False), (False, True)])
def test_a_norm_gives_transformers_values_and_layer_gradients(monkeypatch, kind, frozen, autocast):
    torch.manual_seed(1)
    norm = kind(8, eps=1e-3)
    norm.weight.data.normal_().add_(1.0)
    norm.weight.requires_grad_(not frozen)
    x, weights = torch.randn(2, 5, 3, 8), torch.randn(2, 5, 3, 8)
    expected = layer_gradients(norm, x, weights)
    prepare_policy(norm, trained=False)
    count = Count(monkeypatch, RMSNormProduct)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = layer_gradients(norm, x, weights)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert count.calls == 1


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


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("how", ["16-bit weights", "autocast"])
def test_hidden_logps_in_16_bits_equal_those_of_16_bit_logits(monkeypatch, how, kind):
    monkeypatch.setattr(logps_module, "HEAD_ELEMENTS", 2**12)
    draw = torch.Generator().manual_seed(5)
    weight, targets = (
        torch.randn(4000, 32, generator=draw) / 4,
        torch.randint(0, 4000, (64,), generator=draw),
    )
    hidden, weights = torch.randn(64, 32, generator=draw), torch.randn(64, generator=draw)
    half, cast = weight.to(kind), how == "autocast"
    hidden = (hidden if cast else hidden.to(kind)).requires_grad_()
    logits = (hidden.to(kind) @ half.t()).float()
    expected = logits.log_softmax(-1).gather(-1, targets[:, None])[:, 0]
    (wanted,) = torch.autograd.grad((weights * expected).sum(), hidden)
    with torch.autocast("cpu", kind, enabled=cast):
        result = hidden_logps(hidden, weight if cast else half, targets, compute_entropy=True)
        (gradient,) = torch.autograd.grad((weights * result.logps).sum(), hidden)
    torch.testing.assert_close(result.logps, expected, atol=1e-4, rtol=1e-4)
    assert float((gradient - wanted).norm() / wanted.norm()) < 0.02
    torch.testing.assert_close(
        result.entropies, -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1), atol=0.02, rtol=0
    )


def test_heads_that_do_not_fit_are_left_to_the_model():
    assert logps_module.frozen_head(make_base("llama")) is None  # it is trained
    base = base_model(make_lora())
    assert logps_module.frozen_head(base) is base.lm_head
    base.config.model_type = "granite"  # scales its logits afterwards
    assert logps_module.frozen_head(base) is None
    base.config.model_type = LlamaConfig.model_type
    with pytest.raises(RuntimeError), products.forwarding({base.lm_head: torch.neg}):
        assert logps_module.frozen_head(base) is None  # patched
        raise RuntimeError
    assert logps_module.frozen_head(base) is base.lm_head
