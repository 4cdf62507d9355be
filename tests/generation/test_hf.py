"""Completions against transformers' own generate on each prompt alone, and against plain
forwards."""

from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from peft import LoraConfig, get_peft_model

from memalpha.errors import InputError, MemAlphaError
from memalpha.generation import decoding
from memalpha.generation.decoding import draw_tokens
from memalpha.generation.hf import HFGenerator, answer_chats, frozen_base
from memalpha.generation.products import merged_lora
from memalpha.models import load_policy_model, resolve_model
from memalpha.text.encoding import chat_ids, render_chat
from memalpha.types import Prompt, Sampling, StopReason
from tests.helpers.letters import (
    LetterTokenizer,
    alone,
    generate,
    ids,
    make_lora,
    make_model,
    ragged_prompts,
    some_ends,
    with_weights,
)
from tests.helpers.scripted import ScriptedGenerator


@pytest.mark.parametrize("ending", [False, True], ids=["to the limit", "rows end early"])
@pytest.mark.parametrize(
    ("kind", "attention", "max_batch"),
    [("llama", "sdpa", 64), ("llama", "eager", 3), ("qwen3", "sdpa", 64), ("gpt2", "sdpa", 1)],
)
def test_greedy_equals_generate_on_each_prompt_alone(kind, attention, max_batch, ending):
    model, prompts = make_model(kind, attention), ragged_prompts()
    ends = some_ends(model, prompts) if ending else []
    expected = [alone(model, prompt, 12, ends or None) for prompt in prompts]
    tokenizer = LetterTokenizer()
    model.generation_config.eos_token_id = ends[:-1] or None
    tokenizer.eos_token_id = ends[-1] if ending else None  # it ends a row as well
    completions = HFGenerator(model, tokenizer, max_batch=max_batch).generate(prompts, Sampling(12))
    assert [(c.ids, c.text) for c in completions] == [
        (ids, tokenizer.decode(ids, skip_special_tokens=True)) for ids in expected
    ]
    stops = [StopReason.END if ids[-1] in ends else StopReason.LENGTH for ids in expected]
    assert [c.stop for c in completions] == stops
    assert ending is (StopReason.END in stops), "the case must hold rows that end"


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_equal_prompts_are_read_once_and_drawn_from_each_for_itself(attention):
    model, different = make_model(attention=attention), ragged_prompts()
    rows = [different[i] for i in (0, 2, 0, 3, 0, 5, 3, 1)]
    expected = [alone(model, row, 12) for row in rows]
    read = []
    model.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    assert [c.ids for c in generate(model, rows, Sampling(12))] == expected
    assert read[1:3] == [5, 8]  # after the prefixes
    drawn = generate(model, rows, Sampling(12, temperature=1.0, seed=5))
    uniforms = torch.rand(len(rows), 12, generator=torch.Generator().manual_seed(5))
    for row, made, numbers in zip(
        rows, drawn, uniforms, strict=True
    ):  # each with its own numbers, as if it were alone
        logits = model(input_ids=torch.tensor([[*row.ids, *made.ids]])).logits[
            0, len(row.ids) - 1 : -1
        ]
        assert draw_tokens(logits, Sampling(12, temperature=1.0), numbers)[0].tolist() == list(
            made.ids
        )
    assert len({drawn[i].ids for i in (0, 2, 4)}) == 3


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "sampling", [Sampling(20), Sampling(20, temperature=1.0, seed=3)], ids=["greedy", "drawn"]
)
def test_as_on_an_accelerator_rows_that_leave_seldom_are_the_same(attention, sampling, monkeypatch):
    model, prompts = make_model("qwen3", attention), ragged_prompts()
    model.generation_config.eos_token_id = some_ends(model, prompts)
    expected = generate(model, prompts, sampling, logprobs=True)
    monkeypatch.setitem(decoding.CHECK_EVERY, "cpu", 8)
    found = generate(model, prompts, sampling, logprobs=True)
    assert [(c.ids, c.text, c.stop) for c in found] == [(c.ids, c.text, c.stop) for c in expected]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            torch.tensor(one.logprobs), torch.tensor(other.logprobs), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("merge", [True, False])
def test_adapters_count_whether_merged_or_not(merge):
    model, prompts = make_lora(dropout=0.5), ragged_prompts()
    expected = [alone(model.eval(), prompt, 12) for prompt in prompts]
    assert expected != [alone(make_model(), prompt, 12) for prompt in prompts]
    model.train()
    assert [c.ids for c in generate(model, prompts, Sampling(12), merge_adapters=merge)] == expected
    assert model.training


