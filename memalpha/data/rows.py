"""Rows of a data file or of the Hugging Face Hub with typed fields, and instances as such rows.

Read are JSON (a list of rows, or one object), JSON Lines, CSV with a header, each also as ``.gz``,
and Parquet; ``.txt`` means JSON Lines, no suffix JSON. A JSON document is read whole, the others
stream. A file that cannot be read is one InputError with its place. ``datasets.load_dataset`` reads
the Hub alone: of a JSON file it gives mixed columns back as text, and one bad row spoils them all.
"""

import ast
import csv
import gzip
import hashlib
import json
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from enum import StrEnum
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from types import NoneType
from typing import IO, Any, get_args, get_origin, get_type_hints

from memalpha.errors import InputError, SchemaError
from memalpha.files import path_of
from memalpha.text.times import ISO_8601, moment
from memalpha.types import Instance, JsonMapping, JsonObject

MAX_UNPACKED = 2 << 30  # most bytes that a packed JSON document may expand to
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?::[\w.+-]+)?")
_SURROGATE = re.compile("[\ud800-\udfff]")
_AGAIN = "correct the file; if you downloaded it, download it again, since it may be cut off"


@dataclass(frozen=True, slots=True)
class Row:
    """A value and its place. A value that does not fit raises a SchemaError with both."""

    where: str  # of the row, e.g. ``train.jsonl line 3``
    data: object
    path: str = ""  # of the field in the row, e.g. ``turns[2].text``; "" for the row itself
    form: str = "an object"  # that the row should have

    def unfit(self, expected: str) -> SchemaError:
        """Return the error that names the place, the value and the expected form."""
        value = "is missing" if self.data is None else f"is {self.data!r:.60}"
        field = f" field {self.path!r}" if self.path else ""
        return SchemaError(f"{self.where}{field} {value}", expected=expected)

    def __getitem__(self, name: str) -> "Row":
        """Return a field of an object; its data are None if it is missing."""
        if not isinstance(self.data, Mapping):
            raise self.unfit(self.form)
        return Row(self.where, self.data.get(name), f"{self.path}.{name}".lstrip("."))

    def fields(self) -> dict[str, "Row"]:
        """Return the fields of an object, without space around their names; none if missing."""
        names = {} if self.data is None else self.data
        if not isinstance(names, Mapping):
            raise self.unfit("an object")
        return {Row(self.where, name, self.path).string(): self[name] for name in names}

    def items(self, *, needed: bool = True) -> list["Row"]:
        """Return the items of a list; unless it is ``needed``, none if it is missing."""
        data = [] if self.data is None and not needed else self.data
        if not isinstance(data, list):
            raise self.unfit("a list")
        return [Row(self.where, data[i], f"{self.path}[{i}]") for i in range(len(data))]

    def pair(self) -> list["Row"]:
        """Return the items of a list of two."""
        if not isinstance(self.data, list) or len(self.data) != 2:
            raise self.unfit("a list of two")
        return self.items()

    def string(self) -> str:
        """Return a text, which may be empty, cleaned."""
        if not isinstance(self.data, str) or _SURROGATE.search(self.data):
            raise self.unfit("text")
        return clean(self.data)

    def text(self) -> str:
        """Return a text that is not blank, cleaned."""
        text = self.string()
        if not text:
            raise self.unfit("text that is not blank")
        return text

    def scalar(self) -> str:
        """Return a text or a number as text; empty if it is missing or NaN."""
        if self.data is None or self.data != self.data:
            return ""
        if isinstance(self.data, str):
            return self.string()
        number = isinstance(self.data, int | float) and not isinstance(self.data, bool)
        if not number or self.data in (math.inf, -math.inf):
            raise self.unfit("text or a finite number")
        return str(self.data)

    def answers(self) -> tuple[str, ...]:
        """Return the distinct texts and numbers, not blank, of a value or a list of values."""
        values = self.items() if isinstance(self.data, list) else [self]
        return tuple(dict.fromkeys(filter(None, map(Row.scalar, values))))

    def integer(self) -> int:
        """Return an integer, which may be written as text."""
        if not re.fullmatch(r"-?[0-9]{1,9}(?:\.0)?", self.scalar()):
            raise self.unfit("an integer")
        return int(float(self.scalar()))

    def decoded(self) -> "Row":
        """Return the value that a text spells as JSON; any other value as it is."""
        if not isinstance(self.data, str):
            return self
        return replace(self, data=_json(self.data, f"{self.where} field {self.path!r}"))

    def evaluated(self, expected: str) -> "Row":
        """Return the value that a text spells in Python; any other value as it is."""
        if not isinstance(self.data, str):
            return self
        try:
            return replace(self, data=ast.literal_eval(self.data))
        except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
            raise self.unfit(expected) from error


