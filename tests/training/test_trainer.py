"""What the trainer adds around the update: refused options, order of the data, generation through
TRL, and what it logs."""

import math
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import gradient_check
import pytest
import torch
from gradient_check import Case, make_trainer
from rollouts import make_instance, step_reward

from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.types import Sampling


def test_the_order_of_instances_depends_on_seed_and_step_alone(tmp_path):
    made, again = make_trainer(Case(), tmp_path), make_trainer(Case(), tmp_path)
    orders = []
    for epoch in range(6):  # of two steps of two instances
        read = [instance.id for step in (0, 1) for instance in made._instances(2 * epoch + step)]
        orders.append(read[:: gradient_check.GROUP])
        assert read == [name for name in orders[-1] for _ in range(gradient_check.GROUP)]
        assert sorted(orders[-1]) == ["i0", "i1", "i2", "i3"]
    assert len({tuple(order) for order in orders}) > 1
    assert [instance.id for instance in again._instances(11)] == read[2 * gradient_check.GROUP :]


def test_rollouts_are_drawn_with_the_options_and_every_step_with_a_seed_of_its_own(tmp_path):
    made = make_trainer(Case(), tmp_path)
    made.top_p, made.top_k = 0.8, 7
    first, second = made._sampling(0), made._sampling(1)
    assert made._sampling(0) == first
    assert (
        replace(first, seed=None)
        == replace(second, seed=None)
        == Sampling(gradient_check.LONGEST, 0.9, 0.8, 7)
    )
    assert None not in (first.seed, second.seed) and first.seed != second.seed
    assert (
        made.sum_over_ranks([0, 1.5]).dtype == torch.float32
    )  # a part scored on one rank only is added up in one type


def test_groups_without_a_difference_are_counted_without_padding(tmp_path):
    made = make_trainer(Case(padding=4, steps=1), tmp_path)

    def alike(index, rollout, t):
        """The first chunk of every rollout scores the same; other chunks differ."""
        return (
            step_reward(0.5, 0.5, 0.5, 0.5)
            if t == 0
            else gradient_check.pseudo_reward(index, rollout, t)
        )

    made.scorer.score = lambda rollouts: [
        [alike(i, r, t) for t in range(len(r.steps))] for i, r in enumerate(rollouts)
    ]
    made.train()
    logs = made.state.log_history[0]
    assert logs["frac_reward_zero_std"] == pytest.approx(
        2 / (logs["rows"] / gradient_check.GROUP)
    )  # first chunks of two instances
    real = made.rows[:-4]
    assert logs["rows"] == len(real) and all(row.left_out for row in made.rows[-4:])
    written = [len(row.completion_ids) for row in real]
    assert logs["completions/mean_length"] == pytest.approx(sum(written) / len(written))
    assert math.isfinite(logs["loss"])


def test_a_group_is_asked_the_same_share_of_the_questions_and_steps_differ():
    instance = make_instance("a", "text", ask=[f"word{i}" for i in range(10)])

    def asked(share, step=0):
        given = {"options": SimpleNamespace(question_share=share), "args": SimpleNamespace(seed=1)}
        return MemoryGRPOTrainer._with_questions(SimpleNamespace(**given), instance, step).questions

    assert asked(1.0) == instance.questions
    for share, count in ((0.5, 5), (0.45, 5), (0.01, 1), (0.99, 10)):
        assert len(asked(share)) == count and list(asked(share)) == [
            q for q in instance.questions if q in asked(share)
        ]
    drawn = [asked(0.5, step) for step in range(200)]
    times = Counter(question.id for questions in drawn for question in questions)
    assert len(times) == 10 and all(70 <= count <= 130 for count in times.values())
