"""Credit to the entry that answered: evidence-anchored attribution of Fine-Mem (arXiv 2601.08435).

A question that was answered is asked again without one of the passages that were read, with the
same budget; once for each that a step of the rollout wrote. What the score falls by goes to the
step t that last wrote the entry m:

    e_t = 1 / n  sum over questions j, entries m of t read for j:  s_j - s_j without m

n are the rollout's questions. If every right answer hangs on one entry, the e_t of a rollout add up
to its accuracy.

Departures. The paper pays all entries that were found alike, s_j / their number, also those that
say something else; here the answer decides. So two entries that say the same earn nothing, and two
that an answer needs both earn it whole; with scores between 0 and 1 a misleading entry may cost.
e_t stands beside the shared accuracy, half of ``accuracy_weight`` each: nothing that was deleted,
or rightly not written, is ever read, and an update is paid only by the questions that it answers.
Entries that the rollout began with and archived lines are no step's.

A question asked again that fails masks the step. ``Rollout.credits`` has the e_t of each step, and
how many questions were asked again for its entries.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from typing_extensions import override

from memalpha.agent.rollout import Rollout
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.readers import QAEvaluator, find_passages
from memalpha.rewards import RewardConfig
from memalpha.training.credit import StepCredit
from memalpha.types import Entry, ReadRequest

OWED, ASKED_AGAIN = "evidence", "asked_again"  # of ``Rollout.credits``
SHARE = 0.5
"""Part of ``accuracy_weight`` that pays evidence; the rest pays the accuracy of the rollout."""


class EvidenceCredit(StepCredit):
    """Rows are compared as with ``step``; part of the accuracy's weight pays ``evidence``."""

    @override
    def reward(self, config: RewardConfig) -> RewardConfig:
        weight = config.accuracy_weight
        rewards = {**config.rewards, evidence: SHARE * weight}
        return replace(config, accuracy_weight=(1 - SHARE) * weight, rewards=rewards)

    @override
    def ask(self, rollouts: Sequence[Rollout], evaluator: QAEvaluator) -> None:
        ask_without(rollouts, evaluator)

    @override
    def metrics(self, rollouts: Sequence[Rollout]) -> Mapping[str, tuple[float, int]]:
        """Return how often was asked again, for each question that is asked anyway."""
        asked = sum(len(rollout.questions) for rollout in rollouts)
        again = sum(sum(rollout.credits[ASKED_AGAIN]) for rollout in rollouts)
        return {"evidence/asked_again": (again, asked)}


def evidence(rollout: Rollout) -> list[float | None]:
    """Part of the reward: e_t of each step, after ``ask_without``; None if one could not be
    asked.
    """
    return [None if math.isnan(owed) else owed for owed in rollout.credits[OWED]]


def ask_without(rollouts: Sequence[Rollout], evaluator: QAEvaluator) -> None:
    """Set ``credits`` of rollouts whose questions have been asked."""
    requests: list[ReadRequest] = []
    paid: list[tuple[Rollout, int, float]] = []  # whom a request pays: rollout, step, score
    for rollout in rollouts:
        rollout.credits = {name: [0.0] * len(rollout.steps) for name in (OWED, ASKED_AGAIN)}
        for record in rollout.questions:
            if not record.score > 0:  # wrong, or not scored
                continue
            question = record.question
            found = find_passages(rollout.memory, rollout.retriever, question.text, evaluator.k)
            request = ReadRequest(question, found.passages)
            for place in evaluator.reader.fitting(request):
                step = step_that_wrote(found.entries[place], rollout)
                if step is not None:
                    others = found.passages[:place] + found.passages[place + 1 :]
                    requests.append(ReadRequest(question, others))
                    rollout.credits[ASKED_AGAIN][step] += 1
                    paid.append((rollout, step, record.score))
    for (rollout, step, score), record in zip(paid, evaluator.ask(requests), strict=True):
        rollout.credits[OWED][step] += (score - record.score) / len(rollout.questions)
        if record.error:
            chunk = rollout.steps[step].chunk_index
            rollout.errors.setdefault(chunk, f"evidence: {record.error}")


def step_that_wrote(entry: Entry, rollout: Rollout) -> int | None:
    """Return which step of a rollout wrote an entry last; None: none of them."""
    if entry.section == ARCHIVE.name or entry.source_chunk is None:
        return None
    step = entry.source_chunk - rollout.instance.begin
    return step if step >= 0 else None
