"""Captured steps, emulated: a replay runs the step that was captured, over its own buffers, as a
CUDA graph does. scripts/gpu_session.sh compares real graphs."""

from unittest.mock import Mock

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from memalpha.errors import MemAlphaError
from memalpha.generation import decoding, graphs, hf
from memalpha.generation.cache import BufferCache, Room
from memalpha.generation.decoding import Drawing, ForwardInput, RowState
from memalpha.generation.hf import HFGenerator
from memalpha.types import Sampling
from memalpha.update import prepare
from memalpha.update.prepare import prepare_policy
from tests.helpers.letters import (
    LetterTokenizer,
    generate,
    make_lora,
    make_model,
    ragged_prompts,
    some_ends,
)

DRAWN = Sampling(40, temperature=0.9, seed=3)


@pytest.fixture
def captured(monkeypatch):
    """Let steps be captured on the CPU; returns the shapes that were, in order."""
    shapes = []

    def capture(self, unit):
        step = isinstance(unit, decoding.Step)
        shapes.append((len(unit.rows.last) if step else unit.ids.shape, unit.cache.capacity))
        return unit

    monkeypatch.setattr(hf, "captures", lambda model: True)
    monkeypatch.setattr(graphs, "_memory", lambda device: 2**40)
    monkeypatch.setattr(graphs.Graphs, "_capture", capture)
    monkeypatch.setattr(graphs, "SHRINKS", 2)
    monkeypatch.setitem(decoding.CHECK_EVERY, "else", 4)
    return shapes


def equal(found, expected):
    assert [(c.ids, c.text, c.stop) for c in found] == [(c.ids, c.text, c.stop) for c in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=1e-5
        )


def draw_plainly(model, prompts, sampling):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hf, "captures", lambda model: False)
        return generate(model, prompts, sampling, logprobs=True, merge_adapters=False)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("sampling", [Sampling(40), DRAWN], ids=["greedy", "drawn"])
def test_captured_steps_draw_what_plain_ones_do(captured, attention, sampling):
    model, different = make_model("qwen3", attention), ragged_prompts()
    model.generation_config.eos_token_id = some_ends(model, different)
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True)
    for prompts in (different, [different[i] for i in (0, 2, 0, 3, 0, 5, 3, 1)], different[:3]):
        expected = draw_plainly(model, prompts, sampling)
        equal(generator.generate(prompts, sampling), expected)
        equal(generator.generate(prompts, sampling), expected)  # its prompt is captured, too
        made = len(captured)
        equal(generator.generate(prompts, sampling), expected)
        assert len(captured) == made, "the third call needs no capture"
    assert (8, 256) in captured
    assert (4, 256) in captured, "rows that ended left"
    assert ((4, 64), 256) in captured and ((8, 64), 256) in captured, "prefixes, own parts"


def test_weights_changed_in_place_are_seen_and_moved_ones_captured_anew(captured):
    model, prompts = make_lora("qwen3"), ragged_prompts()
    prepare_policy(model.double())
    adapters = [weight for name, weight in model.named_parameters() if "lora_" in name]
    for weight in adapters:  # of another type than the base, as in training in 16 bits
        weight.data = weight.data.float()
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True, merge_adapters=False)
    for _ in range(2):
        first = generator.generate(prompts, DRAWN)
    equal(first, draw_plainly(model, prompts, DRAWN))
    made = len(captured)
    with torch.no_grad():  # an optimizer's step
        for weight in adapters:
            weight.add_(0.05)
    second = generator.generate(prompts, DRAWN)
    assert [c.ids for c in second] != [c.ids for c in first]
    equal(second, draw_plainly(model, prompts, DRAWN))
    assert len(captured) == made
    with model.disable_adapter():
        equal(generator.generate(prompts, DRAWN), draw_plainly(model, prompts, DRAWN))
    assert len(captured) > made, "without the adapter it is another graph"
    equal(generator.generate(prompts, DRAWN), second)
    made = len(captured)
    weight = adapters[-1]
    weight.data = weight.data.clone() * 2
    equal(generator.generate(prompts, DRAWN), draw_plainly(model, prompts, DRAWN))
    assert len(captured) > made, "a tensor has another address"


def test_large_buffers_do_not_stay_after_a_call(captured, monkeypatch):
    model, prompts = make_model(), ragged_prompts()
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True)
    expected = generator.generate(prompts, DRAWN)
    slots = 2 * 2 * 8 * 2 * 256 * 16  # layers, keys and values, rows, heads, slots, head size
    assert generator._graphs.room.size == 4 * slots
    monkeypatch.setattr(graphs, "_memory", lambda device: 4 * slots)
    made = len(captured)
    equal(generator.generate(prompts, DRAWN), expected)
    assert generator._graphs.room.size == 0
    equal(generator.generate(prompts, DRAWN), expected)
    assert len(captured) > made