def clean(text: str) -> str:
    r"""Return a text with ``\n`` line ends, without space around it."""
    return text.replace("\r\n", "\n").replace("\r", "\n").strip()


def iter_rows(source: str, split: str = "train") -> Iterator[Row]:
    """Read rows from a file, else from the Hub's ``owner/name[:configuration]``; InputError if
    neither, SchemaError if damaged.
    """
    readers = {
        "": _document_rows,
        ".json": _document_rows,
        ".jsonl": _line_rows,
        ".txt": _line_rows,
        ".csv": _table_rows,
        ".parquet": _parquet_rows,
    }
    kind = Path(source.lower().removesuffix(".gz")).suffix
    file = path_exists(source) or Path(source).parent.exists() or (kind and kind in readers)
    if not file and _HUB_NAME.fullmatch(source):
        return _hub_rows(source, split)
    path = existing_file(source)
    if kind not in readers:
        endings = ", ".join(filter(None, readers))
        raise InputError(
            f"the kind of file of {path} is unknown", expected=f"a name that ends in {endings}"
        )
    return readers[kind](path)


def path_exists(source: str) -> bool:
    """Whether a path exists; InputError if the path is invalid."""
    return path_of(source, "the path of a file, or owner/name on the Hub").exists()


def existing_file(source: str) -> Path:
    """Return the path of an existing file; InputError otherwise."""
    path = Path(source)
    if not path_exists(source) or path.is_dir():
        raise InputError(
            f"{path} is a folder" if path.is_dir() else f"no file {source}",
            expected="a data file, packed (.gz) or not, or owner/name on the Hub",
        )
    return path


def data_files(source: str, pattern: str) -> list[Path]:
    """Return the file ``source``, or the sorted files of a folder that match ``pattern``, packed or
    not; InputError if none.
    """
    if not path_exists(source) or not Path(source).is_dir():
        return [existing_file(source)]
    folder = Path(source)
    files = sorted([*folder.glob(pattern), *folder.glob(f"{pattern}.gz")])
    if not files:
        raise InputError(
            f"{folder} has no file {pattern}",
            expected=f"a folder with files {pattern}, or one file",
        )
    return files


@contextmanager
def _open(path: Path) -> Iterator[IO[bytes]]:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            yield file  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}", fix=_AGAIN) from error


def _lines(path: Path) -> Iterator[tuple[str, bytes]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            yield f"{path.name} line {number}", line


def text_lines(source: str) -> Iterator[Row]:
    """Read a text file line by line without line ends; keeps blank lines; lines that are not UTF-8
    are read as Latin-1.
    """
    for where, line in _lines(existing_file(source)):
        try:
            text = line.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = line.decode("latin-1")
        yield Row(where, text.rstrip("\r\n"))


def _json(raw: bytes | str, what: str) -> object:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SchemaError(
            f"{what} is not JSON: {error}", expected="JSON in UTF-8", fix=_AGAIN
        ) from error


def read_document(path: Path) -> Row:
    """Read a whole JSON document; SchemaError if it is damaged, InputError if it is packed and
    expands to more than ``MAX_UNPACKED`` bytes.
    """
    with _open(path) as file:
        raw = file.read(MAX_UNPACKED + 1 if path.suffix.lower() == ".gz" else -1)
    if len(raw) > MAX_UNPACKED and path.suffix.lower() == ".gz":
        raise InputError(
            f"{path} expands to more than {MAX_UNPACKED} bytes",
            expected="a smaller file, or JSON Lines",
        )
    return Row(path.name, _json(raw, str(path)))


def _document_rows(path: Path) -> Iterator[Row]:
    data = read_document(path).data
    for number, item in enumerate(data if isinstance(data, list) else [data]):
        yield Row(f"{path.name} item {number}", item)


def _line_rows(path: Path) -> Iterator[Row]:
    return (Row(where, _json(line, where)) for where, line in _lines(path) if line.strip())


def _table_rows(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)  # process-wide
    with _open(path) as file:
        text = TextIOWrapper(file, encoding="utf-8-sig", newline="")
        table = csv.DictReader(text, strict=True)
        try:
            for data in table:
                where = f"{path.name} line {table.line_num}"
                names = f"{len(table.fieldnames or ())} fields, as the first line names"
                yield Row(where, list(data.values()) if None in data else data, form=names)
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path.name} after line {table.line_num}"
            raise SchemaError(
                f"{where} is not CSV in UTF-8: {error}", expected="a table with names on top"
            ) from error


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as parquet
    from datasets import Features

    try:
        table = parquet.ParquetFile(path)
        rows = (row for batch in table.iter_batches(batch_size=16) for row in batch.to_pylist())
        yield from _name_classes(rows, Features.from_arrow_schema(table.schema_arrow), path.name)
    except (NotImplementedError, OverflowError, ValueError, OSError) as error:
        raise SchemaError(
            f"{path} is not a Parquet file that can be read: {error}", fix=_AGAIN
        ) from error


