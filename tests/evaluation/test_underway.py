"""Calls of a batch under way: answered from the file where they are the same, drawn where they are not."""

from dataclasses import replace

import pytest

from memalpha.errors import InputError
from memalpha.evaluation.underway import UnderWay
from memalpha.types import Completion, Prompt, Sampling, StopReason

PROMPTS = [Prompt((), (1, 2, 3), 2), Prompt((), (4,))]
DRAWN = [Completion((5, 6), "a « b\u2028c", StopReason.END, (-0.25, -1.5)), Completion((), "", StopReason.LENGTH)]
GREEDY = Sampling(8)


def never() -> list[Completion]:
    raise AssertionError("drawn again")


def test_a_call_of_before_is_answered_from_the_file_with_its_time(tmp_path, monkeypatch):
    clock = iter([10.0, 12.5])
    monkeypatch.setattr("memalpha.evaluation.underway.time.perf_counter", lambda: next(clock))
    before = UnderWay(tmp_path)
    assert before.completions("a", PROMPTS, GREEDY, lambda: DRAWN) == DRAWN and before.recalled == 0
    after = UnderWay(tmp_path)
    assert after.completions("a", PROMPTS, GREEDY, never) == DRAWN and after.recalled == 2.5


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
    UnderWay(tmp_path).completions("a", PROMPTS, GREEDY, lambda: DRAWN)
    other = [Completion((7,), "other", StopReason.END)]
    after = UnderWay(tmp_path)
    assert after.completions(adapter, prompts, sampling, lambda: other) == other
    assert after.completions("a", PROMPTS, GREEDY, never) == DRAWN


def test_the_seed_tells_calls_apart_and_without_one_each_is_drawn(tmp_path):
    first, second = DRAWN, DRAWN[::-1]
    before = UnderWay(tmp_path)
    before.completions("a", PROMPTS, Sampling(8, 0.7, seed=1), lambda: first)
    before.completions("a", PROMPTS, Sampling(8, 0.7, seed=2), lambda: second)
    before.completions("a", PROMPTS, Sampling(8, 0.7), lambda: first)
    after = UnderWay(tmp_path)
    assert after.completions("a", PROMPTS, Sampling(8, 0.7, seed=1), never) == first
    assert after.completions("a", PROMPTS, Sampling(8, 0.7, seed=2), never) == second
    assert after.completions("a", PROMPTS, Sampling(8, 0.7), lambda: second) == second


def test_a_line_cut_short_is_dropped_and_a_damaged_one_is_said(tmp_path):
    UnderWay(tmp_path).completions("a", PROMPTS, GREEDY, lambda: DRAWN)
    file = tmp_path / "underway.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole + whole[:40])
    assert UnderWay(tmp_path).completions("a", PROMPTS, GREEDY, never) == DRAWN and file.read_bytes() == whole
    file.write_bytes(whole[:40] + b"\n" + whole)
    with pytest.raises(InputError, match=r"underway\.jsonl, line 1 is damaged"):
        UnderWay(tmp_path)


def test_a_batch_that_is_done_leaves_nothing(tmp_path):
    underway = UnderWay(tmp_path)
    underway.completions("a", PROMPTS, GREEDY, lambda: DRAWN)
    underway.clear()
    underway.clear()
    assert not list(tmp_path.iterdir()) and underway.recalled == 0
    assert underway.completions("a", PROMPTS, GREEDY, lambda: DRAWN[:1]) == DRAWN[:1]
