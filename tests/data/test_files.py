"""Rows of every kind of file, instances as files, prepared folders: values, places and damage."""

import gzip
import hashlib
import json
import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from unittest.mock import Mock

import datasets
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha import __version__
from memalpha.data import rows as rows_module
from memalpha.data.load import BUILT_IN_SOURCES, get_source, iter_prepared, prepare, read_manifest
from memalpha.data.rows import (
    instance_from_json,
    iter_parquet,
    iter_rows,
    read_instances,
    write_parquet,
)
from memalpha.data.source import CommonOptions, Draft, SkippedItem, Tally, finish
from memalpha.data.synthetic import PRESETS, generate
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Fact, FactAction, Instance, Question
from tests.helpers.data_damage import check_counted, check_damaged, damaging
from tests.helpers.data_samples import (
    SAMPLES,
    load,
    longmemeval_item,
    mab_row,
    memalpha_row,
    msc_row,
    musique_row,
)


def rows(path):
    return [(row.where, row.data) for row in iter_rows(str(path))]


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("x.json", b'\xef\xbb\xbf[\r\n{"a": "1"},\r\n{"a": "\xc3\xa9"}]\r\n'),
        ("x.txt", b'{"a": "1"}\n{"a": "\xc3\xa9"}\n'),
        ("rows", b'[{"a": "1"}, {"a": "\xc3\xa9"}]'),
        ("x.jsonl", b'\xef\xbb\xbf{"a": "1"}\r\n\r\n{"a": "\xc3\xa9"}\r\n'),
        ("x.csv", b'\xef\xbb\xbfa\r\n1\r\n"\xc3\xa9"\r\n'),
        ("x.json.gz", gzip.compress(b'[{"a": "1"}, {"a": "\xc3\xa9"}]', mtime=0)),
        ("x.csv.gz", gzip.compress(b"a\n1\n\xc3\xa9\n", mtime=0)),
    ],
)
def test_the_same_rows_from_every_kind(tmp_path, name, raw):
    (tmp_path / name).write_bytes(raw)
    found = rows(tmp_path / name)
    assert [data for _, data in found] == [{"a": "1"}, {"a": "\u00e9"}]
    assert (
        all(where.startswith(name) for where, _ in found)
        and len({where for where, _ in found}) == 2
    )


def test_places_and_long_fields(tmp_path):
    long = "word " * 30_000
    (tmp_path / "x.csv").write_text(f'a,b\n1,"two\nlines"\n3,"{long}"\n5,6,7\n8\n')
    *good, wrong, short = rows(tmp_path / "x.csv")
    assert good == [
        ("x.csv line 3", {"a": "1", "b": "two\nlines"}),
        ("x.csv line 4", {"a": "3", "b": long}),
    ]
    fault = "x.csv line 5 is ['5', '6', ['7']]\n  expected: 2 fields, as the first line names"
    with pytest.raises(SchemaError, match=re.escape(fault)):
        next(row for row in iter_rows(str(tmp_path / "x.csv")) if row.where == wrong[0])["a"]
    assert short[1] == {"a": "8", "b": None}


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("x.json", b"", r"x\.json is not JSON"),
        ("x.json", b'[{"a": 1},\n {"a"', r"x\.json is not JSON: .*line 2"),
        ("x.json", b'["\xff"]', r"x\.json is not JSON: 'utf-8'"),
        ("x.json", b"[" * 100_000, r"x\.json is not JSON: .*recursion"),
        ("x.csv", b'a,b\n1,"2\n', r"x\.csv after line \d is not CSV"),
        ("x.jsonl", b"1\n" + b"9" * 5000 + b"\n", r"x\.jsonl line 2 is not JSON"),
        ("x.csv.gz", b"no gzip", r"cannot read .*x\.csv\.gz"),
        ("x.parquet", b"PAR1", r"x\.parquet is not a Parquet file"),
        ("x.xml", b"<a/>", "the kind of file of"),
    ],
)
def test_damage_is_located(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=message):
        rows(tmp_path / name)


