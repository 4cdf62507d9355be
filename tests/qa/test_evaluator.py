from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_server import error

from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.memory.memory import Memory, count_words, render_entry
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Hit
from memalpha.qa.evaluator import QAEvaluator, accuracy, ask_all
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.readers import EndpointReader, RecallReader
from memalpha.types import Answer, Entry, Operation, OperationKind, Question, QuestionRecord


class WordRetriever:
    """Ranks entries by the number of words shared with the query, ties by age."""

    def __init__(self, memory):
        self.memory = memory

    def search(self, query, k, sections=None):
        wanted = set(query.lower().split())
        hits = [Hit(entry, float(len(wanted & set(entry.content.lower().split())))) for entry in self.memory.entries()]
        return sorted(hits, key=lambda hit: -hit.score)[:k]


class FlakyReader:
    """Fails for a batch that holds a question it fails for; else answers with the question."""

    def __init__(self, bad, batch=True):
        self.bad, self.calls = bad, []

    def read(self, requests):
        texts = [request.question.text for request in requests]
        self.calls.append(texts)
        if broken := [text for text in texts if text in self.bad]:
            raise ServiceError(f"cannot read {broken[0]}")
        return [Answer(text) for text in texts]


def memory(*contents: str, core: str = "") -> Memory:
    made = Memory(MemorySchema.load("mem_alpha"))
    for content in contents:
        made.apply(Operation(OperationKind.INSERT, "episodic", content), time="2023-01-05")
    if core:
        made.apply(Operation(OperationKind.REPLACE, "core", core))
    return made


def item(made: Memory, *questions: Question):
    return made, WordRetriever(made), questions


def q(text: str, *answers: str, metric: str = "substring", **more) -> Question:
    return Question(text, answers or (text,), metric, **more)


RECALL = RecallReader(100, count_words)


def test_render_entry():
    assert render_entry(Entry("1", "episodic", "went home", "2023-01-05")) == "[2023-01-05] went home"
    assert render_entry(Entry("1", "semantic", "likes tea")) == "likes tea"


def test_blocks_come_first_then_the_best_k_entries():
    made = memory("marta city oslo", "oskar city rome", "nadia dog", core="I am Marta")
    (record,) = QAEvaluator(RECALL, k=2).evaluate_many([(made, WordRetriever(made), [q("city of oskar", "rome")])])[0]
    assert record == QuestionRecord(
        q("city of oskar", "rome"),
        ("2", "1"),
        Answer(
            "I am Marta\n[2023-01-05] oskar city rome\n[2023-01-05] marta city oslo",
            ("I am Marta", "[2023-01-05] oskar city rome", "[2023-01-05] marta city oslo"),
        ),
        1.0,
    )


def test_an_empty_memory_answers_nothing():
    made = memory()
    (record,) = QAEvaluator(RECALL, k=2).evaluate_many([(made, WordRetriever(made), [q("x")])])[0]
    assert (record.answer, record.score, record.entry_ids) == (Answer("", ()), 0.0, ())


def test_many_memories_are_one_batch_and_each_is_asked_its_own():
    oslo, rome = memory("marta city oslo"), memory("marta city rome")
    question = q("city of marta", "rome", metric="bound", subject="Marta", stale=("oslo",))
    reader = FlakyReader(bad=())
    records = QAEvaluator(RECALL, k=5).evaluate_many([item(oslo, question), item(memory()), item(rome, question, q("none such"))])
    assert [[record.score for record in row] for row in records] == [[0.0], [], [1.0, 0.0]]
    QAEvaluator(reader, k=5).evaluate_many([item(oslo, q("a"), q("b")), item(rome, q("c"))])
    assert reader.calls == [["a", "b", "c"]]


def test_no_questions_at_all_read_nothing():
    reader = FlakyReader(bad=())
    assert QAEvaluator(reader, k=1).evaluate_many([item(memory())]) == [[]]
    assert reader.calls == []


