"""SQuAD, HotpotQA, MuSiQue, BookSum, QMSum, MemoryAgentBench, bAbI: construction by value, what is
skipped and why, the real pieces."""

import gzip
import json
from collections import Counter

import pytest
from data_samples import BABI, booksum_row, hotpot_row, load, mab_row, musique_row, qmsum_row, write
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.texts import METRIC_OF_PREFIX, keyphrases
from memalpha.errors import InputError
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Question

# ------------------------------------------------------------------------------------------------
# squad
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
    assert [
        question.metric for question in kept(load("squad", tmp_path / "squad.json", metric="f1")[0])
    ] == ["f1", "f1"]


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


_ROWS = st.lists(
    st.tuples(st.integers(0, 5), st.integers(1, 12), st.booleans()), min_size=1, max_size=25
)


@settings(max_examples=60, deadline=None)
@given(_ROWS, st.integers(0, 9), st.booleans(), st.integers(0, 2))
def test_no_question_is_lost_and_evidence_holds_its_answer(
    tmp_path_factory, drawn, seed, shuffle, limit
):
    rows = []
    for n, (which, length, good) in enumerate(drawn):
        context = " ".join(f"w{which}x{i}" for i in range(length))
        rows.append(
            {
                "context": context,
                "question": f"q{n}?",
                "answer": context.split()[-1] if good else "",
            }
        )
    path = write(tmp_path_factory.mktemp("rows") / "squad.json", rows)
    options = {"chunk_tokens": (4, 9), "chunks": (2, 3), "shuffle": shuffle, "max_questions": limit}
    instances, result = load("squad", path, seed, **options)
    assert len(kept(instances)) + sum(result.skipped.values()) == len(rows)
    assert result.skipped["empty answer"] == sum(not row["answer"] for row in rows)
    for instance in instances:
        assert 1 <= len(instance.chunks) <= 3 and instance.questions
        assert not limit or len(instance.questions) <= limit
        assert all(len(chunk.text.split()) <= 9 for chunk in instance.chunks)
        for question in instance.questions:
            held = " ".join(instance.chunks[i].text for i in question.evidence).split()
            assert question.answers[0] in held
    again, _ = load("squad", path, seed, **options)
    assert again == instances


def test_real_flat_train(real):
    rows = json.loads(real("squad/train_flat.json").read_text(encoding="utf-8"))
    instances, result = load("squad", real("squad/train_flat.json"))
    assert Counter(q.text for q in kept(instances)) == Counter(
        row["question"].strip() for row in rows
    )
    assert not result.skipped
    text = "\n\n".join(chunk.text for instance in instances for chunk in instance.chunks)
    assert text.split() == " ".join(dict.fromkeys(row["context"].strip() for row in rows)).split()
    assert all(len(instance.chunks) == 10 for instance in instances[:-1])


# ------------------------------------------------------------------------------------------------
# multihop
def article(kind, number):
    bodies = {
        "Painter": (
            f"Painter {number}\nPainter {number} was born in Town {number}. He painted cows."
        ),
        "Town": f"Town {number}\nIt is old. River {number} runs by it.",
        "Noise": f"Noise {number}\nNothing of use here. Nor here.",
    }
    return bodies[kind]


def test_hotpotqa(tmp_path):
    path = write(tmp_path / "hotpot.json", [hotpot_row(0), hotpot_row(1)])
    (instance,), _ = load("hotpotqa", path, chunk_tokens=(20, 20))
    # An article of a painter has 12 words, one of a town 10: one a chunk.
    assert [chunk.text for chunk in instance.chunks] == [
        article(kind, n) for n in (0, 1) for kind in ("Painter", "Town")
    ]
    assert instance.questions == (
        Question(
            "Which river runs by the birthplace of painter 0?",
            ("River 0",),
            kind="bridge",
            evidence=(0, 1),
            id="h0",
        ),
        Question(
            "Which river runs by the birthplace of painter 1?",
            ("River 1",),
            kind="bridge",
            evidence=(2, 3),
            id="h1",
        ),
    )


def test_an_instance_is_closed_at_its_tokens(tmp_path):
    path = write(tmp_path / "hotpot.json", [hotpot_row(n) for n in range(5)])
    instances, _ = load("hotpotqa", path, instance_tokens=45)  # 12 + 10 words a question
    assert [[q.id for q in i.questions] for i in instances] == [["h0", "h1"], ["h2", "h3"], ["h4"]]
    assert [i.id for i in instances] == ["hotpotqa-0", "hotpotqa-1", "hotpotqa-2"]


