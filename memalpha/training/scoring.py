"""Scores finished rollouts: questions on the final memory, verdicts on each chunk's writes, and the
reward parts.

A failure of a reader or judge is NaN with a message, never 0. A failed question masks its rollout,
a failed verdict its chunk step only, a function of ``rewards`` what it scores. Only
``check_masked_share`` stops a run, on all processes together. Questions may also be asked right
after the chunk that completes their evidence (``immediate_weight``), on a memory rebuilt from the
recorded
operations: where facts are annotated, which may change later, without its archive (there the chunk
    itself would answer, and what is not written cannot be updated); of other text with it, so that
    an entry is paid where it helps beside the lines it repeats.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from inspect import isawaitable

from memalpha.agent.archive import archive_chunk
from memalpha.agent.rollout import Rollout
from memalpha.agent.step import AgentStep
from memalpha.errors import InputError, ServiceError, TrainingAborted
from memalpha.memory.schema import ARCHIVE
from memalpha.protocols import ContentJudge, ReadRequest, SilenceJudge, WriteRequest
from memalpha.qa.evaluator import QAEvaluator, ask_all, find_passages
from memalpha.qa.metrics import contains
from memalpha.record.rows import operation_mix
from memalpha.rewards.total import RewardConfig, RewardFunction, StepReward, judged
from memalpha.training.overlap import in_background
from memalpha.types import Entry, OperationKind, QuestionRecord, ResultCode

Verdicts = list[list[bool] | ServiceError | None]
"""For each chunk, the verdicts on its writes; None if the judge was not asked."""


class RolloutScorer:
    """Turns rollouts into reward parts; without content weight ``judge`` is not asked and r4 is
    NaN.
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
            raise ValueError(
                "immediate_weight needs the agent, to build the memory of each chunk again"
            )
        self.evaluator, self.judge, self.reward_config = evaluator, judge, reward_config
        self.max_masked_share, self.agent = max_masked_share, agent

    def score(self, rollouts: Sequence[Rollout]) -> list[list[StepReward]]:
        """Return the parts of each chunk step (NaN = not scored); sets the attributes of the
        rollouts that they come from.
        """
        records = self.evaluator.evaluate_many(
            [(r.memory, r.retriever, r.instance.questions) for r in rollouts]
        )
        verdicts = self._verdicts(rollouts)
        early: list[list[list[QuestionRecord]]] = [[] for _ in rollouts]
        if self.reward_config.immediate_weight and self.agent is not None:
            early = ask_after_chunks(rollouts, self.agent, self.evaluator)
        for rollout, questions, (said, nothing_due), asked in zip(
            rollouts, records, verdicts, early, strict=True
        ):
            rollout.questions, rollout.immediate, rollout.nothing_due = (
                questions,
                asked,
                nothing_due,
            )
            rollout.verdicts = [
                None if isinstance(found, ServiceError) else found for found in said
            ]
            rollout.errors = {
                chunk: str(error)
                for chunk, error in enumerate(said, rollout.instance.begin)
                if isinstance(error, ServiceError)
            }
        parts = self.reward_config.parts
        scored = zip(
            *score_parts({name: function for name, (function, _) in parts.items()}, rollouts),
            strict=True,
        )
        return [
            [StepReward(zip(parts, step, strict=True)) for step in zip(*rollout, strict=True)]
            for rollout in scored
        ]

    def _verdicts(self, rollouts: Sequence[Rollout]) -> list[tuple[Verdicts, list[bool | None]]]:
        if not self.reward_config.content_weight:
            return [
                ([None] * len(rollout.steps), [None] * len(rollout.steps)) for rollout in rollouts
            ]
        chunks = [_write_requests(rollout, self.reward_config) for rollout in rollouts]
        asked = [request for requests in chunks for request in requests if request.results]
        found = iter(ask_all(self.judge.judge, asked, type(self.judge).__name__))
        knows = (
            self.judge
            if self.reward_config.judge_silence and isinstance(self.judge, SilenceJudge)
            else None
        )
        said: list[Verdicts] = [
            [next(found) if request.results else [] for request in requests] for requests in chunks
        ]
        due = [
            [knows.nothing_due(r) if knows and not r.results else None for r in requests]
            for requests in chunks
        ]
        return list(zip(said, due, strict=True))

    def masked(self, rewards: Sequence[Sequence[StepReward]]) -> int:
        """Return how many rollouts have an unscored step; one is enough, since chunks without
        writes need no verdict.
        """
        return sum(self._masked_steps(steps) > 0 for steps in rewards)

    def _masked_steps(self, steps: Sequence[StepReward]) -> int:
        return sum(math.isnan(step.total(self.reward_config)) for step in steps)

    def metrics(
        self, rollouts: Sequence[Rollout], rewards: Sequence[Sequence[StepReward]]
    ) -> dict[str, tuple[float, int]]:
        """Return training metrics as (sum, count), which can be added over ranks; count 0 shows
        nothing.
        """
        steps = [
            (rollout.instance.chunks[step.chunk_index].text, step)
            for rollout in rollouts
            for step in rollout.steps
        ]
        calls = [result for _, step in steps for result in step.outcome.results]
        done = operation_mix(calls)
        mix = {
            f"{section.name}/{kind}": kind
            for section in rollouts[0].memory.schema.sections
            for kind in section.operations
        }
        kept = [
            (text, result)
            for text, step in steps
            for result in step.outcome.results
            if result.changed
        ]
        written = [
            (text, call.operation.content)
            for text, call in kept
            if call.operation and call.operation.content
        ]
        known = {
            name: [step[name] for row in rewards for step in row]
            for name in self.reward_config.parts
        }
        parts = {
            name: [value for value in values if not math.isnan(value)]
            for name, values in known.items()
        }
        return {
            **{f"reward_{name}": (sum(values), len(values)) for name, values in parts.items()},
            "calls_per_chunk": (len(calls), len(steps)),
            "silent_chunks": (sum(not step.outcome.results for _, step in steps), len(steps)),
            "cut_off": (sum(step.completion.cut_off for _, step in steps), len(steps)),
            "entries": (sum(len(rollout.memory) for rollout in rollouts), len(rollouts)),
            "tokens": (sum(rollout.memory.tokens for rollout in rollouts), len(rollouts)),
            "masked": (self.masked(rewards), len(rollouts)),
            "masked_chunks": (sum(map(self._masked_steps, rewards)), len(steps)),
            "duplicates": (sum(call.repeated for call in calls), len(calls)),
            "verbatim": (sum(contains(text, content) for text, content in written), len(written)),
            "entry_words": (sum(len(content.split()) for _, content in written), len(written)),
            "unparsed": (sum(call.code is ResultCode.UNPARSED for call in calls), len(calls)),
            **{
                f"{kind}_share": (sum(done[name] for name in mix if mix[name] is kind), len(calls))
                for kind in OperationKind
            },
            **{f"ops/{name}": (done[name], len(calls)) for name in mix},
        }


