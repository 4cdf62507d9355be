"""What is not the model's fault: numbers that are not finite, a full disk, no memory. Each in a
real run of the nano policy."""

import json
import math
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from memalpha.errors import TrainingAborted
from memalpha.training.checkpoints import find_damage, publish
from memalpha.training.trainer import MemoryGRPOTrainer, explain_out_of_memory, finite_gradients
from tests.helpers.runs_of_nano import SHORT, train, untimed_metrics


def optimizer_steps(folder, step):
    state = torch.load(folder / f"checkpoint-{step}" / "optimizer.pt", weights_only=True)["state"]
    return {float(entry["step"]) for entry in state.values()}


def spoil(monkeypatch, what, *steps):
    """Make the loss NaN, or one element of one gradient infinite, in these steps."""
    name = "compute_loss" if what == "loss" else "_keep_step"
    real = getattr(MemoryGRPOTrainer, name)

    def spoilt(trainer, model, *args, **kwargs):
        bad = trainer.state.global_step + 1 in steps
        if bad and what == "gradient":
            next(p for p in model.parameters() if p.grad is not None).grad.view(-1)[7] = torch.inf
        result = real(trainer, model, *args, **kwargs)
        return result * torch.nan if bad and what == "loss" else result

    monkeypatch.setattr(MemoryGRPOTrainer, name, spoilt)


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_step_that_is_not_finite_changes_no_weight_and_is_counted(tmp_path, monkeypatch, what):
    spoil(monkeypatch, what, 2)
    assert train(tmp_path / "run", *SHORT) == 0
    rows = untimed_metrics(tmp_path / "run")
    assert [row["skipped"] for row in rows] == [0, 1, 0, 0]
    assert rows[1]["loss"] is None and all(row["loss"] is not None for row in (rows[0], *rows[2:]))
    weights = [
        (tmp_path / "run" / f"checkpoint-{step}" / "model.safetensors").read_bytes()
        for step in (1, 2, 3)
    ]
    assert weights[0] == weights[1] != weights[2]
    assert [optimizer_steps(tmp_path / "run", step) for step in (1, 2, 3, 4)] == [
        {1.0},
        {1.0},
        {2.0},
        {3.0},
    ]


def test_too_many_such_steps_in_a_row_stop_the_run_with_a_clear_message(
    tmp_path, monkeypatch, capsys
):
    spoil(monkeypatch, "loss", 2, 3, 4)
    assert train(tmp_path / "run", *SHORT, "--max_skipped_steps", "2") == 1
    said = capsys.readouterr().err
    assert (
        "step 4: loss or gradient is not finite, 3 steps in a row (max_skipped_steps = 2)" in said
    )
    assert "learning_rate" in said


def test_finite_gradients_looks_at_every_element():
    model = torch.nn.Linear(3, 2)
    assert finite_gradients(model)  # none at all
    model.weight.grad = torch.full((2, 3), 3e38)  # their sum would overflow
    assert finite_gradients(model)
    for bad in (torch.nan, torch.inf, -torch.inf):
        model.bias.grad = torch.tensor([0.0, bad])
        assert not finite_gradients(model)
    for norm, finite in (
        (0.0, True),
        (2.5, True),
        (torch.tensor(-1.0), False),
        (math.inf, False),
        (math.nan, False),
    ):
        assert (
            finite_gradients(SimpleNamespace(get_global_grad_norm=lambda norm=norm: norm)) is finite
        )


def test_a_full_disk_stops_the_run_and_the_last_checkpoint_stays(make_disk, capsys):
    run = make_disk("14m") / "run"  # room for two checkpoints
    assert train(run, *SHORT) == 1
    said = capsys.readouterr().err
    assert "checkpoint-3 could not be saved, with 0 MiB free" in said
    assert "kept: checkpoint-1, checkpoint-2" in said and "--resume" in said
    assert sorted(path.name for path in run.glob("*check*")) == ["checkpoint-1", "checkpoint-2"]
    assert find_damage(run / "checkpoint-2") == "" and not (run / ".unfinished").exists()
    assert (
        train(run, *SHORT, "--resume", "--save_total_limit", "1") == 1
    )  # both old ones are still there
    shutil.rmtree(run / "checkpoint-1")
    assert train(run, *SHORT, "--resume", "--save_total_limit", "1") == 0
    assert json.loads((run / "summary.json").read_text())["steps"] == 4
    assert [path.name for path in run.glob("checkpoint-*")] == ["checkpoint-4"]


@pytest.mark.parametrize(
    "error",
    [MemoryError("no"), torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("shape")],
)
def test_other_errors_are_not_taken_for_memory(error):
    expected, named = (
        (RuntimeError, "shape")
        if str(error) == "shape"
        else (TrainingAborted, "lower rows_per_forward, which is 32")
    )
    with pytest.raises(expected, match=named), explain_out_of_memory(32):
        raise error


def test_a_checkpoint_is_on_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    (tmp_path / "new" / "deep").mkdir(parents=True)
    (tmp_path / "new" / "deep" / "weights").write_text("new")
    (tmp_path / "new" / "trainer_state.json").write_text("{}")
    synced = []
    monkeypatch.setattr(
        os,
        "fsync",
        lambda descriptor: synced.append(Path(f"/proc/self/fd/{descriptor}").readlink()),
    )
    publish(tmp_path / "new", tmp_path / "checkpoint-1")
    files = ("deep/weights", "trainer_state.json", "memalpha_checkpoint.json")
    written = {"new", "new/deep", *(f"new/{name}" for name in files)}
    assert {str(path.relative_to(tmp_path)) for path in synced[:-1]} == written
    assert synced[-1] == tmp_path  # the new name
    assert find_damage(tmp_path / "checkpoint-1") == "" and not (tmp_path / "new").exists()
    (tmp_path / "checkpoint-1" / "deep" / "weights").write_text("old")
    assert "deep/weights is missing or was changed" in find_damage(tmp_path / "checkpoint-1")
