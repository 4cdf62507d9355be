"""Validation while training: its curve, the best checkpoint, early stop, resume; and the tables
that trackers get."""

import json
import shutil
import signal
from types import SimpleNamespace

import pytest

from memalpha.cli import run
from memalpha.generation import products
from memalpha.record.rows import read_rows
from memalpha.training import checkpoints
from memalpha.training.build import split_held_out
from memalpha.training.config import RunOptions
from memalpha.training.recording import Recorder
from tests.helpers.runs_of_nano import (
    OPTIONS,
    assert_same_end,
    launch,
    launched,
    train,
    untimed_metrics,
)

VALIDATED = ["--eval_strategy", "steps", "--eval_steps", "1", "--load_best_model_at_end", "true"]
APART = [
    *VALIDATED,
    "--validation_instances",
    "4",
    "--eval_options",
    "{n: 8, split: test}",
    "--metric_for_best_model",
    "reward",
    "--logging_steps",
    "2",
]


def held_out(folder, name):
    return read_rows(folder / "held_out" / f"{name}.jsonl")


def names(folder, name):
    return [row.instance for row in held_out(folder, name)]


def weights(folder):
    (path,) = folder.glob("*model.safetensors")
    return path.read_bytes()


def summary(folder):
    return {**json.loads((folder / "summary.json").read_text()), "seconds": 0}


def assert_best_is_kept(folder, steps):
    """The curve is that of the files, and the adapter is the checkpoint of its first maximum."""
    rows = [row for row in untimed_metrics(folder) if "eval_reward" in row]
    assert [row["step"] for row in rows] == list(range(1, steps + 1))
    for row in rows:
        rows_of = held_out(folder, f"step-{row['step']:06d}")
        values = {
            "reward": [each.rewards["total"] for each in rows_of],
            "accuracy": [each.accuracy for each in rows_of],
            "entries": [len(each.rollout["memory"]) for each in rows_of],
        }
        for key, column in values.items():
            assert row[f"eval_{key}"] == pytest.approx(sum(column) / 4, abs=1e-12)
    curve = [row["eval_reward"] for row in rows]
    best = 1 + curve.index(max(curve))
    chosen = {
        "step": best,
        "metric": "reward",
        "value": max(curve),
        "instances": 4,
        "on_after": False,
    }
    assert summary(folder)["selection"] == chosen
    assert weights(folder / "adapter") == weights(folder / f"checkpoint-{best}")


@pytest.fixture(scope="module")
def validated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validated") / "run"
    assert train(folder, *APART) == 0
    return folder


def written(path):
    """What was written for each held-out instance, chunk by chunk."""
    lines = [json.loads(line) for line in path.open()]
    return {
        line["instance"]: [step["completion"] for step in line["rollout"]["steps"]]
        for line in lines
    }


@pytest.mark.parametrize("dropout", ["0", "0.2"])
def test_each_evaluation_of_a_run_is_that_of_its_checkpoint_by_plain_products(
    validated, tmp_path, monkeypatch, dropout
):
    """oneDNN's layouts of one step's adapter are not used with another's, nor with the best one
    that is loaded at the end."""
    lora = [
        "--model",
        str(validated / "adapter"),
        "--full_finetuning",
        "false",
        "--lora_dropout",
        dropout,
        *"--warm_start_steps 0 --eval_temperature 0".split(),
    ]
    monkeypatch.setattr(products, "faster", lambda: True)
    monkeypatch.setattr(products, "LEAST", 1)
    assert train(tmp_path / "run", *lora, *VALIDATED, "--learning_rate", "0.02") == 0
    assert (
        json.loads((tmp_path / "run" / "environment.json").read_text())["float32_products"]
        == "oneDNN"
    )
    monkeypatch.setattr(products, "faster", lambda: False)
    held_out, seen = tmp_path / "run" / "held_out", set()
    places = {f"step-{step:06d}": f"checkpoint-{step}" for step in (1, 2, 3, 4)}
    for name, place in {**places, "after": "adapter"}.items():
        adapter = ["--adapter", str(tmp_path / "run" / place), "--output_dir", str(tmp_path / name)]
        assert run(["rollout", *OPTIONS, *lora, *adapter]) == 0
        expected = written(tmp_path / name / "held_out" / "rollouts.jsonl")
        assert written(held_out / f"{name}.jsonl") == expected, name
        seen.add(json.dumps(expected))
    assert len(seen) > 1  # else it could not fail


def test_the_curve_the_best_checkpoint_and_the_instances_by_value(validated, tmp_path):
    assert_best_is_kept(validated, 4)
    before, after, first, last = (
        names(validated, name) for name in ("before", "after", "step-000001", "step-000004")
    )
    assert before == after and first == last and len({*before, *first}) == 8
    again = [
        "--model",
        str(validated / "adapter"),
        "--warm_start_steps",
        "0",
        "--output_dir",
        str(tmp_path / "again"),
    ]
    assert run(["rollout", *OPTIONS, *APART, *again]) == 0
    assert held_out(tmp_path / "again", "rollouts") == held_out(validated, "after")


def test_validation_leaves_the_training_as_it_is(validated, tmp_path):
    assert train(tmp_path / "plain", "--eval_data", "", "--logging_steps", "2") == 0
    assert [row for row in untimed_metrics(validated) if "loss" in row] == untimed_metrics(
        tmp_path / "plain"
    )
    assert weights(validated / "checkpoint-4") == weights(tmp_path / "plain" / "checkpoint-4")