def test_where_nothing_can_be_captured_draws_are_the_same_and_a_warning_says_so(
    captured, monkeypatch, caplog
):
    def refuse(self, unit):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(graphs.Graphs, "_capture", refuse)
    model, prompts = make_model(), ragged_prompts()
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True)
    for _ in range(2):
        equal(generator.generate(prompts, DRAWN), draw_plainly(model, prompts, DRAWN))
    (said,) = caplog.messages
    assert "drawn slowly" in said and "not permitted" in said


class NoHost(TorchDispatchMode):
    """Fails where something waits for the device (as any tensor without data does), or copies from
    the host."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        tensors = [value for value in (*args, made) if isinstance(value, torch.Tensor)]
        copies = "copy" in function.overloadpacket.__name__  # else a number goes with the call
        moved = {tensor.device.type for tensor in tensors if tensor.ndim or copies}
        assert moved <= {"meta"}, f"{function} of tensors on {moved}"
        return made


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
@pytest.mark.parametrize("sampling", [Sampling(4), Sampling(4, 0.7, top_p=0.9, top_k=5)])
def test_what_is_captured_neither_waits_nor_copies_from_the_host(kind, sampling):
    model = make_lora(kind).eval()
    prepare_policy(model.bfloat16())
    model.to("meta")
    with torch.no_grad(), torch.device("meta"):
        room = Room(lambda: None)
        cache = BufferCache(2, 8, 128, room)
        ids = torch.zeros(8, 64, dtype=torch.long)
        last = torch.zeros(8, 1, dtype=torch.long)
        read = ForwardInput(model, cache, ids, torch.ones(8, 128).bool(), ids.clone(), last, 0)
        cache.write_at(read.slots)
        rows = RowState(
            uniforms=torch.zeros(8, 4),
            tokens=torch.zeros(8, 4, dtype=torch.long),
            logprobs=torch.zeros(8, 4),
            seen=torch.zeros(8, 1, 1, 128).bool(),
            positions=last.clone(),
            last=last.clone(),
            alive=torch.ones(8).bool(),
        )
        slot = torch.zeros(1, dtype=torch.long)
        step = decoding.Step(model, rows, cache, slot, Drawing(sampling, (3, 5), True))
        with NoHost():
            read()
            read()
            cache.write_at(slot)
            step()
        with pytest.raises(RuntimeError), NoHost():
            int(rows.alive.sum())
        with pytest.raises(AssertionError, match="cpu"), NoHost():
            torch.ones((), device="cpu").to("meta")


def test_another_type_of_keys_gets_other_buffers(captured):
    """As when accelerate wraps the forward, or autocast begins: keys are of 16 bits from then on."""
    model, prompts = make_lora("qwen3"), ragged_prompts()
    prepare_policy(model, trained=False)
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True, merge_adapters=False)
    expected = draw_plainly(model, prompts, DRAWN)
    for _ in range(2):
        equal(generator.generate(prompts, DRAWN), expected)
    types = generator._graphs.room.form.types
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            generator.generate(prompts, DRAWN)
    assert generator._graphs.room.form.types != types
    equal(generator.generate(prompts, DRAWN), expected)


def test_only_so_many_graphs_are_kept(captured, monkeypatch):
    monkeypatch.setattr(graphs, "MOST_KEPT", 2)
    model, prompts = make_model(), ragged_prompts()
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True)
    for _ in range(3):
        for some in (prompts, prompts[:3], prompts[:1]):
            equal(generator.generate(some, DRAWN), draw_plainly(model, some, DRAWN))
            assert len(generator._graphs._kept) <= 2


def test_a_call_that_fails_leaves_no_buffers(captured):
    model = make_model()
    generator = HFGenerator(model, LetterTokenizer(), logprobs=True)
    expected = generator.generate(ragged_prompts(), DRAWN)
    hook = model.register_forward_pre_hook(Mock(side_effect=torch.OutOfMemoryError("CUDA")))
    with pytest.raises(MemAlphaError, match="not enough for"):
        generator.generate([*ragged_prompts(), *ragged_prompts()[:2]], DRAWN)
    assert generator._graphs.room.size == 0 and not generator._graphs._kept
    hook.remove()
    equal(generator.generate(ragged_prompts(), DRAWN), expected)


def test_a_norm_on_cuda_keeps_16_bits_under_autocast(monkeypatch):
    model = make_model("qwen3")
    prepare_policy(model, trained=False)
    norm = model.model.norm
    monkeypatch.setattr(
        prepare, "with_plain_products", lambda *tensors, kind=None: True
    )  # a fake one, too
    with FakeTensorMode(), torch.device("cuda"), torch.no_grad():
        norm.weight = torch.nn.Parameter(torch.empty(64, dtype=torch.bfloat16))
        x = torch.empty(2, 3, 64, dtype=torch.bfloat16)
        torch.set_autocast_enabled("cuda", True)  # the context wants a GPU
        try:
            assert prepare.rms_norm(x, (64,), norm.weight).dtype is torch.float32
            assert norm(x).dtype is torch.bfloat16
        finally:
            torch.set_autocast_enabled("cuda", False)
