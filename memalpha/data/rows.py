"""Rows of a data file or of a data set on the Hugging Face Hub, each with its place.

Reads JSON (list of rows, one row, or consecutive rows), JSON Lines, CSV and TSV with a header, and Parquet, each also as ``.gz``;
``.txt`` and no suffix mean JSON. CSV may be separated by ``;``; TSV has no quoting. ``ClassLabel`` numbers become names, -1 None.
Everything streams. A bad file is one InputError (SchemaError if readable but not of its format) with file and line. Row contents
are not checked; a table line with too many fields has a SchemaError as data.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from memalpha.errors import InputError, SchemaError, ServiceError
from memalpha.files import path_of

_KINDS = (".json", ".jsonl", ".parquet", ".csv", ".tsv", ".txt", "")
_SHOWN_KINDS = ".json, .jsonl, .parquet, .csv, .tsv"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.+-]+)?")
_AGAIN = "download it again: it may be cut off"


class Row(NamedTuple):
    """One row: its place, e.g. ``train.jsonl line 3``, and its data, or a SchemaError if it is not a row."""

    where: str
    data: Any


def iter_rows(source: str, split: str = "train") -> Iterator[Row]:
    """Read rows from a file, or from the Hub if no such file exists and the text looks like ``owner/name[:configuration]``.

    InputError if it is neither or cannot be read; SchemaError if it is damaged or not rows; ServiceError if the Hub is unreachable.
    """
    return _hub_rows(source, split) if on_hub(source) else file_rows(data_file(source))


def file_rows(path: Path) -> Iterator[Row]:
    """Read rows from one existing file; raises as ``iter_rows``."""
    match kind_of(path):
        case ".jsonl":
            return _line_rows(path)
        case ".parquet":
            return _parquet_rows(path)
        case ".csv" | ".tsv" as kind:
            return _table_rows(path, tabs=kind == ".tsv")
    return _json_rows(path)


def data_path(source: str) -> Path:
    """Return the path of a source, which may not exist; InputError if the path is invalid."""
    return path_of(source, "the path of a file, or owner/name on the Hub")


def data_file(source: str) -> Path:
    """Return the path of an existing file of a known kind; InputError otherwise."""
    path = existing_file(source)
    if kind_of(path) not in _KINDS:
        raise InputError(f"{path} is of an unknown kind", expected=f"a name that ends in {_SHOWN_KINDS}, with or without .gz")
    return path


def existing_file(source: str) -> Path:
    """Return the path of an existing file of any kind; InputError otherwise."""
    path = data_path(source)
    if path.is_dir():
        raise InputError(f"{path} is a folder", expected="a file", fix=f"name the file in it, e.g. {path / 'train.json'}")
    if not path.exists():
        expected = f"a data file ({_SHOWN_KINDS}, with or without .gz), or owner/name on the Hub"
        raise InputError(f"no file {source}", expected=expected)
    return path


def data_files(source: str, pattern: str) -> list[Path]:
    """Return the file ``source``, or the sorted files of a folder that match ``pattern``; InputError if there is none.

    A ``.gz`` file counts unless its unpacked version is in the same folder.
    """
    folder = data_path(source)
    if not folder.is_dir():
        return [data_file(source)]
    listed = {path for each in (pattern, f"{pattern}.gz") for path in folder.glob(each) if path.is_file()}
    if not (found := sorted(path for path in listed if path.suffix != ".gz" or path.with_suffix("") not in listed)):
        raise InputError(f"{folder} has no file {pattern}", expected=f"a folder with files {pattern}, or one file")
    return found


def on_hub(source: str) -> bool:
    """Whether ``source`` looks like ``owner/name`` and no such path exists."""
    if data_path(source).exists() or not _HUB_NAME.fullmatch(source):
        return False
    return kind_of(Path(source)) not in _KINDS[:-1] and not Path(source).parent.exists()


def kind_of(path: Path) -> str:
    """Return a file's suffix in lower case, without ``.gz``."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def packed_or_not(path: Path) -> Path:
    """Return the existing path of the file with or without ``.gz``; the given path if neither exists."""
    other = path.with_suffix("") if path.suffix.lower() == ".gz" else path.with_name(f"{path.name}.gz")
    return other if other.is_file() and not path.is_file() else path


def file_name(path: Path) -> str:
    """Return a file's name without its folder; bytes that are not UTF-8 are replaced."""
    return os.fsencode(path.name).decode("utf-8", errors="replace")


