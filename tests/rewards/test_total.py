"""The weighted sum by hand, and failures that mask instead of scoring 0; the published settings:
tests/training/test_scoring.py."""

import math
from types import SimpleNamespace

import pytest

from memalpha.rewards import RewardConfig
from memalpha.training.scoring import score_parts
from memalpha.types import (
    Operation,
    OperationKind,
    OperationResult,
    Question,
    QuestionRecord,
    ResultCode,
)
from tests.helpers.rollouts import step_reward

INSERT, DELETE = OperationKind.INSERT, OperationKind.DELETE
NAN = math.nan


def result(code, kind=INSERT):
    ok = code in (ResultCode.APPLIED, ResultCode.DUPLICATE)
    return OperationResult(ok, code, "", Operation(kind, "facts"))


WRITE, REMOVE = result(ResultCode.APPLIED), result(ResultCode.APPLIED, DELETE)
AGAIN, FAILED = result(ResultCode.DUPLICATE), result(ResultCode.TOO_LONG)


def rewards_of(
    config,
    results,
    verdicts,
    scores=(1.0, 0.5),
    memory_tokens=30,
    input_tokens=120,
    nothing_due=None,
    immediate=(),
):
    questions = [QuestionRecord(Question("q", ("a",)), (), None, score) for score in scores]
    steps = [SimpleNamespace(outcome=SimpleNamespace(results=calls)) for calls in results]
    rollout = SimpleNamespace(
        questions=questions,
        steps=steps,
        verdicts=verdicts,
        nothing_due=nothing_due or [None] * len(steps),
        immediate=immediate,
        memory=SimpleNamespace(tokens=memory_tokens),
        tokens_before=0,
        tokens_read=input_tokens,
        instance=SimpleNamespace(id="i"),
    )
    functions = {name: function for name, (function, _) in config.parts.items()}
    return score_parts(functions, [rollout])[0]


def test_a_rollout_by_hand():
    results = [[WRITE, FAILED], [], [WRITE, REMOVE, AGAIN, FAILED]]
    verdicts = [[True], [], [False, True]]
    rewards = rewards_of(RewardConfig(1.0, 0.5, 0.1, 0.2), results, verdicts)
    assert rewards == [
        step_reward(0.75, 0.5, 0.75, 1.0),
        step_reward(0.75, 0.0, 0.75, 0.0),
        step_reward(0.75, 0.75, 0.75, 0.5),
    ]
    totals = [reward.total(RewardConfig(1.0, 0.5, 0.1, 0.2)) for reward in rewards]
    assert totals == pytest.approx(
        [0.75 + 0.25 + 0.075 + 0.2, 0.75 + 0.075, 0.75 + 0.375 + 0.075 + 0.1]
    )


def test_silence_is_right_where_the_judge_finds_that_nothing_was_due():
    results, verdicts, due = (
        [[], [], [], [AGAIN], [WRITE]],
        [[], [], [], [], [False]],
        [True, False, None, True, None],
    )
    rewards = rewards_of(
        RewardConfig(silence=0.25, duplicates_succeed=False), results, verdicts, nothing_due=due
    )
    assert [(step["tool"], step["content"]) for step in rewards] == [
        (1, 1),
        (0.25, 0.25),
        (0.25, 0.25),
        (0, 1),
        (1, 0),
    ]
    published = rewards_of(
        RewardConfig(silence=0.25, judge_silence=False), results, verdicts, nothing_due=due
    )
    assert [step["tool"] for step in published[:3]] == [0.25, 0.25, 0.25] and published[3][
        "content"
    ] == 0.25


@pytest.mark.parametrize("place", range(4))
def test_a_part_that_failed_leaves_no_total_and_never_a_0(place):
    parts = step_reward(*[NAN if i == place else 1.0 for i in range(4)])
    assert math.isnan(parts.total(RewardConfig()))
    weights = [0.0 if i == place else 1.0 for i in range(4)]
    assert parts.total(RewardConfig(*weights)) == 3.0  # what has no weight is not looked at


def test_a_failed_reader_masks_every_step_and_a_failed_judge_its_own():
    failed_reader = rewards_of(RewardConfig(), [[WRITE], []], [[True], []], scores=(1.0, NAN))
    assert [math.isnan(reward.total(RewardConfig())) for reward in failed_reader] == [True, True]
    failed_judge = rewards_of(RewardConfig(), [[WRITE], []], [None, []])
    assert [math.isnan(reward.total(RewardConfig())) for reward in failed_judge] == [True, False]


def test_questions_after_a_chunk_pay_that_chunk_alone():
    config = RewardConfig(0.5, 0, 0, 0, immediate_weight=2)

    def record(score):
        return QuestionRecord(Question("q", ("a",)), (), None, score)

    def totals(*asked):
        rewards = rewards_of(config, [[], []], [None, None], scores=(0.25,), immediate=asked)
        return [reward.total(config) for reward in rewards]

    # A chunk that nothing is asked about takes r1.
    assert totals([record(1.0), record(0.5)], []) == [0.5 * 0.25 + 2 * 0.75, 0.5 * 0.25 + 2 * 0.25]
    masked, scored = totals([record(1.0), record(NAN)], [])
    assert math.isnan(masked) and scored == 0.625
