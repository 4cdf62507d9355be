"""Instances as files, JSON Lines or Parquet, checked field by field; data/README.md shows a row.

Writing then reading gives equal instances. Optional fields at their default are left out (null in
Parquet). Bytes are reproducible with the same pyarrow. Metric names are not checked here.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, create_model, model_validator

from memalpha.data.rows import checked, iter_rows
from memalpha.errors import InputError, SchemaError
from memalpha.times import ISO_8601, moment
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

PARQUET_NAME = "instances.parquet"
_NOT_STORED = frozenset({"begin", "held"})
_GROUP_CHARACTERS, _GROUP_ROWS = 1_000_000, 1_000  # what a row group holds at most


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("expected text that is not blank")
    text.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return text


_Text = Annotated[str, AfterValidator(_not_blank)]
_Index = Annotated[int, Field(strict=True, ge=0)]


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, data: Any) -> Any:
        return (
            {key: value for key, value in data.items() if value is not None}
            if isinstance(data, Mapping)
            else data
        )


def _model(kind: type) -> Any:

    def checked_hint(hint: Any, default: Any = None) -> Any:
        if is_dataclass(hint):
            return _model(hint)  # type: ignore[arg-type]
        if get_origin(hint) is tuple:
            return tuple[checked_hint(get_args(hint)[0]), ...]  # type: ignore[misc]
        if NoneType in get_args(hint):
            return checked_hint(get_args(hint)[0]) | None
        return {str: str if default == "" else _Text, int: _Index}.get(hint, hint)

    hints, definitions = get_type_hints(kind), dict[str, Any]()
    for field in (field for field in fields(kind) if field.name not in _NOT_STORED):
        known = ... if field.default is MISSING else field.default
        definitions[field.name] = (checked_hint(hints[field.name], known), known)
    return create_model(kind.__name__, __base__=_Row, **definitions)


_INSTANCE = _model(Instance)


def instance_from_json(data: Any, where: str, seen: set[str] | None = None) -> Instance:
    """Read the data of one instance; SchemaError with its place if a field is invalid, or its id is
    in ``seen`` (it is added).
    """
    row = checked(_INSTANCE, data, f"{where}:")
    if not row.chunks or not all(question.answers for question in row.questions):
        raise SchemaError(
            f"{where} has no chunk, or a question without answers", expected="at least one of each"
        )
    wrong = [
        chunk.time for chunk in row.chunks if chunk.time is not None and moment(chunk.time) is None
    ]
    if wrong:
        raise SchemaError(f"{where}: time is {wrong[0]!r:.60}", expected=ISO_8601)
    places = [
        ("evidence", place) for question in row.questions for place in question.evidence or ()
    ]
    for name, place in [*places, *(("chunk", fact.chunk) for fact in row.facts)]:
        if place >= len(row.chunks):
            raise SchemaError(
                f"{where}: {name} is {place}",
                expected=f"a chunk's index, from 0 to {len(row.chunks) - 1}",
            )
    if seen is not None:
        if row.id in seen:
            raise SchemaError(
                f"{where}: id {row.id!r} was used before",
                expected="an id that is unique in its data set",
            )
        seen.add(row.id)
    chunks = tuple(Chunk(**dict(chunk)) for chunk in row.chunks)
    questions = tuple(Question(**dict(question)) for question in row.questions)
    return Instance(
        row.id, row.source, chunks, questions, tuple(Fact(**dict(fact)) for fact in row.facts)
    )


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
    return value.value if isinstance(value, FactAction) else value


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
    if not (
        instances := [instance_from_json(data, where, seen) for where, data in iter_rows(str(path))]
    ):
        raise InputError(
            f"{path} is empty",
            expected="one instance a line",
            fix="make it again with: memalpha prepare",
        )
    return instances


def features() -> Any:
    """Return the columns as ``datasets.Features``."""
    from datasets import Features, List, Value

    def feature(hint: Any) -> Any:
        if is_dataclass(hint):
            return {
                name: feature(inner)
                for name, inner in get_type_hints(hint).items()
                if name not in _NOT_STORED
            }
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

    schema, rows, characters, seen = features().arrow_schema, list[dict[str, Any]](), 0, set[str]()
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        for number, instance in enumerate(instances):
            row = instance_to_json(instance)
            instance_from_json(row, f"instance {number} ({instance.id!r})", seen)
            rows.append(row)
            characters += sum(len(chunk["text"]) for chunk in row["chunks"])
            if characters >= _GROUP_CHARACTERS or len(rows) >= _GROUP_ROWS:
                file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows, characters = [], 0
        if rows:
            file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def iter_parquet(path: Path) -> Iterator[Instance]:
    """Read instances one at a time; SchemaError if the file cannot be read or a row is invalid."""
    return (instance_from_json(data, where) for where, data in iter_rows(str(path)))
