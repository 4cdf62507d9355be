"""The folder of an evaluation, which can always be continued.

    config.yaml         resolved options
    inputs.json         digests of instances, adapters, base model and agents' own settings
    environment.json    code and library versions, machine, command, date; also of continuations
    results.jsonl       one line for each (set, system, reader, seed, instance); a failed one has ``failed`` and no score
    summary.json        and table.md: derived from the others

Results are only added; a later line of the same key replaces an earlier one. The same command continues the folder, also with more
sets, systems or readers; other changes that affect results are refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from memalpha.errors import InputError, RunFolderError
from memalpha.evaluation.statistics import Number
from memalpha.files import append_lines, drop_cut_line, finite, read_object, write_yaml
from memalpha.runs import RunFolder, environment, holds_something, masked

RESULTS_FILE = "results.jsonl"
LISTS = ("sets", "systems", "readers")  # parts of the configuration that may grow

MAY_CHANGE = frozenset({
    "output_dir", "overwrite", "endpoint_url", "endpoint_timeout", "endpoint_retries", "endpoint_backoff", "endpoint_concurrency",
    "judge_url",
})  # fmt: skip
"""Options that change no result."""

MODEL_FILES = (
    "*.safetensors", "*.bin", "*.gguf", "*.pt", "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
)  # fmt: skip
"""What a base model's results depend on."""


class ResultKey(NamedTuple):
    """Identifies a line."""

    set: str
    system: str
    reader: str
    seed: int
    instance: str


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """Operations on a memory; ``update`` includes blocks, ``failed`` unparsed text; ``duplicate``: inserts of existing entries."""

    insert: int = 0
    update: int = 0
    delete: int = 0
    failed: int = 0
    duplicate: int = 0


@dataclass(frozen=True, slots=True)
class QuestionResult:
    """One scored question; ``id`` is the question's id or index.

    ``score`` is in [0, 1], NaN if the reader or judge failed (``error`` says why). ``answer`` is None if the reader failed.
    ``passages`` is what the reader got, best first.
    """

    id: str
    kind: str
    text: str
    score: Number
    answer: str | None
    passages: tuple[str, ...]
    error: str | None = None


@dataclass(frozen=True, slots=True)
class SystemResult:
    """One system on one instance with one reader; ``failed`` says why there is no result, else None.

    ``memory_tokens`` counts what is kept between input and questions, ``reader_tokens`` the mean a question's reader saw,
    ``cut_off`` the write calls that ended at their length limit, ``cut`` the tokens left out by a budget. Seconds are wall time, a
    batch's split evenly. ``seed`` is the first of the configuration if the system does not sample. ``entries`` is empty if the
    input is kept unchanged.
    """

    set: str
    system: str
    reader: str
    seed: int
    instance: str
    chunks: int
    input_tokens: int
    memory_tokens: int = 0
    reader_tokens: Number = math.nan
    write_calls: int = 0
    cut_off: int = 0
    cut: int = 0
    seconds_write: float = 0.0
    seconds_read: float = 0.0
    operations: OperationCounts = field(default_factory=OperationCounts)
    entries: tuple[str, ...] = ()
    questions: tuple[QuestionResult, ...] = ()
    failed: str | None = None

    @property
    def key(self) -> ResultKey:
        """Set, system, reader, seed and instance."""
        return ResultKey(self.set, self.system, self.reader, self.seed, self.instance)

    @property
    def accuracy(self) -> float:
        """Mean score of the questions; NaN if a score is missing or there are no questions."""
        return sum(question.score for question in self.questions) / len(self.questions) if self.questions else math.nan

    @property
    def scored(self) -> bool:
        """Whether the instance has a score."""
        return self.failed is None and not math.isnan(self.accuracy)

    def to_json(self) -> dict[str, Any]:
        """Return the line as JSON-ready data; NaN is null."""
        found: dict[str, Any] = finite(asdict(self))
        return found


_LINE = TypeAdapter(SystemResult)


