"""The data sources, and loading of instances by name: a prepared folder, a file of instances, or a
generated source.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memalpha import __version__
from memalpha.data import (
    articles,
    classification,
    dialogues,
    documents,
    natural,
    sgd,
    synthetic,
    toy,
)
from memalpha.data.schema import PARQUET_NAME, iter_parquet, read_instances
from memalpha.data.source import Source
from memalpha.errors import InputError, SchemaError
from memalpha.files import file_sha256
from memalpha.types import Instance

MANIFEST_NAME = "manifest.json"
SOURCES: dict[str, Source] = {
    source.name: source
    for module in (articles, classification, dialogues, documents, natural, sgd, synthetic, toy)
    for source in module.SOURCES
}


def get_source(name: str) -> Source:
    """Return a source; InputError lists all names if there is none."""
    if name not in SOURCES:
        raise InputError(
            f"unknown data source {name!r}", expected=f"one of {', '.join(sorted(SOURCES))}"
        )
    return SOURCES[name]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents and origin of a prepared folder; data/README.md describes the fields."""

    source: str
    input: str | None
    instances: int
    chunks: int
    questions: int
    skipped: dict[str, int]
    tokens: dict[str, int]
    token_counter: str
    sha256: str
    seed: int
    options: dict[str, Any]
    notes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    asked: int = 0
    checked_against: list[str] = field(default_factory=list)
    version: str = __version__


def read_manifest(folder: str | Path) -> Manifest:
    """Read a prepared folder's manifest; InputError if it is missing or invalid."""
    path = Path(folder) / MANIFEST_NAME
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        fix = "make one with: memalpha prepare"
        raise InputError(
            f"{folder} has no {MANIFEST_NAME}", expected="a prepared folder", fix=fix
        ) from error
    except (ValueError, TypeError) as error:
        raise SchemaError(
            f"{path} is not a manifest: {error}", expected="an object as memalpha prepare writes it"
        ) from error


def iter_prepared(folder: str | Path) -> Iterator[Instance]:
    """Yield the instances of a prepared folder; InputError if it is missing or not what its
    manifest says.
    """
    manifest, path, fix = (
        read_manifest(folder),
        Path(folder) / PARQUET_NAME,
        "prepare it again with overwrite",
    )
    if not path.is_file():
        raise InputError(f"{folder} has no {PARQUET_NAME}", expected="a prepared folder", fix=fix)
    if (found := file_sha256(path)) != manifest.sha256:
        raise InputError(
            f"{path} has sha256 {found}",
            expected=f"{manifest.sha256}, as its manifest says",
            fix=fix,
        )
    return iter_parquet(path)


def load_data(
    names: str, options: Mapping[str, Any] | None = None, seed: int = 0
) -> list[Instance]:
    """Return the instances of one or more sources (``options``: of the first); InputError as
    ``load_one``, or if ids repeat.
    """
    loaded = (
        load_one(name, None if i else options, seed) for i, name in enumerate(source_names(names))
    )
    instances = [instance for some in loaded for instance in some]
    if twice := next(
        (id for id, times in Counter(instance.id for instance in instances).items() if times > 1),
        None,
    ):
        fix = "prepare one of the sets with another seed"
        raise InputError(
            f"two instances of {names!r} are called {twice!r}",
            expected="ids that are unique over all data",
            fix=fix,
        )
    return instances


def source_names(names: str) -> list[str]:
    """Split names separated by commas; an existing path is one name."""
    return [names] if Path(names).exists() else [name.strip() for name in names.split(",")]


def load_one(
    name_or_path: str, options: Mapping[str, Any] | None = None, seed: int = 0
) -> list[Instance]:
    """Return the instances of a prepared folder, an instance file, or a generated source;
    InputError if none or wrong.
    """
    path = Path(name_or_path)
    generated = [name for name, source in SOURCES.items() if not source.needs_input]
    if name_or_path in generated and not path.exists():
        values = dict(options or {})
        return list(
            get_source(name_or_path).load(None, values, int(values.pop("seed", seed))).instances
        )
    if not path.exists():
        expected = (
            f"a prepared folder, an instances.jsonl, or a generated source ({', '.join(generated)})"
        )
        raise InputError(
            f"no data at {name_or_path!r}", expected=expected, fix="make it with memalpha prepare"
        )
    if options:
        raise InputError(
            f"options {dict(options)} are given for {name_or_path!r}",
            expected="options only for generated sources",
        )
    if (path / MANIFEST_NAME).is_file():
        return list(iter_prepared(path))
    return list(iter_parquet(path)) if path.suffix == ".parquet" else read_instances(path)
