"""GRPO teaches what the demonstrations do not, only through its advantages: a run of
configs/train/nano.yaml and its control."""

import json
from pathlib import Path

import pytest

from memalpha.cli import run
from memalpha.data.toy import THINGS

CONFIG = str(Path(__file__).parents[2] / "configs" / "train" / "nano.yaml")


def train(folder, *options):
    assert run(["train", "--config", CONFIG, "--output_dir", str(folder), *options]) == 0
    return json.loads((folder / "summary.json").read_text())


def share_of_things(folder, name):
    """Share of things among all words that the held-out rollouts put into memory; 0 if they put
    none."""
    rollouts = [
        json.loads(line)["rollout"]
        for line in (folder / "held_out" / f"{name}.jsonl").read_text().splitlines()
    ]
    results = [
        result for rollout in rollouts for step in rollout["steps"] for result in step["results"]
    ]
    words = [
        word
        for result in results
        if result["code"] == "applied"
        for word in result["operation"]["content"].split()
    ]
    return sum(word in THINGS for word in words) / max(len(words), 1)


@pytest.mark.timeout(240)
def test_held_out_accuracy_rises_with_the_reward_and_not_with_shuffled_advantages(tmp_path):
    learned = train(tmp_path / "learned")
    control = train(tmp_path / "control", "--shuffle_advantages", "true")
    assert control["before"] == learned["before"]  # the same start, the same held-out instances
    assert learned["delta"]["n"] == 64
    assert learned["delta"]["accuracy"] > max(
        0.1, 4 * learned["delta"]["stderr"]
    )  # seeds 1, 2, 3: .18, .14, .15, all ± .02
    assert control["delta"]["accuracy"] < min(
        0.05, 2 * control["delta"]["stderr"]
    )  # seeds 1, 2, 3: -.09, -.10, .03
    assert learned["after"]["reward"] > learned["before"]["reward"] > control["after"]["reward"]
    start = share_of_things(
        tmp_path / "learned", "before"
    )  # demonstrations keep things and noise alike
    assert 0.4 < start < 0.6
    assert (
        share_of_things(tmp_path / "learned", "after") > start + 0.1
    )  # seeds 1, 2, 3: from .55, .53, .49 to .76, .75, .75
    assert (
        share_of_things(tmp_path / "control", "after") < start + 0.05
    )  # seeds 1, 3: 0 (nothing is kept any more), .40
