"""Rollouts of the asker (``role: asker``): one question, asked in turns of a memory that is fixed.

An instance of it is one question; its chunks are the turns, each of which reads the question with
other notes. All turns of a rollout have the advantage of the rollout, compared with the others of
its question before it is spread over the turns, so one of many turns counts no more than one of
few.

The memories are written before the training: by a trained agent, or by nobody, so that the archive
alone is asked.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
from accelerate import PartialState
from typing_extensions import override

from memalpha.agent.config import AgentConfig
from memalpha.agent.rollout import Rollout, StepRecord, run_rollouts
from memalpha.agent.step import AgentStep, StepOutcome
from memalpha.contrib.asker.reader import AskerStep, Inquiry
from memalpha.errors import InputError, ServiceError
from memalpha.generation.hf import HFGenerator
from memalpha.memory.memory import Memory
from memalpha.models.adapters import base_of
from memalpha.models.policy import load_policy_model
from memalpha.models.shipped import resolve_adapter
from memalpha.qa.metrics import contains, score
from memalpha.qa.readers import UNKNOWN, Asked, QAEvaluator, request_to_read
from memalpha.retrieval.archive import archive_all
from memalpha.rewards import RewardConfig, StepReward
from memalpha.text.encoding import chat_ids
from memalpha.training.config import RunOptions
from memalpha.training.credit import Credit, TrajectoryCredit
from memalpha.training.rows import Scale, TrainingRow, advantages
from memalpha.training.scoring import RolloutScorer
from memalpha.types import (
    Answer,
    Chunk,
    Completion,
    ContentJudge,
    Entry,
    Instance,
    OperationResult,
    Prompt,
    QuestionRecord,
    ReadRequest,
    ResultCode,
    Retriever,
    Sampling,
)


# ------------------------------------------------------------------------------------------------
# instances
def read_with_writer(
    instances: Sequence[Instance], agent: AgentStep, writer: str, dtype: str, device: torch.device
) -> list[Instance]:
    """Return the instances, read by the agent in the folder ``writer``: its greedy memories are
    what they begin with. Without one that is the archive alone.

    InputError if the writer has another schema, or nothing would be kept.
    """
    if writer:
        memories = _memories(instances, agent, writer, dtype, device)
    else:
        if not agent.config.archive:
            raise InputError(
                "role asker has neither a writer nor an archive, so that nothing is stored",
                expected="the folder of a trained agent as writer, or archive: true",
            )
        memories = []
        for instance in instances:
            memory = agent.new_memory()
            archive_all(memory, instance.chunks)
            memories.append(memory)
    return [
        replace(instance, initial_entries=memory.snapshot().entries)
        for instance, memory in zip(instances, memories, strict=True)
    ]


def _memories(
    instances: Sequence[Instance], agent: AgentStep, writer: str, dtype: str, device: torch.device
) -> list[Memory]:
    folder = resolve_adapter(writer)
    config = AgentConfig.load(folder)
    policy = load_policy_model(base_of(folder), adapter=folder, dtype=dtype)
    step = AgentStep(config, policy.tokenizer)
    if step.schema != agent.schema:
        raise InputError(
            f"the writer {writer!r} has the schema {step.schema.name!r}",
            expected=f"the schema of the asker, {agent.schema.name!r}",
        )
    generator = HFGenerator(policy.model.to(device).eval(), policy.tokenizer)
    rollouts = run_rollouts(instances, step, generator, Sampling(config.max_completion_length))
    return [rollout.memory for rollout in rollouts]


def one_by_one(instances: Sequence[Instance], turns: int) -> list[Instance]:
    """Return an instance for each question, whose chunks are its turns."""
    alone = []
    for instance in instances:
        for place, question in enumerate(instance.questions):
            asked = replace(
                instance,
                id=f"{instance.id}?{place}",
                chunks=(Chunk(question.text),) * turns,
                questions=(question,),
                facts=(),
            )
            alone.append(asked)
    return alone


# ------------------------------------------------------------------------------------------------
# rollouts
@dataclass(slots=True)
class InquiryEpisode:
    """One question, asked in turns."""

    agent: AgentStep
    asker: AskerStep
    inquiry: Inquiry
    rollout: Rollout

    @property
    def turns(self) -> int:
        """Its searches and the answer."""
        return self.asker.searches + 1

    @property
    def done(self) -> bool:
        """Whether it has answered."""
        return self.inquiry.answer is not None

    def prompt(self) -> Prompt:
        """Return the question with the notes of the turn."""
        chat = self.asker.chat(self.inquiry)
        ids = chat_ids(self.agent.encoder.tokenizer, chat)
        return Prompt(tuple(chat), ids, len(ids))

    def take(self, prompt: Prompt, completion: Completion) -> None:
        """Search as a completion wants, or answer with it."""
        inquiry, rollout = self.inquiry, self.rollout
        self.asker.take(inquiry, completion.text)
        answer = inquiry.answer
        if isinstance(answer, ServiceError):  # it only thought: the policy's own mistake
            answer = Answer("", read=inquiry.notes, searches=tuple(inquiry.searches))
        if answer is None:
            result = OperationResult(True, ResultCode.SEARCHED, inquiry.searches[-1])
        else:
            result = OperationResult(bool(answer.text), ResultCode.ANSWERED, answer.text)
        rollout.answer = answer
        memory = rollout.memory
        outcome = StepOutcome((result,), ())
        turn = len(rollout.steps)
        record = StepRecord(turn, prompt, completion, outcome, memory.tokens, len(memory))
        rollout.steps.append(record)


class AnswerCredit(TrajectoryCredit):
    """``trajectory``, whose rollouts are compared before their rewards are spread over turns."""

    @override
    def rows(
        self,
        rollouts: Sequence[Rollout],
        rewards: Sequence[Sequence[StepReward]],
        group_size: int,
        config: RewardConfig,
        scale: Scale,
        agent: AgentStep,
    ) -> list[TrainingRow]:
        rows = super().rows(rollouts, rewards, group_size, config, scale, agent)
        compare_rollouts(rows, scale)
        return rows


def compare_rollouts(rows: Sequence[TrainingRow], scale: Scale) -> None:
    """Set the advantage of all turns of a rollout to that of the rollout among those of its
    question.
    """
    first = {row.rollout_index: row for row in reversed(rows)}
    totals = [row.total for row in first.values()]
    groups = [row.group_index for row in first.values()]
    values = dict(zip(first, advantages(totals, groups, scale), strict=True))
    for row in rows:
        row.advantage = values[row.rollout_index]


# ------------------------------------------------------------------------------------------------
# rewards
class AskerScorer(RolloutScorer):
    """Scores the answers that the rollouts have given."""

    @override
    def asked(
        self, rollouts: Sequence[Rollout], passing: Iterable[Asked]
    ) -> list[list[QuestionRecord]]:
        requests = []
        answers: list[Answer | ServiceError] = []
        for rollout in rollouts:
            assert rollout.answer is not None  # the last turn answers
            requests.append(ReadRequest(rollout.instance.questions[0], rollout.answer.read or ()))
            answers.append(rollout.answer)
        records = self.evaluator.scored(requests, answers, [()] * len(rollouts))
        return [[record] for record in records]


def found_share(rollout: Rollout) -> float:
    """Part of the reward: whether the notes of the last turn hold the answer, as reader ``recall``
    counts it.
    """
    assert rollout.answer is not None
    read = rollout.answer.read or ()
    return float(score(rollout.instance.questions[0], Answer("\n".join(read), read)))


def search_count(rollout: Rollout) -> float:
    """Part of the reward, with a negative weight: how often it searched."""
    return float(len(rollout.steps) - 1)


def guess_error(rollout: Rollout) -> float:
    """Part of the reward, with a negative weight: how wrong an answer is that is not "unknown"."""
    answer = rollout.answer
    assert answer is not None
    if contains(answer.text, UNKNOWN):
        return 0.0
    return 1.0 - score(rollout.instance.questions[0], answer)


# ------------------------------------------------------------------------------------------------
# the role
class AskerRole:
    """``role: asker``. Rollouts of one memory share it and its retriever, which they only read."""

    def __init__(self) -> None:
        self._opened: dict[int, tuple[Memory, Retriever]] = {}  # by identity of the entries

    def check(self, options: RunOptions, reward: RewardConfig) -> None:
        """Refuse options of a writer."""
        if options.reader != "recall" or options.rollout_chunks:
            raise InputError(
                f"role asker is combined with reader {options.reader} and rollout_chunks "
                f"{options.rollout_chunks}",
                expected="reader recall and rollout_chunks 0, since the asker answers itself and "
                "reads "
                "no chunks",
            )
        if options.warm_start_steps:
            raise InputError(
                f"role asker is combined with warm_start_steps {options.warm_start_steps}",
                expected="0, since the warm start of a run teaches a writer",
                fix="run memalpha warmup --teaches asker, then give its folder as --adapter",
            )
        if options.credit != "trajectory":
            raise InputError(
                f"role asker is combined with credit {options.credit}",
                expected="credit trajectory, since all turns serve one answer",
            )
        if reward.immediate_weight:
            raise InputError(
                f"role asker is combined with immediate_weight {reward.immediate_weight}",
                expected="0, since the asker reads no chunks after which questions could be asked",
            )

    def scorer(
        self,
        evaluator: QAEvaluator,
        judge: ContentJudge,
        reward: RewardConfig,
        max_masked_share: float,
        agent: AgentStep,
        credit: Credit,
    ) -> RolloutScorer:
        """Score answers; ``credit`` is ``trajectory``, for which each rollout counts once."""
        credit = AnswerCredit()
        return AskerScorer(evaluator, judge, reward, max_masked_share, agent, credit=credit)

    def start(
        self,
        parts: Sequence[Sequence[Instance]],
        agent: AgentStep,
        options: RunOptions,
        seed: int,
    ) -> list[list[Instance]]:
        """Return an instance of each question, with the memory that it is about."""
        every = [instance for part in parts for instance in part]
        device = PartialState().device
        begun = iter(read_with_writer(every, agent, options.writer, options.dtype, device))
        turns = agent.config.searches + 1
        return [one_by_one(list(islice(begun, len(part))), turns) for part in parts]

    def episodes(self, instances: Sequence[Instance], agent: AgentStep) -> list[InquiryEpisode]:
        """Begin an episode of each instance of ``one_by_one``."""
        config = agent.config
        asker = AskerStep(config.reader_tokens, agent.encoder.count, config.searches)
        episodes = []
        for instance in instances:
            memory, retriever = self._open(instance.initial_entries, agent)
            (question,) = instance.questions
            request, _ = request_to_read(question, memory, retriever, config.retrieve_k)
            before = memory.tokens
            rollout = Rollout(instance, memory, retriever, tokens_before=before, role="asker")
            episodes.append(InquiryEpisode(agent, asker, asker.begin(request), rollout))
        return episodes

    def _open(self, entries: tuple[Entry, ...], agent: AgentStep) -> tuple[Memory, Retriever]:
        if id(entries) not in self._opened:
            memory = agent.new_memory(entries)
            self._opened[id(entries)] = memory, agent.new_retriever(memory)
        return self._opened[id(entries)]
