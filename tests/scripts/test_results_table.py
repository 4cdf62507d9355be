"""The page of training runs: what it says of a run's rollouts is the mean over the first and the last eighth of its steps."""

import pytest
import results_table

from memalpha.runs import RunFolder


def test_the_first_and_the_last_eighth_of_the_steps_are_averaged():
    curve = [{"step": step, "memory/entries": float(step), "memory/tokens": 2.0 * step} for step in range(1, 25)]
    curve[-1] = {"step": 24, "memory/entries": 30.0}  # tokens were not written down at the last step: no such line
    assert results_table.watch(curve) == [
        "",
        "| sampled in training | steps 1 to 3 | steps 22 to 24 |",
        "| --- | --- | --- |",
        "| entries at the end | 2.000 | 25.000 |",
    ]


def test_too_short_a_run_has_no_first_and_last_part():
    assert results_table.watch([{"step": step, "memory/entries": 1.0} for step in range(1, 16)]) == []


def test_what_the_configuration_says_otherwise_today_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(results_table, "ROOT", tmp_path)
    (tmp_path / "run.yaml").write_text("max_steps: 48\nseed: 1\nsilence: 0.75\nlearning_rate: 4.0e-4\noutput_dir: runs/x\n")
    options = {"max_steps": 40, "seed": 3, "silence": 0.75, "learning_rate": 0.1, "output_dir": "runs/y", "more": 1}
    command = ["memalpha", "train", "--config", "run.yaml", "--learning_rate", "0.1"]
    assert results_table._since_changed(command, options) == ["The configuration has changed since; here: `max_steps: 40`.", ""]
    assert results_table._since_changed(command, {**options, "max_steps": 48}) == []
    assert results_table._since_changed(["memalpha", "train"], options) == []


def test_seconds_of_an_interrupted_run_are_said_to_be_of_its_last_part():
    assert results_table._of_parts({}) == ""
    assert results_table._of_parts({"resumed": [{}, {}]}).startswith(" (the last of 3 parts")


def test_what_is_not_known_is_a_dash_and_not_an_error():
    part = dict.fromkeys(results_table.FIELDS, 0.5) | {"accuracy": 0.25, "stderr": None, "content": None, "kinds": {}}
    after = part | {"kinds": {"single": {"questions": 3, "accuracy": 0.75}}}
    delta = {"accuracy": 0.125, "stderr": None, "n": 1}
    summary = {"seed": 1, "steps": 2, "seconds": 3.0, "before": part, "after": after, "delta": delta}
    packages = {"memalpha": "1", "trl": "1", "torch": "2"}
    environment = {"command": ["memalpha"], "started": "2026-01-01T00:00:00", "processor": "x", "cores": 2, "world_size": 1}
    record = {"summary": summary, "environment": {**environment, "packages": packages}, "config": {}, "curve": []}
    lines = results_table.table("run", record)
    for line in (
        "| accuracy | 0.250 ± – | 0.250 ± – |",
        "| paired difference | | +0.125 ± – (n = 1) |",
        "| content | – | – |",
        "| kind: single (3 questions) | – | 0.750 |",
    ):
        assert line in lines


def test_a_run_without_held_out_instances_is_not_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(results_table, "RESULTS", tmp_path / "results")
    RunFolder.create(tmp_path / "run", {}).write_json("summary.json", {"steps": 1})
    with pytest.raises(SystemExit, match="has no held-out instances"):
        results_table.add(tmp_path / "run", "run")
    assert not (tmp_path / "results").exists()
