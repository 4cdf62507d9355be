"""What is kept of run folders: numbers worked by hand, real small evaluations, and what is
refused."""

import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

import ablations
import pytest
import record
import yaml

from memalpha.cli import run
from memalpha.errors import InputError
from memalpha.record.folder import RunFolder
from memalpha.training.config import parse_train_arguments

ROOT = Path(__file__).resolve().parents[2]
VARIANTS = yaml.safe_load((ROOT / "configs" / "train" / "ablations.yaml").read_text())


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "RESULTS", tmp_path / "results")
    return tmp_path / "results"


def test_a_training_run_is_kept_with_its_curve_if_it_has_held_out_instances(
    tmp_path, results, capsys
):
    folder = RunFolder.create(tmp_path / "run", {"seed": 1})
    folder.write_json("environment.json", {"command": [str(tmp_path / "memalpha"), "train"]})
    folder.write_json("summary.json", {"steps": 1})
    assert record.main(["run", str(tmp_path / "run"), "mine"]) == 1 and not results.exists()
    assert "has no held-out instances" in capsys.readouterr().err
    folder.write_json("summary.json", {"steps": 1, "delta": {"accuracy": 0.5}})
    folder.write_lines("metrics.jsonl", [{"step": 1, "loss": 0.25}])
    assert record.main(["run", str(tmp_path / "run"), "mine"]) == 0
    kept = json.loads((results / "mine.json").read_text())
    assert kept["curve"] == [{"step": 1, "loss": 0.25}] and kept["environment"]["command"] == [
        "memalpha",
        "train",
    ]


def test_a_set_evaluated_alone_takes_its_place_and_the_means_are_taken_anew(tmp_path, results):
    sets = [
        {"name": name, "data": "synthetic", "options": {"n": 3, "split": "test", "seed": 7 * seed}}
        for seed, name in enumerate("ab")
    ]
    options = [
        "--model",
        "nano",
        "--schema",
        "facts",
        "--codec",
        "compact",
        "--max_chunk_tokens",
        "800",
        "--view_tokens",
        "64",
    ]
    systems = "[gold, {kind: verbatim, memory_tokens: 30}, {kind: full_context, sets: [a]}]"

    def evaluate(name, sets, systems, *more):
        given = [
            "--sets",
            json.dumps(sets),
            "--systems",
            systems,
            "--output_dir",
            str(tmp_path / name),
        ]
        assert run(["evaluate", *given, *options, *more]) == 0
        return tmp_path / name

    record.record_comparison(evaluate("all", sets, systems), "comparison")
    before = record.read("comparison")
    assert before["summary"]["sets"][0]["part"] == 0 and len(before["parts"]) == 1
    again = [{**sets[1], "options": {"n": 4, "split": "test", "seed": 99}}]
    record.record_comparison(
        evaluate("alone", again, "[gold, {kind: verbatim, memory_tokens: 30}]"), "comparison"
    )
    after = record.read("comparison")
    (a, b), parts = after["summary"]["sets"], after["parts"]
    assert a == before["summary"]["sets"][0] and (
        b["set"],
        b["part"],
        b["instances"],
        len(parts),
    ) == ("b", 1, 4, 2)
    mean = after["summary"]["over_sets"]["recall"]
    cells = [item["cells"]["verbatim"]["accuracy"] for item in (a, b)]
    assert mean["full_context"] is None
    assert mean["verbatim"]["mean"] == pytest.approx(
        statistics.fmean(cell["mean"] for cell in cells)
    )
    assert mean["verbatim"]["stderr"] == pytest.approx(
        math.hypot(*(cell["stderr"] for cell in cells)) / 2
    )
    gaps = [item["differences"]["gold"]["verbatim"]["mean"] for item in (a, b)]
    assert after["summary"]["differences"]["recall"]["gold"]["verbatim"]["mean"] == pytest.approx(
        statistics.fmean(gaps)
    )
    assert after["summary"]["over_sets"] != before["summary"]["over_sets"]
    assert str(tmp_path) not in json.dumps(parts[1]["environment"])
    with pytest.raises(InputError, match=r"reader_tokens was .* and is 7"):
        record.record_comparison(
            evaluate("other", again, "[gold]", "--reader_tokens", "7"), "comparison"
        )
    assert record.read("comparison") == after


