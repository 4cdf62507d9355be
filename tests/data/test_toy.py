"""The toy task: closed vocabulary, one question a thing, a teacher that knows nothing of what is worth keeping."""

import random
from collections import Counter

import pytest

from memalpha.data.toy import NOISE, THINGS, toy_generate, toy_schema, toy_teacher_operations, toy_vocabulary
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.types import OperationKind


def test_words_are_closed_distinct_and_apart():
    words = (*THINGS, *NOISE)
    assert len(THINGS) == len(NOISE) == 24
    assert len(set(toy_vocabulary())) == len(toy_vocabulary()) == 51
    assert not [(a, b) for a in words for b in words if a != b and a in b]


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_thing_of_a_chunk_is_asked_for_and_noise_is_not(split):
    for instance in toy_generate(40, 3, split):
        words = [chunk.text.split() for chunk in instance.chunks]
        assert [len(chunk) for chunk in words] == [8, 8]
        flat = [word for chunk in words for word in chunk]
        assert len(set(flat)) == 16
        assert set(flat) <= set(toy_vocabulary())
        expected = {(f"was {word} seen?", (word,), (c,)) for c, chunk in enumerate(words) for word in chunk if word in THINGS}
        assert {(q.text, q.answers, q.evidence) for q in instance.questions} == expected
        assert len(instance.questions) == len(expected) == 8
        assert {(q.metric, q.kind, q.stale) for q in instance.questions} == {("substring", "single", ())}
        for question in instance.questions:
            assert set(question.text.replace("?", " ?").split()) <= set(toy_vocabulary())


def test_an_instance_depends_on_seed_split_and_index_alone():
    assert toy_generate(5, 1) == toy_generate(9, 1)[:5]
    texts = [tuple(c.text for c in i.chunks) for s in ("train", "test") for seed in (1, 2) for i in toy_generate(50, seed, s)]
    assert len(set(texts)) == 200


def test_the_teacher_stores_things_and_noise_alike():
    rng, stored, numbers = random.Random(0), Counter(), Counter()
    for instance in toy_generate(300, 0):
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
    assert abs(stored[True] / stored.total() - 0.5) < 0.05  # about 1,500 draws: four standard errors


def test_neither_the_words_nor_the_teacher_favour_a_place():
    rng, things, stored = random.Random(0), Counter(), Counter()
    for instance in toy_generate(400, 0):
        words = instance.chunks[0].text.split()
        things.update(place for place, word in enumerate(words) if word in THINGS)
        memory = Memory(toy_schema(max_entries=0))
        stored.update(words.index(o.content) for o in toy_teacher_operations(instance, 0, memory, rng))
    assert all(150 < things[place] < 250 for place in range(8))  # 200 expected of each, standard error 10
    assert all(80 < stored[place] < 170 for place in range(8))  # 125 expected of each, standard error about 9


def test_a_full_memory_is_not_written_to():
    rng, instance = random.Random(0), toy_generate(1, 0)[0]
    memory = Memory(toy_schema(max_entries=2))
    for _ in range(20):
        for operation in toy_teacher_operations(instance, 0, memory, rng):
            assert memory.apply(operation).changed
    assert len(memory) == 2
    assert toy_schema().lists[0].max_entries == 8


def test_bad_arguments_are_refused():
    with pytest.raises(InputError, match="0 toy instances"):
        toy_generate(0, 1)
    with pytest.raises(InputError, match="split 'dev'"):
        toy_generate(1, 1, "dev")
