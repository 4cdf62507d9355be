"""scripts/gradient_variance.py: what it logs, also after a resume; test_gradient.py holds the variance
to that of the loss by hand."""

import shutil

import pytest
import torch
from gradient_variance import VarianceTrainer, variance

from memalpha.errors import InputError
from memalpha.training.config import parse_train_arguments
from memalpha.training.run import train
from tests.helpers.runs_of_nano import OPTIONS, SHORT, assert_same_end, untimed_metrics


def measured(folder, *more):
    words = [*OPTIONS, *SHORT, "--output_dir", str(folder), *more]
    return train(parse_train_arguments(words), trainer_class=VarianceTrainer)


def test_a_run_is_resumed_bit_for_bit_and_logs_the_variance(tmp_path):
    options = ["--credit", "same_state"]
    measured(tmp_path / "whole", *options)
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for later in (3, 4):
        shutil.rmtree(tmp_path / "resumed" / f"checkpoint-{later}")
    measured(tmp_path / "resumed", *options, "--resume")
    assert_same_end(tmp_path / "resumed", tmp_path / "whole")
    for row in untimed_metrics(tmp_path / "whole"):
        assert row["gradient/norm_squared"] == pytest.approx(row["grad_norm"] ** 2, rel=1e-3)
        assert row["gradient/variance"] > 0


def test_a_step_of_three_instances_has_no_halves(tmp_path):
    with pytest.raises(InputError, match="3 instances"):
        measured(tmp_path, "--warm_start_steps", "0", "--per_device_train_batch_size", "24")


def test_variance_by_hand():
    first, whole = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 1.0])  # halves (1, 2) and (3, -1)
    assert list(variance(first, whole).values()) == [4 + 9, 16 + 1]
