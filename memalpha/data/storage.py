"""Instances as Parquet, written and read in pieces, with the columns that ``datasets`` gives them.

The columns are those of the JSON form (``memalpha.data.schema``), all of them in each row, an absent value as null. The file
carries the ``datasets`` features, so ``datasets.load_dataset("parquet", data_files=...)`` reads the same columns.

What always holds: reading what was written gives equal instances; the same instances give the same bytes with the same pyarrow;
memory is bounded by about a million characters or one instance, whichever is more, while writing and reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from memalpha.data.schema import instance_from_json, instance_to_json
from memalpha.errors import InputError, SchemaError
from memalpha.types import Instance

PARQUET_NAME = "instances.parquet"
"""The instances' file in a prepared folder."""

_GROUP_CHARACTERS = 1_000_000
_GROUP_ROWS = 1_000


def features() -> Any:
    """Return the columns, as ``datasets.Features``."""
    from datasets import Features, List, Value

    text, number = Value("string"), Value("int32")
    question = {
        "text": text,
        "answers": List(text),
        "metric": text,
        "kind": text,
        "subject": text,
        "stale": List(text),
        "evidence": List(number),
        "id": text,
    }
    fact = {"chunk": number, "action": text, "subject": text, "attribute": text, "value": text, "previous": text}
    chunk = {"text": text, "time": text}
    return Features({"id": text, "source": text, "chunks": List(chunk), "questions": List(question), "facts": List(fact)})


class InstanceWriter:
    """Writes instances to a new Parquet file, a row group at a time; a context manager.

    Raises:
        SchemaError: From ``write``, if an instance would not be read back, or its id was used before.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as parquet

        self._schema = features().arrow_schema
        self._file = parquet.ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._characters = self._written = 0
        self._ids = set[str]()

    def write(self, instance: Instance) -> None:
        """Write one instance."""
        row, where = instance_to_json(instance), f"instance {self._written} ({instance.id!r})"
        instance_from_json(row, where)
        if instance.id in self._ids:
            raise SchemaError(f"{where}: its id was used before", expected="an id that is unique in its data set")
        self._ids.add(instance.id)
        self._rows.append(row)
        self._written += 1
        self._characters += sum(len(chunk.text) for chunk in instance.chunks)
        if self._characters >= _GROUP_CHARACTERS or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow

        if self._rows:
            self._file.write_table(pyarrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._characters = [], 0

    def __enter__(self) -> InstanceWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._flush()
        self._file.close()


def iter_parquet(path: Path) -> Iterator[Instance]:
    """Read instances one at a time.

    Raises:
        InputError: If the file cannot be read.
        SchemaError: If it is no Parquet file, or a row is no instance.
    """
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    yield instance_from_json(row, f"{path} row {number}")
                    number += 1
    except pyarrow.ArrowInvalid as error:
        raise SchemaError(f"{path} is not a Parquet file: {error}", expected="a file that memalpha prepare wrote") from error
    except OSError as error:
        raise InputError(f"cannot read {path}: {error}", expected="a file that memalpha prepare wrote") from error
