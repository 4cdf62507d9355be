from __future__ import annotations

import io
import math
from typing import Any

import pytest

from memalpha.report.curves import DARK, LIGHT, PANELS, curves_png, draw_figure, rolling_mean, series, window_for, write_curves
from memalpha.runs import RunFolder


def lines(figure: Any, title: str) -> list[tuple[list[float], list[float]]]:
    (axes,) = [axes for axes in figure.axes if axes.get_title(loc="left") == title]
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def test_rolling_mean_by_hand() -> None:
    assert rolling_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
    assert rolling_mean([1.0, 3.0], 10) == [1.0, 2.0]
    assert rolling_mean([], 3) == []
    assert [window_for(n) for n in (0, 4, 10, 30, 1000)] == [1, 1, 2, 6, 25]


def test_series_leaves_out_what_is_not_known_and_takes_the_first_key_a_run_has() -> None:
    rows = [{"step": 1, "b": 9.0}, {"step": 2, "a": None, "b": 8.0}, {"step": 3, "a": 0.5}, {"a": 7.0}, {"step": 4, "a": math.nan}]
    assert series(rows, ("a", "b")) == ([3.0], [0.5])
    assert series(rows, ("missing", "b")) == ([1.0, 2.0], [9.0, 8.0])
    assert series(rows, ("missing",)) == ([], [])


def test_the_picture_shows_the_values_of_the_metrics() -> None:
    rows = [{"step": step, "reward": float(step), "memory/insert_share": 0.5, "memory/reward_tool": 0.25} for step in range(1, 11)]
    rows[4]["reward"] = None
    figure = draw_figure(rows)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "reward",
        "other parts of the reward",
        "what the calls did, share",
    ]
    steps = [1.0, 2.0, 3.0, 4.0, 6.0, 7.0, 8.0, 9.0, 10.0]
    assert lines(figure, "reward") == [(steps, steps), (steps, [1.0, 1.5, 2.5, 3.5, 5.0, 6.5, 7.5, 8.5, 9.5])]
    assert lines(figure, "other parts of the reward")[1] == ([float(s) for s in range(1, 11)], [0.25] * 10)


def test_held_out_accuracy_is_marked_where_it_was_measured() -> None:
    rows = [{"step": step, "rewards/accuracy/mean": 0.5} for step in (1, 2, 3)]
    summary = {"before": {"accuracy": 0.25, "stderr": None}, "after": {"accuracy": 0.75, "stderr": 0.125}}
    curve, *marked = lines(draw_figure(rows, summary), "accuracy")
    assert curve == ([1.0, 2.0, 3.0], [0.5] * 3)
    # the marks, then the lower and upper ends of their errors; an unknown error has no length
    assert sorted(marked) == sorted([([0.0, 3.0], values) for values in ([0.25, 0.75], [0.25, 0.625], [0.25, 0.875])])
    assert len(lines(draw_figure(rows, {"before": {"accuracy": None}}), "accuracy")) == 1


def test_every_panel_can_be_drawn_and_every_line_has_a_colour() -> None:
    row = {"step": 1} | {keys[0]: 0.5 for panel in PANELS for keys in panel.lines.values()}
    figure = draw_figure([row], theme=DARK)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [panel.title for panel in PANELS]
    assert [len(axes.get_lines()) for axes in figure.axes] == [len(panel.lines) for panel in PANELS]
    assert max(len(panel.lines) for panel in PANELS) <= min(len(LIGHT.lines), len(DARK.lines))


def test_a_picture_is_written_only_where_there_is_something_to_draw(bare_run: RunFolder) -> None:
    assert curves_png([]) is None
    assert write_curves(bare_run) is None
    bare_run.append_line("metrics.jsonl", {"step": 1, "reward": math.nan})
    assert write_curves(bare_run) is None
    assert not (bare_run.path / "report").exists()


def test_the_file_is_a_picture_of_the_theme(finished_run: RunFolder) -> None:
    from matplotlib.image import imread

    path = write_curves(finished_run)
    assert path == finished_run.path / "report" / "curves.png"
    light, dark = imread(path), imread(io.BytesIO(curves_png(finished_run.metrics(), theme=DARK) or b""))
    assert light.shape == dark.shape
    assert light[0, 0, :3] == pytest.approx([1.0, 1.0, 1.0])
    assert dark[0, 0, :3] == pytest.approx([0x16 / 255, 0x1B / 255, 0x22 / 255], abs=1e-6)