def test_generated_logprobs_equal_a_plain_forward():
    model, prompts = make_lora("qwen3").eval(), ragged_prompts()
    for temperature, scale in ((0.0, 1.0), (0.7, 0.7)):
        completions = generate(
            model, prompts, Sampling(10, temperature=temperature, top_k=5, seed=3), logprobs=True
        )
        for prompt, completion in zip(prompts, completions, strict=True):
            logits = model(input_ids=torch.tensor([prompt.ids + completion.ids])).logits[
                0, len(prompt.ids) - 1 : -1
            ]
            expected = (
                (logits / scale)
                .log_softmax(-1)
                .gather(-1, torch.tensor(completion.ids)[:, None])[:, 0]
            )
            torch.testing.assert_close(
                torch.tensor(completion.logprobs), expected, rtol=1e-4, atol=1e-4
            )


def test_seeds_reproduce_and_the_global_state_carries_on():
    model, prompts = make_model(), ragged_prompts()
    seeded = Sampling(8, temperature=1.0, seed=5)
    first = generate(model, prompts, seeded)
    assert generate(model, prompts, seeded, max_batch=2) == first
    assert generate(model, prompts, replace(seeded, seed=6)) != first
    state = torch.get_rng_state()
    runs = [generate(model, prompts, replace(seeded, seed=None)) for _ in range(2)]
    torch.set_rng_state(state)
    assert generate(model, prompts, replace(seeded, seed=None)) == runs[0] != runs[1]


def test_drawing_inverts_the_filtered_distribution():
    logits = torch.tensor([[0.1, 0.4, 0.2, 0.3]]).log()

    def drawn(u, **options):
        return draw_tokens(logits, Sampling(1, temperature=1.0, **options), torch.tensor([u]))[
            0
        ].item()

    assert [drawn(u) for u in (0.0, 0.05, 0.15, 0.49, 0.55, 0.75, 0.999999)] == [
        0,
        0,
        1,
        1,
        2,
        3,
        3,
    ]
    assert [drawn(u, top_k=2) for u in (0.0, 0.5, 0.58, 0.999999)] == [
        1,
        1,
        3,
        3,
    ]  # .4 and .3: the border lies at .571
    assert [drawn(u, top_p=0.65) for u in (0.0, 0.56, 0.58, 0.999999)] == [
        1,
        1,
        3,
        3,
    ]  # the second one reaches .65
    assert [drawn(u, top_p=0.75) for u in (0.4, 0.5, 0.8)] == [1, 3, 2]  # borders at .444 and .778
    assert [drawn(u, top_p=0.0) for u in (0.0, 0.999999)] == [1, 1]
    assert draw_tokens(logits, Sampling(1), torch.tensor([0.9]))[0].item() == 1
    logits = torch.tensor(
        [[float("-inf"), 0.0, float("-inf")]]
    )  # a token without weight is never drawn
    assert [drawn(u) for u in (0.0, 1 - 2**-24)] == [1, 1]


def test_weights_are_bitwise_the_same_after_a_merged_call_and_after_an_error():
    model, same = make_lora(), make_lora()
    generate(model, ragged_prompts(), Sampling(4))
    torch.testing.assert_close(model.state_dict(), same.state_dict(), rtol=0, atol=0)
    last = [value for name, value in model.named_parameters() if "lora_B" in name][-1].data
    for value, error, said in (
        (0.5, RuntimeError, "planned"),
        (float("nan"), MemAlphaError, "not finite"),
    ):
        last[0, 0] = value
        before = {
            name: (each.data_ptr(), each.clone()) for name, each in model.state_dict().items()
        }
        with pytest.raises(error, match=said), merged_lora(model):  # with NaN, half way
            raise RuntimeError("planned")
        for name, each in model.state_dict().items():
            assert each.data_ptr() == before[name][0]
            torch.testing.assert_close(each, before[name][1], rtol=0, atol=0, equal_nan=True)
        assert not any(getattr(module, "merged", False) for module in model.modules())


