"""Scores finished rollouts: questions on the final memory, a judge's look at each chunk's writes, and the reward parts."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from memalpha.agent.rollout import Rollout, StepRecord
from memalpha.errors import ServiceError, TrainingAborted
from memalpha.protocols import ContentJudge, WriteRequest
from memalpha.qa.evaluator import QAEvaluator
from memalpha.rewards.total import PARTS, RewardConfig, StepReward, rollout_rewards
from memalpha.types import OperationKind, ResultCode, StopReason

logger = logging.getLogger(__name__)


class RolloutScorer:
    """Turns rollouts into reward parts.

    Args:
        evaluator: Asks and scores the questions.
        judge: Judges writes; not asked where the reward gives content no weight, whose r4 is NaN then.
        reward_config: Switches of the reward.
        max_masked_share: Share of a batch's rollouts that may be unscorable.
    """

    def __init__(
        self, evaluator: QAEvaluator, judge: ContentJudge, reward_config: RewardConfig, max_masked_share: float = 0.5
    ) -> None:
        self.evaluator, self.judge, self.reward_config = evaluator, judge, reward_config
        self.max_masked_share = max_masked_share

    def score(self, rollouts: Sequence[Rollout]) -> list[list[StepReward]]:
        """Ask the questions of every rollout (kept in ``rollout.questions``) and return the parts of each chunk step.

        Raises:
            TrainingAborted: If more than ``max_masked_share`` of the rollouts could not be scored.
        """
        records = self.evaluator.evaluate_many([(r.memory, r.retriever, r.instance.questions) for r in rollouts])
        rewards = []
        for rollout, questions in zip(rollouts, records, strict=True):
            rollout.questions = questions
            rewards.append(self._rewards(rollout))
        self._check_masked(rewards)
        return rewards

    def _rewards(self, rollout: Rollout) -> list[StepReward]:
        count = rollout.memory.count_tokens
        return rollout_rewards(
            self.reward_config,
            questions=rollout.questions,
            memory_tokens=rollout.memory.tokens,
            input_tokens=sum(count(chunk.text) for chunk in rollout.instance.chunks),
            results=[step.outcome.results for step in rollout.steps],
            verdicts=self._verdicts(rollout),
        )

    def _verdicts(self, rollout: Rollout) -> list[list[bool] | None]:
        requests = [_write_request(rollout, step) for step in rollout.steps]
        if not self.reward_config.content_weight:
            return [None] * len(requests)
        try:
            return list(self.judge.judge(requests))
        except ServiceError as error:
            logger.warning("the content judge failed on instance %s, its rollout is masked: %s", rollout.instance.id, error)
            return [None] * len(requests)

    def _check_masked(self, rewards: Sequence[Sequence[StepReward]]) -> None:
        masked = self._masked(rewards)
        if masked > self.max_masked_share * len(rewards):
            raise TrainingAborted(
                f"{masked} of {len(rewards)} rollouts could not be scored, more than max_masked_share = {self.max_masked_share}\n"
                "  to fix: see the reader's or judge's errors above; raise max_masked_share only if they are expected"
            )

    def _masked(self, rewards: Sequence[Sequence[StepReward]]) -> int:
        """How many rollouts have a step that could not be scored."""
        return sum(any(math.isnan(step.total(self.reward_config)) for step in steps) for steps in rewards)

    def metrics(self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]) -> dict[str, tuple[float, int]]:
        """Return what to watch in training as (sum, count), so that ranks can be added up. Counts of 0 mean nothing to show."""
        steps = [step for rollout in rollouts for step in rollout.steps]
        calls = [result for step in steps for result in step.outcome.results]
        parts = [reward for row in rewards for reward in row]
        result = {f"reward_{name}": _sums([getattr(reward, name) for reward in parts]) for name in PARTS}
        result |= {
            "calls_per_chunk": (float(len(calls)), len(steps)),
            "silent_chunks": (float(sum(not step.outcome.results for step in steps)), len(steps)),
            "cut_off": (float(sum(step.completion.stop is StopReason.LENGTH for step in steps)), len(steps)),
            "entries": (float(sum(len(rollout.memory) for rollout in rollouts)), len(rollouts)),
            "tokens": (float(sum(rollout.memory.tokens for rollout in rollouts)), len(rollouts)),
            "masked": (float(self._masked(rewards)), len(rollouts)),
            "duplicates": (float(sum(call.code is ResultCode.DUPLICATE for call in calls)), len(calls)),
            "unparsed": (float(sum(call.code is ResultCode.UNPARSED for call in calls)), len(calls)),
        }
        for kind in OperationKind:
            done = sum(call.changed and call.operation is not None and call.operation.kind is kind for call in calls)
            result[f"{kind}_share"] = (float(done), len(calls))
        return result


def _sums(values: Sequence[float]) -> tuple[float, int]:
    known = [value for value in values if not math.isnan(value)]
    return sum(known), len(known)


def _write_request(rollout: Rollout, step: StepRecord) -> WriteRequest:
    applied = tuple(result for result in step.outcome.results if result.changed)
    before = tuple(change.before for change in step.outcome.changes)
    return WriteRequest(rollout.instance.id, step.chunk_index, rollout.instance.chunks[step.chunk_index], applied, before)
