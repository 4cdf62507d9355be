"""SQuAD: instances by value, and what is skipped."""

import json

from tests.helpers.data_samples import (
    load,
    write,
)

LIMA = "Lima is the capital of Peru. It lies on the coast."
OSLO = "Oslo is the capital of Norway. It has 700,000 people.\r\nIts mayor is Ms \u00c5se Lie."


def qa(text, *answers, context="", impossible=None, qid=None):
    row = {
        "question": text,
        "id": qid or text,
        "answers": [{"text": a, "answer_start": context.find(a)} for a in answers],
    }
    return row if impossible is None else {**row, "is_impossible": impossible}


def nested(*paragraphs):
    return {
        "version": "v2.0",
        "data": [{"title": "t", "paragraphs": [{"context": c, "qas": q} for c, q in paragraphs]}],
    }


def kept(instances):
    return [question for instance in instances for question in instance.questions]


def test_version_2_file(tmp_path):
    data = nested(
        (
            LIMA,
            [
                qa(
                    "What is Lima?",
                    "the capital of Peru",
                    "capital",
                    "capital",
                    context=LIMA,
                    impossible=False,
                )
            ],
        ),
        (
            OSLO,
            [
                qa("Who?", "\u00c5se Lie", context=OSLO, qid="x1"),
                qa("When?", impossible=True),
                qa("Why?"),
            ],
        ),
    )
    instances, result = load("squad", write(tmp_path / "squad.json", data), chunk_tokens=(20, 40))
    (instance,) = instances
    assert [chunk.text for chunk in instance.chunks] == [f"{LIMA}\n\n" + OSLO.replace("\r\n", "\n")]
    first, second = instance.questions
    assert (first.text, first.answers, first.metric, first.evidence) == (
        "What is Lima?",
        ("the capital of Peru", "capital"),
        "substring",
        (0,),
    )
    assert (second.id, second.answers, second.evidence) == ("x1", ("\u00c5se Lie",), (0,))
    assert result.skipped == {"unanswerable": 2} and not result.problems


def test_flat_list_gathers_a_paragraph_that_comes_again(tmp_path):
    rows = [
        {"context": LIMA, "question": "What?", "answer": "capital"},
        {"context": OSLO, "question": "Who?", "answer": "\u00c5se Lie"},
        {"context": LIMA, "question": "Where?", "answer": "on the coast"},
    ]
    instances, _ = load(
        "squad", write(tmp_path / "squad.json", rows), chunk_tokens=(1, 20), chunks=(2, 2)
    )
    (instance,) = instances
    assert [chunk.text[:4] for chunk in instance.chunks] == ["Lima", "Oslo"]
    assert [(q.text, q.evidence, q.id) for q in instance.questions] == [
        ("What?", (0,), "q1"),
        ("Where?", (0,), "q3"),
        ("Who?", (1,), "q2"),
    ]


def test_every_reason_is_counted(tmp_path):
    rows = [
        {"context": LIMA, "question": "long?", "answer": "the capital of Peru. It"},
        {"context": LIMA, "question": "short?", "answer": "capital"},
        {"context": LIMA, "question": "empty?", "answer": "  "},
        {"context": LIMA, "question": "none?", "answer": None},
        {"context": LIMA, "question": "number?", "answer": 3},
        {"context": LIMA, "question": "no answer field?"},
        {"context": LIMA, "question": " ", "answer": "x"},
        {"context": None, "question": "no context?", "answer": "x"},
        {"context": "broken \ud800", "question": "surrogate?", "answer": "x"},
        "not a row",
        {"context": LIMA, "question": "unanswerable?", "answers": []},
        {"context": LIMA, "question": "more?", "answer": "coast"},
    ]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows))
    instances, result = load("squad", path, max_answer_tokens=4, max_questions=1)
    assert result.skipped == {
        "answer too long": 1,
        "empty answer": 2,
        "malformed": 5,
        "unanswerable": 1,
        "over max_questions": 2,
    }
    assert len(kept(instances)) + sum(result.skipped.values()) == len(rows)
    assert [problem.split(" item ")[1].split()[0] for problem in result.problems] == [
        "5",
        "6",
        "7",
        "8",
        "9",
    ]


def test_evidence_follows_the_place_of_the_answer_in_a_cut_paragraph(tmp_path):
    context = "Rome is old. Oslo is cold. Rome is hot."
    asked = [
        {
            "question": "late?",
            "id": "1",
            "answers": [{"text": "Rome", "answer_start": context.rindex("Rome")}],
        },
        {"question": "early?", "id": "2", "answers": [{"text": "Rome", "answer_start": 0}]},
        {"question": "wrong place?", "id": "3", "answers": [{"text": "cold", "answer_start": 1}]},
        {
            "question": "across?",
            "id": "4",
            "answers": [{"text": "cold. Rome", "answer_start": context.index("cold")}],
        },
        {"question": "nowhere?", "id": "5", "answers": [{"text": "Quito", "answer_start": 2}]},
    ]
    path = write(
        tmp_path / "squad.json",
        nested(("\r\n " + context, []))
        | {"data": [{"paragraphs": [{"context": context, "qas": asked}]}]},
    )
    instances, _ = load("squad", path, chunk_tokens=(3, 3), chunks=(3, 3))
    assert [chunk.text for chunk in instances[0].chunks] == [
        "Rome is old.",
        "Oslo is cold.",
        "Rome is hot.",
    ]
    assert {q.text: q.evidence for q in kept(instances)} == {
        "late?": (2,),
        "early?": (0,),
        "wrong place?": (1,),
        "across?": (1, 2),
        "nowhere?": (0, 1, 2),
    }
    instances, result = load("squad", path, chunk_tokens=(3, 3), chunks=(2, 2))
    assert result.skipped == {"evidence in two instances": 2}
    assert [[q.text for q in instance.questions] for instance in instances] == [
        ["early?", "wrong place?"],
        ["late?"],
    ]
