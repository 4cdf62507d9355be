"""Origin of a run: command, code, libraries, machine, time.

``masked`` removes secrets; ``environment.json`` and ``config.yaml`` of a run pass through it.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from memalpha.version import __version__

_PACKAGES = ("memalpha", "torch", "transformers", "trl", "peft", "accelerate", "datasets", "faiss-cpu", "numpy")
_NAMES = r"token(?!s|i)|key(?!word)|secret|passw|authorization|credential"  # not view_tokens, tokenizer
_SECRET = re.compile(_NAMES, re.IGNORECASE)
_EXTRA = re.compile("extra", re.IGNORECASE)  # request fields of an endpoint, which may hold credentials
_PASSWORD = re.compile(r"(://(?:[^/\s:@]*:)?)[^/\s]+@")  # of an address; a name alone may be a token
_BARE = re.compile(r"\b(?:hf_|sk-)[A-Za-z0-9_-]{16,}")  # a service's key, wherever it stands
_QUERY = re.compile(rf"([?&][^=&\s]*(?:{_NAMES})[^=&\s]*=)[^&\s]+", re.IGNORECASE)


def environment(world_size: int = 1) -> dict[str, Any]:
    """Describe code, versions, machine, command (without secrets) and time of a run."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {
        "command": masked_command(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "world_size": world_size,
        "packages": versions,
        "code": code_version(),
    }


def masked(value: Any, name: str = "") -> Any:
    """Return a configuration, or the value of the option ``name``, with secrets replaced by ``<NAME>``.

    Secrets are values whose name contains token (not ``tokens``), key, secret or password, every text inside a mapping called
    extra, the password or lone name and the secret query fields of an address, and keys such as hf_... Masking twice changes
    nothing.
    """
    if value in (None, "") or isinstance(value, bool):
        return value
    extra, hidden = _EXTRA.search(name), f"<{name.removeprefix('extra ').upper()}>"
    if _SECRET.search(name):
        return hidden
    if isinstance(value, Mapping):  # below extra, every name counts as extra
        return {key: masked(item, f"extra {key}" if extra else str(key)) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if (found := _mapping(value)) is not None:
        inside = masked(found, name)
        return value if inside == found else yaml.safe_dump(inside, default_flow_style=True, width=10_000).strip()
    if extra:
        return hidden
    return _BARE.sub("***", _QUERY.sub(r"\1***", _PASSWORD.sub(r"\1***@", value)))


def masked_command(words: Sequence[str]) -> list[str]:
    """Return the words of a command, with the values of its options masked."""
    found, name = [], ""
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            name = flag[2:]
            found.append(f"{flag}={masked(value, name)}" if equals else word)
        else:
            found.append(masked(word, name))
    return found


def code_version() -> str:
    """Return the commit of this checkout, with ``+changes`` if files differ from it; else the release."""
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
    """Return a command without absolute paths, starting with ``memalpha`` however it was started."""
    program, *rest = map(nameless, command)
    return ["memalpha" if program == "__main__.py" else program, *rest]


def nameless(word: str) -> str:
    """Replace each absolute path in a word, also after ``--name=`` or a comma, by its last part."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    parts = (Path(part).name if Path(part.strip()).is_absolute() else part for part in value.split(","))
    return f"{flag}{equals}{','.join(parts)}"


def _mapping(text: str) -> dict[str, Any] | None:
    """A mapping written as text, such as ``{a: 1}``; else None."""
    try:
        found = yaml.safe_load(text) if text.lstrip().startswith("{") else None
    except yaml.YAMLError:
        return None
    return found if isinstance(found, dict) else None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
