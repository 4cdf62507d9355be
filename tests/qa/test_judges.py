from __future__ import annotations

import json
import random

import pytest
from stub_server import error

from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import teacher_operations
from memalpha.endpoints import ChatClient
from memalpha.errors import PartialServiceError, ServiceError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import AnswerRequest, WriteRequest
from memalpha.qa.judges import (
    EndpointAnswerJudge,
    EndpointContentJudge,
    FactContentJudge,
)
from memalpha.types import (
    Answer,
    Chunk,
    Entry,
    Fact,
    FactAction,
    Operation,
    OperationKind,
    OperationResult,
    Question,
    ResultCode,
)


def write(
    before: str | None, after: str | None, section: str = "facts"
) -> tuple[OperationResult, Entry | None]:
    kind = (
        OperationKind.INSERT
        if before is None
        else OperationKind.DELETE
        if after is None
        else OperationKind.UPDATE
    )
    operation = Operation(kind, section, after, None if before is None else "1")
    return OperationResult(
        True, ResultCode.APPLIED, "", operation, "1"
    ), None if before is None else Entry("1", section, before)


def request(
    chunk: str,
    *writes: tuple[str | None, ...],
    index: int = 0,
    time: str | None = None,
    kept: tuple[str, ...] = (),
) -> WriteRequest:
    made = [write(*pair) for pair in writes]
    entries = tuple(Entry(str(number), "facts", content) for number, content in enumerate(kept))
    return WriteRequest(
        "i",
        index,
        Chunk(chunk, time),
        tuple(r for r, _ in made),
        tuple(b for _, b in made),
        entries,
    )


# ------------------------------------------------------------------------------------------------
# by words
SAID = "Marta: I moved to Oslo. Oskar: I do not own a parrot any more."


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((None, "Marta city Oslo"), True),  # 2 of 3 words
        ((None, "Marta city Rome"), False),  # 1 of 3
        ((None, "The home of Marta is in Oslo"), True),  # stop words aside: home, marta, oslo
        ((None, "it is the"), False),  # says nothing
        (("Marta city Rome", "Marta city Oslo"), True),
        (
            ("Marta city Rome", "Marta city Lima"),
            True,
        ),  # marta and city stand in the old entry: words see no more
        (("Marta city Rome", "Viktor job pilot"), False),
        (("Oskar job nurse", None), False),  # only Oskar is in the chunk
        (("Nadia city Oslo", None), False),  # only Oslo is
        (("parrot", None), True),  # its only word is
        (("Marta 2023", None), True),  # numbers aside, its only word is in the chunk
    ],
)
def test_grounded_verdicts(pair, expected):
    assert FactContentJudge().judge([request(SAID, pair)]) == [[expected]]


def test_a_delete_that_the_same_chunk_replaces_is_valid_and_its_time_is_read():
    judge = FactContentJudge()
    dated = request(
        SAID,
        ("Marta nurse (2023-01-01)", None),
        (None, "Marta Oslo (2023-02-01)"),
        time="2023-02-01",
    )
    assert judge.judge([dated]) == [[False, True]]  # a shared year is no replacement
    assert judge.judge(
        [request(SAID), request(SAID, (None, "Marta 2023-02-01"), time="2023-02-01")]
    ) == [[], [True]]
    assert judge.judge([request(SAID, (None, "Marta 2023-02-01"))]) == [[False]]
    assert judge.judge([request(SAID, ("Marta city Rome", None), (None, "Marta city Oslo"))]) == [
        [True, True]
    ]
    assert judge.judge([request(SAID, (None, "Marta city Oslo"), ("Marta city Rome", None))]) == [
        [True, True]
    ]
    assert judge.judge([request(SAID, ("Marta city Rome", None), (None, "Marta city Lima"))]) == [
        [False, False]
    ]
    assert judge.judge([request(SAID, ("Marta job nurse", None), (None, "Marta city Oslo"))]) == [
        [False, True]
    ]
    assert judge.judge([request(SAID, ("Nadia city Rome", None), (None, "Marta city Oslo"))]) == [
        [False, True]
    ]


