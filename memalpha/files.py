"""Reading and writing of JSON, JSON Lines and YAML files.

A replaced file is never seen half written. NaN and infinity are written as null.
"""

import hashlib
import json
import logging
import math
import os
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from memalpha.errors import InputError, RunFolderError
from memalpha.types import JsonObject

_logger = logging.getLogger(__name__)
_DEEPEST = 64  # levels of nesting in a file of names and values
# a lone surrogate becomes its JSON escape
_UTF8: Any = {"encoding": "utf-8", "errors": "backslashreplace"}


def cache_folder() -> Path:
    """Return the folder of what can be made again: ``$XDG_CACHE_HOME/memalpha``, or of the home."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "memalpha"


def can_write(folder: Path) -> bool:
    """Whether files can be written in a folder, or it can be made."""
    there = folder
    while not there.exists() and there.parent != there:
        there = there.parent
    return there.is_dir() and os.access(there, os.W_OK)


def path_of(name: str, expected: str) -> Path:
    """Return a path, which need not exist.

    InputError if the system cannot check it (name too long, no permission).
    """
    path = Path(name)
    try:
        path.exists()
    except OSError as error:
        raise InputError(
            f"the path {name[:80]!r} cannot be looked up: {error.strerror}", expected=expected
        ) from error
    return path


def inside(folder: Path, name: str) -> Path:
    """Return a path in a folder that somebody else may have made.

    InputError if it or what it links to is elsewhere. A snapshot in the Hub's cache links to the
    blobs beside it, which belong to it.
    """
    root = folder.resolve()
    blobs = (place.parent / "blobs" for place in (root, *root.parents) if place.name == "snapshots")
    place = (root / name).resolve()
    if not any(map(place.is_relative_to, (root, *blobs))):
        raise InputError(
            f"{folder} names {name!r}, which lies outside of the folder",
            expected="a path inside",
            fix="give the path yourself, or copy the file into the folder (cp -rL follows links)",
        )
    return folder / name


def check_folder(folder: Path) -> None:
    """Raise InputError if a link in a folder, or the list of a model's weights, leads out of it."""
    index = folder / "model.safetensors.index.json"
    shards = read_object(index).get("weight_map") if index.is_file() else None
    links = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_symlink()]
    for name in {*links, *(shards.values() if isinstance(shards, dict) else ())}:
        inside(folder, str(name))


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Give a temporary path.

    It replaces ``path`` at the end, so a reader sees the old file or the new one.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: Path) -> Iterator[Path]:
    """Give a new folder that takes the place of ``folder`` at the end, whole or not at all.

    InputError if it cannot be written.
    """
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        old = partial.with_suffix(".old")
        if folder.exists():
            folder.rename(old)
        partial.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be written: {error}",
            expected="a folder that can be made, on a disk with enough space",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_whole(path: Path, text: str) -> None:
    """Write or replace a text file."""
    with replacing(path) as temporary:
        temporary.write_text(text, newline="\n", **_UTF8)


def write_object(path: Path, data: object) -> None:
    """Write or replace a JSON file."""
    write_whole(path, json.dumps(finite(data), indent=2, ensure_ascii=False) + "\n")


def write_yaml(path: Path, data: Mapping[str, object]) -> None:
    """Write or replace a YAML file, sorted by name."""
    write_whole(path, yaml.safe_dump(json.loads(json.dumps(data)), sort_keys=True))


def write_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Write or replace a JSON-lines file."""
    with replacing(path) as temporary, temporary.open("w", **_UTF8) as file:
        file.writelines(map(_line, rows))


def append_lines(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """Append to a JSON-lines file in one write."""
    lines = "".join(map(_line, rows))
    with path.open("a", **_UTF8) as file:
        file.write(lines)


def drop_cut_line(path: Path) -> None:
    """Remove a last line without its line break; nothing if there is no file."""
    data = path.read_bytes() if path.is_file() else b""
    if data and not data.endswith(b"\n"):
        path.write_bytes(data[: data.rfind(b"\n") + 1])


class _YamlLoader(yaml.SafeLoader):
    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not read")
        return super().compose_node(parent, index)


def load_yaml(text: str) -> Any:
    """Read YAML that somebody else may have written; ValueError if it is none, or has aliases."""
    try:
        return yaml.load(text, _YamlLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # also an impossible date
        raise ValueError(f"it is not YAML: {error}") from error


def read_object(path: Path) -> JsonObject:
    """Read a JSON or YAML mapping that somebody else may have written.

    RunFolderError if the file cannot be read, is empty, damaged, not UTF-8, nested too deeply, or
    not a mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        data = json.loads(text) if path.suffix == ".json" else load_yaml(text)
        if not isinstance(data, dict):
            raise ValueError("it is empty" if data is None else f"it holds a {type(data).__name__}")
        if not _flat(data, _DEEPEST):
            raise RecursionError
        return data
    except (OSError, ValueError, RecursionError) as error:
        wrong = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise RunFolderError(
            f"{path} is damaged: {wrong}",
            expected="names and values as they were written",
            fix="restore the file from a copy, or make its folder again with --overwrite",
        ) from error


def _flat(data: object, levels: int) -> bool:
    """Whether data is nested at most so deep, so that it can be checked, shown and written."""
    items = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    return levels > 0 and all(_flat(item, levels - 1) for item in items)


def read_lines(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """Iterate over the objects of a JSON-lines file, each with its place (file and line number);
    nothing if the file is missing.

    A last line without its line break, which its writer did not finish, is left out with a warning.
    InputError for a line that is damaged.
    """
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    for number, line in enumerate(lines, 1):
        where = f"{path}, line {number}"
        if not line.endswith(b"\n"):
            _logger.warning(
                "%s ends in an incomplete line, from a run that was killed or is still running",
                path,
            )
            return
        try:
            row = json.loads(line.decode("utf-8"))
            if not isinstance(row, dict):
                raise ValueError(f"it holds a {type(row).__name__}")
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{where} is damaged: {error}", expected="one JSON object a line"
            ) from error
        yield where, row


def finite(value: Any) -> Any:
    """Return the data with None for every NaN or infinite number."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(item) for key, item in value.items()}
    return [finite(item) for item in value] if isinstance(value, list | tuple) else value


def flush(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _line(row: Mapping[str, object]) -> str:
    return json.dumps(finite(row), ensure_ascii=False) + "\n"