def first_error(rollouts: Sequence[Rollout]) -> str | None:
    """Return the first error message of a reader or judge, or None."""
    failures = (failure for rollout in rollouts for failure in rollout.failures)
    return next(failures, None)


def check_masked_share(masked: int, total: int, limit: float, errors: Sequence[str | None]) -> None:
    """Raise TrainingAborted if more than ``limit`` of all processes' rollouts have an unscored
    step; shows the first error.
    """
    why = next(
        (error for error in errors if error),
        "none; no questions, or a function of rewards returned None",
    )
    TrainingAborted.raise_if(
        total and masked / total > limit,
        f"{masked} of {total} rollouts could not be scored, more than max_masked_share = {limit}\n  first failure: {why}",
        fix="see that reader and judge work; raise max_masked_share only if failures are expected",
    )


def score_parts(
    functions: Mapping[str, RewardFunction], rollouts: Sequence[Rollout]
) -> list[list[list[float]]]:
    """Return each part of each rollout's steps, NaN for None and after a ServiceError, whose
    message goes to ``errors``.

    Async functions score all rollouts at once. InputError after any other error, or for what is no
    finite number or None a step.
    """

    async def score(name: str, rollout: Rollout) -> list[float]:
        try:
            made = functions[name](rollout)
            found = await made if isawaitable(made) else made
            values = found if isinstance(found, list | tuple) else [found] * len(rollout.steps)
            if len(values) != len(rollout.steps) or not all(
                value is None or math.isfinite(value) for value in values
            ):
                raise ValueError(
                    f"{found!r} is no finite number or None, nor a list of {len(rollout.steps)}, one for each step"
                )
            return [math.nan if value is None else float(value) for value in values]
        except ServiceError as error:
            rollout.errors = {
                step.chunk_index: f"{name}: {error}" for step in rollout.steps
            } | rollout.errors
            return [math.nan] * len(rollout.steps)
        except Exception as error:
            said = f"the reward {name} failed on instance {rollout.instance.id}: {type(error).__name__}: {error}"
            raise InputError(said, fix="correct the function") from error

    async def score_all() -> list[list[list[float]]]:
        return [
            await asyncio.gather(*(score(name, rollout) for rollout in rollouts))
            for name in functions
        ]

    return in_background(
        lambda: asyncio.run(score_all())
    ).result()  # a notebook's thread has a loop already


