"""Evidence recall: is what a search finds where the answer stands? No reader, no judge.

A chunk of a question's evidence is found if a passage of it is read: passages are taken whole, best
first, while they fit a budget of tokens, as by every reader (``qa.readers.within_budget``). So that
this is said of turns, prepare a set with a chunk for each turn. A passage counts for one chunk: an
entry of a memory for the chunk of its last write.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.errors import InputError, ServiceError
from memalpha.qa.readers import within_budget
from memalpha.record.measure import Examination, IngestedMemory
from memalpha.record.rows import QuestionRow
from memalpha.types import Instance, Question, TokenCounter


def evidence_row(
    name: str,
    question: Question,
    passages: Sequence[tuple[str, int | None]],
    budget_tokens: int,
    count: TokenCounter,
) -> tuple[QuestionRow, int]:
    """Return the row of a question called ``name``, and how many tokens were read.

    ``passages`` are texts with the chunk of each (None: unknown), best first; those that fit the
    budget are read. The score is the share of the chunks of the evidence of which one was read;
    ``newer_first`` says of an update whether what holds now was read, and above all that no longer
    holds. InputError if the question has no evidence.
    """
    if not question.evidence:
        raise InputError(
            f"question {name!r} names no evidence",
            expected="the indices of the chunks that hold the answer",
        )
    evidence = set(question.evidence)

    def cost(passage: tuple[str, int | None]) -> int:
        return count(passage[0])

    read = within_budget(passages, budget_tokens, cost)
    chunks = [chunk for _, chunk in read]
    newer_first = None
    if question.outdated:
        of_update = [chunk for chunk in chunks if chunk in evidence]
        newer_first = bool(of_update) and of_update[0] not in question.outdated
    share = len(evidence.intersection(chunks)) / len(evidence)
    row = QuestionRow(
        name, question.kind, question.text, share, answer=None, newer_first=newer_first
    )
    return row, sum(map(cost, read))


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
                try:
                    passages = memory.sourced(question, self.budget)
                    if passages and all(chunk is None for _, chunk in passages):
                        raise ServiceError(
                            "the system does not say from which chunks its passages come"
                        )
                    row, read = evidence_row(name, question, passages, self.budget, self.count)
                    tokens.append(read)
                except ServiceError as error:
                    kind, text = question.kind, question.text
                    row = QuestionRow(name, kind, text, math.nan, None, error=str(error))
                rows.append(row)
            seen = sum(tokens) / len(tokens) if tokens else math.nan
            examinations.append(Examination(tuple(rows), seen))
        return examinations