# ------------------------------------------------------------------------------------------------ failures
def test_one_bad_request_masks_only_itself():
    reader = FlakyReader(bad=("b",))
    records = QAEvaluator(reader, k=1).evaluate_many([item(memory(), q("a"), q("b"), q("c", "other"))])[0]
    assert [record.score for record in records] == [1.0, pytest.approx(math.nan, nan_ok=True), 0.0]
    assert records[1].answer is None
    assert records[1].error == "cannot read b"
    assert reader.calls == [["a", "b", "c"], ["a"], ["b"], ["c"]]
    assert accuracy(records) == 0.5


def test_a_reader_that_is_down_is_not_asked_for_ever():
    texts = [f"q{i}" for i in range(50)]
    reader = FlakyReader(bad=texts)
    records = QAEvaluator(reader, k=1).evaluate_many([item(memory(), *map(q, texts))])[0]
    assert all(math.isnan(record.score) for record in records)
    assert len(reader.calls) == 1 + 3
    assert records[2].error == "cannot read q2"
    assert records[49].error == "cannot read q2; the service seems to be down, so this was not asked"
    assert math.isnan(accuracy(records))


def test_failures_must_be_in_a_row_to_count_as_down():
    texts = [f"q{i}" for i in range(9)]
    reader = FlakyReader(bad=[text for i, text in enumerate(texts) if i % 3 != 2])
    records = QAEvaluator(reader, k=1).evaluate_many([item(memory(), *map(q, texts))])[0]
    assert [math.isnan(record.score) for record in records] == [True, True, False] * 3


