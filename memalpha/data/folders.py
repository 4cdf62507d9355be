"""Folders that appear whole or not at all."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from memalpha.errors import InputError


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Give a new folder beside ``folder`` that takes its place at the end, or is removed if anything is raised before.

    Raises:
        InputError: If it cannot be made or written there.
    """
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        if folder.exists():
            old = partial.with_suffix(".old")
            folder.rename(old)
            partial.rename(folder)
            shutil.rmtree(old)
        else:
            partial.rename(folder)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error}", expected="a folder that can be made there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
