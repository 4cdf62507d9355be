"""The numbers of one run before and after, and of several side by side; and the commands that show
them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from rich.console import Console

from examples import result
from memalpha.cli import run as memalpha
from memalpha.measure.summary import compare_groups
from memalpha.measure.tables import (
    Table,
    before_and_after,
    columns_of,
    comparison,
    differing,
    members_of,
    side_by_side,
    terminal,
)
from memalpha.record.folder import RunFolder

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


def test_a_selected_step_is_told_with_the_numbers_it_makes_too_favourable(tmp_path: Path) -> None:
    chosen = {"step": 20, "metric": "accuracy", "value": 0.512, "instances": 16}
    for on_after, said in ((False, ".512 on 16 other instances."), (True, "too favourable.")):
        more = {"selection": {**chosen, "on_after": on_after}}
        run = make(tmp_path / str(on_after), {"seed": 1}, {"a": 0.4}, **more)
        note = before_and_after(run).note
        assert "Step 20 was selected by accuracy, .512" in note and note.endswith(said)


def test_the_terminal_shows_a_kind_whatever_it_is_called() -> None:
    row = result("a", (1.0, 1.0), ("a|b\n<i>[/x]",) * 2)
    table = side_by_side(compare_groups({"only": members_of([[row]])}), ["only"])
    console = Console(width=120)
    with console.capture() as capture:
        console.print(terminal(table))
    assert "a|b\\n<i>[/x] (2 questions) 1.000" in " ".join(capture.get().split())


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
    assert both["change in accuracy, paired"][2] == both["steps"][2] == "–"
    assert [name for name in both if "option" in name] == ["option learning_rate"]


def test_what_was_measured_on_other_instances_is_not_compared(
    runs: list[RunFolder], tmp_path: Path
) -> None:
    bare = RunFolder.create(tmp_path / "bare", {"seed": 3, "learning_rate": 0.9})
    rows = told(comparison(columns_of([bare, runs[0]])))
    assert rows["accuracy"][0] == "–" and not [name for name in rows if "minus" in name]
    assert told(comparison(columns_of([bare]))) == {"runs": ["1"]}
    other = evaluation(tmp_path / "other", {"elsewhere": 0.5})
    table = comparison(columns_of([runs[1], other, runs[0]]))
    assert list(table.head) == ["", "fast", "plain-seed1"]
    assert "Measured on other instances: gold on toy, recall." in table.note
    lines = list(runs[1].read_lines("held_out/after.jsonl"))
    lines[0]["questions"][0]["text"] = "something else"  # the same id, another instance
    runs[1].write_lines("held_out/after.jsonl", lines)
    assert "over the 1 instance that" in comparison(columns_of(runs)).note


def test_compare_shows_the_table_curves_and_the_way_to_each_run(
    runs: list[RunFolder],
    tmp_path: Path,
    read_page: Callable[[Path], Any],
    capsys: Any,
    monkeypatch: Any,
) -> None:
    runs[1] = RunFolder(runs[1].path.rename(tmp_path / "run#1 50%?x"))
    (runs[1].path / "report").mkdir()
    (runs[1].path / "report" / "index.html").write_text("mine")
    monkeypatch.setattr("memalpha.cli.evaluate.console", Console(width=120, highlight=False))
    first = tmp_path / "compared" / "index.html"
    gold = evaluation(tmp_path / "evaluated", {"x": 0.9, "y": 0.9})
    paths = [str(folder.path) for folder in (*runs, gold)]
    assert memalpha(["compare", *paths, "--output", str(first.parent)]) == 0
    shown = " ".join(capsys.readouterr().out.replace("*", "").split())
    assert "change in accuracy, paired +.350 [+.200, +.500] +.500 [+.400, +.600] –" in shown
    page = read_page(first)
    assert "3 columns compared" in page.words
    words = page.words.replace("*", "")
    assert "plain-seed1 and 1 more` – +.150 [-.100, +.400] +.450 [+.300, +.600]" in words
    assert "../run%231%2050%25%3Fx/report/index.html" in page.links
    assert [path.name for path in (first.parent / "figures").iterdir()] == ["00.svg"]
    for link in page.links:
        assert (
            link.startswith(("#", "data:")) or (first.parent / unquote(link)).resolve().is_file()
        ), link


def test_what_cannot_be_shown_is_one_clear_message(
    finished_run: RunFolder, bare_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = RunFolder.create(tmp_path / "evaluated", {"sets": [], "systems": [], "readers": []})
    run, other, bare = (str(folder.path) for folder in (finished_run, evaluated, bare_run))
    output = ["--output", str(tmp_path / "site")]
    for arguments, value, expected in (
        (["report", other, *output], f"{other!r} is the folder of an evaluation", ""),
        (["compare", run, run + "/../finished", *output], "is given twice", ""),
        (["inspect", run, "--held-out", "middle"], "--held-out is 'middle'", "before, after"),
        (["inspect", run, "--step", "99"], "--step is '99'", "1, 2"),
        (["inspect", run, "--step", "1", "--rollout", "2"], "--rollout is 2", "0 to 1"),
        (["inspect", bare], repr(bare), "expected: "),
    ):
        assert memalpha(arguments) == 1
        message = capsys.readouterr().err
        assert value in message and expected in message
    (finished_run.path / "environment.json").write_text("")
    assert memalpha(["report", run, *output]) == 1
    assert "environment.json is damaged" in capsys.readouterr().err
