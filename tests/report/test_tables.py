from __future__ import annotations

import math
from typing import Any

import pytest
from rich.console import Console

from memalpha.report.tables import headline, summary_markdown, summary_rows, summary_table
from memalpha.runs import RunFolder


def evaluation(accuracy: float, **more: Any) -> dict[str, Any]:
    kinds = {"latest": {"accuracy": accuracy, "questions": 24}, "count": {"accuracy": 0.5, "questions": 1}}
    return {
        "accuracy": accuracy,
        "stderr": 0.03,
        "reward": 1.0,
        "memory_tokens": 1234.5,
        "cut_off": 0.1,
        "n": 12,
        "kinds": kinds,
        **more,
    }


SUMMARY = {
    "steps": 5,
    "before": evaluation(0.25),
    "after": evaluation(0.5, memory_tokens=1000.0, cut_off=None),
    "delta": {"accuracy": 0.24, "stderr": 0.1, "n": 11},
}


def test_rows_by_value() -> None:
    columns, rows = summary_rows(SUMMARY)
    assert columns == ("before", "after", "difference")
    assert [(row.name, row.cells) for row in rows] == [
        ("accuracy", ("0.250 ± 0.030", "0.500 ± 0.030", "+0.240 ± 0.100")),
        ("reward", ("1.000", "1.000", "+0.000")),
        ("memory tokens", ("1,234.5", "1,000.0", "-234.5")),
        ("completions cut off, share", ("0.100", "–", "–")),
        ("instances scored", ("12", "12", "+0")),
        ("accuracy: count (1 question)", ("0.500", "0.500", "+0.000")),
        ("accuracy: latest (24 questions)", ("0.250", "0.500", "+0.250")),
    ]


def test_kinds_scored_differently_often_say_so() -> None:
    summary = {"before": evaluation(0.5), "after": evaluation(0.5, kinds={"latest": {"accuracy": 1.0, "questions": 20}})}
    rows = {row.name: row.cells for row in summary_rows(summary).rows}
    assert rows["accuracy: latest (24 and 20 questions)"] == ("0.500", "1.000", "+0.500")
    assert rows["accuracy: count (1 and – questions)"] == ("0.500", "–", "–")
    assert rows["accuracy"] == ("0.500 ± 0.030", "0.500 ± 0.030", "–")


def test_the_real_summary_of_a_run(finished_run: RunFolder) -> None:
    rows = {row.name: row.cells for row in summary_rows(finished_run.read_json("summary.json")).rows}
    # before: ann 0, bob 1; after: ann 1, bob 0; the third instance 0 both times: means 1/3, differences +1, -1, 0
    error = math.sqrt(((1 - 1 / 3) ** 2 + 2 * (1 / 3) ** 2) / 2 / 3)
    assert rows["accuracy"] == (f"0.333 ± {error:.3f}", f"0.333 ± {error:.3f}", f"+0.000 ± {math.sqrt(1 / 3):.3f}")
    recorded = [row["rollout"] for row in finished_run.read_lines("held_out/after.jsonl")]
    latest = [question["kind"] for rollout in recorded for question in rollout["questions"]].count("latest")
    assert rows[f"accuracy: latest ({latest} questions)"] == ("0.000", f"{1 / latest:.3f}", f"+{1 / latest:.3f}")
    assert rows["instances scored"] == ("3", "3", "+0")


def test_one_evaluation_alone_and_none_at_all() -> None:
    columns, rows = summary_rows({"model": "m", **evaluation(0.25)})
    assert columns == ("held out",)
    assert rows[0].cells == ("0.250 ± 0.030",)
    assert summary_rows({"steps": 3}) == ((), ())
    assert summary_markdown({"steps": 3}) == "No held-out instances were evaluated.\n"


@pytest.mark.parametrize(
    ("delta", "says"),
    [
        (
            {"accuracy": 0.25, "stderr": 0.1, "n": 12},
            "+0.250 ± 0.100, paired over 12 instances. That is more than two standard errors.",
        ),
        (
            {"accuracy": -0.25, "stderr": 0.1, "n": 12},
            "-0.250 ± 0.100, paired over 12 instances. That is more than two standard errors.",
        ),
        ({"accuracy": 0.2, "stderr": 0.1, "n": 12}, "That is within two standard errors: no clear difference."),
        ({"accuracy": 0.25, "stderr": None, "n": 1}, "+0.250, paired over 1 instance."),
        ({"accuracy": math.nan, "stderr": None, "n": 0}, "no instance was scored both times."),
        (None, "no instance was scored both times."),
    ],
)
def test_the_headline_claims_no_more_than_the_error_allows(delta: dict[str, Any] | None, says: str) -> None:
    text = headline({**SUMMARY, "delta": delta})
    assert text.startswith("Held-out accuracy 0.250 before and 0.500 after training")
    assert text.endswith(says)


def test_headline_of_less() -> None:
    assert headline({}) == ""
    assert headline(evaluation(0.25)) == "Accuracy 0.250 ± 0.030 on 12 held-out instances."


def test_markdown_is_a_table_whatever_a_kind_is_called() -> None:
    text = summary_markdown({"before": evaluation(0.5, kinds={"a|b\n<i>": {"accuracy": 1.0, "questions": 2}})})
    lines = text.splitlines()
    assert lines[:3] == ["|  | before |", "| --- | ---: |", "| accuracy | 0.500 ± 0.030 |"]
    assert lines[-1] == "| accuracy: a\\|b &lt;i> (2 questions) | 1.000 |"


def test_the_terminal_table_shows_every_cell() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(
            summary_table({**SUMMARY, "before": evaluation(0.25, kinds={"[red]odd[/x]": {"accuracy": 0.125, "questions": 8}})})
        )
    lines = [" ".join(line.split()) for line in capture.get().splitlines()]
    assert "before after difference" in lines
    assert "accuracy 0.250 ± 0.030 0.500 ± 0.030 +0.240 ± 0.100" in lines
    assert "accuracy: [red]odd[/x] (8 and – questions) 0.125 – –" in lines
    with console.capture() as capture:
        console.print(summary_table({"steps": 3}))
    assert "no held-out instances were evaluated" in " ".join(capture.get().split())
