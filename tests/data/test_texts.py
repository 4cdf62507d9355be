"""Sets of texts and of labelled sentences: instances by value, and what is skipped."""

import gzip
import json
import re

import pytest

from memalpha.data.texts import METRIC_OF_PREFIX
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Question
from tests.helpers.data_samples import (
    BABI,
    SAMPLES,
    booksum_row,
    hotpot_row,
    load,
    mab_row,
    musique_row,
    qmsum_row,
    write,
)

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


# ------------------------------------------------------------------------------------------------
# documents


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


@pytest.mark.parametrize(
    ("source", "metric", "answer", "golds"),
    [
        ("ruler_qa2_421K", "substring", ["a", "b"], ("a", "b")),
        ("longmemeval_s*", "judge", ["a"], ("a",)),
        ("eventqa_65536", "substring_all", "a", ("a",)),
        ("eventqa_full", "substring_all", ["a", "b"], ("a", "b")),
        ("ruler_niah_mv_64K", "keywords", ["a", "b"], ("a", "b")),
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
        "eventqa_full": "eventqa_full",
        "ruler_niah_mv_64K": "ruler_niah_mv",
    }.get(source, question.kind)
    assert any(source.startswith(prefix) for prefix in METRIC_OF_PREFIX)


def test_memoryagentbench_asks_for_keypoints_and_says_the_date(tmp_path):
    about = {"source": "infbench_sum", "keypoints": ["Here Titania sleeps."]}
    about |= {"question_dates": ["2023/01/02"], "question_ids": ["z"]}
    row = mab_row(questions=["q?"], answers=["Then Oberon came."], metadata=about)
    (instance,), _ = load("memoryagentbench", write(tmp_path / "m.jsonl", [row]))
    assert instance.questions == (
        Question("Asked on 2023/01/02.\nq?", ("Titania",), "keywords", "infbench_sum", id="z"),
    )


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


def test_the_splits_of_a_folder_are_not_mixed(tmp_path):
    (tmp_path / "qa1_a_train.txt").write_text("1 Mary left.\n2 Who left? \tMary\t1\n")
    (tmp_path / "qa1_a_test.txt").write_text("1 Jo came.\n2 Who came? \tJo\t1\n")
    (tmp_path / "qa2_b_train.txt.gz").write_bytes(gzip.compress(b"1 Al sat.\n2 Who sat? \tAl\t1\n"))
    instances, _ = load("babi", tmp_path)
    assert [i.questions[0].answers for i in instances] == [("Mary",), ("Al",)]
    assert [i.questions[0].answers for i in load("babi", tmp_path, split="test")[0]] == [("Jo",)]


# ------------------------------------------------------------------------------------------------
# labelled sentences
ROWS = [(f"sentence {n} about {'ab'[n % 2]}", "ab"[n % 2]) for n in range(12)]


def table(path, pairs):
    path = path.with_suffix(".csv")
    path.write_text("text,category\n" + "".join(f"{text},{label}\n" for text, label in pairs))
    return path


EXAMPLE = re.compile(r"(?:Sentence|Sample): (.*)\nLabel: (\d+)")


def examples(instance):
    return [EXAMPLE.findall(chunk.text) for chunk in instance.chunks]


def asked_sentence(question):
    return re.match(r"(?:Sentence|Sample): (.*)\n", question.text)[1]


PAIRS = [(f"s{n} about {'abcd'[n % 4]}", "abcd"[n % 4]) for n in range(200)]
LABEL_OF = dict(PAIRS)


def test_labelled_sentences_by_value(tmp_path):
    path = table(tmp_path / "x.tsv", PAIRS)
    instances, result = load("banking77", path, questions=10, chunks=3, chunk_tokens=30)
    used, orders = [], set()
    for instance in instances:
        shown = examples(instance)
        # An example has 6 words ("Sentence: s1 about a", "Label: 0"); 5 of them fit into 30.
        assert [len(chunk) for chunk in shown] == [5, 5, 5]
        pairs = [(text, LABEL_OF[text], number) for chunk in shown for text, number in chunk]
        numbers = {label: number for _, label, number in pairs}
        assert {(label, number) for _, label, number in pairs} == numbers.items()
        assert sorted(numbers.values()) == ["0", "1", "2", "3"]
        orders.add(str(sorted(numbers.items())))
        used += [text for text, *_ in pairs]
        assert len(instance.questions) == 10
        for question in instance.questions:
            used.append(asked_sentence(question))
            label = LABEL_OF[used[-1]]
            assert question.answers == (numbers[label],) and question.kind == "intent"
            own = [i for i, c in enumerate(shown) if label in {LABEL_OF[text] for text, _ in c}]
            assert question.evidence == tuple(own)
    assert len(used) == len(set(used)) and len(orders) > 1  # a sentence is used once
    # 8 * (15 + 10) = 200
    assert (len(instances), result.skipped) == (8, {"shown as an example": 120})


def test_examples_of_another_file(tmp_path):
    test = table(
        tmp_path / "test.tsv",
        [(f"t{n}", "abcd"[n % 4]) for n in range(7)] + [("S1 ABOUT B", "b"), ("t9", "never shown")],
    )
    train = table(tmp_path / "train.tsv", PAIRS[:40])
    instances, result = load(
        "banking77", test, examples=str(train), questions=4, chunks=2, chunk_tokens=2000
    )
    assert [len(i.questions) for i in instances] in ([4, 4], [3, 4, 1], [4, 3, 1], [4, 4, 0])
    assert result.asked == 9 and result.skipped == {"label not shown": 1}
    for instance in instances:
        shown = {text for chunk in examples(instance) for text, _ in chunk}
        barred = any(asked_sentence(q) == "S1 ABOUT B" for q in instance.questions)
        assert shown == {text for text, _ in PAIRS[:40]} - ({"s1 about b"} if barred else set())


def test_what_is_skipped(tmp_path):
    rows = [{"text": t, "category": v} for t, v in PAIRS[:20]]
    wrong = [
        ("S3 about D", "d"),
        (" ", "a"),
        ("no label", ""),
        (5, "a"),
        (None, "a"),
        ("alone", "once"),
    ]
    rows += [*({"text": text, "category": label} for text, label in wrong), "no row"]
    _, result = load("banking77", write(tmp_path / "x.jsonl", rows), questions=5, chunk_tokens=30)
    assert {
        k: v
        for k, v in result.skipped.items()
        if k not in ("shown as an example", "label not shown")
    } == {
        "repeated sentence": 1,
        "empty sentence": 1,
        "empty answer": 1,
        "malformed": 3,
    }
    assert result.asked == 27 and "x.jsonl line 24" in result.problems[0]


def test_sentences_of_a_held_out_file_are_left_out(tmp_path):
    path = write(tmp_path / "x.json", {"train": list(map(list, PAIRS[:40]))})
    other = write(tmp_path / "y.json", {"test": [["S3 about D", "d"], ["new", "a"]]})
    instances, result = load("clinc150", path, held_out=str(other), questions=5, chunk_tokens=30)
    assert result.skipped["held out"] == 1 and result.asked == 40
    assert not any(
        "s3 about d" in question.text.lower() for i in instances for question in i.questions
    )
    assert not any("s3 about d" in chunk.text.lower() for i in instances for chunk in i.chunks)


def topic(text):
    return re.search(r"topic (\d)|$", text)[1]


@pytest.mark.parametrize(
    "name", ["banking77", "clinc150", "csabstruct", "hwu64", "pubmed_rct", "trec_coarse"]
)
def test_sentences_of_every_published_form_have_the_label_of_their_topic(tmp_path, name):
    sample = SAMPLES[name](tmp_path)
    for instance in load(name, sample.path, **sample.options)[0]:
        shown = {topic(text): number for chunk in examples(instance) for text, number in chunk}
        asked = {topic(asked_sentence(q)): q.answers[0] for q in instance.questions}
        assert asked and asked.items() <= shown.items()


def test_out_of_scope_sentences_belong_to_the_split_they_are_named_after(tmp_path):
    oos = [(f"strange thing {n}", "oos") for n in range(6)]
    splits = {
        "train": ROWS,
        "oos_train": oos,
        "test": [("s about a", "a")],
        "oos_test": [("odd", "oos")],
        "oos_val": [("w", "oos")],
    }
    path = write(
        tmp_path / "data_full.json",
        {name: list(map(list, pairs)) for name, pairs in splits.items()},
    )
    instances, result = load("clinc150", path, split="test", examples=str(path), chunk_tokens=60)
    assert sorted(q.kind for i in instances for q in i.questions) == ["intent", "oos"]
    assert result.asked == 21 and result.skipped == {"other split": 12 + 6 + 1}