# ------------------------------------------------------------------------------------------------
# by annotations
S, C, R = FactAction.STATE, FactAction.CHANGE, FactAction.RETRACT
FACTS = (
    Fact(0, S, "Marta", "city", "Rome"),
    Fact(0, S, "Marta", "job", "nurse"),
    Fact(0, S, "Oskar", "pet", "parrot"),
    Fact(0, S, "Oskar", "pet", "dog"),
    Fact(1, C, "Marta", "city", "Oslo", previous="Rome"),
    Fact(1, R, "Oskar", "pet", "parrot"),
    Fact(1, S, "Oskar", "pet", "cat"),
)


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((None, "marta city OSLO"), True),
        ((None, "Oskar city Oslo"), False),  # of another person
        ((None, "Oskar pet parrot"), False),  # retracted
        (("Marta city Rome", "Marta city Oslo"), True),
        (("Marta job nurse", "Marta city Oslo"), False),  # not the entry of the previous value
        (("Marta nurse in Rome", "Marta city Oslo"), False),  # loses the job, which still holds
        (("Marta nurse in Rome", "Marta nurse in Oslo"), True),
        (("Oskar pet dog", "Oskar pet cat"), False),  # loses the dog
        (("Oskar pets dog, parrot", "Oskar pet dog"), True),  # takes out what was taken back
        (
            ("Marta city Rome", "Marta city Lima"),
            False,
        ),  # takes out what no longer holds, but nobody said Lima
        (("Marta city Rome", "Marta city unknown"), False),
        (("Marta city Rome", "Marta city"), True),
        (
            (None, "Marta city Oslo in the north"),
            True,
        ),  # "north" is not said, three words of four are
        ((None, "Marta city Oslo in the cold north"), False),
        (("Marta city Rome", None), True),
        (("Oskar pet parrot", None), True),
        (("Oskar pets dog, parrot", None), False),  # loses the dog
    ],
)
def test_fact_verdicts(pair, expected):
    assert FactContentJudge({"i": FACTS}).judge([request("...", pair, index=1)]) == [[expected]]


@pytest.mark.parametrize(
    ("kept", "expected"),
    [
        (("Marta city Rome", "Marta city Oslo"), False),  # both
        (("Marta city Oslo",), True),  # the old value was never kept, or is gone by now
        (("Marta job nurse", "Oskar pet parrot", "Marta city Oslo"), True),
    ],
)
def test_what_is_new_beside_what_it_replaced_is_not_right(kept, expected):
    judge = FactContentJudge({"i": FACTS})
    assert judge.judge([request("...", (None, "Marta city Oslo"), index=1, kept=kept)]) == [
        [expected]
    ]
    both = request(
        "...",
        ("Marta city Rome", None),
        (None, "Marta city Oslo"),
        index=1,
        kept=("Marta city Oslo",),
    )
    assert judge.judge([both]) == [
        [True, True]
    ]  # a deletion and an insertion are as good as an update
    assert judge.judge(
        [request("...", (None, "Oskar pet cat"), index=1, kept=("Oskar pet dog", "Oskar pet cat"))]
    ) == [[True]]


def test_facts_are_of_the_chunk_that_was_read_and_must_be_there():
    early = request(
        "...",
        (None, "Marta city Rome"),
        (None, "Marta city Oslo"),
        ("Oskar pet parrot", None),
        index=0,
    )
    assert FactContentJudge({"i": FACTS}).judge([early]) == [[True, False, False]]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [
        ((None, "Marta visits Rome", "episodic"), True),
        ((None, "Marta visits Rome", "semantic"), False),
        (
            (None, "Marta city Oslo", "core"),
            False,
        ),  # nine_categories' first choice is no section here, the second is
        ((None, "Marta city Oslo", "semantic"), True),
        (
            ("Marta city Bern", "Marta city Oslo", "episodic"),
            True,
        ),  # put into the wrong section before: what is gone is taken out
        ((None, "Marta job nurse", "core"), True),  # belongs nowhere in particular
    ],
)
def test_a_fact_counts_in_the_section_it_belongs_in(pair, expected):
    facts = (
        Fact(0, S, "Marta", "visit", "Rome", sections=("episodic", "semantic")),
        Fact(
            0,
            C,
            "Marta",
            "city",
            "Oslo",
            previous="Bern",
            sections=("who_the_user_is", "semantic", "core"),
        ),
        Fact(0, S, "Marta", "job", "nurse"),
    )
    sections = ("core", "semantic", "episodic")
    asked = [request("Marta visits Rome.", pair)]
    assert FactContentJudge({"i": facts}, sections).judge(asked) == [[expected]]
    assert FactContentJudge({"i": facts}).judge(asked) == [[True]]  # a schema without such sections


