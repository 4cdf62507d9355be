"""Scores finished rollouts: questions on the final memory, verdicts on each chunk's writes, and the reward parts.

What always holds: a failure of a reader or judge is NaN with a message, never 0. A failed question masks its rollout, a failed
verdict its chunk step only (``memalpha.rewards.total``). Only ``check_masked_share`` stops a run, on all processes together.

Questions may also be asked right after the chunk that completes their evidence (``immediate_weight``), on a memory rebuilt from the
recorded operations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from memalpha.agent.rollout import Rollout
from memalpha.agent.step import AgentStep
from memalpha.errors import ServiceError, TrainingAborted
from memalpha.protocols import ContentJudge, ReadRequest, SilenceJudge, WriteRequest
from memalpha.qa.evaluator import QAEvaluator, ask_all, find_passages
from memalpha.qa.metrics import contains
from memalpha.rewards.total import PARTS, RewardConfig, StepReward, rollout_rewards
from memalpha.types import Entry, OperationKind, Question, QuestionRecord, ResultCode


class _Judged(NamedTuple):
    """Verdicts on each chunk's writes, and whether nothing was due."""

    verdicts: list[list[bool] | ServiceError | None]
    nothing_due: list[bool | None]


class RolloutScorer:
    """Turns rollouts into reward parts; without content weight ``judge`` is not asked and r4 is NaN."""

    def __init__(
        self,
        evaluator: QAEvaluator,
        judge: ContentJudge,
        reward_config: RewardConfig,
        max_masked_share: float = 0.5,
        agent: AgentStep | None = None,
    ) -> None:
        if reward_config.immediate_weight and agent is None:
            raise ValueError("immediate_weight needs the agent, to build the memory of each chunk again")
        self.evaluator, self.judge, self.reward_config = evaluator, judge, reward_config
        self.max_masked_share, self.agent = max_masked_share, agent

    def score(self, rollouts: Sequence[Rollout]) -> list[list[StepReward]]:
        """Return the parts of each chunk step (NaN = not scored); sets ``questions`` and ``content_errors`` of the rollouts."""
        records = self.evaluator.evaluate_many([(r.memory, r.retriever, r.instance.questions) for r in rollouts])
        verdicts, early = self._verdicts(rollouts), self._immediate(rollouts)
        rewards = []
        for rollout, questions, (judged, nothing_due), asked in zip(rollouts, records, verdicts, early, strict=True):
            rollout.questions = questions
            rollout.content_errors = {t: str(found) for t, found in enumerate(judged) if isinstance(found, ServiceError)}
            known = [None if isinstance(found, ServiceError) else found for found in judged]
            rewards.append(self._rewards(rollout, known, nothing_due, asked))
        return rewards

    def _immediate(self, rollouts: Sequence[Rollout]) -> Sequence[list[list[QuestionRecord]] | None]:
        """Questions asked after each chunk; None where they have no weight."""
        if not self.reward_config.immediate_weight or self.agent is None:
            return [None] * len(rollouts)
        return ask_after_chunks(rollouts, self.agent, self.evaluator)

    def _rewards(
        self,
        rollout: Rollout,
        verdicts: Sequence[Sequence[bool] | None],
        nothing_due: Sequence[bool | None],
        immediate: list[list[QuestionRecord]] | None,
    ) -> list[StepReward]:
        count = rollout.memory.count_tokens
        return rollout_rewards(
            self.reward_config,
            questions=rollout.questions,
            memory_tokens=rollout.memory.tokens,
            input_tokens=sum(count(chunk.text) for chunk in rollout.instance.chunks),
            results=[step.outcome.results for step in rollout.steps],
            verdicts=verdicts,
            nothing_due=nothing_due,
            immediate=immediate,
        )

    def _verdicts(self, rollouts: Sequence[Rollout]) -> list[_Judged]:
        """Judge all writes as one batch; verdicts are None without content weight, [] for a chunk without writes."""
        if not self.reward_config.content_weight:
            return [_Judged([None] * len(rollout.steps), [None] * len(rollout.steps)) for rollout in rollouts]
        chunks = [_write_requests(rollout) for rollout in rollouts]
        asked = [request for requests in chunks for request in requests if request.results]
        found = iter(ask_all(self.judge.judge, asked, type(self.judge).__name__))
        return [
            _Judged([next(found) if request.results else [] for request in requests], self._nothing_due(requests))
            for requests in chunks
        ]

    def _nothing_due(self, requests: Sequence[WriteRequest]) -> list[bool | None]:
        """For each chunk without changes: whether the judge knows that nothing had to change."""
        if not (self.reward_config.judge_silence and isinstance(self.judge, SilenceJudge)):
            return [None] * len(requests)
        return [None if request.results else self.judge.nothing_due(request) for request in requests]

    def masked(self, rewards: Sequence[Sequence[StepReward]]) -> int:
        """Return how many rollouts have an unscored step; one is enough, since chunks without writes need no verdict."""
        return sum(any(self._masked_steps(steps)) for steps in rewards)

    def _masked_steps(self, steps: Sequence[StepReward]) -> list[bool]:
        return [math.isnan(step.total(self.reward_config)) for step in steps]

    def metrics(self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]) -> dict[str, tuple[float, int]]:
        """Return training metrics as (sum, count), which can be added over ranks; count 0 shows nothing.

        ``verbatim`` is the share of written texts found word for word in their chunk, ``entry_words`` their length.
        """
        steps = [step for rollout in rollouts for step in rollout.steps]
        calls = [result for step in steps for result in step.outcome.results]
        parts = [reward for row in rewards for reward in row]
        result = {f"reward_{name}": _sums([getattr(reward, name) for reward in parts]) for name in PARTS}
        result |= {
            "calls_per_chunk": (float(len(calls)), len(steps)),
            "silent_chunks": (float(sum(not step.outcome.results for step in steps)), len(steps)),
            "cut_off": (float(sum(step.completion.cut_off for step in steps)), len(steps)),
            "entries": (float(sum(len(rollout.memory) for rollout in rollouts)), len(rollouts)),
            "tokens": (float(sum(rollout.memory.tokens for rollout in rollouts)), len(rollouts)),
            "masked": (float(self.masked(rewards)), len(rollouts)),
            "masked_chunks": (float(sum(sum(self._masked_steps(row)) for row in rewards)), len(steps)),
            "duplicates": (float(sum(call.code is ResultCode.DUPLICATE for call in calls)), len(calls)),
            "verbatim": _sums([contains(text, content) for text, content in _written(rollouts)]),
            "entry_words": _sums([float(len(content.split())) for _, content in _written(rollouts)]),
            "unparsed": (float(sum(call.code is ResultCode.UNPARSED for call in calls)), len(calls)),
        }
        for kind in OperationKind:
            done = sum(call.changed and call.operation is not None and call.operation.kind is kind for call in calls)
            result[f"{kind}_share"] = (float(done), len(calls))
        return result


