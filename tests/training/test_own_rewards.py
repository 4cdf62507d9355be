"""Rewards of a user's own, beside the built-in parts: values by hand, what is masked, what is an error, and the example's run."""

import asyncio
import json
import math
import sys
from pathlib import Path

import pytest
from rollouts import make_agent, make_instance, run_script
from test_scoring import scorer_of

from memalpha.cli import run
from memalpha.errors import InputError, RunFolderError, ServiceError
from memalpha.report.curves import Variant, own_panels
from memalpha.rewards.total import RewardConfig
from memalpha.runs import RunFolder
from memalpha.training.config import parse_train_arguments
from memalpha.training.results import instance_result, rollout_to_json, summarise
from memalpha.training.run import all_options, check_same
from memalpha.training.scoring import first_error

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def rollouts():
    """a keeps apple and candle, b keeps nothing; a reads two chunks, b one."""
    a, b = make_instance("a", "apple boat", "candle", ask=("candle", "apple")), make_instance("b", "door", ask=("door",))
    return run_script(make_agent(), [a, b], ["+ apple", "."], ["+ candle"])


def scored(rollouts, function, weight=0.5):
    config = RewardConfig(1.0, 0.0, 0.0, 0.0, rewards={function: weight})
    scorer = scorer_of(config=config)
    return config, scorer, scorer.score(rollouts)


def score_of_step(rollout):
    assert all(record.answer for record in rollout.questions) and rollout.instance.questions  # asked before
    return [entries + step.memory_tokens / 8 for entries, step in enumerate(rollout.steps, len(rollout.memory))]


def test_a_part_of_each_step_is_weighed_logged_and_recorded(rollouts):
    config, scorer, rewards = scored(rollouts, score_of_step)
    assert [[step["score_of_step"] for step in steps] for steps in rewards] == [[2 + 1 / 8, 3 + 2 / 8], [0.0]]
    assert [[step.total(config) for step in steps] for steps in rewards] == [[1 + 17 / 16, 1 + 13 / 8], [0.0]]
    assert scorer.metrics(rollouts, rewards)["reward_score_of_step"] == (2.125 + 3.25, 3)
    results = [instance_result(rollout, steps, config) for rollout, steps in zip(rollouts, rewards, strict=True)]
    assert summarise(results)["reward_score_of_step"] == (2.6875 + 0.0) / 2
    assert [step["reward"]["score_of_step"] for step in rollout_to_json(rollouts[0], rewards[0], config)["steps"]] == [2.125, 3.25]


def test_async_functions_score_all_rollouts_at_once_also_beside_a_running_loop(rollouts):
    both = asyncio.Barrier(2)

    async def together(rollout):
        await asyncio.wait_for(both.wait(), 10)
        return len(rollout.steps)

    async def notebook():
        return scored(rollouts, together)[2]

    assert [[step["together"] for step in steps] for steps in asyncio.run(notebook())] == [[2.0, 2.0], [1.0]]


def test_none_and_outages_mask_and_are_never_0(rollouts):
    def sparse(rollout):
        if rollout.instance.id == "b":
            raise ServiceError("my judge is down")
        return [None, 1]

    config, scorer, rewards = scored(rollouts, sparse)
    assert [[math.isnan(step.total(config)) for step in steps] for steps in rewards] == [[True, False], [True]]
    assert first_error(rollouts) == "sparse: my judge is down" and scorer.metrics(rollouts, rewards)["reward_sparse"] == (1.0, 1)
    results = [instance_result(rollout, steps, config) for rollout, steps in zip(rollouts, rewards, strict=True)]
    assert [result.own for result in results] == [{"sparse": None}] * 2 and math.isnan(summarise(results)["reward_sparse"])
    config, _, rewards = scored(rollouts, sparse, weight=0.0)
    assert [[step.total(config) for step in steps] for steps in rewards] == [[1.0, 1.0], [0.0]]  # without weight, only looked at


@pytest.mark.parametrize("value", [math.nan, math.inf, [1.0], [1.0, -math.inf], "high", [0.5, "high"]])
def test_what_is_no_finite_number_a_step_is_an_error_that_names_function_and_instance(rollouts, value):
    def brevity(rollout):
        return value if rollout.instance.id == "a" else 0.0

    with pytest.raises(InputError, match=r"reward brevity of a rollout of instance a "):
        scored(rollouts, brevity)


def test_a_bug_of_the_function_is_an_error_and_no_outage(rollouts):
    def buggy(rollout):
        return rollout.nothing_like_this

    with pytest.raises(InputError, match=r"reward buggy of a rollout of instance a failed: AttributeError: .*nothing_like_this"):
        scored(rollouts, buggy)


@pytest.mark.parametrize(
    "name", ["no_such_module:brevity", "own_reward:no_such_function", "own_reward:LONGEST", "own_reward", "elsewhere:accuracy"]
)
def test_wrong_names_are_refused_before_anything_is_loaded(monkeypatch, name):
    monkeypatch.chdir(EXAMPLES)
    with pytest.raises(InputError, match=f"rewards names '{name}'"):
        RewardConfig(rewards={name: 1.0})


def test_the_example_runs_and_another_set_of_rewards_does_not_resume_it(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(EXAMPLES)])
    given = ["--config", "own_reward.yaml", "--output_dir", str(tmp_path / "run")]
    assert run(["train", *given]) == 0
    folder, weights = RunFolder(tmp_path / "run"), {"accuracy": 1.0, "tool": 0.2, "brevity": 0.2, "used": 0.1}
    assert folder.config["rewards"] == {"own_reward:brevity": 0.2, "own_reward:used": 0.1}
    for row in folder.metrics():
        lines = folder.read_lines(f"trajectories/step-{row['step']:06d}-rank-0.jsonl")
        steps = [step for line in lines for step in line["steps"]]
        for step in steps:
            assert step["reward"]["brevity"] == 1 - step["completion_tokens"] / 32
            assert step["total"] == pytest.approx(sum(weight * step["reward"][name] for name, weight in weights.items()))
        for name in ("memory/reward_brevity", "rewards/brevity/mean"):
            assert row[name] == pytest.approx(sum(step["reward"]["brevity"] for step in steps) / len(steps), abs=1e-6)
        assert 0 < row["memory/reward_used"] <= 1
    assert [panel.lines[""][1] for panel in own_panels([Variant("", [folder.metrics()], [{}])])] == [
        "memory/reward_brevity", "memory/reward_used",
    ]  # fmt: skip
    summary = folder.read_json("summary.json")
    assert 0 < summary["after"]["reward_brevity"] < 1
    began = folder.config
    same = json.loads(json.dumps(all_options(parse_train_arguments(given))))
    for rewards in ({"own_reward:used": 0.1}, {"own_reward:brevity": 0.3, "own_reward:used": 0.1}):
        with pytest.raises(RunFolderError, match=r"rewards was .* and is"):
            check_same({**same, "rewards": began["rewards"]}, {**same, "rewards": rewards})
    arguments = parse_train_arguments(given, {score_of_step: 0.3})
    assert list(arguments.reward.parts)[-3:] == ["brevity", "used", "score_of_step"]
    assert all_options(arguments)["rewards"] == {**began["rewards"], "test_own_rewards:score_of_step": 0.3}