@pytest.mark.parametrize(
    ("index", "kept", "expected"),
    [
        (2, (), True),  # nothing is said
        (0, ("Marta city Rome", "Marta job nurse", "Oskar pets: a parrot and a dog"), True),
        (
            0,
            ("Marta city Rome", "Marta job nurse", "Oskar pet dog"),
            False,
        ),  # the parrot is missing
        (1, ("Marta city Oslo", "Oskar pet cat"), True),
        (
            1,
            ("Marta city Oslo", "Oskar pet cat", "Marta city Rome"),
            False,
        ),  # what changed is still there
        (
            1,
            ("Marta city Oslo", "Oskar pet cat", "Oskar pet parrot"),
            False,
        ),  # what was taken back is
        (1, ("Marta city Oslo",), False),
    ],
)
def test_nothing_is_due_where_the_memory_is_right_already(index, kept, expected):
    assert (
        FactContentJudge({"i": FACTS}).nothing_due(request("...", index=index, kept=kept))
        is expected
    )


def test_a_good_keeper_is_always_right_by_the_facts():
    judged = 0
    for instance in generate(20, seed=5):
        judge = FactContentJudge({instance.id: instance.facts})
        memory, rng = Memory(MemorySchema.load("facts")), random.Random(0)
        for index, chunk in enumerate(instance.chunks):
            done = len(memory.changes)
            results = [
                memory.apply(op, chunk=index)
                for op in teacher_operations(instance, index, memory, rng)
            ]
            before = tuple(change.before for change in memory.changes[done:])
            asked = WriteRequest(instance.id, index, chunk, tuple(results), before, tuple(memory))
            assert judge.judge([asked])[0] == [True] * len(results), (instance.id, index)
            assert judge.nothing_due(asked), (instance.id, index)
            judged += len(results)
    assert judged > 150


# ------------------------------------------------------------------------------------------------
# by endpoint
@pytest.fixture
def client(chat_server):
    return ChatClient(chat_server.url, "m", retries=1, backoff=0)


QUESTION = Question("Where?", ("Oslo",), "judge")
SAME = "says what an accepted answer says"


@pytest.mark.parametrize(
    ("kind", "id", "words", "not_words"),
    [
        ("single-session-user", "1", (SAME, "all the steps", "only a part"), ("too high",)),
        ("single-session-assistant", "1", (SAME,), ("too high",)),
        ("multi-session", "1", (SAME,), ("too high",)),
        ("recall", "1", (SAME,), ("too high",)),  # of another set
        (
            "temporal-reasoning",
            "1",
            (SAME, "days, weeks or months may be one too high or too low"),
            ("no answer",),
        ),
        ("knowledge-update", "1", ("what holds now", "Older values"), (SAME,)),
        ("single-session-preference", "1", ("known of the user", "leave points out"), (SAME,)),
        ("abstention", "1", ("has no answer", "unknown or was never said"), (SAME,)),
        ("adversarial", "1", ("has no answer",), (SAME,)),
        ("temporal-reasoning", "gpt4_1_abs", ("has no answer",), (SAME, "too high")),
        (
            "multi-session",
            "x_abs#2",
            ("has no answer",),
            (SAME,),
        ),  # a repeated id that was numbered
        ("multi-session", "x_absent", (SAME,), ("has no answer",)),
    ],
)
def test_the_answer_judge_is_told_the_criterion_of_the_kind(
    chat_server, client, kind, id, words, not_words
):
    chat_server.reply = lambda body: "yes" if told(body)["question"] == "Where?" else "no"
    other = Question("Who?", ("Ann",), "judge", "single-session-user", id="0")
    question = Question("Where?", ("Oslo",), "judge", kind, id=id)
    assert EndpointAnswerJudge(client).judge(
        [AnswerRequest(other, Answer("Bo")), AnswerRequest(question, Answer("Rome"))]
    ) == [
        False,
        True,
    ]
    bodies = {told(body)["question"]: body for body in chat_server.bodies}
    system = bodies["Where?"]["messages"][0]["content"]
    assert [word for word in words if word not in system] == [] and [
        word for word in not_words if word in system
    ] == []
    assert told(bodies["Where?"]) == {
        "question": "Where?",
        "accepted_answers": ["Oslo"],
        "given_answer": "Rome",
    }
    assert SAME in bodies["Who?"]["messages"][0]["content"]  # each of a batch is told its own