def _hub_rows(name: str, split: str) -> Iterator[Row]:
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    try:
        rows = load_dataset(*name.split(":"), split=split, streaming=True)
        yield from _name_classes(rows, rows.features, f"{name} {split}")
    except (OSError, RuntimeError, ValueError, OverflowError, DatasetsError) as error:
        raise InputError(
            f"there is no file {name}, and the split {split!r} of the set of this name "
            f"cannot be read from the Hub: {error}",
            expected="a path, or owner/name",
            fix="give the path of a downloaded file",
        ) from error


def _name_classes(rows: Iterable[Any], features: JsonMapping | None, where: str) -> Iterator[Row]:
    """Yield rows with the names of classes in place of their numbers, None for one without."""
    labels = {key: each.names for key, each in (features or {}).items() if hasattr(each, "int2str")}
    for number, row in enumerate(rows):
        for key, names in labels.items():
            row[key] = dict(enumerate(names)).get(row[key])
        yield Row(f"{where} row {number}", row)


# ------------------------------------------------------------------------------------------------
# instances
# As files, JSON Lines or Parquet, checked field by field; docs/reference/data-format.md shows a
# row. Writing then reading gives equal instances. Optional fields at their default are left out
# (null in Parquet). Bytes are reproducible with the same pyarrow. Metric names are not checked
# here.

PARQUET_NAME = "instances.parquet"
_NOT_STORED = frozenset({"begin", "initial_entries"})
_GROUP_CHARACTERS = 1_000_000  # what a row group holds at most
_GROUP_ROWS = 1_000


@cache
def _fields(kind: type) -> dict[str, tuple[Any, Any]]:
    """Return the stored fields of a data class: type and default."""
    hints = get_type_hints(kind)
    stored = [field for field in fields(kind) if field.name not in _NOT_STORED]
    return {field.name: (hints[field.name], field.default) for field in stored}


def _read_value(kind: Any, row: Row, *, blank: bool = False) -> Any:
    """Return a value as a data class of ``memalpha.types``, or as the type of one of its fields;
    null is as if it were missing.
    """
    if is_dataclass(kind):
        known = _fields(kind)  # type: ignore[arg-type]
        for name, field in row.fields().items():
            if name not in known and field.data is not None:
                raise SchemaError(
                    f"{row.where} field {field.path!r} is unknown", expected=", ".join(known)
                )
        given = {
            name: _read_value(hint, row[name], blank=default == "")
            for name, (hint, default) in known.items()
            if row[name].data is not None or default is MISSING
        }
        return kind(**given)  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_read_value(get_args(kind)[0], item) for item in row.items())
    if NoneType in get_args(kind):
        return _read_value(get_args(kind)[0], row)
    return _value(kind, row, blank=blank)


def _value(kind: Any, row: Row, *, blank: bool) -> Any:
    if kind is int:
        if type(row.data) is not int or row.data < 0:
            raise row.unfit("an integer, 0 or more")
        return row.data
    if issubclass(kind, StrEnum):
        if row.data not in list(kind):
            raise row.unfit(f"one of {', '.join(kind)}")
        return kind(row.data)
    if not row.string() and not blank:
        raise row.unfit("text that is not blank")
    return row.data


