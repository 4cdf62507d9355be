"""The folder of an evaluation: what was asked for, what it was run on, one line a result; it can always be gone on with.

    config.yaml         resolved options
    inputs.json         sha256 digests of instances, adapters, base model and agents' own settings
    environment.json    code version, library versions, machine, command, date; of continuations and joined parts too
    results.jsonl       one line a result (``memalpha.evaluation.results``)
    underway.jsonl      while a batch is written: what its policy has written so far (``memalpha.evaluation.host.RecordedCalls``)
    false_accept.json   where a judge was asked: how many planted wrong answers it let pass
    summary.json        and table.md, table.csv, plots/: made of the others

What is there is only added to. The same command again goes on, with more sets, systems or readers if they were added; anything
else that would change what the lines mean is refused. A part (``--join``) is the folder of an evaluation of some of the sets,
systems and readers, from another process or machine: its results are taken over only if this evaluation would have got them in the
same way, and a part that differs is refused whole.
"""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.agent.config import AGENT_FILE, ROUTER_FILE, SCHEMA_FILE
from memalpha.errors import InputError, MemAlphaError, RunFolderError
from memalpha.evaluation.results import RESULTS_FILE, ResultKey, SystemResult, read_results
from memalpha.files import append_lines, drop_cut_line, read_object, write_yaml
from memalpha.provenance import environment, masked
from memalpha.runs import RunFolder, holds_something

LISTS = ("sets", "systems", "readers")
"""Parts of the configuration that may grow."""

MAY_CHANGE = frozenset({
    "output_dir", "overwrite", "endpoint_url", "endpoint_timeout", "endpoint_retries", "endpoint_backoff", "endpoint_concurrency",
    "judge_url",
})  # fmt: skip
"""Options that change no result."""

_WHERE_ASKED = ("sets", "readers", "group")
"""What a system's row says besides what it is: on what it is evaluated, and with whom it is shown."""

_CANNOT_WRITE = frozenset({
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ENOTDIR, errno.EISDIR,
    errno.ENAMETOOLONG,
})  # fmt: skip

_FIX = "give the options it began with, or another --output_dir, or --overwrite to start anew"
_STRETCHES, _STRETCH = 64, 65_536  # how many stretches of a weights file are read for its digest, and the bytes of each

Config = Mapping[str, Any]
"""Resolved options of an evaluation."""

Inputs = Mapping[str, Mapping[str, Any]]
"""Digests: ``{"sets": {name: ...}, "adapters": {path: ...}, "models": {name: ...}, "agents": {path: ...}}``."""


class EvaluationFolder:
    """An evaluation's folder, open for more results.

    Args:
        path: The folder.
        config: Resolved options; a folder that exists must have begun with them, but for what may grow.
        inputs: Digests; those of before must be the same, as far as they were written down.
        overwrite: Replace what is there.

    Raises:
        RunFolderError: If the folder is something else, or began with other options or inputs.
    """

    def __init__(self, path: str | Path, config: Config, inputs: Inputs, *, overwrite: bool = False) -> None:
        self.path = Path(path)
        goes_on = check_place(path, overwrite=overwrite)
        self.run = RunFolder(path) if goes_on else RunFolder.create(path, config, overwrite=overwrite)
        here = environment()
        if goes_on:
            different = differences(read_config(path), masked(config)) + _other_inputs(
                self.run.read_optional("inputs.json"), inputs
            )
            if different:
                raise RunFolderError(
                    f"{str(path)!r} was begun otherwise: " + "; ".join(different),
                    expected="the same options, instances, weights and settings; more sets, systems and readers may be added",
                    fix=_FIX,
                )
            if began := self.run.read_optional("environment.json"):
                here = {**began, "continued": [*began.get("continued", []), here]}
            write_yaml(self.path / "config.yaml", masked(config))
        self.run.write_json("environment.json", here)
        self.run.write_json("inputs.json", inputs)
        drop_cut_line(self.path / RESULTS_FILE)

    def keys(self) -> tuple[set[ResultKey], set[ResultKey]]:
        """Return the keys of the lines that need no more work, and of those that failed and wait for another try."""
        results = read_results(self.path) if (self.path / RESULTS_FILE).is_file() else []
        failed = {result.key for result in results if result.failed is not None}
        return {result.key for result in results} - failed, failed

    def append(self, results: Sequence[SystemResult]) -> None:
        """Write lines; they are there when this returns, whatever becomes of the process."""
        append_lines(self.path / RESULTS_FILE, [result.to_json() for result in results])

    def take_over(self, part: Part, wanted: Collection[ResultKey]) -> set[ResultKey]:
        """Add those of a part's results that are wanted, and where they were made; return their keys."""
        new = [result for result in part.results if result.key in wanted]
        if new:
            self.append(new)
            here = self.run.read_json("environment.json")
            began = {key: value for key, value in part.environment.items() if key != "continued"}
            continued = [*here.get("continued", []), began, *part.environment.get("continued", [])]
            self.run.write_json("environment.json", {**here, "continued": continued})
        return {result.key for result in new}