@contextmanager
def _open_bytes(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}", expected="a file in UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}", expected="a file that is whole", fix="download it again") from error


def decoded_lines(path: Path) -> Iterator[str]:
    r"""Read a text line by line with line ends (``\n``, ``\r\n`` or ``\r``); lines that are not UTF-8 are read as Latin-1."""
    with _open_bytes(path) as file:
        # Latin-1 keeps the bytes: lines are cut while streaming, and each is decoded alone.
        for number, line in enumerate(TextIOWrapper(file, encoding="latin-1", newline="")):
            raw = line.encode("latin-1")
            raw = raw if number else raw.removeprefix(codecs.BOM_UTF8)
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError:
                yield raw.decode("latin-1")


def text_lines(path: Path) -> Iterator[Row]:
    """Read a text line by line without line ends; keeps blank lines; lines that are not UTF-8 are read as Latin-1."""
    for number, line in enumerate(decoded_lines(path), start=1):
        yield Row(f"{file_name(path)} line {number}", line.rstrip("\r\n"))


def _json_rows(path: Path) -> Iterator[Row]:
    index = -1
    for index, data in enumerate(json_items(path)):
        yield Row(f"{file_name(path)} item {index}", data)
    if index < 0:
        raise SchemaError(f"{file_name(path)} holds []", expected="a list of rows that is not empty")


def json_items(path: Path, block: int = 1 << 20) -> Iterator[Any]:
    """Read the items of a JSON list one at a time, or consecutive JSON values. SchemaError names the line of invalid JSON.

    Memory is the largest item plus a block of ``block`` characters. Not ijson: its C backend replaces lone surrogates by "?", needs
    memory quadratic in the nesting depth, and its errors name no line.
    """
    with _open_bytes(path) as file:
        text = _Text(TextIOWrapper(file, encoding="utf-8-sig", newline=""), str(path), block)
        if text.peek() != "[":
            yield text.value()  # an empty file is not JSON
            while text.peek():
                yield text.value()
            return
        last = text.next("[") and text.peek() == "]" and text.next("]") == "]"
        while not last:
            value = text.value()
            last = text.next(",]") == "]"  # before the yield: a number may be cut off
            yield value
        if text.peek():
            raise text.error("Extra data", text.at)


