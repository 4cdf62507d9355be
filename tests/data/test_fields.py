"""Fields by value: numbers that stand for nothing, JSON text in place of lists, and what the loaders make of them."""

import json

import pytest
from data_samples import booksum_row, hotpot_row, locomo_sample, longmemeval_item, mab_row, memalpha_row, musique_row, write

from memalpha.data.fields import answers, first_of, optional_text, scalar_text, spelled
from memalpha.data.registry import get_source
from memalpha.errors import SchemaError

NAN, INF = float("nan"), float("inf")


def load(name, path, **options):
    result = get_source(name).load(path, options)
    instances = list(result.instances)
    assert result.asked == sum(len(i.questions) for i in instances) + sum(result.skipped.values())
    return [question.answers for i in instances for question in i.questions], result


# ------------------------------------------------------------------------------------------------ NaN and Infinity
def test_nan_is_a_missing_value_and_infinity_no_value():
    assert (scalar_text(NAN, "x"), scalar_text(2.5, "x"), scalar_text(-3, "x")) == ("", "2.5", "-3")
    assert answers([NAN, None, "a", 7], "x") == ("a", "7")
    assert optional_text({"a": NAN}, "a", "x") == ""
    assert first_of({"a": NAN, "b": "c"}, ["a", "b"], "x") == "c"
    for value in (INF, -INF):
        with pytest.raises(SchemaError, match=r"x is -?inf\n  expected: text or a finite number"):
            scalar_text(value, "x")


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
    golds, result = load(name, one_answer(name, tmp_path, value))
    assert len(golds) == 1 and result.skipped == {reason: 1}


def test_a_label_that_is_no_number_is_no_class(tmp_path):
    rows = [{"text": f"sentence {n} about {'ab'[n % 2]}", "label": n % 2} for n in range(12)]
    rows += [{"text": "one", "label": NAN}, {"text": "two", "label": INF}]
    _, result = load("banking77", write(tmp_path / "x.json", rows), questions=6, chunk_tokens=99)
    assert {reason: result.skipped[reason] for reason in ("empty answer", "malformed")} == {"empty answer": 1, "malformed": 1}


def test_a_summary_that_is_nan_leaves_the_other_column(tmp_path):
    golds, _ = load("booksum", write(tmp_path / "b.jsonl", [booksum_row(summary_text=NAN, summary="Ahab came.")]), metric="f1")
    assert golds == [("Ahab came.",)]


def test_a_date_that_is_nan_is_not_told(tmp_path):
    about = {"source": "ruler_qa", "question_dates": [NAN, "May"], "question_types": [NAN, "x"], "question_ids": [NAN, "z"]}
    result = get_source("memoryagentbench").load(write(tmp_path / "m.jsonl", [mab_row(metadata=about)]))
    (instance,) = result.instances
    assert [(q.text, q.kind, q.id) for q in instance.questions] == [
        ("Where does the tower stand?", "ruler_qa", "0"),
        ("Asked on May.\nWhere does the bridge stand?", "x", "z"),
    ]


# ------------------------------------------------------------------------------------------------ JSON text
def test_what_a_json_text_spells():
    assert (spelled('["a", 1]', "x"), spelled(["a"], "x"), spelled(None, "x")) == (["a", 1], ["a"], None)
    for text in ("['a' 'b']", "[" * 100_000, "", "[" + "9" * 5000 + "]"):
        with pytest.raises(SchemaError, match="x is not JSON"):
            spelled(text, "x")


def test_memoryagentbench_reads_lists_that_stand_as_json_text(tmp_path):
    row = mab_row()
    written = {**row, **{key: json.dumps(row[key]) for key in ("questions", "answers", "metadata")}}
    short = {**written, "answers": '["a"]'}
    golds, result = load("memoryagentbench", write(tmp_path / "m.jsonl", [written, short, {**written, "questions": "['q?' 'r?']"}]))
    assert golds == [("Ulm",), ("Bonn", "the city of Bonn")]
    assert result.skipped == {"malformed": 2 + 1} and result.asked == 5
    assert "line 2 has 2 questions and 1 answers" in result.problems[0]
    assert "line 3 field 'questions' is not JSON" in result.problems[1]
