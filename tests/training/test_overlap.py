"""Scoring in the background, and batches drawn ahead; the gradient of both is in
test_gradient.py."""

import threading

import gradient_check
import pytest
from gradient_check import GROUP, Case, make_trainer, pseudo_reward

from memalpha.errors import InputError
from memalpha.training.config import RunOptions
from memalpha.training.overlap import parts_of

PATIENCE = 30  # seconds


def overlapping(folder, case, **options):
    made = make_trainer(case, folder)
    made.options = RunOptions(rows_per_forward=3, **options)
    return made


class Watched:
    """A generator that calls ``before`` with the number of the call."""

    def __init__(self, generator, before):
        self.generator, self.before, self.calls = generator, before, 0
        self.logprobs = generator.logprobs

    def generate(self, prompts, sampling):
        self.calls += 1
        self.before(self.calls)
        return self.generator.generate(prompts, sampling)


@pytest.mark.parametrize("groups", range(1, 9))
@pytest.mark.parametrize("parts", range(1, 6))
def test_parts_are_whole_groups_and_nearly_equal(groups, parts):
    slices = parts_of(groups * GROUP, GROUP, parts)
    assert [i for where in slices for i in range(groups * GROUP)[where]] == list(
        range(groups * GROUP)
    )
    sizes = [where.stop - where.start for where in slices]
    assert (
        len(sizes) == min(groups, parts)
        and max(sizes) - min(sizes) <= GROUP
        and not any(size % GROUP for size in sizes)
    )


def test_a_part_is_scored_while_the_next_is_drawn(tmp_path):
    made, begun, waited = (
        overlapping(tmp_path, Case(steps=1), scoring_parts=2),
        threading.Event(),
        [],
    )
    score = made.scorer.score
    made.scorer.score = lambda rollouts: begun.set() or score(rollouts)
    longest = max(gradient_check.CHUNKS)

    def before(call):
        if call == longest + 1:  # every call of the first part is over
            waited.append(begun.wait(PATIENCE))

    made.generator = Watched(made.generator, before)
    made._get_train_sampler = lambda *_: (
        [3] * GROUP + [0] * GROUP
    )  # the longest instance, then the shortest
    seen = []
    made.on_rollouts = lambda *found: seen.append(found)
    made.train()
    ((rollouts, rows, rewards),) = seen
    assert waited == [True]
    assert [r.instance.id for r in rollouts] == ["i3"] * GROUP + ["i0"] * GROUP
    by_hand = [
        [pseudo_reward(i % GROUP, rollout, t) for t in range(len(rollout.steps))]
        for i, rollout in enumerate(rollouts)
    ]
    assert repr(rewards) == repr(by_hand)  # NaN is not equal to itself
    assert len(rows) == sum(len(rollout.steps) for rollout in rollouts)


def test_the_next_batch_is_drawn_while_one_is_scored_and_none_beyond_the_last(tmp_path):
    made, steps = overlapping(tmp_path, Case(steps=2), staleness=1), 2
    drawn_at, read, second_drawn, waited = [], [], threading.Event(), []
    draw, score = made._draw, made.scorer.score

    def watched(inputs, step):
        drawn_at.append((step, made.state.global_step))
        read.append({x["instance"] for x in inputs})
        parts = draw(inputs, step)
        if step == 1:
            second_drawn.set()
        return parts

    def late(rollouts):
        waited.append(second_drawn.wait(PATIENCE))
        return score(rollouts)

    made._draw, made.scorer.score = watched, late
    made.train()
    assert drawn_at == [(0, 0), (1, 0)] and waited == [True] * steps
    assert (
        read[0] | read[1] == {0, 1, 2, 3} and not read[0] & read[1]
    )  # an epoch, each instance once
    assert made.state.global_step == steps and not made._drawn


def test_an_error_of_the_background_is_raised_by_the_training(tmp_path):
    made = overlapping(tmp_path, Case(steps=1), scoring_parts=2)

    def wrong(rollouts):
        raise InputError("the reader's key is wrong")

    made.scorer.score = wrong
    with pytest.raises(InputError, match="key is wrong"):
        made.train()


def test_the_policy_cannot_draw_and_answer_at_once():
    for options in ({"scoring_parts": 2}, {"staleness": 1}):
        with pytest.raises(InputError, match="reader 'base'"):
            RunOptions(reader="base", **options).check()