class _Text:
    """A cursor over a text read in blocks; each read doubles the buffer, so few values are parsed again."""

    margin = 64  # an error this close to the buffer's end may only mean that more text follows

    def __init__(self, file: IO[str], where: str, block: int) -> None:
        self.file, self.where, self.block = file, where, block
        self.text, self.at, self.lines, self.ended = "", 0, 0, False  # lines already dropped

    def more(self) -> bool:
        if self.ended:
            return False
        self.lines += self.text.count("\n", 0, self.at)
        read = self.file.read(max(self.block, len(self.text) - self.at))
        self.text, self.at, self.ended = self.text[self.at :] + read, 0, not read
        return True

    def peek(self) -> str:
        """Return the next character after white space without consuming it; "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\n\r":
                self.at += 1
            if self.at < len(self.text) or not self.more():
                return self.text[self.at : self.at + 1]

    def next(self, wanted: str) -> str:
        if (found := self.peek() or "nothing") not in wanted:
            raise self.error(f"Expecting {' or '.join(map(repr, wanted))}", self.at)
        self.at += 1
        return found

    def value(self) -> Any:
        self.peek()
        while True:
            try:
                value, end = json.JSONDecoder().raw_decode(self.text, self.at)
            except json.JSONDecodeError as error:
                may_go_on = error.msg.startswith("Unterminated string") or error.pos >= len(self.text) - self.margin
                if may_go_on and self.more():
                    continue
                raise self.error(error.msg, error.pos) from error
            except (ValueError, RecursionError) as error:  # integer with too many digits, or nesting too deep
                raise self.error("a number of too many digits, or nested too deeply", self.at) from error
            if len(self.text) - end < self.margin and self.more():
                continue  # a number may continue
            self.at = end
            return value

    def error(self, message: str, at: int) -> SchemaError:
        line = self.lines + self.text.count("\n", 0, at) + 1
        return SchemaError(f"{self.where} is not JSON: {message}: line {line}", expected="JSON", fix=_AGAIN)


def _line_rows(path: Path) -> Iterator[Row]:
    with _open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file_name(path)} line {number}"
            if line.strip():
                try:
                    data = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise SchemaError(f"{where} is not JSON: {error}", expected="JSON in UTF-8", fix=_AGAIN) from error
                yield Row(where, data)


def _table_rows(path: Path, *, tabs: bool) -> Iterator[Row]:
    csv.field_size_limit(max(2**31 - 1, csv.field_size_limit()))  # process-wide; only ever raised
    name, lines = file_name(path), decoded_lines(path)
    first = next(lines, "")
    comma = "\t" if tabs else ";" if ";" in first and "," not in first else ","
    quoting: Literal[0, 3] = csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL
    table = csv.DictReader(chain([first], lines), delimiter=comma, quoting=quoting, strict=True)
    try:
        for data in table:
            where, names = f"{name} line {table.line_num}", len(table.fieldnames or ())
            if None in data:
                wrong = SchemaError(f"{where} has {names + len(data[None])} fields", expected=f"{names}, as the first line names")
                yield Row(where, wrong)
            else:
                yield Row(where, {key: value for key, value in data.items() if value is not None})
    except csv.Error as error:
        where = f"{name} after line {table.reader.line_num}"
        raise SchemaError(f"{where} is not CSV: {error}", expected="a table with names on top") from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow
    import pyarrow.parquet as parquet

    number = 0
    with _open_bytes(path) as file:
        try:
            table = parquet.ParquetFile(file)
            classes = _classes(table.schema_arrow)
            for batch in table.iter_batches(batch_size=16):
                for data in batch.to_pylist():
                    yield Row(f"{file_name(path)} row {number}", _with_names(data, classes))
                    number += 1
        except (pyarrow.ArrowException, NotImplementedError, OverflowError, ValueError) as error:
            raise SchemaError(
                f"{path} is not a Parquet file, or cannot be read after row {number}: {error}",
                expected="columns of texts in UTF-8, numbers and lists, and of dates from year 1 to 9999",
                fix=_AGAIN,
            ) from error
    if not number:
        raise SchemaError(f"{path} holds no row", expected="at least one")


def _classes(schema: Any) -> Any:
    written = (schema.metadata or {}).get(b"huggingface", b"")
    try:
        return json.loads(written)["info"]["features"] if b'"ClassLabel"' in written else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _with_names(value: Any, feature: Any) -> Any:
    if isinstance(feature, list) and feature:
        feature = {"_type": "List", "feature": feature[0]}
    if not isinstance(feature, Mapping):
        return value
    if feature.get("_type") == "ClassLabel" and isinstance(value, int):
        names = feature.get("names") or []
        return None if value == -1 else names[value] if 0 <= value < len(names) else value
    inner = feature.get("feature") if isinstance(feature.get("_type"), str) else feature
    if isinstance(value, list):
        return [_with_names(item, inner) for item in value]
    if isinstance(value, Mapping) and isinstance(inner, Mapping):
        # A list of objects may be stored as an object of lists; then the key's feature applies to the items.
        return {key: _with_names(item, inner.get(key)) for key, item in value.items()}
    return value


def _hub_rows(name: str, split: str) -> Iterator[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError, DatasetNotFoundError
    from pyarrow import ArrowException

    fix, number = "give the path of a downloaded file instead", 0
    try:
        repository, _, configuration = name.partition(":")
        rows = load_dataset(*filter(None, (repository, configuration)), split=split, streaming=True)
        features = getattr(rows, "features", None)
        classes = features.to_dict() if features and "ClassLabel" in str(features) else None
        for data in rows:
            yield Row(f"{name} {split} row {number}", _with_names(data, classes))
            number += 1
    except DatasetNotFoundError as error:
        raise InputError(f"no file {name}, and no such data set on the Hub", expected="a path, or owner/name", fix=fix) from error
    except (ArrowException, DatasetGenerationError, NotImplementedError, OverflowError, UnicodeDecodeError) as error:
        raise SchemaError(f"data set {name}, split {split!r} cannot be read after row {number}: {error}", fix=fix) from error
    except (OSError, RuntimeError) as error:
        what = f"no file {name}, and the Hub's data set of that name cannot be read: {error}"
        raise ServiceError(f"{what}\n  to fix: {fix}") from error
    except ValueError as error:
        raise InputError(f"data set {name}, split {split!r}: {error}", expected="a split that the data set has") from error
