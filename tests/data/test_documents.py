"""BookSum, QMSum, MemoryAgentBench, Mem-alpha's columns: construction by value, what is skipped; NaN and infinite answers."""

import gzip
import json

import pytest
from data_samples import (
    booksum_row,
    hotpot_row,
    load,
    locomo_sample,
    longmemeval_item,
    mab_row,
    memalpha_row,
    musique_row,
    qmsum_row,
    write,
)
from hypothesis import strategies as st

from memalpha.data.documents import METRIC_OF_PREFIX, metric_of
from memalpha.data.registry import get_source
from memalpha.data.wording import keyphrases
from memalpha.qa.metrics import check_metric
from memalpha.types import Chunk, Instance, Question


def test_keyphrases_are_names_by_frequency_then_long_words():
    summary = "The ship meets Moby Dick. Then Captain Ahab's crew hunts Moby Dick. It remembers nothing, nothing at all."
    assert keyphrases(summary, 9) == ("Moby Dick", "Captain Ahab", "nothing", "remembers")
    assert keyphrases(summary, 2) == ("Moby Dick", "Captain Ahab")
    assert keyphrases("It is so.", 5) == ()


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


@pytest.mark.parametrize("span", [["01", "11"], ["12"], [["0", "1"], "12"], [{"a": 1, "b": 2}], [0, 1]])
def test_a_qmsum_span_of_digits_is_no_pair_of_turns(tmp_path, span):
    asked = [{"query": f"q{n}?", "answer": "a", "relevant_text_span": s} for n, s in enumerate((span, [["0", "0"]]))]
    path = write(tmp_path / "q.jsonl", [qmsum_row(specific_query_list=asked, general_query_list=None)])
    (instance,), result = load("qmsum", path, chunk_tokens=8)
    assert [(q.text, q.evidence) for q in instance.questions] == [("q1?", (0,))]
    assert result.skipped == {"malformed": 1} and "question 0" in result.problems[0]


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


MEMALPHA = get_source("memalpha")


def row(data_source="squad", chunks=("one", "two"), asked=(("q?", "a"),), **changed):
    """A row as on the Hub: lists as JSON text."""
    qas = [{"question": question, "answer": answer} for question, answer in asked]
    values = {
        "instance_id": "i1",
        "prompt": "I will provide you with sequential information chunks.",
        "chunks": json.dumps(list(chunks)),
        "questions_and_answers": json.dumps(qas),
        "data_source": data_source,
        "metadata": "{}",
        "num_chunks": len(chunks),
        "num_questions": len(qas),
    }
    return {**values, **changed}


def save(tmp_path, rows, kind="jsonl"):
    path = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        import datasets

        datasets.Dataset.from_list(rows).to_parquet(str(path))
    else:
        path.write_text("".join(json.dumps(item) + "\n" for item in rows) if kind == "jsonl" else json.dumps(rows))
    return path


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json"])
@pytest.mark.parametrize("as_text", [True, False])
def test_rows_from_each_kind_of_file(tmp_path, kind, as_text):
    rows = [
        row(chunks=["c1", "c2 \u00e9\r\nline"], asked=[("q1?", "a1"), ("q2?", "a2")]),
        row("perltqa", ["d"], [("w?", "x; y")], instance_id="i2"),
    ]
    if not as_text:
        rows = [
            {**r, "chunks": json.loads(r["chunks"]), "questions_and_answers": json.loads(r["questions_and_answers"])} for r in rows
        ]
    instances, result = load("memalpha", save(tmp_path, rows, kind))
    first = Instance(
        "i1",
        "squad",
        (Chunk("c1"), Chunk("c2 \u00e9\nline")),
        (Question("q1?", ("a1",), id="0"), Question("q2?", ("a2",), id="1")),
    )
    second = Instance("i2", "perltqa", (Chunk("d"),), (Question("w?", ("x; y",), metric="parts", id="0"),))
    assert instances == [first, second]
    assert not result.skipped


def test_metric_by_data_source():
    wanted = {"squad": "substring", "perltqa": "parts", "lme_train": "judge", "longmemeval_s*": "judge", "pubmed-rct": "boxed"}
    wanted |= {"icl_trec_coarse_6600shot_balance": "boxed", "infbench_sum_eng_shots2": "keywords", "ruler_qa1_197K": "substring"}
    wanted |= {"booksum": "keywords", "hotpotqa": "substring", "infbench_qa_eng_shots2": None, "eventqa_full": None, "": None}
    assert {name: metric_of(name) for name in wanted} == wanted


