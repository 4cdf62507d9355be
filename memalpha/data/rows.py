"""Rows of a data file or of a data set on the Hugging Face Hub, each with its place, and checks of
their fields.

Read are JSON (a list of rows, or one object), JSON Lines, CSV with a header, and Parquet, each also
as ``.gz``; ``.txt`` means JSON Lines, no suffix JSON. A JSON document is read whole, the others
stream. A bad file is one InputError.
"""

import csv
import gzip
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO, Annotated, Any, NamedTuple, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, PydanticUserError, ValidationError

from memalpha.errors import InputError, SchemaError
from memalpha.files import path_of

MAX_UNPACKED = 2 << 30  # most bytes that a packed JSON document may expand to
EMPTY_ANSWER = "empty answer"  # skip reason: all answers are blank or missing
_KINDS = (".json", ".jsonl", ".parquet", ".csv", ".txt")
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.+-]+)?")
_AGAIN = "download it again: it may be cut off"
_M = TypeVar("_M", bound=BaseModel)


class Row(NamedTuple):
    """One row: its place, e.g. ``train.jsonl line 3``, and its data, or a SchemaError if it is not
    a row.
    """

    where: str
    data: Any


def iter_rows(source: str, split: str = "train") -> Iterator[Row]:
    """Read rows from a file, else from the Hub's ``owner/name[:configuration]``; InputError if
    neither, SchemaError if damaged.
    """
    if (kind := kind_of(source)) == "hub":
        return _hub_rows(source, split)
    path = existing_file(source)
    match kind:
        case ".json" | "":
            data = json_document(source)
            return (
                Row(f"{path.name} item {i}", item)
                for i, item in enumerate(data if isinstance(data, list) else [data])
            )
        case ".jsonl" | ".txt":
            return _line_rows(path)
        case ".parquet":
            return _parquet_rows(path)
        case ".csv":
            return _table_rows(path)
    raise InputError(
        f"{path} is of an unknown kind",
        expected=f"a name that ends in {', '.join(_KINDS)}, with or without .gz",
    )


def data_path(source: str) -> Path:
    """Return the path of a source, which may not exist; InputError if the path is invalid."""
    return path_of(source, "the path of a file, or owner/name on the Hub")


def existing_file(source: str) -> Path:
    """Return the path of an existing file; InputError otherwise."""
    path = data_path(source)
    if not path.is_file():
        what = f"{path} is a folder" if path.is_dir() else f"no file {source}"
        raise InputError(
            what, expected="a data file, packed (.gz) or not, or owner/name on the Hub"
        )
    return path


def data_files(source: str, pattern: str) -> list[Path]:
    """Return the file ``source``, or the sorted files of a folder that match ``pattern``, packed or
    not; InputError if none.
    """
    folder = data_path(source)
    if not folder.is_dir():
        return [existing_file(source)]
    if not (
        found := sorted(
            path
            for each in (pattern, f"{pattern}.gz")
            for path in folder.glob(each)
            if path.is_file()
        )
    ):
        raise InputError(
            f"{folder} has no file {pattern}",
            expected=f"a folder with files {pattern}, or one file",
        )
    return found


def kind_of(source: str) -> str:
    """Return a file's suffix in lower case, without ``.gz``; "hub" for ``owner/name`` if no such
    path exists.
    """
    kind = Path(source.lower().removesuffix(".gz")).suffix
    known = kind in _KINDS or data_path(source).exists() or Path(source).parent.exists()
    return kind if known or not _HUB_NAME.fullmatch(source) else "hub"


