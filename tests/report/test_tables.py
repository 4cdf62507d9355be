"""The numbers of the first page: before and after, where the time went, what went wrong."""

from __future__ import annotations

import math
from typing import Any

import pytest
from rich.console import Console

from memalpha.report.catalogue import catalogue_of, kept_steps
from memalpha.report.tables import (
    cards,
    failures,
    headline,
    several_headline,
    summary_markdown,
    summary_rows,
    summary_table,
    time_split,
    troubles,
)
from memalpha.runs import RunFolder


def evaluation(accuracy: float, **more: Any) -> dict[str, Any]:
    kinds = {"latest": {"accuracy": accuracy, "questions": 24}, "count": {"accuracy": 0.5, "questions": 1}}
    numbers = {"accuracy": accuracy, "stderr": 0.03, "reward": 1.0, "memory_tokens": 1234.5, "cut_off": 0.1, "n": 12}
    return {**numbers, "kinds": kinds, **more}


SUMMARY = {
    "steps": 5,
    "before": evaluation(0.25),
    "after": evaluation(0.5, memory_tokens=1000.0, cut_off=None),
    "delta": {"accuracy": 0.24, "stderr": 0.1, "n": 11},
}


def test_rows_by_value() -> None:
    columns, rows = summary_rows(SUMMARY)
    assert columns == ("before", "after", "difference")
    assert rows == (
        ("accuracy", ("0.250 ± 0.030", "0.500 ± 0.030", "+0.240 ± 0.100")),
        ("reward", ("1.000", "1.000", "+0.000")),
        ("memory tokens", ("1,234.5", "1,000.0", "-234.5")),
        ("completions cut off, share", ("0.100", "–", "–")),
        ("instances scored", ("12", "12", "+0")),
        ("accuracy: count (1 question)", ("0.500", "0.500", "+0.000")),
        ("accuracy: latest (24 questions)", ("0.250", "0.500", "+0.250")),
    )
    other = {"before": evaluation(0.5), "after": evaluation(0.5, kinds={"latest": {"accuracy": 1.0, "questions": 20}})}
    found = dict(summary_rows(other).rows)
    assert found["accuracy: latest (24 and 20 questions)"] == ("0.500", "1.000", "+0.500")
    assert found["accuracy: count (1 and – questions)"] == ("0.500", "–", "–")
    assert found["accuracy"] == ("0.500 ± 0.030", "0.500 ± 0.030", "–")
    alone = summary_rows({"model": "m", **evaluation(0.25)})
    assert (alone.columns, alone.rows[0].cells) == (("held out",), ("0.250 ± 0.030",))
    assert summary_rows({"steps": 3}) == ((), ())


def test_the_real_summary_of_a_run(finished_run: RunFolder) -> None:
    rows = dict(summary_rows(finished_run.read_json("summary.json")).rows)
    # before: ann 0, bob 1; after: ann 1, bob 0; the third instance 0 both times: means 1/3, differences +1, -1, 0
    error = math.sqrt(((1 - 1 / 3) ** 2 + 2 * (1 / 3) ** 2) / 2 / 3)
    assert rows["accuracy"] == (f"0.333 ± {error:.3f}", f"0.333 ± {error:.3f}", f"+0.000 ± {math.sqrt(1 / 3):.3f}")
    recorded = [row["rollout"] for row in finished_run.read_lines("held_out/after.jsonl")]
    latest = [question["kind"] for rollout in recorded for question in rollout["questions"]].count("latest")
    assert rows[f"accuracy: latest ({latest} questions)"] == ("0.000", f"{1 / latest:.3f}", f"+{1 / latest:.3f}")


@pytest.mark.parametrize(
    ("delta", "says"),
    [
        ({"accuracy": 0.25, "stderr": 0.1, "n": 12}, "paired over 12 instances. That is more than two standard errors."),
        ({"accuracy": -0.25, "stderr": 0.1, "n": 12}, "That is more than two standard errors."),
        ({"accuracy": 0.2, "stderr": 0.1, "n": 12}, "That is within two standard errors: no clear difference."),
        ({"accuracy": 0.25, "stderr": None, "n": 1}, "+0.250, paired over 1 instance."),
        ({"accuracy": math.nan, "stderr": None, "n": 0}, "no instance was scored both times."),
        (None, "no instance was scored both times."),
    ],
)  # fmt: skip
def test_the_headline_claims_no_more_than_the_error_allows(delta: dict[str, Any] | None, says: str) -> None:
    text = headline({**SUMMARY, "delta": delta})
    assert text.startswith("Held-out accuracy 0.250 before and 0.500 after training")
    assert text.endswith(says)


