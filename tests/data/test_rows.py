"""Rows of every kind of file: values, places, line ends, encodings, damage; JSON read piece by piece; the spool."""

import gzip
import json
import os
import tracemalloc

import datasets
import pyarrow
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memalpha.data.registry import get_source
from memalpha.data.rows import data_files, iter_rows, json_items, on_hub, text_lines
from memalpha.data.spool import Spool
from memalpha.errors import InputError, SchemaError


def values(path):
    return [row.data for row in iter_rows(str(path))]


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


@pytest.mark.parametrize(
    ("name", "raw", "message"),
    [
        ("x.json", b"", r"x\.json is not JSON"),
        ("x.json", b"[]", r"x\.json holds \[\]"),
        ("x.json", b'[{"a": 1}, {"a"', r"x\.json is not JSON: .*line 1"),
        ("x.json", b'[{"a": 1}] and', r"x\.json is not JSON: Extra data: line 1"),
        ("x.csv", b'a,b\n1,"2\n', r"x\.csv after line 2 is not CSV"),
        ("x.json", b'["\xff"]', r"x\.json is not UTF-8"),
        ("x.json", b"[1, " + b"9" * 5000 + b"]", r"x\.json is not JSON: a number of too many digits.*: line 1"),
        ("x.jsonl", b"1\n" + b"9" * 5000 + b"\n", r"x\.jsonl line 2 is not JSON"),
        ("x.jsonl", b'{"a": 1}\n{"a": "\xff"}\n', r"x\.jsonl line 2 is not JSON: 'utf-8'"),
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


def test_a_field_may_be_longer_than_the_csv_module_reads_by_itself(tmp_path):
    long = "word " * 30_000
    (tmp_path / "x.csv").write_text(f'chapter,bid\n"{long}",7\n')
    assert values(tmp_path / "x.csv") == [{"chapter": long, "bid": "7"}]


def test_a_row_of_more_fields_than_names_is_malformed_whatever_reads_it(tmp_path):
    pairs = [(f"sentence {n} of {n % 2}", "ab"[n % 2]) for n in range(12)]
    lines = "".join(f"{text},{label}\n" for text, label in pairs)
    (tmp_path / "x.csv").write_text(f"text,category\n{lines}hello, my card is lost,card_lost\nonly text\n")
    *_, wrong, short = iter_rows(str(tmp_path / "x.csv"))
    assert isinstance(wrong.data, SchemaError) and short.data == {"text": "only text"}
    assert str(wrong.data) == "x.csv line 14 has 3 fields\n  expected: 2, as the first line names"
    result = get_source("banking77").load(tmp_path / "x.csv", {"questions": 6, "chunk_tokens": 99})
    assert not any("hello" in text for i in result.instances for text in [q.text for q in i.questions] + [c.text for c in i.chunks])
    assert result.skipped["malformed"] == 2 and result.problems[0].startswith("x.csv line 14 has 3 fields")
    for name, header in (("booksum", "chapter,summary_text"), ("squad", "context,question"), ("memalpha", "instance_id,chunks")):
        (tmp_path / "y.csv").write_text(f"{header}\na,b,c\n")
        with pytest.raises(SchemaError, match=r"y\.csv line 2 has 3 fields"):
            loaded = get_source(name).load(tmp_path / "y.csv")
            list(loaded.instances)
            raise SchemaError(loaded.problems[0])


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_fields_parted_by_semicolons_and_every_line_end(tmp_path, end):
    (tmp_path / "x.csv").write_bytes(end.join(['a;"b"', '1;"x;', 'y"', "2,5;z", ""]).encode())
    assert values(tmp_path / "x.csv") == [{"a": "1", "b": f"x;{end}y"}, {"a": "2,5", "b": "z"}]


def table(path, **columns):
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_parquet_file_of_any_name_is_that_file(tmp_path):
    for name in ("s[1].parquet", "s*x.parquet", "sAAx.parquet", "sp ace \u00e9.parquet"):
        assert values(table(tmp_path / name, a=[name, "2"])) == [{"a": name}, {"a": "2"}]
    packed = tmp_path / "p.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "sAAx.parquet").read_bytes()))
    assert values(packed) == [{"a": "sAAx.parquet"}, {"a": "2"}]


def test_numbers_of_classes_are_their_names(tmp_path, monkeypatch):
    intent = datasets.ClassLabel(names=["card", "oos"])
    features = datasets.Features({"text": datasets.Value("string"), "intent": intent, "many": datasets.List({"one": intent})})
    given = {"text": ["p", "q", "r"], "intent": [1, 0, -1], "many": [[{"one": 0}], [], [{"one": 1}, {"one": None}]]}
    stored = datasets.Dataset.from_dict(given, features=features)
    stored.to_parquet(str(tmp_path / "x.parquet"))
    wanted = [
        {"text": "p", "intent": "oos", "many": [{"one": "card"}]},
        {"text": "q", "intent": "card", "many": []},
        {"text": "r", "intent": None, "many": [{"one": "oos"}, {"one": None}]},
    ]
    assert values(tmp_path / "x.parquet") == wanted
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stored)
    monkeypatch.chdir(tmp_path)
    assert values("clinc/clinc_oos:plus") == wanted


@pytest.mark.parametrize(
    "fault", [pyarrow.ArrowNotImplementedError("nested"), OverflowError("date"), datasets.exceptions.DatasetGenerationError("no")]
)
def test_a_row_of_the_hub_that_cannot_be_read_is_a_located_error(tmp_path, monkeypatch, fault):
    def broken(*args, **kwargs):
        yield {"a": 1}
        raise fault

    monkeypatch.setattr(datasets, "load_dataset", broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SchemaError, match=r"data set owner/name, split 'train' cannot be read after row 1"):
        values("owner/name")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.lists(JSON, max_size=6), st.integers(1, 40), st.booleans(), st.booleans(), st.booleans())