def test_a_small_packed_document_that_expands_beyond_the_bound_is_one_error(tmp_path, monkeypatch):
    monkeypatch.setattr(rows_module, "MAX_UNPACKED", 1_000_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b'{"a": 1},' * 1_000_000 + b"1]"))
    assert path.stat().st_size < 50_000
    with pytest.raises(InputError, match=r"bomb\.json\.gz expands to more than 1000000 bytes"):
        load("squad", path)


def test_numbers_of_classes_are_their_names(tmp_path):
    names = datasets.ClassLabel(names=["card", "oos"])
    features = datasets.Features({"text": datasets.Value("string"), "intent": names})
    columns = {"text": ["p", "q", "r"], "intent": [1, 0, -1]}
    stored = datasets.Dataset.from_dict(columns, features=features)
    stored.to_parquet(str(tmp_path / "x.parquet"))
    assert [data["intent"] for _, data in rows(tmp_path / "x.parquet")] == ["oos", "card", None]


@pytest.mark.parametrize("fault", [OverflowError("date"), datasets.exceptions.DatasetNotFoundError])
def test_what_the_hub_cannot_give_is_one_error(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(datasets, "load_dataset", Mock(side_effect=fault))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"no file owner/name, and the split 'train' of the set"):
        rows("owner/name")


# ------------------------------------------------------------------------------------------------
# instances as files
TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(str.strip)
MAYBE = st.none() | TEXT
FACT = {"chunk": 0, "action": "state", "subject": "x", "attribute": "y", "value": "z"}


def minimal(**changes):
    row = {
        "id": "a",
        "source": "s",
        "chunks": [{"text": "hello"}],
        "questions": [{"text": "who?", "answers": ["me"]}],
    }
    return row | changes


@st.composite
def instances(draw):
    times = (
        st.none()
        | st.dates().map(str)
        | st.datetimes(timezones=st.timezones()).map(datetime.isoformat)
    )
    chunks = tuple(draw(st.lists(st.builds(Chunk, TEXT, times), min_size=1, max_size=3)))
    index = st.integers(0, len(chunks) - 1)
    texts = st.lists(TEXT, max_size=2).map(tuple)
    answers, evidence = (
        st.lists(TEXT, min_size=1, max_size=2).map(tuple),
        st.none() | st.lists(index, max_size=2).map(tuple),
    )
    question = st.builds(
        Question, TEXT, answers, TEXT, TEXT, MAYBE, texts, evidence, st.just("") | TEXT
    )
    fact = st.builds(Fact, index, st.sampled_from(FactAction), TEXT, TEXT, TEXT, MAYBE)
    several = [tuple(draw(st.lists(rows, max_size=2))) for rows in (question, fact)]
    return Instance(draw(TEXT), draw(TEXT), chunks, several[0], several[1])


@settings(max_examples=20, deadline=None)
@given(st.lists(instances(), max_size=5, unique_by=lambda instance: instance.id))
def test_there_and_back(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("parquet")
    for name in ("a.parquet", "b.parquet"):
        write_parquet(folder / name, made)
        assert list(iter_parquet(folder / name)) == made
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ([1], "is [1]"),
        (minimal(chunks=[]), "'chunks' is []\n  expected: at least one chunk"),
        (minimal(chunks=[{"text": "x"}, {"text": "  "}]), "'chunks[1].text' is '  '"),
        (minimal(chunks=[{"text": "\ud800"}]), "'chunks[0].text' is '\\ud800'"),
        (
            minimal(chunks=[{"text": "x", "time": "2024-13-45"}]),
            "'chunks[0].time' is '2024-13-45'\n  expected: ISO 8601, such as 2024-03-05",
        ),
        (minimal(chunks=[{"text": "x", "time": ""}]), "'chunks[0].time' is ''"),
        (minimal(source=None), "'source' is missing"),
        (minimal(extra=1), "'extra' is unknown"),
        (
            minimal(questions=[{"text": "who?", "answers": []}]),
            "'questions[0].answers' is []\n  expected: at least one answer",
        ),
        (
            minimal(questions=[{"text": "who?", "answers": ["me"], "evidence": [1]}]),
            "evidence or a fact's chunk is 1",
        ),
        (minimal(facts=[{**FACT, "action": "say"}]), "'facts[0].action' is 'say'"),
        (minimal(facts=[{**FACT, "chunk": -1}]), "'facts[0].chunk' is -1"),
    ],
)
def test_a_wrong_row_is_refused_with_its_place(tmp_path, row, said):
    path = tmp_path / "x.jsonl"
    path.write_text(f"{json.dumps(minimal())}\n\n{json.dumps(row)}\n")
    with pytest.raises(SchemaError) as error:
        read_instances(path)
    assert str(error.value).startswith("x.jsonl line 3") and said in str(error.value)


