"""Evidence recall: is what a search finds where the answer stands? No reader, no judge.

A chunk of a question's evidence is found if a passage of it is read: passages are taken whole, best
first, while they fit a budget of tokens, as by every reader (``qa.readers.within_budget``). So that
this is said of turns, prepare a set with a chunk for each turn. A passage counts for one chunk: an
entry of a memory for the chunk of its last write.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memalpha.errors import InputError
from memalpha.qa.readers import find_passages, within_budget
from memalpha.record.measure import SearchedMemory
from memalpha.record.statistics import Estimate, estimate
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
    InputError.raise_if(
        not question.evidence,
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


def evidence_rows(
    instances: Sequence[Instance],
    memories: Sequence[SearchedMemory],
    budget_tokens: int,
    count: TokenCounter,
) -> list[EvidenceRow]:
    """Return a row for each question with evidence, of what its memory's search finds."""
    rows = []
    for instance, memory in zip(instances, memories, strict=True):
        for question in instance.questions:
            if not question.evidence:
                continue
            found = find_passages(memory.memory, memory.retriever, question.text, memory.k)
            chunks = [entry.source_chunk for entry in found.entries]
            passages = list(map(FoundPassage, found.passages, chunks))
            rows.append(evidence_row(instance.id, question, passages, budget_tokens, count))
    return rows


def recall_by_kind(rows: Iterable[EvidenceRow]) -> dict[str, Estimate]:
    """Return the mean recall of each kind of question and of ``all``, with intervals over
    questions.
    """
    scores: dict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        for name in ("all", row.kind):
            scores[name][f"{row.instance}/{row.question}"] = row.recall
    return {name: estimate({0: by_question}) for name, by_question in scores.items()}