def test_an_article_of_several_questions_stands_once(tmp_path):
    rows = [hotpot_row(0), hotpot_row(0, _id="other", question="Who painted cows?"), hotpot_row(1)]
    (instance,), _ = load("hotpotqa", write(tmp_path / "hotpot.json", rows), chunk_tokens=(20, 20))
    assert len(instance.chunks) == 4
    instances, _ = load(
        "hotpotqa", tmp_path / "hotpot.json", instance_tokens=44
    )  # 2 * (12 + 10) words: counted once, they fit
    assert len(instances) == 1
    assert [q.evidence for q in instance.questions] == [(0, 1), (0, 1), (2, 3)]


def test_musique(tmp_path):
    rows = [musique_row(0), musique_row(1, answerable=False), musique_row(2, answer="")]
    rows += [
        musique_row(3, answer="", answer_aliases=[]),
        musique_row(4, paragraphs=[{"title": "t"}]),
        musique_row(5, id="2hop__a"),
    ]
    (instance,), result = load(
        "musique", write(tmp_path / "musique.jsonl", rows), chunk_tokens=(9, 9)
    )
    assert [chunk.text for chunk in instance.chunks] == [
        f"Lake {n}\nLake {n} lies in Land {n}." for n in (0, 2, 5)
    ]
    assert [(q.answers, q.kind, q.evidence) for q in instance.questions] == [
        (("Land 0", "the Land 0"), "3hop1", (0,)),
        (("the Land 2",), "3hop1", (1,)),
        (("Land 5", "the Land 5"), "2hop", (2,)),
    ]
    assert result.skipped == {"unanswerable": 1, "empty answer": 1, "malformed": 1}
    assert "field 'paragraphs[0].paragraph_text' is missing" in result.problems[0]


def test_real_hotpotqa(real):
    rows = json.loads(real("hotpotqa/hotpotqa_train_100q.json").read_text())
    instances, result = load("hotpotqa", real("hotpotqa/hotpotqa_train_100q.json"))
    assert result.asked == len(rows) == 100 and not result.skipped
    asked = {q.id: (i, q) for i in instances for q in i.questions}
    for row in rows:
        instance, question = asked[row["_id"]]
        held = " ".join(" ".join(instance.chunks[i].text for i in question.evidence).split())
        needed = {title for title, _ in row["supporting_facts"]}
        for title, sentences in row["context"]:
            if title in needed:
                assert all(" ".join(sentence.split()) in held for sentence in sentences)


# ------------------------------------------------------------------------------------------------
# documents
def test_keyphrases_are_names_by_frequency_then_long_words():
    summary = (
        "The ship meets Moby Dick. Then Captain Ahab's crew hunts Moby Dick. "
        "It remembers nothing, nothing at all."
    )
    assert keyphrases(summary, 9) == ("Moby Dick", "Captain Ahab", "nothing", "remembers")
    assert keyphrases(summary, 2) == ("Moby Dick", "Captain Ahab")
    assert keyphrases("It is so.", 5) == ()


def test_booksum(tmp_path):
    (instance,), _ = load("booksum", write(tmp_path / "b.jsonl", [booksum_row()]), chunk_tokens=10)
    chunks = ["It was morning.", "Then the captain of the Nautilus saw land.", "He was glad."]
    assert [chunk.text for chunk in instance.chunks] == chunks
    asked = Question(
        "Summarise the text.",
        ("Nautilus", "Captain Nemo", "captain"),
        "keywords",
        "summary",
        id="0",
    )
    assert instance.questions == (asked,)
    assert instance.id == "booksum-7-chapter 1"


def test_booksum_other_metrics_and_what_is_skipped(tmp_path):
    rows = [booksum_row(), booksum_row(summary_text=None), booksum_row(summary_text="It is so.")]
    rows += [booksum_row(chapter=chapter) for chapter in ("", ["no text"], "word " * 100)]
    path = write(tmp_path / "b.jsonl", rows)
    instances, result = load("booksum", path, chunk_tokens=20, chunks=(1, 3))
    assert len(instances) == 1
    assert result.skipped == {
        "empty answer": 1,
        "no keywords": 1,
        "malformed": 2,
        "too many chunks": 1,
    }
    instances, result = load("booksum", path, metric="f1", chunk_tokens=20, chunks=(5, 5))
    assert [len(i.chunks) for i in instances] == [5] and result.skipped == {
        "too few chunks": 3,
        "malformed": 2,
    }
    assert instances[0].questions[0].answers == (booksum_row()["summary_text"],)


