"""Runs: configuration, folder, resume, measuring; and the command line."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from memalpha.cli import run as command
from memalpha.errors import InputError, RunFolderError
from memalpha.policies import Checkpoint
from memalpha.routing.run import config_from, load_config, load_learner, make_learner, make_tasks, measure, train
from memalpha.routing.tasks import SyntheticOptions, SyntheticTask

LEARNERS = ("mappo", "grpo", "ppo", "linucb", "random")
CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "router").glob("*.yaml"))
SMALL = {
    "task_options": {"dimension": 6, "choices": 3, "deciders": 2, "steps": 3, "p_end": 0.3}, "steps": 1200, "envs": 12,
    "update_every": 240, "eval_every": 2, "eval_size": 300, "kind": "team", "hidden": [16], "lr_actor": 1e-2, "lr_critic": 1e-2,
    "epochs": 3, "batch_size": 60, "target_kl": 0.0, "relative_weights": [0.3, 0.7], "checkpoint_every": 2,
}  # fmt: skip


def config(learner="mappo", **more):
    kind = {"grpo": "separate", "ppo": "shared_encoder"}.get(learner, "team")
    return config_from({**SMALL, "learner": learner, "kind": kind, **more})


@pytest.mark.parametrize("learner", LEARNERS)
def test_a_resumed_run_ends_bit_for_bit_where_the_uninterrupted_one_does(tmp_path, learner):
    def stop(row):
        if row["step"] == 720:  # a step after the last checkpoint
            raise KeyboardInterrupt

    whole = train(config(learner, anneal=True), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(config(learner, anneal=True), tmp_path / "cut", stop)
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 3
    again = train(config(learner, anneal=True), tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / "metrics.jsonl").read_text() == (tmp_path / "whole" / "metrics.jsonl").read_text()
    first, second = (Checkpoint.load(tmp_path / name / "checkpoint.pt") for name in ("whole", "cut"))
    assert str(first.state) == str(second.state) and first.updates == second.updates == 5
    timeless = {name: value for name, value in whole.items() if not name.endswith("seconds")}
    assert timeless == {name: value for name, value in again.items() if not name.endswith("seconds")}


@pytest.mark.parametrize(("learner", "reached"), [("mappo", 0.9), ("grpo", 0.75), ("ppo", 0.8), ("linucb", 0.9)])
def test_learners_learn_episodes_of_unequal_length(tmp_path, learner, reached):
    summary = train(config(learner, steps=7_200, anneal=True), tmp_path / "run")
    assert reached < summary["fraction_of_optimal"] <= 1
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["step"] == 7_200 and len(rows) == 30 and rows[-1]["reward"] > rows[0]["reward"]
    assert rows[-1]["fraction_of_optimal"] == pytest.approx(summary["fraction_of_optimal"])


class Oracle:
    """Knows the specialties."""

    def __init__(self, task):
        self.task = task

    def probabilities(self, observations):
        return self.task._gains(observations.reshape(len(observations), 2, -1).astype(np.float64))


def test_measuring_adds_up_whole_episodes_and_the_best_router_reaches_the_optimum():
    task = SyntheticTask(SyntheticOptions(dimension=5, deciders=2, steps=4, p_end=0.4))
    best = measure(Oracle(task), task, 200, 0)
    assert best["fraction_of_optimal"] == pytest.approx(1) and best["episodes"] == 200
    assert best["reward"] == pytest.approx(task.optimum(task.held_out(200, 0)).mean())


def test_a_checkpoint_holds_everything_and_of_another_run_it_is_refused(tmp_path):
    train(config("grpo", seed=7), tmp_path / "run")
    held = Checkpoint.load(tmp_path / "run")
    assert (held.learner, held.updates, held.steps, held.seed) == ("grpo", 5, 1200, 7)
    assert config_from({name: value for name, value in held.config.items() if name != "spent"}) == config("grpo", seed=7)
    assert held.state["members"][1]["optimizer"]["state"][0]["step"] == 5 * 3 * 2  # updates, passes, minibatches of an agent
    task, _ = make_tasks(config("grpo"))
    loaded, fresh = load_learner(tmp_path / "run", config("grpo"), task.shape), make_learner(config("grpo"), task.shape)
    seen = task.observe(task.held_out(5, 0))
    assert not np.allclose(loaded.probabilities(seen), fresh.probabilities(seen), atol=0.01)
    fresh.load_state(dict(held.state))
    assert (loaded.probabilities(seen) == fresh.probabilities(seen)).all()
    for other in (config("grpo", hidden=[8]), config("grpo", relative_weights=[0.1]), config("mappo")):
        with pytest.raises(InputError):
            load_learner(tmp_path / "run", other, task.shape)
    with pytest.raises(RunFolderError, match="clip, seed"):
        train(config("grpo", seed=1, clip=0.3), tmp_path / "run", resume=True)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_shipped_configurations_are_whole(path):
    loaded = load_config(path)
    assert config_from(loaded.flat()) == loaded
    if loaded.run.task == "synthetic":
        task, _ = make_tasks(loaded)
        make_learner(loaded, task.shape)


BAD = [
    {"lerner": "ppo"}, {"steps": "many"}, {"clip": "wide"}, {"hidden": 64}, {"hidden": []}, {"update_every": 100}, {"gamma": 1.5},
    {"task_options": [1]}, {"task_options": {"size": 1}}, {"learner": "dqn"}, {"task": "chess"}, {"kind": "tree"},
]  # fmt: skip


@pytest.mark.parametrize("values", BAD, ids=str)
def test_wrong_options_are_named(values):
    name, value = next(iter(values.items()))
    with pytest.raises(InputError, match=next(iter(value)) if isinstance(value, dict) else name):
        make_tasks(config_from({**SMALL, **values}))


def test_numbers_as_yaml_reads_them(tmp_path):
    (tmp_path / "c.yaml").write_text("lr_actor: 3e-4\nlr_critic: 1\n")
    loaded = load_config(tmp_path / "c.yaml", ["--seed", "5", "--hidden", "[8, 8]", "--task_options", "{noise: 0}"])
    assert (loaded.ppo.lr_actor, loaded.ppo.lr_critic, loaded.run.seed) == (3e-4, 1.0, 5)
    assert loaded.policy.hidden == (8, 8) and loaded.run.task_options == {"noise": 0}


def small_file(tmp_path, **more) -> str:
    path = tmp_path / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **more}))
    return str(path)


SECTIONS = {"instances": 2, "preset": "small", "mode": "lexical", "embedder": "hashing"}


@pytest.mark.parametrize("more", [{}, {"task": "sections", "task_options": SECTIONS, "eval_options": {"split": "test"}}], ids=str)
def test_the_command_line_trains_draws_and_ends_with_one_json_object(tmp_path, capsys, more):
    arguments = ["--config", small_file(tmp_path, **more), "--output", str(tmp_path / "run"), "--seed", "3"]
    assert command(["router", "train", *arguments, "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (summary["learner"], summary["seed"], summary["steps"]) == ("mappo", 3, 1200)
    assert summary == json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["seconds"] > 0 and summary["fraction_of_optimal"] == pytest.approx(summary["reward"] / summary["optimal"])
    assert (tmp_path / "run" / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert command(["router", "evaluate", *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1]).items() <= summary.items()
    assert command(["router", "train", *arguments, "--overwrite"]) == 0  # lines without --json
    said = capsys.readouterr().out
    assert "step 480 of 1200" in said and "step 960 of 1200" in said


def test_mistakes_at_the_command_line_are_one_clear_message(tmp_path, capsys):
    for more, named in ((["--clib", "1"], "clib"), (["--router", str(tmp_path)], str(tmp_path)), (["--config", "x"], "x")):
        assert command(["router", "evaluate", "--config", small_file(tmp_path), *more]) == 1
        error = capsys.readouterr().err
        assert error.count("error: ") == 1 and named in error
    assert command(["router", "train", "--options"]) == 0
    assert "--target_kl 0.01" in capsys.readouterr().out