def test_a_kill_after_a_validation_before_its_checkpoint(validated, tmp_path):
    folder = tmp_path / "killed"
    command = ["train", *OPTIONS, *APART, "--output_dir", str(folder)]
    done = launch("tests/helpers/faulty_run.py", "after-validation", "4", "0", *command)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert not (folder / "checkpoint-3").exists()
    assert (folder / "held_out" / "step-000003.jsonl").exists()
    assert train(folder, *APART, "--resume") == 0
    assert_same_end(folder, validated)
    assert summary(folder) == summary(validated) and weights(folder / "adapter") == weights(
        validated / "adapter"
    )
    for path in (validated / "held_out").iterdir():
        assert (folder / "held_out" / path.name).read_bytes() == path.read_bytes()


def test_the_first_best_adapter_is_kept_wherever_the_run_lies(
    validated, monkeypatch, tmp_path, capsys
):
    real, script = Recorder.write_validation, {1: 0.1, 2: 0.5, 3: 0.4, 4: 0.5}

    def told(recorder, rows):
        return {**real(recorder, rows), "accuracy": script[recorder.state.global_step]}

    monkeypatch.setattr(Recorder, "write_validation", told)
    options = [
        "--model",
        str(validated / "warm_start"),
        "--warm_start_steps",
        "0",
        "--full_finetuning",
        "false",
        "--lora_r",
        "4",
        *VALIDATED,
        "--max_steps",
        "4",
        "--save_total_limit",
        "1",
    ]
    folder, moved = tmp_path / "run", tmp_path / "moved"
    assert train(folder, *options) == 0
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    chosen = {"step": 2, "metric": "accuracy", "value": 0.5, "instances": 4, "on_after": True}
    first = summary(folder)
    assert (first["steps"], first["selection"]) == (4, chosen)
    assert (
        weights(folder / "adapter")
        == weights(folder / "checkpoint-2")
        != weights(folder / "checkpoint-4")
    )
    assert held_out(folder, "after") == held_out(folder, "step-000002")
    folder.rename(moved)  # a checkpoint names no place
    shutil.rmtree(moved / "adapter")
    assert train(moved, *options, "--resume") == 0
    assert summary(moved) == first and weights(moved / "adapter") == weights(moved / "checkpoint-2")
    shutil.rmtree(moved / "checkpoint-2")
    assert train(moved, *options, "--resume") == 1
    assert "the best checkpoint, checkpoint-2, cannot be loaded" in capsys.readouterr().err


def test_two_processes_validate_together(tmp_path):
    folder = tmp_path / "run"
    command = [
        *OPTIONS,
        *APART,
        "--max_steps",
        "2",
        "--per_device_train_batch_size",
        "16",
        "--output_dir",
        str(folder),
    ]
    done = launched("train", *command)
    assert done.returncode == 0, done.stderr[-2000:]
    assert (
        names(folder, "step-000001")
        == names(folder, "step-000002")
        == [f"toy-test-1-{index}" for index in (0, 2, 4, 6)]
    )
    assert_best_is_kept(folder, 2)


def test_held_out_instances_are_split_at_even_distances():
    assert split_held_out(RunOptions(validation_instances=2), "abcdef") == (
        ["a", "d"],
        ["b", "c", "e", "f"],
    )
    assert split_held_out(RunOptions(validation_instances=2, eval_instances=3), "abcdef") == (
        ["a", "d"],
        ["b", "c", "e"],
    )
    assert split_held_out(RunOptions(eval_instances=2), "abcdef") == ([], ["a", "b"])


def test_engines_are_given_the_best_weights_anew(monkeypatch):
    """vLLM would go on drawing with the weights of the last step."""
    state, loaded = (
        SimpleNamespace(best_global_step=2, global_step=4, best_model_checkpoint=None),
        [],
    )
    trainer = SimpleNamespace(state=state, args=SimpleNamespace(output_dir="run"), _served=4)
    monkeypatch.setattr(checkpoints, "find_damage", lambda path: "")
    trainer.load_best_weights = lambda: loaded.append(state.best_model_checkpoint)
    assert checkpoints.WholeCheckpoints.load_best(trainer) == 2
    assert (loaded, trainer._served) == (["run/checkpoint-2"], -1)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ([*VALIDATED, "--save_steps", "2"], "save_steps is 2 and eval_steps is 1"),
        (["--eval_strategy", "steps", "--eval_data", ""], "there are no held-out instances"),
        (["--validation_instances", "2"], "without an eval_strategy"),
        ([*VALIDATED, "--validation_instances", "64"], "validation_instances is 64"),
        (
            [*VALIDATED, "--metric_for_best_model", "content", "--warm_start_steps", "0"],
            "'content', which has no value",
        ),
        (
            [*VALIDATED, "--metric_for_best_model", "reward_tool"],
            "one of accuracy, reward, tool_success, compression, content, reward_immediate",
        ),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path, capsys, options, named):
    assert train(tmp_path / "run", *options) == 1
    assert named in capsys.readouterr().err


def learn(folder, *options):
    assert (
        run(["train", "--config", "configs/train/nano.yaml", "--output_dir", str(folder), *options])
        == 0
    )
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.timeout(240)
def test_held_out_accuracy_rises_with_the_reward_and_not_with_shuffled_advantages(tmp_path):
    learned = learn(tmp_path / "learned")
    control = learn(tmp_path / "control", "--shuffle_advantages", "true")
    assert control["before"] == learned["before"]  # the same start, the same held-out instances
    assert learned["delta"]["n"] == 64
    assert learned["delta"]["accuracy"] > max(
        0.1, 4 * learned["delta"]["stderr"]
    )  # seeds 1, 2, 3: .18, .14, .15, all ± .02
    assert control["delta"]["accuracy"] < min(
        0.05, 2 * control["delta"]["stderr"]
    )  # seeds 1, 2, 3: -.09, -.10, .03
    assert learned["after"]["reward"] > learned["before"]["reward"] > control["after"]["reward"]
