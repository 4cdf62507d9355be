"""Instances as files: what is written is read back equal, and what does not fit is refused with its
place."""

import json
from datetime import datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data.rows import (
    instance_from_json,
    instance_to_json,
    iter_parquet,
    read_instances,
    write_parquet,
)
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

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


@given(instances())
@settings(max_examples=80, deadline=None)
def test_json_gives_back_the_same_instance(instance):
    text = json.dumps(instance_to_json(instance))
    assert instance_from_json(json.loads(text), "here") == instance


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
        (minimal(extra=1), "'extra' is 1"),
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


def test_what_would_not_be_read_back_is_not_written_and_a_repeated_or_missing_instance_not_read(
    tmp_path,
):
    path, good = tmp_path / "x.jsonl", instance_from_json(minimal(), "here")
    for wrong, said in (
        (Instance("b", "s", (Chunk(""),), ()), r"instance 1 \('b'\) field 'chunks\[0\]\.text'"),
        (
            Instance("b", "s", (Chunk("x", "1:56 pm on 8 May, 2023"),), ()),
            r"instance 1 \('b'\) field 'chunks\[0\]\.time' is '1:56 pm on 8 May, 2023'",
        ),
        (good, "expected: an id that is unique in its data set"),
    ):
        with pytest.raises(SchemaError, match=said):
            write_parquet(tmp_path / "x.parquet", [good, wrong])
    for text, said in (
        (f"{json.dumps(minimal())}\n" * 2, "line 2 field 'id' is 'a'"),
        ("\n", "is empty"),
        ("{", "line 1 is not JSON"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read_instances(path)
