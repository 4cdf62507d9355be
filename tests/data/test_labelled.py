"""Labelled sentences from files of odd forms: line ends of old systems, rows in place of splits, labels that are missing."""

import gzip
import json

import pytest
from data_samples import write

from memalpha.data.labelled import read_abstracts, read_clinc, read_parallel, read_trec_coarse
from memalpha.data.registry import get_source
from memalpha.errors import InputError, SchemaError

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


# ------------------------------------------------------------------------------------------------ CLINC150
def test_out_of_scope_sentences_belong_to_the_split_they_are_named_after(tmp_path):
    oos = [(f"strange thing {n}", "oos") for n in range(6)]
    splits = {
        "train": PAIRS,
        "oos_train": oos,
        "test": [("s about a", "a")],
        "oos_test": [("odd", "oos")],
        "oos_val": [("w", "oos")],
    }
    path = write(tmp_path / "data_full.json", {name: list(map(list, pairs)) for name, pairs in splits.items()})
    instances, result = load("clinc150", path, split="test", examples=str(path), chunk_tokens=60)
    assert sorted(q.kind for i in instances for q in i.questions) == ["intent", "oos"]
    assert result.asked == 21 and result.skipped == {"other split": 12 + 6 + 1}
    _, result = load("clinc150", path, questions=6, chunk_tokens=60)
    assert result.asked == 21 and result.skipped["other split"] == 3
    _, result = load("clinc150", path, split="oos_train", questions=2, chunk_tokens=60)
    assert result.asked == 21 and result.skipped["other split"] == 15


@pytest.mark.parametrize("packed", [False, True])
def test_clinc_reads_a_json_file_of_rows_one_after_another(tmp_path, packed):
    text = "".join(json.dumps({"tokens": [1], "text": said, "intent": label}) + "\n" for said, label in PAIRS)
    path = tmp_path / ("x.json.gz" if packed else "x.json")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    assert read(read_clinc, path) == PAIRS
    _, result = load("clinc150", path, questions=6, chunk_tokens=60)
    assert result.asked == 12


def test_clinc_rows_of_which_the_first_has_no_sentence(tmp_path):
    (tmp_path / "x.json").write_text('{"intent": "a"}\n{"text": "b", "intent": "c"}\n')
    found = read(read_clinc, tmp_path / "x.json")
    assert isinstance(found[0][1], SchemaError) and found[1:] == [("b", "c")]


def test_clinc_splits_with_something_behind_are_no_json(tmp_path):
    (tmp_path / "x.json").write_text('{"train": [["a", "b"]]} {"train": [["a", "b"]]}')
    with pytest.raises(InputError, match=r"x\.json is not JSON: Extra data: line 1 column 25"):
        read(read_clinc, tmp_path / "x.json")
