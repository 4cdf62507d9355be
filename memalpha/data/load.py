"""Loads instances by name: a prepared folder, a JSON Lines or Parquet file, or a generated source; several with commas."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memalpha.data.prepare import MANIFEST_NAME, load_prepared
from memalpha.data.registry import SOURCES, get_source
from memalpha.data.schema import iter_parquet, read_instances
from memalpha.errors import InputError
from memalpha.types import Instance


def load_data(names: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> list[Instance]:
    """Return the instances of one or more sources (``options``: of the first); InputError as ``load_one``, or if ids repeat."""
    instances = [
        instance for i, name in enumerate(source_names(names)) for instance in load_one(name, None if i else options, seed)
    ]
    if twice := next((id for id, times in Counter(instance.id for instance in instances).items() if times > 1), None):
        raise InputError(
            f"two instances of {names!r} are called {twice!r}",
            expected="ids that are unique over all training (or evaluation) data",
            fix="prepare one of the sets with another seed",
        )
    return instances


def source_names(names: str) -> list[str]:
    """Split names separated by commas; an existing path is one name."""
    return [names] if Path(names).exists() else [name.strip() for name in names.split(",")]


def load_one(name_or_path: str, options: Mapping[str, Any] | None = None, seed: int = 0) -> list[Instance]:
    """Return the instances of a prepared folder, an instance file, or a generated source; InputError if none or wrong."""
    path = Path(name_or_path)
    generated = [name for name, source in SOURCES.items() if not source.needs_input]
    if name_or_path in generated and not path.exists():
        values = dict(options or {})
        result = get_source(name_or_path).load(None, values, int(values.pop("seed", seed)))
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
