"""Rows of a data file or of a data set on the Hugging Face Hub, each with its place.

Kinds of file: JSON (``.json``: a list of rows, one row, or rows one after another), JSON Lines (``.jsonl``), tables with a first
line of names (``.csv``, ``.tsv``) and Parquet (``.parquet``), all with ``.gz`` or without. A file of another name (``.txt``, none)
is read as JSON; sets whose text has a form of its own read it with ``text_lines``.

What always holds: a file that is missing, damaged or of an unknown kind is one InputError (SchemaError where it is readable but not
the format its name says) that names the file and, where it can, the line. Everything is streamed. Rows are handed on as they are:
what they must hold is the loader's to say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.data.files import data_path, decoded_lines, file_name, open_bytes, reading
from memalpha.data.json_reader import JsonReader
from memalpha.data.tables import hub_rows, parquet_rows, table_rows
from memalpha.errors import InputError, SchemaError

_KINDS = (".json", ".jsonl", ".parquet", ".csv", ".tsv", ".txt", "")
_SHOWN_KINDS = ".json, .jsonl, .parquet, .csv, .tsv"
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.+-]+)?")


class Row(NamedTuple):
    """One row.

    Attributes:
        where: Its place, such as ``train.jsonl line 3``; begins messages about it.
        data: What stands there; a SchemaError where that is known not to be a row.
    """

    where: str
    data: Any


def iter_rows(source: str, split: str = "train") -> Iterator[Row]:
    """Read rows from a file, or from the Hub where no such file exists and the text looks like ``owner/name``.

    A data set of several configurations is named with one: ``owner/name:configuration``.

    Args:
        source: Path or Hub name.
        split: Split of a data set on the Hub; files have none.

    Raises:
        InputError: If it is neither a file of a known kind nor such a name, at once; if it cannot be read, when that shows.
        SchemaError: If it is damaged, or is JSON but no list of rows.
        ServiceError: If the Hub cannot be reached, when the first row is asked for.
    """
    if on_hub(source):
        return (Row(*row) for row in hub_rows(source, split))
    return file_rows(data_file(source))


def file_rows(path: Path) -> Iterator[Row]:
    """Read rows from one existing file; raises as ``iter_rows``."""
    match kind_of(path):
        case ".jsonl":
            return _line_rows(path)
        case ".parquet":
            return (Row(*row) for row in parquet_rows(path))
        case ".csv" | ".tsv" as kind:
            return (Row(*row) for row in table_rows(path, tabs=kind == ".tsv"))
    return _json_rows(path)


def data_file(source: str) -> Path:
    """Return the path of an existing file of a known kind; InputError otherwise."""
    path = existing_file(source)
    if kind_of(path) not in _KINDS:
        raise InputError(f"{path} is of an unknown kind", expected=f"a name that ends in {_SHOWN_KINDS}, with or without .gz")
    return path


def existing_file(source: str) -> Path:
    """Return the path of an existing file, whatever its name; InputError otherwise."""
    path = data_path(source)
    if path.is_dir():
        raise InputError(f"{path} is a folder", expected="a file", fix=f"name the file in it, e.g. {path / 'train.json'}")
    if not path.exists():
        raise InputError(
            f"no file {source}", expected=f"a data file ({_SHOWN_KINDS}, with or without .gz), or owner/name on the Hub"
        )
    return path


def data_files(source: str, pattern: str) -> list[Path]:
    """Return the file that ``source`` names, or the files of a folder whose names match ``pattern``, in order of their names.

    A packed file (the pattern and ``.gz``) is one of them unless the same stands unpacked beside it.

    Raises:
        InputError: If there is no such file, or none in the folder.
    """
    folder = data_path(source)
    if not folder.is_dir():
        return [data_file(source)]
    listed = {path for each in (pattern, f"{pattern}.gz") for path in folder.glob(each) if path.is_file()}
    if not (found := sorted(path for path in listed if path.suffix != ".gz" or path.with_suffix("") not in listed)):
        raise InputError(f"{folder} has no file {pattern}", expected=f"a folder with files {pattern}, or one file")
    return found


def on_hub(source: str) -> bool:
    """Whether ``source`` names a data set on the Hub: it looks like ``owner/name`` and there is no such path."""
    if data_path(source).exists() or not _HUB_NAME.fullmatch(source):
        return False
    return kind_of(Path(source)) not in _KINDS[:-1] and not Path(source).parent.exists()


def kind_of(path: Path) -> str:
    """Return a file's suffix in lower case, ``.gz`` left out."""
    name = path.name.lower().removesuffix(".gz")
    return Path(name).suffix


@contextmanager
def open_json(path: Path) -> Iterator[JsonReader]:
    """Open a JSON file to be read piece by piece; what goes wrong meanwhile is one InputError that names it."""
    with reading(path), open_bytes(path) as file:
        yield JsonReader(file, str(path))


def text_lines(path: Path) -> Iterator[Row]:
    """Read a text line by line, line ends taken off and blank lines kept; lines that are not UTF-8 are read as Latin-1."""
    for number, line in enumerate(decoded_lines(path), start=1):
        yield Row(f"{file_name(path)} line {number}", line.rstrip("\r\n"))


def check_text(value: Any, where: str) -> str:
    r"""Return a text with ``\n`` line ends and no white space around it; SchemaError if it is no text or not valid Unicode.

    It may be empty: what that means is the loader's to say.
    """
    if not isinstance(value, str):
        raise SchemaError(f"{where} is {type(value).__name__}", expected="text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SchemaError(f"{where} is not valid Unicode: {error.reason}", expected="text without lone surrogates") from error
    return value.replace("\r\n", "\n").replace("\r", "\n").strip()


# ------------------------------------------------------------------------------------------------ JSON
def _not_json(where: str, error: Exception) -> SchemaError:
    return SchemaError(f"{where} is not JSON: {error}", expected="JSON", fix="download it again: it may be cut off")


def _json_rows(path: Path) -> Iterator[Row]:
    with open_json(path) as reader:
        first, index = reader.peek(), -1
        if not first:
            reader.value()  # raises: an empty file is no JSON
        listed = first == "["
        rows = reader.items() if listed else _values(reader)
        for index, data in enumerate(rows):
            yield Row(f"{file_name(path)} item {index}", data)
        if listed:
            reader.end()
    if index < 0:
        raise SchemaError(f"{file_name(path)} holds []", expected="a list of rows that is not empty")


def _values(reader: JsonReader) -> Iterator[Any]:
    while reader.peek():
        yield reader.value()


def _line_rows(path: Path) -> Iterator[Row]:
    with reading(path), open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{file_name(path)} line {number}"
            if line.strip():
                try:
                    data = json.loads(line.decode("utf-8-sig"))
                except UnicodeDecodeError as error:
                    raise InputError(f"{where} is not UTF-8 text: {error.reason}", expected="JSON Lines in UTF-8") from error
                except (ValueError, RecursionError) as error:
                    raise _not_json(where, error) from error
                yield Row(where, data)
