"""bAbI: instances by value, and the splits of a folder."""

import gzip

from memalpha.types import Question
from tests.helpers.data_samples import (
    BABI,
    load,
)


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


def test_the_splits_of_a_folder_are_not_mixed(tmp_path):
    (tmp_path / "qa1_a_train.txt").write_text("1 Mary left.\n2 Who left? \tMary\t1\n")
    (tmp_path / "qa1_a_test.txt").write_text("1 Jo came.\n2 Who came? \tJo\t1\n")
    (tmp_path / "qa2_b_train.txt.gz").write_bytes(gzip.compress(b"1 Al sat.\n2 Who sat? \tAl\t1\n"))
    instances, _ = load("babi", tmp_path)
    assert [i.questions[0].answers for i in instances] == [("Mary",), ("Al",)]
    assert [i.questions[0].answers for i in load("babi", tmp_path, split="test")[0]] == [("Jo",)]