def test_what_would_not_be_read_back_is_not_written(tmp_path):
    good = instance_from_json(minimal(), "here")
    for wrong, message in (
        (Instance("b", "s", (Chunk(""),), ()), r"instance 1 \('b'\) field 'chunks\[0\]\.text'"),
        (good, "expected: an id that is unique in its data set"),
    ):
        with pytest.raises(SchemaError, match=message):
            write_parquet(tmp_path / "x.parquet", [good, wrong])


# ------------------------------------------------------------------------------------------------
# prepared folders
ROOT = Path(__file__).parents[2]

ROWS = [
    {"context": "Lima is the capital of Peru.", "question": "What is Lima?", "answer": "capital"},
    {"context": "Oslo lies in Norway.", "question": "Where is \u00d6slo?", "answer": "Norway"},
    {"context": "Oslo lies in Norway.", "question": "Empty?", "answer": ""},
]


UNSET = ("max_answer_tokens", "max_questions", "max_instances")


@pytest.fixture
def squad(tmp_path):
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(ROWS))
    return path


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_manifest_agrees_with_the_file(squad, tmp_path):
    output = tmp_path / "made" / "here"
    told = []
    manifest = prepare(
        "squad",
        squad,
        output,
        seed=3,
        options={"chunk_tokens": "1-6", "chunks": "1,1"},
        progress=told.append,
    )
    assert names(output) == ["instances.parquet", "manifest.json"] and names(output.parent) == [
        "here"
    ]
    raw = (output / "instances.parquet").read_bytes()
    instances = list(iter_parquet(output / "instances.parquet"))
    assert [question.text for instance in instances for question in instance.questions] == [
        "What is Lima?",
        "Where is \u00d6slo?",
    ]
    written = json.loads((output / "manifest.json").read_text())
    assert written == {
        "source": "squad",
        "input": "rows.json",
        "instances": 2,
        "chunks": 2,
        "questions": 2,
        "skipped": {"empty answer": 1},
        "tokens": {"chunks": 6 + 4, "questions": 3 + 3, "longest_chunk": 6},
        "token_counter": "words",
        "sha256": hashlib.sha256(raw).hexdigest(),
        "seed": 3,
        "options": {
            "chunk_tokens": [1, 6],
            "chunks": [1, 1],
            **dict.fromkeys(UNSET, 0),
            "shuffle": False,
            "split": "train",
            "metric": "substring",
        },
        "notes": {},
        "problems": [],
        "asked": 3,
        "checked_against": [],
        "version": __version__,
    }
    assert [len(instance.chunks) for instance in instances] == [1, 1]
    assert read_manifest(output) == manifest
    assert list(iter_prepared(output)) == instances
    assert told == [1, 2]


def test_a_fault_while_overwriting_keeps_the_old_folder(squad, tmp_path):
    before = prepare("squad", squad, tmp_path / "out")
    squad.write_text("[{")
    with pytest.raises(SchemaError, match="is not JSON"):
        prepare("squad", squad, tmp_path / "out", overwrite=True)
    assert read_manifest(tmp_path / "out") == before and list(iter_prepared(tmp_path / "out"))
    assert names(tmp_path) == ["out", "rows.json"]


