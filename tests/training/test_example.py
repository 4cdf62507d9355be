"""The examples of a reward, and of a schema and a tool of one's own, run where they stand."""

from pathlib import Path

import pytest

from memalpha.cli import run
from memalpha.errors import RunFolderError
from memalpha.measure.site import panels_of
from memalpha.record.folder import RunFolder
from memalpha.training.config import parse_train_arguments
from memalpha.training.run import all_options


def test_the_example_trains_and_other_rewards_do_not_resume_it(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2] / "examples")
    given = ["--config", "own_reward.yaml", "--output_dir", str(tmp_path / "run")]
    given += ["--schema", "own_schema.yaml"]
    assert run(["train", *given]) == 0
    folder, weights = (
        RunFolder(tmp_path / "run"),
        {"accuracy": 1.0, "tool": 0.2, "brevity": 0.2, "used": 0.1},
    )
    for row in folder.metrics():
        lines = list(folder.read_lines(f"trajectories/step-{row['step']:06d}-rank-0.jsonl"))
        steps = [step for line in lines for step in line["steps"]]
        shown = "\nlink a | b (Note for two people that they know each other.)"
        assert steps and all(shown in step["system"] for step in lines)
        for step in steps:
            assert step["reward"]["brevity"] == 1 - step["completion_tokens"] / 32
            assert step["total"] == pytest.approx(
                sum(weight * step["reward"][name] for name, weight in weights.items())
            )
        mean = pytest.approx(
            sum(step["reward"]["brevity"] for step in steps) / len(steps), abs=1e-6
        )
        assert row["rewards/brevity/mean"] == mean
    parts = panels_of({"": [folder.metrics()]})["other parts of the reward"]
    assert {"brevity", "used"} <= set(parts)
    assert 0 <= folder.read_json("summary.json")["after"]["reward_brevity"] < 1
    with pytest.raises(
        RunFolderError, match=r"rewards was .*'own_reward:used': 0.1} and is .*'builtins:len': 0.3}"
    ):
        folder.check_same(
            all_options(parse_train_arguments(given, {len: 0.3})), folder.read_json("inputs.json")
        )
