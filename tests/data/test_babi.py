"""bAbI: stories, evidence, stories that lost a line, splits and packed files of a folder."""

import gzip

import pytest
from data_samples import BABI, load

from memalpha.errors import InputError
from memalpha.types import Question


def test_babi(tmp_path):
    path = tmp_path / "qa1_single-supporting-fact_train.txt"
    path.write_text(BABI)
    instances, _ = load("babi", path, chunk_tokens=8)
    assert [[chunk.text for chunk in i.chunks] for i in instances] == [
        ["Mary went to the kitchen.", "John took the apple and the milk."],
        [
            "Mary went to the kitchen.",
            "John took the apple and the milk.",
            "Mary went to the garden.",
        ],
        ["Sandra carries the football."],
    ]
    assert [i.questions for i in instances] == [
        (Question("Where is Mary?", ("kitchen",), "exact_match", "qa1", evidence=(0,), id="3"),),
        (Question("Where is Mary?", ("garden",), "exact_match", "qa1", evidence=(2,), id="5"),),
        (
            Question(
                "What is Sandra carrying?",
                ("football",),
                "exact_match",
                "qa1",
                evidence=(0,),
                id="2",
            ),
        ),
    ]
    assert len({i.id for i in instances}) == 3


def test_babi_several_files_and_answers_of_several_things(tmp_path):
    (tmp_path / "qa8_lists_test.txt").write_bytes(
        b"1 Jo holds an apple and milk.\r\n2 What is Jo holding? \tapple,milk\t1\r\n"
    )
    (tmp_path / "qa19_path_test.txt").write_text("1 A is north of B.\n2 How do you go? \t \t1\n")
    (instance,), result = load("babi", tmp_path)
    assert [(q.answers, q.metric, q.kind) for q in instance.questions] == [
        (("apple", "milk"), "keywords", "qa8")
    ]
    assert result.skipped == {"empty answer": 1}


LINES = BABI.splitlines(keepends=True)


def said(instances):
    return [
        (i.questions[0].answers[0], "\n".join(chunk.text for chunk in i.chunks)) for i in instances
    ]


FIRST = [
    ("kitchen", "Mary went to the kitchen.\nJohn took the apple and the milk."),
    (
        "garden",
        "Mary went to the kitchen.\nJohn took the apple and the milk.\nMary went to the garden.",
    ),
]

SECOND = ("football", "Sandra carries the football.")


@pytest.mark.parametrize(
    ("missing", "made", "fault"),
    [
        (5, FIRST, "qa2.txt line 6"),
        (
            1,
            [SECOND],
            "qa2.txt line 2 is '3 Where is Mary? \\tkitchen\\t1'; expected: line 2 of its story",
        ),
        (
            0,
            [SECOND],
            "qa2.txt line 1 is '2 John took the apple and the milk.'; expected: line 1 of its story",
        ),
    ],
)
def test_a_story_that_lost_a_line_is_malformed_and_spoils_no_other(tmp_path, missing, made, fault):
    path = tmp_path / "qa2.txt"
    path.write_text("".join(LINES[:missing] + LINES[missing + 1 :]))
    instances, result = load("babi", path)
    assert said(instances) == made
    assert result.skipped == {"malformed": 1} and fault in result.problems[0]


def test_the_splits_of_a_folder_are_not_mixed(tmp_path):
    (tmp_path / "qa1_a_train.txt").write_text("1 Mary left.\n2 Who left? \tMary\t1\n")
    (tmp_path / "qa1_a_test.txt").write_text("1 Jo came.\n2 Who came? \tJo\t1\n")
    (tmp_path / "qa2_b_train.txt.gz").write_bytes(gzip.compress(b"1 Al sat.\n2 Who sat? \tAl\t1\n"))
    instances, result = load("babi", tmp_path)
    assert [i.questions[0].answers for i in instances] == [("Mary",), ("Al",)]
    assert result.notes["files of other splits not read"] == 1
    assert [i.questions[0].answers for i in load("babi", tmp_path, split="test")[0]] == [("Jo",)]
    with pytest.raises(
        InputError,
        match=r"has no file of split 'validation'\n  expected: one of \['test', 'train'\]",
    ):
        load("babi", tmp_path, split="validation")
