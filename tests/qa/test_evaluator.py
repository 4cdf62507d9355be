from __future__ import annotations

import math

import pytest
from stub_server import error

from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.qa.readers import EndpointReader, QAEvaluator, RecallReader, ask_all
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Answer, Operation, OperationKind, Question, QuestionRecord


class FlakyReader:
    """Answers with the question, but fails for some; keeps what it was asked."""

    def __init__(self, *bad):
        self.bad, self.calls = bad, []

    def read(self, requests):
        texts = [request.question.text for request in requests]
        self.calls.append(texts)
        outcomes = [
            ServiceError(f"cannot read {text}") if text in self.bad else Answer(text)
            for text in texts
        ]
        if set(texts) & set(self.bad):
            raise PartialServiceError(outcomes)
        return outcomes


def memory(*contents: str, core: str = "") -> Memory:
    made = Memory(MemorySchema.load("mem_alpha"))
    for content in contents:
        made.apply(Operation(OperationKind.INSERT, "episodic", content), time="2023-01-05")
    if core:
        made.apply(Operation(OperationKind.REPLACE, "core", core))
    return made


def item(made: Memory, *questions: Question):
    return made, TwoLayerRetriever(made), questions


def q(text: str, *answers: str, metric: str = "substring", **more) -> Question:
    return Question(text, answers or (text,), metric, **more)


RECALL = RecallReader(100, count_words)


def test_blocks_come_first_then_the_best_k_entries():
    made = memory("marta city oslo", "oskar city rome", "nadia dog", core="I am Marta")
    (record,) = QAEvaluator(RECALL, k=2).evaluate_many([item(made, q("city of oskar", "rome"))])[0]
    passages = ("I am Marta", "[2023-01-05] oskar city rome", "[2023-01-05] marta city oslo")
    assert record == QuestionRecord(
        q("city of oskar", "rome"), ("2", "1"), Answer("\n".join(passages), passages), 1.0
    )


def test_many_memories_are_one_batch_and_each_is_asked_its_own():
    oslo, rome = memory("marta city oslo"), memory("marta city rome")
    question = q("city of marta", "rome", metric="bound", subject="Marta", stale=("oslo",))
    reader = FlakyReader()
    records = QAEvaluator(RECALL, k=5).evaluate_many(
        [item(oslo, question), item(memory()), item(rome, question, q("none such"))]
    )
    assert [[record.score for record in row] for row in records] == [[0.0], [], [1.0, 0.0]]
    QAEvaluator(reader, k=5).evaluate_many([item(oslo, q("a"), q("b")), item(rome, q("c"))])
    assert reader.calls == [["a", "b", "c"]]


# ------------------------------------------------------------------------------------------------
# failures
def test_an_endpoint_that_fails_for_one_question_masks_only_that_one_and_is_not_asked_twice(
    chat_server,
):
    chat_server.fault_for = lambda body: (
        error(500, "worn out") if "Question: b\n" in body["messages"][1]["content"] else None
    )
    chat_server.reply = lambda body: "answer"
    client = ChatClient(chat_server.url, "m", retries=2, backoff=0)
    evaluator = QAEvaluator(EndpointReader(client, 10, count_words), k=1)
    records = evaluator.evaluate_many(
        [item(memory(), q("a", "answer"), q("b", "answer"), q("c", "answer"))]
    )[0]
    assert [record.score for record in records] == [1.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    assert "worn out" in records[1].error and records[1].answer is None
    assert len(chat_server.bodies) == 1 + 3 + 1


# ------------------------------------------------------------------------------------------------
# judges and input


def test_all_answers_of_all_memories_go_to_the_judge_as_one_batch_and_missing_ones_do_not():
    asked = []

    class Judge:
        def judge(self, requests):
            asked.append([(request.question.text, request.answer.text) for request in requests])
            return [request.answer.text in ("a", "d") for request in requests]

    judged = [q(text, metric="judge") for text in "abcd"]
    evaluator = QAEvaluator(FlakyReader("c"), 1, Judge())
    records = evaluator.evaluate_many(
        [item(memory(), judged[0], q("x")), item(memory(), *judged[1:])]
    )
    assert [[record.score for record in row] for row in records] == [
        [1.0, 1.0],
        [0.0, pytest.approx(math.nan, nan_ok=True), 1.0],
    ]
    assert records[1][1].error == "cannot read c"
    assert asked == [[("a", "a"), ("b", "b"), ("d", "d")]]


UNFIT = [
    q("a", metric="judge"),
    q("a", metric="bleu"),
    q("a", "x", metric="boxed"),
    Question("a", ()),
]


@pytest.mark.parametrize("question", UNFIT)
def test_a_question_that_cannot_be_scored_stops_before_anything_is_read(question):
    reader = FlakyReader()
    with pytest.raises(InputError):
        QAEvaluator(reader, k=1).evaluate_many([item(memory(), q("b"), question)])[0]
    assert reader.calls == []


# ------------------------------------------------------------------------------------------------
# batches of a service that fails
def test_each_request_has_its_own_outcome_and_a_plain_failure_is_that_of_all():
    def doubling(numbers):
        if 1 in numbers:
            raise PartialServiceError([ServiceError("no 1") if n == 1 else 2 * n for n in numbers])
        if 7 in numbers:
            raise ServiceError("down")
        if 8 in numbers:
            raise InputError("no such model")
        return [2 * n for n in numbers]

    assert ask_all(doubling, [0, 2], "it") == [0, 4] and ask_all(doubling, [], "it") == []
    assert list(map(str, ask_all(doubling, [0, 1, 2], "it"))) == ["0", "no 1", "4"]
    assert list(map(str, ask_all(doubling, [6, 7], "it"))) == ["down", "down"]
    with pytest.raises(
        InputError, match="no such model"
    ):  # a wrong setup is no failure of a request
        ask_all(doubling, [8], "it")
    for answers in ([], [1], [1, 2, 3]):
        with pytest.raises(ServiceError, match=f"it gave {len(answers)} results for 2 requests"):
            ask_all(lambda numbers, answers=answers: answers, [1, 2], "it")
