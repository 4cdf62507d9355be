from __future__ import annotations

from memalpha.report.catalogue import _kept_steps, catalogue_of
from memalpha.report.overview import Card, Part, Trouble, cards, duration, failures, several_headline, time_split, troubles
from memalpha.runs import RunFolder


def test_time_is_split_into_what_was_measured_and_the_rest() -> None:
    metrics = [{"time/rollouts": 3.0, "time/scoring": 1.0, "step_time": 2.0}, {"time/rollouts": 3.0, "step_time": None}]
    assert time_split(metrics, {"seconds": 20.0}) == [
        Part("rollouts", 6.0, 0.3), Part("scoring", 1.0, 0.05), Part("update", 2.0, 0.1), Part("everything else", 11.0, 0.55),
    ]  # fmt: skip
    assert [part.name for part in time_split(metrics, {})] == ["rollouts", "scoring", "update"]
    assert time_split([{"step": 1}], {"seconds": 20.0}) == []


def test_durations_read_well() -> None:
    assert [duration(value) for value in (1.25, 119.96, 600, 7200, None)] == ["1.2 s", "120.0 s", "10.0 min", "2.0 h", "– s"]


def test_head_numbers_are_those_of_the_last_step_and_say_the_first() -> None:
    metrics = [{"step": 1, "reward": 0.5, "memory/masked": 0.25}, {"step": 2, "reward": 0.75, "memory/masked": 0.0, "kl": 0.01}]
    assert cards(metrics, {"beta": 0.0}) == [
        Card("reward", "0.750", "from 0.500 at the first step"),
        Card("KL term", "off", ""),
        Card("rollouts not scored", "12.5%", "of all"),
    ]
    assert Card("KL to the reference", "0.0100", "at the only step") in cards(metrics, {"beta": 0.1})
    assert cards([], {}) == []


def test_failed_calls_are_counted_by_code_and_place(finished_run: RunFolder) -> None:
    found = {kind.where: kind for kind in failures(catalogue_of([finished_run]).facts)}
    assert found["before"][1:] == (3, (("unparsed", 1, 1 / 3),))
    assert {code: count for code, count, _ in found["after"].codes} == {"unknown_id": 1, "unparsed": 1}
    assert found["training"].codes == ()
    assert found["training"].calls == 4


def test_what_could_not_be_scored_is_listed_with_its_step(finished_run: RunFolder) -> None:
    name = "trajectories/step-000002-rank-0.jsonl"
    rows = list(finished_run.read_lines(name))
    for row in rows:
        row["questions"][0].update(score=None, error="the reader is down")
    rows[0]["steps"][1]["error"] = "the judge is down"
    finished_run.write_lines(name, rows)
    metrics = [{"step": 3, "skipped": 1.0}, {"step": 4, "skipped": 0.0}]
    assert troubles(catalogue_of([finished_run]).facts, metrics) == [
        Trouble("step 3", "the step was skipped: loss or gradient was not finite", 1),
        Trouble("step 2", "the reader is down", 2),
        Trouble("step 2", "the judge is down", 1),
    ]


def test_seeds_are_said_with_their_interval() -> None:
    summaries = [{"delta": {"accuracy": value}} for value in (0.1, 0.2, 0.3)]
    assert several_headline(summaries) == "Held-out accuracy changed by +0.200 (95% interval -0.048 to +0.448), mean of 3 runs."
    assert several_headline([{}, {}]) == ""


def test_steps_are_kept_whole_evenly_and_with_the_last() -> None:
    counts = {(0, step): 8 for step in range(1, 101)}
    assert _kept_steps(counts, 0) == _kept_steps(counts, 800) == set(counts)
    kept = sorted(step for _, step in _kept_steps(counts, 40))
    assert kept == [1, 26, 50, 75, 100]
    assert _kept_steps(counts, 3) == {(0, 100)}
