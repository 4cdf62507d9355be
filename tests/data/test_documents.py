"""BookSum, QMSum, bAbI and MemoryAgentBench: construction by value, what is skipped."""

import gzip
import json

import pytest
from data_samples import BABI, booksum_row, mab_row, qmsum_row, write

from memalpha.data.keyphrases import keyphrases
from memalpha.data.memoryagentbench import METRIC_OF_PREFIX
from memalpha.data.registry import get_source
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Question


def load(name, path, **options):
    result = get_source(name).load(path, options)
    instances = list(result.instances)
    assert result.asked == sum(len(i.questions) for i in instances) + sum(result.skipped.values())
    return instances, result


# ------------------------------------------------------------------------------------------------ keywords
def test_keyphrases_are_names_by_frequency_then_long_words():
    summary = "The ship meets Moby Dick. Then Captain Ahab's crew hunts Moby Dick. It remembers nothing, nothing at all."
    assert keyphrases(summary, 9) == ("Moby Dick", "Captain Ahab", "nothing", "remembers")
    assert keyphrases(summary, 2) == ("Moby Dick", "Captain Ahab")
    assert keyphrases("It is so.", 5) == ()


# ------------------------------------------------------------------------------------------------ BookSum
def test_booksum(tmp_path):
    (instance,), _ = load("booksum", write(tmp_path / "b.jsonl", [booksum_row()]), chunk_tokens=10)
    assert [chunk.text for chunk in instance.chunks] == [
        "It was morning.",
        "Then the captain of the Nautilus saw land.",
        "He was glad.",
    ]
    assert instance.questions == (
        Question("Summarise the text.", ("Nautilus", "Captain Nemo", "captain"), "keywords", "summary", id="0"),
    )
    assert instance.id == "booksum-7-chapter 1"


def test_booksum_summary_in_the_json_text_of_the_hub(tmp_path):
    told = json.dumps(
        {"name": "Chapter 1", "url": "u", "summary": ["Then Ahab came.", "The Pequod sailed."], "analysis": ["No Moby."]}
    )
    rows = [booksum_row(summary_text=None, summary=text) for text in (told, "Ahab sees {x}.", '{"name": "Only"}', '{"cut')]
    instances, result = load("booksum", write(tmp_path / "b.jsonl", rows), metric="f1")
    assert [i.questions[0].answers for i in instances] == [
        ("Then Ahab came.\nThe Pequod sailed.",), ("Ahab sees {x}.",), ('{"cut',)
    ]  # fmt: skip
    assert result.skipped == {"empty answer": 1}


def test_booksum_other_metrics_and_what_is_skipped(tmp_path):
    rows = [
        booksum_row(),
        booksum_row(summary_text=None),
        booksum_row(summary_text="It is so."),
        booksum_row(chapter=""),
        booksum_row(chapter=["no text"]),
        booksum_row(chapter="word " * 100),
    ]
    path = write(tmp_path / "b.jsonl", rows)
    instances, result = load("booksum", path, chunk_tokens=20, chunks=(1, 3))
    assert len(instances) == 1
    assert result.skipped == {"empty answer": 1, "no keywords": 1, "malformed": 2, "too many chunks": 1}
    instances, result = load("booksum", path, metric="f1", chunk_tokens=20, chunks=(5, 5))
    assert [len(i.chunks) for i in instances] == [5] and result.skipped == {"too few chunks": 3, "malformed": 2}
    assert instances[0].questions[0].answers == (booksum_row()["summary_text"],)


# ------------------------------------------------------------------------------------------------ QMSum
def test_qmsum(tmp_path):
    (instance,), _ = load("qmsum", write(tmp_path / "q.jsonl", [qmsum_row()]), chunk_tokens=8)
    assert instance.chunks == (
        Chunk("[Meeting]\nChair: Let us begin."),
        Chunk("[Meeting, continued]\nKim: The budget is short."),
        Chunk("[Meeting, continued]\nChair: Then we cut travel."),
    )
    assert instance.questions == (
        Question("What was the meeting about?", ("The budget.",), "f1", "general", id="0"),
        Question("What did Kim say?", ("The budget is short.",), "f1", "specific", evidence=(1,), id="1"),
        Question("What was cut?", ("travel",), "f1", "specific", evidence=(1, 2), id="2"),
    )


def test_qmsum_malformed(tmp_path):
    spans = [None, [], [["x", "1"]], 7, [["0", "99999999999"]]]
    asked = [{"query": f"q{n}?", "answer": "a", "relevant_text_span": span} for n, span in enumerate(spans)]
    rows = [
        qmsum_row(specific_query_list=asked, general_query_list=None),
        qmsum_row(meeting_transcripts=[]),
        qmsum_row(general_query_list="none"),
        [],
    ]
    (instance,), result = load("qmsum", write(tmp_path / "q.jsonl", rows))
    assert [(q.text, q.evidence) for q in instance.questions] == [("q0?", None), ("q1?", None), ("q4?", (0,))]
    assert result.skipped == {"malformed": 2 + 3 + 2 + 1}


def test_qmsum_spans_that_are_no_turns(tmp_path):
    spans = [[[float("inf"), 2]], [[0, 100_000_000]] * 200, [["-3", "1"]], [[50_000_000, 60_000_000]]]
    asked = [{"query": f"q{n}?", "answer": "a", "relevant_text_span": span} for n, span in enumerate(spans)]
    path = write(tmp_path / "q.jsonl", [qmsum_row(specific_query_list=asked, general_query_list=None)])
    (instance,), result = load("qmsum", path, chunk_tokens=8)
    assert [(q.text, q.evidence) for q in instance.questions] == [("q1?", (0, 1, 2)), ("q2?", (0, 1)), ("q3?", None)]
    assert result.skipped == {"malformed": 1}


