"""Scores finished rollouts: questions on the final memory, verdicts on each chunk's writes, and the
reward parts.

A failure of a reader or judge is NaN with a message, never 0. A failed question masks its rollout,
a failed verdict its chunk step only, a function of ``rewards`` what it scores. Only
``check_masked_share`` stops a run, on all processes together.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from inspect import isawaitable
from itertools import islice

from memalpha.agent.rollout import Rollout
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, ServiceError, TrainingAborted
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.metrics import contains
from memalpha.qa.readers import Asked, QAEvaluator, ask_all
from memalpha.record.rows import operation_mix
from memalpha.retrieval.archive import archive_chunk
from memalpha.rewards import RewardConfig, RewardFunction, StepReward, accuracy, results_to_judge
from memalpha.training.credit import Credit, StepCredit
from memalpha.training.schedule import in_background
from memalpha.types import (
    ContentJudge,
    Entry,
    OperationKind,
    QuestionRecord,
    ResultCode,
    SilenceJudge,
    WriteRequest,
)


class RolloutScorer:
    """Turns rollouts into reward parts; without ``content_weight`` the judge is not asked, and the
    part ``content`` (r4) is NaN. ``credit`` may add parts, and ask for them.
    """

    def __init__(
        self,
        evaluator: QAEvaluator,
        judge: ContentJudge,
        reward_config: RewardConfig,
        max_masked_share: float = 0.5,
        agent: AgentStep | None = None,
        *,
        credit: Credit | None = None,
    ) -> None:
        if reward_config.immediate_weight and agent is None:
            raise ValueError("immediate_weight needs the agent, to build earlier memories again")
        self.evaluator = evaluator
        self.judge = judge
        self.credit = credit or StepCredit()
        self.reward_config = self.credit.reward(reward_config)
        self.max_masked_share = max_masked_share
        self.agent = agent

    def score(self, rollouts: Sequence[Rollout]) -> list[list[StepReward]]:
        """Return the parts of each chunk step (NaN = not scored); sets the attributes of the
        rollouts that they come from.
        """
        passing: Iterable[Asked] = ()
        if self.reward_config.immediate_weight and self.agent is not None:
            # in one batch: after the last chunk the memory is often the same
            passing = asked_after_chunks(rollouts, self.agent)
        records = iter(self.asked(rollouts, passing))
        for rollout in rollouts:
            rollout.questions = next(records)
        for rollout in rollouts:
            rollout.immediate = list(islice(records, len(rollout.steps)))
            rollout.verdicts = [None] * len(rollout.steps)
            rollout.nothing_due = [None] * len(rollout.steps)
            rollout.errors = {}
        self.credit.ask(rollouts, self.evaluator)
        if self.reward_config.content_weight:
            self._judge_writes(rollouts)
        parts = self.reward_config.parts
        return score_parts({name: function for name, (function, _) in parts.items()}, rollouts)

    def asked(
        self, rollouts: Sequence[Rollout], passing: Iterable[Asked]
    ) -> list[list[QuestionRecord]]:
        """Return the records of each rollout's questions, then those of ``passing``."""
        items = [(r.memory, r.retriever, r.instance.questions) for r in rollouts]
        return self.evaluator.evaluate_many(items, passing)

    def _judge_writes(self, rollouts: Sequence[Rollout]) -> None:
        chunks = [_write_requests(rollout, self.reward_config) for rollout in rollouts]
        writes = [request for requests in chunks for request in requests if request.results]
        answers = iter(ask_all(self.judge.judge, writes, type(self.judge).__name__))
        silence_judge = None
        if isinstance(self.judge, SilenceJudge) and self.reward_config.judge_silence:
            silence_judge = self.judge
        for rollout, requests in zip(rollouts, chunks, strict=True):
            for place, request in enumerate(requests):
                verdict = next(answers) if request.results else []
                if isinstance(verdict, ServiceError):
                    rollout.errors[request.chunk_index] = str(verdict)
                else:
                    rollout.verdicts[place] = verdict
                if silence_judge is not None and not request.results:
                    rollout.nothing_due[place] = silence_judge.nothing_due(request)

    def masked(self, rewards: Sequence[Sequence[StepReward]]) -> int:
        """Return how many rollouts have an unscored step; one is enough, since chunks without
        writes need no verdict.
        """
        return sum(map(self._is_masked, rewards))

    def _is_masked(self, steps: Sequence[StepReward]) -> bool:
        return any(math.isnan(step.total(self.reward_config)) for step in steps)

    def metrics(
        self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]
    ) -> dict[str, tuple[float, int]]:
        """Return metrics of training as (sum, count), which can be added over ranks; count 0 shows
        nothing.
        """
        steps = [step for rollout in rollouts for step in rollout.steps]
        scored = [step for of_rollout in rewards for step in of_rollout]
        calls = [result for step in steps for result in step.outcome.results]
        written = list(_write_texts(rollouts))
        values: dict[str, Sequence[float]] = {
            "memory/calls_per_chunk": [len(step.outcome.results) for step in steps],
            "memory/silent_chunks": [not step.outcome.results for step in steps],
            "memory/cut_off": [step.completion.cut_off for step in steps],
            "memory/entries": [len(rollout.memory) for rollout in rollouts],
            "memory/tokens": [rollout.memory.tokens for rollout in rollouts],
            "memory/masked": [self._is_masked(of_rollout) for of_rollout in rewards],
            "memory/masked_chunks": [self._is_masked([step]) for step in scored],
            "memory/duplicates": [call.repeated for call in calls],
            "memory/unparsed": [call.code is ResultCode.UNPARSED for call in calls],
            "memory/verbatim": [contains(chunk, content) for chunk, content in written],
            "memory/entry_words": [len(content.split()) for _, content in written],
        }
        for name in self.reward_config.parts:
            part = [step[name] for step in scored]
            values[f"rewards/{name}/mean"] = [value for value in part if not math.isnan(value)]
        if self.reward_config.graded_accuracy:
            exact = [accuracy(rollout.questions) for rollout in rollouts]
            values["rewards/exact_accuracy/mean"] = [each for each in exact if each is not None]
        result = {name: (float(sum(of)), len(of)) for name, of in values.items()}
        result |= self.credit.metrics(rollouts)
        done = operation_mix(calls)
        shares = dict.fromkeys(OperationKind, 0)
        for section in rollouts[0].memory.schema.sections:
            for kind in section.operations:
                count = done[f"{section.name}/{kind}"]
                shares[kind] += count
                result[f"memory/ops/{section.name}/{kind}"] = (count, len(calls))
        return result | {f"memory/{kind}_share": (n, len(calls)) for kind, n in shares.items()}


