"""Labelled sentences from files of odd forms: line ends of old systems, rows in place of splits, labels that are missing."""

import gzip

import pytest
from data_samples import write

from memalpha.data.labelled import read_abstracts, read_parallel, read_trec_coarse
from memalpha.data.registry import get_source

NAN = float("nan")
PAIRS = [(f"sentence {n} about {'ab'[n % 2]}", "ab"[n % 2]) for n in range(12)]


def read(reader, source, split="train"):
    return [(row.text, row.label) for row in reader(str(source), split)]


def load(name, path, **options):
    result = get_source(name).load(path, options)
    instances = list(result.instances)
    assert result.asked == sum(len(i.questions) for i in instances) + sum(result.skipped.values())
    return instances, result


# ------------------------------------------------------------------------------------------------ line ends
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("ends", ["\r", "\n", "\r\n", "\n\r", "\n\r\r\n"])
def test_lines_end_at_every_line_end_and_at_several_in_one_file(tmp_path, ends, packed):
    def put(name, lines):
        raw = "".join(line + ("\n" if n % 3 else ends) for n, line in enumerate(lines)).encode("latin-1")
        (tmp_path / f"{name}.gz" if packed else tmp_path / name).write_bytes(gzip.compress(raw) if packed else raw)

    wanted = [(f"What caf\u00e9 is {n} ?", "AB"[n % 2]) for n in range(8)]
    end = ".gz" if packed else ""
    put("x.txt", [f"{label}:x {text}" for text, label in wanted])
    assert read(read_trec_coarse, tmp_path / f"x.txt{end}") == wanted
    put("y.txt", ["###1", *(f"{label}\t{text}" for text, label in wanted)])
    assert read(read_abstracts, tmp_path / f"y.txt{end}") == wanted
    put("seq.in", [text for text, _ in wanted])
    put("label", [label for _, label in wanted])
    assert read(read_parallel, tmp_path) == wanted


# ------------------------------------------------------------------------------------------------ HWU64, first release
NAMES = "userid;answerid;scenario;intent;status;answer_annotation;notes;suggested_entities;answer_normalised;answer;question"


def test_a_first_release_row_without_scenario_or_intent_has_no_label(tmp_path):
    lines = ["1;1;alarm;set;;x;;;x;wake me;Write what"]
    lines += [f"1;2;{both};;x;;;x;say it;Write what" for both in (";", "null;null", "alarm;null", "null;set", " ;set")]
    (tmp_path / "x.csv").write_text("\n".join([NAMES, *lines]))
    assert read(read_parallel, tmp_path / "x.csv") == [("wake me", "alarm_set")] + [("say it", "")] * 5


def test_first_release_rows_of_json_lines(tmp_path):
    whole = {"answerid": 1, "scenario": "alarm", "intent": "set", "answer": "wake me", "question": "Write what"}
    lacking = [{key: value for key, value in whole.items() if key != name} for name in ("scenario", "intent", "answer")]
    given = [{**whole, "scenario": value, "intent": value} for value in (None, NAN)]
    wrong = [{**whole, "intent": ["set"]}, {**whole, "answer": 5}]
    other = {"text": "say it", "intent": "set", "answer": "Ulm"}
    found = read(read_parallel, write(tmp_path / "x.jsonl", [whole, *lacking, *given, *wrong, other]))
    assert found[:6] == [
        ("wake me", "alarm_set"),
        ("wake me", ""),
        ("wake me", ""),
        ("", "alarm_set"),
        ("wake me", ""),
        ("wake me", ""),
    ]
    assert [(said, str(label).split("\n")[0]) for said, label in found[6:8]] == [
        ("", "x.jsonl line 7 field 'intent' is list"),
        ("", "x.jsonl line 8 is int"),
    ]
    assert found[8:] == [("say it", "set")]
