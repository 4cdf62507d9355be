"""Question answering on memories: retrieve, read, score.

Training, evaluation and use all call ``find_passages`` and ``answer``. Each call sends one batch to
the reader and one to the judge; a failed reader or judge gives score NaN with the error, never a
wrong answer, and does not affect other requests.
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

_Request = TypeVar("_Request")
_Result = TypeVar("_Result")


class Retrieved(NamedTuple):
    """Passages for a question, best first.

    With the retrieved entries among them, and the entry (or block) of each passage.
    """

    passages: tuple[str, ...]
    hits: tuple[Hit, ...]
    entries: tuple[Entry, ...]


def answer(reader: Reader, requests: Sequence[ReadRequest]) -> list[Answer | ServiceError]:
    """Return each question's answer or its ServiceError, in order, as one batch.

    InputError if the endpoint's setup is wrong.
    """
    return ask_all(reader.read, requests, type(reader).__name__)


def find_passages(memory: Memory, retriever: Retriever, question: str, k: int) -> Retrieved:
    """Return the written blocks of a memory, then what is found with ``k``, best first."""
    blocks = [memory.get(section.name) for section in memory.schema.blocks]
    written = [block for block in blocks if block is not None]
    hits = tuple(retriever.search(question, k))
    passages = [block.content for block in written]
    passages += [render_entry(hit.entry) for hit in hits]
    return Retrieved(tuple(passages), hits, (*written, *(hit.entry for hit in hits)))


class QAEvaluator:
    """Evaluates memories with one reader; retrieves ``k`` entries per question.

    Metric ``judge`` needs a judge.
    """

    def __init__(self, reader: Reader, k: int, judge: AnswerJudge | None = None) -> None:
        self.reader = reader
        self.k = k
        self.judge = judge

    def evaluate_many(
        self, items: Sequence[tuple[Memory, Retriever, Sequence[Question]]]
    ) -> list[list[QuestionRecord]]:
        """Return a record per question of each (memory, retriever, questions).

        InputError as ``check``, before any is read.
        """
        self.check([question for _, _, questions in items for question in questions])
        requests = []
        entry_ids = []
        for memory, retriever, questions in items:
            for question in questions:
                retrieved = find_passages(memory, retriever, question.text, self.k)
                requests.append(ReadRequest(question, retrieved.passages))
                entry_ids.append(tuple(hit.entry.id for hit in retrieved.hits))
        records = iter(self._records(requests, entry_ids))
        return [[next(records) for _ in questions] for _, _, questions in items]

    def check(self, questions: Sequence[Question]) -> None:
        """Raise InputError if a question's metric is unknown or cannot score it."""
        for question in questions:
            check_metric(question.metric, judged=self.judge is not None)
            if question.metric != JUDGE:
                for passages in (None, ()):  # as from a model reader and from RecallReader
                    score(question, Answer("", passages))

    def ask(self, requests: Sequence[ReadRequest]) -> list[QuestionRecord]:
        """Return one record per request, without entry ids, for passages from no memory.

        InputError as in ``evaluate_many``.
        """
        return self._records(requests, [()] * len(requests))

    def _records(
        self, requests: Sequence[ReadRequest], entry_ids: Sequence[tuple[str, ...]]
    ) -> list[QuestionRecord]:
        answers = answer(self.reader, requests)
        to_judge = [
            AnswerRequest(request.question, reply)
            for request, reply in zip(requests, answers, strict=True)
            if request.question.metric == JUDGE and isinstance(reply, Answer)
        ]
        verdicts = iter(
            ask_all(self.judge.judge, to_judge, type(self.judge).__name__) if self.judge else []
        )
        records = []
        for (question, _), reply, ids in zip(requests, answers, entry_ids, strict=True):
            if isinstance(reply, ServiceError):
                records.append(QuestionRecord(question, ids, None, math.nan, str(reply)))
                continue
            value = next(verdicts) if question.metric == JUDGE else score(question, reply)
            if isinstance(value, ServiceError):
                records.append(QuestionRecord(question, ids, reply, math.nan, str(value)))
            else:
                records.append(QuestionRecord(question, ids, reply, float(value)))
        return records


def ask_all(
    ask: Callable[[Sequence[_Request]], Sequence[_Result]], requests: Sequence[_Request], who: str
) -> list[_Result | ServiceError]:
    """Return each request's result or its own ServiceError, in order.

    ``ask`` answers them as one batch, ``who`` is its name.
    """
    if not requests:
        return []
    outcomes: Sequence[_Result | ServiceError]
    try:
        outcomes = ask(requests)
    except ServiceError as error:
        logger.warning("%s: %s", who, error)
        outcomes = [error] * len(requests)
        if isinstance(error, PartialServiceError):
            outcomes = error.outcomes
    ServiceError.raise_if(
        len(outcomes) != len(requests),
        f"{who} gave {len(outcomes)} results for {len(requests)} requests",
    )
    return list(outcomes)
