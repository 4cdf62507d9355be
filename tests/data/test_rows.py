"""Rows of every kind of file: values, places, line ends, encodings, damage."""

import gzip
import json
import os
import tracemalloc

import pytest

from memalpha.data.rows import data_files, iter_rows, on_hub, text_lines
from memalpha.errors import InputError, SchemaError


def rows(path):
    return [(row.where, row.data) for row in iter_rows(str(path))]


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("x.json", b'[{"a": "1"}, {"a": "\xc3\xa9"}]'),
        ("x.json", b'\xef\xbb\xbf[\r\n{"a": "1"},\r\n{"a": "\xc3\xa9"}]\r\n'),
        ("x.json", b'{"a": "1"}\n{"a": "\xc3\xa9"}\n'),
        ("x.txt", b'{"a": "1"}\n{"a": "\xc3\xa9"}\n'),
        ("rows", b'[{"a": "1"}, {"a": "\xc3\xa9"}]'),
        ("x.jsonl", b'\xef\xbb\xbf{"a": "1"}\r\n\r\n{"a": "\xc3\xa9"}\r\n'),
        ("x.csv", b'\xef\xbb\xbfa\r\n1\r\n"\xc3\xa9"\r\n'),
        ("x.tsv", b"a\n1\n\xc3\xa9\n"),
        ("x.json.gz", gzip.compress(b'[{"a": "1"}, {"a": "\xc3\xa9"}]', mtime=0)),
        ("x.csv.gz", gzip.compress(b"a\n1\n\xc3\xa9\n", mtime=0)),
    ],
)
def test_the_same_rows_from_every_kind(tmp_path, name, raw):
    (tmp_path / name).write_bytes(raw)
    found = rows(tmp_path / name)
    assert [data for _, data in found] == [{"a": "1"}, {"a": "\u00e9"}]
    assert all(where.startswith(name) for where, _ in found) and len({where for where, _ in found}) == 2


def test_places(tmp_path):
    (tmp_path / "x.csv").write_text('a,b\n1,"two\nlines"\n3,4\n')
    assert rows(tmp_path / "x.csv") == [("x.csv line 3", {"a": "1", "b": "two\nlines"}), ("x.csv line 4", {"a": "3", "b": "4"})]
    (tmp_path / "x.json").write_text("[1, 2]")
    assert rows(tmp_path / "x.json") == [("x.json item 0", 1), ("x.json item 1", 2)]


def test_one_object_is_one_row(tmp_path):
    (tmp_path / "x.json").write_text(json.dumps({"a": 1}, indent=2))
    assert rows(tmp_path / "x.json") == [("x.json item 0", {"a": 1})]


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("x.json", b"", r"x\.json is not JSON"),
        ("x.json", b"[]", r"x\.json holds \[\]"),
        ("x.json", b'[{"a": 1}, {"a"', r"x\.json is not JSON: .*line 1"),
        ("x.json", b'[{"a": 1}] and', r"x\.json is not JSON: Extra data: line 1 column 12"),
        ("x.csv", b'a,b\n1,"2\n', r"x\.csv after line 2 is not CSV"),
        ("x.json", b'["\xff"]', r"x\.json is not UTF-8"),
        ("x.json", b"[1, " + b"9" * 5000 + b"]", r"x\.json is not JSON: a number of too many digits: line 1 column 5"),
        ("x.jsonl", b"1\n" + b"9" * 5000 + b"\n", r"x\.jsonl line 2 is not JSON"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"x\.jsonl line 2 is not UTF-8"),
        ("x.csv.gz", b"no gzip", r"cannot read .*x\.csv\.gz"),
    ],
)
def test_damage_is_located(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=message):
        rows(tmp_path / name)


