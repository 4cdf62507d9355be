"""Records of runs under labels: read now, kept as they were, or refused by name."""

import json

import labelled_runs
import pytest


def test_a_label_alone_keeps_what_was_recorded_and_an_unknown_one_is_named(tmp_path):
    path = tmp_path / "record.json"
    labelled_runs.record_runs(path, ["a=runs/1", "b=runs/2:3-4"], lambda run: {"run": run})
    found = labelled_runs.record_runs(path, ["c=runs/5=6", "a"], lambda run: {"run": run, "again": True})
    assert found == {"c": {"run": "runs/5=6", "again": True}, "a": {"run": "runs/1"}}
    assert json.loads(path.read_text()) == found and list(found) == ["c", "a"]
    with pytest.raises(SystemExit, match=r"no run is recorded as 'b'\n.*\['c', 'a'\]"):
        labelled_runs.record_runs(path, ["a", "b"], lambda run: {})
    assert json.loads(path.read_text()) == found
