"""The parts of the reward, each a pure function of recorded data (Mem-alpha, arXiv 2509.25911, section 3.3; ``immediate`` is ours).

r1 accuracy and r3 compression belong to a whole rollout, r2 tool success and r4 content quality to one chunk. Every part lies in
[0, 1]. NaN means that a part cannot be scored, and a failure never becomes a 0. A question that failed leaves the whole rollout
without r1, so all its chunk steps are masked; a judge that failed on a chunk leaves that chunk without r4, and masks it alone.

Departures from the published code, each a switch of ``RewardConfig``: a skipped duplicate is a success (there a failure), deletes
are judged like other writes (there always 0), compression is clipped at 0 (there it goes below), the judge sees the chunk, and
where it finds that nothing was due, silence is right (there always 0, so that a policy makes something up).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memalpha.types import OperationKind, OperationResult, QuestionRecord, ResultCode


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """r1: mean score of the questions on the final memory; an instance without questions has none (NaN).

    NaN, too, if any question could not be scored. A mean over the others would compare rollouts of a group on different questions:
    who lost a hard one would seem better. Where the same question failed for the whole group the comparison would be fair, but the
    accuracy of that step would be one of other questions than the step before, and a question that always fails would go unseen.
    """
    return sum(record.score for record in records) / len(records) if records else math.nan


def immediate(records: Sequence[QuestionRecord], r1: float) -> float:
    """Mean score of the questions asked right after a chunk. One that no question is about takes r1: neither paid nor fined."""
    return accuracy(records) if records else r1


def tool_success(results: Sequence[OperationResult], *, silence: float, duplicates_succeed: bool) -> float:
    """r2: share of a chunk's calls that succeeded; stretches that do not parse count as failed calls.

    Args:
        results: One a call or unparsed stretch.
        silence: Score of a chunk with none (published: 0).
        duplicates_succeed: Whether repeating an entry counts as a success (published: no).
    """
    if not results:
        return silence
    good = sum(result.ok and (duplicates_succeed or result.code is not ResultCode.DUPLICATE) for result in results)
    return good / len(results)


def compression(memory_tokens: int, input_tokens: int, *, clip: bool) -> float:
    """r3: 1 - memory tokens / input tokens; with ``clip`` at least 0 (published: unclipped).

    Raises:
        ValueError: If ``input_tokens`` is not positive.
    """
    if input_tokens <= 0:
        raise ValueError(f"input_tokens is {input_tokens}; an instance has text")
    value = 1.0 - memory_tokens / input_tokens
    return max(0.0, value) if clip else value


def content_quality(
    results: Sequence[OperationResult], verdicts: Sequence[bool] | None, *, silence: float, judge_deletes: bool
) -> float:
    """r4: share of a chunk's applied writes that the judge finds right.

    Args:
        results: One a call, in order.
        verdicts: The judge's verdicts on the *applied* results, in order; None if it failed or was not asked.
        silence: Score of a chunk that changed nothing (published: 0).
        judge_deletes: Whether deletes take the judge's verdict (published: no, a delete scores 0).

    Raises:
        ValueError: If there is not one verdict for each applied result.
    """
    if verdicts is None:
        return math.nan
    applied = [result for result in results if result.changed]
    if len(verdicts) != len(applied):
        raise ValueError(f"{len(verdicts)} verdicts for {len(applied)} applied writes")
    if not applied:
        return silence
    good = sum(verdict and (judge_deletes or not _is_delete(result)) for result, verdict in zip(applied, verdicts, strict=True))
    return good / len(applied)


def _is_delete(result: OperationResult) -> bool:
    return result.operation is not None and result.operation.kind is OperationKind.DELETE