def test_forms_of_an_answer(tmp_path):
    cases = [
        ("squad", "text", ("text",)),
        ("squad", ["a", "b", "a"], ("a", "b")),
        ("squad", {"text": ["a"], "answer_start": [3]}, ("a",)),
        ("squad", 1876, ("1876",)),
        ("pubmed-rct", 3, ("3",)),
        ("icl_nlu_8296shot_balance", ["12"], ("12",)),
        ("booksum", "ship, whale, sea", ("ship", "whale", "sea")),
        ("booksum", ["ship, whale", "sea"], ("ship, whale", "sea")),
        ("squad", "one, two", ("one, two",)),
    ]
    rows = [row(source, asked=[("q?", given)], instance_id=str(i)) for i, (source, given, _) in enumerate(cases)]
    instances, result = load("memalpha", save(tmp_path, rows))
    assert [instance.questions[0].answers for instance in instances] == [wanted for _, _, wanted in cases]
    assert not result.skipped


def test_every_question_is_kept_or_counted(tmp_path):
    rows = [
        row(asked=[("q?", "a"), ("empty?", " "), ("none?", None), ("list?", [[1]]), (None, "a"), ("", "a"), ("flag?", True)]),
        row("icl_nlu", asked=[("label?", "2"), ("no label?", "two")], instance_id="i2"),
        row("eventqa_full", asked=[("a?", "a"), ("b?", "b")], instance_id="i3"),
        row(instance_id="i4", num_chunks=9, asked=[("a?", "a"), ("b?", "b"), ("c?", "c")]),
        row(instance_id="i5", chunks="{not json", num_questions=None),
        row(instance_id="i6", questions_and_answers="[{", num_questions=4),
        row(instance_id="i7", questions_and_answers=json.dumps(["not an object"])),
        row(instance_id="i8", chunks=json.dumps(["one", " "])),
        row(instance_id="i9", data_source=None),
        {"something": "else"},
        17,
    ]
    instances, result = load("memalpha", save(tmp_path, rows))
    assert [[q.text for q in instance.questions] for instance in instances] == [["q?"], ["label?"]]
    malformed = 4 + 1 + 3 + 1 + 4 + 1 + 1 + 1 + 1 + 1
    assert result.skipped == {"empty answer": 2, "unknown data_source": 2, "malformed": malformed}
    assert any("rows.jsonl line 4 has 2 items; expected: 9" in problem for problem in result.problems)
    assert any("'eventqa_full' has no metric; give option 'metric'" in problem for problem in result.problems)


def test_ids_missing_or_repeated(tmp_path):
    rows = [row(instance_id=0), row(instance_id=0), row(instance_id=None), row(instance_id=0)]
    instances, result = load("memalpha", save(tmp_path, rows))
    assert [instance.id for instance in instances] == ["0", "0#2", "row-2", "0#3"]
    assert result.notes["repeated ids numbered"] == 2


_WORD = st.text("ab\u00e9,; ", min_size=1, max_size=8).map(str.strip).filter(bool)


_SOURCE = st.sampled_from(["squad", "perltqa", "booksum", "lme_train"])


NAN, INF = float("nan"), float("inf")


def one_answer(name, folder, value):
    """A file of the set that holds, beside what is sound, one question with this answer."""
    rows = {
        "hotpotqa": lambda: [hotpot_row(0), hotpot_row(1, answer=value)],
        "musique": lambda: [musique_row(0), musique_row(1, answer=value, answer_aliases=[])],
        "longmemeval": lambda: [longmemeval_item("a"), longmemeval_item("b", answer=value)],
        "locomo": lambda: [locomo_sample(qa=[{"question": "q?", "answer": a, "category": 1} for a in ("x", value)])],
        "booksum": lambda: [booksum_row(), booksum_row(summary_text=value)],
        "memalpha": lambda: [memalpha_row(questions_and_answers=[{"question": "q?", "answer": a} for a in ("x", value)])],
        "memoryagentbench": lambda: [mab_row(answers=["x", value])],
        "squad": lambda: [{"context": "x y", "question": "q?", "answer": a} for a in ("x", value)],
    }
    return write(folder / f"{name}.json", rows[name]())


@pytest.mark.parametrize(
    "name", ["hotpotqa", "musique", "longmemeval", "locomo", "booksum", "memalpha", "memoryagentbench", "squad"]
)
@pytest.mark.parametrize(("value", "reason"), [(NAN, "empty answer"), (INF, "malformed"), (-INF, "malformed")])
def test_an_answer_that_is_no_number_is_no_gold_answer(tmp_path, name, value, reason):
    instances, result = load(name, one_answer(name, tmp_path, value))
    assert sum(len(i.questions) for i in instances) == 1 and result.skipped == {reason: 1}