def _write_texts(rollouts: Sequence[Rollout]) -> Iterator[tuple[str, str]]:
    """Yield the text of the chunk and of the entry of each write that took effect."""
    for rollout in rollouts:
        for step in rollout.steps:
            for result in step.outcome.results:
                if result.changed and result.operation and result.operation.content:
                    chunk = rollout.instance.chunks[step.chunk_index]
                    yield chunk.text, result.operation.content


def first_error(rollouts: Sequence[Rollout]) -> str | None:
    """Return the first error message of a reader or judge, or None."""
    failures = (failure for rollout in rollouts for failure in rollout.failures)
    return next(failures, None)


def check_masked_share(masked: int, total: int, limit: float, errors: Sequence[str | None]) -> None:
    """Raise TrainingAborted if more than ``limit`` of all processes' rollouts have an unscored
    step; shows the first error.
    """
    unknown = "none; no questions, or a function of rewards returned None"
    if total and masked / total > limit:
        raise TrainingAborted(
            f"{masked} of {total} rollouts could not be scored, more than max_masked_share = "
            f"{limit}\n"
            f"  first failure: {next(filter(None, errors), unknown)}",
            fix="check that reader and judge work; raise max_masked_share only if "
            "failures are expected",
        )


def score_parts(
    functions: Mapping[str, RewardFunction], rollouts: Sequence[Rollout]
) -> list[list[StepReward]]:
    """Return the parts of each rollout's steps, NaN for None and after a ServiceError, whose
    message goes to ``errors``.

    Async functions score all rollouts at once. InputError after any other error, or for what is no
    finite number or None a step.
    """

    async def score(rollout: Rollout) -> list[StepReward]:
        steps = [StepReward() for _ in rollout.steps]
        for name, function in functions.items():
            values = await _score_part(name, function, rollout)
            for step, value in zip(steps, values, strict=True):
                step[name] = value
        return steps

    async def score_all() -> list[list[StepReward]]:
        return await asyncio.gather(*map(score, rollouts))

    # a notebook's thread has a loop already
    return in_background(lambda: asyncio.run(score_all())).result()