@contextmanager
def _open_bytes(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(
            f"cannot read {path}: {error}", expected="a file that is whole", fix="download it again"
        ) from error
    except MemoryError as error:
        raise InputError(
            f"{path} does not fit into memory", expected="a smaller file, or JSON Lines"
        ) from error


def text_lines(source: str) -> Iterator[Row]:
    """Read a text file line by line without line ends; keeps blank lines; lines that are not UTF-8
    are read as Latin-1.
    """
    path = existing_file(source)
    with _open_bytes(path) as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                line = raw.decode("latin-1")
            yield Row(f"{path.name} line {number}", line.rstrip("\r\n"))


def json_document(source: str) -> Any:
    """Read a whole JSON document; SchemaError if it is damaged, InputError if it expands to more
    than ``MAX_UNPACKED`` bytes.
    """
    path = existing_file(source)
    limit = MAX_UNPACKED if path.suffix.lower() == ".gz" else -2
    with _open_bytes(path) as file:
        raw = file.read(limit + 1)
        if 0 < limit < len(raw):
            raise InputError(
                f"{path} expands to more than {MAX_UNPACKED} bytes",
                expected="a smaller file, or JSON Lines",
            )
        try:
            return json.loads(raw.decode("utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise SchemaError(
                f"{path} is not JSON: {error}", expected="one JSON document in UTF-8", fix=_AGAIN
            ) from error


def _line_rows(path: Path) -> Iterator[Row]:
    with _open_bytes(path) as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path.name} line {number}"
            if line.strip():
                try:
                    data = json.loads(line.decode("utf-8-sig"))
                except (ValueError, RecursionError) as error:
                    raise SchemaError(
                        f"{where} is not JSON: {error}", expected="JSON in UTF-8", fix=_AGAIN
                    ) from error
                yield Row(where, data)


def _table_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(max(2**31 - 1, csv.field_size_limit()))  # process-wide; only ever raised
    with _open_bytes(path) as file:
        table = csv.DictReader(TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
        try:
            for data in table:
                where, names = f"{path.name} line {table.line_num}", len(table.fieldnames or ())
                if None in data:
                    found = names + len(data[None])
                    yield Row(
                        where,
                        SchemaError(
                            f"{where} has {found} fields",
                            expected=f"{names}, as the first line names",
                        ),
                    )
                else:
                    yield Row(
                        where, {key: value for key, value in data.items() if value is not None}
                    )
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path.name} after line {table.line_num}"
            raise SchemaError(
                f"{where} is not CSV in UTF-8: {error}", expected="a table with names on top"
            ) from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet
    from datasets import Features

    with _open_bytes(path) as file:
        try:
            table = parquet.ParquetFile(file)
            rows = (row for batch in table.iter_batches(batch_size=16) for row in batch.to_pylist())
            yield from _named(rows, Features.from_arrow_schema(table.schema_arrow), path.name)
        except (NotImplementedError, OverflowError, ValueError) as error:
            raise SchemaError(
                f"{path} is not a Parquet file that can be read: {error}", fix=_AGAIN
            ) from error


def _hub_rows(name: str, split: str) -> Iterator[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(*name.split(":"), split=split, streaming=True)
        yield from _named(rows, rows.features, f"{name} {split}")
    except (OSError, RuntimeError, ValueError, OverflowError, DatasetsError) as error:
        what = f"no file {name}, and split {split!r} of the Hub's data set of that name cannot be read: {error}"
        raise InputError(
            what, expected="a path, or owner/name", fix="give the path of a downloaded file"
        ) from error


def _named(rows: Iterable[Any], features: Mapping[str, Any] | None, where: str) -> Iterator[Row]:
    names = {
        key: feature.names
        for key, feature in (features or {}).items()
        if hasattr(feature, "int2str")
    }
    for number, row in enumerate(rows):
        numbers = {key: row[key] for key in names if row[key] is not None}
        classes = {
            key: names[key][n] if 0 <= n < len(names[key]) else None for key, n in numbers.items()
        }
        yield Row(f"{where} row {number}", {**row, **classes})


def clean(value: Any) -> str:
    r"""Return a text with ``\n`` line ends, stripped; ValueError if it is not text or not valid
    Unicode.
    """
    if not isinstance(value, str):
        raise ValueError("expected text")
    value.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return value.replace("\r\n", "\n").replace("\r", "\n").strip()


def scalar(value: Any) -> str:
    """Return a text, or a number as text, "" for null and NaN; ValueError for anything else,
    including infinity.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(value)
    if math.isinf(value):
        raise ValueError("expected text or a finite number")
    return str(value)


def _answers(value: Any) -> tuple[str, ...]:
    return tuple(
        dict.fromkeys(filter(None, map(scalar, value if isinstance(value, list) else [value])))
    )


Cleaned = Annotated[str, BeforeValidator(clean)]
Text = Annotated[str, BeforeValidator(clean), Field(min_length=1)]
Scalar = Annotated[str, BeforeValidator(scalar)]
Answers = Annotated[tuple[str, ...], BeforeValidator(_answers)]
"""The distinct non-blank answers of a text, a number, None or a list of those."""
OrEmpty = BeforeValidator(lambda value: [] if value is None else value)
Rows = Annotated[list[Any], OrEmpty]
Spelled = BeforeValidator(lambda value: json.loads(value) if isinstance(value, str) else value)
"""A value that may be spelled as JSON text."""


def checked(model: type[_M], data: Any, where: str) -> _M:
    """Return a row as a model; SchemaError, with the place ``where``, if a field does not fit or
    ``data`` is a SchemaError.
    """
    if isinstance(data, SchemaError):
        raise data
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = "".join(
            f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]
        ).lstrip(".")
        wanted = (
            "expected an object"
            if first["type"] == "model_type"
            else first["msg"].removeprefix("Value error, ")
        )
        found = (
            "is missing" if first["type"] == "missing" else f"is {first['input']!r:.60}: {wanted}"
        )
        what = f"{where} field {path!r} {found}" if path else f"{where} {found}"
        raise SchemaError(
            what, expected=f"an object with {', '.join(model.model_fields)}"
        ) from error
    except (PydanticUserError, RecursionError, SyntaxError) as error:
        raise SchemaError(f"{where} cannot be read: {error}") from error
