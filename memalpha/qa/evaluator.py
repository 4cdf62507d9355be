"""Asks the questions of finished memories and scores the answers: retrieve, read, score.

What always holds: the passages of a question are the written block texts, then the retrieved entries, best first; all questions of
a call go to the reader as one batch, and the answers of metric ``judge`` to the judge as one; an answer that a reader or judge
failed to give has score NaN and says why, and never counts as wrong. A failed request of a batch does not mask the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from memalpha.errors import InputError, ServiceError
from memalpha.memory.memory import Memory
from memalpha.memory.render import render_entry
from memalpha.protocols import AnswerJudge, AnswerRequest, Reader, ReadRequest, Retriever
from memalpha.qa.batches import ask_all
from memalpha.qa.metrics import JUDGE, check_metric, score
from memalpha.types import Answer, Question, QuestionRecord


class Found(NamedTuple):
    """Passages for one question, best first, and the ids of the entries among them (blocks have none)."""

    passages: tuple[str, ...]
    ids: tuple[str, ...]


class QAEvaluator:
    """Evaluates memories with one reader.

    Args:
        reader: Answers from passages.
        k: How many entries are retrieved for a question.
        judge: Decides questions of metric ``judge``; without one they are an InputError.
    """

    def __init__(self, reader: Reader, k: int, judge: AnswerJudge | None = None) -> None:
        if k < 1:
            raise InputError(f"k, the number of entries retrieved for a question, is {k}", expected="at least 1")
        self.reader, self.k, self.judge = reader, k, judge

    def evaluate(self, memory: Memory, retriever: Retriever, questions: Sequence[Question]) -> list[QuestionRecord]:
        """Return one record a question on one memory; see ``evaluate_many``."""
        return self.evaluate_many([(memory, retriever, questions)])[0]

    def evaluate_many(self, items: Sequence[tuple[Memory, Retriever, Sequence[Question]]]) -> list[list[QuestionRecord]]:
        """Return, for each memory, one record a question, in order.

        Args:
            items: Memory, the retriever made for it, and its questions (any number).

        Raises:
            InputError: If a question's metric is unknown or cannot score it (before anything is read), or the reader's endpoint
                is set up wrongly.
        """
        self.check([question for _, _, questions in items for question in questions])
        found = [
            (question, find_passages(memory, retriever, question, self.k))
            for memory, retriever, questions in items
            for question in questions
        ]
        records = self.ask([ReadRequest(question, there.passages) for question, there in found])
        named = iter([replace(record, entry_ids=there.ids) for record, (_, there) in zip(records, found, strict=True)])
        return [[next(named) for _ in questions] for _, _, questions in items]

    def check(self, questions: Sequence[Question]) -> None:
        """Raise InputError if a question's metric is unknown or cannot score it."""
        for question in questions:
            check_metric(question.metric, judged=self.judge is not None)
            if question.metric != JUDGE:
                for passages in (None, ()):  # what a reader says, and what one finds who only recalls
                    score(question, Answer("", passages))

    def ask(self, requests: Sequence[ReadRequest]) -> list[QuestionRecord]:
        """Return one record a request, in order, without entry ids; for passages that come from no memory.

        Raises:
            InputError: If a question cannot be scored (``check`` says so before anything is read), or the endpoint is set up
                wrongly.
        """
        answers = ask_all(self.reader.read, requests, type(self.reader).__name__)
        scores = self._scores([request.question for request in requests], answers)
        rows = zip(requests, answers, scores, strict=True)
        return [_record(request.question, answer, scored) for request, answer, scored in rows]

    def _scores(self, questions: Sequence[Question], answers: Sequence[Answer | ServiceError]) -> list[float | ServiceError]:
        """Score each answer; where there is none, or the judge failed, its error."""
        pairs = list(zip(questions, answers, strict=True))
        judged = [AnswerRequest(q, a) for q, a in pairs if q.metric == JUDGE and isinstance(a, Answer)]
        verdicts = iter(ask_all(self.judge.judge, judged, type(self.judge).__name__) if self.judge else [])
        scores: list[float | ServiceError] = []
        for question, answer in pairs:
            if isinstance(answer, ServiceError):
                scores.append(answer)
            else:
                scores.append(next(verdicts) if question.metric == JUDGE else score(question, answer))
        return scores


def find_passages(memory: Memory, retriever: Retriever, question: Question, k: int) -> Found:
    """Return what of a memory a question's reader is given: the written blocks, then ``k`` entries at most, best first."""
    blocks = [memory.block(section.name) for section in memory.schema.blocks]
    entries = [hit.entry for hit in retriever.search(question.text, k)]
    return Found((*(text for text in blocks if text), *map(render_entry, entries)), tuple(entry.id for entry in entries))


def _record(question: Question, answer: Answer | ServiceError, scored: float | ServiceError) -> QuestionRecord:
    said = answer if isinstance(answer, Answer) else None
    if isinstance(scored, ServiceError):
        return QuestionRecord(question, (), said, math.nan, str(scored))
    return QuestionRecord(question, (), said, float(scored))


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """Return the mean of the scores that are known; NaN if none is."""
    known = [record.score for record in records if not math.isnan(record.score)]
    return sum(known) / len(known) if known else math.nan


__all__ = ["Found", "QAEvaluator", "accuracy", "find_passages"]
