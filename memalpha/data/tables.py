"""Rows of tables: CSV and TSV with names on top, Parquet, and data sets on the Hugging Face Hub. Each with its place.

A CSV's fields may stand in quotes, and are parted by ``;`` where its first line has these and no comma; a TSV has no quoting, so
``"`` is a sign like any other there. Numbers of classes that the columns name (``ClassLabel``) are given as those names, -1 (no
class) as None.

What always holds: rows stream; a line of more fields than there are names is handed on as a SchemaError in place of its data, for
``memalpha.data.fields.mapping`` to raise; a field that a shorter line lacks is left out of its row.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from memalpha.data.files import decoded_lines, file_name, open_bytes, reading
from memalpha.errors import InputError, SchemaError, ServiceError

_LONGEST_FIELD = 2**31 - 1
_ROWS_AT_ONCE = 16


# ------------------------------------------------------------------------------------------------ CSV and TSV
def table_rows(path: Path, *, tabs: bool) -> Iterator[tuple[str, Any]]:
    """Yield the place and data of each row of a CSV, or of a TSV if ``tabs``; SchemaError if its quotes do not pair."""
    csv.field_size_limit(max(_LONGEST_FIELD, csv.field_size_limit()))  # of the whole process: it is only ever raised
    name, lines = file_name(path), decoded_lines(path)
    first = next(lines, "")
    comma = "\t" if tabs else ";" if ";" in first and "," not in first else ","
    table = csv.DictReader(
        chain([first], lines), delimiter=comma, quoting=csv.QUOTE_NONE if tabs else csv.QUOTE_MINIMAL, strict=True
    )
    try:
        for data in table:
            where = f"{name} line {table.line_num}"
            if None in data:
                found, names = len(table.fieldnames or ()) + len(data[None]), len(table.fieldnames or ())
                yield where, SchemaError(f"{where} has {found} fields", expected=f"{names}, as many as the first line names")
            else:
                yield where, {key: value for key, value in data.items() if value is not None}
    except csv.Error as error:
        where = f"{name} after line {table.reader.line_num}"
        raise SchemaError(f"{where} is not CSV: {error}", expected="a table with names on top") from error


# ------------------------------------------------------------------------------------------------ Parquet
def parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the place and data of each row; SchemaError if the file is not Parquet, is damaged or holds no row."""
    import pyarrow
    import pyarrow.parquet as parquet

    number = 0
    with reading(path), open_bytes(path) as file:
        try:
            table = parquet.ParquetFile(file)
        except pyarrow.ArrowException as error:
            raise SchemaError(f"{path} is not a Parquet file: {error}", expected="Parquet", fix="download it again") from error
        classes = _classes_of(table.schema_arrow.metadata)
        try:
            for batch in table.iter_batches(batch_size=_ROWS_AT_ONCE):
                for data in batch.to_pylist():
                    yield f"{file_name(path)} row {number}", _with_names(data, classes)
                    number += 1
        except UnicodeDecodeError as error:
            raise SchemaError(f"{path} holds text that is not UTF-8 after row {number}: {error}", expected="UTF-8") from error
        except (pyarrow.ArrowException, NotImplementedError, OverflowError, ValueError) as error:
            raise SchemaError(
                f"{path} cannot be read after row {number}: {error}",
                expected="columns of texts, numbers and lists, and of dates from year 1 to 9999",
            ) from error
    if not number:
        raise SchemaError(f"{path} holds no row", expected="at least one")


def _classes_of(metadata: Mapping[bytes, bytes] | None) -> Any:
    """The columns' features as the ``datasets`` library wrote them beside the schema, None without any class among them."""
    written = (metadata or {}).get(b"huggingface", b"")
    try:
        return json.loads(written)["info"]["features"] if b'"ClassLabel"' in written else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _with_names(value: Any, feature: Any) -> Any:
    """Return a value with the numbers of classes replaced by their names."""
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
        # A list of objects may be stored as an object of lists: its items then go by the feature of the key.
        return {key: _with_names(item, inner.get(key)) for key, item in value.items()}
    return value


# ------------------------------------------------------------------------------------------------ the Hub
def hub_rows(name: str, split: str) -> Iterator[tuple[str, Any]]:
    """Yield the place and data of each row of a data set on the Hub.

    Raises:
        InputError: If there is no such data set, or no such split or configuration of it.
        SchemaError: If a row of it cannot be read.
        ServiceError: If the Hub cannot be reached.
    """
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
            yield f"{name} {split} row {number}", _with_names(data, classes)
            number += 1
    except DatasetNotFoundError as error:
        raise InputError(f"no file {name}, and no such data set on the Hub", expected="a path, or owner/name", fix=fix) from error
    except (ArrowException, DatasetGenerationError, NotImplementedError, OverflowError, UnicodeDecodeError) as error:
        raise SchemaError(f"data set {name}, split {split!r} cannot be read after row {number}: {error}", fix=fix) from error
    except (OSError, RuntimeError) as error:
        raise ServiceError(
            f"no file {name}, and the Hub's data set of that name cannot be read: {error}\n  to fix: {fix}"
        ) from error
    except ValueError as error:
        raise InputError(f"data set {name}, split {split!r}: {error}", expected="a split that the data set has") from error
