"""bAbI: stories, evidence, stories that lost a line, splits and packed files of a folder."""

import gzip

import pytest
from data_samples import BABI, load, write

from memalpha.errors import InputError
from memalpha.types import Question


def test_babi(tmp_path):
    path = tmp_path / "qa1_single-supporting-fact_train.txt"
    path.write_text(BABI)
    instances, _ = load("babi", path, chunk_tokens=8)
    assert [[chunk.text for chunk in i.chunks] for i in instances] == [
        ["Mary went to the kitchen.", "John took the apple and the milk."],
        ["Mary went to the kitchen.", "John took the apple and the milk.", "Mary went to the garden."],
        ["Sandra carries the football."],
    ]
    assert [i.questions for i in instances] == [
        (Question("Where is Mary?", ("kitchen",), "exact_match", "qa1", evidence=(0,), id="3"),),
        (Question("Where is Mary?", ("garden",), "exact_match", "qa1", evidence=(2,), id="5"),),
        (Question("What is Sandra carrying?", ("football",), "exact_match", "qa1", evidence=(0,), id="2"),),
    ]
    assert len({i.id for i in instances}) == 3
    last, result = load("babi", path, questions="last")
    assert [i.questions[0].id for i in last] == ["5", "2"] and result.skipped == {"asked before the end": 1}


def test_babi_several_files_and_answers_of_several_things(tmp_path):
    (tmp_path / "qa8_lists_test.txt").write_bytes(b"1 Jo holds an apple and milk.\r\n2 What is Jo holding? \tapple,milk\t1\r\n")
    (tmp_path / "qa19_path_test.txt").write_text("1 A is north of B.\n2 How do you go? \t \t1\n")
    (instance,), result = load("babi", tmp_path)
    assert [(q.answers, q.metric, q.kind) for q in instance.questions] == [(("apple", "milk"), "keywords", "qa8")]
    assert result.skipped == {"empty answer": 1}


def test_babi_malformed_stories(tmp_path):
    path = tmp_path / "qa1.txt"
    path.write_text(
        "1 Mary left.\nno number\n3 Where? \ta\t1\n4 Who? \tb\t1\n"
        "1 Who asks first? \ta\t1\n"
        "1 Jo came.\n2 Who came? \tJo\tx\n"
        "1 Al came.\n2 Who came?\n3 Who came? \tAl\t1\n"
    )
    instances, result = load("babi", path)
    assert [i.questions[0].answers for i in instances] == [("Al",)]
    assert result.skipped == {"malformed": 2 + 1 + 1, "empty answer": 1}
    assert "qa1.txt line 2 has no number" in result.problems[0]


def test_babi_rows_of_the_hub(tmp_path):
    story = {
        "id": ["1", "2", "3"],
        "type": [0, 0, 1],
        "text": ["Mary left.", "Jo came.", "Who came?"],
        "supporting_ids": [[], [], ["2"]],
        "answer": ["", "", "Jo"],
    }
    broken = {**story, "answer": [""]}
    instances, result = load(
        "babi", write(tmp_path / "x.jsonl", [{"story": story}, {"story": broken}, {"story": None}]), chunk_tokens=2
    )
    assert [chunk.text for chunk in instances[0].chunks] == ["Mary left.", "Jo came."]
    assert instances[0].questions == (Question("Who came?", ("Jo",), "exact_match", "babi", evidence=(1,), id="3"),)
    assert result.skipped == {"malformed": 2}


LINES = BABI.splitlines(keepends=True)


def said(instances):
    return [(i.questions[0].answers[0], "\n".join(chunk.text for chunk in i.chunks)) for i in instances]


FIRST = [
    ("kitchen", "Mary went to the kitchen.\nJohn took the apple and the milk."),
    ("garden", "Mary went to the kitchen.\nJohn took the apple and the milk.\nMary went to the garden."),
]


SECOND = ("football", "Sandra carries the football.")


@pytest.mark.parametrize(
    ("missing", "made", "fault"),
    [
        (5, FIRST, "qa2.txt line 6 has number 2; expected: 1: a line of its story is missing"),
        (1, [SECOND], "qa2.txt line 2 has number 3; expected: 2"),
        (0, [SECOND], "qa2.txt line 1 has number 2; expected: 1"),
    ],
)
def test_a_story_that_lost_a_line_is_malformed_and_spoils_no_other(tmp_path, missing, made, fault):
    path = tmp_path / "qa2.txt"
    path.write_text("".join(LINES[:missing] + LINES[missing + 1 :]))
    instances, result = load("babi", path)
    assert said(instances) == made and result.asked == 3
    assert result.skipped == {"malformed": 3 - len(made)} and result.problems[0].startswith(fault)


@pytest.mark.parametrize(("cut", "counted"), [("2 What is San", 1), ("2", 1), ("2 What is it? \tfoo", 1), ("2 Sandra sleeps.", 0)])
def test_a_last_line_that_breaks_off_counts_as_a_question(tmp_path, cut, counted):
    path = tmp_path / "qa2.txt"
    path.write_text("".join(LINES[:6]) + cut)
    instances, result = load("babi", path)
    assert said(instances) == FIRST
    assert result.skipped == {"malformed": counted} if counted else not result.skipped
    assert not counted or result.problems[0].startswith("qa2.txt line 7 breaks off")


def test_the_kind_is_the_task_without_the_end_of_the_file_name(tmp_path):
    (tmp_path / "qa3.txt").write_text(BABI)
    (tmp_path / "qa4.txt.gz").write_bytes(gzip.compress(BABI.encode()))
    assert {i.questions[0].kind for i in load("babi", tmp_path)[0]} == {"qa3", "qa4"}


def test_the_splits_of_a_folder_are_not_mixed(tmp_path):
    (tmp_path / "qa1_a_train.txt").write_text("1 Mary left.\n2 Who left? \tMary\t1\n")
    (tmp_path / "qa1_a_test.txt").write_text("1 Jo came.\n2 Who came? \tJo\t1\n")
    (tmp_path / "qa2_b_train.txt.gz").write_bytes(gzip.compress(b"1 Al sat.\n2 Who sat? \tAl\t1\n"))
    instances, result = load("babi", tmp_path)
    assert [i.questions[0].answers for i in instances] == [("Mary",), ("Al",)]
    assert result.notes["files of other splits not read"] == 1
    assert [i.questions[0].answers for i in load("babi", tmp_path, split="test")[0]] == [("Jo",)]
    with pytest.raises(InputError, match=r"has no file of split 'validation'\n  expected: one of test, train"):
        load("babi", tmp_path, split="validation")


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n\r"])
def test_stories_are_the_same_with_every_line_end(tmp_path, end):
    (tmp_path / "qa1_a.txt").write_bytes(BABI.replace("\n", end).encode())
    (tmp_path / "qa2_b.txt").write_text(BABI)
    instances, result = load("babi", tmp_path)
    assert said(instances) == [*FIRST, SECOND] * 2 and result.asked == 6 and not result.skipped
