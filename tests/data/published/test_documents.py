"""BookSum, QMSum and MemoryAgentBench: instances by value."""

import pytest

from memalpha.data.published.memoryagentbench import METRIC_OF_PREFIX
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Question
from tests.helpers.data_samples import (
    booksum_row,
    load,
    mab_row,
    qmsum_row,
    write,
)


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
