"""Where numbers come from: command, code, libraries, machine, time."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from memalpha.version import __version__

_PACKAGES = ("memalpha", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "faiss-cpu", "numpy")


def environment(world_size: int = 1) -> dict[str, Any]:
    """Describe what a run runs on: code, versions, machine, command, time."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": sys.argv,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "world_size": world_size,
        "packages": versions,
        "code": code_version(),
    }


def code_version() -> str:
    """Return the commit of the checkout this code runs from, with ``+changes`` if files differ from it; else the release."""
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True, timeout=30)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return f"release {__version__}"
        return git("rev-parse", "--short=12", "HEAD") + ("+changes" if git("status", "--porcelain", "--", "memalpha") else "")
    except (OSError, subprocess.SubprocessError):
        return f"release {__version__}"


def portable(command: Sequence[str]) -> list[str]:
    """A command with programs and files by their names, and this package as ``memalpha``, however it was started."""
    program, *rest = map(nameless, command)
    return ["memalpha" if program == "__main__.py" else program, *rest]


def nameless(word: str) -> str:
    """A word of a command, or an option's value: of each absolute path in it, also after ``--name=`` or a comma, the last part."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    parts = (Path(part).name if Path(part.strip()).is_absolute() else part for part in value.split(","))
    return f"{flag}{equals}{','.join(parts)}"


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
