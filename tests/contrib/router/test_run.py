"""Runs of learners on tasks, logs and environments of one's own; and the command line."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch
import yaml

from memalpha.cli import run as command
from memalpha.contrib.router.learner import MAPPO, LinUCB, collect_episodes
from memalpha.contrib.router.policy import Checkpoint, NetworkOptions, PPOOptions
from memalpha.contrib.router.run import (
    load_config,
    log_tasks,
    make_learner,
    make_tasks,
    measure_router,
    train_policies,
)
from memalpha.contrib.router.tasks import (
    LogOptions,
    LogTask,
    SyntheticOptions,
    SyntheticTask,
    read_log,
    split_log,
)
from memalpha.errors import InputError, RunFolderError
from memalpha.retrieval.embedders import HashingEmbedder

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

    whole = train_policies(config(learner), tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train_policies(config(learner), tmp_path / "cut", stop)
    assert len((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()) == 3
    with pytest.raises(RunFolderError, match="clip, seed"):
        train_policies(config(learner, seed=1, clip=0.3), tmp_path / "cut", resume=True)
    again = train_policies(config(learner), tmp_path / "cut", resume=True)
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
    summary = train_policies(config(learner, steps=3_600), tmp_path / "run")
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
    best = measure_router(oracle, task, 200, 0)
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
    assert command([*arguments, "--overwrite", "--clib", "1"]) == 1
    assert "clib" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------
# the synthetic task
RAGGED = SyntheticTask(
    SyntheticOptions(dimension=5, choices=3, deciders=2, facets=2, steps=4, p_end=0.4)
)


def test_rewards_are_the_mean_cosine_of_the_nearest_facet():
    running = RAGGED.begin(4, 0, held_out=True)
    prompts = running.observe().reshape(4, 2, 5)
    actions = np.array([[0, 1], [2, 2], [1, 0], [0, 0]])
    rewards, *_ = running.step(actions)
    for i, row in enumerate(actions):
        cosines = [
            max(prompts[i, k] @ facet for facet in RAGGED.specialties[k, row[k]]) for k in range(2)
        ]
        assert rewards[i] == pytest.approx(np.mean(cosines), abs=1e-6)
    for vectors in (RAGGED.specialties, prompts):
        assert np.linalg.norm(vectors, axis=-1) == pytest.approx(1)


def test_the_optimum_is_what_the_best_of_all_joint_actions_earns():
    pairs = [np.tile(pair, (30, 1)) for pair in itertools.product(range(3), repeat=2)]
    copies = [RAGGED.begin(30, 1, held_out=True) for _ in pairs]  # the same prompts in each
    total = np.zeros(30)
    running = np.ones(30, dtype=bool)
    while running.any():
        steps = [copy.step(pair) for copy, pair in zip(copies, pairs, strict=True)]
        total += running * np.max([rewards for rewards, *_ in steps], axis=0)
        running &= ~steps[0][1]
    assert total == pytest.approx(copies[0].optimum)


# ------------------------------------------------------------------------------------------------
# examples
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.parametrize(
    ("name", "least"), [("own_router_environment.py", 1.15), ("feedback_log.py", 0.6)]
)
def test_an_example_trains_a_router_close_to_the_best(tmp_path, name, least):
    """The best earn 1.2, by asking first, and .9 less the mean cost of the right routes, .733; any
    route alone less than .3."""
    place = ["--output", str(tmp_path / "run")] if name.startswith("own") else []
    command = [sys.executable, name, *([] if place else [str(tmp_path)]), *place, "--json"]
    done = subprocess.run(command, cwd=EXAMPLES, capture_output=True, text=True, check=True)
    summary = json.loads(done.stdout.splitlines()[-1])
    assert least < summary["reward"] < 1.3 and (tmp_path / "run" / "checkpoint.pt").is_file()


# ------------------------------------------------------------------------------------------------
# logs and environments
WORDS = {"count": "how many pets", "search": "what is the city", "ask": "does she agree"}


def rows(n, seed=0, skew=0.6):
    """Routes of a policy that takes ``ask`` with probability ``skew``, whatever the prompt; the
    right one earns 1."""
    rng, names, found = np.random.default_rng(seed), sorted(WORDS), []
    chances = np.array([skew if name == "ask" else (1 - skew) / 2 for name in names])
    for i in range(n):
        wanted, chosen = names[rng.integers(3)], int(rng.choice(3, p=chances))
        row = {
            "prompt": f"{WORDS[wanted]} {i}",
            "route": names[chosen],
            "reward": float(names[chosen] == wanted),
        }
        found.append(
            {**row, "cost": 0.5 * (names[chosen] == "ask"), "probability": float(chances[chosen])}
        )
    return found


def written(path, found):
    frame = pandas.DataFrame(found)
    if path.suffix == ".csv":
        frame.to_csv(path, index=False)
    elif path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_json(path, orient="records", lines=True)
    return str(path)


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_a_log_is_read_from_every_kind_of_file_and_its_prompts_are_split(tmp_path, kind):
    found = rows(200)
    log = read_log(LogOptions(written(tmp_path / f"log.{kind}", found), cost=2.0))
    assert log.prompts == [row["prompt"] for row in found] and log.routes == [
        (row["route"],) for row in found
    ]
    assert log.rewards == pytest.approx([row["reward"] - 2 * row["cost"] for row in found])
    assert log.probabilities == pytest.approx([row["probability"] for row in found])
    train, test = split_log(log, 0.25)
    assert (
        sorted(train.prompts + test.prompts) == sorted(log.prompts) and 30 < len(test.prompts) < 70
    )
    assert test.prompts == split_log(log, 0.25)[1].prompts and not set(train.prompts) & set(
        test.prompts
    )


@pytest.mark.parametrize("change", [{"probability": 0.0}, {"reward": "much"}, {"cost": None}])
def test_rows_that_do_not_fit_are_named(tmp_path, change):
    good = rows(3)
    with pytest.raises(InputError, match=r"numbers|line 2"):
        read_log(LogOptions(written(tmp_path / "log.jsonl", [good[0], {**good[1], **change}])))


def test_the_estimate_by_hand_and_without_a_row_of_the_policys_choice(tmp_path):
    found = [
        {"prompt": p, "route": r, "reward": w, "probability": b}
        for p, r, w, b in (("a", "x", 1.0, 0.5), ("b", "x", 4.0, 0.25), ("c", "y", 9.0, 0.5))
    ]
    task = LogTask(
        read_log(LogOptions(written(tmp_path / "log.csv", found))),
        [["x", "y"]],
        HashingEmbedder(16),
        "hashing",
    )
    policy = np.array([[[1.0, 0.0]], [[0.5, 0.5]], [[1.0, 0.0]]])  # weights 2, 2, 0
    told = task.estimate(policy)
    assert told["reward"] == pytest.approx((2 * 1 + 2 * 4) / 4) and told[
        "effective"
    ] == pytest.approx(2)
    assert told["stderr"] == pytest.approx((0.25 * 1.5**2 + 0.25 * 1.5**2) ** 0.5) and told[
        "logged"
    ] == pytest.approx(14 / 3)
    assert task.estimate(policy[[2, 2, 0]][..., ::-1] * 0)["reward"] is None


def test_estimates_of_a_skewed_log_are_those_of_the_policy_itself(tmp_path):
    train, test = log_tasks(
        *[LogOptions(written(tmp_path / "log.csv", rows(6000)), embedder="hashing")] * 2
    )
    held = split_log(read_log(LogOptions(str(tmp_path / "log.csv"))), 0.2)[1].prompts
    oracle = np.array([[[float(WORDS[own] in prompt) for own in sorted(WORDS)]] for prompt in held])
    told = test.estimate(oracle)
    assert (
        told["reward"] == pytest.approx(1 - 0.5 / 3, abs=3 * told["stderr"])
        and told["logged"] < 0.2
        and told["stderr"] < 0.04
    )
    unsaid = [{k: v for k, v in row.items() if k != "probability"} for row in rows(6000)]
    estimated, _ = log_tasks(
        *[LogOptions(written(tmp_path / "unsaid.csv", unsaid), embedder="hashing")] * 2
    )
    assert np.abs(estimated.probabilities - train.probabilities).mean() < 0.06


def test_mappo_and_linucb_learn_from_a_skewed_log_with_two_actors(tmp_path):
    pairs = [
        {
            "prompt": f"{a['prompt']} and {b['prompt']}",
            "finder": a["route"],
            "writer": b["route"],
            "reward": a["reward"] + b["reward"],
            "probability": a["probability"] * b["probability"],
        }
        for a, b in zip(rows(1500), rows(1500, seed=1), strict=True)
    ]
    place = written(tmp_path / "log.parquet", pairs)
    options = LogOptions(place, actors=("finder", "writer"), embedder="hashing")
    train, test = log_tasks(options, options)
    assert train.shape.deciders == 2 and train.routes["workers"] == [sorted(WORDS)] * 2
    ppo = PPOOptions(lr_actor=1e-2, lr_critic=1e-2, epochs=4, target_kl=0.0, batch_size=128)
    for learner in (
        MAPPO(train.shape, NetworkOptions("team", hidden=(16,)), ppo, 0),
        LinUCB(train.shape),
    ):
        before = measure_router(learner, test, 0, 0)["reward"]
        for i in range(8):
            learner.update(train, 256, 4, i, 1.0)
        assert measure_router(learner, test, 0, 0)["reward"] > before + 0.2


# ---------------------------------------------------------------------------------------
# environments of one's own
gymnasium = pytest.importorskip("gymnasium")


class Walk(
    gymnasium.Env
):  # 1 to the right earns 1; the third step ends it, an even seed's by truncation
    def __init__(self, size: int = 2, space: object = None) -> None:
        self.observation_space = gymnasium.spaces.Box(0, 9, (size,), np.float32)
        self.action_space = space or gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.even, self.at = (self.even if seed is None else seed % 2 == 0), 0
        return np.array([self.at, self.even], dtype=np.float32), {}

    def step(self, action):
        self.at += 1
        over = self.at == 3
        return (
            np.array([self.at, self.even], dtype=np.float32),
            float(action),
            over and not self.even,
            over and self.even,
            {},
        )


class First(torch.nn.Module):  # takes option 1; the value is the first number
    def log_probs(self, seen):
        return torch.tensor([[-torch.inf, 0.0]]).expand(len(seen), -1, -1)

    def value(self, seen):
        return seen[:, 0]


def test_an_environment_of_ones_own_tells_terminated_from_truncated(monkeypatch):
    from memalpha.contrib.router.tasks import EnvironmentOptions, EnvironmentTask

    monkeypatch.setattr("memalpha.contrib.router.tasks.load_function", lambda place, what: Walk)
    task = EnvironmentTask(EnvironmentOptions("walk:Walk"))
    steps = collect_episodes(
        task, [First()], episodes=2, length=4, seeds=[0, 0]
    )  # seeds 0 and 1 of the copies
    assert (
        steps.observations[..., 0].T.tolist() == [[0, 1, 2, 0]] * 2 and (steps.rewards == 1).all()
    )
    assert steps.next_values.T.tolist() == [
        [1, 2, 3, 1],
        [1, 2, 0, 1],
    ]  # cut off at 3, worth 3; ended
    assert steps.last.T.tolist() == [[False, False, True, True]] * 2
    learner = MAPPO(
        task.shape, NetworkOptions("team", hidden=(4,)), PPOOptions(lr_actor=0.05, target_kl=0.0), 0
    )
    learner.update(task, 8, 12, 0, 1.0)
    assert measure_router(learner, task, 4, 0)["reward"] == 3
    several = {"space": gymnasium.spaces.MultiDiscrete([2, 2])}
    assert EnvironmentTask(EnvironmentOptions("walk:Walk", several)).shape.deciders == 2
