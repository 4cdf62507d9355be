"""Data by name: several sources at once."""

import pytest

from memalpha.data.load import load_data
from memalpha.data.schema import write_instances
from memalpha.errors import InputError
from memalpha.types import Chunk, Instance


def file_of(path, *names):
    instances = [Instance(name, "test", (Chunk(f"text of {name}"),), ()) for name in names]
    write_instances(path, instances)
    return instances


def test_several_sources_follow_one_another(tmp_path):
    a, b = file_of(tmp_path / "a.jsonl", "1", "2"), file_of(tmp_path / "b.jsonl", "3")
    assert load_data(f"{tmp_path}/a.jsonl, {tmp_path}/b.jsonl") == [*a, *b]
    assert load_data(f"{tmp_path}/b.jsonl,{tmp_path}/a.jsonl") == [*b, *a]
    mixed = load_data(f"toy,{tmp_path}/a.jsonl", {"n": 3}, 1)
    assert mixed == [*load_data("toy", {"n": 3}, 1), *a]


def test_a_path_with_a_comma_is_one_path(tmp_path):
    a = file_of(tmp_path / "a,b.jsonl", "1")
    assert load_data(f"{tmp_path}/a,b.jsonl") == a


def test_ids_are_unique_over_all_sources(tmp_path):
    file_of(tmp_path / "a.jsonl", "1", "2")
    file_of(tmp_path / "b.jsonl", "2")
    with pytest.raises(InputError, match="are called '2'"):
        load_data(f"{tmp_path}/a.jsonl,{tmp_path}/b.jsonl")


def test_the_missing_one_is_named(tmp_path):
    file_of(tmp_path / "a.jsonl", "1")
    with pytest.raises(InputError, match="no data at 'nowhere'"):
        load_data(f"{tmp_path}/a.jsonl, nowhere")
