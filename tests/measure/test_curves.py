"""Intervals, bands and pictures against numbers worked by hand."""

import math
import statistics
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from memalpha.measure import curves
from memalpha.measure.curves import (
    DARK,
    LIGHT,
    Panel,
    Variant,
    draw_panel,
    interval,
    series,
    write_figures,
)

REWARD = Panel("reward", {"": ("reward",)})
PARTS = Panel("parts", {"tool": ("tool",), "content": ("content",)}, share=True)
T95 = {
    1: 12.7062047,
    2: 4.3026527,
    4: 2.7764451,
    10: 2.2281389,
    30: 2.0422725,
}  # printed table, by degrees of freedom


def rows(factor: float, steps: int = 10) -> list[dict[str, Any]]:
    return [
        {"step": step, "reward": factor * step, "tool": 1.0, "content": 0.5}
        for step in range(1, steps + 1)
    ]


def drawn(panel: Panel, variants: list[Variant]) -> Any:
    from matplotlib.figure import Figure

    axes = Figure().add_subplot()
    draw_panel(axes, panel, variants, LIGHT)
    return axes


def lines(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()]


def test_rolling_mean_by_hand() -> None:
    assert curves.rolling_mean([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]
    assert curves.rolling_mean([1.0, 3.0], 10) == [1.0, 2.0]
    assert [curves.window_for(n) for n in (0, 4, 10, 30, 1000)] == [1, 1, 2, 6, 25]


def test_series_leaves_out_what_is_not_known_and_takes_the_first_key_a_run_has() -> None:
    rows = [
        {"step": 1, "b": 9.0},
        {"step": 2, "a": None, "b": 8.0},
        {"step": 3, "a": 0.5},
        {"a": 7.0},
        {"step": 4, "a": math.nan},
    ]
    assert series(rows, ("a", "b")) == ([3.0], [0.5])
    assert series(rows, ("missing", "b")) == ([1.0, 2.0], [9.0, 8.0])
    assert series(rows, ("missing",)) == ([], [])


def test_an_interval_by_hand() -> None:
    # mean 2, unbiased standard deviation 1, standard error 1 / sqrt 3
    assert interval([1.0, None, 2.0, math.nan, 3.0]) == (2.0, pytest.approx(T95[2] / math.sqrt(3)))
    assert interval([0.5, None]) == (0.5, None)
    assert interval([None, math.nan]) is None
    for freedom, factor in T95.items():
        values = [math.sin(7 * i) for i in range(freedom + 1)]
        reach = factor * statistics.stdev(values) / math.sqrt(len(values))
        assert interval(values) == pytest.approx((statistics.fmean(values), reach), rel=1e-6)


def test_one_run_is_drawn_thin_and_as_its_rolling_mean() -> None:
    axes = drawn(REWARD, [Variant("", [rows(1.0)], [{}])])
    steps = [float(step) for step in range(1, 11)]
    assert lines(axes) == [(steps, steps), (steps, [1.0, *(step - 0.5 for step in steps[1:])])]
    assert not axes.collections


def test_seeds_are_drawn_thin_with_their_mean_and_band() -> None:
    axes = drawn(
        REWARD, [Variant("", [rows(1.0, 12), rows(3.0), [{"step": 1}]], [{}] * 3)]
    )  # the third has no reward
    first, second, mean = lines(axes)
    assert (first[1][9], second[1][-1]) == (9.5, 28.5)
    assert mean[0] == list(range(1, 11))  # the steps that every run has
    assert mean[1] == pytest.approx(
        [(a + b) / 2 for a, b in zip(first[1][:10], second[1], strict=True)]
    )
    (area,) = axes.collections
    ends = area.get_paths()[0].get_extents()
    assert (ends.y0, ends.y1) == pytest.approx(
        (19 - 9.5 * T95[1], 19 + 9.5 * T95[1])
    )  # at the last step, 9.5 and 28.5


@pytest.mark.parametrize(
    ("runs", "ends"), [(1, (0.1, 0.3)), (2, (0.3 - 0.1 * T95[1], 0.3 + 0.1 * T95[1]))]
)
def test_held_out_accuracy_has_its_standard_error_or_the_interval_over_runs(
    runs: int, ends: tuple[float, float]
) -> None:
    summaries = [
        {"before": {"accuracy": 0.2, "stderr": 0.1}},
        {"before": {"accuracy": 0.4, "stderr": 0.1}},
    ]
    variant = Variant("", [rows(1.0)] * runs, summaries[:runs])
    caps = sorted(
        ys[0] for xs, ys in lines(drawn(Panel("accuracy", REWARD.lines), [variant])) if xs == [0.0]
    )
    assert (caps[0], caps[-1]) == pytest.approx(ends)


def test_validation_is_drawn_as_measured_and_after_stands_at_the_selected_step() -> None:
    measured = [(5, 0.2, 0.1), (10, 0.6, 0.2)]
    validation = [
        {"step": step, "eval_accuracy": accuracy, "eval_stderr": error}
        for step, accuracy, error in measured
    ]
    summary = {"after": {"accuracy": 0.5, "stderr": 0.1}, "selection": {"step": 5}}
    (panel,) = (panel for panel in curves.PANELS if ("eval_accuracy",) in panel.lines.values())
    axes = drawn(panel, [Variant("", [[*rows(1.0), *validation]], [summary])])
    found = lines(axes)
    assert (
        ([5.0, 10.0], [0.2, 0.6]) in found
        and ([5.0, 10.0], [0.2, 0.4]) not in found
        and ([5.0], [0.5]) in found
    )
    ends = [list(ys) for xs, ys in found if xs == [5.0, 10.0]]
    assert any(ys == pytest.approx([0.1, 0.4]) for ys in ends) and any(
        ys == pytest.approx([0.3, 0.8]) for ys in ends
    )


def test_pictures_are_svg_of_both_shades_and_depend_on_the_data_alone(tmp_path: Path) -> None:
    variants = [Variant("", [rows(1.0)], [{}])]
    panels = (REWARD, Panel("nothing", {"": ("missing",)}), PARTS)
    (reward, parts) = write_figures(tmp_path / "a", variants, panels)
    write_figures(tmp_path / "b", variants, panels)
    assert (reward.title, reward.light, parts.dark) == ("reward", "a/00-light.svg", "a/02-dark.svg")
    assert len(list((tmp_path / "a").iterdir())) == 4
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag.endswith("svg") and "script" not in text
        assert (DARK if "dark" in path.name else LIGHT).background in text


def test_a_legend_shows_every_name_as_it_is(tmp_path: Path) -> None:
    names = ["_old", r"$\frac$", "a_$b$"]
    (picture,) = write_figures(
        tmp_path / "f", [Variant(name, [rows(1.0)], [{}]) for name in names], (REWARD,)
    )
    texts = [
        element.text
        for element in ElementTree.parse(tmp_path / picture.light).iter()
        if element.tag.endswith("}text")
    ]
    assert [text.strip() for text in texts if text and text.strip() in names] == names


def test_each_kind_of_operation_has_a_panel_with_a_line_a_section() -> None:
    logged = {
        f"memory/ops/{name}": 0.1
        for name in ("core/replace", "semantic/insert", "episodic/insert", "episodic/delete")
    }
    panels = curves.logged_panels([Variant("", [[{"step": 1}, {"step": 2, **logged}]], [{}])])
    lines = {
        "semantic": ("memory/ops/semantic/insert",),
        "episodic": ("memory/ops/episodic/insert",),
    }
    assert panels == [Panel("insert by section, share of the calls", lines, share=True)]
