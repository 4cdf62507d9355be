"""Metrics and judges by value: what counts as right, and for whom."""

import json
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.synthetic import generate
from memalpha.data.teacher import teacher_operations
from memalpha.endpoints import ChatClient
from memalpha.errors import InputError, PartialServiceError, ServiceError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema
from memalpha.qa.judges import (
    EndpointAnswerJudge,
    EndpointContentJudge,
    FactContentJudge,
)
from memalpha.qa.metrics import (
    LABEL_METRICS,
    contains,
    is_teachable,
    metric_names,
    needs_all,
    normalise,
    score,
)
from memalpha.qa.readers import wanted_answers
from memalpha.types import (
    Answer,
    AnswerRequest,
    Chunk,
    Entry,
    Fact,
    FactAction,
    Operation,
    OperationKind,
    OperationResult,
    Question,
    ResultCode,
    WriteRequest,
)
from tests.helpers.stub_server import error


def ask(
    metric: str, *answers: str, subject: str | None = None, stale: tuple[str, ...] = ()
) -> Question:
    return Question("?", answers, metric, subject=subject, stale=stale)


def passages(*texts: str) -> Answer:
    return Answer("\n".join(texts), texts)


# ------------------------------------------------------------------------------------------------
# words
@pytest.mark.parametrize(
    ("text", "phrase", "expected"),
    [
        ("She saw Romeo", "Rome", False),
        ("She saw Rome.", "rome", True),
        ("Marta's dog", "Marta", True),
        ("die STRASSE", "Straße", True),
        ("cafe\u0301 bar", "CAFÉ", True),
        ("[2023-01-05] Marta city Oslo", "2023-01-05", True),
        ("[2023-01-15] Marta city Oslo", "2023-01-05", False),
        ("I like C++", "++", True),
        ("I like C", "++", False),
        ("", "x", False),
    ],
)
def test_contains_matches_whole_words_in_order(text, phrase, expected):
    assert contains(text, phrase) is expected


@given(
    st.lists(st.sampled_from("ab"), max_size=8),
    st.lists(st.sampled_from("ab"), min_size=1, max_size=3),
)
def test_contains_is_a_search_for_a_run_of_tokens(text, phrase):
    brute = any(text[i : i + len(phrase)] == phrase for i in range(len(text)))
    assert contains(" ".join(text), "-".join(phrase).upper()) is brute


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat, a  DOG!", "cat dog"),
        ("U.S.A.", "usa"),
        ("theatre", "theatre"),
        ("The The", "the the"),
        ("!", "!"),
        (" ", ""),
    ],
)
def test_normalise(text, expected):
    assert normalise(text) == expected


# ------------------------------------------------------------------------------------------------
# published and SQuAD
@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (ask("substring", "Paris", "Lutetia"), "It was the old lutetia.", 1),
        (ask("substring", "Rome"), "Romeo", 1),  # by characters, as published
        (ask("substring", "the U.N."), "The UN building", 1),
        (ask("substring", "++"), "C++", 1),
        (ask("exact_match", "Paris", "the city of light"), "City of light!", 1),
        (
            ask("f1", "a b c d", "x"),
            "b d e",
            4 / 6,
        ),  # "a" is an article: gold b c d, answer b d e, overlap 2
        (ask("f1", "no no"), "no", 2 / 3),
        (ask("f1", "x", "y"), "y", 1),
        (ask("parts", "red ; green;blue;"), "blue and Red", 2 / 3),
        (ask("keywords", "red", "green", "blue", "the pink one"), "a blue, Pink one", 2 / 4),
        (ask("boxed", "7"), r"so \boxed{3}, no: \boxed{ 7 }.", 1),
        (ask("boxed", "7"), r"\boxed{7} \boxed{seven}", 0),
        (ask("boxed", "12", "07"), r"\boxed{7}", 1),
        (ask("boxed", "7"), r"\boxed{" + "7" * 5000 + "}", 0),
        (
            ask("boxed", "7"),
            ' "7" ',
            1,
        ),  # the published scorers take a bare number too, and what follows "Answer:"
        (ask("boxed", "7"), "Answer: 7", 1),
        (ask("boxed", "7"), "label: 7", 0),
        (ask("boxed", "7"), "7.", 0),
        (ask("boxed", "7"), r"7, no: \boxed{3}", 0),
    ],
)
def test_published_metrics(question, answer, expected):
    assert score(question, Answer(answer)) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            passages("What is 4? Label: 2", "Who? Label: 4"),
            0,
        ),  # the first label, whatever else is found
        (passages("In 1984, 4 of them.", "Who?\nLabel: 4"), 1),  # a number is no label
        (passages("4", "label 41"), 0),
        (passages(), 0),
        (Answer("4"), 1),
        (Answer("4.5 or 14 or x4, then 4"), 0),  # 4.5 is none, 14 is the first
        (Answer("one of 3 kinds, label: 4"), 1),
        (Answer(r"3, or label 3: \boxed{4}"), 1),
    ],
)
def test_the_first_label_counts(given, expected):
    assert score(ask("label", "4", "-04"), given) == expected


