"""Runs: configuration, folder, resume, measuring; and the command line."""

import json
from types import SimpleNamespace

import pytest
import yaml

from memalpha.cli import run as command
from memalpha.errors import InputError, RunFolderError
from memalpha.routing.policy import Checkpoint
from memalpha.routing.run import load_config, make_learner, make_tasks, measure, train
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

SMALL = {
    "task_options": {"dimension": 6, "choices": 3, "deciders": 2, "steps": 3, "p_end": 0.3},
    "steps": 1200,
    "envs": 12,
    "update_every": 240,
    "eval_every": 2,
    "eval_size": 300,
    "kind": "team",
    "hidden": [16],
    "lr_actor": 1e-2,
    "lr_critic": 1e-2,
    "epochs": 3,
    "batch_size": 60,
    "target_kl": 0.0,
    "relative_weights": [0.3, 0.7],
    "checkpoint_every": 2,
    "anneal": True,
}


@pytest.fixture
def config(tmp_path):
    def make(learner="mappo", **more):
        kind = "separate" if learner in ("grpo", "ppo") else "team"
        (tmp_path / "small.yaml").write_text(
            yaml.safe_dump({**SMALL, "learner": learner, "kind": kind, **more})
        )
        return load_config(tmp_path / "small.yaml")

    return make


@pytest.mark.parametrize("learner", ["mappo", "grpo", "linucb"])
def test_a_resumed_run_ends_bit_for_bit_where_the_uninterrupted_one_does(tmp_path, config, learner):
    def stop(row):
        if row["step"] == 720:  # a step after the last checkpoint
            raise KeyboardInterrupt

    whole = train(config(learner), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config(learner), tmp_path / "cut", stop)
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 3
    with pytest.raises(RunFolderError, match="clip, seed"):
        train(config(learner, seed=1, clip=0.3), tmp_path / "cut", resume=True)
    again = train(config(learner), tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (
        tmp_path / "whole" / "metrics.jsonl"
    ).read_text()
    first, second = (
        Checkpoint.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut")
    )
    assert str(first.state) == str(second.state) and first.updates == second.updates == 5
    assert (first.learner, first.steps, first.seed) == (learner, 1200, 42)
    if learner == "grpo":
        assert (
            first.state["members"][1]["optimizer"]["state"][0]["step"] == 5 * 3 * 2
        )  # updates, passes, minibatches of an agent
    assert {n: v for n, v in whole.items() if "seconds" not in n} == {
        n: v for n, v in again.items() if "seconds" not in n
    }


@pytest.mark.parametrize(("learner", "reached"), [("mappo", 0.7), ("grpo", 0.5), ("linucb", 0.9)])
def test_learners_learn_episodes_of_unequal_length(tmp_path, config, learner, reached):
    summary = train(config(learner, steps=3_600), tmp_path / "run")
    assert reached < summary["fraction_of_optimal"] <= 1
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert rows[-1]["step"] == 3_600 and len(rows) == 15 and rows[-1]["reward"] > rows[0]["reward"]


def test_measuring_adds_up_whole_episodes_and_the_best_router_reaches_the_optimum():
    task = SyntheticTask(SyntheticOptions(dimension=5, deciders=2, steps=4, p_end=0.4))
    oracle = SimpleNamespace(
        probabilities=lambda seen: task.gains(seen.reshape(len(seen), 2, -1).astype(float))
    )
    best = measure(oracle, task, 200, 0)
    assert best["fraction_of_optimal"] == pytest.approx(1) and best["episodes"] == 200
    assert best["reward"] == pytest.approx(task.begin(200, 0, held_out=True).optimum.mean())


WRONG = [
    ("lerner", "ppo"),
    ("update_every", 100),
    ("task_options", {"size": 1}),
    ("entropies", [0.1]),
    ("kind", "separate"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_wrong_options_are_named(config, name, value):
    with pytest.raises(InputError, match="size" if isinstance(value, dict) else name):
        loaded = config(**{name: value})
        make_learner(loaded, make_tasks(loaded)[0].shape)


def test_the_command_line_trains_and_ends_with_one_json_object(tmp_path, config, capsys):
    config()
    arguments = [
        "router",
        "train",
        "--config",
        str(tmp_path / "small.yaml"),
        "--output",
        str(tmp_path / "run"),
        "--seed",
        "3",
    ]
    assert command([*arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["learner"], summary["seed"], summary["steps"]) == ("mappo", 3, 1200)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["seconds"] > 0 and summary["fraction_of_optimal"] == pytest.approx(
        summary["reward"] / summary["optimal"]
    )
    assert command([*arguments, "--overwrite"]) == 0  # lines without --json
    said = capsys.readouterr().out
    assert "step 480 of 1200" in said and "step 960 of 1200" in said
    assert command([*arguments, "--overwrite", "--clib", "1"]) == 1
    assert "clib" in capsys.readouterr().err
