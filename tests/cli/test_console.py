"""What a run shows of itself: plain lines, the live view of a terminal, rollouts every so often."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from memalpha.cli.console import Reporter
from memalpha.cli.live import LiveView, Pace, Speed, course, step_line


def step(number: int, **more: Any) -> dict[str, Any]:
    return {"step": number, "max_steps": 4, "reward": 0.5, "num_tokens": 1000.0 * number, **more}


def clock(*times: float) -> Any:
    ticks: Iterator[float] = iter(times)
    return lambda: next(ticks)


def plain() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=False, soft_wrap=True, highlight=False)


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_pace_by_hand() -> None:
    pace = Pace(clock(0, 10, 15, 25, 28, 30))
    pace.other()  # at 10: loading and evaluating are no step
    assert pace.step(step(1)) == Speed(5, 200.0, 15.0)  # at 15: 1,000 tokens in 5 s, three steps of 5 s to go
    assert pace.step(step(2)) == Speed(10, 100.0, 2 * 7.5)  # at 25
    pace.other()  # at 28
    assert pace.step(step(3, num_tokens=None)) == Speed(2, None, pytest.approx(17 / 3))  # at 30


def test_the_first_step_of_a_resumed_run_knows_no_rate() -> None:
    pace = Pace(clock(0, 5, 10))
    assert pace.step(step(3)) == Speed(5, None, 5.0)
    assert pace.step(step(4)) == Speed(5, 200.0, 0.0)


def test_a_step_as_a_line_says_what_is_known() -> None:
    data = step(2, loss=None, **{"rewards/accuracy/mean": 0.25, "rewards/content/mean": float("nan"), "memory/masked": 0.0})
    line = step_line(data, Speed(2.5, 400.0, 150.0))
    assert line == "step 2/4  reward 0.500  accuracy 0.250  masked 0.000  tokens/s 400  s/step 2.5  2.5 min left"
    assert step_line(step(4), Speed(None, None, None)) == "step 4/4  reward 0.500"


def test_course_runs_from_the_smallest_to_the_largest() -> None:
    assert course([0.0, 1.0, None, 0.5]) == "▁█–▅"
    assert course([2.0, 2.0]) == "▁▁"
    assert course([None]) == ""


def test_where_there_is_no_terminal_there_are_lines() -> None:
    console = plain()
    with Reporter(target=console) as reporter:
        reporter("load", {"what": "nano [bold]and[/bold] toy"})
        reporter("evaluate", {"name": "before", "done": 1, "total": 3, "instances": 2})
        reporter("step", step(1))
        reporter("unheard of", {})
    lines = [line.split("s] ", 1)[1] for line in written(console).splitlines()]
    assert lines[:2] == ["loading nano [bold]and[/bold] toy", "evaluating before: chunk 1 of 3 of 2 instances"]
    assert lines[2].startswith("step 1/4  reward 0.500  tokens/s ")
    assert len(lines) == 3
    assert "\x1b" not in written(console)


def test_a_rank_other_than_the_first_is_silent() -> None:
    console = plain()
    with Reporter(False, target=console) as reporter:
        reporter("load", {"what": "nano"})
        reporter("step", step(1))
    assert written(console) == ""


def test_a_terminal_gets_a_live_view_and_its_cursor_back() -> None:
    console = Console(
        file=io.StringIO(), width=120, force_terminal=True, force_interactive=True, color_system=None, highlight=False
    )
    with Reporter(target=console) as reporter:
        reporter("evaluate", {"name": "before", "done": 2, "total": 3, "instances": 2})
        done = {"name": "before", "accuracy": 0.5, "stderr": 0.1, "n": 2, "tool_success": 1.0, "memory_tokens": 9, "seconds": 1}
        reporter("evaluated", done)
        for number in (1, 2, 3):
            reporter("step", step(number, reward=number / 4, **{"rewards/accuracy/mean": None}))
    text = written(console)
    assert "before: accuracy 0.500 +- 0.100 on 2 held-out instances" in text
    last = text[text.rindex("last step") :]
    assert "reward" in last
    assert "0.750" in last  # the last step
    assert "0.500" in last  # the mean of the three
    assert "▁▅█" in last
    assert "accuracy" not in last  # never known
    assert "training" in last
    assert "3/4" in last
    assert "left" in last
    assert "evaluating before" not in last
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is shown again


def test_the_cursor_comes_back_after_an_error_too() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, force_interactive=True)
    with pytest.raises(RuntimeError), Reporter(target=console) as reporter:
        reporter("step", step(1))
        raise RuntimeError
    assert written(console).count("\x1b[?25l") == written(console).count("\x1b[?25h") == 1


def test_a_view_without_steps_shows_progress_alone() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, force_interactive=True)
    view = LiveView(console)
    view.advance("evaluating after", 1, 2)
    view.stop()
    assert "last step" not in written(console)
    assert "evaluating after" in written(console)


def test_a_rollout_is_shown_every_so_often(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({}))
    (tmp_path / "trajectories").mkdir()
    for number in (2, 4):
        rollout = {
            "instance": f"ann-{number}",
            "source": "hand",
            "steps": [],
            "questions": [],
            "memory": [],
            "memory_tokens": 0,
            "input_tokens": 7,
        }
        path = tmp_path / "trajectories" / f"step-{number:06d}-rank-0.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in (rollout, {**rollout, "instance": "second"})))
    console = plain()
    with Reporter(True, str(tmp_path), 2, console) as reporter:
        for number in (1, 2, 3, 4):
            reporter("step", step(number))
    text = written(console)
    assert [f"ann-{number}" in text for number in (2, 4)] == [True, True]
    assert text.count("the first rollout of step") == 2
    assert "second" not in text
