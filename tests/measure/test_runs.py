"""One run before and after, several side by side, their curves; and the commands that show them."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.figure import Figure
from rich.console import Console

from memalpha.cli import run as memalpha
from memalpha.measure.site import draw_lines, draw_panels, frame_of, panels_of
from memalpha.measure.tables import (
    Table,
    before_and_after,
    columns_of,
    comparison,
    differing,
)
from memalpha.record.folder import RunFolder
from memalpha.training.importance import gap_statistics
from tests.helpers.measured_examples import result

HELD_OUT = {"set": "held out", "system": "policy", "reader": "scorer", "entries": ()}


def rows_of(accuracies: dict[str, float], reward: float = 1.0) -> list[Any]:
    """A row with one question an instance, and a reward."""
    rewards = {"accuracy": 0.5, "total": reward}
    return [result(name, (a,), rewards=rewards, **HELD_OUT) for name, a in accuracies.items()]


def make(path: Path, config: dict[str, Any], after: dict[str, float], **more: Any) -> RunFolder:
    """A run with the given held-out accuracies, .1 before training everywhere."""
    run = RunFolder.create(path, config)
    for step in range(1, 11):
        row = {"step": step, "max_steps": 10, "reward": step / 10 + config["seed"]}
        run.append_line("metrics.jsonl", row)
    before = rows_of(dict.fromkeys(after, 0.1), 0.5)
    for name, rows in (("before", before), ("after", rows_of(after))):
        run.write_lines(f"held_out/{name}.jsonl", [row.to_json() for row in rows])
    run.write_json("summary.json", {"steps": 10, "seconds": 60.0, **more})
    return run


def told(table: Table) -> dict[str, list[str]]:
    """Cells by row, without the stars of intervals over few instances."""
    return {row[0]: [cell.rstrip("*") for cell in row[1:]] for row in table.rows}


def test_before_and_after_by_value(tmp_path: Path) -> None:
    run = make(tmp_path / "run", {"seed": 1}, {"a": 0.4, "b": 0.4, "c": 0.1, "d": 0.1})
    table = before_and_after(run)
    assert list(table.head) == ["", "before", "after"]
    rows = told(table)
    assert rows["accuracy"] == [".100 [.100, .100]", ".250 [.100, .400]"]
    assert rows["minus `before`"] == ["–", "+.150 [+.000, +.300]"]  # two of four gain .3
    assert rows["memory tokens"] == ["40.0", "40.0"] and rows["of the input"] == [".400", ".400"]
    assert rows["single (4 questions)"] == rows["accuracy"]
    assert rows["reward total"] == [".500", "1.000"]
    assert rows["facts/insert, share of calls"] == ["1.000", "1.000"]
    assert "cascade accuracy ↑" not in rows  # not measured


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    base = {"learning_rate": 0.1, "model": "nano <script>alert(1)</script>", "save_steps": 5}
    first = {**base, "seed": 1}
    return [
        make(tmp_path / "plain-seed1", {**first, "output_dir": "a"}, {"x": 0.2, "y": 0.4, "z": 1}),
        make(tmp_path / "fast", {**first, "learning_rate": 0.5}, {"x": 0.7, "y": 0.5}),
        make(tmp_path / "plain-seed2", {**base, "seed": 2, "save_steps": 9}, {"x": 0.4, "y": 0.8}),
    ]


def evaluation(path: Path, scores: dict[str, float]) -> RunFolder:
    """An evaluation of one system on the same instances."""
    spec = {"name": "gold", "group": "gold", "kind": "gold"}
    folder = RunFolder.create(path, {"sets": [], "systems": [spec], "readers": []})
    rows = [replace(row, set="toy", system="gold", reader="recall") for row in rows_of(scores)]
    folder.write_lines("results.jsonl", [row.to_json() for row in rows])
    return folder


def test_the_comparison_by_hand(runs: list[RunFolder], tmp_path: Path) -> None:
    columns = columns_of([*runs, evaluation(tmp_path / "evaluated", {"x": 0.9, "y": 0.9})])
    assert [(column.label, len(column.runs), len(column.after)) for column in columns] == [
        ("plain-seed1 and 1 more", 2, 2),
        ("fast", 1, 1),
        ("gold on toy, recall", 0, 1),
    ]
    assert differing([run.config for run in runs]) == ["learning_rate"]
    table = comparison(columns[:2])
    rows = told(table)
    assert rows["option learning_rate"] == ["0.1", "0.5"]
    assert rows["runs"] == ["2", "1"] and rows["steps"] == ["10", "10"]
    # plain: the runs' mean of x is .3, of y .6; z is not in all
    assert rows["accuracy"] == [".450 [.300, .600]", ".600 [.500, .700]"]
    # x: .7 - .3, y: .5 - .6
    assert rows["minus `plain-seed1 and 1 more`"] == ["–", "+.150 [-.100, +.400]"]
    # from .1: .2 and .5; .6 and .4
    assert rows["change in accuracy, paired"] == ["+.350 [+.200, +.500]", "+.500 [+.400, +.600]"]
    assert rows["minutes in all"] == ["1.0", "1.0"]
    assert "over the 2 instances that every column has a score for" in table.note
    assert "`plain-seed1 and 1 more` lacks 1 of 3: not evaluated yet." in table.note
    both = told(comparison(columns))
    assert both["minus `plain-seed1 and 1 more`"][2] == "+.450 [+.300, +.600]"


def test_systems_of_one_name_in_two_evaluations_are_two_columns(tmp_path: Path) -> None:
    first = evaluation(tmp_path / "first", {"x": 0.9, "y": 0.9})
    second = evaluation(tmp_path / "second", {"x": 0.5, "y": 0.7})
    table = comparison(columns_of([first, second]))
    names = ["gold on toy, recall", f"gold on toy, recall in {tmp_path / 'second'}"]
    assert list(table.head) == ["", *names]
    accuracies = [".900 [.900, .900]", ".600 [.500, .700]"]
    assert told(table)["accuracy"] == accuracies


def test_what_was_measured_on_other_instances_is_not_compared(
    runs: list[RunFolder], tmp_path: Path
) -> None:
    bare = RunFolder.create(tmp_path / "bare", {"seed": 3, "learning_rate": 0.9})
    rows = told(comparison(columns_of([bare, runs[0]])))
    assert rows["accuracy"][0] == "–" and not [name for name in rows if "minus" in name]
    other = evaluation(tmp_path / "other", {"elsewhere": 0.5})
    table = comparison(columns_of([runs[1], other, runs[0]]))
    assert list(table.head) == ["", "fast", "plain-seed1"]
    assert "Measured on other instances: gold on toy, recall." in table.note


def test_compare_shows_the_table_curves_and_the_way_to_each_run(
    runs: list[RunFolder],
    tmp_path: Path,
    read_page: Callable[[Path], Any],
    capsys: Any,
    monkeypatch: Any,
) -> None:
    moved = RunFolder(runs[0].path.rename(tmp_path / "run#1 50%?x"))
    (moved.path / "report").mkdir()
    (moved.path / "report" / "index.html").write_text("mine")
    monkeypatch.setattr("memalpha.cli.evaluate.console", Console(width=120, highlight=False))
    gold = evaluation(tmp_path / "evaluated", {"x": 0.9, "y": 0.9})
    paths = [str(folder.path) for folder in (runs[1], moved, gold)]
    assert memalpha(["compare", *paths, "--output", str(tmp_path / "compared")]) == 0
    assert "change in accuracy, paired" in " ".join(capsys.readouterr().out.split())
    page = read_page(tmp_path / "compared" / "index.html")
    assert "3 columns compared" in page.words
    assert "../run%231%2050%25%3Fx/report/index.html" in page.links
    for link in page.links:
        target = (tmp_path / "compared" / unquote(link)).resolve()
        assert link.startswith(("#", "data:")) or target.is_file(), link


def test_what_cannot_be_shown_is_one_clear_message(
    finished_run: RunFolder, bare_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(finished_run.path)
    for arguments, value in (
        (["compare", run, run + "/../finished"], "is given twice"),
        (["inspect", run, "--held-out", "middle"], "--held-out is 'middle'"),
        (["inspect", run, "--step", "99"], "--step is '99'"),
        (["inspect", run, "--step", "1", "--rollout", "2"], "--rollout is 2"),
        (["inspect", str(bare_run.path)], repr(str(bare_run.path))),
    ):
        assert memalpha(arguments) == 1
        assert value in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------
# curves
def rows(slope: float, steps: int = 10) -> list[dict[str, Any]]:
    return [{"step": step, "reward": slope * step, "text": "x"} for step in range(1, steps + 1)]


def drawn(variants: dict[str, list[list[dict[str, Any]]]], title: str = "reward") -> Any:
    axes = Figure().add_subplot()
    draw_lines(axes, title, panels_of(variants)[title])
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


def test_seeds_are_drawn_thin_with_their_mean() -> None:
    axes = drawn({"": [rows(1.0, 12), rows(3.0), [{"step": 1}]]})  # the third has no reward
    first, second, mean = lines(axes)
    assert first[0] == second[0] == mean[0] == list(range(1, 11))  # the steps that both have
    assert (first[1][9], second[1][-1]) == (9.5, 28.5)
    assert mean[1] == pytest.approx([(a + b) / 2 for a, b in zip(first[1], second[1], strict=True)])


def test_how_far_sampled_and_trained_are_apart_is_drawn() -> None:
    row = {"step": 1, **gap_statistics(torch.tensor([0.5, 1.0])), "loss_scale": 65536.0}
    panels = panels_of({"": [[row]]})
    apart = panels["log-probabilities sampled and trained, apart by nats"]
    assert [(name, line[0][1]) for name, line in apart.items()] == [("mean", 0.75), ("p99", 1.0)]
    assert len(panels["KL of sampled to trained policy, nats a token"]) == 1
    assert panels["loss scale in float16"][""][0][1] == 65536.0


def test_pictures_are_svg_and_depend_on_the_data_alone() -> None:
    variants = {name: [rows(1.0)] for name in ("_old", r"$\frac$", "a_$b$")}
    ((title, first),), ((_, second),) = (list(draw_panels(variants)) for _ in range(2))
    assert title == "reward" and first == second and "script" not in first
    texts = [(element.text or "").strip() for element in ElementTree.fromstring(first).iter()]
    assert [text for text in texts if text in variants] == list(variants)  # as they are
