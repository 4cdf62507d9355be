"""Evidence recall: is what a search finds where the answer stands? No reader, no judge.

A chunk of a question's evidence is found if a passage of it is read: passages are taken whole, best
first, while they fit a budget of tokens, as by every reader (``qa.readers.within_budget``). So that
this is said of turns, prepare a set with a chunk for each turn. A passage counts for one chunk: an
entry of a memory for the chunk of its last write.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from memalpha.errors import InputError, ServiceError
from memalpha.qa.readers import within_budget
from memalpha.record.measure import Examination, IngestedMemory
from memalpha.record.rows import QuestionRow
from memalpha.types import Instance, Question, TokenCounter


class FoundPassage(NamedTuple):
    """What a search returns, as a reader sees it, and the chunk that it is of (None: unknown)."""

    text: str
    chunk: int | None


class EvidenceRow(NamedTuple):
    """How much of the evidence of one question was found."""

    instance: str
    question: str  # its id
    kind: str
    recall: float  # share of the chunks of the evidence of which a passage was read
    # whether what holds now was read, and above all that no longer holds; None if nothing of the
    # evidence is outdated
    newer_first: bool | None
    tokens: int  # of all passages that were read


def evidence_row(
    instance: str,
    question: Question,
    passages: Sequence[FoundPassage],
    budget_tokens: int,
    count: TokenCounter,
) -> EvidenceRow:
    """Return how much of a question's evidence is in the passages, best first, that fit a budget.

    InputError if the question has no evidence.
    """
    if not question.evidence:
        raise InputError(
            f"question {question.id!r} of {instance!r} names no evidence",
            expected="the indices of the chunks that hold the answer",
        )
    evidence = set(question.evidence or ())

    def cost(passage: FoundPassage) -> int:
        return count(passage.text)

    read = within_budget(passages, budget_tokens, cost)
    chunks = [passage.chunk for passage in read]
    newer_first = None
    if question.outdated:
        of_update = [chunk for chunk in chunks if chunk in evidence]
        newer_first = bool(of_update) and of_update[0] not in question.outdated
    return EvidenceRow(
        instance,
        question.id,
        question.kind,
        len(evidence.intersection(chunks)) / len(evidence),
        newer_first,
        sum(map(cost, read)),
    )


@dataclass(frozen=True, slots=True)
class LooksForEvidence:
    """An examiner without a reader: is a question's evidence found in ``budget`` tokens?

    Questions that name no evidence are not asked.
    """

    budget: int
    count: TokenCounter

    def __call__(
        self, instances: Sequence[Instance], memories: Sequence[IngestedMemory]
    ) -> list[Examination]:
        """Search for every question of a batch; a search that fails gives a failed question."""
        examinations = []
        for instance, memory in zip(instances, memories, strict=True):
            rows = []
            tokens = []
            for index, question in enumerate(instance.questions):
                if not question.evidence:
                    continue
                name = question.id or str(index)
                row = QuestionRow(name, question.kind, question.text, math.nan, None)
                try:
                    sourced = memory.sourced(question, self.budget)
                    passages = [FoundPassage(*each) for each in sourced]
                    if passages and all(passage.chunk is None for passage in passages):
                        raise ServiceError(
                            "the system does not say which chunks its passages are of"
                        )
                    found = evidence_row(instance.id, question, passages, self.budget, self.count)
                    tokens.append(found.tokens)
                    row = replace(row, score=found.recall, newer_first=found.newer_first)
                except ServiceError as error:
                    row = replace(row, error=str(error))
                rows.append(row)
            seen = sum(tokens) / len(tokens) if tokens else math.nan
            examinations.append(Examination(tuple(rows), seen))
        return examinations
