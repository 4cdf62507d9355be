"""Runs of configs/train/nano.yaml, cut short: options, launchers, and the comparison of two run
folders."""

import json
import os
import subprocess
import sys
from pathlib import Path

from memalpha.cli import run

ROOT = Path(__file__).parents[2]
OPTIONS = [  # two steps an epoch: step 3 begins the second
    *"--config configs/train/nano.yaml --warm_start_steps 40 --max_steps 4 --save_steps 1".split(),
    *"--save_total_limit 10 --eval_instances 4".split(),
    *("--train_options", "{n: 8, split: train}"),
]
SHORT = ["--eval_data", ""]


def processes_environment() -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths}


def launch(*command: str, timeout: float = 300) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env=processes_environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def two(*command: str, timeout: float = 240) -> subprocess.CompletedProcess:
    return launch(
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        "2",
        *command,
        timeout=timeout,
    )


def launched(*command: str) -> subprocess.CompletedProcess:
    """A verb in two processes, by ``memalpha launch``."""
    return launch("-m", "memalpha", "launch", "--cpu", "--num_processes", "2", *command)


def train(folder: Path, *more: str) -> int:
    return run(["train", *OPTIONS, "--output_dir", str(folder), *more])


def untimed_metrics(folder: Path) -> list[dict]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [
        {
            name: value
            for name, value in row.items()
            if name != "step_time" and not name.startswith("time/")
        }
        for row in rows
    ]


def assert_same_end(folder: Path, whole: Path, steps: int = 4) -> None:
    for path in sorted((whole / f"checkpoint-{steps}").iterdir()):
        if path.suffix in (".safetensors", ".pt", ".pth"):
            assert (folder / f"checkpoint-{steps}" / path.name).read_bytes() == path.read_bytes(), (
                path.name
            )
    names = [path.name for path in sorted((whole / "trajectories").iterdir())]
    assert names == [path.name for path in sorted((folder / "trajectories").iterdir())]
    for name in names:
        assert (folder / "trajectories" / name).read_bytes() == (
            whole / "trajectories" / name
        ).read_bytes(), name
    assert untimed_metrics(folder) == untimed_metrics(whole)
    first, second = (json.loads((path / "summary.json").read_text()) for path in (whole, folder))
    assert all(
        first[key] == second[key] for key in ("before", "after", "delta", "steps") if key in first
    )
