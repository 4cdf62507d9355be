"""The weighted reward of a chunk step: r_t = w1 r1 + w2 r2_t + beta r3 + gamma r4_t (arXiv 2509.25911, section 3.3).

A fifth part of our own, off by default, asks the questions whose evidence a chunk completes right after it (``immediate``): r1 says
how the whole rollout went, this says what this chunk's writes were good for. Each part is a pure function of recorded data.

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
from dataclasses import dataclass
from typing import NamedTuple

from memalpha.config import Options, Share
from memalpha.types import OperationKind, OperationResult, QuestionRecord, ResultCode

PARTS = ("accuracy", "tool", "compression", "content", "immediate")
"""Names of the reward's parts, in the order of ``StepReward.parts`` and ``RewardConfig.weights``."""


@dataclass(frozen=True)
class RewardConfig(Options):
    """Weights and switches of the reward.

    Attributes:
        accuracy_weight: w1 (published 1).
        tool_weight: w2 (published 1; a small policy whose calls still fail learns to say less from it, so train one with 0.1 to
            0.5).
        compression_weight: beta (published 0.05).
        content_weight: gamma (published 0.1).
        immediate_weight: Weight of the questions whose evidence a chunk completes, asked right after it (published: no such part).
        silence: r2 of a chunk without calls and r4 of one that changed nothing (published 0).
        judge_silence: Whether they are 1 instead where the judge finds that nothing was due (published: no); in training the judge
            is asked only where ``content_weight`` is above 0.
        duplicates_succeed: Whether repeating an entry is a success (published: no).
        judge_deletes: Whether deletes are judged like other writes (published: no, they score 0).
        clip_compression: Whether r3 is at least 0 (published: no).
    """

    accuracy_weight: float = 1.0
    tool_weight: float = 1.0
    compression_weight: float = 0.05
    content_weight: float = 0.1
    immediate_weight: float = 0.0
    silence: Share = 0.0
    judge_silence: bool = True
    duplicates_succeed: bool = True
    judge_deletes: bool = True
    clip_compression: bool = True

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights in the order of ``PARTS``."""
        return (self.accuracy_weight, self.tool_weight, self.compression_weight, self.content_weight, self.immediate_weight)


class StepReward(NamedTuple):
    """The parts of one chunk step; NaN where a part was not or could not be scored."""

    accuracy: float
    tool: float
    compression: float
    content: float
    immediate: float = math.nan

    def total(self, config: RewardConfig) -> float:
        """The weighted sum. A part of weight 0 is not looked at; NaN if any other part is NaN."""
        return sum((weight * part for weight, part in zip(config.weights, self, strict=True) if weight), start=0.0)


def rollout_rewards(
    config: RewardConfig,
    *,
    questions: Sequence[QuestionRecord],
    memory_tokens: int,
    input_tokens: int,
    results: Sequence[Sequence[OperationResult]],
    verdicts: Sequence[Sequence[bool] | None],
    nothing_due: Sequence[bool | None] | None = None,
    immediate: Sequence[Sequence[QuestionRecord]] | None = None,
) -> list[StepReward]:
    """Return the reward parts of each chunk step of one rollout.

    Args:
        config: Switches.
        questions: Scored questions on the final memory.
        memory_tokens: Tokens of the final memory.
        input_tokens: Tokens of all chunks.
        results: For each chunk, the results of its calls.
        verdicts: For each chunk, the judge's verdicts on its applied writes, or None if it failed or was not asked.
        nothing_due: For each chunk, whether the memory needed no change for it; None where nobody knows.
        immediate: For each chunk, the scored questions asked right after it; None if none were asked.
    """
    r1 = accuracy(questions)
    r3 = compression(memory_tokens, input_tokens, clip=config.clip_compression)
    at_once = [math.nan] * len(results) if immediate is None else [immediate_accuracy(asked, r1) for asked in immediate]
    right = [config.judge_silence and known is True for known in nothing_due or [None] * len(results)]
    rewards = []
    for calls, judged, quiet, early in zip(results, verdicts, right, at_once, strict=True):
        silence = 1.0 if quiet else config.silence
        r2 = tool_success(calls, silence=silence, duplicates_succeed=config.duplicates_succeed)
        r4 = content_quality(calls, judged, silence=silence, judge_deletes=config.judge_deletes)
        rewards.append(StepReward(r1, r2, r3, r4, early))
    return rewards


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """r1: mean score of the questions on the final memory; an instance without questions has none (NaN).

    NaN, too, if any question could not be scored. A mean over the others would compare rollouts of a group on different questions:
    who lost a hard one would seem better. Where the same question failed for the whole group the comparison would be fair, but the
    accuracy of that step would be one of other questions than the step before, and a question that always fails would go unseen.
    """
    return sum(record.score for record in records) / len(records) if records else math.nan


def immediate_accuracy(records: Sequence[QuestionRecord], r1: float) -> float:
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
