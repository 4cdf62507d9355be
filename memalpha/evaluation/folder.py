"""The folder of an evaluation: what was asked for, what it was run on, one line a result; it can always be gone on with.

    config.yaml         resolved options
    inputs.json         digests of what it is run on (``memalpha.evaluation.digests``)
    environment.json    code version, library versions, machine, command, date; and of each continuation
    results.jsonl       one line a result (``memalpha.evaluation.results``)
    underway.jsonl      while a batch is written: what its policy has written so far (``memalpha.evaluation.underway``)
    false_accept.json   where a judge was asked: how many planted wrong answers it let pass
    summary.json        and table.md, table.csv: made of the others (``memalpha.evaluation.tables``)

What always holds: what is there is only added to; the same command again goes on, with more sets, systems or readers if they were
added; anything else that would change what the lines mean is refused.
"""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from memalpha.errors import MemAlphaError, RunFolderError
from memalpha.evaluation.results import RESULTS_FILE, ResultKey, SystemResult, read_results
from memalpha.evaluation.underway import UnderWay
from memalpha.files import append_lines, drop_cut_line, write_yaml
from memalpha.provenance import environment, masked
from memalpha.runs import RunFolder, holds_something

LISTS = ("sets", "systems", "readers")
"""Parts of the configuration that may grow."""

MAY_CHANGE = frozenset({
    "output_dir", "overwrite", "endpoint_url", "endpoint_timeout", "endpoint_retries", "endpoint_backoff", "endpoint_concurrency",
    "judge_url",
})  # fmt: skip
"""Options that change no result."""

_HOW_SHOWN = ("in_mean",)
"""What a row says that changes no result."""

_CANNOT_WRITE = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG,
})  # fmt: skip

_FIX = "give the options it began with, or another --output_dir, or --overwrite to start anew"


class EvaluationFolder:
    """An evaluation's folder, open for more results.

    Args:
        path: The folder.
        config: Resolved options; a folder that exists must have begun with them, but for what may grow.
        inputs: Digests, ``{"sets": {name: ...}, "adapters": {path: ...}, "models": {name: ...}, "agents": {path: ...}}``; those of
            before must be the same, as far as they were written down.
        overwrite: Replace what is there.

    Raises:
        RunFolderError: If the folder is something else, or began with other options or inputs.
    """

    def __init__(
        self, path: str | Path, config: Mapping[str, Any], inputs: Mapping[str, Mapping[str, Any]], *, overwrite: bool = False
    ) -> None:
        self.path = Path(path)
        goes_on = check_place(path, overwrite=overwrite)
        self._run = RunFolder(path) if goes_on else RunFolder.create(path, config, overwrite=overwrite)
        here = environment()
        if goes_on:
            check_goes_on(self._run.config, masked(config))
            self._check_inputs(inputs)
            began = self._run.read_json("environment.json") if (self.path / "environment.json").is_file() else {}
            here = {**began, "continued": [*began.get("continued", []), here]} if began else here
            write_yaml(self.path / "config.yaml", masked(config))
        self._run.write_json("environment.json", here)
        self._run.write_json("inputs.json", inputs)
        self._file = self.path / RESULTS_FILE
        drop_cut_line(self._file)
        self.underway = UnderWay(self.path)

    def keys(self) -> tuple[set[ResultKey], set[ResultKey]]:
        """Return the keys of the lines that need no more work, and of those that failed and wait for another try."""
        lines = read_results(self.path, latest=False) if self._file.is_file() else ()
        failed = {result.key: result.failed is not None for result in lines}  # by the last line of each key
        return {key for key in failed if not failed[key]}, {key for key in failed if failed[key]}

    def append(self, results: Sequence[SystemResult]) -> None:
        """Write lines; they are there when this returns, whatever becomes of the process."""
        append_lines(self._file, [result.to_json() for result in results])

    def add_environment(self, other: Mapping[str, Any]) -> None:
        """Write down that some of the lines were made elsewhere: the environment of that folder and of its continuations."""
        here = self._run.read_json("environment.json")
        began = {key: value for key, value in other.items() if key != "continued"}
        self._run.write_json(
            "environment.json", {**here, "continued": [*here.get("continued", []), began, *other.get("continued", [])]}
        )

    def has(self, name: str) -> bool:
        """Whether a file is there."""
        return (self.path / name).is_file()

    def read_json(self, name: str) -> dict[str, Any]:
        """Read a JSON file; RunFolderError if it is damaged."""
        return self._run.read_json(name)

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file."""
        self._run.write_json(name, data)

    def _check_inputs(self, inputs: Mapping[str, Mapping[str, Any]]) -> None:
        if not (self.path / "inputs.json").is_file():  # killed before it was written: nothing has been evaluated
            return
        began = self._run.read_json("inputs.json")
        for part, known in inputs.items():
            for name, digest in known.items():
                if began.get(part, {}).get(name, digest) != digest:
                    raise RunFolderError(
                        f"{part[:-1]} {name!r} is not what it was when {str(self.path)!r} was begun",
                        expected="the same instances, weights and settings throughout",
                        fix=_FIX,
                    )


@contextmanager
def writing_to(path: str | Path) -> Iterator[None]:
    """Say clearly what is wrong where a folder cannot be written, such as on a full disk.

    Raises:
        MemAlphaError: Instead of an OSError. What was written before stays; a line cut short is dropped when it is gone on with.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise MemAlphaError(
            f"cannot write {path}: {error}\n  to fix: make room there, or choose another --output_dir; the same command goes on"
        ) from error