def test_json_items_are_those_of_the_standard_library(tmp_path_factory, data, block, ascii_only, pretty, one_by_one):
    path = tmp_path_factory.getbasetemp() / "x.json"
    texts = [json.dumps(item, ensure_ascii=ascii_only, indent=2 if pretty else None) for item in (data if one_by_one else [data])]
    raw = "\n".join(texts).encode("utf-8", "replace")
    path.write_bytes(raw)
    wanted = [json.loads(text.encode("utf-8", "replace")) for text in texts] if one_by_one else json.loads(raw)
    if one_by_one and (not data or isinstance(data[0], list)):
        return  # nothing, or what begins like a list of rows
    assert list(json_items(path, block)) == wanted


@given(st.lists(JSON, min_size=1, max_size=4), st.data(), st.integers(1, 40))
def test_a_cut_json_text_gives_whole_items_and_then_a_located_error(tmp_path_factory, data, draws, block):
    text, path, got = json.dumps(data, indent=1), tmp_path_factory.getbasetemp() / "x.json", []
    path.write_text(text[: draws.draw(st.integers(0, len(text) - 1))])
    with pytest.raises(SchemaError, match=r"x\.json is not JSON: .*: line \d"):
        got.extend(json_items(path, block))
    assert got == data[: len(got)]


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize(
    "text", ['[1, {"a": tru}]', '[1,\n\n  {"a" 2}]', '[\n"a\nb"]', "[1, 2", '["a\\q"]', "", '[\n1,\n"abc', "[1]\n2"]
)
def test_a_fault_of_json_is_in_the_line_where_the_standard_library_finds_it(tmp_path, text, block):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(json.JSONDecodeError) as wanted:
        json.loads(text)
    with pytest.raises(SchemaError, match=f"is not JSON: .*: line {wanted.value.lineno}"):
        list(json_items(tmp_path / "x.json", block))


def test_nesting_without_end_is_an_error(tmp_path):
    for text in ("[" * 100_000, "[" * 100_000 + "]" * 100_000, '{"a":' * 100_000):
        (tmp_path / "x.json").write_text(text)
        with pytest.raises(SchemaError, match=r"nested too deeply|Expecting"):
            list(json_items(tmp_path / "x.json"))


def test_memory_is_that_of_a_block(tmp_path):
    row = json.dumps({"text": "w" * 990})
    (tmp_path / "x.json").write_text("[" + ",".join([row] * 40_000) + "]")  # 40 MB
    tracemalloc.start()
    try:
        assert sum(1 for _ in json_items(tmp_path / "x.json")) == 40_000
        assert tracemalloc.get_traced_memory()[1] < 16_000_000
    finally:
        tracemalloc.stop()


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "\u00e9", "\ud800", ""]), st.none() | st.integers() | st.lists(st.text("x\n\ud800")))
    )
)
def test_it_is_a_dict_of_lists_in_order(pairs):
    spool, plain = Spool(), {}
    for key, value in pairs:
        spool.add(spool.key(key), value)
        plain.setdefault(key, []).append(value)
    assert [spool.get(number) for number in range(len(spool))] == list(plain.items())
    assert [spool.find(key) for key in plain] == list(range(len(plain)))
    assert spool.find("never") is None