def test_an_endpoint_that_fails_for_one_question_masks_only_that_one_and_is_not_asked_twice(chat_server):
    chat_server.fault_for = lambda body: error(500, "worn out") if "Question: b\n" in body["messages"][1]["content"] else None
    chat_server.reply = lambda body: "answer"
    client = ChatClient(chat_server.url, "m", retries=2, backoff=0)
    evaluator = QAEvaluator(EndpointReader(client, 10, count_words), k=1)
    records = evaluator.evaluate_many([item(memory(), q("a", "answer"), q("b", "answer"), q("c", "answer"))])[0]
    assert [record.score for record in records] == [1.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    assert "worn out" in records[1].error
    assert len(chat_server.bodies) == 1 + 3 + 1


def test_a_reader_that_loses_an_answer_is_an_error():
    class Loser:
        def read(self, requests):
            return [Answer("x")]

    with pytest.raises(ServiceError, match="Loser gave 1 results for 2 requests"):
        QAEvaluator(Loser(), k=1).evaluate_many([item(memory(), q("a"), q("b"))])[0]


# ------------------------------------------------------------------------------------------------ judges and input
def test_a_judge_decides_and_its_failure_is_masked(chat_server):
    chat_server.reply = lambda body: "Yes." if '"given_answer": "a"' in body["messages"][1]["content"] else "no"
    chat_server.fault_for = lambda body: error(500) if '"given_answer": "c"' in body["messages"][1]["content"] else None
    judge = EndpointAnswerJudge(ChatClient(chat_server.url, "m", retries=0))
    questions = [q(text, metric="judge") for text in "abc"] + [q("d")]
    records = QAEvaluator(FlakyReader(bad=()), 1, judge).evaluate_many([item(memory(), *questions)])[0]
    assert [record.score for record in records] == [1.0, 0.0, pytest.approx(math.nan, nan_ok=True), 1.0]
    assert records[2].answer == Answer("c")
    assert "HTTP 500" in records[2].error


def test_all_answers_of_all_memories_go_to_the_judge_as_one_batch_and_missing_ones_do_not():
    asked = []

    class Judge:
        def judge(self, requests):
            asked.append([(request.question.text, request.answer.text) for request in requests])
            return [request.answer.text in ("a", "d") for request in requests]

    judged = [q(text, metric="judge") for text in "abcd"]
    evaluator = QAEvaluator(FlakyReader(bad=("c",)), 1, Judge())
    records = evaluator.evaluate_many([item(memory(), judged[0], q("x")), item(memory(), *judged[1:])])
    assert [[record.score for record in row] for row in records] == [[1.0, 1.0], [0.0, pytest.approx(math.nan, nan_ok=True), 1.0]]
    assert records[1][1].error == "cannot read c"
    assert asked == [[("a", "a"), ("b", "b"), ("d", "d")]]


@pytest.mark.parametrize(
    "question", [q("a", metric="judge"), q("a", metric="bleu"), q("a", "x", metric="boxed"), Question("a", ())]
)
def test_a_question_that_cannot_be_scored_stops_before_anything_is_read(question):
    reader = FlakyReader(bad=())
    with pytest.raises(InputError):
        QAEvaluator(reader, k=1).evaluate_many([item(memory(), q("b"), question)])[0]
    assert reader.calls == []


def test_accuracy_of_nothing_is_unknown():
    assert math.isnan(accuracy([]))


def test_a_question_that_needs_a_subject_is_refused_before_anything_is_read():
    with pytest.raises(InputError, match="has metric 'bound' and no subject"):
        QAEvaluator(RecallReader(9, count_words), 1).check([q("city of marta", "rome", metric="bound")])


# ------------------------------------------------------------------------------------------------ batches of a service that fails
class Service:
    """Doubles numbers. Fails as a whole if a number of the batch is bad, or for that number alone if it can."""

    def __init__(self, bad, partial):
        self.bad, self.partial, self.calls = bad, partial, []

    def double(self, numbers):
        self.calls.append(list(numbers))
        outcomes = [ServiceError(f"no {n}") if n in self.bad else 2 * n for n in numbers]
        failed = [outcome for outcome in outcomes if isinstance(outcome, ServiceError)]
        if failed:
            raise PartialServiceError(outcomes) if self.partial else failed[0]
        return outcomes


def shown(outcomes):
    return [str(outcome) if isinstance(outcome, ServiceError) else outcome for outcome in outcomes]


@given(st.lists(st.booleans(), max_size=12), st.booleans())
def test_each_request_has_its_own_outcome(fails, partial):
    service = Service({n for n, bad in enumerate(fails) if bad}, partial)
    expected, in_a_row = [], 0
    for n, bad in enumerate(fails):
        if in_a_row == 3 and not partial:
            last = next(m for m in reversed(range(n)) if fails[m] and str(expected[m]) == f"no {m}")
            expected.append(f"no {last}; the service seems to be down, so this was not asked")
            continue
        expected.append(f"no {n}" if bad else 2 * n)
        in_a_row = in_a_row + 1 if bad else 0
    assert shown(ask_all(service.double, list(range(len(fails))), "it")) == expected
    if partial or not any(fails):
        assert len(service.calls) == (1 if fails else 0)


def test_a_result_too_few_or_too_many_is_nobodys():
    for answers in ([], [1], [1, 2, 3]):
        with pytest.raises(ServiceError, match=f"it gave {len(answers)} results for 2 requests"):
            ask_all(lambda numbers, answers=answers: answers, [1, 2], "it")
    with pytest.raises(ServiceError, match="1 results for 2"):
        ask_all(lambda numbers: (_ for _ in ()).throw(PartialServiceError([ServiceError("x")])), [1, 2], "it")


def test_a_result_too_few_for_one_request_is_that_requests_failure():
    def shy(numbers):
        if len(numbers) > 1:
            raise ServiceError("too many")
        return [2 * n for n in numbers if n != 1]

    assert shown(ask_all(shy, [0, 1, 2], "it")) == [0, "it gave 0 results for 1 requests", 4]


def test_a_wrong_setup_is_no_failure_of_a_request():
    def wrong(numbers):
        raise InputError("no such model")

    with pytest.raises(InputError, match="no such model"):
        ask_all(wrong, [1], "it")
