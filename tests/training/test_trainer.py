"""What the trainer adds around the update: refused options, order of the data, generation through
TRL, and what it logs."""

import threading
from contextlib import nullcontext
from dataclasses import replace
from inspect import isfunction

import pytest
import torch

from memalpha.contrib.credit.evidence import EvidenceCredit
from memalpha.errors import InputError
from memalpha.training.config import RunOptions
from memalpha.training.credit import Credit
from memalpha.training.sampling import DrawPlan, RolloutSampler
from memalpha.types import Sampling
from tests.helpers import gradient_check
from tests.helpers.gradient_check import Case, make_trainer
from tests.helpers.rollouts import make_instance, step_reward


def test_rollouts_are_drawn_with_the_options_and_every_step_with_a_seed_of_its_own(tmp_path):
    made = make_trainer(Case(), tmp_path, trl={"top_p": 0.8, "top_k": 7})
    first, second = made.sampler.sampling(0), made.sampler.sampling(1)
    assert made.sampler.sampling(0) == first
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

    made.scorer.score = lambda rollouts: [  # alike at the first chunk of every rollout alone
        [step_reward(0.5 + t * i, 0.5, 0.5, 0.5) for t in range(len(rollout.steps))]
        for i, rollout in enumerate(rollouts)
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


def test_a_credit_is_called_in_the_order_in_which_its_methods_stand(tmp_path):
    methods = [name for name, value in vars(Credit).items() if isfunction(value)]
    calls = []

    class Watched(EvidenceCredit):
        def __getattribute__(self, name):
            if name in methods:
                calls.append(name)
            return super().__getattribute__(name)

    made = make_trainer(Case(steps=1, credit="evidence"), tmp_path)
    made.scorer.credit = Watched()
    made.train()
    written = [name for name in methods if not name.startswith("_")]
    assert written[:2] == ["check", "reward"]  # before there is a trainer
    assert list(dict.fromkeys(calls)) == written[2:]


def test_a_group_is_asked_the_same_share_of_the_questions_and_steps_differ():
    instance = make_instance("a", "text", ask=[f"word{i}" for i in range(10)])

    def asked(share, step=0):
        plan = DrawPlan(
            8, 8, 1, seed=1, rank=0, ranks=1, sampling=Sampling(8), question_share=share
        )
        sampler = RolloutSampler(None, [instance], None, None, None, plan, nullcontext)
        return sampler.with_questions(instance, step).questions

    assert asked(1.0) == instance.questions
    for share, count in ((0.5, 5), (0.45, 5), (0.01, 1), (0.99, 10)):
        assert len(asked(share)) == count and list(asked(share)) == [
            q for q in instance.questions if q in asked(share)
        ]
    assert len({asked(0.5, step) for step in range(9)}) > 1


TWICE = Case(loss="grpo", iterations=2, steps=2)
DRIFTED = Case(generator="drifted", steps=1)


@pytest.mark.parametrize(
    ("case", "trl"),
    [
        (TWICE, {"delta": 0.5}),
        (TWICE, {"importance_sampling_level": "sequence"}),
        (replace(TWICE, beta=0.5), {"use_bias_correction_kl": False}),
        (DRIFTED, {"off_policy_mask_threshold": 0.0}),
        (DRIFTED, {"vllm_importance_sampling_clip_max": 0.5}),
        (DRIFTED, {"vllm_importance_sampling_clip_min": 1.5}),
        (Case(steps=1), {"top_k": 1}),
        (Case(steps=1), {"top_p": 0.1}),
        (Case(steps=1), {"mask_truncated_completions": True}),
    ],
)
def test_what_is_passed_on_to_the_loss_and_to_the_draw_changes_the_weights(tmp_path, case, trl):
    weights = []
    for name, more in (("plain", {}), ("with", {"trl": trl})):
        made = make_trainer(case, tmp_path / name, **more)
        made.train()
        weights.append({name: value.clone() for name, value in made.model.state_dict().items()})
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


PATIENCE = 30  # seconds


def test_the_next_batch_is_drawn_while_one_is_scored_and_none_beyond_the_last(tmp_path):
    made, steps = make_trainer(Case(steps=2, staleness=1), tmp_path), 2
    drawn_at, read, second_drawn, waited = [], [], threading.Event(), []
    draw, score = made.sampler._draw, made.scorer.score

    def watched(step):
        drawn_at.append((step, made.state.global_step))
        drawn = draw(step)
        read.append({rollout.instance.id for rollout in drawn.rollouts.result()})
        if step == 1:
            second_drawn.set()
        return drawn

    def late(rollouts):
        waited.append(second_drawn.wait(PATIENCE))
        return score(rollouts)

    made.sampler._draw, made.scorer.score = watched, late
    made.train()
    assert drawn_at == [(0, 0), (1, 0)] and waited == [True] * steps
    assert (
        read[0] | read[1] == {"i0", "i1", "i2", "i3"} and not read[0] & read[1]
    )  # an epoch, each instance once
    assert made.state.global_step == steps and not made.sampler._ahead


def test_the_policy_cannot_draw_and_answer_at_once():
    with pytest.raises(InputError, match="reader 'base'"):
        RunOptions(reader="base", staleness=1).check()
