"""Asks the questions of what a system kept, with one reader, and measures what the reader saw."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.evaluation.readers import BudgetedReader
from memalpha.evaluation.results import QuestionResult
from memalpha.evaluation.systems.base import Kept, Room
from memalpha.protocols import AnswerJudge, ReadRequest, TokenCounter
from memalpha.qa.evaluator import QAEvaluator
from memalpha.types import Instance, QuestionRecord


@dataclass(frozen=True, slots=True)
class Reading:
    """What came of one instance's questions.

    Attributes:
        questions: The scored questions, in order.
        reader_tokens: Mean tokens a question's reader saw; 0 without questions.
        cut: Tokens not read for lack of room, on average over the questions, rounded.
        seconds: Wall time: the batch's, shared evenly by its questions.
    """

    questions: tuple[QuestionResult, ...]
    reader_tokens: float
    cut: int
    seconds: float

    @property
    def failed(self) -> str | None:
        """Why a question has no score, if one has none."""
        return next((question.error for question in self.questions if question.error is not None), None)

    @property
    def answered(self) -> bool:
        """Whether a question was answered and scored, or none was asked."""
        return not self.questions or any(question.error is None for question in self.questions)


def ask(
    instances: Sequence[Instance],
    kept: Sequence[Kept],
    reader: BudgetedReader,
    room: Room,
    count: TokenCounter,
    judge: AnswerJudge | None = None,
) -> list[Reading]:
    """Return one reading an instance, in order; all questions go to the reader as one batch.

    Args:
        instances: Whose questions are asked.
        kept: What the system kept of each.
        reader: Reads at most ``room.tokens``.
        room: What the reader takes.
        count: Counts tokens.
        judge: Decides the questions of metric ``judge``.

    Raises:
        InputError: If a question cannot be scored, or the reader's endpoint is set up wrongly.
    """
    clock = time.perf_counter()
    found = [memory.find(instance.questions, room) for instance, memory in zip(instances, kept, strict=True)]
    requests = [
        ReadRequest(question, passages)
        for instance, each in zip(instances, found, strict=True)
        for question, passages in zip(instance.questions, each, strict=True)
    ]
    records = iter(QAEvaluator(reader, 1, judge).ask(requests))
    seconds = (time.perf_counter() - clock) / max(1, len(requests))
    asked = iter(requests)
    return [
        _reading([(next(asked), next(records)) for _ in instance.questions], instance, kept_of, room, reader, count, seconds)
        for instance, kept_of in zip(instances, kept, strict=True)
    ]


def _reading(
    rows: Sequence[tuple[ReadRequest, QuestionRecord]],
    instance: Instance,
    kept: Kept,
    room: Room,
    reader: BudgetedReader,
    count: TokenCounter,
    seconds: float,
) -> Reading:
    read = [reader.passages(request) for request, _ in rows]
    seen = [sum(map(count, passages)) for passages in read]
    offered = [sum(map(count, request.passages)) for request, _ in rows]
    questions = tuple(
        QuestionResult(
            id=record.question.id or str(index),
            kind=record.question.kind,
            text=record.question.text,
            score=record.score,
            answer=record.answer.text if record.answer else None,
            passages=passages,
            error=record.error,
        )
        for index, ((_, record), passages) in enumerate(zip(rows, read, strict=True))
    )
    n = max(1, len(rows))
    cut = kept.left_out(room) + round((sum(offered) - sum(seen)) / n)
    return Reading(questions, sum(seen) / n, cut, seconds * len(rows))


__all__ = ["Reading", "ask"]
