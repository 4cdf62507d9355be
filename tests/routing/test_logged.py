"""Logs of routes: reading, probabilities, the self-normalised estimate, learning off policy; and
environments of one's own."""

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

from memalpha.cli import run as command
from memalpha.errors import InputError
from memalpha.retrieval.dense import HashingEmbedder
from memalpha.routing.learner import MAPPO, LinUCB, collect
from memalpha.routing.policy import Checkpoint, NetworkOptions
from memalpha.routing.ppo import PPOOptions
from memalpha.routing.run import log_tasks, measure
from memalpha.routing.tasks import LogOptions, LogTask, logistic, read_log, split_log

WORDS = {"count": "how many pets", "search": "what is the city", "ask": "does she agree"}
HWU64 = Path(__file__).resolve().parents[3] / "shared" / "data" / "nlu_hwu64"


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
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, found[0])
            table.writeheader()
            table.writerows(found)
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(found), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in found))
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


def test_rows_that_do_not_fit_are_named(tmp_path):
    good = rows(3)
    wrong = [
        ({"probability": 0.0}, "numbers"),
        ({"reward": "much"}, "line 2.*much"),
        ({"cost": None}, "line 2"),
    ]
    for change, named in wrong:
        with pytest.raises(InputError, match=named):
            read_log(LogOptions(written(tmp_path / "log.jsonl", [good[0], {**good[1], **change}])))
    short = {name: value for name, value in good[1].items() if name != "probability"}
    with pytest.raises(InputError, match="some rows"):
        read_log(LogOptions(written(tmp_path / "log.jsonl", [good[0], short])))
    with pytest.raises(InputError, match="'fly'"):
        first, second = (
            written(tmp_path / name, some)
            for name, some in (("a.jsonl", good), ("b.jsonl", [{**good[0], "route": "fly"}]))
        )
        log_tasks(LogOptions(first, embedder="hashing"), LogOptions(second, embedder="hashing"))


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


def test_logistic_regression_meets_its_own_condition():
    rng = np.random.default_rng(0)
    seen, chosen, weights = (
        rng.normal(size=(40, 3)).astype(np.float32),
        rng.integers(3, size=40),
        rng.random(40),
    )
    found = logistic(seen, chosen, weights, 3)(seen)
    gaps = weights[:, None] * (
        found - np.eye(3)[chosen]
    )  # of a minimum: X'(p - y) + table = 0, and no gap of the intercept
    table = -seen.T @ gaps
    logits = seen @ table
    assert gaps.sum(axis=0) == pytest.approx(np.zeros(3), abs=1e-3)
    change = np.log(found) - logits
    assert np.ptp(change - change[:, :1], axis=0) == pytest.approx(np.zeros(3), abs=1e-2)


def test_mappo_and_linucb_learn_from_a_skewed_log_with_two_actors(tmp_path, capsys):
    first, second = rows(1500), rows(1500, seed=1)
    pairs = []
    for a, b in zip(first, second, strict=True):
        joint = {
            "reward": a["reward"] + b["reward"],
            "probability": a["probability"] * b["probability"],
        }
        pairs.append(
            {
                "prompt": f"{a['prompt']} and {b['prompt']}",
                "finder": a["route"],
                "writer": b["route"],
                **joint,
            }
        )
    options = LogOptions(
        written(tmp_path / "log.parquet", pairs), actors=("finder", "writer"), embedder="hashing"
    )
    train, test = log_tasks(options, options)
    assert train.shape.deciders == 2 and train.routes["workers"] == [sorted(WORDS)] * 2
    ppo = PPOOptions(lr_actor=1e-2, lr_critic=1e-2, epochs=2, target_kl=0.0, batch_size=128)
    learner = MAPPO(train.shape, NetworkOptions("team", hidden=(16,)), ppo, 0)
    before = measure(learner, test, 0, 0)
    for i in range(3):
        metrics = learner.update(train, 256, 2, i, 1.0)
    assert metrics["minibatches"] == 8 and before["reward"] is not None
    bandit = LinUCB(train.shape)
    bandit.update(train, 256, 4, 0, 1.0)
    assert np.isfinite(measure(bandit, test, 0, 0)["stderr"])
    given = {"rows": written(tmp_path / "one.csv", rows(2000)), "embedder": "hashing"}
    (tmp_path / "log.yaml").write_text(
        json.dumps(
            {
                "task": "log",
                "task_options": given,
                "learner": "mappo",
                "kind": "team",
                "hidden": [16],
                "steps": 12_000,
                "envs": 400,
                "update_every": 400,
                "lr_actor": 1e-2,
                "lr_critic": 1e-2,
                "epochs": 4,
                "target_kl": 0.0,
                "eval_every": 15,
            }
        )
    )
    assert (
        command(
            [
                "router",
                "train",
                "--config",
                str(tmp_path / "log.yaml"),
                "--output",
                str(tmp_path / "run"),
                "--json",
            ]
        )
        == 0
    )
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["reward"] > 0.6 > 0.3 > summary["logged"]  # the best earns .83
    assert Checkpoint.load(tmp_path / "run").routes["workers"] == [sorted(WORDS)]


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
    from memalpha.routing.tasks import EnvironmentOptions, EnvironmentTask

    monkeypatch.setattr("memalpha.routing.tasks.load_function", lambda place, what: Walk)
    task = EnvironmentTask(EnvironmentOptions("walk:Walk"))
    steps = collect(
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
    assert measure(learner, task, 4, 0)["reward"] == 3
    for space in (gymnasium.spaces.MultiDiscrete([2, 3]), gymnasium.spaces.Box(0, 1, (2,))):
        with pytest.raises(InputError, match="MultiDiscrete"):
            EnvironmentTask(EnvironmentOptions("walk:Walk", {"space": space}))
    assert (
        EnvironmentTask(
            EnvironmentOptions("walk:Walk", {"space": gymnasium.spaces.MultiDiscrete([2, 2])})
        ).shape.deciders
        == 2
    )
