"""Instances as files, JSON Lines or Parquet, checked field by field; data/README.md shows a row.

Writing then reading gives equal instances. Optional fields at their default are left out (null in
Parquet). Bytes are reproducible with the same pyarrow. Metric names are not checked here.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from memalpha.data.rows import Row, iter_rows
from memalpha.errors import InputError, SchemaError
from memalpha.times import ISO_8601, moment
from memalpha.types import Instance

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


def _read(kind: Any, row: Row, *, blank: bool = False) -> Any:
    """Return a value as a data class of ``memalpha.types``, or as the type of one of its fields;
    null is as if it were missing.
    """
    if is_dataclass(kind):
        known = _fields(kind)  # type: ignore[arg-type]
        for name, field in row.fields().items():
            if name not in known and field.data is not None:
                raise field.unfit(f"one of {', '.join(known)}")
        given = {
            name: _read(hint, row[name], blank=default == "")
            for name, (hint, default) in known.items()
            if row[name].data is not None or default is MISSING
        }
        return kind(**given)  # type: ignore[operator]
    if get_origin(kind) is tuple:
        return tuple(_read(get_args(kind)[0], item) for item in row.items())
    if NoneType in get_args(kind):
        return _read(get_args(kind)[0], row)
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
    instance: Instance = _read(Instance, row)
    if not instance.chunks:
        raise row["chunks"].unfit("at least one chunk")
    for question in row["questions"].items():
        if not question["answers"].data:
            raise question["answers"].unfit("at least one answer")
    for chunk in row["chunks"].items():
        if chunk["time"].data is not None and moment(str(chunk["time"].data)) is None:
            raise chunk["time"].unfit(ISO_8601)
    evidence = [place for question in instance.questions for place in question.evidence or ()]
    places = [*evidence, *(fact.chunk for fact in instance.facts)]
    if max(places, default=0) >= len(instance.chunks):
        what = f"{where}: a question's evidence or a fact's chunk is {max(places)}"
        raise SchemaError(what, expected=f"from 0 to {len(instance.chunks) - 1}")
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


def digest_instances(instances: Sequence[Instance]) -> dict[str, Any]:
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
        fix = "make it again with: memalpha prepare"
        raise InputError(f"{path} is empty", expected="one instance a line", fix=fix)
    return instances


def features() -> Any:
    """Return the columns as ``datasets.Features``."""
    from datasets import Features, List, Value

    def feature(hint: Any) -> Any:
        if is_dataclass(hint):
            return {name: feature(inner) for name, (inner, _) in _fields(hint).items()}  # type: ignore[arg-type]
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
    rows: list[dict[str, Any]] = []
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
