"""Question answering on memories: retrieve, read, score. Training, evaluation and use all call
``find_passages`` and ``answer``.

Each call sends one batch to the reader and one to the judge; a failed reader or judge gives score
NaN with the error, never a wrong answer, and does not affect other requests.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from memalpha.errors import PartialServiceError, ServiceError
from memalpha.memory.memory import Memory, render_entry
from memalpha.protocols import AnswerJudge, AnswerRequest, Hit, Reader, ReadRequest, Retriever
from memalpha.qa.metrics import JUDGE, check_metric, score
from memalpha.types import Answer, Entry, Question, QuestionRecord

logger = logging.getLogger(__name__)

Request = TypeVar("Request")
Result = TypeVar("Result")


class Found(NamedTuple):
    """Passages for a question, best first, the retrieved entries among them, and the entry (or
    block) of each passage.
    """

    passages: tuple[str, ...]
    hits: tuple[Hit, ...]
    entries: tuple[Entry, ...]


def answer(reader: Reader, requests: Sequence[ReadRequest]) -> list[Answer | ServiceError]:
    """Return each question's answer or its ServiceError, in order, as one batch; InputError if the
    endpoint's setup is wrong.
    """
    return ask_all(reader.read, requests, type(reader).__name__)


def find_passages(memory: Memory, retriever: Retriever, question: str, k: int) -> Found:
    """Return the written blocks of a memory, then what is found with ``k``, best first."""
    blocks = [block for section in memory.schema.blocks if (block := memory.get(section.name))]
    hits = tuple(retriever.search(question, k))
    passages = (*(block.content for block in blocks), *(render_entry(hit.entry) for hit in hits))
    return Found(passages, hits, (*blocks, *(hit.entry for hit in hits)))


class QAEvaluator:
    """Evaluates memories with one reader; retrieves ``k`` entries per question. Metric ``judge``
    needs a judge.
    """

    def __init__(self, reader: Reader, k: int, judge: AnswerJudge | None = None) -> None:
        self.reader, self.k, self.judge = reader, k, judge

    def evaluate_many(
        self, items: Sequence[tuple[Memory, Retriever, Sequence[Question]]]
    ) -> list[list[QuestionRecord]]:
        """Return a record per question of each (memory, retriever, questions); InputError as
        ``check``, before any is read.
        """
        self.check([question for _, _, questions in items for question in questions])
        asked = [
            (question, memory, retriever)
            for memory, retriever, questions in items
            for question in questions
        ]
        found = [
            find_passages(memory, retriever, question.text, self.k)
            for question, memory, retriever in asked
        ]
        requests = [
            ReadRequest(question, there.passages)
            for (question, _, _), there in zip(asked, found, strict=True)
        ]
        records = iter(
            self._records(requests, [tuple(hit.entry.id for hit in there.hits) for there in found])
        )
        return [[next(records) for _ in questions] for _, _, questions in items]

    def check(self, questions: Sequence[Question]) -> None:
        """Raise InputError if a question's metric is unknown or cannot score it."""
        for question in questions:
            check_metric(question.metric, judged=self.judge is not None)
            if question.metric != JUDGE:
                for passages in (None, ()):  # as from a model reader and from RecallReader
                    score(question, Answer("", passages))

    def ask(self, requests: Sequence[ReadRequest]) -> list[QuestionRecord]:
        """Return one record per request, without entry ids, for passages from no memory; InputError
        as in ``evaluate_many``.
        """
        return self._records(requests, [()] * len(requests))

    def _records(
        self, requests: Sequence[ReadRequest], ids: Sequence[tuple[str, ...]]
    ) -> list[QuestionRecord]:
        rows = list(
            zip(
                [request.question for request in requests],
                answer(self.reader, requests),
                ids,
                strict=True,
            )
        )
        judged = [
            AnswerRequest(q, a) for q, a, _ in rows if q.metric == JUDGE and isinstance(a, Answer)
        ]
        verdicts = iter(
            ask_all(self.judge.judge, judged, type(self.judge).__name__) if self.judge else []
        )
        records = []
        for question, said, entries in rows:
            if isinstance(said, ServiceError):
                records.append(QuestionRecord(question, entries, None, math.nan, str(said)))
            elif isinstance(
                scored := next(verdicts) if question.metric == JUDGE else score(question, said),
                ServiceError,
            ):
                records.append(QuestionRecord(question, entries, said, math.nan, str(scored)))
            else:
                records.append(QuestionRecord(question, entries, said, float(scored)))
        return records


def accuracy(records: Sequence[QuestionRecord]) -> float:
    """Return the mean of the scores that are not NaN; NaN if there are none."""
    known = [record.score for record in records if not math.isnan(record.score)]
    return sum(known) / len(known) if known else math.nan


def ask_all(
    ask: Callable[[Sequence[Request]], Sequence[Result]], requests: Sequence[Request], who: str
) -> list[Result | ServiceError]:
    """Return each request's result or its own ServiceError, in order; ``ask`` answers them as one
    batch, ``who`` is its name.
    """
    if not requests:
        return []
    outcomes: Sequence[Result | ServiceError]
    try:
        outcomes = ask(requests)
    except ServiceError as error:
        logger.warning("%s: %s", who, error)
        outcomes = (
            error.outcomes if isinstance(error, PartialServiceError) else [error] * len(requests)
        )
    if len(outcomes) != len(requests):
        raise ServiceError(f"{who} gave {len(outcomes)} results for {len(requests)} requests")
    return list(outcomes)
