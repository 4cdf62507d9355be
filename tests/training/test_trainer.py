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

from memalpha.generation.hf import HFGenerator
from memalpha.training.trainer import MemoryGRPOTrainer
from memalpha.types import Prompt, Sampling


def test_the_order_of_instances_depends_on_seed_and_epoch_alone(tmp_path):
    made, again = make_trainer(Case(), tmp_path), make_trainer(Case(), tmp_path)
    sampler, resumed = made._get_train_sampler(), again._get_train_sampler()
    orders = []
    for epoch in range(6):
        made.state.epoch = float(epoch)
        orders.append(list(sampler))
        assert sorted(orders[-1]) == sorted([0, 1, 2, 3] * gradient_check.GROUP)
    assert len({tuple(order) for order in orders}) > 1
    again.state.epoch = 5.5  # a run resumed in the middle of epoch 5
    assert list(resumed) == orders[5]


def test_rollouts_are_drawn_with_the_options_and_every_step_with_a_seed_of_its_own(tmp_path):
    made = make_trainer(Case(), tmp_path)
    made.top_p, made.top_k = 0.8, 7
    first = made._sampling(0, 0)
    made._step = 5  # the passes over one batch of rollouts, which a resumed run counts anew
    assert made._sampling(0, 0) == first
    second = made._sampling(1, 0)
    assert (
        replace(first, seed=None)
        == replace(second, seed=None)
        == Sampling(gradient_check.LONGEST, 0.9, 0.8, 7)
    )
    part = made._sampling(0, 1)
    assert (
        None not in (first.seed, second.seed, part.seed)
        and len({first.seed, second.seed, part.seed}) == 3
    )
    assert (
        made.sum_over_ranks([0, 1.5]).dtype == torch.float32
    )  # a part scored on one rank only is added up in one type


def test_generation_through_trl_draws_as_asked_and_is_as_before_afterwards(tmp_path):
    made = make_trainer(Case(generator="trl"), tmp_path)
    draw = torch.Generator().manual_seed(5)
    prompts = [
        Prompt((), tuple(torch.randint(100, 200, (n,), generator=draw).tolist())) for n in (3, 9, 5)
    ]
    options = made.generation_config.to_dict()
    found = made.generator.generate(prompts, Sampling(6))
    expected = HFGenerator(made.model, gradient_check.tokenizer()).generate(prompts, Sampling(6))
    assert [(c.ids, c.text, c.stop) for c in found] == [(c.ids, c.text, c.stop) for c in expected]
    assert made.generation_config.to_dict() == options
    made.generator.finish(Sampling(6))  # alone, there is nobody to wait for


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
    assert logs["rows"] == sum(row is not None for row in made.rows) == len(made.rows) - 4
    written = [len(row.completion_ids) for row in made.rows if row]
    assert logs["completions/mean_length"] == pytest.approx(sum(written) / len(written))
    assert math.isfinite(logs["loss"])


def test_a_group_is_asked_the_same_share_of_the_questions_and_steps_differ():
    instance = make_instance("a", "text", ask=[f"word{i}" for i in range(10)])

    def asked(share, step=0):
        given = {"options": SimpleNamespace(question_share=share), "args": SimpleNamespace(seed=1)}
        return MemoryGRPOTrainer._asked(SimpleNamespace(**given), instance, step).questions

    assert asked(1.0) == instance.questions
    for share, count in ((0.5, 5), (0.45, 5), (0.01, 1), (0.99, 10)):
        assert len(asked(share)) == count and list(asked(share)) == [
            q for q in instance.questions if q in asked(share)
        ]
    drawn = [asked(0.5, step) for step in range(200)]
    times = Counter(question.id for questions in drawn for question in questions)
    assert len(times) == 10 and all(70 <= count <= 130 for count in times.values())