def first_error(rollouts: Sequence[Rollout]) -> str | None:
    """Return the first error message of a reader or judge, or None."""
    for rollout in rollouts:
        errors = [*(record.error for record in rollout.questions), *rollout.content_errors.values()]
        if found := next((error for error in errors if error), None):
            return found
    return None


def check_masked_share(masked: int, total: int, limit: float, errors: Sequence[str | None]) -> None:
    """Raise TrainingAborted if more than ``limit`` of all processes' rollouts have an unscored step; shows the first error."""
    if not total or masked / total <= limit:
        return
    why = next((error for error in errors if error), "none; an instance without questions has no accuracy")
    raise TrainingAborted(
        f"{masked} of {total} rollouts could not be scored, more than max_masked_share = {limit}\n"
        f"  first failure: {why}\n"
        "  to fix: see that the reader and the judge work; raise max_masked_share only if failures are expected"
    )


def _sums(values: Sequence[float]) -> tuple[float, int]:
    known = [value for value in values if not math.isnan(value)]
    return sum(known), len(known)


def _written(rollouts: Sequence[Rollout]) -> list[tuple[str, str]]:
    """Inserted and replacing texts: (chunk's text, content)."""
    return [
        (rollout.instance.chunks[step.chunk_index].text, result.operation.content)
        for rollout in rollouts
        for step in rollout.steps
        for result in step.outcome.results
        if result.changed and result.operation is not None and result.operation.content
    ]


def _write_requests(rollout: Rollout) -> list[WriteRequest]:
    kept: dict[str, Entry] = {}
    requests = []
    for step in rollout.steps:
        for before, after in step.outcome.changes:
            if before is not None:
                kept.pop(before.id, None)
            if after is not None:
                kept[after.id] = after
        applied = tuple(result for result in step.outcome.results if result.changed)
        earlier = tuple(change.before for change in step.outcome.changes)
        chunk = rollout.instance.chunks[step.chunk_index]
        requests.append(WriteRequest(rollout.instance.id, step.chunk_index, chunk, applied, earlier, tuple(kept.values())))
    return requests


def completed_by(questions: Sequence[Question], chunk_index: int) -> list[Question]:
    """Return the questions whose last piece of evidence is this chunk; without known evidence, none."""
    return [question for question in questions if question.evidence and max(question.evidence) == chunk_index]


def requests_after_chunks(rollout: Rollout, agent: AgentStep, k: int) -> list[list[ReadRequest]]:
    """Return, for each chunk, its questions with the top ``k`` entries of the memory at that moment."""
    memory = agent.new_memory()
    retriever = agent.new_retriever(memory)
    requests = []
    for step in rollout.steps:
        chunk = rollout.instance.chunks[step.chunk_index]
        for result in step.outcome.results:
            if result.operation is not None:
                memory.apply(result.operation, chunk=step.chunk_index, time=chunk.time)
        asked = completed_by(rollout.instance.questions, step.chunk_index)
        requests.append([ReadRequest(question, find_passages(memory, retriever, question.text, k).passages) for question in asked])
    return requests


def ask_after_chunks(rollouts: Sequence[Rollout], agent: AgentStep, evaluator: QAEvaluator) -> list[list[list[QuestionRecord]]]:
    """Return the scored questions of each chunk of each rollout; all are read as one batch."""
    requests = [requests_after_chunks(rollout, agent, evaluator.k) for rollout in rollouts]
    records = iter(evaluator.ask([request for chunks in requests for chunk in chunks for request in chunk]))
    return [[[next(records) for _ in chunk] for chunk in chunks] for chunks in requests]