def answers(*texts: str) -> list[AnswerRequest]:
    return [AnswerRequest(QUESTION, Answer(text)) for text in texts]


def told(body) -> dict:
    """The case that a request asks about."""
    return json.loads(body["messages"][1]["content"])


@pytest.mark.parametrize("reply", ["perhaps", "nope", "I say yes", "no problem: yes, it is right"])
def test_no_verdict_is_asked_again_and_then_an_error(chat_server, client, reply):
    replies = [reply, reply, "yes"]
    chat_server.reply = lambda body: replies.pop(0)
    assert EndpointAnswerJudge(client).judge(answers("x")) == [True]
    assert [body["temperature"] for body in chat_server.bodies] == [0.0, 0.7, 0.7]
    chat_server.reply = lambda body: reply
    with pytest.raises(PartialServiceError, match="no verdict in 3 attempts, the last reply"):
        EndpointAnswerJudge(client).judge(answers("x"))


def test_a_write_without_a_verdict_leaves_its_chunk_alone_without(chat_server, client):
    chat_server.fault_for = lambda body: (
        error(500, "worn out") if told(body)["after"] == "b" else None
    )
    chat_server.reply = lambda body: "no" if told(body)["after"] == "c" else "yes"
    requests = [
        request("1", (None, "a"), (None, "b")),
        request("2"),
        request("3", (None, "c"), (None, "d")),
    ]
    with pytest.raises(PartialServiceError, match="1 of 3") as caught:
        EndpointContentJudge(client).judge(requests)
    first, *others = caught.value.outcomes
    assert isinstance(first, ServiceError) and "worn out" in str(first)
    assert others == [[], [False, True]]
    assert (
        sum(told(body)["after"] == "b" for body in chat_server.bodies) == 2
    )  # the client's attempts, and no more


def test_the_content_judge_sees_the_chunk_and_both_entries(chat_server, client):
    chat_server.reply = lambda body: (
        "yes" if '"after": "b"' in body["messages"][1]["content"] else "no"
    )
    requests = [
        request("first", (None, "a"), ("old", "b"), time="2023-01-05"),
        request("none"),
        request("second", ("gone", None)),
    ]
    assert EndpointContentJudge(client).judge(requests) == [[False, True], [], [False]]
    shown = [told(body) for body in chat_server.bodies]
    assert sorted(shown, key=lambda case: case["operation"]) == [
        {"text": "second", "time": None, "operation": "delete", "before": "gone", "after": None},
        {
            "text": "first",
            "time": "2023-01-05",
            "operation": "insert",
            "before": None,
            "after": "a",
        },
        {
            "text": "first",
            "time": "2023-01-05",
            "operation": "update",
            "before": "old",
            "after": "b",
        },
    ]


def test_only_cases_without_a_verdict_are_asked_again(chat_server, client):
    asked = []

    def reply(body):
        asked.append(told(body)["after"])
        return "no" if asked[-1] != "b" else "yes" if asked.count("b") > 1 else "hm"

    chat_server.reply = reply
    assert EndpointContentJudge(client).judge(
        [request("t", (None, "a"), (None, "b"), (None, "c"))]
    ) == [[False, True, False]]
    assert sorted(asked) == ["a", "b", "b", "c"]


# ------------------------------------------------------------------------------------------------
# mixed data
def inserted(instance_id, chunk, content):
    memory = Memory(MemorySchema.load("facts"))
    result = memory.apply(Operation(OperationKind.INSERT, "facts", content), chunk=0, time=None)
    return WriteRequest(instance_id, 0, chunk, (result,), (None,), ())


def test_each_instance_has_its_judge():
    (instance,) = generate(1, 3, PRESETS["small"])
    fact = next(fact for fact in instance.facts if fact.chunk == 0)
    other = next(
        line.split(":")[0]
        for line in instance.chunks[0].text.splitlines()
        if not line.startswith(fact.subject)
    )
    true = f"{fact.subject} {fact.attribute} {fact.value}"
    mixed = f"{other} {fact.value}"  # the words are there, the person is wrong
    facts = {instance.id: instance.facts}
    asked = [
        inserted(name, instance.chunks[0], text)
        for name in (instance.id, "plain")
        for text in (true, mixed)
    ]
    judge = FactContentJudge(facts)
    assert judge.judge(asked) == [[True], [False], [True], [True]]
    assert [judge.nothing_due(each) for each in asked] == [False, False, None, None]
