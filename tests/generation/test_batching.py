"""Many threads, one model: who is joined with whom, and that the model is never entered twice."""

import ctypes
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.errors import ServiceError
from memalpha.generation.serving import BatchingGenerator, Turns
from memalpha.types import Completion, Prompt, Sampling, StopReason

GREEDY = Sampling(8)


def prompts(*numbers):
    return [Prompt((), (number,)) for number in numbers]


class Model:
    """Says each prompt's number; holds its first call until so many others wait; keeps what it was
    asked."""

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
    alone = [
        f"cannot do {sorted(set(each) & fails)}" if set(each) & fails else list(map(str, each))
        for each in asked
    ]
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(lambda each: said(generator, each), asked)) == alone
    joined = [numbers for numbers, _ in generator.generator.calls]
    assert all(len(numbers) <= max(max_batch, *map(len, asked)) for numbers in joined)


def test_those_who_wait_are_joined_in_order_up_to_the_limit():
    generator = batching(Model(hold=5), 4)
    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(lambda i: said(generator, [i, i]), range(6))) == [
            [str(i)] * 2 for i in range(6)
        ]
    assert [len(numbers) for numbers, _ in generator.generator.calls] == [2, 4, 4, 2]


def test_another_sampling_or_a_seed_is_not_joined():
    generator = batching(Model(hold=5))
    ways = [
        GREEDY,
        GREEDY,
        replace(GREEDY, temperature=1.0),
        replace(GREEDY, seed=1),
        replace(GREEDY, seed=1),
        GREEDY,
    ]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda i: said(generator, [i], ways[i]), range(6)))
    for numbers, sampling in generator.generator.calls:
        assert {ways[number] for number in numbers} == {sampling}
        assert len(numbers) == 1 or sampling.seed is None
    assert sorted(number for numbers, _ in generator.generator.calls for number in numbers) == list(
        range(6)
    )


HUNGRY = """
import ctypes, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from memalpha.generation.serving import Turns

def run(items):  # 100 MB a call, with small pieces between them that stay in use
    blocks = []
    for number in range(1000):
        blocks.append(ctypes.create_string_buffer(100_000))
        if number % 10 == 0:
            left.append(ctypes.create_string_buffer(1000))  # not of Python's own pools
    return items

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

left, turns, before = [], Turns(), resident()
for _ in range(4):  # threads that ask at once
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: turns.call("kind", [number], run), range(8)))
deadline = time.monotonic() + 20
while resident() >= before + 60 and time.monotonic() < deadline:
    time.sleep(0.1)  # given back once the callers have their answers
print(resident() - before)
"""


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or not hasattr(ctypes.CDLL(None), "malloc_trim"),
    reason="needs glibc",
)
def test_memory_that_batches_freed_is_given_back():
    """Each thread's heap keeps small holes between what is still in use. In a process of its own:
    what other tests left in this one grows and shrinks too."""
    done = subprocess.run(
        [sys.executable, "-c", HUNGRY], capture_output=True, text=True, check=True
    )
    assert float(done.stdout) < 60


AMID = """
import threading, time, torch
from memalpha.generation.serving import Turns

def run(items):
    begun.set()
    end = time.monotonic() + 1
    while time.monotonic() < end:
        torch.randn(30, 30) @ torch.randn(30, 30)
    return items

begun = threading.Event()
threading.Thread(target=Turns().call, args=("kind", [0], run), daemon=True).start()
begun.wait()
"""


def test_a_process_that_ends_amid_a_batch_ends_after_it():
    """Of a thread that Python's end stops torch aborts the process."""
    assert subprocess.run([sys.executable, "-c", AMID], check=False).returncode == 0


class Held:
    """Answers with what it is asked; holds its first call until ``go``; keeps the items of each."""

    def __init__(self):
        self.go, self.calls = threading.Event(), []

    def __call__(self, items):
        assert self.go.wait(30)
        self.calls.append(list(items))
        return list(items)

    def served(self, turns, calls):
        """The items of each turn, if all of ``calls`` wait in this order while the first is under way."""
        with ThreadPoolExecutor(len(calls)) as pool:
            jobs = []
            for i, (kind, items, owner) in enumerate(calls):
                jobs.append(pool.submit(turns.call, kind, items, self, owner))
                while i != len(turns._waiting):  # the first is taken, the others wait
                    time.sleep(0.001)
            self.go.set()
            assert [job.result() for job in jobs] == [list(items) for _, items, _ in calls]
        return self.calls


KINDS = [("write", [f"w{i}"], None) for i in range(7)] + [
    ("read", [f"r{i}"], None) for i in range(3)
]
OWNERS = [("read", [f"{owner}{i}"], owner) for i, owner in enumerate("aaaaaabca")]


@pytest.mark.parametrize(
    ("most", "calls", "turns"),
    [
        (2, KINDS, [["w0"], ["r0", "r1"], ["w1", "w2"], ["r2"], ["w3", "w4"], ["w5", "w6"]]),
        (3, OWNERS, [["a0"], ["a1", "b6", "c7"], ["a2", "a3", "a4"], ["a5", "a8"]]),
    ],
    ids=["kinds", "owners within a batch"],
)
def test_kinds_and_owners_take_turns(most, calls, turns):
    assert Held().served(Turns(most), calls) == turns
