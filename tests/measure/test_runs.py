"""The numbers of one run before and after, and of several side by side; and the commands that show
them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from rich.console import Console

from examples import result
from memalpha.cli import run as memalpha
from memalpha.measure.runs import (
    comparison,
    differences,
    group_runs,
    headline,
    read_run,
    summary_rows,
)
from memalpha.measure.terminal import summary_table
from memalpha.record.folder import RunFolder


def evaluation(accuracy: float, **more: Any) -> dict[str, Any]:
    kinds = {
        "latest": {"accuracy": accuracy, "questions": 24},
        "count": {"accuracy": 0.5, "questions": 1},
    }
    numbers = {
        "accuracy": accuracy,
        "stderr": 0.03,
        "reward": 1.0,
        "memory_tokens": 1234.5,
        "cut_off": 0.1,
        "n": 12,
    }
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
    assert rows == [
        ("accuracy", ("0.250 ± 0.030", "0.500 ± 0.030", "+0.240 ± 0.100")),
        ("reward", ("1.000", "1.000", "+0.000")),
        ("memory tokens", ("1,234.5", "1,000.0", "-234.5")),
        ("completions cut off, share", ("0.100", "–", "–")),
        ("instances scored", ("12", "12", "+0")),
        ("accuracy: count (1 question)", ("0.500", "0.500", "+0.000")),
        ("accuracy: latest (24 questions)", ("0.250", "0.500", "+0.250")),
    ]
    other = {
        "before": evaluation(0.5),
        "after": evaluation(0.5, kinds={"latest": {"accuracy": 1.0, "questions": 20}}),
    }
    assert ("accuracy: latest (24 and 20 questions)", ("0.500", "1.000", "+0.500")) in summary_rows(
        other
    )[1]
    assert summary_rows({"model": "m", **evaluation(0.25)})[0] == ("held out",) and summary_rows(
        {"steps": 3}
    ) == ((), [])


def test_a_selected_step_is_told_with_the_numbers_it_makes_too_favourable() -> None:
    chosen = {"step": 20, "metric": "accuracy", "value": 0.512, "instances": 16}
    apart, same = (
        {**SUMMARY, "selection": {**chosen, "on_after": on_after}} for on_after in (False, True)
    )
    assert (
        headline(apart)
        == f"{headline(SUMMARY)} Step 20 was selected by accuracy, 0.512 on 16 other instances."
    )
    assert (
        "too favourable" in headline(same)
        and summary_table(same).caption
        and not summary_table(SUMMARY).caption
    )


def test_the_terminal_shows_a_kind_whatever_it_is_called() -> None:
    console = Console(width=120)
    with console.capture() as capture:
        console.print(
            summary_table(
                {
                    "before": evaluation(
                        0.5, kinds={"a|b\n<i>[/x]": {"accuracy": 1.0, "questions": 2}}
                    )
                }
            )
        )
    assert "accuracy: a|b\\n<i>[/x] (2 questions) 1.000" in " ".join(capture.get().split())


def make(path: Path, config: dict[str, Any], accuracies: dict[str, float | None]) -> RunFolder:
    """A run with the given held-out accuracies after training."""
    run = RunFolder.create(path, config)
    for step in range(1, 11):
        run.append_line(
            "metrics.jsonl", {"step": step, "max_steps": 10, "reward": step / 10 + config["seed"]}
        )
    rows = [
        result(
            name, (math.nan if value is None else value,), rollout={"steps": [{"text": name}]}
        ).to_json()
        for name, value in accuracies.items()
    ]
    run.write_lines("held_out/after.jsonl", rows)
    known = [value for value in accuracies.values() if value is not None]
    after = {"accuracy": sum(known) / len(known), "stderr": 0.05, "memory_tokens": 40.0}
    delta = {"accuracy": after["accuracy"] - 0.1, "stderr": 0.02, "n": len(known)}
    summary = {
        "steps": 10,
        "seconds": 60.0,
        "before": {"accuracy": 0.1, "stderr": 0.04},
        "after": after,
        "delta": delta,
    }
    run.write_json("summary.json", summary)
    return run


@pytest.fixture
def runs(tmp_path: Path) -> list[RunFolder]:
    base = {"learning_rate": 0.1, "model": "nano <script>alert(1)</script>", "save_steps": 5}
    return [
        make(
            tmp_path / "plain-seed1", {**base, "seed": 1, "output_dir": "a"}, {"x": 0.2, "y": 0.4}
        ),
        make(
            tmp_path / "fast",
            {**base, "seed": 1, "learning_rate": 0.5},
            {"x": 0.7, "y": 0.5, "z": None},
        ),
        make(tmp_path / "plain-seed2", {**base, "seed": 2, "save_steps": 9}, {"x": 0.4, "y": 0.8}),
    ]


def test_the_comparison_by_hand(runs: list[RunFolder], tmp_path: Path) -> None:
    groups = group_runs([read_run(run) for run in runs])
    assert [(group.label, [run.name for run in group.runs]) for group in groups] == [
        ("plain", ["plain-seed1", "plain-seed2"]),
        ("fast", ["fast"]),
    ]
    assert differences([run.config for run in runs]) == {"learning_rate": [0.1, 0.5, 0.1]}
    assert dict(comparison(groups)) == {
        "option learning_rate": ("0.1", "0.5"),
        "runs": ("2", "1"),
        "steps": ("10 ± 0", "10"),
        # .3 and .6: mean .45, standard error .15, 12.706 of them; the other alone with its standard
        # error over instances
        "held-out accuracy before": ("0.100 ± 0.000", "0.100 ± 0.040"),
        "held-out accuracy after": ("0.450 ± 1.906", "0.600 ± 0.050"),
        "change in accuracy, paired": ("+0.350 ± 1.906", "+0.500 ± 0.020"),
        # x: .7 - .3, y: .5 - .6; z was not scored. Mean .15, deviation .3536, standard error .25
        "after, against plain, paired by instance": ("reference", "+0.150 ± 0.250 (n 2)"),
        "after: memory tokens": ("40.0 ± 0.0", "40.0"),
        # the last two of ten steps: .95 + seed
        "training reward, last fifth": ("2.450 ± 6.353", "1.950"),
        "minutes in all": ("1.0 ± 0.0", "1.0"),
    }
    bare = read_run(RunFolder.create(tmp_path / "bare", {"seed": 3, "learning_rate": 0.9}))
    found = dict(comparison(group_runs([bare, read_run(runs[0])])))
    assert found["held-out accuracy after"][0] == "–" and not [
        name for name in found if "against" in name
    ]  # nothing to pair
    assert comparison(group_runs([bare])) == [("runs", ("1",))]


def test_the_same_id_with_another_text_is_another_instance(runs: list[RunFolder]) -> None:
    rows = list(runs[1].read_lines("held_out/after.jsonl"))
    rows[0]["rollout"]["steps"][0]["text"] = "something else"
    runs[1].write_lines("held_out/after.jsonl", rows)
    found = dict(comparison(group_runs([read_run(run) for run in runs])))
    assert found["after, against plain, paired by instance"] == ("reference", "-0.100 (n 1)")


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
    monkeypatch.setattr("memalpha.cli.runs.console", Console(width=120, highlight=False))
    first = tmp_path / "compared" / "index.html"
    assert (
        memalpha(["compare", *(str(run.path) for run in runs), "--output", str(first.parent)]) == 0
    )
    assert "change in accuracy, paired +0.350 ± 1.906 +0.500 ± 0.020" in " ".join(
        capsys.readouterr().out.split()
    )
    page = read_page(first)
    assert (
        "3 runs compared" in page.words
        and "plain run#1 50%?x option learning_rate 0.1 0.5" in page.words
    )
    assert "after, against plain, paired by instance reference +0.150 ± 0.250 (n 2)" in page.words
    assert "../run%231%2050%25%3Fx/report/index.html" in page.links
    assert {path.name for path in (first.parent / "figures").iterdir()} == {
        "00-light.svg",
        "00-dark.svg",
    }
    for link in page.links:
        assert (
            link.startswith(("#", "data:")) or (first.parent / unquote(link)).resolve().is_file()
        ), link


def test_what_cannot_be_shown_is_one_clear_message(
    finished_run: RunFolder, bare_run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluated = RunFolder.create(tmp_path / "evaluated", {"sets": [], "systems": [], "readers": []})
    (bare_run.path / "metrics.jsonl").write_text("")
    run, other, bare = (str(folder.path) for folder in (finished_run, evaluated, bare_run))
    output = ["--output", str(tmp_path / "site")]
    for arguments, value, expected in (
        (["report", other, *output], f"{other!r} is the folder of an evaluation", ""),
        (["compare", run, run + "/../finished", *output], f"{run!r} is given twice", ""),
        (["report", bare, *output], "metrics.jsonl", ""),
        (["inspect", run, "--held-out", "middle"], "--held-out is 'middle'", "after, before"),
        (["inspect", run, "--step", "99"], "--step is 99", "1 to 2"),
        (["inspect", run, "--step", "1", "--rollout", "2"], "--rollout is 2", "0 to 1"),
        (["inspect", bare], repr(bare), "expected: "),
    ):
        assert memalpha(arguments) == 1
        said = capsys.readouterr().err
        assert value in said and expected in said
    (finished_run.path / "environment.json").write_text("")
    assert memalpha(["report", run, *output]) == 1
    assert "environment.json is damaged" in capsys.readouterr().err
