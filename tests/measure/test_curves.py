"""The curves by value: what is drawn of one run and of several, and the files."""

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from matplotlib.figure import Figure

from memalpha.measure.site import draw, frame_of, panels_of, smooth, write_figures


def rows(slope: float, steps: int = 10) -> list[dict[str, Any]]:
    return [{"step": step, "reward": slope * step, "text": "x"} for step in range(1, steps + 1)]


def drawn(variants: dict[str, list[list[dict[str, Any]]]], title: str = "reward") -> Any:
    axes = Figure().add_subplot()
    draw(axes, title, panels_of(variants)[title])
    return axes


def lines(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def test_values_that_are_not_known_and_rows_without_a_step_are_left_out() -> None:
    given = [
        {"step": 1, "a": None, "b": 9.0},
        {"step": 2, "a": "x", "b": 8.0},
        {"step": 3, "a": 0.5},
        {"step": 4, "a": math.nan},
    ]
    frame = frame_of(given)
    assert dict(frame["a"].dropna()) == {3: 0.5} and dict(frame["b"].dropna()) == {1: 9.0, 2: 8.0}
    assert panels_of({"": [given]}) == {} == panels_of({"": [[]]})


def test_a_rolling_mean_is_over_a_fifth_of_the_points() -> None:
    series = frame_of(rows(1.0))["reward"]  # ten points: of each and the one before
    assert list(smooth(series)) == [1.0, *(step - 0.5 for step in range(2, 11))]
    assert list(smooth(series[:4])) == [1, 2, 3, 4]


def test_one_run_is_drawn_thin_and_as_its_rolling_mean() -> None:
    axes = drawn({"": [rows(1.0)]})
    steps = [float(step) for step in range(1, 11)]
    assert lines(axes) == [(steps, steps), (steps, [1.0, *(step - 0.5 for step in steps[1:])])]
    assert axes.get_legend() is None


def test_seeds_are_drawn_thin_with_their_mean() -> None:
    axes = drawn({"": [rows(1.0, 12), rows(3.0), [{"step": 1}]]})  # the third has no reward
    first, second, mean = lines(axes)
    assert first[0] == second[0] == mean[0] == list(range(1, 11))  # the steps that both have
    assert (first[1][9], second[1][-1]) == (9.5, 28.5)
    assert mean[1] == pytest.approx([(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)])


def test_keys_of_one_run_are_lines_and_of_several_variants_panels() -> None:
    logged = [{"step": 1, "memory/ops/core/insert": 0.1, "memory/ops/facts/insert": 0.2}]
    parts = [{"step": 1, "rewards/tool/mean": 0.5, "rewards/brevity/mean": 0.25}]
    alone = panels_of({"": [[{**logged[0], **parts[0]}]]})
    assert {title: list(panel) for title, panel in alone.items()} == {
        "other parts of the reward": ["tool", "brevity"],
        "inserts by section, share of calls": ["core", "facts"],
    }
    both = panels_of({"a": [logged], "b": [logged, parts]})
    assert {title: list(panel) for title, panel in both.items()} == {
        "tool: other parts of the reward": ["b"],
        "brevity: other parts of the reward": ["b"],
        "core: inserts by section, share of calls": ["a", "b"],
        "facts: inserts by section, share of calls": ["a", "b"],
    }


def test_pictures_are_svg_and_depend_on_the_data_alone(tmp_path: Path) -> None:
    names = ["_old", r"$\frac$", "a_$b$"]
    variants = {name: [rows(1.0)] for name in names}
    assert write_figures(tmp_path / "a", variants) == [("reward", "a/00.svg")]
    write_figures(tmp_path / "b", variants)
    text = (tmp_path / "a" / "00.svg").read_text(encoding="utf-8")
    assert text == (tmp_path / "b" / "00.svg").read_text(encoding="utf-8")
    assert "script" not in text
    texts = [(element.text or "").strip() for element in ElementTree.fromstring(text).iter()]
    assert [text for text in texts if text in names] == names  # a legend shows them as they are