def _write_requests(rollout: Rollout, config: RewardConfig) -> list[WriteRequest]:
    kept: dict[str, Entry] = {
        entry.id: entry
        for entry in rollout.instance.initial_entries
        if entry.section != ARCHIVE.name
    }
    requests = []
    for step in rollout.steps:
        for before, after in step.outcome.changes:
            if before is not None:
                kept.pop(before.id, None)
            if after is not None:
                kept[after.id] = after
        changes = iter(step.outcome.changes)
        was = {
            id(result): next(changes).before if result.logged else None
            for result in step.outcome.results
        }
        asked = tuple(judged(step.outcome.results, config))
        earlier, chunk = (
            tuple(was[id(result)] for result in asked),
            rollout.instance.chunks[step.chunk_index],
        )
        requests.append(
            WriteRequest(
                rollout.instance.id, step.chunk_index, chunk, asked, earlier, tuple(kept.values())
            )
        )
    return requests


def ask_after_chunks(
    rollouts: Sequence[Rollout], agent: AgentStep, evaluator: QAEvaluator
) -> list[list[list[QuestionRecord]]]:
    """Return, for each chunk of each rollout, its questions (those whose last evidence it is),
    asked on the memory of then.
    """
    requests: list[list[list[ReadRequest]]] = []
    for rollout in rollouts:
        archived = (
            agent.config.archive and not rollout.instance.facts
        )  # without facts none begins with a memory
        memory = agent.new_memory(
            [entry for entry in rollout.instance.initial_entries if entry.section != ARCHIVE.name]
        )
        retriever = agent.new_retriever(memory)
        requests.append([])
        for step in rollout.steps:
            chunk = rollout.instance.chunks[step.chunk_index]
            for result in step.outcome.results:
                if result.operation is not None:
                    memory.apply(result.operation, chunk=step.chunk_index, time=chunk.time)
            if archived:
                archive_chunk(memory, step.chunk_index, chunk, step.outcome.changes)
            due = [
                q
                for q in rollout.instance.questions
                if q.evidence and max(q.evidence) == step.chunk_index
            ]
            requests[-1].append(
                [
                    ReadRequest(q, find_passages(memory, retriever, q.text, evaluator.k).passages)
                    for q in due
                ]
            )
    records = iter(
        evaluator.ask([request for chunks in requests for chunk in chunks for request in chunk])
    )
    return [[[next(records) for _ in chunk] for chunk in chunks] for chunks in requests]
