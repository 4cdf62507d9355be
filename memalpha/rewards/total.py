"""The weighted reward of a chunk step: r_t = w1 r1 + w2 r2_t + beta r3 + gamma r4_t (arXiv 2509.25911, section 3.3).

A fifth part of our own, off by default, asks the questions whose evidence a chunk completes right after it (``immediate``): r1 says
how the whole rollout went, this says what this chunk's writes were good for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memalpha.config import Options, Share
from memalpha.rewards import components
from memalpha.types import OperationResult, QuestionRecord

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
    r1 = components.accuracy(questions)
    r3 = components.compression(memory_tokens, input_tokens, clip=config.clip_compression)
    at_once = [math.nan] * len(results) if immediate is None else [components.immediate(asked, r1) for asked in immediate]
    right = [config.judge_silence and known is True for known in nothing_due or [None] * len(results)]
    rewards = []
    for calls, judged, quiet, early in zip(results, verdicts, right, at_once, strict=True):
        silence = 1.0 if quiet else config.silence
        r2 = components.tool_success(calls, silence=silence, duplicates_succeed=config.duplicates_succeed)
        r4 = components.content_quality(calls, judged, silence=silence, judge_deletes=config.judge_deletes)
        rewards.append(StepReward(r1, r2, r3, r4, early))
    return rewards
