"""What the loaders share: rows that break, questions that break, ids that repeat, limits."""

import random
from collections import Counter

import pytest

from memalpha.data.reading import CommonOptions, draw_questions, finish, read_questions, read_rows
from memalpha.data.rows import Row
from memalpha.data.source import LoadResult
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Instance, Question


def test_a_row_that_breaks_takes_back_what_it_counted():
    result = LoadResult()

    def make(row):
        result.skip("empty answer", 2)
        if row.data == "broken":
            raise SchemaError(f"{row.where} is broken")
        return row.data

    rows = [Row("line 1", "good"), Row("line 2", "broken"), Row("line 3", "broken")]
    held = {"good": 2, "broken": 3}
    assert list(read_rows(rows[:2], result, held.get, make)) == ["good"]
    assert (result.asked, result.skipped) == (2 + 3, {"empty answer": 2, "malformed": 3})
    assert result.problems == ["line 2 is broken"]
    assert list(read_rows(rows[2:], result, lambda data: 0, make)) == []
    assert (result.asked, result.skipped) == (6, {"empty answer": 2, "malformed": 4})  # at least one question


def test_a_question_that_breaks_is_skipped_alone():
    result = LoadResult()

    def make(item, where):
        if item is None:
            raise SchemaError(f"{where} is None")
        return item if item in ("unanswerable", "empty") else Question(item, ("a",), id="own" if item == "named" else "")

    made = list(read_questions(["q", None, "unanswerable", "named", "empty"], "line 7", result, make))
    assert [(question.text, question.id) for question in made] == [("q", "0"), ("named", "own")]
    assert result.skipped == {"malformed": 1, "unanswerable": 1, "empty": 1}
    assert result.problems == ["line 7 question 1 is None"]


def instance(name, questions):
    return Instance(name, "s", (Chunk("c"),), tuple(Question(f"q{i}", ("a",), id=str(i)) for i in range(questions)))


def test_finish():
    result = LoadResult()
    given = [instance("a", 1), instance("b", 0), instance("a", 5), instance("a", 2), instance("c", 3)]
    made = list(finish(given, CommonOptions(max_questions=2, max_instances=3), 1, result))
    assert [(i.id, len(i.questions)) for i in made] == [("a", 1), ("a#2", 2), ("a#3", 2)]
    assert result.skipped == {"over max_questions": 3, "over max_instances": 3}
    assert result.notes == Counter({"instances without questions dropped": 1, "repeated ids numbered": 2})


def test_questions_of_one_id_are_told_apart():
    again = Instance("a", "s", (Chunk("c"),), tuple(Question(text, ("a",), id="x") for text in ("p", "q", "r")))
    (made,) = finish([again], CommonOptions(), 1, result := LoadResult())
    assert [(question.text, question.id) for question in made.questions] == [("p", "x"), ("q", "x#2"), ("r", "x#3")]
    assert result.notes == {"repeated question ids numbered": 2}


def test_a_numbered_id_is_one_that_nothing_has():
    result, given = LoadResult(), [instance(name, 1) for name in ("a#2", "a", "a", "a", "b", "b", "b#2", "b")]
    made = [i.id for i in finish(given, CommonOptions(), 1, result)]
    assert made == ["a#2", "a", "a#3", "a#4", "b", "b#2", "b#2#2", "b#3"]
    assert +result.notes == {"repeated ids numbered": 5}
    asked = tuple(Question(f"q{n}", ("a",), id=name) for n, name in enumerate(("x#2", "x", "x")))
    (made,) = finish([Instance("i", "s", (Chunk("c"),), asked)], CommonOptions(), 1, LoadResult())
    assert [question.id for question in made.questions] == ["x#2", "x", "x#3"]


def test_a_question_without_a_kind_is_single():
    asked = tuple(Question("q", ("a",), kind=kind, id=kind) for kind in ("", " ", "own"))
    (made,) = finish([Instance("i", "s", (Chunk("c"),), asked)], CommonOptions(), 1, LoadResult())
    assert [question.kind for question in made.questions] == ["single", "single", "own"]


def test_questions_are_drawn_evenly_and_in_their_order():
    questions, result = instance("a", 6).questions, LoadResult()
    drawn = Counter()
    for seed in range(600):
        kept = draw_questions(questions, 3, random.Random(seed), result)
        assert list(kept) == sorted(kept, key=lambda question: question.id) and len(set(kept)) == 3
        drawn.update(question.id for question in kept)
    assert all(240 < count < 360 for count in drawn.values())  # 300 each, standard deviation 12
    assert result.skipped == {"over max_questions": 3 * 600}
    assert draw_questions(questions, 0, random.Random(0), result) == questions


def test_limits_are_checked():
    with pytest.raises(InputError, match="option 'max_instances' is -1"):
        CommonOptions(max_instances=-1)
