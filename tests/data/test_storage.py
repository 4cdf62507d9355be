"""Parquet: what was written comes back, also through ``datasets``; damage and doubles are found."""

import datasets
import pyarrow.parquet as parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memalpha.data import storage
from memalpha.data.storage import InstanceWriter, iter_parquet
from memalpha.errors import InputError, SchemaError
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

WORD = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(str.strip)


@st.composite
def instances(draw):
    chunks = tuple(draw(st.lists(st.builds(Chunk, WORD, st.none() | WORD), min_size=1, max_size=4)))
    place = st.integers(0, len(chunks) - 1)
    question = st.builds(
        Question,
        text=WORD,
        answers=st.lists(WORD, min_size=1, max_size=3).map(tuple),
        metric=WORD,
        kind=WORD,
        subject=st.none() | WORD,
        stale=st.lists(WORD, max_size=2).map(tuple),
        evidence=st.none() | st.lists(place, max_size=3).map(tuple),
        id=st.just("") | WORD,
    )
    fact = st.builds(Fact, place, st.sampled_from(FactAction), WORD, WORD, WORD, st.none() | WORD)
    return Instance(
        draw(WORD), draw(WORD), chunks, tuple(draw(st.lists(question, max_size=3))), tuple(draw(st.lists(fact, max_size=2)))
    )


def write(path, made):
    with InstanceWriter(path) as writer:
        for instance in made:
            writer.write(instance)
    return path


@settings(max_examples=20, deadline=None)
@given(st.lists(instances(), max_size=5, unique_by=lambda instance: instance.id))
def test_there_and_back(tmp_path_factory, made):
    folder = tmp_path_factory.mktemp("parquet")
    assert list(iter_parquet(write(folder / "a.parquet", made))) == made
    write(folder / "b.parquet", made)
    assert (folder / "a.parquet").read_bytes() == (folder / "b.parquet").read_bytes()


MADE = [
    Instance("1", "s", (Chunk("one", "2023-01-02"), Chunk("two")), (Question("q?", ("a", "b"), evidence=(0,), id="x"),)),
    Instance("2", "s", (Chunk("three"),), (Question("r?", ("c",), "absent", "removed", "Ann", ("d",)),)),
]


def test_datasets_reads_the_same_columns(tmp_path):
    write(tmp_path / "a.parquet", MADE)
    rows = datasets.load_dataset(
        "parquet", data_files=str(tmp_path / "a.parquet"), split="train", cache_dir=str(tmp_path / "cache")
    )
    assert rows.features == storage.features()
    assert rows[0]["chunks"] == [{"text": "one", "time": "2023-01-02"}, {"text": "two", "time": None}]
    (asked,) = rows[1]["questions"]
    assert (asked["text"], asked["answers"], asked["subject"], asked["evidence"]) == ("r?", ["c"], "Ann", None)


def test_a_row_group_holds_so_many_characters(tmp_path, monkeypatch):
    monkeypatch.setattr(storage, "_GROUP_CHARACTERS", 10)
    made = [Instance(str(n), "s", (Chunk("12345"),), ()) for n in range(5)]
    path = write(tmp_path / "a.parquet", made)
    assert [parquet.ParquetFile(path).metadata.row_group(i).num_rows for i in range(3)] == [2, 2, 1]
    assert list(iter_parquet(path)) == made


def test_what_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(SchemaError, match=r"instance 1 \('1'\): its id was used before"):
        write(tmp_path / "a.parquet", [MADE[0], MADE[0]])
    with pytest.raises(SchemaError, match="evidence"):
        write(tmp_path / "a.parquet", [Instance("1", "s", (Chunk("c"),), (Question("q", ("a",), evidence=(1,)),))])


def test_damage(tmp_path):
    whole = write(tmp_path / "a.parquet", MADE).read_bytes()
    for raw in (b"", whole[:-20], b"nothing"):
        (tmp_path / "b.parquet").write_bytes(raw)
        with pytest.raises(SchemaError, match=r"b\.parquet is not a Parquet file"):
            list(iter_parquet(tmp_path / "b.parquet"))
    with pytest.raises(InputError, match="cannot read"):
        list(iter_parquet(tmp_path / "missing.parquet"))