async def _score_part(name: str, function: RewardFunction, rollout: Rollout) -> list[float]:
    count = len(rollout.steps)
    try:
        scores = function(rollout)
        if isawaitable(scores):
            scores = await scores
        values = scores if isinstance(scores, list | tuple) else [scores] * count
        numbers = [value for value in values if value is not None]
        if len(values) != count or not all(map(math.isfinite, numbers)):
            raise ValueError(
                f"{scores!r} is neither a finite number, nor None, nor a list of "
                f"{count} of them, one for each step"
            )
        return [math.nan if value is None else float(value) for value in values]
    except ServiceError as error:
        for step in rollout.steps:
            rollout.errors.setdefault(step.chunk_index, f"{name}: {error}")
        return [math.nan] * count
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        raise InputError(
            f"the reward {name} failed on instance {rollout.instance.id}: {message}",
            fix="correct the function",
        ) from error


def _write_requests(rollout: Rollout, config: RewardConfig) -> list[WriteRequest]:
    """What a judge is asked of each chunk: the writes, with the entries there before and after."""
    initial = rollout.instance.initial_entries
    entries: dict[str, Entry] = {
        entry.id: entry for entry in initial if entry.section != ARCHIVE.name
    }
    requests = []
    for step in rollout.steps:
        for before, after in step.outcome.changes:
            if before is not None:
                entries.pop(before.id, None)
            if after is not None:
                entries[after.id] = after
        changes = iter(step.outcome.changes)
        earlier: dict[int, Entry | None] = {}
        for result in step.outcome.results:
            earlier[id(result)] = next(changes).before if result.logged else None
        results = tuple(results_to_judge(step.outcome.results, config))
        requests.append(
            WriteRequest(
                rollout.instance.id,
                step.chunk_index,
                rollout.instance.chunks[step.chunk_index],
                results,
                tuple(earlier[id(result)] for result in results),
                tuple(entries.values()),
            )
        )
    return requests


def asked_after_chunks(rollouts: Sequence[Rollout], agent: AgentStep) -> Iterator[Asked]:
    """Yield, after each chunk of each rollout, the memory of then and the chunk's questions (those
    whose last evidence it is), for ``immediate_weight``; the next chunk changes that memory.

    It is built again from the recorded operations. Annotated facts may change later: they are asked
    without the archive, where the chunk itself would answer, though only what an entry says can be
    updated. Other text is asked with it: an entry is paid if it helps beside the lines.
    """
    for rollout in rollouts:
        instance = rollout.instance
        archived = agent.config.archive and not instance.facts
        initial = instance.initial_entries
        if not archived:
            initial = tuple(entry for entry in initial if entry.section != ARCHIVE.name)
        memory = agent.new_memory(initial)
        retriever = agent.new_retriever(memory)
        for step in rollout.steps:
            chunk = instance.chunks[step.chunk_index]
            for result in step.outcome.results:
                if result.operation is not None:
                    memory.apply(result.operation, chunk=step.chunk_index, time=chunk.time)
            if archived:
                archive_chunk(memory, step.chunk_index, chunk, step.outcome.changes)
            due = [
                question
                for question in instance.questions
                if question.evidence and max(question.evidence) == step.chunk_index
            ]
            yield memory, retriever, due
