"""The check of a GPU, run in small on the CPU: everything but the device."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import gpu_check
import pytest
import torch

from memalpha.generation import decoding
from memalpha.models.shipped import resolve_adapter
from memalpha.training import precision, trainer
from memalpha.training.config import parse_train_arguments
from memalpha.update import attention, logps, prepare

ROOT = Path(__file__).parents[2]


def rows(*losses):
    step = {
        "grad_norm": 1.0,
        "rows": 10.0,
        "completions/mean_length": 4.0,
        "prompts/mean_length": 6.0,
        "step_time": 2.0,
    }
    return [
        {**step, "step": i + 1, "loss": loss, "time/rollouts": 0.75, "time/scoring": 0.25}
        for i, loss in enumerate(losses)
    ]


def test_it_trains_in_bfloat16_and_writes_what_it_measured(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpu_check.main(["--cpu", "--steps", "2", "--output", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "gpu_check.json").read_text())
    assert found["failures"] == [] and all(well for well, _ in found["checks"].values())
    assert len(found["steps"]) == 2 and all(math.isfinite(row["loss"]) for row in found["steps"])
    assert found["options"]["dtype"] == "bfloat16" and found["options"]["bf16"] == "true"
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (found["before"], found["after"]) == (
        summary["before"]["accuracy"],
        summary["after"]["accuracy"],
    )
    assert f'"after": {found["after"]}' in capsys.readouterr().out


def test_speed_by_hand():
    """Two timed steps of 3 s, 2 s of them update; 10 rows of 4 tokens written and 6 read a step."""
    assert gpu_check.speed(rows(0.1, 0.1, 0.1)) == {
        "seconds_a_step": 3.0,
        "update_seconds_a_step": 2.0,
        "generated_tokens_a_second": 80 / 2.0,
        "trained_tokens_a_second": 200 / 4.0,
    }


@pytest.mark.parametrize(
    ("losses", "after", "named"),
    [
        ((0.1, None), 0.5, "step 2: loss is None"),
        ((0.1,), 0.5, "1 steps were logged, 2 asked for"),
        ((0.1, 0.2), None, "accuracy"),
    ],
)
def test_what_is_not_well_is_named(losses, after, named):
    (said,) = gpu_check.failures(rows(*losses), 2, {"before": 0.5, "after": after})
    assert said.startswith(named)
    assert gpu_check.failures(rows(0.1, 0.0), 2, {"before": 0.0, "after": 1.0}) == []


@pytest.mark.skipif(shutil.which("nvidia-smi") is not None, reason="this machine has an NVIDIA GPU")
def test_the_shell_script_installs_nothing_without_a_gpu(tmp_path):
    done = subprocess.run(
        ["bash", str(ROOT / "scripts/gpu_check.sh")], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gpu_check: no NVIDIA GPU on this machine")


def test_the_options_for_a_gpu_exist():
    options = {
        **gpu_check.GPU_OPTIONS,
        "config": str(ROOT / gpu_check.GPU_OPTIONS["config"]),
        "use_cpu": "true",
    }
    run, _, _, grpo, _ = parse_train_arguments(
        [word for name, value in options.items() for word in (f"--{name}", value)]
    )
    assert (run.dtype, run.train_data, run.eval_options) == (
        "bfloat16",
        "synthetic",
        {"n": 48, "split": "test"},
    )
    assert grpo.bf16 and grpo.per_device_train_batch_size == 64
    run, _, _, grpo, _ = parse_train_arguments(
        [
            word
            for name, value in (options | gpu_check.FLOAT16).items()
            for word in (f"--{name}", value)
        ]
    )
    assert run.dtype == "float16" and grpo.fp16 and not grpo.bf16
    assert resolve_adapter(run.adapter).is_dir()


def test_each_planted_fault_fails_its_check_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    options = {**gpu_check.CPU_OPTIONS, "output_dir": str(tmp_path)}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    drawn, layout, kept = (
        decoding.draw_tokens,
        attention.group_layout,
        [{"sampling/sampling_logp_difference/mean": 0.1}],
    )

    def square(start, prefix, lengths, device):
        torch.ones(sum(lengths), sum(lengths), dtype=torch.bool, device=device)
        return layout(start, prefix, lengths, device)

    def waiting(logits, sampling, uniforms, **options):
        assert logits.amax().item() >= logits.amin().item()
        return drawn(logits, sampling, uniforms, **options)

    faults = {
        "B2": (logps, "frozen_head", lambda model: None),
        "B3": (attention, "group_layout", square),
        "B4": (precision, "check_types", lambda dtype, training: None),
        "B7": (decoding, "draw_tokens", waiting),
        "B5": (trainer, "finite_gradients", lambda model: True),
        "B6": (prepare, "with_plain_products", lambda *tensors, **kind: False),
    }
    for name, fault in {"B1": None, **faults}.items():
        with monkeypatch.context() as planted:
            if fault:
                planted.setattr(*fault)
            found = gpu_check.checks(words, "cpu", kept if fault else [{}])
        assert [check for check, (well, _) in found.items() if not well] == [name]
    assert list(found) == [f"B{number}" for number in range(1, 8)]