def test_lines_of_text(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n caf\xe9\ncaf\xc3\xa9")
    assert [(row.where, row.data) for row in text_lines(tmp_path / "x.txt")] == [
        ("x.txt line 1", "one"),
        ("x.txt line 2", ""),
        ("x.txt line 3", " caf\u00e9"),
        ("x.txt line 4", "caf\u00e9"),
    ]


def test_a_return_that_stands_alone_ends_a_line(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfon\xe9\rcaf\xe9\r\rcaf\xc3\xa9\r\nfive\n\rseven\r")
    assert [row.data for row in text_lines(tmp_path / "x.txt")] == ["on\u00e9", "caf\u00e9", "", "caf\u00e9", "five", "", "seven"]
    assert [row.where for row in text_lines(tmp_path / "x.txt")][::6] == ["x.txt line 1", "x.txt line 7"]


@pytest.mark.parametrize("end", [b"\r", b"\n", b"\r\n"])
def test_lines_are_the_same_wherever_they_are_cut_while_they_are_read(tmp_path, end):
    wanted = [b"x" * n + b"\xc3\xa9" for n in range(8150, 8210)]
    (tmp_path / "x.txt").write_bytes(end.join(wanted))
    assert [row.data.encode() for row in text_lines(tmp_path / "x.txt")] == wanted


def test_a_text_of_one_line_of_returns_streams(tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a line of text\r" * 400_000)
    tracemalloc.start()
    try:
        assert sum(row.data == "a line of text" for row in text_lines(tmp_path / "x.txt")) == 400_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_files_of_a_folder(tmp_path):
    for name in ("qa2_b.txt", "qa1_a.txt", "other.txt"):
        (tmp_path / name).write_text("x")
    assert [path.name for path in data_files(str(tmp_path), "qa*.txt")] == ["qa1_a.txt", "qa2_b.txt"]
    assert data_files(str(tmp_path / "other.txt"), "qa*.txt") == [tmp_path / "other.txt"]
    for name in ("qa1_a.txt.gz", "qa3_c.txt.gz"):  # packed files are taken unless the same stands there unpacked
        (tmp_path / name).write_text("x")
    assert [path.name for path in data_files(str(tmp_path), "qa*.txt")] == ["qa1_a.txt", "qa2_b.txt", "qa3_c.txt.gz"]
    with pytest.raises(InputError, match=r"has no file perltqa\*\.json"):
        data_files(str(tmp_path), "perltqa*.json")
    with pytest.raises(InputError, match="no file"):
        data_files(str(tmp_path / "missing.txt"), "*")


def test_a_name_that_the_system_refuses_is_an_error(tmp_path):
    with pytest.raises(InputError, match=r"cannot look for 'xxx.*\.\.\.': File name too long"):
        iter_rows("x" * 400 + ".jsonl")


def test_a_name_that_is_not_utf_8_is_shown_as_text(tmp_path):
    path = tmp_path / os.fsdecode(b"h\xff.jsonl")
    path.write_text('{"a": 1}\n')
    assert rows(path) == [("h\ufffd.jsonl line 1", {"a": 1})]


def test_what_looks_like_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").mkdir()
    wanted = {
        "rajpurkar/squad": True,
        "xiaowu0162/longmemeval": True,
        "here/squad": False,
        "a/b.json": False,
        "squad": False,
        "/a/b": False,
    }
    assert {name: on_hub(name) for name in wanted} == wanted


def test_a_configuration_of_a_hub_set(tmp_path, monkeypatch):
    import datasets

    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: asked.append((args, kwargs)) or iter([{"a": 1}]))
    monkeypatch.chdir(tmp_path)
    found = [(row.where, row.data) for row in iter_rows("hotpotqa/hotpot_qa:distractor", "validation")]
    assert asked == [(("hotpotqa/hotpot_qa", "distractor"), {"split": "validation", "streaming": True})]
    assert found == [("hotpotqa/hotpot_qa:distractor validation row 0", {"a": 1})]


def test_damaged_rows_of_parquet(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(SchemaError, match=r"x\.parquet is not a Parquet file"):
        rows(tmp_path / "x.parquet")
