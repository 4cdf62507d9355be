"""The run folder: everything that happened in a run, as files that other tools read; and where its
numbers come from.

``config.yaml`` (options without secrets), ``environment.json``, ``metrics.jsonl`` (a line a step),
``trajectories/`` (a file a step and rank), ``held_out/`` (``before``, ``after`` and each ``step-N``
that was validated), ``checkpoint-N/``, ``adapter/``,
``summary.json``. An existing run folder is never touched unless it is to be overwritten or resumed.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from memalpha import __version__
from memalpha.errors import InputError, RunFolderError
from memalpha.files import (
    append_lines,
    drop_cut_line,
    load_yaml,
    parse_line,
    read_object,
    write_lines,
    write_object,
    write_yaml,
)

logger = logging.getLogger(__name__)

_MARKER = "config.yaml"
_TRAJECTORY = re.compile(r"step-[0-9]+-rank-[0-9]+")


class RunFolder:
    """An existing run folder at ``path``; RunFolderError if there is none."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with _clear_errors(self.path):
            is_run = (self.path / _MARKER).is_file()
        RunFolderError.raise_if(
            not is_run,
            f"{str(path)!r} is no run folder",
            expected=f"one with {_MARKER}, as memalpha train writes it",
        )

    @classmethod
    def create(
        cls, path: str | Path, config: Any, *, overwrite: bool = False, resume: bool | None = None
    ) -> RunFolder:
        """Make a run folder, or open one (``resume``); RunFolderError as in ``check_free``, or
        nothing to resume.
        """
        folder = Path(path)
        RunFolderError.raise_if(
            overwrite and resume, "both overwrite and resume are given", expected="one of them"
        )
        if resume:
            return cls(folder)
        exists = cls.check_free(folder, overwrite=overwrite, resumable=resume is not None)
        with _clear_errors(folder):
            if exists:
                shutil.rmtree(folder)
            write_yaml(folder / _MARKER, masked(config))
        return cls(folder)

    @staticmethod
    def check_free(folder: Path, *, overwrite: bool, resumable: bool = False) -> bool:
        """Return whether a new run folder replaces a run; RunFolderError if it may not, or no
        folder can be made there.
        """
        if not holds_something(folder):
            return False
        RunFolderError.raise_if(
            not (folder / _MARKER).is_file(),
            f"{str(folder)!r} exists already and is no run folder",
            expected="a new folder or a run's",
            fix="choose another --output_dir",
        )
        RunFolderError.raise_if(
            not overwrite,
            f"{str(folder)!r} exists already",
            expected="a new folder",
            fix="add --overwrite or --resume"
            if resumable
            else "add --overwrite, or choose another --output_dir",
        )
        return True

    @property
    def config(self) -> dict[str, Any]:
        """The resolved options of the run; RunFolderError if they cannot be read."""
        return read_object(self.path / _MARKER)

    @property
    def is_evaluation(self) -> bool:
        """Whether ``memalpha evaluate`` wrote the folder: its layout differs."""
        return {"sets", "systems", "readers"} <= self.config.keys()

    def check_training(self) -> None:
        """Raise RunFolderError for the folder of an evaluation."""
        RunFolderError.raise_if(
            self.is_evaluation,
            f"{str(self.path)!r} is the folder of an evaluation",
            expected="of a training run",
            fix=f"its numbers are in {self.path / 'table.md'}; memalpha evaluate --config {self.path / _MARKER} goes on with it",
        )

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file of the run."""
        write_object(self.path / name, data)

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a JSON-lines file whole."""
        write_lines(self.path / name, rows)

    def append_line(self, name: str, row: Mapping[str, Any]) -> None:
        """Append one line to a JSON-lines file."""
        append_lines(self.path / name, [row])

    def drop_after(self, step: int) -> None:
        """Delete metrics, trajectories and evaluations after a step, and incomplete files; a
        resumed run writes them again.
        """
        drop_cut_line(self.path / "metrics.jsonl")
        if metrics := self.metrics():
            self.write_lines(
                "metrics.jsonl", [row for row in metrics if int(row.get("step", 0)) <= step]
            )
        validated = self.path.glob("held_out/step-*.jsonl")
        later = [
            file for file in (*self.trajectory_files(), *validated) if checkpoint_step(file) > step
        ]
        for file in (*later, *(self.path / "trajectories").glob(".step-*")):
            file.unlink()

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON object; RunFolderError if the file is missing or damaged."""
        RunFolderError.raise_if(
            not (self.path / name).is_file(),
            f"{str(self.path)!r} has no {name}",
            expected="a run that came that far",
        )
        return read_object(self.path / name)

    def read_optional(self, name: str) -> dict[str, Any]:
        """Read a JSON object; empty if the file is missing."""
        return self.read_json(name) if (self.path / name).is_file() else {}

    def read_lines(self, name: str) -> Iterator[dict[str, Any]]:
        """Iterate over a JSON-lines file; nothing if the file is missing."""
        path = self.path / name
        if path.is_file():
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    yield parse_line(line, path, number)

    def metrics(self) -> list[dict[str, Any]]:
        """One row per logged training step; an incomplete last line is left out with a warning."""
        path = self.path / "metrics.jsonl"
        lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
        if lines and not lines[-1].endswith(b"\n"):
            logger.warning(
                "%s ends in a cut line (the run was killed, or is writing it): it is left out", path
            )
            lines.pop()
        return [parse_line(line, path, number) for number, line in enumerate(lines, 1)]

    def origin(self) -> dict[str, Any]:
        """Return ``config`` and ``environment`` (commands without absolute paths), to publish with
        numbers.
        """
        environment = self.read_json("environment.json")
        for part in (
            environment,
            *environment.get("resumed", []),
            *environment.get("continued", []),
        ):
            part["command"] = portable(part["command"])
        return {"config": self.config, "environment": environment}

    def trajectory_files(self) -> list[Path]:
        """Files of training trajectories, sorted by step."""
        return sorted(
            file
            for file in (self.path / "trajectories").glob("step-*.jsonl")
            if _TRAJECTORY.fullmatch(file.stem)
        )


def holds_something(folder: Path) -> bool:
    """Whether a folder exists and is not empty; RunFolderError if it is a file, or no folder can be
    made there.
    """
    with _clear_errors(folder):
        file = next(
            (path for path in (folder, *folder.parents) if path.exists() and not path.is_dir()),
            None,
        )
        RunFolderError.raise_if(
            file is not None,
            f"{str(file)!r} is a file: no folder can be made",
            fix="choose another --output_dir",
        )
        return folder.is_dir() and any(folder.iterdir())


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; RunFolderError if that fails."""
    with _clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


