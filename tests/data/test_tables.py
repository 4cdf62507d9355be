"""Tables by value: quoting, rows that do not fit their names, encodings, Parquet, numbers of classes, faults of the Hub."""

import gzip

import datasets
import pyarrow
import pyarrow.parquet as parquet
import pytest

from memalpha.data.registry import get_source
from memalpha.data.rows import iter_rows
from memalpha.errors import InputError, SchemaError


def rows(path):
    return [row.data for row in iter_rows(str(path))]


# ------------------------------------------------------------------------------------------------ CSV and TSV
def test_a_field_may_be_longer_than_the_csv_module_reads_by_itself(tmp_path):
    long = "word " * 30_000
    (tmp_path / "x.csv").write_text(f'chapter,bid\n"{long}",7\n')
    assert rows(tmp_path / "x.csv") == [{"chapter": long, "bid": "7"}]


def test_a_row_of_more_fields_than_names_is_malformed_whatever_reads_it(tmp_path):
    pairs = [(f"sentence {n} of {n % 2}", "ab"[n % 2]) for n in range(12)]
    lines = "".join(f"{text},{label}\n" for text, label in pairs)
    (tmp_path / "x.csv").write_text(f"text,category\n{lines}hello, my card is lost,card_lost\nonly text\n")
    *_, wrong, short = iter_rows(str(tmp_path / "x.csv"))
    assert isinstance(wrong.data, SchemaError) and short.data == {"text": "only text"}
    assert str(wrong.data) == "x.csv line 14 has 3 fields\n  expected: 2, as many as the first line names"
    result = get_source("banking77").load(tmp_path / "x.csv", {"questions": 6, "chunk_tokens": 99})
    assert not any("hello" in text for i in result.instances for text in [q.text for q in i.questions] + [c.text for c in i.chunks])
    assert result.skipped["malformed"] == 2 and result.problems[0].startswith("x.csv line 14 has 3 fields")
    for name, header in (("booksum", "chapter,summary_text"), ("squad", "context,question"), ("memalpha", "instance_id,chunks")):
        (tmp_path / "y.csv").write_text(f"{header}\na,b,c\n")
        with pytest.raises(SchemaError, match=r"y\.csv line 2 has 3 fields"):
            loaded = get_source(name).load(tmp_path / "y.csv")
            list(loaded.instances)
            raise SchemaError(loaded.problems[0])


def test_a_quote_is_a_sign_like_any_other_in_a_tsv(tmp_path):
    (tmp_path / "x.tsv").write_text('text\tlabel\n"stop the music\ta\nplay it"\tb\n')
    assert rows(tmp_path / "x.tsv") == [{"text": '"stop the music', "label": "a"}, {"text": 'play it"', "label": "b"}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_fields_parted_by_semicolons_and_every_line_end(tmp_path, end):
    (tmp_path / "x.csv").write_bytes(end.join(['a;"b"', '1;"x;', 'y"', "2,5;z", ""]).encode())
    assert rows(tmp_path / "x.csv") == [{"a": "1", "b": f"x;{end}y"}, {"a": "2,5", "b": "z"}]


def test_a_latin_1_line_of_a_table_is_read_as_what_it_means(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"a,b\ncaf\xe9,1\ncaf\xc3\xa9,2\n")
    assert rows(tmp_path / "x.csv") == [{"a": "caf\u00e9", "b": "1"}, {"a": "caf\u00e9", "b": "2"}]


# ------------------------------------------------------------------------------------------------ Parquet
def table(path, **columns):
    parquet.write_table(pyarrow.table(columns), path)
    return path


def test_a_parquet_file_of_any_name_is_that_file(tmp_path):
    for name in ("s[1].parquet", "s*x.parquet", "sAAx.parquet", "sp ace \u00e9.parquet"):
        assert rows(table(tmp_path / name, a=[name, "2"])) == [{"a": name}, {"a": "2"}]
    packed = tmp_path / "p.parquet.gz"
    packed.write_bytes(gzip.compress((tmp_path / "sAAx.parquet").read_bytes()))
    assert rows(packed) == [{"a": "sAAx.parquet"}, {"a": "2"}]


def test_what_is_wrong_with_a_parquet_file_is_told_apart(tmp_path):
    with pytest.raises(SchemaError, match=r"e\.parquet holds no row"):
        rows(table(tmp_path / "e.parquet", a=pyarrow.array([], pyarrow.string())))
    offsets = pyarrow.py_buffer(b"\x00\x00\x00\x00\x03\x00\x00\x00")
    table(tmp_path / "u.parquet", a=pyarrow.StringArray.from_buffers(1, offsets, pyarrow.py_buffer(b"a\xff b")))
    with pytest.raises(SchemaError, match=r"u\.parquet holds text that is not UTF-8 after row 0"):
        rows(tmp_path / "u.parquet")
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(SchemaError, match=r"x\.parquet is not a Parquet file"):
        rows(tmp_path / "x.parquet")


@pytest.mark.parametrize(
    "column",
    [
        pyarrow.array([1, 2, 3, 10**14], pyarrow.timestamp("s")),
        pyarrow.array([1, 2, 3, 2**30], pyarrow.date32()),
        pyarrow.array([1, 2, 3, 2**62], pyarrow.duration("s")),
        pyarrow.array([1, 2, 3, 4], pyarrow.timestamp("s", tz="Nowhere/City")),
    ],
)
def test_a_date_that_cannot_be_is_a_located_error(tmp_path, column):
    table(tmp_path / "d.parquet", text=list("abcd"), when=column)
    with pytest.raises(SchemaError, match=r"d\.parquet cannot be read after row 0: "):
        rows(tmp_path / "d.parquet")


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
    assert rows(tmp_path / "x.parquet") == wanted
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: stored)
    monkeypatch.chdir(tmp_path)
    assert rows("clinc/clinc_oos:plus") == wanted


# ------------------------------------------------------------------------------------------------ the Hub
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
        rows("owner/name")


def test_a_split_that_the_hub_does_not_have(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise ValueError("Bad split: tset. Available splits: ['train']")

    monkeypatch.setattr(datasets, "load_dataset", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="Available splits"):
        rows("owner/name")
