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

A question asked again that fails masks the step. ``Rollout.asked_again`` counts them.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

from memalpha.agent.rollout import Rollout
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.readers import QAEvaluator, find_passages
from memalpha.rewards import RewardConfig
from memalpha.types import Entry, ReadRequest

SHARE = 0.5
"""Part of ``accuracy_weight`` that pays evidence; the rest pays the accuracy of the rollout."""


def with_evidence(config: RewardConfig) -> RewardConfig:
    """Return a reward of which part of the accuracy's weight pays ``evidence``."""
    weight = config.accuracy_weight
    rewards = {**config.rewards, evidence: SHARE * weight}
    return replace(config, accuracy_weight=(1 - SHARE) * weight, rewards=rewards)


def evidence(rollout: Rollout) -> list[float | None]:
    """Part of the reward: e_t of each step, after ``ask_without``; None if one could not be
    asked.
    """
    return [None if math.isnan(owed) else owed for owed in rollout.evidence]


def ask_without(rollouts: Sequence[Rollout], evaluator: QAEvaluator) -> None:
    """Set ``evidence`` and ``asked_again`` of rollouts whose questions have been asked."""
    requests: list[ReadRequest] = []
    paid: list[tuple[Rollout, int, float]] = []  # whom a request pays: rollout, step, score
    for rollout in rollouts:
        asked = len(requests)
        rollout.evidence = [0.0] * len(rollout.steps)
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
                    paid.append((rollout, step, record.score))
        rollout.asked_again = len(requests) - asked
    for (rollout, step, score), record in zip(paid, evaluator.ask(requests), strict=True):
        rollout.evidence[step] += (score - record.score) / len(rollout.questions)
        if record.error:
            chunk = rollout.steps[step].chunk_index
            rollout.errors.setdefault(chunk, f"evidence: {record.error}")


def step_that_wrote(entry: Entry, rollout: Rollout) -> int | None:
    """Return which step of a rollout wrote an entry last; None: none of them."""
    if entry.section == ARCHIVE.name or entry.source_chunk is None:
        return None
    step = entry.source_chunk - rollout.instance.begin
    return step if step >= 0 else None
