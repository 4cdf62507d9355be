"""The run folder: never overwritten by accident, never half-written, and exact about what it
holds."""

from __future__ import annotations

import math
from contextlib import nullcontext

import pytest
import yaml

from memalpha.errors import RunFolderError
from memalpha.record.folder import RunFolder, checkpoint_step, checkpoints_in, trajectory_name

CONFIG = {"model": "nano", "seed": 3, "train_options": {"n": 4}}


@pytest.fixture
def run(tmp_path):
    return RunFolder.create(tmp_path / "run", CONFIG)


def everything(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# ------------------------------------------------------------------------------------------------
# making one
def test_a_new_run_holds_its_options(run):
    assert everything(run.path) == {"config.yaml": yaml.safe_dump(CONFIG, sort_keys=True).encode()}
    assert RunFolder(run.path).config == CONFIG
    (run.path.parent / "empty").mkdir()
    for path in (run.path.parent / "empty", run.path / "a" / "b"):
        assert RunFolder.create(path, CONFIG).config == CONFIG


def test_an_existing_run_is_left_alone_unless_told(run):
    run.append_line("metrics.jsonl", {"step": 1})
    before = everything(run.path)
    for how in ({}, {"overwrite": True, "resume": True}):
        with pytest.raises(RunFolderError):
            RunFolder.create(run.path, {"model": "other"}, **how)
    assert everything(run.path) == before
    assert RunFolder.create(run.path, {"model": "other"}, resume=True).config == CONFIG
    assert everything(run.path) == before


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_run_is_never_touched(tmp_path, overwrite):
    folder, file = tmp_path / "thesis", tmp_path / "notes.txt"
    folder.mkdir()
    (folder / "thesis.tex").write_text("years of work", encoding="utf-8")
    file.write_text("notes", encoding="utf-8")
    before = everything(tmp_path)
    for path in (folder, file, file / "run"):
        with pytest.raises(RunFolderError, match=r"exists|is a file"):
            RunFolder.create(path, CONFIG, overwrite=overwrite)
    assert everything(tmp_path) == before


def test_only_a_run_can_be_opened_or_resumed(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunFolderError, match=r"is no run folder(.|\n)*config\.yaml"):
            RunFolder(path)
        with pytest.raises(RunFolderError, match="is no run folder"):
            RunFolder.create(path, CONFIG, resume=True)
    assert everything(tmp_path) == {}


# ------------------------------------------------------------------------------------------------
# writing and reading
def test_json_round_trips_with_null_for_what_is_no_number(run):
    data = {
        "a": math.nan,
        "b": [1.5, math.inf, {"c": -math.inf}],
        "text": "é ☂ \u2028",
        3: (1, 2),
        "t": True,
        "n": None,
    }
    run.write_json("deep/er.json", data)
    assert run.read_json("deep/er.json") == {
        "a": None,
        "b": [1.5, None, {"c": None}],
        "text": "é ☂ \u2028",
        "3": [1, 2],
        "t": True,
        "n": None,
    }
    assert "NaN" not in (run.path / "deep/er.json").read_text(encoding="utf-8")
    with pytest.raises(RunFolderError, match=r"has no summary\.json"):
        run.read_json("summary.json")


def test_lines_round_trip_whatever_the_text(run):
    rows = [{"text": "one\ntwo\r\u2028\x85", "score": math.nan}, {"text": ""}]
    run.write_lines("held_out/before.jsonl", iter(rows))
    read = list(run.read_lines("held_out/before.jsonl"))
    assert read == [{"text": "one\ntwo\r\u2028\x85", "score": None}, {"text": ""}]
    assert list(run.read_lines("held_out/after.jsonl")) == []
    run.append_line("metrics.jsonl", {"step": 1, "loss": math.inf})
    run.append_line("metrics.jsonl", {"step": 2, "loss": 0.5})
    assert run.metrics() == [{"step": 1, "loss": None}, {"step": 2, "loss": 0.5}]


def test_a_write_that_fails_leaves_the_old_files(run):
    for last, wrong in ((2, False), (object(), True)):
        old = everything(run.path)
        for write, name in ((run.write_lines, "rows.jsonl"), (run.write_json, "summary.json")):
            with pytest.raises(TypeError) if wrong else nullcontext():
                write(name, [{"n": 1}, {"n": last}])
    assert {
        name: data for name, data in everything(run.path).items() if not name.startswith(".")
    } == old


@pytest.mark.parametrize("cut", ['{"step": 2, "los', '{"step": 2}'])
def test_a_line_of_the_metrics_cut_by_a_kill_is_left_out_and_said(run, cut, caplog):
    text = '{"step": 1}\n' + cut
    (run.path / "metrics.jsonl").write_text(text, encoding="utf-8")
    assert run.metrics() == [{"step": 1}]
    assert "ends in a cut line" in caplog.text
    assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "content", [b"", b"- 1\n", b"model: [na", b'{"a": "\xff"}', b'{"steps": 1', b"null", b"[1]"]
)
@pytest.mark.parametrize("name", ["config.yaml", "summary.json"])
def test_a_damaged_file_is_named(run, name, content):
    (run.path / name).write_bytes(content)
    with pytest.raises(RunFolderError, match=name):
        _ = run.config if name == "config.yaml" else run.read_json(name)


# ------------------------------------------------------------------------------------------------
# resuming
def test_a_resumed_run_forgets_what_it_will_write_again(run):
    for step in range(1, 13):
        run.append_line("metrics.jsonl", {"step": step, "reward": step / 2})
        for rank in (0, 1):
            run.write_lines(trajectory_name(step, rank), [{"step": step, "rank": rank}])
    run.drop_after(9)
    assert run.metrics() == [{"step": step, "reward": step / 2} for step in range(1, 10)]
    files = run.trajectory_files()
    assert [checkpoint_step(file) for file in files] == [
        step for step in range(1, 10) for _ in (0, 1)
    ]
    assert [list(run.read_lines(f"trajectories/{file.name}")) for file in files[-2:]] == [
        [{"step": 9, "rank": 0}],
        [{"step": 9, "rank": 1}],
    ]
    run.drop_after(0)
    assert (run.metrics(), run.trajectory_files()) == ([], [])


def test_checkpoints_come_in_the_order_of_their_steps(run):
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-best"):
        (run.path / name).mkdir()
    (run.path / "checkpoint-11").write_text("no folder", encoding="utf-8")
    assert [path.name for path in checkpoints_in(run.path)] == ["checkpoint-9", "checkpoint-10"]
    assert checkpoint_step(run.path / trajectory_name(7, 3)) == 7
