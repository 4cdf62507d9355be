"""The four parts by hand: the published readings and ours, and None where a part cannot be
scored."""

import math

import pytest

from memalpha.rewards import (
    RewardConfig,
    accuracy,
    compression,
    content_quality,
    tool_success,
)
from memalpha.types import (
    Operation,
    OperationKind,
    OperationResult,
    Question,
    QuestionRecord,
    ResultCode,
)

INSERT, UPDATE, DELETE = OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE


def scored(*scores):
    return [QuestionRecord(Question("q", ("a",)), (), None, score) for score in scores]


def done(kind):
    return OperationResult(True, ResultCode.APPLIED, "done", Operation(kind, "facts"), "1")


DUPLICATE = OperationResult(True, ResultCode.DUPLICATE, "known", Operation(INSERT, "facts"), "1")
FAILED = OperationResult(False, ResultCode.UNKNOWN_ID, "no", Operation(DELETE, "facts"))
UNPARSED = OperationResult(False, ResultCode.UNPARSED, "what?")


def test_accuracy_is_the_mean_score_and_none_if_any_question_could_not_be_scored():
    assert accuracy(scored(1.0, 0.0, 0.5, 0.0)) == 0.375
    assert accuracy(scored(1.0, math.nan, 1.0)) is None
    assert accuracy([]) is None


@pytest.mark.parametrize(
    ("results", "ours", "published"),
    [
        ([done(INSERT), done(DELETE)], 1.0, 1.0),
        ([done(INSERT), FAILED], 0.5, 0.5),
        ([done(INSERT), UNPARSED, UNPARSED, UNPARSED], 0.25, 0.25),
        ([done(INSERT), DUPLICATE], 1.0, 0.5),
        ([DUPLICATE], 1.0, 0.0),
        ([FAILED, UNPARSED], 0.0, 0.0),
    ],
)
def test_tool_success_by_hand(results, ours, published):
    assert tool_success(results, RewardConfig(), silence=0.9) == ours
    assert tool_success(results, RewardConfig(duplicates_succeed=False), silence=0.9) == published


def test_silence_scores_what_it_is_set_to():
    assert tool_success([], RewardConfig(), silence=0.75) == 0.75
    assert content_quality([], [], RewardConfig(), silence=0.75) == 0.75


@pytest.mark.parametrize(
    ("memory", "unclipped", "clipped"),
    [(0, 1.0, 1.0), (25, 0.75, 0.75), (100, 0.0, 0.0), (150, -0.5, 0.0)],
)
def test_compression_by_hand(memory, unclipped, clipped):
    assert compression(memory, 100, clip=False) == unclipped
    assert compression(memory, 100, clip=True) == clipped


def test_content_quality_by_hand():
    results = [done(INSERT), FAILED, done(DELETE), DUPLICATE, done(UPDATE), UNPARSED, done(DELETE)]
    verdicts = [True, True, False, False]  # insert, delete, update, delete
    assert content_quality(results, verdicts, RewardConfig(), silence=0.0) == 0.5
    assert (
        content_quality(results, verdicts, RewardConfig(judge_deletes=False), silence=0.0) == 0.25
    )
    assert (
        content_quality([done(DELETE)], [True], RewardConfig(judge_deletes=False), silence=0.0)
        == 0.0
    )


def test_silence_a_failed_judge_and_missing_verdicts():
    assert content_quality([FAILED, DUPLICATE], [], RewardConfig(), silence=0.25) == 0.25
    assert content_quality([done(INSERT)], None, RewardConfig(), silence=0.0) is None
    with pytest.raises(ValueError, match="1 verdicts for 2 writes"):
        content_quality([done(INSERT), FAILED, done(DELETE)], [True], RewardConfig(), silence=0.0)
