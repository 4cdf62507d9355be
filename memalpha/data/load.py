"""Instances by one name: a prepared folder, a file of instances (JSON Lines or Parquet), or a generated source."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memalpha.data.prepare import MANIFEST_NAME, load_prepared
from memalpha.data.registry import SOURCES, get_source
from memalpha.data.schema import read_instances
from memalpha.data.storage import iter_parquet
from memalpha.errors import InputError
from memalpha.memory.store import count_words
from memalpha.types import Instance


def load_data(name_or_path: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> list[Instance]:
    """Return instances.

    Args:
        name_or_path: Folder that ``memalpha prepare`` wrote (its checksum is verified), path of a JSON Lines or Parquet file of
            instances, or the name of a source that generates its data.
        options: Options of a generated source.
        seed: Seed of a generated source; the option ``seed`` goes before it.

    Raises:
        InputError: If there is neither such a path nor such a source, or the data do not fit.
    """
    path = Path(name_or_path)
    generated = [name for name, source in SOURCES.items() if not source.needs_input]
    if name_or_path in generated and not path.exists():
        values = dict(options or {})
        result = get_source(name_or_path).load(None, values, int(values.pop("seed", seed)), count_words)
        return list(result.instances)
    if not path.exists():
        raise InputError(
            f"no data at {name_or_path!r}",
            expected=f"a prepared folder, an instances.jsonl, or a generated source ({', '.join(generated)})",
            fix="make it with memalpha prepare",
        )
    if options:
        raise InputError(f"options {dict(options)} are given for {name_or_path!r}", expected="options only for generated sources")
    if (path / MANIFEST_NAME).is_file():
        return list(load_prepared(path).instances)
    if path.suffix == ".parquet":
        return list(iter_parquet(path))
    return read_instances(path)
