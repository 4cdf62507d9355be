"""The toy task, and demonstrations of plain text."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.load import load_one
from memalpha.data.teacher import TeacherConfig, excerpt, excerpt_operations
from memalpha.data.toy import NOISE, THINGS, toy_schema, toy_teacher_operations, toy_vocabulary
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.types import Chunk, Instance, OperationKind, Question


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
        flat = [word for chunk in words for word in chunk]
        assert len(set(flat)) == 16 and set(flat) <= set(toy_vocabulary())
        expected = [
            Question(f"was {word} seen?", (word,), evidence=(place,), id=f"q{4 * place + n}")
            for place, chunk in enumerate(words)
            for n, word in enumerate(
                [q.answers[0] for q in instance.questions if q.answers[0] in chunk]
            )
        ]
        assert list(instance.questions) == expected
        assert {word for word in flat if word in THINGS} == {q.answers[0] for q in expected}
        memory = Memory(toy_schema(max_entries=0))
        operations = toy_teacher_operations(instance, 0, memory, random.Random(split))
        assert 1 <= len(operations) <= 4 and {o.content for o in operations} <= set(words[0])


TEXT = (
    "The fair of 1889 opened in Paris. It rained. "
    "A tower by Gustave Eiffel stood there. Nobody minded. People came from Lyon."
)


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
