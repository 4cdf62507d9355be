"""Demonstrations of plain text: what is copied of a sentence, checked against every possible run of words."""

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.excerpts import ExcerptConfig, excerpt, excerpt_operations
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.types import Chunk, Instance, OperationKind

SENTENCE = "The tower was built for the fair of 1889 by Gustave Eiffel and his men"
TEXT = "The fair of 1889 opened in Paris. It rained. A tower by Gustave Eiffel stood there. Nobody minded. People came from Lyon."


def instance(text=TEXT, name="x"):
    return Instance(name, "test", (Chunk(text),), ())


def contents(config, text=TEXT, name="x", seed=0):
    made = excerpt_operations(instance(text, name), 0, memory(), random.Random(seed), config)
    assert all(operation.kind is OperationKind.INSERT and operation.section == "facts" for operation in made)
    return [operation.content for operation in made]


def memory():
    return Memory(MemorySchema.load("facts"))


def test_by_hand():
    assert excerpt(SENTENCE.split(), 4) == "1889 by Gustave Eiffel"  # three names or numbers
    assert excerpt(SENTENCE.split(), 40) == SENTENCE
    assert excerpt(["Paris,", "(in", "1900)", "we", "met."], 2) == "in 1900"  # the first word's capital says nothing
    assert excerpt([], 5) == ""
    assert contents(ExcerptConfig(words=(3, 3), max_entries=3)) == ["fair of 1889", "It rained", "Gustave Eiffel stood"]


def value(words, first):
    """What a run of words has in it, word by word; ``first`` says that it begins the sentence."""
    total = 0
    for place, word in enumerate(words):
        named = re.match(r"\W*[A-Z0-9]", word) and not (first and place == 0)
        total += 2 if named else bool(re.match(r"\W*[a-zA-Z]{4}", word))
    return total


@given(st.lists(st.sampled_from(["a", "Bob", "in", "river", "1889", "stone", "(Oslo)"]), min_size=1, max_size=9), st.integers(1, 6))
def test_no_run_of_words_has_more_in_it(words, count):
    runs = [words[i : i + count] for i in range(len(words) - min(count, len(words)) + 1)]
    best = max(value(run, first=i == 0) for i, run in enumerate(runs))
    chosen = next(run for i, run in enumerate(runs) if value(run, first=i == 0) == best)
    assert excerpt(words, count) == " ".join(chosen).strip("()")


@given(st.text(max_size=300), st.integers(0, 5), st.integers(1, 30))
def test_any_text_gives_copied_entries_within_the_limits(text, seed, tokens):
    if not text.strip():
        return
    store = memory()
    made = excerpt_operations(instance(text), 0, store, random.Random(seed), ExcerptConfig(max_tokens=tokens))
    assert len(made) <= 4 and sum(store.count_tokens(operation.content) for operation in made) <= tokens
    assert all(operation.content in " ".join(text.split()) for operation in made)
    assert len(store) == 0
    assert all(store.apply(operation, chunk=0, time=None).changed for operation in made)


def test_an_instance_draws_how_much_it_keeps():
    text = " ".join(f"Sentence number {i} speaks of Paris." for i in range(50))
    config = ExcerptConfig(coverage=(0.2, 0.8), max_entries=50, max_tokens=10_000)
    kept = {name: [len(contents(config, text, name, seed)) / 50 for seed in range(20)] for name in "abcdef"}
    shares = [sum(of_one) / 20 for of_one in kept.values()]
    drawn = [random.Random(f"coverage:{name}").uniform(0.2, 0.8) for name in kept]
    assert shares == pytest.approx(drawn, abs=0.06)  # 4 standard errors of a share of 1,000 sentences
    assert max(drawn) - min(drawn) > 0.2
    assert contents(ExcerptConfig(coverage=(0.0, 0.0))) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coverage": (0.5, 1.5)}, r"coverage is \(0.5, 1.5\)"),
        ({"words": (0, 3)}, r"words is \(0, 3\)"),
        ({"words": (5, 3)}, r"words is \(5, 3\)"),
        ({"max_entries": 0}, "max_entries is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(InputError, match=message):
        ExcerptConfig(**options)
