"""Credit: faults in what rows are compared with, which the gradient check sees; which questions are
asked; the option."""

import random
import shutil
from statistics import pvariance

import pytest
import torch
from gradient_check import Case, check
from runs_of_nano import SHORT, assert_same_end, train, untimed_metrics

from memalpha.errors import InputError
from memalpha.record.folder import RunFolder
from memalpha.training import asking, noise
from memalpha.training.config import parse_train_arguments
from memalpha.training.credit import TrajectoryCredit
from memalpha.training.schedule import of_each_kind

FOUND = 1e-2


# ------------------------------------------------------------------------------------------------
# planted faults; test_gradient.py finds these cases exact without them
def by_step(credit, row, group_size):
    return (row.group_index, row.chunk_index)


def leave_as_they_are(rows, scale):
    """Leaves rows compared, of which a rollout of many turns has many."""


@pytest.mark.parametrize(
    ("case", "place"),
    [
        (Case(credit="trajectory", steps=1), (TrajectoryCredit, "group_key", by_step)),
        (
            Case(credit="trajectory", role="asker", steps=1),
            (asking, "compare_rollouts", leave_as_they_are),
        ),
    ],
)
def test_the_gradient_check_sees_planted_faults(monkeypatch, case, place):
    if place:
        monkeypatch.setattr(*place)
    assert max(check(case).errors) > FOUND


# ------------------------------------------------------------------------------------------------
# the variance of the gradient
def test_a_run_from_same_states_is_resumed_bit_for_bit_and_logs_the_variance(tmp_path):
    options = [*SHORT, "--credit", "same_state"]
    options += ["--gradient_variance", "true"]
    assert train(tmp_path / "whole", *options) == 0
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for later in (3, 4):
        shutil.rmtree(tmp_path / "resumed" / f"checkpoint-{later}")
    assert train(tmp_path / "resumed", *options, "--resume") == 0
    assert_same_end(tmp_path / "resumed", tmp_path / "whole")
    for row in untimed_metrics(tmp_path / "whole"):
        assert row["gradient/norm_squared"] == pytest.approx(row["grad_norm"] ** 2, rel=1e-3)
        assert row["gradient/variance"] > 0


def test_variance_by_hand():
    first, whole = torch.tensor([1.0, 2.0]), torch.tensor([4.0, 1.0])  # halves (1, 2) and (3, -1)
    assert list(noise.variance(first, whole).values()) == [4 + 9, 16 + 1]


# ------------------------------------------------------------------------------------------------
# questions of each kind
KINDS = ["single"] * 12 + ["latest"] * 4 + ["removed"] * 2 + ["count", "time"]


def drawn(count, seed, kinds=KINDS):
    return of_each_kind(kinds, count, random.Random(seed))


def test_a_share_of_each_kind_is_asked_and_one_at_least():
    for seed in range(20):
        places = drawn(10, seed)
        assert places == sorted(set(places))
        counts = [[KINDS[place] for place in places].count(kind) for kind in dict.fromkeys(KINDS)]
        assert counts == [5, 2, 1, 1, 1] or counts == [6, 1, 1, 1, 1]
        assert len({KINDS[place] for place in drawn(5, seed)}) == 5
        assert len({KINDS[place] for place in drawn(3, seed)}) == 3
    assert drawn(20, 0) == list(range(20))
    seen = [place for seed in range(400) for place in drawn(4, seed, ["single"] * 8)]
    assert all(160 < seen.count(place) < 240 for place in range(8))  # each of one kind alike


def test_the_mean_of_a_share_of_each_kind_varies_less_than_that_of_any_questions():
    """Kinds that are answered from never to always, as in the dialogues of the quickstart."""
    right = [1] * 11 + [0] + [1, 1, 0, 0] + [0, 0] + [0, 1]
    means, simple = [], []
    for seed in range(2000):
        means.append(sum(right[place] for place in drawn(8, seed)) / 8)
        simple.append(sum(random.Random(seed).sample(right, 8)) / 8)
    assert pvariance(means) < 0.5 * pvariance(simple)


# ------------------------------------------------------------------------------------------------
# the option
def test_the_option_of_before_names_what_took_its_place(tmp_path, capsys):
    with pytest.raises(InputError, match="no option 'grouping' any more") as caught:
        parse_train_arguments(["--use_cpu", "true", "--grouping", "step"])
    assert "credit: trajectory for grouping: instance" in str(caught.value)
    options = ["--warm_start_steps", "0", "--max_steps", "1", *SHORT]
    assert train(tmp_path / "run", *options) == 0
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().replace("credit: step", "grouping: step"))
    assert RunFolder(tmp_path / "run").config["grouping"] == "step"
    assert train(tmp_path / "run", *options, "--resume") == 1
    assert "grouping: step" in (said := capsys.readouterr().err) and "credit: step for" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gradient_variance": "true", "per_device_train_batch_size": 24}, "3 instances"),
        ({"graded_accuracy": "true"}, "reader recall"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    words = [f"--{name}={value}" for name, value in {"use_cpu": "true", **options}.items()]
    with pytest.raises(InputError, match=message):
        parse_train_arguments(words)