def test_qmsum(tmp_path):
    (instance,), _ = load("qmsum", write(tmp_path / "q.jsonl", [qmsum_row()]), chunk_tokens=8)
    assert instance.chunks == (
        Chunk("[Meeting]\nChair: Let us begin."),
        Chunk("[Meeting, continued]\nKim: The budget is short."),
        Chunk("[Meeting, continued]\nChair: Then we cut travel."),
    )
    assert instance.questions == (
        Question("What was the meeting about?", ("The budget.",), "f1", "general", id="0"),
        Question(
            "What did Kim say?", ("The budget is short.",), "f1", "specific", evidence=(1,), id="1"
        ),
        Question("What was cut?", ("travel",), "f1", "specific", evidence=(1, 2), id="2"),
    )


def test_real_qmsum(real):
    path = real("qmsum/Committee.jsonl.train.jsonl.gz")
    meetings = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    instances, result = load("qmsum", path)
    assert result.asked == sum(
        len(m["general_query_list"]) + len(m["specific_query_list"]) for m in meetings
    )
    assert not result.skipped
    for meeting, instance in zip(meetings, instances, strict=True):
        assert all(len(chunk.text.split()) <= 2048 for chunk in instance.chunks)
        specific = [q for q in instance.questions if q.kind == "specific"]
        for query, question in zip(meeting["specific_query_list"], specific, strict=True):
            first = int(query["relevant_text_span"][0][0])
            said = meeting["meeting_transcripts"][first]["content"].split()[:5]
            assert " ".join(said) in " ".join(
                " ".join(instance.chunks[i].text.split()) for i in question.evidence
            )


@pytest.mark.parametrize(
    ("source", "metric", "answer", "golds"),
    [
        ("ruler_qa2_421K", "substring", ["a", "b"], ("a", "b")),
        ("longmemeval_s*", "judge", ["a"], ("a",)),
        ("eventqa_65536", "substring", "a", ("a",)),
        ("icl_trec_fine_6400shot_balance", "boxed", ["12"], ("12",)),
        (
            "infbench_sum_eng_shots2",
            "keywords",
            ["Then Queen Mab meets Oberon."],
            ("Queen Mab", "Oberon"),
        ),
        ("detective_qa", "exact_match", ["A. the cook"], ("A. the cook",)),
        ("factconsolidation_mh_6k", "substring", ["a"], ("a",)),
    ],
)
def test_memoryagentbench_metric_by_source(tmp_path, source, metric, answer, golds):
    check_metric(metric, judged=True)
    row = mab_row(questions=["q?"], answers=[answer], metadata={"source": source})
    (instance,), _ = load("memoryagentbench", write(tmp_path / "m.jsonl", [row]))
    (question,) = instance.questions
    assert (question.metric, question.answers) == (metric, golds)
    assert question.kind == {
        "ruler_qa2_421K": "ruler_qa2",
        "longmemeval_s*": "longmemeval_s",
        "eventqa_65536": "eventqa",
    }.get(source, question.kind)
    assert any(source.startswith(prefix) for prefix in METRIC_OF_PREFIX)


def test_memoryagentbench_keypoints_dates_and_what_is_skipped(tmp_path):
    about = {
        "source": "infbench_sum",
        "keypoints": ["Here Titania sleeps."],
        "question_dates": ["2023/01/02"],
        "question_ids": ["z"],
    }
    rows = [
        mab_row(questions=["q?"], answers=["Then Oberon came."], metadata=about),
        mab_row(metadata={"source": "novel_set"}),
    ]
    rows += [
        mab_row(answers=[["a"]]),
        mab_row(metadata=None),
        mab_row(metadata={"source": "icl_x"}, answers=[["two"], ["2"]]),
    ]
    rows += [mab_row(answers=[[], ["b"]]), mab_row(questions=[5, ""]), mab_row(context=" ")]
    instances, result = load("memoryagentbench", write(tmp_path / "m.jsonl", rows))
    assert instances[0].questions == (
        Question("Asked on 2023/01/02.\nq?", ("Titania",), "keywords", "infbench_sum", id="z"),
    )
    assert [len(i.questions) for i in instances] == [1, 1, 1]
    assert result.skipped == {
        "unknown source": 2,
        "malformed": 1 + 1 + 1 + 2 + 1,
        "empty answer": 1,
    }


NAN, INF = float("nan"), float("inf")


# ------------------------------------------------------------------------------------------------
# babi
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


def told(instances):
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
            "qa2.txt line 1 is '2 John took the apple and the milk.'; expected: line 1 of",
        ),
    ],
)
def test_a_story_that_lost_a_line_is_malformed_and_spoils_no_other(tmp_path, missing, made, fault):
    path = tmp_path / "qa2.txt"
    path.write_text("".join(LINES[:missing] + LINES[missing + 1 :]))
    instances, result = load("babi", path)
    assert told(instances) == made
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
