"""Rows of every kind of file: values, places, line ends, encodings, damage, and what would not fit
into memory."""

import gzip
import re

import datasets
import pyarrow
import pytest
from data_samples import load

from memalpha.data import rows as rows_module
from memalpha.data.rows import iter_rows, text_lines
from memalpha.errors import InputError, SchemaError


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
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfone\r\n\n caf\xe9\ncaf\xc3\xa9")
    assert [row.data for row in text_lines(str(tmp_path / "x.txt"))] == [
        "one",
        "",
        " caf\u00e9",
        "caf\u00e9",
    ]


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
        ("x.xml", b"<a/>", "of an unknown kind"),
    ],
)
def test_damage_is_located(tmp_path, name, raw, message):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=message):
        rows(tmp_path / name)
    with pytest.raises(InputError, match=r"cannot look for 'x+': File name too long"):
        iter_rows("x" * 400 + ".jsonl")


@pytest.mark.parametrize("source", ["longmemeval", "squad", "clinc150"])
def test_a_small_packed_document_that_expands_beyond_the_bound_is_one_error(
    tmp_path, monkeypatch, source
):
    monkeypatch.setattr(rows_module, "MAX_UNPACKED", 1_000_000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b'{"a": 1},' * 1_000_000 + b"1]"))
    assert path.stat().st_size < 50_000
    with pytest.raises(InputError, match=r"bomb\.json\.gz expands to more than 1000000 bytes"):
        load(source, path)
    path.write_bytes(gzip.compress(b"[" + b" " * 999_998 + b"]"))  # exactly as much as there may be
    assert rows(path) == []


def test_numbers_of_classes_are_their_names(tmp_path, monkeypatch):
    features = datasets.Features(
        {"text": datasets.Value("string"), "intent": datasets.ClassLabel(names=["card", "oos"])}
    )
    stored = datasets.Dataset.from_dict(
        {"text": ["p", "q", "r", "s"], "intent": [1, 0, -1, None]}, features=features
    )
    stored.to_parquet(str(tmp_path / "x.parquet"))
    wanted = [
        {"text": t, "intent": v} for t, v in zip("pqrs", ("oos", "card", None, None), strict=True)
    ]
    assert [data for _, data in rows(tmp_path / "x.parquet")] == wanted
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stored)
    monkeypatch.chdir(tmp_path)
    assert rows("clinc/clinc_oos:plus") == [
        (f"clinc/clinc_oos:plus train row {n}", row) for n, row in enumerate(wanted)
    ]


@pytest.mark.parametrize(
    "fault",
    [
        pyarrow.ArrowNotImplementedError("nested"),
        OverflowError("date"),
        datasets.exceptions.DatasetNotFoundError("no"),
    ],
)
def test_what_the_hub_cannot_give_is_one_error(tmp_path, monkeypatch, fault):
    def broken(*args, **kwargs):
        raise fault

    monkeypatch.setattr(datasets, "load_dataset", broken)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        InputError, match=r"no file owner/name, and split 'train' of that set on the Hub"
    ):
        rows("owner/name")