def check_place(path: str | Path, *, overwrite: bool) -> bool:
    """See that there is an evaluation's folder to go on with, or a new one can be made; return whether it is gone on with.

    Raises:
        RunFolderError: If the folder holds something else, or a file is in its place.
    """
    folder = Path(path)
    if holds_something(folder) and (folder / "config.yaml").is_file() and not overwrite:
        return True
    RunFolder.check_free(folder, overwrite=overwrite)
    return False


def check_goes_on(began: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Compare the options an evaluation began with with those it is to go on with.

    Raises:
        RunFolderError: If the folder is no evaluation's, or an option differs that may not.
    """
    if not is_resolved(began):
        raise RunFolderError(
            "the folder is no evaluation's: its config.yaml is none that memalpha evaluate wrote",
            expected="a new folder, or one of an evaluation",
            fix="choose another --output_dir, or take config.yaml out of this one if it is yours",
        )
    different = differences(began, now)
    if different:
        raise RunFolderError(
            "the evaluation began with other options: " + "; ".join(different),
            expected="the same, or more sets, systems and readers",
            fix=_FIX,
        )


def is_resolved(config: Mapping[str, Any]) -> bool:
    """Whether a configuration is one that an evaluation wrote down: its sets, systems and readers are mappings with names."""
    return all(
        isinstance(rows := config.get(part), list) and all(isinstance(row, dict) and "name" in row for row in rows)
        for part in LISTS
    )


def differences(began: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what keeps results under the first options from standing among results under the second, one text each."""
    different = [
        f"{name} was {began.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*began, *now} - MAY_CHANGE - set(LISTS))
        if began.get(name) != now.get(name)
    ]
    for part in LISTS:
        named = {row["name"]: _without(row, _HOW_SHOWN) for row in now[part]}
        for row in (_without(row, _HOW_SHOWN) for row in began[part]):
            if row != named.get(row["name"]):
                how = "is not there any more" if row["name"] not in named else f"was {row!r} and is {named[row['name']]!r}"
                different.append(f"{part[:-1]} {row['name']!r} {how}")
    return different


def _without(row: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


__all__ = [
    "EvaluationFolder",
    "check_goes_on",
    "check_place",
    "differences",
    "is_resolved",
    "writing_to",
]
