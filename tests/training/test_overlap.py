"""Scoring in the background, and batches drawn ahead; the gradient of both is in
test_gradient.py."""

import threading

import pytest
from gradient_check import Case, make_trainer

from memalpha.errors import InputError
from memalpha.training.config import RunOptions

PATIENCE = 30  # seconds


def overlapping(folder, case, **options):
    made = make_trainer(case, folder)
    made.options = RunOptions(rows_per_forward=3, **options)
    return made


def test_the_next_batch_is_drawn_while_one_is_scored_and_none_beyond_the_last(tmp_path):
    made, steps = overlapping(tmp_path, Case(steps=2), staleness=1), 2
    drawn_at, read, second_drawn, waited = [], [], threading.Event(), []
    draw, score = made._draw, made.scorer.score

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

    made._draw, made.scorer.score = watched, late
    made.train()
    assert drawn_at == [(0, 0), (1, 0)] and waited == [True] * steps
    assert (
        read[0] | read[1] == {"i0", "i1", "i2", "i3"} and not read[0] & read[1]
    )  # an epoch, each instance once
    assert made.state.global_step == steps and not made._drawn


def test_an_error_of_the_background_is_raised_by_the_training(tmp_path):
    made = overlapping(tmp_path, Case(steps=1), staleness=1)

    def wrong(rollouts):
        raise InputError("the reader's key is wrong")

    made.scorer.score = wrong
    with pytest.raises(InputError, match="key is wrong"):
        made.train()


def test_the_policy_cannot_draw_and_answer_at_once():
    with pytest.raises(InputError, match="reader 'base'"):
        RunOptions(reader="base", staleness=1).check()