def read_results(folder: str | Path) -> list[SystemResult]:
    """Return the last line of each key, in file order; an unfinished last line is ignored; InputError if missing or damaged."""
    path = Path(folder) / RESULTS_FILE
    if not path.is_file():
        raise InputError(f"no {path}", expected="the folder of an evaluation")
    last: dict[ResultKey, SystemResult] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        try:
            result = _LINE.validate_python(json.loads(line.decode("utf-8")))
        except ValueError as error:
            raise InputError(
                f"{path}, line {number} is damaged: {error}",
                expected="one result a line",
                fix="take the line out; the same memalpha evaluate command makes it again",
            ) from error
        last.pop(result.key, None)
        last[result.key] = result
    return list(last.values())


class EvaluationFolder:
    """An evaluation's folder, open for more results; RunFolderError if it is something else or has other options or inputs."""

    def __init__(self, path: str | Path, config: Mapping[str, Any], inputs: Mapping[str, Any], *, overwrite: bool = False) -> None:
        self.path, here = Path(path), environment()
        if check_place(path, overwrite=overwrite):
            self.run = RunFolder(path)
            check_same(self.run, masked(config), inputs)
            if began := self.run.read_optional("environment.json"):
                here = {**began, "continued": [*began.get("continued", []), here]}
            write_yaml(self.path / "config.yaml", masked(config))
        else:
            self.run = RunFolder.create(path, config, overwrite=overwrite)
        self.run.write_json("environment.json", here)
        self.run.write_json("inputs.json", inputs)
        drop_cut_line(self.path / RESULTS_FILE)

    def keys(self) -> tuple[set[ResultKey], set[ResultKey]]:
        """Return the keys of finished lines, and of failed lines that wait for a retry."""
        results = read_results(self.path) if (self.path / RESULTS_FILE).exists() else []
        failed = {result.key for result in results if result.failed is not None}
        return {result.key for result in results} - failed, failed

    def append(self, results: Sequence[SystemResult]) -> None:
        """Append lines; they are on disk when this returns."""
        append_lines(self.path / RESULTS_FILE, [result.to_json() for result in results])


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
    if not all(isinstance(config.get(part), list) for part in LISTS):
        raise InputError(
            f"{path} is missing or not an evaluation's",
            expected="the folder that memalpha evaluate wrote",
            fix="choose another folder, or take config.yaml out of this one if it is yours",
        )
    return config


def check_same(run: RunFolder, config: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """RunFolderError with the names if options or inputs that both have differ, or a set, system or reader has gone."""
    began, now = _by_name(read_config(run.path), run.read_optional("inputs.json")), _by_name(config, inputs)
    gone = [f"{name} is not there any more" for name in began.keys() - now.keys() if name.startswith(LISTS) and name.endswith("'")]
    other = [f"{name} was {began[name]!r} and is {now[name]!r}" for name in began.keys() & now.keys() if began[name] != now[name]]
    if different := sorted([*gone, *other]):
        raise RunFolderError(
            f"{str(run.path)!r} was begun otherwise: " + "; ".join(different),
            expected="the same options, instances, weights and settings; more sets, systems and readers may be added",
            fix="give the options it began with, or another --output_dir, or --overwrite to start anew",
        )


def _by_name(config: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in config.items() if name not in {*MAY_CHANGE, *LISTS}}
    for part in LISTS:
        for row in config[part]:
            what = f"{part} {row['name']!r}"
            found |= {f"{what} {key}".removesuffix(" name"): value for key, value in row.items() if key != "in_mean"}
    return found | {f"digest of {part} {name!r}": value for part, digests in inputs.items() for name, value in digests.items()}


def digest(folder: str | Path, patterns: Sequence[str]) -> str:
    """Return the sha256 of a folder's files by pattern; lists of names in JSON are sorted, since PEFT changes their order."""
    found = hashlib.sha256()
    for path in (path for pattern in patterns for path in sorted(Path(folder).glob(pattern)) if path.is_file()):
        found.update(path.name.encode())
        if path.suffix == ".json":
            values = {key: value for key, value in read_object(path).items() if key != "transformers_version"}
            names = {key for key, value in values.items() if isinstance(value, list) and all(isinstance(v, str) for v in value)}
            found.update(json.dumps(values | {key: sorted(values[key]) for key in names}, sort_keys=True).encode())
        else:
            with path.open("rb") as file:
                while block := file.read(2**20):
                    found.update(block)
    return found.hexdigest()
