"""Importance weights against TRL's own lines over padded rows; statistics against numbers by hand."""

import inspect
import math
import textwrap
from types import SimpleNamespace

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence
from trl import GRPOTrainer

from memalpha.errors import InputError
from memalpha.training.config import GRPOOptions
from memalpha.training.importance import gap_statistics, importance_weights
from tests.helpers.gradient_check import Case, make_trainer

MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def weights_of_trl(old, sampled, mask, mode, least, most):
    """Run the lines of TRL that make its ratio, on (B, T) tensors; (B, T) or (B, 1)."""
    source = inspect.getsource(GRPOTrainer._generate_and_score_completions)
    start = source.index("                mask = completion_mask if tool_mask is None")
    end = source.index("            # Compute the per-token log probabilities for the reference")
    trainer = SimpleNamespace(
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=least,
        vllm_importance_sampling_clip_max=most,
    )
    names = {
        "self": trainer,
        "torch": torch,
        "math": math,
        "completion_mask": mask,
        "tool_mask": None,
        "old_per_token_logps": old,
        "sampling_per_token_logps": sampled,
    }
    exec(textwrap.dedent(source[start:end]), names)
    return names["vllm_importance_sampling_ratio"]


@pytest.mark.parametrize("limits", [(None, 2.0), (0.5, 2.0), (0.8, 1.25)])
@pytest.mark.parametrize("mode", MODES)
def test_weights_of_unpadded_rows_are_those_of_trl(mode, limits):
    draw = torch.Generator().manual_seed(1)
    old = [torch.randn(n, generator=draw) - 3 for n in (1, 7, 4, 12, 2, 3)]
    sampled = [row + 0.4 * torch.randn(len(row), generator=draw) for row in old]
    old[5], sampled[5] = sampled[5], sampled[5]  # a ratio of 1
    mask = pad_sequence([torch.ones(len(row)) for row in old], batch_first=True)
    padded = [pad_sequence(rows, batch_first=True) for rows in (old, sampled)]
    expected = weights_of_trl(*padded, mask, mode, *limits).expand_as(mask)
    found = [
        importance_weights(trained - drawn, mode, *limits)
        for trained, drawn in zip(old, sampled, strict=True)
    ]
    assert len({round(float(weight), 6) for row in found for weight in row}) > 2
    for row, of_trl in zip(found, expected, strict=True):
        torch.testing.assert_close(row, of_trl[: len(row)])


def test_statistics_by_hand():
    gaps = [0.0] * 98 + [math.log(2), -math.log(4)]
    found = gap_statistics(torch.tensor(gaps))
    k3 = (2 - 1 - math.log(2)) + (0.25 - 1 + math.log(4))  # of the two; the others have 0
    assert list(found.values()) == pytest.approx(
        [3 * math.log(2) / 100, math.log(2), math.log(4), k3 / 100]
    )
    assert all(math.isnan(value) for value in gap_statistics(torch.zeros(0)).values())


def test_k3_estimates_the_kl_of_sampled_to_trained():
    sampled, trained = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.3, 0.2])
    kl = float((sampled * (sampled / trained).log()).sum())
    drawn = torch.tensor([0] * 7 + [1] * 2 + [2])  # each as often as it is likely
    found = gap_statistics((trained / sampled).log()[drawn])
    assert found["sampling/kl"] == pytest.approx(kl, rel=1e-5)


@pytest.mark.parametrize("correction", [True, False])
def test_each_step_records_how_far_apart_they_are_whether_or_not_that_is_corrected(
    tmp_path, correction
):
    options = {"vllm_importance_sampling_correction": correction}
    case = Case(generator="drifted", correction="token_mask", padding=4)
    made = make_trainer(case, tmp_path, **options)
    made.train()
    for row in made.rows[:-4]:
        assert (row.weight is not None) is correction
    apart = [
        (row.old - torch.tensor(row.sampled)).tolist() for row in made.rows if not row.left_out
    ]
    gaps = torch.tensor([gap for row in apart for gap in row])
    logs = made.state.log_history[1]
    for name, value in gap_statistics(gaps).items():
        assert logs[name] == pytest.approx(value, rel=1e-4)
    assert ("sampling/importance_sampling_ratio/mean" in logs) is correction
    if correction:
        masked = (gaps.exp() > 2).double().mean().item()
        assert logs["sampling/masked"] == pytest.approx(masked) and masked > 0


def test_a_mode_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="vllm_importance_sampling_mode"):
        GRPOOptions(vllm_importance_sampling_mode="sequence")