def test_means_over_sets_are_those_of_the_published_comparison():
    """Taken anew from its sets, which several evaluations have made."""
    summary = record.read("comparison")["summary"]
    found = record.means(summary["sets"], summary["kinds_of"])
    for reader, groups in summary["over_sets"].items():
        for group, mean in groups.items():
            assert found["over_sets"][reader][group] == (
                mean and {**mean, "per_seed": pytest.approx(mean["per_seed"])}
            ), group
    apart = found["differences"]["recall"]["warm"]["grpo"]
    assert apart["mean"] == pytest.approx(summary["differences"]["recall"]["warm"]["grpo"]["mean"])


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_is_one_change_to_the_options_of_training(name):
    def options(*more):
        groups = parse_train_arguments(
            ["--config", str(ROOT / "configs" / "train" / "mixed.yaml"), *more]
        )
        return {key: getattr(group, key) for group in groups for key in group.__dataclass_fields__}

    before, changed = (
        options(),
        options(
            *[text for key, value in VARIANTS[name].items() for text in (f"--{key}", str(value))]
        ),
    )
    assert {key for key in before if str(before[key]) != str(changed[key])} - {
        "reward_weights"
    } == set(VARIANTS[name])
    assert all(changed[key] == value for key, value in VARIANTS[name].items())


def test_variants_are_trained_gone_on_with_or_left_as_they_are(tmp_path, monkeypatch, capsys):
    commands = []
    monkeypatch.setattr(subprocess, "run", lambda command, check: commands.append(command[2:]))
    begun, done = tmp_path / "default" / "seed-2", tmp_path / "tool_1" / "seed-1"
    for folder, name in ((begun, "config.yaml"), (done, "summary.json")):
        folder.mkdir(parents=True)
        (folder / name).touch()
    words = [
        "ablations.py",
        str(tmp_path),
        "--only",
        "default,tool_1",
        "--seeds",
        "1,2",
        "--max_steps",
        "16",
    ]
    monkeypatch.setattr(sys, "argv", words)
    ablations.main()
    assert [command[command.index("--max_steps") :] for command in commands] == [
        ["--max_steps", "16"],
        ["--max_steps", "16", "--resume"],
        ["--max_steps", "16", "--tool_weight", "1.0"],
    ]
    assert all(command[:3] == ["memalpha", "train", "--config"] for command in commands)
    assert f"{done} is finished" in capsys.readouterr().out
    monkeypatch.setattr(sys, "argv", ["ablations.py", str(tmp_path), "--only", "typo"])
    with pytest.raises(SystemExit, match="2"):
        ablations.main()


def made(path, before, after, **options):
    """A finished run as training leaves it, with accuracies by instance; None was not scored."""
    folder = RunFolder.create(
        path, {"output_dir": str(path), "max_steps": 16, "tool_weight": 0.4, **options}
    )
    at = {
        "command": ["memalpha", "train"],
        "started": "now",
        "code": "x",
        "processor": "p",
        "cores": 2,
    }
    folder.write_json("environment.json", at)
    shown = {"kinds": {}} | dict.fromkeys(
        record.WATCHED, statistics.fmean(filter(None, after.values()))
    )
    folder.write_json(
        "summary.json", {"seed": 1, "steps": 16, "seconds": 9.0, "before": shown, "after": shown}
    )
    for name, found in (("before", before), ("after", after)):
        rows = [{"result": {"instance": key, "accuracy": value}} for key, value in found.items()]
        folder.write_lines(f"held_out/{name}.jsonl", rows)


def test_an_instance_without_a_score_is_left_out_of_both_sides_and_counted(tmp_path, results):
    start = {"a": 0.0, "b": 0.5, "c": None, "d": 0.0}
    made(tmp_path / "default" / "seed-1", start, {"a": 0.5, "b": 0.5, "c": 1.0, "d": 0.25})
    made(
        tmp_path / "tool_1" / "seed-1",
        start,
        {"a": 1.0, "b": None, "c": 1.0, "d": 0.5},
        tool_weight=1.0,
    )
    record.record_ablations(tmp_path)
    default, changed = record.read("ablations")["runs"]
    assert default["gain"] == pytest.approx(
        {"mean": 0.25, "stderr": 0.25 / math.sqrt(3), "n": 3, "left_out": 1}
    )
    assert changed["gain"] == pytest.approx({"mean": 0.75, "stderr": 0.25, "n": 2, "left_out": 2})
    assert changed["against_default"] == pytest.approx(
        {"mean": 0.25, "stderr": 0.25 / math.sqrt(3), "n": 3, "left_out": 1}
    )
    assert default["change"] == {} and changed["change"] == {"tool_weight": 1.0}


@pytest.mark.parametrize(
    ("options", "instances", "said"),
    [
        ({"tool_weight": 1.0, "max_steps": 24}, "a", "max_steps was 16 and is 24"),
        ({"tool_weight": 1.0}, "b", "different instances"),
    ],
)
def test_runs_that_differ_in_more_than_their_change_are_not_compared(
    options, instances, said, tmp_path, results, capsys
):
    made(tmp_path / "default" / "seed-1", {"a": 0.0}, {"a": 0.5})
    made(tmp_path / "tool_1" / "seed-1", {instances: 0.0}, {instances: 0.5}, **options)
    with pytest.raises(InputError, match=said):
        record.record_ablations(tmp_path)
    assert record.main(["ablations", str(tmp_path / "nothing")]) == 1 and not results.exists()
