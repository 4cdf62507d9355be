"""What ``report_to`` sends elsewhere is what ``metrics.jsonl`` holds. TensorBoard is read back; W&B and Trackio are not tested."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from memalpha.cli import run
from memalpha.runs import RunFolder

NANO = ["train", "--config", "configs/train/nano.yaml", "--warm_start_steps", "0", "--max_steps", "2", "--eval_data", ""]
SMALL = ["--train_options", "{n: 8, split: train}", "--per_device_train_batch_size", "8", "--save_strategy", "no"]


def test_tensorboard_holds_the_metrics(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: pip install -e '.[dev]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = tmp_path / "run"
    assert run([*NANO, *SMALL, "--output_dir", str(folder), "--report_to", "tensorboard"]) == 0
    (events,) = folder.rglob("events.out.tfevents.*")
    found = EventAccumulator(str(events))
    found.Reload()
    rows = RunFolder(folder).metrics()
    assert [row["step"] for row in rows] == [1, 2]
    for key in ("reward", "loss", "entropy", "rewards/accuracy/mean", "memory/tokens", "memory/calls_per_chunk", "time/rollouts"):
        scalars = found.Scalars(f"train/{key}")
        assert [scalar.step for scalar in scalars] == [1, 2], key
        assert [scalar.value for scalar in scalars] == pytest.approx([row[key] for row in rows], rel=1e-6), key


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_reporter_that_is_not_installed_is_one_clear_message(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if find_spec(name):
        pytest.skip(f"{name} is installed")
    assert run([*NANO, *SMALL, "--output_dir", str(tmp_path / "run"), "--report_to", name]) == 1
    said = capsys.readouterr().err
    assert f"report_to names {name}, which is not installed" in said
    assert f"pip install {name}" in said
    assert not (tmp_path / "run").exists()