def test_an_opening_is_read_once_and_changes_nothing():
    model, read = make_model(), []
    model.register_forward_pre_hook(
        lambda _, __, kwargs: read.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    opening = ids(11, 1)
    longer, other = opening + ids(6, 2), ids(13, 3)
    calls = [
        [Prompt((), opening + ids(4 + i, i)) for i in range(3)],  # of unequal length
        [Prompt((), longer + ids(5, i), len(longer)) for i in range(2)],
        [Prompt((), opening + ids(5, 7)), Prompt((), other + ids(4, 8), len(other))],
        [Prompt((), opening), Prompt((), opening[:5])],
    ]
    kept = HFGenerator(model, LetterTokenizer(), opening=opening)
    widths = [[11, 6], [6, 5], [13, 5], [10, 5]]  # of prefixes and own parts
    for prompts, expected in zip(calls, widths, strict=True):
        read.clear()
        found = [row.ids for row in kept.generate(prompts, Sampling(3))]
        assert read == [*expected, 1, 1]  # a token at each step
        assert found == [tuple(alone(model, prompt, 3)) for prompt in prompts]


def test_running_out_of_memory_names_max_batch():
    model = make_model()
    model.register_forward_pre_hook(Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(MemAlphaError, match=r"lower max_batch, which is 7 \(generation_rows"):
        generate(model, ragged_prompts(), Sampling(3), max_batch=7)


def test_what_cannot_be_generated_is_refused():
    model = make_model()  # made for 128 positions
    prompts = [
        Prompt((), ids(100, 1), 90),
        Prompt((), ids(120, 2), 0),
    ]  # together they take more slots than any row has tokens
    assert len(generate(model, prompts, Sampling(8))) == 2
    with pytest.raises(InputError, match="up to 129 tokens in a model made for 128"):
        generate(model, prompts, Sampling(9))
    with pytest.raises(InputError, match="has no token ids"):
        generate(model, [Prompt((), ())], Sampling(3))
    model.config.layer_types, model.config.sliding_window = (
        ["full_attention", "sliding_attention"],
        16,
    )
    with pytest.raises(InputError, match="sliding window of 16"):
        generate(model, ragged_prompts(), Sampling(3))


# --------------------------------------------------------------------------------------------
# the frozen base as a reader
CHATS = [
    [{"role": "user", "content": "was violin seen?"}],
    [{"role": "user", "content": "was window seen? table"}],
]


def test_answers_are_the_bases_own_and_frozen_layers_stay_frozen():
    base, tokenizer = load_policy_model(resolve_model("nano"))
    prompts = [
        Prompt(
            (), tuple(tokenizer(render_chat(tokenizer, chat), add_special_tokens=False).input_ids)
        )
        for chat in CHATS
    ]
    alone = [done.text for done in HFGenerator(base, tokenizer).generate(prompts, Sampling(8))]
    with pytest.raises(InputError, match="whose weights are all trained"):
        frozen_base(base, tokenizer)
    policy = get_peft_model(
        base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    )
    with_weights(policy, 0.5)
    policy.base_model.model.model.layers[0].requires_grad_(False)
    trainable = [name for name, weight in policy.named_parameters() if weight.requires_grad]
    adapted = [done.text for done in HFGenerator(policy, tokenizer).generate(prompts, Sampling(8))]
    assert adapted != alone  # else the test could not fail
    assert frozen_base(policy, tokenizer, max_new_tokens=8)(CHATS) == alone
    assert [name for name, weight in policy.named_parameters() if weight.requires_grad] == trainable


def test_equal_chats_are_answered_once_and_every_one_gets_its_answer():
    tokenizer = load_policy_model(resolve_model("nano"))[1]
    echo = ScriptedGenerator(lambda prompt: prompt.messages[-1]["content"], tokenizer)
    asked = [CHATS[1], CHATS[0], CHATS[1]]
    assert answer_chats(echo, tokenizer, asked, 99) == [chat[0]["content"] for chat in asked]
    assert len(echo.prompts) == 2


def test_answers_in_batches_are_those_to_each_chat_alone():
    """Long texts with several questions each among short notes, in batches of a few."""
    base, tokenizer = load_policy_model(resolve_model("nano"))
    lora = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = with_weights(get_peft_model(base, lora), 0.5)
    generator = HFGenerator(model, tokenizer, max_batch=4, logprobs=True)
    made = {}

    def generate(prompts, sampling):
        completions = generator.generate(prompts, sampling)
        made.update({prompt.ids: each for prompt, each in zip(prompts, completions, strict=True)})
        return completions

    notes = ["violin " * 40, "violin " * 20 + "table " * 25, *("window " * n for n in (9, 1, 6, 3))]
    asked = ["violin", "table", "window"]
    chats = [
        [{"role": "user", "content": f"{note}\nwas {word} seen?"}]
        for note in notes
        for word in asked
    ]
    answers = answer_chats(Mock(generate=generate), tokenizer, chats, 6, 1000)
    assert len(set(answers)) > 3  # else the test could not fail
    for chat, answer in zip(chats, answers, strict=True):
        (alone,) = generator.generate([Prompt((), chat_ids(tokenizer, chat))], Sampling(6))
        together = made[chat_ids(tokenizer, chat)]
        assert (answer, together.ids) == (alone.text, alone.ids)
        torch.testing.assert_close(
            torch.tensor(together.logprobs), torch.tensor(alone.logprobs), rtol=0, atol=1e-4
        )
