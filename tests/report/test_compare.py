from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from rich.console import Console

from memalpha.cli import run as memalpha
from memalpha.report.compare import (
    Row,
    check_same_but_seed,
    comparison,
    differences,
    group_runs,
    read_run,
    spread_note,
    write_comparison,
)
from memalpha.runs import RunFolder

EVIL = "<script>alert(1)</script>"


def make(
    path: Path, config: dict[str, Any], accuracies: dict[str, float | None], before: float, seconds: float | None = 60.0
) -> RunFolder:
    """A run with the given held-out accuracies after training."""
    run = RunFolder.create(path, config)
    for step in range(1, 11):
        run.append_line("metrics.jsonl", {"step": step, "max_steps": 10, "reward": step / 10 + config["seed"]})
    rows = [
        {"result": {"instance": name, "accuracy": value}, "rollout": {"steps": [{"text": name}], "questions": []}}
        for name, value in accuracies.items()
    ]
    run.write_lines("held_out/after.jsonl", rows)
    known = [value for value in accuracies.values() if value is not None]
    after = sum(known) / len(known)
    evaluation = {"accuracy": after, "stderr": 0.05, "memory_tokens": 40.0, "masked": 0}
    delta = {"accuracy": after - before, "stderr": 0.02, "n": len(known)}
    run.write_json(
        "summary.json",
        {"steps": 10, "seconds": seconds, "before": {"accuracy": before, "stderr": 0.04}, "after": evaluation, "delta": delta},
    )
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    base = {"learning_rate": 0.1, "model": f"nano {EVIL}", "save_steps": 5}
    return [
        make(tmp_path / "plain-seed1", {**base, "seed": 1, "output_dir": "a"}, {"x": 0.2, "y": 0.4}, 0.1),
        make(tmp_path / "fast", {**base, "seed": 1, "learning_rate": 0.5}, {"x": 0.7, "y": 0.5, "z": None}, 0.1),
        make(tmp_path / "plain-seed2", {**base, "seed": 2, "save_steps": 9}, {"x": 0.4, "y": 0.8}, 0.1),
    ]


def test_runs_that_differ_in_their_seed_alone_are_one_column(runs: list[RunFolder]) -> None:
    groups = group_runs([read_run(run) for run in runs])
    assert [(group.label, [run.name for run in group.runs]) for group in groups] == [
        ("plain", ["plain-seed1", "plain-seed2"]),
        ("fast", ["fast"]),
    ]
    assert differences([run.config for run in runs]) == {"learning_rate": [0.1, 0.5, 0.1]}
    check_same_but_seed([runs[0], runs[2]])


def test_the_table_by_hand(runs: list[RunFolder]) -> None:
    groups = group_runs([read_run(run) for run in runs])
    found = dict(comparison(groups))
    assert found["runs"] == ("2", "1")
    # .3 and .6: mean .45, standard error .15, 12.706 of them; the other alone with its standard error over instances
    assert found["held-out accuracy after"] == ("0.450 ± 1.906", "0.600 ± 0.050")
    assert found["held-out accuracy before"] == ("0.100 ± 0.000", "0.100 ± 0.040")
    assert found["change in accuracy, paired"] == ("+0.350 ± 1.906", "+0.500 ± 0.020")
    # x: .7 - .3, y: .5 - .6; z was not scored. Mean .15, deviation .3536, standard error .25
    assert found["after, against plain, paired by instance"] == ("reference", "+0.150 ± 0.250 (n 2)")
    assert found["after: memory tokens"] == ("40.0 ± 0.0", "40.0")
    # the last two of ten steps: .95 + seed
    assert found["training reward, last fifth"] == ("2.450 ± 6.353", "1.950")
    assert found["minutes in all"] == ("1.0 ± 0.0", "1.0")
    assert "after: reward" not in found  # no run has it
    assert "standard error" in spread_note(groups) and "95% t interval" in spread_note(groups)
    assert "interval" not in spread_note(groups[1:])


def test_what_is_not_known_is_a_dash(runs: list[RunFolder], tmp_path: Path) -> None:
    bare = RunFolder.create(tmp_path / "bare", {"seed": 3, "learning_rate": 0.9})
    found = dict(comparison(group_runs([read_run(run) for run in (bare, runs[0])])))
    assert found["held-out accuracy after"][0] == "–"
    assert not [name for name in found if "against" in name]  # nothing to pair
    alone = comparison(group_runs([read_run(bare)]))
    assert alone == [Row("runs", ("1",))]


def test_the_same_id_with_another_text_is_another_instance(runs: list[RunFolder]) -> None:
    rows = list(runs[1].read_lines("held_out/after.jsonl"))
    rows[0]["rollout"]["steps"][0]["text"] = "something else"
    runs[1].write_lines("held_out/after.jsonl", rows)
    found = dict(comparison(group_runs([read_run(run) for run in runs])))
    assert found["after, against plain, paired by instance"] == ("reference", "-0.100 (n 1)")


