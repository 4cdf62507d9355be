"""Many threads, one model: who is joined with whom, and that the model is never entered twice."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import ServiceError
from memalpha.generation.batching import BatchingGenerator
from memalpha.types import Completion, Prompt, Sampling, StopReason

GREEDY = Sampling(8)


def prompts(*numbers):
    return [Prompt((), (number,)) for number in numbers]


class Model:
    """Says each prompt's number; holds its first call until so many others wait; keeps what it was asked."""

    def __init__(self, hold=0, fails=()):
        self.hold, self.fails, self.calls, self.inside = hold, fails, [], threading.Lock()
        self.batching = None

    def generate(self, given, sampling):
        assert self.inside.acquire(blocking=False), "two threads inside"
        try:
            while not self.calls and len(self.batching._waiting) < self.hold:
                pass
            numbers = [prompt.ids[0] for prompt in given]
            self.calls.append((numbers, sampling))
            if wrong := set(numbers) & set(self.fails):
                raise ServiceError(f"cannot do {sorted(wrong)}")
            return [Completion((), str(number), StopReason.END) for number in numbers]
        finally:
            self.inside.release()


def batching(model, max_batch=32):
    model.batching = BatchingGenerator(model, max_batch)
    return model.batching


def said(generator, numbers, sampling=GREEDY):
    try:
        return [completion.text for completion in generator.generate(prompts(*numbers), sampling)]
    except ServiceError as error:
        return str(error)


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=12),
    st.integers(1, 6),
    st.sets(st.integers(0, 30), max_size=3),
)
def test_everybody_gets_what_they_would_get_alone(asked, max_batch, fails):
    generator = batching(Model(fails=fails), max_batch)
    alone = [f"cannot do {sorted(set(each) & fails)}" if set(each) & fails else list(map(str, each)) for each in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda each: said(generator, each), asked)) == alone
    joined = [numbers for numbers, _ in generator.generator.calls]
    assert all(len(numbers) <= max(max_batch, *map(len, asked)) for numbers in joined)


def test_those_who_wait_are_joined_in_order_up_to_the_limit():
    generator = batching(Model(hold=5), 4)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda i: said(generator, [i, i]), range(6))) == [[str(i)] * 2 for i in range(6)]
    assert [len(numbers) for numbers, _ in generator.generator.calls] == [2, 4, 4, 2]


def test_another_sampling_or_a_seed_is_not_joined():
    generator = batching(Model(hold=5))
    ways = [GREEDY, GREEDY, replace(GREEDY, temperature=1.0), replace(GREEDY, seed=1), replace(GREEDY, seed=1), GREEDY]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: said(generator, [i], ways[i]), range(6)))
    for numbers, sampling in generator.generator.calls:
        assert {ways[number] for number in numbers} == {sampling}
        assert len(numbers) == 1 or sampling.seed is None
    assert sorted(number for numbers, _ in generator.generator.calls for number in numbers) == list(range(6))


def test_what_else_uses_the_model_runs_between_batches():
    model = Model()
    generator = batching(model)

    def other():
        assert model.inside.acquire(blocking=False), "a batch is under way"
        model.inside.release()

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda i: generator.alone(other) if i % 3 == 0 else said(generator, [i]), range(60)))
    assert results == [None if i % 3 == 0 else [str(i)] for i in range(60)]


def test_an_interruption_while_each_is_tried_alone_is_told_to_all_of_the_batch():
    class Interrupted(Model):
        def generate(self, given, sampling):
            done = super().generate(given, sampling)
            if len(self.calls) == 2:
                raise ServiceError("together it fails")
            if len(self.calls) == 3:
                raise KeyboardInterrupt
            return done

    generator = batching(Interrupted(hold=5))
    said_to = []

    def ask(number):
        try:
            said_to.append(said(generator, [number]))
        except BaseException as error:  # noqa: BLE001 - of the thread that ran the model
            said_to.append(type(error).__name__)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))
    assert len(generator.generator.calls) == 3
    assert said_to.count("KeyboardInterrupt") == 1 and said_to.count("generation was interrupted") == 4
