"""Checkpoints that are whole or not there.

A checkpoint is written under another name, every file is hashed and flushed to disk, and only then the folder gets its name. What
always holds: a folder named ``checkpoint-N`` was finished, unless something damaged it since, which :func:`damage` finds; an older
checkpoint is removed only after a newer one is finished.

Not covered: file systems that several nodes do not share.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from memalpha.files import file_sha256, flush

SEAL = "memalpha_checkpoint.json"
"""Size and SHA-256 of every other file of the checkpoint."""

UNFINISHED = ".unfinished"
"""Where a checkpoint is written, inside the run folder."""


def publish(unfinished: Path, final: Path) -> None:
    """Seal a written checkpoint and give it its name, replacing what has that name.

    Args:
        unfinished: The folder as written, on the same file system as ``final``.
        final: ``checkpoint-N`` in the run folder.
    """
    files = {str(path.relative_to(unfinished)): _describe(path) for path in sorted(unfinished.rglob("*")) if path.is_file()}
    seal = unfinished / SEAL
    seal.write_text(json.dumps(files, indent=1) + "\n", encoding="utf-8")
    for path in [*unfinished.rglob("*"), unfinished]:
        flush(path)
    if final.exists():
        shutil.rmtree(final)
    unfinished.rename(final)
    flush(final.parent)


def damage(checkpoint: Path) -> str:
    """Return what is wrong with a checkpoint; empty if every file is as it was written."""
    try:
        files = json.loads((checkpoint / SEAL).read_text(encoding="utf-8"))
        described = [(name, int(row["bytes"]), str(row["sha256"])) for name, row in files.items()]
    except FileNotFoundError:
        return f"{SEAL} is missing: it was not finished"
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{SEAL} cannot be read"
    for name, size, digest in described:
        path = checkpoint / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if file_sha256(path) != digest:
            return f"{name} has other content than was written"
    return ""


def newest_whole(checkpoints: Sequence[Path]) -> tuple[Path | None, dict[str, str]]:
    """Return the newest undamaged checkpoint, and what is wrong with each newer one, by name.

    Args:
        checkpoints: In order of their step.
    """
    damaged: dict[str, str] = {}
    for path in reversed(checkpoints):
        if not (reason := damage(path)):
            return path, damaged
        damaged[path.name] = reason
    return None, damaged


def keep_newest(checkpoints: Sequence[Path], limit: int | None) -> None:
    """Remove all but the newest ``limit`` of the checkpoints given in order of their step; None, 0 or less keeps all."""
    for path in checkpoints[:-limit] if limit and limit > 0 else []:
        shutil.rmtree(path)


def _describe(path: Path) -> dict[str, object]:
    return {"bytes": path.stat().st_size, "sha256": file_sha256(path)}


__all__ = ["SEAL", "UNFINISHED", "damage", "keep_newest", "newest_whole", "publish"]