def test_the_page_shows_tables_curves_and_the_way_to_each_run(
    runs: list[RunFolder], tmp_path: Path, read_page: Callable[[Path], Any]
) -> None:
    runs[1] = RunFolder(runs[1].path.rename(tmp_path / "run#1 50%?x"))
    (runs[1].path / "report").mkdir()
    (runs[1].path / "report" / "index.html").write_text("mine")
    first = write_comparison(runs, tmp_path / "compared")
    page = read_page(first)
    assert "3 runs compared" in page.words
    assert "plain run#1 50%?x learning_rate 0.1 0.5" in page.words
    assert "after, against plain, paired by instance reference +0.150 ± 0.250 (n 2)" in page.words
    assert "plain-seed1 run#1 50%?x plain-seed2 runs 1 1 1" in page.words
    assert "../run%231%2050%25%3Fx/report/index.html" in page.links
    assert {path.name for path in (tmp_path / "compared" / "figures").iterdir()} == {"00-light.svg", "00-dark.svg"}
    for link in page.links:
        assert link.startswith(("#", "data:")) or (first.parent / unquote(link)).resolve().is_file(), link


def test_the_command_shows_the_table_and_says_where_the_page_is(
    runs: list[RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("memalpha.cli.runs.console", Console(width=120, highlight=False))
    target = tmp_path / "compared"
    assert memalpha(["compare", *(str(run.path) for run in runs), "--output", str(target)]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert "option learning_rate 0.1 0.5" in lines
    assert "change in accuracy, paired +0.350 ± 1.906 +0.500 ± 0.020" in lines
    assert "".join(lines).endswith("index.html")
    assert (target / "index.html").is_file()


def test_the_report_command_takes_seeds_and_refuses_what_differs(
    runs: list[RunFolder], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "site"
    for run in runs:
        (run.path / "held_out" / "after.jsonl").unlink()
    assert memalpha(["report", str(runs[0].path), str(runs[2].path), "--output", str(target)]) == 0
    assert (target / "index.html").is_file()
    assert memalpha(["report", str(runs[0].path), str(runs[1].path), "--output", str(target)]) == 1
    assert "differ in more than their seed: learning_rate is '0.1' and '0.5'" in capsys.readouterr().err
    assert memalpha(["report", str(runs[0].path), "--pages", "-1"]) == 1
    assert "--pages is -1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("verb", "name"),
    [("report", "config.yaml"), ("report", "environment.json"), ("compare", "config.yaml"), ("compare", "summary.json")],
)
def test_a_damaged_run_is_one_clear_message(
    verb: str, name: str, finished_run: RunFolder, bare_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (finished_run.path / name).write_text("")
    folders = [str(finished_run.path)] + ([str(bare_run.path)] if verb == "compare" else [])
    assert memalpha([verb, *folders, "--output", str(tmp_path / "site")]) == 1
    assert f"{finished_run.path / name} is damaged" in capsys.readouterr().err


def test_what_would_be_an_empty_page_is_refused(
    finished_run: RunFolder, bare_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluation = RunFolder.create(tmp_path / "evaluated", {"sets": [], "systems": [], "readers": []})
    (bare_run.path / "metrics.jsonl").write_text("")
    run, other, empty = (str(folder.path) for folder in (finished_run, evaluation, bare_run))
    for arguments, said in (
        (["report", other], f"{other!r} is the folder of an evaluation"),
        (["compare", run, other], f"{other!r} is the folder of an evaluation"),
        (["compare", run, run + "/../finished"], f"{run!r} is given twice"),
        (["report", empty], "metrics.jsonl"),
    ):
        assert memalpha([*arguments, "--output", str(tmp_path / "site")]) == 1
        assert said in capsys.readouterr().err
    assert not (tmp_path / "site").exists()


def test_inspect_names_the_value_and_the_choices(
    finished_run: RunFolder, bare_run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    run, bare = str(finished_run.path), str(bare_run.path)
    for arguments, value, expected in (
        ([run, "--held-out", "middle"], "--held-out is 'middle'", "after, before"),
        ([run, "--step", "99"], "--step is 99", "1 to 2"),
        ([run, "--step", "1", "--rollout", "2"], "--rollout is 2", "0 to 1"),
        ([run, "--rollout", "-1"], "--rollout is -1", "0 to 1"),
        ([bare], repr(bare), "expected: "),
        ([bare, "--held-out", "before"], "--held-out is 'before'", "expected: "),
    ):
        assert memalpha(["inspect", *arguments]) == 1
        said = capsys.readouterr().err
        assert value in said and expected in said
