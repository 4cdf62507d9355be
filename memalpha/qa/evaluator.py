"""Asks the questions of finished memories and scores the answers: retrieve, read, score.

What always holds: the passages of a question are the written block texts, then the retrieved entries, best first; all questions of
a call go to the reader as one batch; an answer that a reader or judge failed to give has score NaN and says why, and never counts
as wrong. A failed request of a batch does not mask the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from memalpha.errors import InputError, ServiceError
from memalpha.memory.render import render_entry
from memalpha.memory.store import Memory
from memalpha.protocols import AnswerJudge, Reader, ReadRequest, Retriever
from memalpha.qa.endpoint import PartialServiceError
from memalpha.qa.metrics import JUDGE, check_metric, score
from memalpha.types import Answer, Question, QuestionRecord

logger = logging.getLogger(__name__)

_MAX_FAILURES_IN_A_ROW = 3


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
        for _, _, questions in items:
            for question in questions:
                check_metric(question.metric, judged=self.judge is not None)
                if question.metric != JUDGE:
                    score(question, Answer(""))
        found = [self._find(memory, retriever, question) for memory, retriever, questions in items for question in questions]
        outcomes = self._read([request for request, _ in found])
        records = iter([self._record(*pair, outcome) for pair, outcome in zip(found, outcomes, strict=True)])
        return [[next(records) for _ in questions] for _, _, questions in items]

    def _find(self, memory: Memory, retriever: Retriever, question: Question) -> tuple[ReadRequest, tuple[str, ...]]:
        blocks = [memory.block(section.name) for section in memory.schema.blocks]
        entries = [hit.entry for hit in retriever.search(question.text, self.k)]
        passages = (*(text for text in blocks if text), *map(render_entry, entries))
        return ReadRequest(question, passages), tuple(entry.id for entry in entries)

    # -------------------------------------------------------------------------------------------- reading
    def _read(self, requests: Sequence[ReadRequest]) -> Sequence[Answer | ServiceError]:
        """Read all requests as one batch; if that fails, keep what it gave, or ask one by one where it gave nothing."""
        if not requests:
            return []
        try:
            answers = self.reader.read(requests)
        except PartialServiceError as error:
            logger.warning("reader: %s", error)
            return error.outcomes
        except ServiceError as error:
            logger.warning("reader: %s; asking %d questions one by one", error, len(requests))
            return self._read_singly(requests)
        if len(answers) != len(requests):
            raise ServiceError(f"{type(self.reader).__name__} gave {len(answers)} answers to {len(requests)} questions")
        return answers

    def _read_singly(self, requests: Sequence[ReadRequest]) -> list[Answer | ServiceError]:
        """Ask one by one; after three failures in a row the reader counts as down and the rest is not asked."""
        outcomes: list[Answer | ServiceError] = []
        in_a_row = 0
        for request in requests:
            try:
                (answer,) = self.reader.read([request])
                outcomes.append(answer)
                in_a_row = 0
            except ServiceError as error:
                outcomes.append(error)
                in_a_row += 1
                if in_a_row == _MAX_FAILURES_IN_A_ROW:
                    unasked = ServiceError(f"not asked, the reader seems to be down; last error: {error}")
                    return outcomes + [unasked] * (len(requests) - len(outcomes))
        return outcomes

    # -------------------------------------------------------------------------------------------- scoring
    def _record(self, request: ReadRequest, entry_ids: tuple[str, ...], outcome: Answer | ServiceError) -> QuestionRecord:
        if isinstance(outcome, ServiceError):
            return QuestionRecord(request.question, entry_ids, None, math.nan, str(outcome))
        try:
            return QuestionRecord(request.question, entry_ids, outcome, self._score(request.question, outcome))
        except ServiceError as error:
            return QuestionRecord(request.question, entry_ids, outcome, math.nan, str(error))

    def _score(self, question: Question, answer: Answer) -> float:
        if question.metric == JUDGE and self.judge is not None:
            return float(self.judge.correct(question, answer))
        return score(question, answer)


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """Return the mean of the scores that are known; NaN if none is."""
    known = [record.score for record in records if not math.isnan(record.score)]
    return sum(known) / len(known) if known else math.nan


__all__ = ["QAEvaluator", "accuracy"]