# ------------------------------------------------------------------------------------------------
# bound
OSLO = ask("bound", "Oslo", subject="Marta", stale=("Rome", "Lima"))


PETS = ask("bound_all", "dog", "cat", subject="Marta", stale=("parrot",))
GONE = ask("absent", "none", subject="Marta", stale=("Rome",))
FREE = ask("bound", "Oslo", stale=("Rome",))


@pytest.mark.parametrize(
    ("question", "answer", "expected"),
    [
        (OSLO, passages("Marta city Oslo"), 1),
        (OSLO, passages("[2023-02-01] marta lives in OSLO."), 1),
        (
            OSLO,
            passages("Oskar city Oslo", "Marta job nurse"),
            0,
        ),  # the value stands beside another person
        (OSLO, passages("Marta city", "Oslo"), 0),  # never in one passage
        (OSLO, passages("Marta city Oslo", "Marta city Rome"), 0),  # the stale value is still bound
        (OSLO, passages("Marta city Oslo", "Oskar city Rome"), 1),  # somebody else's
        (OSLO, passages("Marta moved from Lima to Oslo"), 0),
        (OSLO, passages(), 0),
        (PETS, passages("Marta pet dog", "Marta pet cat"), 1),
        (PETS, passages("Marta has a dog and a cat"), 1),
        (PETS, passages("Marta pet dog", "Oskar pet cat"), 0),
        (PETS, passages("Marta pet dog", "Marta pet cat", "Marta pet parrot"), 0),
        (PETS, Answer("a cat and a dog"), 1),
        (PETS, Answer("2"), 0),  # which they are was asked
        (PETS, Answer("two: the dog and the parrot"), 0),
        (GONE, passages("Marta job nurse", "Marta city Rome"), 0),
        (GONE, passages("Marta job nurse", "Oskar city Rome"), 1),
        (GONE, passages("Oskar city Rome"), 0),  # knows nothing of Marta
        (GONE, passages(), 0),
        (GONE, Answer("none"), 1),
        (GONE, Answer("She doesn’t have one"), 1),
        (GONE, Answer("She no longer lives in Rome"), 0),  # gives the stale value
        (GONE, Answer(""), 0),
        (FREE, passages("Oskar city Oslo"), 1),  # whoever it is said of
        (FREE, passages("city Oslo", "Marta city Rome"), 0),
        (FREE, passages("Marta job nurse"), 0),
        (replace(FREE, metric="absent"), passages("Marta job nurse"), 1),
        (replace(FREE, metric="absent"), passages("city Rome"), 0),
        (replace(FREE, metric="absent"), passages(), 0),
    ],
)
def test_bound_to_the_subject(question, answer, expected):
    assert score(question, answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (passages("Marta drinks green tea"), 1),
        (passages("Marta drinks green tea green tea green tea"), 1),
        (passages("Marta drinks green tea", "Marta drinks tea"), 0),
        (Answer("tea, now green tea"), 0),
    ],
)
def test_a_stale_value_inside_a_longer_accepted_answer_is_not_given(answer, expected):
    tea = ask("bound", "green tea", subject="Marta", stale=("tea",))
    assert score(tea, answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("2", 1),
        ("Two.", 1),
        ("a dog, a cat", 1),
        ("20", 0),
        ("three", 0),
        ("two goats", 0),
        ("No one knows", 0),
        ("one", 0),
    ],
)
def test_bound_all_takes_a_bare_number_where_a_number_is_asked_for(answer, expected):
    assert score(replace(PETS, text="How many pets does Marta have?"), Answer(answer)) == expected
    assert score(replace(PETS, text="Count and name every pet of Marta."), Answer("two")) == 0


@pytest.mark.parametrize(
    ("gold", "stale", "answer", "expected"),
    [
        ("A+", "A-", "A+", 1),
        ("A+", "A-", "it is A-", 0),
        ("A+", "", "she is a baker", 0),
        ("C++", "C", "C++.", 1),
        ("C", "C++", "C++", 0),
        ("C#", "", "she writes C#", 1),
        ("-3", "3", "-3 degrees", 1),
        ("-3", "", "3", 0),
        ("3", "", "1-3", 1),
        ("2024-03-05", "", "on 2024-03-05", 1),
        ("well", "", "well-known", 1),
        ("Oslo", "", "Oslo - Rome", 1),
    ],
)
def test_signs_that_make_another_word(gold, stale, answer, expected):
    question = ask("bound", gold, subject="Marta", stale=(stale,) if stale else ())
    assert score(question, Answer(answer)) == expected


# ------------------------------------------------------------------------------------------------
# all of them
TEXT = st.text() | st.sampled_from(
    [r"\boxed{", r"\boxed{3", "Marta Oslo", "two", "no", "\ud800", ";;", "٣"]
)


