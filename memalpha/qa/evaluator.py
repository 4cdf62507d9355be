"""From questions to answers, and from answers to scores: retrieve, read, score.

``find_passages`` and ``answer`` are the only way from a question to an answer about a memory: training, evaluation,
``MemoryAgent.ask``, the chat and the server call them. What always holds: the passages of a question are the written block texts,
then the retrieved entries, best first; all questions of a call go to the reader as one batch, and the answers of metric
``judge`` to the judge as one; an answer that a reader or judge failed to give has score NaN and says why, and never counts as
wrong. A failed request of a batch does not mask the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from memalpha.errors import PartialServiceError, ServiceError
from memalpha.memory.memory import Memory, render_entry
from memalpha.protocols import AnswerJudge, AnswerRequest, Hit, Reader, ReadRequest, Retriever
from memalpha.qa.metrics import JUDGE, check_metric, score
from memalpha.types import Answer, Question, QuestionRecord

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")

_MAX_FAILURES_IN_A_ROW = 3


class Found(NamedTuple):
    """What of a memory a question's reader is given: passages, best first, and the retrieved entries among them."""

    passages: tuple[str, ...]
    hits: tuple[Hit, ...]


def answer(reader: Reader, requests: Sequence[ReadRequest]) -> list[Answer | ServiceError]:
    """Return the reader's answer to each question and its passages, or why there is none, in order; one batch.

    Raises:
        InputError: If the reader's endpoint is set up wrongly.
    """
    return ask_all(reader.read, requests, type(reader).__name__)


def find_passages(memory: Memory, retriever: Retriever, question: str, k: int) -> Found:
    """Return the written blocks of a memory, then at most ``k`` of its entries, best first."""
    blocks = [memory.block(section.name) for section in memory.schema.blocks]
    hits = tuple(retriever.search(question, k))
    return Found((*(text for text in blocks if text), *(render_entry(hit.entry) for hit in hits)), hits)


class QAEvaluator:
    """Evaluates memories with one reader.

    Args:
        reader: Answers from passages.
        k: How many entries are retrieved for a question.
        judge: Decides questions of metric ``judge``; without one they are an InputError.
    """

    def __init__(self, reader: Reader, k: int, judge: AnswerJudge | None = None) -> None:
        self.reader, self.k, self.judge = reader, k, judge

    def evaluate_many(self, items: Sequence[tuple[Memory, Retriever, Sequence[Question]]]) -> list[list[QuestionRecord]]:
        """Return, for each memory, one record a question, in order.

        Args:
            items: Memory, the retriever made for it, and its questions (any number).

        Raises:
            InputError: If a question's metric is unknown or cannot score it (before anything is read), or the reader's endpoint
                is set up wrongly.
        """
        self.check([question for _, _, questions in items for question in questions])
        asked = [(question, memory, retriever) for memory, retriever, questions in items for question in questions]
        found = [find_passages(memory, retriever, question.text, self.k) for question, memory, retriever in asked]
        requests = [ReadRequest(question, there.passages) for (question, _, _), there in zip(asked, found, strict=True)]
        ids = [tuple(hit.entry.id for hit in there.hits) for there in found]
        records = iter(self._records([question for question, _, _ in asked], answer(self.reader, requests), ids))
        return [[next(records) for _ in questions] for _, _, questions in items]

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
        return self._records([request.question for request in requests], answer(self.reader, requests), [()] * len(requests))

    def _records(
        self, questions: Sequence[Question], answers: Sequence[Answer | ServiceError], ids: Sequence[tuple[str, ...]]
    ) -> list[QuestionRecord]:
        """Score each answer; where there is none, or the judge failed, the score is NaN."""
        rows = list(zip(questions, answers, ids, strict=True))
        judged = [AnswerRequest(q, a) for q, a, _ in rows if q.metric == JUDGE and isinstance(a, Answer)]
        verdicts = iter(ask_all(self.judge.judge, judged, type(self.judge).__name__) if self.judge else [])
        records = []
        for question, said, entries in rows:
            if isinstance(said, ServiceError):
                records.append(QuestionRecord(question, entries, None, math.nan, str(said)))
                continue
            scored = next(verdicts) if question.metric == JUDGE else score(question, said)
            if isinstance(scored, ServiceError):
                records.append(QuestionRecord(question, entries, said, math.nan, str(scored)))
            else:
                records.append(QuestionRecord(question, entries, said, float(scored)))
        return records


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """Return the mean of the scores that are known; NaN if none is."""
    known = [record.score for record in records if not math.isnan(record.score)]
    return sum(known) / len(known) if known else math.nan


def ask_all(
    ask: Callable[[Sequence[Request]], Sequence[Result]], requests: Sequence[Request], who: str
) -> list[Result | ServiceError]:
    """Return each request's result or its own ServiceError, in order; a failed request takes no other with it.

    A service that fails as a whole (a plain ServiceError) is asked request by request; after three failures in a row it counts as
    down and the rest is not asked.

    Args:
        ask: Gives one result a request, or raises ServiceError; PartialServiceError keeps what it could give.
        requests: The batch; an empty one asks nothing.
        who: Who is asked, for messages.

    Raises:
        ServiceError: If there is not one result a request: then nobody knows whose they are.
    """
    if not requests:
        return []
    outcomes: Sequence[Result | ServiceError]
    try:
        outcomes = ask(requests)
    except PartialServiceError as error:
        logger.warning("%s: %s", who, error)
        outcomes = error.outcomes
    except ServiceError as error:
        logger.warning("%s: %s", who, error)
        outcomes = _ask_singly(ask, requests, who) if len(requests) > 1 else [error]
    return list(_one_each(outcomes, len(requests), who))


def _one_each(outcomes: Sequence[Result], requests: int, who: str) -> Sequence[Result]:
    if len(outcomes) != requests:
        raise ServiceError(f"{who} gave {len(outcomes)} results for {requests} requests")
    return outcomes


def _ask_singly(
    ask: Callable[[Sequence[Request]], Sequence[Result]], requests: Sequence[Request], who: str
) -> list[Result | ServiceError]:
    outcomes: list[Result | ServiceError] = []
    in_a_row = 0
    for request in requests:
        try:
            outcomes += _one_each(ask([request]), 1, who)
            in_a_row = 0
        except ServiceError as error:
            outcomes.append(error)
            in_a_row += 1
            if in_a_row == _MAX_FAILURES_IN_A_ROW:
                unasked = ServiceError(f"{error}; the service seems to be down, so this was not asked")
                return outcomes + [unasked] * (len(requests) - len(outcomes))
    return outcomes