def test_a_killed_run_leaves_no_folder_of_that_name(tmp_path):
    """Killed in the middle of writing: only a hidden partial folder stays, and the same call then
    works."""
    code = (
        "import os; from memalpha.data.load import prepare\n"
        f"prepare('toy', None, {str(tmp_path / 'out')!r}, "
        "options={'n': 50}, progress=lambda i: i == 20 and os._exit(9))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 9
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".out.") and left.name.endswith(".partial")
    assert prepare("toy", None, tmp_path / "out", options={"n": 50}).instances == 50


def test_an_existing_folder_is_refused_unless_it_is_a_prepared_one_to_overwrite(squad, tmp_path):
    prepare("squad", squad, tmp_path / "out", seed=1)
    with pytest.raises(InputError, match="out exists"):
        prepare("squad", squad, tmp_path / "out", seed=2)
    assert read_manifest(tmp_path / "out").seed == 1
    assert prepare("squad", squad, tmp_path / "out", seed=2, overwrite=True).seed == 2
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(InputError, match=r"thesis\.tex"):
        prepare("squad", squad, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "thesis.tex").is_file()


def test_changes_are_found_out(squad, tmp_path):
    manifest = prepare("squad", squad, tmp_path / "out")
    file = tmp_path / "out" / "instances.parquet"
    whole = file.read_bytes()
    for changed in (whole[:-1], whole[:400] + bytes([whole[400] ^ 1]) + whole[401:], b""):
        file.write_bytes(changed)
        with pytest.raises(InputError, match=f"expected: sha256 {manifest.sha256}"):
            iter_prepared(tmp_path / "out")
    for damaged in ('{"source": "squad"}', "{"):
        (tmp_path / "out" / "manifest.json").write_text(damaged)
        with pytest.raises(SchemaError, match="is not a manifest"):
            iter_prepared(tmp_path / "out")


# ------------------------------------------------------------------------------------------------
# what sources share
def test_synthetic_is_the_generator_with_the_presets_options():
    given = {"n": "4", "preset": "medium", "split": "test", "facts_per_chunk": "1,2"}
    config = replace(PRESETS["medium"], split="test", facts_per_chunk=(1, 2))
    assert list(get_source("synthetic").load(None, given, 9)) == generate(4, 9, config)
    parsed = get_source("synthetic").parse({"preset": "dependent", "p_change": 0.0, "people": None})
    assert parsed == replace(PRESETS["dependent"], p_change=0.0)  # a zero is not "as in the preset"


@pytest.mark.parametrize(
    ("name", "path", "options", "fault"),
    [
        ("synthetic", None, {"people": 10_000}, "people"),
        ("synthetic", None, {"m": 1}, "no option 'm'"),
        ("toy", "file.json", {}, "source 'toy' is generated and was given 'file.json'"),
        ("squad", None, {}, "source 'squad' reads a file and none was given"),
        ("squadd", None, {}, "the data source 'squadd' is unknown"),
    ],
)
def test_wrong_names_inputs_and_options(name, path, options, fault):
    with pytest.raises(InputError, match=fault):
        get_source(name).load(path, options)


def draft(name, *asked):
    made = [Question(f"q{each}", ("a",)) if isinstance(each, int) else each for each in asked]
    return Draft(name, "s", (Chunk("c"),), made)


def test_finish_limits_numbers_and_accounts_for_all():
    drafts = [
        draft("a", 0),
        draft("b", SkippedItem("empty")),
        SkippedItem("malformed"),
        draft("a", SkippedItem("seen", 0), SkippedItem("empty"), *range(5)),
        draft("a", 1, 2),
        draft("c", 1, 2, 3),
    ]
    tally = Tally()
    options = CommonOptions(max_questions=2, max_instances=3)
    made = list(tally.instances(finish(drafts, options, 1)))
    assert [(i.id, len(i.questions)) for i in made] == [("a", 1), ("a#2", 2), ("a#3", 2)]
    # An id is the place among all that was asked, skipped or not: 0 was skipped.
    assert {q.id for q in made[1].questions} < {"1", "2", "3", "4", "5"}
    assert tally.skipped == {
        "empty": 2,
        "malformed": 1,
        "over max_questions": 3,
        "over max_instances": 3,
    }
    assert tally.notes == {
        "instances without questions dropped": 1,
        "seen": 1,
    }