@given(
    st.sampled_from(sorted(set(metric_names()) - {"recall_at_5"})),  # needs a table of titles
    st.lists(st.text().filter(str.strip), min_size=1, max_size=3),
    st.lists(st.text(), max_size=3),
    TEXT,
    st.none() | st.lists(TEXT, max_size=3),
)
def test_every_metric_is_total_and_stays_in_the_unit_interval(metric, golds, stale, text, found):
    golds = ["3", "-7"] if metric in LABEL_METRICS else golds
    question = ask(metric, *golds, subject="Marta", stale=tuple(stale))
    value = score(question, Answer(text, None if found is None else tuple(found)))
    assert isinstance(value, float)
    assert 0 <= value <= 1


@pytest.mark.parametrize(
    "text", ["a" * 200_000, "the " * 50_000, r"\boxed{" * 30_000, "tea green " * 20_000]
)
def test_long_answers_are_quick(text):
    start = time.process_time()
    for metric in set(metric_names()) - {"recall_at_5"}:
        score(
            ask(
                metric,
                "3" if metric in LABEL_METRICS else "green tea",
                subject="Marta",
                stale=("tea",),
            ),
            Answer(text, (text,)),
        )
    assert time.process_time() - start < 2


def test_what_readers_and_teachers_know_of_each_metric():
    named = [ask(name, "x", "y") for name in metric_names()]
    whole = {question.metric for question in named if needs_all(question)}
    assert whole == {"bound_all", "keywords", "substring_all"}
    taught = {question.metric for question in named if is_teachable(question)}
    of_sets = {"stemmed_f1", "stemmed_list_f1", "parts"}
    own = {"substring", "substring_all", "exact_match", "f1", "bound", "bound_all", "absent"}
    assert taught == own | of_sets
    judged = ask("judge", "x", "y")
    assert not needs_all(judged) and not is_teachable(judged)
    # accepted answers of ``parts`` are spellings; the parts of each stand between semicolons
    assert wanted_answers(ask("parts", "x; y", "y, x")) == ("x; y", "y, x")
    assert score(ask("parts", "x; y", "z"), Answer("z")) == 1


UNFIT = [
    ask("recall_at_5", "x"),
    ask("recall_at_5", "x", subject="no/table.json"),
    ask("bleu", "x"),
    ask("judge", "x"),
    ask("boxed", "seven"),
    ask("label", "8", "seven"),
    ask("f1"),
    ask("f1", "x", "  "),
]


@pytest.mark.parametrize("question", UNFIT)
def test_a_question_that_cannot_be_scored_is_an_input_error(question):
    with pytest.raises(InputError):
        score(question, Answer("x"))


# ------------------------------------------------------------------------------------------------
# judges
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


MOVED = ("Marta city Rome", None)


@pytest.mark.parametrize(
    ("writes", "time", "expected"),
    [
        # a shared year is no replacement
        ([("Marta nurse (2023)", None), (None, "Marta Oslo (2023)")], "2023-02-01", [False, True]),
        ([(None, "Marta 2023-02-01")], "2023-02-01", [True]),
        ([(None, "Marta 2023-02-01")], None, [False]),
        ([MOVED, (None, "Marta city Oslo")], None, [True, True]),
        ([(None, "Marta city Oslo"), MOVED], None, [True, True]),
        ([MOVED, (None, "Marta city Lima")], None, [False, False]),
        ([("Marta job nurse", None), (None, "Marta city Oslo")], None, [False, True]),
        ([("Nadia city Rome", None), (None, "Marta city Oslo")], None, [False, True]),
    ],
)
def test_a_delete_that_the_same_chunk_replaces_is_valid(writes, time, expected):
    assert FactContentJudge().judge([request(SAID, *writes, time=time)]) == [expected]


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


def test_what_is_sent_with_a_request_is_in_no_error(chat_server, caplog):
    secrets = {"auth": {"header": "S3CRET-one", "more": ["S3CRET-two"]}, "pin": "S3CRET"}
    judge = ChatClient(chat_server.url, "m", retries=1, backoff=0, extra=secrets)
    chat_server.reply = lambda body: f"perhaps {body['auth']} {body['pin']}"
    chat_server.fault_for = lambda body: None
    for fault in (None, error(500, "echo S3CRET-two"), error(400, "echo S3CRET-one of S3CRET")):
        chat_server.fault_for = lambda body, fault=fault: fault
        with pytest.raises(PartialServiceError) as caught:
            EndpointAnswerJudge(judge).judge(answers("x"))
        assert "S3CRET" not in str(caught.value) + caplog.text + repr(judge)


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


# ------------------------------------------------------------------------------------------------
# mixed data


def test_an_instance_without_facts_is_judged_by_words():
    moved = request("Marta: I moved to Oslo.", (None, "Marta city Oslo"))
    judge = FactContentJudge({"i": FACTS})
    plain = moved._replace(instance_id="plain")
    assert judge.judge([moved, plain]) == [[False], [True]]  # Oslo is a fact of the next chunk
    assert [judge.nothing_due(each) for each in (moved, plain)] == [False, None]