def instance_from_json(data: object, where: str, seen: set[str] | None = None) -> Instance:
    """Read the data of one instance; SchemaError with its place if a field is invalid, or its id is
    in ``seen`` (it is added).
    """
    row = Row(where, data)
    instance: Instance = _read_value(Instance, row)
    if not instance.chunks:
        raise row["chunks"].unfit("at least one chunk")
    for question in row["questions"].items():
        if not question["answers"].data:
            raise question["answers"].unfit("at least one answer")
    for chunk in row["chunks"].items():
        if chunk["time"].data is not None and moment(str(chunk["time"].data)) is None:
            raise chunk["time"].unfit(ISO_8601)
    evidence = [place for question in instance.questions for place in question.evidence or ()]
    evidence += [place for question in instance.questions for place in question.outdated]
    places = [*evidence, *(fact.chunk for fact in instance.facts)]
    if max(places, default=0) >= len(instance.chunks):
        raise SchemaError(
            f"{where}: a question's evidence or a fact's chunk is {max(places)}",
            expected=f"from 0 to {len(instance.chunks) - 1}",
        )
    if seen is not None:
        if instance.id in seen:
            raise row["id"].unfit("an id that is unique in its data set")
        seen.add(instance.id)
    return instance


def instance_to_json(value: Any) -> Any:
    """Return an instance (or a part of one) as JSON-ready data; inverse of
    ``instance_from_json``.
    """
    if is_dataclass(value):
        named = ((field, getattr(value, field.name)) for field in fields(value))
        return {
            field.name: instance_to_json(item) for field, item in named if item != field.default
        }
    if isinstance(value, tuple):
        return [instance_to_json(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


def digest_instances(instances: Sequence[Instance]) -> JsonObject:
    """Return counts and a sha256 over all instances in order."""
    digest = hashlib.sha256()
    for instance in instances:
        digest.update(json.dumps(instance_to_json(instance), sort_keys=True).encode())
    return {
        "instances": len(instances),
        "chunks": sum(len(instance.chunks) for instance in instances),
        "questions": sum(len(instance.questions) for instance in instances),
        "sha256": digest.hexdigest(),
    }


def read_instances(path: Path) -> list[Instance]:
    """Read a JSON Lines file; InputError if it is missing or empty, SchemaError if a line is
    invalid or repeats an id.
    """
    seen = set[str]()
    instances = [instance_from_json(row.data, row.where, seen) for row in iter_rows(str(path))]
    if not instances:
        raise InputError(
            f"{path} is empty",
            expected="one instance a line",
            fix="make the folder again with memalpha prepare",
        )
    return instances


def features() -> Any:
    """Return the columns as ``datasets.Features``."""
    from datasets import Features, List, Value

    def feature(hint: Any) -> Any:
        if is_dataclass(hint):
            fields = _fields(hint)  # type: ignore[arg-type]
            return {name: feature(inner) for name, (inner, _) in fields.items()}
        inner = next((kind for kind in get_args(hint) if kind not in (NoneType, ...)), None)
        if inner is None:
            return Value("int32" if hint is int else "string")
        return List(feature(inner)) if get_origin(hint) is tuple else feature(inner)

    return Features(feature(Instance))


def write_parquet(path: Path, instances: Iterable[Instance]) -> None:
    """Write instances to a new file, a row group at a time; SchemaError if one could not be read
    back or repeats an id.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    schema = features().arrow_schema
    rows: list[JsonObject] = []
    characters = 0
    seen: set[str] = set()
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        for number, instance in enumerate(instances):
            row = instance_to_json(instance)
            instance_from_json(row, f"instance {number} ({instance.id!r})", seen)
            rows.append(row)
            characters += sum(len(chunk["text"]) for chunk in row["chunks"])
            if characters >= _GROUP_CHARACTERS or len(rows) >= _GROUP_ROWS:
                file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows = []
                characters = 0
        if rows:
            file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def iter_parquet(path: Path) -> Iterator[Instance]:
    """Read instances one at a time; SchemaError if the file cannot be read or a row is invalid."""
    return (instance_from_json(row.data, row.where) for row in iter_rows(str(path)))
