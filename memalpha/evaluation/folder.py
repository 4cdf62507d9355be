"""The folder of an evaluation, which can always be continued.

    config.yaml         resolved options
    inputs.json         sha256 digests of instances, adapters, base model and agents' own settings
    environment.json    code and library versions, machine, command, date; also of continuations and joined parts
    results.jsonl       one line for each result (``memalpha.evaluation.results``)
    underway.jsonl      completions of the batch in progress (``memalpha.evaluation.host.RecordedCalls``)
    false_accept.json   if there is a judge: share of planted wrong answers that it accepts
    summary.json        and table.md, table.csv, plots/: derived from the others

Results are only added. The same command continues the folder, also with more sets, systems or readers; other changes that affect
results are refused. A part (``--join``) is the folder of an evaluation of some sets, systems and readers; its results are copied
only if this evaluation would give the same ones, otherwise the whole part is refused.
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
from memalpha.runs import RunFolder, environment, holds_something, masked

LISTS = ("sets", "systems", "readers")
"""Parts of the configuration that may grow."""

MAY_CHANGE = frozenset({
    "output_dir", "overwrite", "endpoint_url", "endpoint_timeout", "endpoint_retries", "endpoint_backoff", "endpoint_concurrency",
    "judge_url",
})  # fmt: skip
"""Options that change no result."""

_WHERE_ASKED = ("sets", "readers", "group")
"""Keys of a system that do not define the system itself."""

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
    """An evaluation's folder, open for more results; RunFolderError if it is something else or has other options or inputs."""

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
        """Return the keys of finished lines, and of failed lines that wait for a retry."""
        results = read_results(self.path) if (self.path / RESULTS_FILE).is_file() else []
        failed = {result.key for result in results if result.failed is not None}
        return {result.key for result in results} - failed, failed

    def append(self, results: Sequence[SystemResult]) -> None:
        """Append lines; they are on disk when this returns."""
        append_lines(self.path / RESULTS_FILE, [result.to_json() for result in results])

    def take_over(self, part: Part, wanted: Collection[ResultKey]) -> set[ResultKey]:
        """Add the wanted results of a part, and its environment; return their keys."""
        new = [result for result in part.results if result.key in wanted]
        if new:
            self.append(new)
            here = self.run.read_json("environment.json")
            began = {key: value for key, value in part.environment.items() if key != "continued"}
            continued = [*here.get("continued", []), began, *part.environment.get("continued", [])]
            self.run.write_json("environment.json", {**here, "continued": continued})
        return {result.key for result in new}


def check_place(path: str | Path, *, overwrite: bool) -> bool:
    """Return whether the folder is continued (else it is new); RunFolderError if it holds something else or is a file."""
    folder = Path(path)
    if holds_something(folder) and (folder / "config.yaml").is_file() and not overwrite:
        return True
    RunFolder.check_free(folder, overwrite=overwrite)
    return False


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read ``config.yaml`` of a folder; InputError if it is not an evaluation."""
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
    """Raise MemAlphaError with advice if a folder cannot be written, e.g. on a full disk; written data stay."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CANNOT_WRITE:
            raise
        raise MemAlphaError(
            f"cannot write {path}: {error}\n  to fix: make room there, or choose another --output_dir; the same command goes on"
        ) from error


class Part(NamedTuple):
    """A part: its folder, its successful results, its number of failures, and its ``environment.json``."""

    folder: Path
    results: list[SystemResult]
    failed: int
    environment: dict[str, Any]


def read_part(path: str | Path, config: Config, inputs: Inputs) -> Part:
    """Read a part's results; RunFolderError if its options or inputs conflict, InputError if it is damaged or not an evaluation."""
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
    """Return the conflicts between two evaluations, one text each; sets, systems and readers of only one are no conflict."""
    if any(not isinstance(inputs.get(kind), dict) for kind in ("sets", "adapters") if kind in other_inputs):
        return ["its inputs.json does not say which sets and adapters it was made of"]
    both = differences(_common(config, other_config), _common(other_config, config))
    return both + _other_inputs(inputs, other_inputs)


def differences(began: Config, now: Config) -> list[str]:
    """Return the option changes that affect results, one text each."""
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
    """Inputs with the same name and different digests, if both digests are known."""
    return [
        f"{kind[:-1]} {name!r} is not the same"
        for kind, digests in now.items()
        for name, digest in digests.items()
        if began.get(kind, {}).get(name, digest) != digest
    ]


def _common(config: Config, other: Config) -> dict[str, Any]:
    """The configuration restricted to the sets, systems and readers of the other, without ``_WHERE_ASKED``."""
    rows = {part: [row for row in config[part] if any(row["name"] == its["name"] for its in other[part])] for part in LISTS}
    return {**config, **rows, "systems": [_without(row, _WHERE_ASKED) for row in rows["systems"]]}


def _without(row: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


def digest_adapter(folder: str | Path) -> str:
    """Return the sha256 of an adapter's weights and configuration; lists of names are sorted, since PEFT changes their order."""

    def as_sets(config: Mapping[str, Any]) -> dict[str, Any]:
        listed = {key for key, value in config.items() if isinstance(value, list) and all(isinstance(item, str) for item in value)}
        return {key: sorted(value) if key in listed else value for key, value in config.items()}

    return _sha256(_files(sorted(Path(folder).glob("adapter_*")), as_sets))


def digest_model(folder: str | Path) -> str:
    """Return a sha256 of a base model's files; weights are only sampled (64 x 64 KB), so a difference elsewhere is not found."""
    weights = sorted(file for kind in ("safetensors", "bin", "gguf", "pt") for file in Path(folder).glob(f"*.{kind}"))
    names = ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    return _sha256([*(part for path in weights for part in _stretches(path)), *_files([Path(folder) / name for name in names])])


def digest_agent(folder: str | Path) -> str:
    """Return the sha256 of an agent's settings, schema and router."""
    return _sha256(_files([Path(folder) / name for name in (AGENT_FILE, SCHEMA_FILE, ROUTER_FILE)]))


def _sha256(parts: Iterable[bytes]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _files(paths: Iterable[Path], says: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict) -> Iterator[bytes]:
    """Name and content of each existing file; JSON as returned by ``says``, without the library version."""
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