def test_headlines_of_less_and_of_several() -> None:
    assert headline({}) == ""
    assert headline(evaluation(0.25)) == "Accuracy 0.250 ± 0.030 on 12 held-out instances."
    summaries = [{"delta": {"accuracy": value}} for value in (0.1, 0.2, 0.3)]
    assert several_headline(summaries) == "Held-out accuracy changed by +0.200 (95% interval -0.048 to +0.448), mean of 3 runs."
    assert several_headline([{}, {}]) == ""


def test_markdown_and_terminal_show_a_kind_whatever_it_is_called() -> None:
    summary = {"before": evaluation(0.5, kinds={"a|b\n<i>[/x]": {"accuracy": 1.0, "questions": 2}})}
    lines = summary_markdown(summary).splitlines()
    assert lines[:3] == ["|  | before |", "| --- | ---: |", "| accuracy | 0.500 ± 0.030 |"]
    assert lines[-1] == "| accuracy: a\\|b &lt;i>[/x] (2 questions) | 1.000 |"
    console = Console(width=120)
    with console.capture() as capture:
        console.print(summary_table(summary))
        console.print(summary_table({"steps": 3}))
    shown = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert "accuracy: a|b\\n<i>[/x] (2 questions) 1.000" in shown and "accuracy 0.500 ± 0.030" in shown
    assert "no held-out instances were evaluated" in shown


# ---------------------------------------------------------------------------------------------------- the run
def test_time_is_split_into_what_was_measured_and_the_rest() -> None:
    metrics = [{"time/rollouts": 3.0, "time/scoring": 1.0, "step_time": 2.0}, {"time/rollouts": 3.0, "step_time": None}]
    assert time_split(metrics, 20.0) == {"rollouts": 6.0, "scoring": 1.0, "update": 2.0, "everything else": 11.0}
    assert [*time_split(metrics, None)] == ["rollouts", "scoring", "update"]
    assert time_split([{"step": 1}], 20.0) == {}


def test_head_numbers_are_those_of_the_last_step_and_say_the_first() -> None:
    metrics = [{"step": 1, "reward": 0.5, "memory/masked": 0.25}, {"step": 2, "reward": 0.75, "memory/masked": 0.0, "kl": 0.01}]
    assert cards(metrics, {"beta": 0.0}) == [
        ("reward", "0.750", "from 0.500 at the first step"),
        ("KL term", "off", ""),
        ("rollouts not scored", "12.5%", "of all"),
    ]
    assert ("KL to the reference", "0.0100", "at the only step") in cards(metrics, {"beta": 0.1})
    assert cards([], {}) == []


def test_failed_calls_and_what_was_not_scored_are_counted_by_place(finished_run: RunFolder) -> None:
    name = "trajectories/step-000002-rank-0.jsonl"
    rows = list(finished_run.read_lines(name))
    for row in rows:
        row["questions"][0].update(score=None, error="the reader is down")
    rows[0]["steps"][1]["error"] = "the judge is down"
    finished_run.write_lines(name, rows)
    facts = catalogue_of([finished_run]).facts
    found = failures(facts)
    assert found["before"] == (3, [("unparsed", 1)])
    assert dict(found["after"][1]) == {"unknown_id": 1, "unparsed": 1}
    assert found["training"] == (4, [])
    assert troubles(facts, [{"step": 3, "skipped": 1.0}, {"step": 4, "skipped": 0.0}]) == [
        ("step 3", "the step was skipped: loss or gradient was not finite", 1),
        ("step 2", "the reader is down", 2),
        ("step 2", "the judge is down", 1),
    ]


def test_steps_are_kept_whole_evenly_and_with_the_last() -> None:
    counts = {(0, step): 8 for step in range(1, 101)}
    assert kept_steps(counts, 0) == kept_steps(counts, 800) == set(counts)
    assert sorted(step for _, step in kept_steps(counts, 40)) == [1, 26, 50, 75, 100]
    assert kept_steps(counts, 3) == {(0, 100)}
