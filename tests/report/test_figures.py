from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from memalpha.report.curves import DARK, LIGHT, Panel
from memalpha.report.figures import Variant, describe, draw_panel, write_figures

REWARD = Panel("reward", {"": ("reward",)})
PARTS = Panel("parts", {"tool": ("tool",), "content": ("content",)}, share=True)


def rows(factor: float, steps: int = 10) -> list[dict[str, Any]]:
    return [{"step": step, "reward": factor * step, "tool": 1.0, "content": 0.5} for step in range(1, steps + 1)]


def lines(figure: Any) -> list[tuple[list[float], list[float]]]:
    return [(list(line.get_xdata()), list(line.get_ydata())) for line in figure.axes[0].get_lines()]


def test_one_run_is_drawn_thin_and_as_its_rolling_mean() -> None:
    steps = [float(step) for step in range(1, 11)]
    figure = draw_panel(REWARD, [Variant("", [rows(1.0)], [{}])], LIGHT)
    assert lines(figure) == [(steps, steps), (steps, [1.0, *(step - 0.5 for step in steps[1:])])]
    assert not figure.axes[0].collections


def test_seeds_are_drawn_thin_with_their_mean_and_band() -> None:
    figure = draw_panel(REWARD, [Variant("", [rows(1.0), rows(3.0)], [{}, {}])], LIGHT)
    first, second, mean = lines(figure)
    assert first[1][-1] == 9.5
    assert second[1][-1] == 28.5
    assert mean[1] == pytest.approx([(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)])
    (area,) = figure.axes[0].collections
    reach = area.get_paths()[0].get_extents()
    # at the last step 9.5 and 28.5: mean 19, standard error 9.5, 12.7062 of them
    assert (reach.y0, reach.y1) == pytest.approx((19 - 9.5 * 12.7062047, 19 + 9.5 * 12.7062047))


def test_held_out_accuracy_has_its_standard_error_or_the_interval_over_runs() -> None:
    panel = Panel("accuracy", {"": ("reward",)})
    summaries = [{"before": {"accuracy": 0.2, "stderr": 0.1}}, {"before": {"accuracy": 0.4, "stderr": 0.1}}]
    ends = {1: (0.1, 0.3), 2: (0.3 - 0.1 * 12.7062047, 0.3 + 0.1 * 12.7062047)}
    for n, expected in ends.items():
        figure = draw_panel(panel, [Variant("", [rows(1.0)] * n, summaries[:n])], LIGHT)
        caps = [ys[0] for xs, ys in lines(figure) if xs == [0.0]]
        assert sorted(caps)[:: len(caps) - 1] == pytest.approx(expected)


def test_words_say_where_each_line_begins_and_ends() -> None:
    assert describe(PARTS, [Variant("", [rows(1.0)], [{}])]) == (
        "tool: 1.000 at step 1, 1.000 at step 10; content: 0.500 at step 1, 0.500 at step 10"
    )
    two = [Variant("a", [rows(1.0), rows(3.0)], [{}, {}]), Variant("b", [rows(0.5)], [{}])]
    assert describe(REWARD, two) == "a: 2.000 at step 1, 20.000 at step 10 (mean of 2 runs); b: 0.500 at step 1, 5.000 at step 10"
    assert describe(Panel("nothing", {"": ("missing",)}), two) == ""


def test_pictures_are_svg_of_both_shades_and_depend_on_the_data_alone(tmp_path: Path) -> None:
    variants = [Variant("", [rows(1.0)], [{}])]
    panels = (REWARD, Panel("nothing", {"": ("missing",)}), PARTS)
    (reward, parts) = write_figures(tmp_path / "a", variants, panels)
    write_figures(tmp_path / "b", variants, panels)
    assert (reward.title, reward.light, parts.dark) == ("reward", "a/00-light.svg", "a/02-dark.svg")
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        f"{n}-{s}.svg" for n in ("00", "02") for s in ("dark", "light")
    ]
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()
        text = path.read_text(encoding="utf-8")
        assert ElementTree.fromstring(text).tag.endswith("svg")
        assert (DARK if "dark" in path.name else LIGHT).background in text
        assert "script" not in text


def test_a_legend_shows_every_name_as_it_is(tmp_path: Path) -> None:
    names = ["_old", r"$\frac$", "a_$b$"]
    variants = [Variant(name, [rows(1.0)], [{}]) for name in names]
    (picture,) = write_figures(tmp_path / "f", variants, (REWARD,))
    texts = [element.text for element in ElementTree.parse(tmp_path / picture.light).iter() if element.tag.endswith("}text")]
    assert [text.strip() for text in texts if text and text.strip() in names] == names


def test_variants_have_a_panel_a_line_and_a_colour_each(tmp_path: Path) -> None:
    variants = [Variant("a", [rows(1.0)], [{}]), Variant("b", [rows(2.0)], [{}])]
    found = write_figures(tmp_path / "f", variants, (PARTS,))
    assert [picture.title for picture in found] == ["tool: parts", "content: parts"]
    figure = draw_panel(REWARD, variants, LIGHT)
    thick = [line for line in figure.axes[0].get_lines() if line.get_label() in ("a", "b")]
    assert [line.get_color() for line in thick] == list(LIGHT.lines[:2])
