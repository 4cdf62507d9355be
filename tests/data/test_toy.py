"""The toy task, and demonstrations of plain text."""

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.load import load_one
from memalpha.data.teacher import TeacherConfig, excerpt, excerpt_operations
from memalpha.data.toy import NOISE, THINGS, toy_schema, toy_teacher_operations, toy_vocabulary
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.types import Chunk, Instance, OperationKind


def toys(n, seed, split="train"):
    return load_one("toy", {"n": n, "split": split}, seed)


def test_words_are_closed_distinct_and_apart():
    words = (*THINGS, *NOISE)
    assert len(THINGS) == len(NOISE) == 24
    assert len(set(toy_vocabulary())) == len(toy_vocabulary()) == 51
    assert not [(a, b) for a in words for b in words if a != b and a in b]


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_thing_of_a_chunk_is_asked_for_and_noise_is_not(split):
    for instance in toys(40, 3, split):
        words = [chunk.text.split() for chunk in instance.chunks]
        assert [len(chunk) for chunk in words] == [8, 8]
        flat = [word for chunk in words for word in chunk]
        assert len(set(flat)) == 16
        assert set(flat) <= set(toy_vocabulary())
        expected = {
            (f"was {word} seen?", (word,), (c,))
            for c, chunk in enumerate(words)
            for word in chunk
            if word in THINGS
        }
        assert {(q.text, q.answers, q.evidence) for q in instance.questions} == expected
        assert len(instance.questions) == len(expected) == 8
        assert {(q.metric, q.kind, q.stale) for q in instance.questions} == {
            ("substring", "single", ())
        }
        for question in instance.questions:
            assert set(question.text.replace("?", " ?").split()) <= set(toy_vocabulary())


def test_the_teacher_stores_things_and_noise_alike():
    rng, stored, numbers = random.Random(0), Counter(), Counter()
    for instance in toys(300, 0):
        memory = Memory(toy_schema(max_entries=0))
        for t, chunk in enumerate(instance.chunks):
            operations = toy_teacher_operations(instance, t, memory, rng)
            numbers[len(operations)] += 1
            for operation in operations:
                assert operation.kind is OperationKind.INSERT
                assert operation.content in chunk.text.split()
                stored[operation.content in THINGS] += 1
                assert memory.apply(operation).changed
    assert set(numbers) == {1, 2, 3, 4}
    assert min(numbers.values()) > 110  # 150 expected of each, 5 standard errors are 53
    assert (
        abs(stored[True] / stored.total() - 0.5) < 0.05
    )  # about 1,500 draws: four standard errors


TEXT = "The fair of 1889 opened in Paris. It rained. A tower by Gustave Eiffel stood there. Nobody minded. People came from Lyon."


def instance(text=TEXT, name="x"):
    return Instance(name, "test", (Chunk(text),), ())


def memory():
    return Memory(MemorySchema.load("facts"))


def test_by_hand():
    sentence = "The tower was built for the fair of 1889 by Gustave Eiffel and his men"
    assert excerpt(sentence.split(), 4) == "1889 by Gustave Eiffel"  # three names or numbers
    assert excerpt(sentence.split(), 40) == sentence
    assert (
        excerpt(["Paris,", "(in", "1900)", "we", "met."], 2) == "in 1900"
    )  # the first word's capital says nothing
    assert excerpt([], 5) == ""
    made = excerpt_operations(instance(), 0, memory(), random.Random(0))
    assert [(o.kind, o.section) for o in made] == [
        (OperationKind.INSERT, "facts")
    ] * 4  # of five sentences
    assert [o.content for o in made][1:3] == ["It rained", "A tower by Gustave Eiffel stood there"]
    assert excerpt_operations(instance(), 0, memory(), random.Random(0), TeacherConfig(0.0)) == []


@given(st.text(max_size=300), st.integers(0, 5))
def test_any_text_gives_copied_entries_within_the_limits(text, seed):
    if not text.strip():
        return
    store = memory()
    made = excerpt_operations(instance(text), 0, store, random.Random(seed))
    assert len(made) <= 4 and sum(store.count_tokens(operation.content) for operation in made) <= 64
    assert all(operation.content in " ".join(text.split()) for operation in made)
    assert len(store) == 0
    assert all(store.apply(operation, chunk=0, time=None).changed for operation in made)