@pytest.mark.parametrize("span", [["01", "11"], ["12"], [["0", "1"], "12"], [{"a": 1, "b": 2}], [0, 1]])
def test_a_qmsum_span_of_digits_is_no_pair_of_turns(tmp_path, span):
    asked = [{"query": f"q{n}?", "answer": "a", "relevant_text_span": s} for n, s in enumerate((span, [["0", "0"]]))]
    path = write(tmp_path / "q.jsonl", [qmsum_row(specific_query_list=asked, general_query_list=None)])
    (instance,), result = load("qmsum", path, chunk_tokens=8)
    assert [(q.text, q.evidence) for q in instance.questions] == [("q1?", (0,))]
    assert result.skipped == {"malformed": 1} and "question 0 field 'relevant_text_span' is no list of pairs" in result.problems[0]


def test_real_qmsum(real):
    path = real("qmsum/Committee.jsonl.train.jsonl.gz")
    meetings = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    instances, result = load("qmsum", path)
    assert result.asked == sum(len(m["general_query_list"]) + len(m["specific_query_list"]) for m in meetings)
    assert not result.skipped
    for meeting, instance in zip(meetings, instances, strict=True):
        assert all(len(chunk.text.split()) <= 2048 for chunk in instance.chunks)
        specific = [q for q in instance.questions if q.kind == "specific"]
        for given, question in zip(meeting["specific_query_list"], specific, strict=True):
            first = int(given["relevant_text_span"][0][0])
            said = meeting["meeting_transcripts"][first]["content"].split()[:5]
            assert " ".join(said) in " ".join(" ".join(instance.chunks[i].text.split()) for i in question.evidence)


# ------------------------------------------------------------------------------------------------ bAbI
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


# ------------------------------------------------------------------------------------------------ MemoryAgentBench
def test_memoryagentbench(tmp_path):
    (instance,), _ = load("memoryagentbench", write(tmp_path / "m.jsonl", [mab_row()]), chunk_tokens=8)
    assert [c.text for c in instance.chunks] == [
        "Document 1: The tower stands in Ulm.", "Document 2: The bridge stands in Bonn.",
    ]  # fmt: skip
    assert instance.source == "ruler_qa1_197K"
    assert instance.questions == (
        Question("Where does the tower stand?", ("Ulm",), "substring", "single", id="0"),
        Question("Where does the bridge stand?", ("Bonn", "the city of Bonn"), "substring", "multi", id="1"),
    )


@pytest.mark.parametrize(
    ("source", "metric", "answer", "golds"),
    [
        ("ruler_qa2_421K", "substring", ["a", "b"], ("a", "b")),
        ("longmemeval_s*", "judge", ["a"], ("a",)),
        ("eventqa_65536", "substring", "a", ("a",)),
        ("icl_trec_fine_6400shot_balance", "boxed", ["12"], ("12",)),
        ("recsys_redial_full", "keywords", [7, 9], ("7", "9")),
        ("infbench_sum_eng_shots2", "keywords", ["Then Queen Mab meets Oberon."], ("Queen Mab", "Oberon")),
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
    assert question.kind == {"ruler_qa2_421K": "ruler_qa2", "longmemeval_s*": "longmemeval_s", "eventqa_65536": "eventqa"}.get(
        source, question.kind
    )
    assert any(source.startswith(prefix) for prefix in METRIC_OF_PREFIX)


def test_memoryagentbench_kinds_that_are_blank(tmp_path):
    rows = [mab_row(metadata={"source": "ruler_qa", "question_types": [" ", "x"]}), mab_row(metadata={"source": "_12"})]
    instances, _ = load("memoryagentbench", write(tmp_path / "m.jsonl", rows), metric="f1")
    assert [[q.kind for q in i.questions] for i in instances] == [["ruler_qa", "x"], ["single", "single"]]


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
        mab_row(answers=[["a"]]),
        mab_row(metadata=None),
        mab_row(metadata={"source": "icl_x"}, answers=[["two"], ["2"]]),
        mab_row(answers=[[], ["b"]]),
        mab_row(questions=[5, ""]),
        mab_row(context=" "),
    ]
    instances, result = load("memoryagentbench", write(tmp_path / "m.jsonl", rows))
    assert instances[0].questions == (Question("Asked on 2023/01/02.\nq?", ("Titania",), "keywords", "infbench_sum", id="z"),)
    assert [len(i.questions) for i in instances] == [1, 1, 1]
    assert result.skipped == {"unknown source": 2, "malformed": 2 + 2 + 1 + 2 + 2, "empty answer": 1}
    only, result = load("memoryagentbench", write(tmp_path / "m.jsonl", rows), source="icl")
    assert [i.source for i in only] == ["icl_x"] and result.skipped["other source"] == 1 + 2 + 2


def test_memoryagentbench_asks_the_hub_for_its_split(tmp_path, monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or iter([mab_row()]))
    monkeypatch.chdir(tmp_path)
    for split in ("Accurate_Retrieval", "Conflict_Resolution"):
        load("memoryagentbench", "ai-hyz/MemoryAgentBench", split=split)
    assert [kwargs["split"] for _, kwargs in asked] == ["Accurate_Retrieval", "Conflict_Resolution"]
