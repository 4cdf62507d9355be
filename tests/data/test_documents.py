"""BookSum, QMSum, MemoryAgentBench, Mem-alpha's columns: construction by value, what is skipped;
NaN and infinite answers."""

import gzip
import json

import pytest
from data_samples import booksum_row, load, mab_row, qmsum_row, write

from memalpha.data.texts import METRIC_OF_PREFIX, keyphrases
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Question


def test_keyphrases_are_names_by_frequency_then_long_words():
    summary = "The ship meets Moby Dick. Then Captain Ahab's crew hunts Moby Dick. It remembers nothing, nothing at all."
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
        for given, question in zip(meeting["specific_query_list"], specific, strict=True):
            first = int(given["relevant_text_span"][0][0])
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
