"""Scores finished rollouts: questions on the final memory, a judge's verdict on each chunk's writes, and the reward parts.

What always holds: a failure of a reader or judge is NaN and says why, never a 0. A failed question masks its rollout, a failed
verdict its chunk step alone (``memalpha.rewards.total``). Nothing here stops a run: a step's rollouts may lie on several
processes, which must stop together, so whoever knows them all calls ``check_masked_share``.

Questions may also be asked right after the chunk that completes their evidence (``immediate_weight``); for that, the memory of a
finished rollout is built again from its recorded operations.
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
    """What the judge says of each chunk of a rollout: verdicts on its writes, and whether nothing was due."""

    verdicts: list[list[bool] | ServiceError | None]
    nothing_due: list[bool | None]


class RolloutScorer:
    """Turns rollouts into reward parts.

    Args:
        evaluator: Asks and scores the questions.
        judge: Judges writes; not asked where the reward gives content no weight, whose r4 is NaN then.
        reward_config: Switches of the reward.
        max_masked_share: Share of a step's rollouts that may be unscorable, for ``check_masked_share``.
        agent: Builds memories again; needed where the reward gives questions asked after their chunk a weight.
    """

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
        """Return the parts of each chunk step; parts that could not be scored are NaN.

        The scored questions are kept in ``rollout.questions``, the judge's failures in ``rollout.content_errors``.
        """
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
        """Questions of each chunk, asked after it; None where they have no weight."""
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
        """Judge all writes of all rollouts as one batch, and where there are none, whether any were due.

        None throughout if content has no weight. A chunk without writes has the verdicts [].
        """
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
        """For each chunk of a rollout that changed nothing, whether nothing had to change, as far as the judge knows."""
        if not (self.reward_config.judge_silence and isinstance(self.judge, SilenceJudge)):
            return [None] * len(requests)
        return [None if request.results else self.judge.nothing_due(request) for request in requests]

    def masked(self, rewards: Sequence[Sequence[StepReward]]) -> int:
        """How many rollouts have a step that could not be scored.

        One such step counts as much as all: with a judge down, chunks without a write need no verdict and would hide the outage.
        """
        return sum(any(self._masked_steps(steps)) for steps in rewards)

    def _masked_steps(self, steps: Sequence[StepReward]) -> list[bool]:
        return [math.isnan(step.total(self.reward_config)) for step in steps]

    def metrics(self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]) -> dict[str, tuple[float, int]]:
        """Return what to watch in training as (sum, count), so that ranks can be added up. Counts of 0 mean nothing to show.

        ``verbatim`` is the share of written texts that stand in their chunk word for word, ``entry_words`` their length.
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
    """Return what the first failure of a reader or judge said; None if there was none."""
    for rollout in rollouts:
        errors = [*(record.error for record in rollout.questions), *rollout.content_errors.values()]
        if found := next((error for error in errors if error), None):
            return found
    return None


def check_masked_share(masked: int, total: int, limit: float, errors: Sequence[str | None]) -> None:
    """Stop if more than a share of the rollouts could not be scored: going on would train on what happened to be left.

    Args:
        masked: Rollouts with a step that could not be scored, over all processes.
        total: All rollouts.
        limit: The share allowed.
        errors: What failed first, for each process (or rollout); the first that is not None is shown.

    Raises:
        TrainingAborted: If the share is above the limit.
    """
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
    """Each text that was inserted or that replaced another, with the chunk it was written from: (chunk's text, content)."""
    return [
        (rollout.instance.chunks[step.chunk_index].text, result.operation.content)
        for rollout in rollouts
        for step in rollout.steps
        for result in step.outcome.results
        if result.changed and result.operation is not None and result.operation.content
    ]


def _write_requests(rollout: Rollout) -> list[WriteRequest]:
    """One for each chunk; what the memory held after each is put together from the changes."""
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
    """Return the questions whose last piece of evidence is a chunk; those without known evidence are completed by none."""
    return [question for question in questions if question.evidence and max(question.evidence) == chunk_index]


def requests_after_chunks(rollout: Rollout, agent: AgentStep, k: int) -> list[list[ReadRequest]]:
    """Return, for each chunk, its questions with what the memory of that moment gives for them.

    Args:
        rollout: Finished; its memory is left alone.
        agent: Makes the memory and its retriever.
        k: How many entries are retrieved for a question.
    """
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