def check_apart(folder: Path, reads: Mapping[str, Iterable[str]]) -> None:
    """Raise InputError if a run to be overwritten holds what the new one reads: existing paths, by
    the option that names them.
    """
    place = folder.resolve()
    for option, paths in reads.items():
        for path in paths:
            InputError.raise_if(
                path and Path(path).exists() and Path(path).resolve().is_relative_to(place),
                f"{option} {path!r} lies in the run that is to be overwritten",
                fix="choose another --output_dir",
            )


@contextmanager
def _clear_errors(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(
            f"the folder {str(folder)!r} cannot be used: {error.strerror}",
            fix="choose another folder",
        ) from error


def checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoint folders inside a folder, sorted by step."""
    found = [
        path
        for path in folder.glob("checkpoint-*")
        if path.name.split("-")[1].isdigit() and path.is_dir()
    ]
    return sorted(found, key=checkpoint_step)


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint or of a trajectory file."""
    return int(path.stem.split("-")[1])


def trajectory_name(step: int, rank: int) -> str:
    """File name of the trajectories of one step and rank, relative to the run folder."""
    return f"trajectories/step-{step:06d}-rank-{rank}.jsonl"


trajectory_step = checkpoint_step


_PACKAGES = (
    "memalpha",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "faiss-cpu",
    "numpy",
)
_NAMES = (
    r"token(?!s|i)|key(?!word)|secret|passw|authorization|credential"  # not view_tokens, tokenizer
)
_SECRET = re.compile(_NAMES, re.IGNORECASE)
_EXTRA = re.compile(
    "extra", re.IGNORECASE
)  # request fields of an endpoint, which may hold credentials
_PASSWORD = re.compile(
    r"(://(?:[^/\s:@]*:)?)[^/\s]+@"
)  # of an address; a name alone may be a token
_BARE = re.compile(r"\b(?:hf_|sk-)[A-Za-z0-9_-]{16,}")  # a service's key, wherever it stands
_QUERY = re.compile(rf"([?&][^=&\s]*(?:{_NAMES})[^=&\s]*=)[^&\s]+", re.IGNORECASE)


def environment(world_size: int = 1) -> dict[str, Any]:
    """Describe code, versions, machine, command (without secrets) and time of a run."""
    info = Path("/proc/cpuinfo")
    processor = (
        re.search(r"model name\s*:\s*(.*)", info.read_text(encoding="utf-8"))
        if info.is_file()
        else None
    )
    return {
        "command": masked_command(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor[1] if processor else platform.processor(),
        "cores": os.cpu_count(),
        "world_size": world_size,
        "packages": {package: _version(package) for package in _PACKAGES},
        "code": code_version(),
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def masked(value: Any, name: str = "") -> Any:
    """Return data, or an option's value, without secrets: of names with token, key..., below extra,
    in addresses.
    """
    if value in (None, "") or isinstance(value, bool):
        return value
    extra, hidden = _EXTRA.search(name), f"<{name.removeprefix('extra ').upper()}>"
    if _SECRET.search(name):
        return hidden
    if isinstance(value, Mapping):  # below extra, every name counts as extra
        return {
            key: masked(item, f"extra {key}" if extra else str(key)) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [masked(item, name) for item in value]
    if not isinstance(value, str):
        return value
    if (found := _mapping(value)) is not None:
        inside = masked(found, name)
        return (
            value
            if inside == found
            else yaml.safe_dump(inside, default_flow_style=True, width=10_000).strip()
        )
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
    """Return the commit of this checkout, with ``+changes`` if files differ from it; else the
    release.
    """
    root = Path(__file__).resolve().parent.parent

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return f"release {__version__}"
        return git("rev-parse", "--short=12", "HEAD") + (
            "+changes" if git("status", "--porcelain", "--", "memalpha") else ""
        )
    except (OSError, subprocess.SubprocessError):
        return f"release {__version__}"


def portable(command: Sequence[str]) -> list[str]:
    """Return a command without absolute paths, starting with ``memalpha`` however it was
    started.
    """
    program, *rest = map(nameless, command)
    return ["memalpha" if program == "__main__.py" else program, *rest]


def nameless(word: str) -> str:
    """Replace each absolute path in a word, also after ``--name=`` or a comma, by its last part."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    parts = (
        Path(part).name if Path(part.strip()).is_absolute() else part for part in value.split(",")
    )
    return f"{flag}{equals}{','.join(parts)}"


def _mapping(text: str) -> dict[str, Any] | None:
    try:
        found = load_yaml(text) if text.lstrip().startswith("{") else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
