"""The reward of a chunk step: r_t = w1 r1 + w2 r2_t + beta r3 + gamma r4_t (arXiv 2509.25911, section 3.3), plus ``immediate``.

r1 accuracy and r3 compression belong to a rollout; r2 tool success and r4 content quality to a chunk. Every part is in [0, 1], or
NaN if it cannot be scored, which masks the steps that it belongs to; a failure never becomes 0. Departures from the published code
are switches of ``RewardConfig``, which ``preset: published`` sets to its values; the judge also sees the chunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memalpha.config import Options, Share
from memalpha.types import OperationKind, OperationResult, QuestionRecord, ResultCode

# Names of the parts, in the order of ``StepReward`` and ``RewardConfig.weights``.
PARTS = ("accuracy", "tool", "compression", "content", "immediate")


@dataclass(frozen=True)
class RewardConfig(Options):
    """Weights and switches of the reward.

    Attributes:
        accuracy_weight: w1 (published 1).
        tool_weight: w2 (published 1; use 0.1 to 0.5 for a small policy whose calls still fail, or it learns to write less).
        compression_weight: beta (published 0.05).
        content_weight: gamma (published 0.1).
        immediate_weight: Weight of the questions whose evidence a chunk completes, asked right after it (published: no such part).
        silence: r2 of a chunk without calls and r4 of one that changed nothing (published 0).
        judge_silence: Whether both are 1 if the judge finds no write due (published: no); training needs ``content_weight`` > 0.
        duplicates_succeed: Whether repeating an entry is a success (published: no).
        unknown_deletes_succeed: Whether deleting what is not there is a success (published: yes).
        unparsed_fails: Whether text that is no call counts as a failed call (published: no, it is not counted).
        judge_deletes: Whether deletes are judged like other writes (published: no, they score 0).
        judge_all: Whether r4 is over all calls, failed and repeated writes judged, too, and deletes 0 (published: yes).
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
    unknown_deletes_succeed: bool = False
    unparsed_fails: bool = True
    judge_deletes: bool = True
    judge_all: bool = False
    clip_compression: bool = True

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights in the order of ``PARTS``."""
        return (self.accuracy_weight, self.tool_weight, self.compression_weight, self.content_weight, self.immediate_weight)


class StepReward(NamedTuple):
    """The parts of one chunk step; NaN: not scored."""

    accuracy: float
    tool: float
    compression: float
    content: float
    immediate: float = math.nan

    def total(self, config: RewardConfig) -> float:
        """The weighted sum without parts of weight 0; NaN if any other part is NaN."""
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
    """Return the reward parts of each chunk step of one rollout; ``questions`` are those on the final memory.

    Tokens are those since the rollout began: the memory's growth (0 if it is smaller now) and the chunks read.
    The other sequences are by chunk; None: the judge failed or was not asked, not known whether a write was due, no questions.
    """
    r1 = accuracy(questions)
    r3 = compression(memory_tokens, input_tokens, clip=config.clip_compression)
    at_once = [math.nan] * len(results) if immediate is None else [immediate_accuracy(asked, r1) for asked in immediate]
    right = [config.judge_silence and known is True for known in nothing_due or [None] * len(results)]
    rewards = []
    for calls, found, quiet, early in zip(results, verdicts, right, at_once, strict=True):
        silence = 1.0 if quiet else config.silence
        r2 = tool_success(calls, config, silence=silence)
        r4 = content_quality(calls, found, config, silence=silence)
        rewards.append(StepReward(r1, r2, r3, r4, early))
    return rewards


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """r1: mean score of the questions on the final memory; NaN without questions or if any failed (else questions differ)."""
    return sum(record.score for record in records) / len(records) if records else math.nan


def immediate_accuracy(records: Sequence[QuestionRecord], r1: float) -> float:
    """Mean score of the questions asked right after a chunk; r1 (neutral) if there are none."""
    return accuracy(records) if records else r1


def tool_success(results: Sequence[OperationResult], config: RewardConfig, *, silence: float) -> float:
    """r2: share of a chunk's calls that succeeded; ``silence`` if there are none."""
    calls = [result for result in results if config.unparsed_fails or result.code is not ResultCode.UNPARSED]
    return sum(_succeeded(call, config) for call in calls) / len(calls) if calls else silence


def _succeeded(call: OperationResult, config: RewardConfig) -> bool:
    if call.code is ResultCode.UNKNOWN_ID and call.operation and call.operation.kind is OperationKind.DELETE:
        return config.unknown_deletes_succeed
    return call.ok and (config.duplicates_succeed or call.code is not ResultCode.DUPLICATE)


def compression(memory_tokens: int, input_tokens: int, *, clip: bool) -> float:
    """r3: 1 - memory tokens / input tokens, at least 0 with ``clip``; ValueError if ``input_tokens`` is not positive."""
    if input_tokens <= 0:
        raise ValueError(f"input_tokens is {input_tokens}; an instance has text")
    value = 1.0 - memory_tokens / input_tokens
    return max(0.0, value) if clip else value


def content_quality(
    results: Sequence[OperationResult], verdicts: Sequence[bool] | None, config: RewardConfig, *, silence: float
) -> float:
    """r4: share of a chunk's ``judged`` calls that are found right; ``silence`` if there are none, NaN without ``verdicts``."""
    if verdicts is None:
        return math.nan
    asked = judged(results, config)
    if len(verdicts) != len(asked):
        raise ValueError(f"{len(verdicts)} verdicts for {len(asked)} writes")
    calls = [result for result in results if result.code is not ResultCode.UNPARSED] if config.judge_all else asked
    if not calls:
        return silence
    kinds = [result.operation.kind if result.operation else None for result in asked]
    right = zip(kinds, verdicts, strict=True)
    return sum(found and (config.judge_deletes or kind is not OperationKind.DELETE) for kind, found in right) / len(calls)


def judged(results: Sequence[OperationResult], config: RewardConfig) -> list[OperationResult]:
    """Return the results that a content judge is asked about: applied ones, or with ``judge_all`` every text that was written."""
    if not config.judge_all:
        return [result for result in results if result.changed]
    return [result for result in results if result.operation and result.operation.kind is not OperationKind.DELETE]
