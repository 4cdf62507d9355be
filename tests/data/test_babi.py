"""bAbI by value: stories that lost a line, files that break off, splits and packed files of a folder."""

import gzip

import pytest
from data_samples import BABI, write

from memalpha.data.registry import get_source
from memalpha.errors import InputError

LINES = BABI.splitlines(keepends=True)


def load(path, **options):
    result = get_source("babi").load(path, options)
    instances = list(result.instances)
    assert result.asked == sum(len(i.questions) for i in instances) + sum(result.skipped.values())
    return instances, result


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
    instances, result = load(path)
    assert said(instances) == made and result.asked == 3
    assert result.skipped == {"malformed": 3 - len(made)} and result.problems[0].startswith(fault)


def test_a_first_line_without_its_number_is_not_told_as_part_of_the_story_before(tmp_path):
    path = tmp_path / "qa2.txt"
    path.write_text("".join([*LINES[:5], "1Sandra carries the football.\n", *LINES[6:], *LINES[5:]]))
    instances, result = load(path)
    assert said(instances) == [SECOND] and result.skipped == {"malformed": 3}


@pytest.mark.parametrize(("cut", "counted"), [("2 What is San", 1), ("2", 1), ("2 What is it? \tfoo", 1), ("2 Sandra sleeps.", 0)])
def test_a_last_line_that_breaks_off_counts_as_a_question(tmp_path, cut, counted):
    path = tmp_path / "qa2.txt"
    path.write_text("".join(LINES[:6]) + cut)
    instances, result = load(path)
    assert said(instances) == FIRST
    assert result.skipped == {"malformed": counted} if counted else not result.skipped
    assert not counted or result.problems[0].startswith("qa2.txt line 7 breaks off")


def test_a_last_line_without_a_line_end_may_be_whole(tmp_path):
    (tmp_path / "qa2.txt").write_text(BABI.rstrip("\n"))
    instances, result = load(tmp_path / "qa2.txt")
    assert said(instances) == [*FIRST, SECOND] and not result.skipped


def test_a_support_of_too_many_digits_is_malformed(tmp_path):
    (tmp_path / "qa2.txt").write_text(f"1 Mary left.\n2 Who left? \tMary\t{'9' * 5000}\n1 Jo came.\n2 Who came? \tJo\t1\n")
    instances, result = load(tmp_path / "qa2.txt")
    assert [i.questions[0].answers for i in instances] == [("Jo",)] and result.skipped == {"malformed": 1}


def test_the_kind_is_the_task_without_the_end_of_the_file_name(tmp_path):
    (tmp_path / "qa3.txt").write_text(BABI)
    (tmp_path / "qa4.txt.gz").write_bytes(gzip.compress(BABI.encode()))
    assert {i.questions[0].kind for i in load(tmp_path)[0]} == {"qa3", "qa4"}


def test_the_splits_of_a_folder_are_not_mixed(tmp_path):
    (tmp_path / "qa1_a_train.txt").write_text("1 Mary left.\n2 Who left? \tMary\t1\n")
    (tmp_path / "qa1_a_test.txt").write_text("1 Jo came.\n2 Who came? \tJo\t1\n")
    (tmp_path / "qa2_b_train.txt.gz").write_bytes(gzip.compress(b"1 Al sat.\n2 Who sat? \tAl\t1\n"))
    instances, result = load(tmp_path)
    assert [i.questions[0].answers for i in instances] == [("Mary",), ("Al",)]
    assert result.notes["files of other splits not read"] == 1
    assert [i.questions[0].answers for i in load(tmp_path, split="test")[0]] == [("Jo",)]
    with pytest.raises(InputError, match=r"has no file of split 'validation'\n  expected: one of test, train"):
        load(tmp_path, split="validation")


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n\r"])
def test_stories_are_the_same_with_every_line_end(tmp_path, end):
    (tmp_path / "qa1_a.txt").write_bytes(BABI.replace("\n", end).encode())
    (tmp_path / "qa2_b.txt").write_text(BABI)
    instances, result = load(tmp_path)
    assert said(instances) == [*FIRST, SECOND] * 2 and result.asked == 6 and not result.skipped


@pytest.mark.parametrize(
    "row", [{"lines": []}, {"lines": ["1 Mary left."], "task": 5, "name": "x"}, {"lines": [[]], "story": None}]
)
def test_a_row_that_looks_like_a_story_of_our_own_is_malformed(tmp_path, row):
    story = {
        "id": ["1", "2"],
        "type": [0, 1],
        "text": ["Jo came.", "Who came?"],
        "supporting_ids": [[], ["1"]],
        "answer": ["", "Jo"],
    }
    instances, result = load(write(tmp_path / "x.json", [row, {"story": story}]))
    assert [i.questions[0].answers for i in instances] == [("Jo",)] and result.skipped == {"malformed": 1}
    assert result.problems[0].startswith("x.json item 0 field 'story'")