def test_a_question_without_an_answer_and_one_that_cannot_be_read_are_left_out_and_counted():
    def read(text):
        if text == "odd":
            raise SchemaError("odd text", expected="another")
        return Question(f"q {text}", tuple(text.split()))

    asked = draft("a", SkippedItem("seen", 0), 7).ask(["b c", "", "odd", "d"], read)
    tally = Tally()
    (instance,) = tally.instances(finish([asked], CommonOptions(), 1))
    assert instance.questions == (
        Question("q7", ("a",), id="0"),
        Question("q b c", ("b", "c"), id="1"),
        Question("q d", ("d",), id="4"),
    )
    assert tally.skipped == {"empty answer": 1, "malformed": 1}
    assert tally.problems == ["odd text; expected: another"]


PAIRS = [(f"sentence {n} speaks of topic {n % 3}", str(n % 3)) for n in range(30)]
LABELLED = {"questions": 5, "chunk_tokens": 20}
CASES = [
    ("musique", "dgslibisey/MuSiQue", [musique_row()], {}, 1),
    ("longmemeval", "xiaowu0162/longmemeval", [longmemeval_item()], {}, 1),
    ("msc", "MemGPT/MSC-Self-Instruct", [msc_row(self_instruct={"B": "q?", "A": "a"})], {}, 1),
    (
        "csabstruct",
        "allenai/csabstruct",
        [{"sentences": [s for s, _ in PAIRS], "labels": [n for _, n in PAIRS]}],
        LABELLED,
        5,
    ),
    (
        "booksum",
        "kmfoda/booksum",
        [{"chapter": "One. Two.", "summary_text": "Then Ahab came.", "bid": 1}],
        {},
        1,
    ),
    ("memoryagentbench", "ai-hyz/MemoryAgentBench", [mab_row()], {}, 2),
    ("memalpha", "YuWangX/Memalpha-Memoryagentbench", [memalpha_row()], {}, 2),
]


@pytest.mark.parametrize(
    ("name", "hub", "rows", "options", "least"), CASES, ids=[case[0] for case in CASES]
)
def test_rows_of_the_hub(tmp_path, monkeypatch, name, hub, rows, options, least):
    asked, stored = [], datasets.Dataset.from_list(rows)
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or stored
    )
    monkeypatch.chdir(tmp_path)
    instances, result = load(name, hub, **options, split="test")
    questions = [question for instance in instances for question in instance.questions]
    assert asked == [(tuple(hub.split(":")), {"split": "test", "streaming": True})]
    assert len(questions) >= least
    assert result.skipped["malformed"] == 0


# ------------------------------------------------------------------------------------------------
# damage
def test_there_is_a_sample_of_every_source_that_reads():
    assert set(SAMPLES) == {name for name, source in BUILT_IN_SOURCES.items() if source.needs_input}


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_the_sample_itself_is_counted_whole(tmp_path, name):
    check_counted(tmp_path, name, SAMPLES[name])


@pytest.mark.parametrize("name", sorted(SAMPLES))
@damaging
@given(data=st.data())
def test_damage_is_a_located_error_or_is_counted(tmp_path, name, data):
    check_damaged(tmp_path, name, SAMPLES[name], data)


def test_a_question_with_a_metric_that_does_not_exist_is_refused_when_data_are_prepared():
    known = Question("Where?", ("Rome",), metric="bound")
    unknown = Question("Where?", ("Rome",), metric="bounds")
    chunks = (Chunk("Ann: I live in Rome."),)
    good, bad = (
        Instance(question.metric, "own", chunks, (question,)) for question in (known, unknown)
    )
    assert list(Tally().instances([good])) == [good]
    with pytest.raises(InputError, match="instance 'bounds': the metric 'bounds' is unknown"):
        list(Tally().instances([good, bad]))