def check_place(path: str | Path, *, overwrite: bool) -> bool:
    """See that an evaluation can be gone on with in a folder, or a new one be made; return whether it is gone on with.

    RunFolderError if the folder holds something else, or a file is in its place.
    """
    folder = Path(path)
    if holds_something(folder) and (folder / "config.yaml").is_file() and not overwrite:
        return True
    RunFolder.check_free(folder, overwrite=overwrite)
    return False


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read ``config.yaml`` of an evaluation's folder; InputError if it is none."""
    path = Path(folder) / "config.yaml"
    config = read_object(path) if path.is_file() else {}
    for part in LISTS:
        rows = config.get(part)
        if not isinstance(rows, list) or not all(isinstance(row, dict) and "name" in row for row in rows):
            raise InputError(
                f"{path} is missing or not an evaluation's",
                expected="the folder that memalpha evaluate wrote",
                fix="choose another folder, or take config.yaml out of this one if it is yours",
            )
    return config


@contextmanager
def explain_write_errors(path: str | Path) -> Iterator[None]:
    """Raise MemAlphaError, which says what to do, where a folder cannot be written, such as on a full disk.

    What was written before stays; a line cut short is dropped when the evaluation goes on.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise MemAlphaError(
            f"cannot write {path}: {error}\n  to fix: make room there, or choose another --output_dir; the same command goes on"
        ) from error


# ------------------------------------------------------------------------------------------------ what may stand together
class Part(NamedTuple):
    """What a part has found: its folder, its results that did not fail, how many did, and its ``environment.json``."""

    folder: Path
    results: list[SystemResult]
    failed: int
    environment: dict[str, Any]


def read_part(path: str | Path, config: Config, inputs: Inputs) -> Part:
    """Read a part's results and check that they may stand among those of an evaluation of these options and inputs.

    Raises:
        RunFolderError: If an option, or a set, system or reader that both name, or its instances, weights or settings differ.
        InputError: If the part is no evaluation's folder, or a line is damaged.
    """
    run = RunFolder(path)
    if different := conflicts(read_config(path), run.read_json("inputs.json"), config, inputs):
        raise RunFolderError(
            f"{str(path)!r} cannot be joined: " + "; ".join(different),
            expected="a part of the same evaluation: the same options, sets, systems, readers, instances, weights and settings",
            fix="evaluate that part again with this configuration, or take what differs out of one of the two",
        )
    results = read_results(path)
    found = [result for result in results if result.failed is None]
    return Part(Path(path), found, len(results) - len(found), run.read_json("environment.json"))


def conflicts(config: Config, inputs: Inputs, other_config: Config, other_inputs: Inputs) -> list[str]:
    """Return what keeps results of one evaluation from standing among those of another, one text each.

    Sets, systems and readers that only one of them names are no difference.
    """
    if any(not isinstance(inputs.get(kind), dict) for kind in ("sets", "adapters") if kind in other_inputs):
        return ["its inputs.json does not say which sets and adapters it was made of"]
    both = differences(_common(config, other_config), _common(other_config, config))
    return both + _other_inputs(inputs, other_inputs)


def differences(began: Config, now: Config) -> list[str]:
    """Return what keeps results under the first options from standing among results under the second, one text each."""
    different = [
        f"{name} was {began.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*began, *now} - MAY_CHANGE - set(LISTS))
        if began.get(name) != now.get(name)
    ]
    for part in LISTS:
        named = {row["name"]: _without(row, ("in_mean",)) for row in now[part]}
        for row in (_without(row, ("in_mean",)) for row in began[part]):
            if row != named.get(row["name"]):
                how = "is not there any more" if row["name"] not in named else f"was {row!r} and is {named[row['name']]!r}"
                different.append(f"{part[:-1]} {row['name']!r} {how}")
    return different


def _other_inputs(began: Inputs, now: Inputs) -> list[str]:
    """What is another under the same name, as far as both say which it was."""
    return [
        f"{kind[:-1]} {name!r} is not the same"
        for kind, digests in now.items()
        for name, digest in digests.items()
        if began.get(kind, {}).get(name, digest) != digest
    ]


def _common(config: Config, other: Config) -> dict[str, Any]:
    """A configuration with the sets, systems and readers alone that the other names too, without where systems are asked."""
    rows = {part: [row for row in config[part] if any(row["name"] == its["name"] for its in other[part])] for part in LISTS}
    return {**config, **rows, "systems": [_without(row, _WHERE_ASKED) for row in rows["systems"]]}


def _without(row: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


# ------------------------------------------------------------------------------------------------ digests
def digest_adapter(folder: str | Path) -> str:
    """Return the sha256 over an adapter's weights and configuration.

    Lists of names in the configuration count as sets: PEFT writes them in another order each time.
    """

    def as_sets(config: Mapping[str, Any]) -> dict[str, Any]:
        listed = {key for key, value in config.items() if isinstance(value, list) and all(isinstance(item, str) for item in value)}
        return {key: sorted(value) if key in listed else value for key, value in config.items()}

    return _sha256(_files(sorted(Path(folder).glob("adapter_*")), as_sets))


def digest_model(folder: str | Path) -> str:
    """Return a sha256 that tells a base model's weights, configuration, tokenizer and chat template from others.

    Of each weights file it takes the name, the size and 64 stretches of 64 KB from its beginning to its end, so weights that differ
    nowhere else are not told apart; the other files whole.
    """
    weights = sorted(file for kind in ("safetensors", "bin", "gguf", "pt") for file in Path(folder).glob(f"*.{kind}"))
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    return _sha256([*(part for path in weights for part in _stretches(path)), *_files([Path(folder) / name for name in names])])


def digest_agent(folder: str | Path) -> str:
    """Return the sha256 over what fixes an agent beside its adapter: its settings, schema and router."""
    return _sha256(_files([Path(folder) / name for name in (AGENT_FILE, SCHEMA_FILE, ROUTER_FILE)]))


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _files(paths: Iterable[Path], says: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict) -> Iterator[bytes]:
    """Name and content of each file that is there; of a JSON file what it ``says``, but for the library that wrote it."""
    for path in (path for path in paths if path.is_file()):
        yield path.name.encode()
        if path.suffix == ".json":
            yield json.dumps(_without(says(read_object(path)), ("transformers_version",)), sort_keys=True).encode()
        else:
            yield path.read_bytes()


def _stretches(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    yield f"{path.name}:{size}".encode()
    last = max(0, size - _STRETCH)
    with path.open("rb") as file:
        for start in sorted({last * index // (_STRETCHES - 1) for index in range(_STRETCHES)}):
            file.seek(start)
            yield file.read(_STRETCH)
