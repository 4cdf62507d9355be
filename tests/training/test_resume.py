"""The training command: checkpoints, an exact resume, refusals, two processes."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OPTIONS = ["--config", "configs/train/nano.yaml", "--warm_start_steps", "10", "--max_steps", "4", "--save_steps", "1"]
OPTIONS += ["--save_total_limit", "10", "--eval_instances", "4"]


def launch(*command: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    return subprocess.run([sys.executable, "-m", *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)


def train(folder: Path, *more: str) -> subprocess.CompletedProcess:
    return launch("accelerate.commands.launch", "-m", "memalpha", "train", *OPTIONS, "--output_dir", str(folder), *more)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("train") / "run"
    done = train(folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def test_every_checkpoint_is_there_with_safetensors(whole_run):
    for step in (1, 2, 3, 4):
        assert (whole_run / f"checkpoint-{step}" / "model.safetensors").stat().st_size > 100_000
    assert [row["step"] for row in map(json.loads, (whole_run / "metrics.jsonl").read_text().splitlines())] == [1, 2, 3, 4]


def test_a_resumed_run_ends_bitwise_where_the_whole_run_ended(whole_run, tmp_path):
    folder = tmp_path / "resumed"
    shutil.copytree(whole_run, folder)
    for name in ("checkpoint-3", "checkpoint-4", "adapter"):
        shutil.rmtree(folder / name)
    (folder / "summary.json").unlink()
    done = train(folder, "--resume")
    assert done.returncode == 0, done.stderr[-2000:]
    for name in ("model.safetensors", "optimizer.pt"):
        assert (folder / "checkpoint-4" / name).read_bytes() == (whole_run / "checkpoint-4" / name).read_bytes()
    for name in sorted(path.name for path in (whole_run / "trajectories").iterdir()):
        assert (folder / "trajectories" / name).read_bytes() == (whole_run / "trajectories" / name).read_bytes()
    first, second = (json.loads((run / "summary.json").read_text()) for run in (whole_run, folder))
    assert {key: second[key] for key in ("before", "after", "delta", "steps")} == {
        key: first[key] for key in ("before", "after", "delta", "steps")
    }


def test_an_existing_run_is_left_alone(whole_run):
    before = (whole_run / "summary.json").read_bytes()
    done = train(whole_run)
    assert done.returncode == 1
    assert "exists already" in done.stderr and "--overwrite or --resume" in done.stderr
    assert (whole_run / "summary.json").read_bytes() == before


def test_two_processes_are_two(tmp_path):
    folder = tmp_path / "two"
    command = ["torch.distributed.run", "--standalone", "--nproc_per_node", "2", "-m", "memalpha", "train", *OPTIONS]
    done = launch(*command, "--max_steps", "1", "--output_dir", str(folder))
    assert (folder / "summary.json").is_file(), done.stderr[-2000:]  # gloo may abort at exit, after all work is done
    assert json.loads((folder / "environment.json").read_text())["world_size"] == 2
    ranks = sorted(path.name for path in (folder / "trajectories").iterdir())
    assert ranks == ["step-000001-rank-0.jsonl", "step-000001-rank-1.jsonl"]
    assert json.loads((folder / "summary.json").read_text())["after"]["n"] == 4
