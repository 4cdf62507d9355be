"""One base, adapters on and off: each policy writes as it would alone, the base reads as the bare base; calls are recorded."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, PeftModel, get_peft_model

from memalpha.errors import InputError
from memalpha.evaluation.host import PolicyHost, RecordedCalls, sharing, within_tokens
from memalpha.generation.hf import HFGenerator
from memalpha.models import fetch, load_policy_model
from memalpha.text import chat_ids
from memalpha.types import Completion, Prompt, Sampling, StopReason

CHATS = [
    [{"role": "system", "content": "read"}, {"role": "user", "content": f"apple boat candle door engine {end}"}]
    for end in ("table", "violin", "window table boat")
] + [[{"role": "user", "content": "yacht"}]]


def prompts(tokenizer) -> list[Prompt]:
    return [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in CHATS]


def texts(generator, asked) -> list[str]:
    return [completion.text for completion in generator.generate(asked, Sampling(6))]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> list[Path]:
    """Two adapters of the nano policy that change what it says."""
    folders = []
    for seed in (1, 2):
        base, _ = load_policy_model(fetch("nano"))
        torch.manual_seed(seed)
        policy = get_peft_model(base, LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"))
        for name, weight in policy.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(weight, std=0.5)
        folders.append(tmp_path_factory.mktemp("adapter"))
        policy.save_pretrained(folders[-1])
    return folders


@pytest.fixture(scope="module")
def alone(adapters) -> dict[str, list[str]]:
    """What the base and each adapter say, each loaded by itself."""
    said = {}
    for folder in ("", *map(str, adapters)):
        model, tokenizer = load_policy_model(fetch("nano"))
        policy = PeftModel.from_pretrained(model, folder) if folder else model
        said[folder] = texts(HFGenerator(policy, tokenizer), prompts(tokenizer))
    assert len({tuple(words) for words in said.values()}) == 3  # else the tests could not fail
    return said


def test_policies_in_any_order_say_what_they_say_alone(adapters, alone):
    host = PolicyHost("nano")
    first, second = map(str, adapters)
    generators = {folder: host.generator(folder) for folder in alone}
    for folder in ("", first, second, first, "", second, ""):
        assert texts(generators[folder], prompts(host.tokenizer)) == alone[folder], folder
        assert host.answer(CHATS, 6) == alone[""]
    host.release()
    assert not any("lora" in name for name, _ in host._policy.named_parameters())
    assert texts(generators[""], prompts(host.tokenizer)) == alone[""]


def test_small_batches_answer_as_large_ones(alone):
    assert PolicyHost("nano", batch_tokens=1).answer(CHATS, 6) == alone[""]
    assert PolicyHost("nano", max_batch=2).answer(CHATS, 6) == alone[""]


def test_an_adapter_of_another_base_is_refused_before_any_weights_are_loaded(adapters, tmp_path):
    with pytest.raises(InputError):
        PolicyHost("nano").generator(str(tmp_path))
    host = PolicyHost("nano")
    shipped = Path(__file__).parents[2] / "data" / "adapters" / "smollm2-135m-warmup"
    with pytest.raises(InputError, match="belongs to another base"):
        host.generator(str(shipped))
    host.generator(str(adapters[0]))
    assert host._policy is None and {weight.device.type for weight in host._skeleton.parameters()} == {"meta"}


def test_neighbours_that_begin_alike_share_that_beginning():
    rows = [(1, 2, 3, 4, 5, 9), (1, 2, 3, 4, 5, 8, 8), (1, 2, 3, 4, 7), (1, 6, 6, 6), (5, 5)]
    assert [prompt.shared for prompt in sharing([Prompt((), row) for row in rows])] == [4, 4, 4, 0, 0]
    rows = [(1, 2, 3, 4, 5, 6), (1, 2, 7, 7, 7, 7), (1, 2, 7, 7, 7, 8), (1, 2, 8, 8, 8, 8), (1, 2, 3, 9, 9, 9)]  # else: of all
    assert [prompt.shared for prompt in sharing([Prompt((), row) for row in rows])] == [2, 5, 5, 2, 2]
    assert [prompt.shared for prompt in sharing([Prompt((), row) for row in rows[:3]])] == [0, 5, 5]  # alone: with nobody
    assert sharing([]) == []


IDS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple), max_size=8)


@given(IDS)
def test_what_is_shared_is_the_same_and_nothing_else_changes(rows):
    found = sharing([Prompt((), row) for row in rows])
    assert [prompt.ids for prompt in found] == rows
    for i, prompt in enumerate(found):
        with_it = [other for j, other in enumerate(found) if j != i and other.shared == prompt.shared]
        own = prompt.ids[: prompt.shared]
        assert not prompt.shared or any(other.ids[: prompt.shared] == own for other in with_it)


@given(IDS, st.integers(1, 30), st.integers(1, 4))
def test_batches_are_the_prompts_in_order_within_the_tokens(rows, tokens, new):
    batches = within_tokens([Prompt((), row) for row in rows], tokens, new)
    assert [prompt.ids for batch in batches for prompt in batch] == rows
    for batch, after in zip(batches, [*batches[1:], []], strict=False):
        size = len(batch) * (max(len(prompt.ids) for prompt in batch) + new)
        assert size <= tokens or len(batch) == 1
        if after:  # the next one would not have fitted
            grown = [*batch, after[0]]
            assert len(grown) * (max(len(prompt.ids) for prompt in grown) + new) > tokens


# ------------------------------------------------------------------------------------------------ recorded calls
PROMPTS = [Prompt((), (1, 2, 3), 2), Prompt((), (4,))]
DRAWN = [Completion((5, 6), "a « b\u2028c", StopReason.END, (-0.25, -1.5)), Completion((), "", StopReason.LENGTH)]
GREEDY = Sampling(8)


def never() -> list[Completion]:
    raise AssertionError("drawn again")


def test_a_call_of_before_is_answered_from_the_file_with_its_time(tmp_path, monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr("memalpha.evaluation.host.time.perf_counter", lambda: next(clock))
    before = RecordedCalls(tmp_path / "underway.jsonl")
    assert before.completions("a", PROMPTS, GREEDY, lambda: DRAWN) == DRAWN and before.seconds == 0
    after = RecordedCalls(tmp_path / "underway.jsonl")
    assert after.completions("a", PROMPTS, GREEDY, never) == DRAWN and after.seconds == 2.5


@pytest.mark.parametrize(
    ("adapter", "prompts", "sampling"),
    [
        ("b", PROMPTS, GREEDY),
        ("a", PROMPTS[::-1], GREEDY),
        ("a", PROMPTS[:1], GREEDY),
        ("a", [replace(PROMPTS[0], ids=(1, 2, 4)), PROMPTS[1]], GREEDY),
        ("a", PROMPTS, Sampling(9)),
        ("a", PROMPTS, Sampling(8, 0.7, seed=1)),
    ],
)
def test_another_call_is_drawn(adapter, prompts, sampling, tmp_path):
    RecordedCalls(tmp_path / "underway.jsonl").completions("a", PROMPTS, GREEDY, lambda: DRAWN)
    other = [Completion((7,), "other", StopReason.END)]
    after = RecordedCalls(tmp_path / "underway.jsonl")
    assert after.completions(adapter, prompts, sampling, lambda: other) == other
    assert after.completions("a", PROMPTS, GREEDY, never) == DRAWN


def test_the_seed_tells_calls_apart_and_without_one_each_is_drawn(tmp_path):
    first, second = DRAWN, DRAWN[::-1]
    before = RecordedCalls(tmp_path / "underway.jsonl")
    before.completions("a", PROMPTS, Sampling(8, 0.7, seed=1), lambda: first)
    before.completions("a", PROMPTS, Sampling(8, 0.7, seed=2), lambda: second)
    before.completions("a", PROMPTS, Sampling(8, 0.7), lambda: first)
    after = RecordedCalls(tmp_path / "underway.jsonl")
    assert after.completions("a", PROMPTS, Sampling(8, 0.7, seed=1), never) == first
    assert after.completions("a", PROMPTS, Sampling(8, 0.7, seed=2), never) == second
    assert after.completions("a", PROMPTS, Sampling(8, 0.7), lambda: second) == second


def test_a_line_cut_short_is_dropped_and_a_damaged_one_is_said(tmp_path):
    RecordedCalls(tmp_path / "underway.jsonl").completions("a", PROMPTS, GREEDY, lambda: DRAWN)
    file = tmp_path / "underway.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert (
        RecordedCalls(tmp_path / "underway.jsonl").completions("a", PROMPTS, GREEDY, never) == DRAWN and file.read_bytes() == whole
    )
    file.write_bytes(whole[:40] + b"\n" + whole)
    with pytest.raises(InputError, match=r"underway\.jsonl, line 1 is damaged"):
        RecordedCalls(tmp_path / "underway.jsonl")


def test_a_batch_that_is_done_leaves_nothing(tmp_path):
    underway = RecordedCalls(tmp_path / "underway.jsonl")
    underway.completions("a", PROMPTS, GREEDY, lambda: DRAWN)
    underway.clear()
    underway.clear()
    assert not list(tmp_path.iterdir()) and underway.seconds == 0
    assert underway.completions("a", PROMPTS, GREEDY, lambda: DRAWN[:1]) == DRAWN[:1]
