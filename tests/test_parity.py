"""Training rollouts, evaluation and the agent in use: the same prompts, completions and memories on the same input."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from memalpha.agent.rollout import Rollout, run_rollouts
from memalpha.cli import run
from memalpha.data.load import load_data
from memalpha.training.build import build_parts
from memalpha.training.config import parse_train_arguments
from memalpha.training.results import rollout_to_json
from memalpha.training.run import build_trainer
from memalpha.types import Completion, Sampling, StopReason
from memalpha.use.agent import LOCAL, MemoryAgent

DATA = {"n": 4, "split": "test"}
OPTIONS = [
    "--config",
    "configs/train/nano.yaml",
    "--warm_start_steps",
    "60",
    "--max_steps",
    "2",
    "--train_options",
    "{n: 4, split: train}",
]
OPTIONS += ["--eval_options", json.dumps(DATA), "--view_tokens", "24"]  # a view that not everything fits into


class Seen(NamedTuple):
    """What happened in one rollout, step by step."""

    prompts: list[str]
    completions: list[str]
    stops: list[str]
    results: list[Any]
    changes: list[Any]
    memory: list[Any]


def seen(row: dict) -> Seen:
    row = json.loads(json.dumps(row))
    steps = row["steps"]
    return Seen(*[[step[name] for step in steps] for name in ("prompt", "completion", "stop", "results", "changes")], row["memory"])


class Replay:
    """Says again what was said, and ends as it ended."""

    def __init__(self, was: Seen) -> None:
        self.rest = list(zip(was.completions, was.stops, strict=True))

    def generate(self, prompts, sampling):
        return [Completion((), text, StopReason(stop)) for text, stop in (self.rest.pop(0) for _ in prompts)]


def used(agent: MemoryAgent, instance) -> Seen:
    steps = [step for chunk in instance.chunks for step in agent.add(chunk.text, chunk.time).steps]
    with agent._store.reading(LOCAL) as (memory, retriever):
        rollout = Rollout(instance, memory, retriever, steps)
    unscored = [type("Unscored", (), {"_asdict": dict})() for _ in instance.chunks]
    return from_zero(seen(rollout_to_json(rollout, unscored, [0.0] * len(instance.chunks))))


def from_zero(found: Seen) -> Seen:
    """A journal counts operations from 1, a memory counts changes from 0."""
    entries = [entry for changes in found.changes for change in changes for entry in change.values() if entry] + found.memory
    for entry in {id(entry): entry for entry in entries}.values():
        entry["created"], entry["updated"] = entry["created"] - 1, entry["updated"] - 1
    return found


@pytest.fixture(scope="module")
def whole_model(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert run(["train", *OPTIONS, "--eval_data", "", "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def adapter(whole_model, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("adapter") / "run"
    start = ["--model", str(whole_model / "adapter"), "--full_finetuning", "false", "--warm_start_steps", "0"]
    assert run(["train", *OPTIONS, *start, "--eval_data", "", "--output_dir", str(folder)]) == 0
    return folder


@pytest.fixture(params=["whole_model", "adapter"])
def trained(request) -> Path:
    return request.getfixturevalue(request.param)


def test_the_three_ways_see_and_do_the_same(trained, whole_model, tmp_path):
    base = whole_model / "adapter"
    policy = ["--model", str(base)]
    policy += [] if trained == whole_model else ["--adapter", str(trained / "adapter"), "--full_finetuning", "false"]
    instances = load_data("toy", DATA, 1)

    # training: the trainer's own rollouts, all in lockstep
    arguments = parse_train_arguments([*OPTIONS, *policy, "--warm_start_steps", "0", "--output_dir", str(tmp_path / "unused")])
    parts = build_parts(arguments)
    trainer = build_trainer(arguments, parts)
    rollouts = trainer.run_rollouts(instances, Sampling(parts.agent.config.max_completion_length))
    rewards = parts.scorer.score(rollouts)
    training = [seen(rollout_to_json(r, reward, [0.0] * len(reward))) for r, reward in zip(rollouts, rewards, strict=True)]

    # evaluation: the command
    options = [*OPTIONS, *policy, "--eval_temperature", "0", "--output_dir", str(tmp_path / "evaluated")]
    assert run(["rollout", *options]) == 0
    lines = (tmp_path / "evaluated" / "held_out" / "rollouts.jsonl").read_text().splitlines()
    evaluation = [seen(json.loads(line)["rollout"]) for line in lines]

    # use: one text after the other
    use = [used(MemoryAgent.load(trained / "adapter", base), instance) for instance in instances]

    assert training == evaluation == use
    assert sum(len(rollout.memory) for rollout in use) >= len(use)  # something was kept
    assert len({tuple(rollout.prompts) for rollout in use}) == len(use)


def test_what_was_sampled_in_training_replays_the_same_in_use(trained, whole_model):
    """The trajectories of a real run, completion by completion."""
    lines = (trained / "trajectories" / "step-000002-rank-0.jsonl").read_text().splitlines()
    instances = {instance.id: instance for instance in load_data("toy", {"n": 4, "split": "train"}, 1)}
    agent = MemoryAgent.load(trained / "adapter", whole_model / "adapter")
    for row in map(json.loads, lines):
        wanted = seen(row)
        instance = instances[row["instance"]]
        assert used(MemoryAgent(agent.step, Replay(wanted)), instance) == wanted
        again = run_rollouts([instance], agent.step, Replay(wanted), Sampling(32))[0]
        assert [record.prompt.messages[-1]["content"] for record in again.steps] == wanted.prompts
