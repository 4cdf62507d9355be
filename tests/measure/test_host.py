"""One base, adapters on and off: each policy writes as it would alone, and the base reads as the
bare base."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from peft import PeftModel

from memalpha.errors import InputError
from memalpha.generation import products
from memalpha.generation.hf import HFGenerator, mark_prefixes, within_tokens
from memalpha.measure.host import PolicyHost
from memalpha.models import load_policy_model, resolve_model
from memalpha.qa.readers import BASE
from memalpha.text.encoding import chat_ids
from memalpha.types import Prompt, Sampling
from tests.helpers.evaluation_stubs import loud_adapter

CHATS = [
    [
        {"role": "system", "content": "read"},
        {"role": "user", "content": f"apple boat candle door engine {end}"},
    ]
    for end in ("table", "violin", "window table boat")
] + [[{"role": "user", "content": "yacht"}]]


def prompts(tokenizer) -> list[Prompt]:
    return [Prompt(tuple(chat), chat_ids(tokenizer, chat)) for chat in CHATS]


def texts(generator, asked) -> list[str]:
    return [completion.text for completion in generator.generate(asked, Sampling(6))]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory) -> list[Path]:
    """Two adapters of the nano policy that change what it says."""
    return [loud_adapter(tmp_path_factory.mktemp("adapter"), seed) for seed in (1, 2)]


@pytest.fixture(scope="module")
def alone(adapters) -> dict[str, list[str]]:
    """What the base and each adapter say, each loaded by itself."""
    said = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(products, "faster", lambda: False)
        for folder in ("", *map(str, adapters)):
            model, tokenizer = load_policy_model(resolve_model("nano"))
            policy = PeftModel.from_pretrained(model, folder) if folder else model
            said[folder] = texts(HFGenerator(policy, tokenizer), prompts(tokenizer))
    assert len({tuple(words) for words in said.values()}) == 3  # else the tests could not fail
    return said


@pytest.mark.parametrize("library", ["PyTorch", "oneDNN"])
@pytest.mark.parametrize("reader", [False, True])
def test_policies_in_any_order_say_what_they_say_alone(
    adapters, alone, library, reader, monkeypatch
):
    monkeypatch.setattr(products, "faster", lambda: library == "oneDNN")
    monkeypatch.setattr(products, "LEAST", 1)
    host = PolicyHost("nano")
    first, second = map(str, adapters)
    reads = second if reader else ""
    generators = {folder: host.generator(folder) for folder in alone}
    assert PolicyHost("nano", batch_tokens=1).reader(BASE, 6)(CHATS) == alone[""]
    for folder in ("", first, second, first, "", second, "", first, second, first):
        host.drawn.clear()  # else only the first of each would be drawn
        assert texts(generators[folder], prompts(host.tokenizer)) == alone[folder], folder
        assert host.reader(reads or BASE, 6)(CHATS) == alone[reads]
    host.release()
    assert not any("lora" in name for name, _ in host._policy.named_parameters())
    assert texts(generators[""], prompts(host.tokenizer)) == alone[""]


def test_a_greedy_completion_is_drawn_once_and_its_seconds_are_counted_again(
    adapters, alone, monkeypatch
):
    host, drawn, generate = PolicyHost("nano"), [], HFGenerator.generate
    monkeypatch.setattr(
        HFGenerator,
        "generate",
        lambda self, asked, how: drawn.append(len(asked)) or generate(self, asked, how),
    )
    asked, said = prompts(host.tokenizer), alone[str(adapters[0])]
    first = host.generator(str(adapters[0]))
    assert texts(first, asked[1:3]) == said[1:3] and host.saved == 0.0
    each = next(iter(host.drawn.values()))[1]
    assert texts(first, [*asked, asked[0]]) == [*said, said[0]]
    assert host.saved == pytest.approx(2 * each) and each > 0
    first.generate(asked, Sampling(3))  # each length and sampled call for itself
    first.generate(asked, Sampling(6, temperature=1.0, seed=1))
    assert drawn == [2, 2, 4, 4]


def test_an_adapter_of_another_base_is_refused_before_any_weights_are_loaded():
    host = PolicyHost("nano")
    shipped = Path(__file__).parents[2] / "data" / "adapters" / "smollm2-135m-warmup"
    with pytest.raises(InputError, match="belongs to another base"):
        host.generator(str(shipped))
    assert host._policy is None


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            ["abcdei", "abcdehh", "abcdg", "afff", "ee"],
            {"ee": 0, "afff": 0, "abcdei": 4, "abcdehh": 4, "abcdg": 4},
        ),
        (  # else: of all others
            ["abcdefgh", "abggggg", "abggggh", "abhhhh", "abcii"],
            {"abcii": 2, "abhhhh": 2, "abcdefgh": 2, "abggggg": 6, "abggggh": 6},
        ),
        (
            ["abcdef", "abggggg", "abggggh"],
            {"abcdef": 0, "abggggg": 6, "abggggh": 6},
        ),  # with nobody
        (["abcdxxx", "abcdx", "abcdyy"], {"abcdx": 4, "abcdyy": 4, "abcdxxx": 4}),  # all begin so
        ([], {}),
    ],
)
def test_neighbours_that_begin_alike_share_that_beginning_others_come_by_length(rows, expected):
    marked = mark_prefixes([Prompt((), tuple(map(ord, row))) for row in rows])
    found = [("".join(map(chr, prompt.ids)), prompt.shared) for prompt in marked]
    assert found == list(expected.items())


IDS = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8).map(tuple), max_size=8)


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
