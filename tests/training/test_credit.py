"""Credit: faults in what rows are compared with, which the gradient check sees; which questions are
asked; the option."""

import random
from statistics import pvariance

import pytest

from memalpha.errors import InputError
from memalpha.record.folder import RunFolder
from memalpha.training.config import parse_train_arguments
from memalpha.training.credit import TrajectoryCredit
from memalpha.training.schedule import of_each_kind
from tests.helpers.gradient_check import Case, check
from tests.helpers.runs_of_nano import SHORT, train

FOUND = 1e-2


# ------------------------------------------------------------------------------------------------
# planted faults; test_gradient.py finds these cases exact without them
def by_step(credit, row, group_size):
    return (row.group_index, row.chunk_index)


def test_the_gradient_check_sees_a_planted_fault(monkeypatch):
    monkeypatch.setattr(TrajectoryCredit, "group_key", by_step)
    assert max(check(Case(credit="trajectory", steps=1)).errors) > FOUND


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
        ({"graded_accuracy": "true"}, "reader recall"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    words = [f"--{name}={value}" for name, value in {"use_cpu": "true", **options}.items()]
    with pytest.raises(InputError, match=message):
        parse_train_arguments(words)
