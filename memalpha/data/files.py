"""Paths and bytes of data files: what every reader of them shares.

What always holds: a name that the system refuses, and bytes that cannot be read, are one InputError that names the file; a name
goes into messages and ids as text that can be written, whatever its bytes.
"""

from __future__ import annotations

import codecs
import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import IO

from memalpha.errors import InputError
from memalpha.files import path_of


def data_path(source: str) -> Path:
    """Return the path of a source, there or not; InputError where it cannot even be looked for (``memalpha.files.path_of``)."""
    return path_of(source, "the path of a file, or owner/name on the Hub")


def file_name(path: Path) -> str:
    """Return a file's name without its folder, bytes that are not UTF-8 replaced."""
    return os.fsencode(path.name).decode("utf-8", errors="replace")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a file is read into one InputError."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}", expected="a JSON file in UTF-8") from error
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path}: {error}", expected="a file that is whole", fix="download it again") from error


def packed_or_not(path: Path) -> Path:
    """Return the path of a file that is there, the one given or else that with ``.gz`` or without; if neither is, the one given."""
    other = path.with_suffix("") if path.suffix.lower() == ".gz" else path.with_name(f"{path.name}.gz")
    return other if other.is_file() and not path.is_file() else path


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file, unpacked where its name ends in ``.gz``."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def decoded_lines(path: Path) -> Iterator[str]:
    r"""Read a text line by line, line ends kept (``\n``, ``\r\n``, or ``\r`` alone, as old systems end theirs).

    Lines that are not UTF-8 are read as Latin-1.
    """
    with reading(path), open_bytes(path) as file:
        # Latin-1 stands for the bytes themselves: lines are cut as they stream, whatever ends them, and each is decoded alone.
        for number, line in enumerate(TextIOWrapper(file, encoding="latin-1", newline="")):
            raw = line.encode("latin-1")
            raw = raw if number else raw.removeprefix(codecs.BOM_UTF8)
            try:
                yield raw.decode("utf-8")
            except UnicodeDecodeError:
                yield raw.decode("latin-1")
