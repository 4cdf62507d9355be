"""Instances as files: JSON Lines or Parquet, read lazily and checked field by field.

One line or row is ``{"id", "source", "chunks": [{"text", "time"?}], "questions": [{"text", "answers", "metric"?, "kind"?,
"subject"?, "stale"?, "evidence"?, "id"?}], "facts"?: [{"chunk", "action", "subject", "attribute", "value", "previous"?}]}``.
Writing then reading gives equal instances. Optional fields at their default are left out (null in Parquet). Errors are SchemaError
with file, line or row, and field. Bytes are reproducible with the same pyarrow. Parquet carries ``datasets`` features. Metric names
are not checked here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from memalpha.data.fields import checked
from memalpha.errors import InputError, SchemaError
from memalpha.files import replacing
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

FILE_NAME = "instances.jsonl"

PARQUET_NAME = "instances.parquet"

_GROUP_CHARACTERS = 1_000_000
_GROUP_ROWS = 1_000


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
        return {key: value for key, value in data.items() if value is not None} if isinstance(data, Mapping) else data


class _Chunk(_Row):
    text: _Text
    time: _Text | None = None


class _Question(_Row):
    text: _Text
    answers: Annotated[tuple[_Text, ...], Field(min_length=1)]
    metric: _Text = "substring"
    kind: _Text = "single"
    subject: _Text | None = None
    stale: tuple[_Text, ...] = ()
    evidence: tuple[_Index, ...] | None = None
    id: str = ""


class _Fact(_Row):
    chunk: _Index
    action: FactAction
    subject: _Text
    attribute: _Text
    value: _Text
    previous: _Text | None = None


class _Instance(_Row):
    id: _Text
    source: _Text
    chunks: Annotated[tuple[_Chunk, ...], Field(min_length=1)]
    questions: tuple[_Question, ...]
    facts: tuple[_Fact, ...] = ()


def instance_from_json(data: Any, where: str) -> Instance:
    """Read the data of one instance; SchemaError with its place if a field is invalid."""
    row = checked(_Instance, data, f"{where}:")
    places = [("evidence", place) for question in row.questions for place in question.evidence or ()]
    for name, place in [*places, *(("chunk", fact.chunk) for fact in row.facts)]:
        if place >= len(row.chunks):
            raise SchemaError(f"{where}: {name} is {place}", expected=f"a chunk's index, from 0 to {len(row.chunks) - 1}")
    return Instance(
        row.id,
        row.source,
        tuple(Chunk(**dict(chunk)) for chunk in row.chunks),
        tuple(Question(**dict(question)) for question in row.questions),
        tuple(Fact(**dict(fact)) for fact in row.facts),
    )


def instance_to_json(instance: Instance) -> dict[str, Any]:
    """Return an instance as JSON-ready data; inverse of ``instance_from_json``."""
    row: dict[str, Any] = _to_json(instance)
    return row


def _to_json(value: Any) -> Any:
    if is_dataclass(value):
        named = ((field, getattr(value, field.name)) for field in fields(value))
        return {field.name: _to_json(item) for field, item in named if item != field.default}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
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


def _rows_to_write(instances: Iterable[Instance]) -> Iterator[dict[str, Any]]:
    seen = set[str]()
    for number, instance in enumerate(instances):
        row, where = instance_to_json(instance), f"instance {number} ({instance.id!r})"
        instance_from_json(row, where)
        _check_new(instance.id, seen, where)
        yield row


def _check_new(instance_id: str, seen: set[str], where: str) -> None:
    if instance_id in seen:
        raise SchemaError(f"{where}: id {instance_id!r} was used before", expected="an id that is unique in its data set")
    seen.add(instance_id)


def iter_instances(path: str | Path) -> Iterator[Instance]:
    """Read instances one at a time from a JSONL file, or from ``instances.jsonl`` in a folder.

    InputError if the file is missing (at once), empty or not text; SchemaError if a line is invalid or repeats an id.
    """
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    if not file.is_file():
        expected = f"a JSONL file of instances, or a folder that holds {FILE_NAME}"
        raise InputError(f"no file {file}", expected=expected, fix="make one with: memalpha prepare")
    return _iter_lines(file)


def read_instances(path: str | Path) -> list[Instance]:
    """Read all instances of a file; see ``iter_instances``."""
    return list(iter_instances(path))


def write_instances(path: str | Path, instances: Iterable[Instance]) -> Path:
    """Write instances as JSONL atomically; a folder means the ``instances.jsonl`` inside it.

    InputError if there is no instance or the path cannot be written; SchemaError if an instance could not be read back.
    """
    target = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    if not (lines := [json.dumps(row, ensure_ascii=False) + "\n" for row in _rows_to_write(instances)]):
        raise InputError(f"no instances to write to {target}", expected="at least one instance")
    try:
        with replacing(target) as partial:
            partial.write_text("".join(lines), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {target}: {error}", expected="a path that can be written") from error
    return target


def _iter_lines(file: Path) -> Iterator[Instance]:
    seen = set[str]()
    with file.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            where = f"{file} line {number}"
            if not raw.strip():
                continue
            try:
                data = json.loads(raw.decode("utf-8-sig"))
            except (ValueError, RecursionError) as error:
                raise SchemaError(f"{where} is not JSON: {error}", expected="one JSON object a line, in UTF-8") from error
            instance = instance_from_json(data, where)
            _check_new(instance.id, seen, where)
            yield instance
    if not seen:
        raise InputError(f"{file} is empty", expected="one instance a line", fix="make it again with: memalpha prepare")


def features() -> Any:
    """Return the columns as ``datasets.Features``."""
    from datasets import Features, List, Value

    def feature(hint: Any) -> Any:
        if is_dataclass(hint):
            return {name: feature(inner) for name, inner in get_type_hints(hint).items()}
        inner = next((kind for kind in get_args(hint) if kind not in (NoneType, ...)), None)
        if inner is None:
            return Value("int32" if hint is int else "string")
        return List(feature(inner)) if get_origin(hint) is tuple else feature(inner)

    return Features(feature(Instance))


def write_parquet(path: Path, instances: Iterable[Instance]) -> None:
    """Write instances to a new file; SchemaError if one could not be read back or repeats an id.

    Buffers about a million characters, or one instance if that is larger.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    schema = features().arrow_schema
    rows: list[dict[str, Any]] = []
    characters = 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as file:
        for row in _rows_to_write(instances):
            rows.append(row)
            characters += sum(len(chunk["text"]) for chunk in row["chunks"])
            if characters >= _GROUP_CHARACTERS or len(rows) >= _GROUP_ROWS:
                file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
                rows, characters = [], 0
        if rows:
            file.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def iter_parquet(path: Path) -> Iterator[Instance]:
    """Read instances one at a time; InputError if the file cannot be read, SchemaError if it or a row is invalid."""
    import pyarrow
    import pyarrow.parquet as parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    yield instance_from_json(row, f"{path} row {number}")
                    number += 1
    except pyarrow.ArrowInvalid as error:
        raise SchemaError(f"{path} is not a Parquet file: {error}", expected="a file that memalpha prepare wrote") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}", expected="a file that memalpha prepare wrote") from error
