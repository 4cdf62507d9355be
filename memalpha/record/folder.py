"""The run folder: everything that happened in a run, as files that other tools read.

``config.yaml`` (options without secrets), ``inputs.json`` (digests of what was read),
``environment.json`` (command, versions, machine); of a training ``metrics.jsonl`` (a line a step),
``trajectories/`` (a file a step and rank), ``held_out/``, ``checkpoint-N/`` and ``adapter/``; of an
evaluation ``results.jsonl``; ``summary.json``. An existing folder is never touched unless it is to
be overwritten, or goes on with the options and inputs that it began with. What no run made
(``MADE``) is never removed. One command at a time writes to a folder (``FolderLock``).
"""

from __future__ import annotations

import hashlib
import json
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

from memalpha import __version__
from memalpha.errors import InputError, RunFolderError
from memalpha.files import (
    append_lines,
    drop_cut_line,
    file_sha256,
    read_lines,
    read_object,
    write_lines,
    write_object,
    write_yaml,
)
from memalpha.record.lock import LOCK_FILE
from memalpha.record.shapes import (
    ConfigShape,
    EnvironmentShape,
    InputsShape,
    MetricsShape,
    SummaryShape,
    check_shape,
)
from memalpha.threads import describe_threads
from memalpha.types import JsonMapping, JsonObject

_logger = logging.getLogger(__name__)

MARKER = "config.yaml"
"""The file that every run folder has."""
_ABOUT = "environment.json"
_CHECKPOINT = re.compile(r"checkpoint-[0-9]{1,9}")
SAVED = (  # files of a model, an adapter or a checkpoint
    r"(.*/)?((adapter_)?model[\w.-]*\.safetensors|memalpha_\w+\.(json|yaml)|README\.md|latest"
    r"|(adapter_|generation_|(pre)?processor_|tokenizer_)?config\.json|[\w.-]+\.index\.json"
    r"|(tokenizer|vocab|added_tokens|special_tokens_map|trainer_state)\.json|(merges|vocab)\.txt"
    r"|chat_template\.(jinja|json)|additional_chat_templates/[\w.-]+|[\w.]+\.model"
    r"|(optimizer|scheduler|scaler|rows_[0-9]+|\w+_states)\.pt|rng_state\w*\.pth"
    r"|(optimizer|pytorch_model\w*|training_args)[\w.-]*\.bin|__[0-9]+_[0-9]+\.distcp|\.metadata"
    r"|zero_to_fp32\.py)"
)
MADE = re.compile(
    r"config\.yaml|(environment|inputs|summary)\.json|(metrics|results)\.jsonl|table\.md|README\.md"
    rf"|checkpoint\.pt|{re.escape(LOCK_FILE)}|(.*/)?\..*\.[0-9]+"  # the last: of a killed writer
    r"|trajectories/step-[0-9]+-rank-[0-9]+\.jsonl|held_out/[\w-]+\.jsonl|runs/.*tfevents.*"
    rf"|(adapter|checkpoint-[0-9]+|\.unfinished|served|\.?warm_start)/({SAVED})"
)
"""The files that a run may hold; others are somebody else's."""
_TRAJECTORY = re.compile(r"step-[0-9]+-rank-[0-9]+")

LISTS = ("sets", "systems", "readers")  # options of an evaluation
_MAY_GROW = (*LISTS, "digest")
MAY_CHANGE: frozenset[str] = frozenset(
    [
        "output_dir",
        "max_steps",
        "rows_per_forward",
        "generation_rows",
        "max_masked_share",
        "max_skipped_steps",
        "endpoint_url",
        "endpoint_timeout",
        "endpoint_retries",
        "endpoint_backoff",
        "endpoint_concurrency",
        "judge_url",
        "generator",
        "vllm_urls",
        "vllm_wait",
        "vllm_memory",
        "report_to",
        "ddp_timeout",
        "project",
        "per_device_train_batch_size",
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "logging_steps",
    ]
)
"""Options that change no result, only duration and memory use, and so may differ when a run goes
on. The rollouts of a step over all processes must stay (they are among the inputs)."""


class RunFolder:
    """The existing folder of a training run or an evaluation.

    Args:
        path: The folder.

    Raises:
        RunFolderError: There is no run in the folder.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with _clear_errors(self.path):
            is_run = (self.path / MARKER).is_file()
        if not is_run:
            raise RunFolderError(
                f"{str(path)!r} is not a run folder",
                expected=f"a folder with {MARKER}, as memalpha train writes it",
            )

    @classmethod
    def create(
        cls,
        path: str | Path,
        config: Any,
        about: JsonMapping | None = None,
        *,
        overwrite: bool = False,
        resume: bool = False,
    ) -> RunFolder:
        """Make a run folder, or open the one that is resumed.

        Args:
            path: The folder.
            config: The resolved options of the run.
            about: Command, versions and machine of this start of the run; None finds them.
            overwrite: Whether an existing run is replaced.
            resume: Whether an existing run is continued.

        Raises:
            RunFolderError: The folder cannot be used (see ``check_place``).
        """
        if check_place(path, overwrite=overwrite, resume=resume):
            return cls(path)
        folder = Path(path)
        with _clear_errors(folder):
            if (folder / MARKER).is_file():
                remove_made(folder)
            # the marker comes last: what is no run is never overwritten
            write_object(folder / _ABOUT, environment() if about is None else about)
            write_yaml(folder / MARKER, mask_options(config))
        return cls(folder)

    @classmethod
    def begin(
        cls,
        path: str | Path,
        config: JsonMapping,
        inputs: Mapping[str, JsonMapping],
        about: JsonMapping,
        *,
        overwrite: bool = False,
        resume: bool | None = None,
    ) -> RunFolder:
        """Make a run folder, or continue the run in it.

        Args:
            path: The folder.
            config: The resolved options of the run.
            inputs: Digests of the files that the run reads, by kind and name.
            about: Command, versions and machine of this start of the run.
            overwrite: Whether an existing run is replaced.
            resume: Whether a run must exist (True), must not exist (False), or is continued if it
                exists (None).

        Raises:
            RunFolderError: The folder cannot be used, or its run began with other options or
                inputs.
        """
        goes_on = check_place(path, overwrite=overwrite, resume=resume)
        run = cls.create(path, config, about, overwrite=overwrite, resume=goes_on)
        if goes_on:
            run.check_same(config, inputs)
            began = run.environment
            run.write_json(_ABOUT, {**began, "resumed": [*began.get("resumed", []), about]})
            write_yaml(run.path / MARKER, mask_options(config))
        run.write_json("inputs.json", inputs)
        return run

    def check_same(self, config: JsonMapping, inputs: Mapping[str, JsonMapping]) -> None:
        """Raise RunFolderError unless options and inputs are those with which the run began.

        Some options may change, and an evaluation may have more sets, systems and readers.

        Args:
            config: The options of this start.
            inputs: The digests of this start.

        Raises:
            RunFolderError: Something else differs.
        """
        if self.config.keys() != config.keys():
            raise RunFolderError(
                f"{str(self.path)!r} holds a run of another command",
                expected=f"options {', '.join(sorted(config)[:5])}, ...",
                fix="choose another --output_dir",
            )
        began = _by_name(self.config, self.inputs)
        now = _by_name(*json.loads(json.dumps([mask_options(config), inputs])))
        added = {name for name in now.keys() - began.keys() if name.split()[0] in _MAY_GROW}
        different = [
            f"{name.removeprefix('digest of run ')} was {began.get(name, 'not there')!r} "
            f"and is {now.get(name, 'not there')!r}"
            for name in sorted((began.keys() | now.keys()) - added)
            if began.get(name, ...) != now.get(name, ...)
        ]
        if different:
            raise RunFolderError(
                f"{str(self.path)!r} was begun with other options or data: " + "; ".join(different),
                expected="the options and data with which it was begun (an evaluation may have "
                "more sets, systems and readers)",
                fix="give the same command, another --output_dir, or --overwrite",
            )

    @property
    def config(self) -> JsonObject:
        """The resolved options of the run; RunFolderError if they cannot be read."""
        path = self.path / MARKER
        return check_shape(ConfigShape, read_object(path), path, RunFolderError)

    @property
    def summary(self) -> JsonObject:
        """The results of the run, empty if it has not ended; RunFolderError if they are damaged."""
        name = "summary.json"
        return check_shape(SummaryShape, self.read_optional(name), self.path / name, RunFolderError)

    @property
    def environment(self) -> JsonObject:
        """Command, versions and machine of the run, empty if they are missing; RunFolderError if
        they are damaged.
        """
        return check_shape(
            EnvironmentShape, self.read_optional(_ABOUT), self.path / _ABOUT, RunFolderError
        )

    @property
    def inputs(self) -> JsonObject:
        """Digests of the files that the run read, by kind and name, empty if they are missing;
        RunFolderError if they are damaged.
        """
        name = "inputs.json"
        return check_shape(InputsShape, self.read_optional(name), self.path / name, RunFolderError)

    @property
    def is_evaluation(self) -> bool:
        """Whether ``memalpha evaluate`` wrote the folder, whose layout differs from that of a
        training run.
        """
        return self.config.keys() >= set(LISTS)

    def check_training(self) -> None:
        """Raise RunFolderError for the folder of an evaluation."""
        if self.is_evaluation:
            raise RunFolderError(
                f"{str(self.path)!r} is the folder of an evaluation",
                expected="the folder of a training run",
                fix=f"its numbers are in {self.path / 'table.md'}; "
                f"memalpha evaluate --config {self.path / MARKER} goes on with it",
            )

    def write_json(self, name: str, data: Any) -> None:
        """Write a JSON file of the run.

        Args:
            name: The name of the file in the folder.
            data: The value to write.
        """
        write_object(self.path / name, data)

    def write_lines(self, name: str, rows: Iterable[JsonMapping]) -> None:
        """Write a JSON Lines file, completely or not at all.

        Args:
            name: The name of the file in the folder.
            rows: The lines.
        """
        write_lines(self.path / name, rows)

    def append_line(self, name: str, row: JsonMapping) -> None:
        """Append one line to a JSON Lines file.

        Args:
            name: The name of the file in the folder.
            row: The line.
        """
        append_lines(self.path / name, [row])

    def drop_after(self, step: int) -> None:
        """Delete metrics, trajectories and evaluations after a step, and incomplete files; a
        resumed run writes them again.

        Args:
            step: The last step to keep.
        """
        drop_cut_line(self.path / "metrics.jsonl")
        metrics = self.metrics()
        if metrics:
            earlier = [row for row in metrics if int(row.get("step", 0)) <= step]
            self.write_lines("metrics.jsonl", earlier)
        for file in (*self.trajectory_files(), *self.path.glob("held_out/step-*.jsonl")):
            if checkpoint_step(file) > step:
                file.unlink()
        for file in (self.path / "trajectories").glob(".step-*"):
            file.unlink()

    def read_json(self, name: str) -> JsonObject:
        """Read a JSON object of the run.

        Args:
            name: The name of the file in the folder.

        Raises:
            RunFolderError: The file is missing or damaged.
        """
        if not (self.path / name).is_file():
            raise RunFolderError(
                f"{str(self.path)!r} has no {name}",
                expected="a run that has reached this point",
            )
        return read_object(self.path / name)

    def read_optional(self, name: str) -> JsonObject:
        """Read a JSON object of the run, which is empty if the file is missing.

        Args:
            name: The name of the file in the folder.

        Raises:
            RunFolderError: The file is damaged.
        """
        return self.read_json(name) if (self.path / name).is_file() else {}

    def read_lines(self, name: str, shape: type | None = None) -> Iterator[JsonObject]:
        """Iterate over a JSON Lines file, which is empty if it is missing.

        An incomplete last line is left out with a warning.

        Args:
            name: The name of the file in the folder.
            shape: The shape that each line must have; None checks none.

        Raises:
            InputError: A line is damaged or does not have the shape.
        """
        for where, row in read_lines(self.path / name):
            yield check_shape(shape, row, where) if shape else row

    def metrics(self) -> list[JsonObject]:
        """Return one row for each logged training step.

        Raises:
            InputError: A row is damaged.
        """
        return list(self.read_lines("metrics.jsonl", MetricsShape))

    def trajectory_files(self) -> list[Path]:
        """Return the files of training trajectories, sorted by step."""
        files = (self.path / "trajectories").glob("step-*.jsonl")
        return sorted(file for file in files if _TRAJECTORY.fullmatch(file.stem))


def _by_name(config: JsonMapping, inputs: Mapping[str, JsonMapping]) -> JsonObject:
    """What must stay when a run goes on, by name."""
    values: JsonObject = {}
    for name, value in config.items():
        if name in LISTS and isinstance(value, list):
            for row in value:
                own = {key: row[key] for key in row if key not in ("name", "in_mean")}
                values |= {f"{name} {row['name']!r} {key}": own[key] for key in own}
        elif name not in MAY_CHANGE:
            values[name] = value
    for kind, digests in inputs.items():
        values |= {f"digest of {kind} {name!r}": value for name, value in digests.items()}
    return values


def run_digest(folder: Path) -> str:
    """Return the sha256 of what must stay when a run goes on; empty if there is no run."""
    if not (folder / MARKER).is_file():
        return ""
    run = RunFolder(folder)
    values = _by_name(run.config, run.inputs)
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def check_place(
    path: str | Path,
    *,
    overwrite: bool = False,
    resume: bool | None = False,
    reads: Mapping[str, Iterable[str]] | None = None,
) -> bool:
    """Return whether the run that is there goes on; RunFolderError if there can be no new one.

    ``resume``: a run must be there (True), must not (False), or goes on if it is there (None).
    InputError if a run to be overwritten holds what the new one ``reads``: paths by option.
    """
    folder = Path(path)
    if overwrite and resume:
        raise RunFolderError("both overwrite and resume are given", expected="only one of them")
    filled = holds_something(folder)
    is_run = filled and (folder / MARKER).is_file()
    if resume and not is_run:
        raise RunFolderError(
            f"{str(folder)!r} is not a run folder",
            expected=f"a folder with {MARKER}, as memalpha train writes it",
            fix="leave out --resume if the run was stopped before it began",
        )
    if resume or (resume is None and is_run and not overwrite):
        return bool(RunFolder(folder))
    if filled and not is_run:
        raise RunFolderError(
            f"{str(folder)!r} exists already and is not a run folder",
            expected="a new folder, or the folder of a run",
            fix="choose another --output_dir",
        )
    if filled and not overwrite:
        raise RunFolderError(
            f"{str(folder)!r} exists already",
            expected="a new folder",
            fix="add --overwrite or --resume (for a training), or choose another --output_dir",
        )
    if filled:
        check_reads(folder, reads or {})
        check_made(folder, MADE, "run")
        if not (folder / _ABOUT).is_file():
            raise RunFolderError(
                f"{str(folder)!r} holds {MARKER} but no {_ABOUT}, so no run wrote it",
                expected="a new folder, or the folder of a run",
                fix="choose another --output_dir",
            )
    return False


def check_reads(folder: Path, reads: Mapping[str, Iterable[str]]) -> None:
    """Raise InputError if a folder that is to be overwritten holds what the new run reads: paths by
    option.
    """
    for option, names in reads.items():
        for name in names:
            if (
                name
                and Path(name).exists()
                and Path(name).resolve().is_relative_to(folder.resolve())
            ):
                raise InputError(
                    f"{option} {name!r} lies in the run that would be overwritten",
                    fix="choose another --output_dir",
                )


def check_made(folder: Path, made: re.Pattern[str], what: str) -> None:
    """Raise RunFolderError if a folder that is to be replaced holds what no ``what`` made, by the
    names ``made`` of its files, or the working directory, or the user's home.

    A site inside it, which lists its own files, may hold these.
    """
    with _clear_errors(folder):
        root = folder.resolve()
        for place in (Path.cwd(), Path.home()):
            if place.resolve().is_relative_to(root):
                raise RunFolderError(
                    f"{str(folder)!r} holds the folder {str(place)!r}, which would be lost",
                    expected="a folder that can be replaced as a whole",
                    fix="choose another folder",
                )
        of_site = {file for site in folder.rglob(SITE_FILE) for file in files_of_site(site.parent)}
        for path in sorted(folder.rglob("*")):
            name = path.relative_to(folder).as_posix()
            known = made.fullmatch(name) or path in of_site
            if path.is_symlink() or not (path.is_dir() or known):
                raise RunFolderError(
                    f"{str(folder)!r} holds {name!r}, which no {what} made",
                    expected="a folder without files of other programs, which would be removed",
                    fix="move it, or choose another folder",
                )


def remove_made(folder: Path) -> None:
    """Remove what is in a folder, after ``check_made``; the folder and its lock stay."""
    for path in folder.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


SITE_FILE = ".memalpha-site"
"""In the folder of a site: a line for each of its files, which a new site there may replace."""


def files_of_site(folder: Path) -> set[Path]:
    """Return the files of a site; none where there is no site."""
    path = folder / SITE_FILE
    if path.is_symlink() or not path.is_file():
        return set()
    names = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return {path, *(folder / name for name in names if ".." not in Path(name).parts)}


def holds_something(folder: Path) -> bool:
    """Whether a folder exists and is not empty; RunFolderError if it is a file, or no folder can be
    made there.
    """
    with _clear_errors(folder):
        for path in (folder, *folder.parents):
            if path.exists() and not path.is_dir():
                raise RunFolderError(
                    f"{str(path)!r} is a file, so that no folder can be made there",
                    fix="choose another --output_dir",
                )
        return folder.is_dir() and any(path.name != LOCK_FILE for path in folder.iterdir())


def make_folder(folder: Path) -> None:
    """Make a folder and its parents; RunFolderError if that fails."""
    with _clear_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)


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
    folders = [path for path in folder.glob("checkpoint-*") if path.is_dir()]
    return sorted(filter(_is_checkpoint, folders), key=checkpoint_step)


def _is_checkpoint(path: Path) -> bool:
    return bool(_CHECKPOINT.fullmatch(path.name))


def checkpoint_step(path: Path) -> int:
    """The step of a checkpoint, of a trajectory file or of a validation."""
    return int(path.stem.split("-")[1])


def trajectory_name(step: int, rank: int) -> str:
    """File name of the trajectories of one step and rank, relative to the run folder."""
    return f"trajectories/step-{step:06d}-rank-{rank}.jsonl"


# ------------------------------------------------------------------------------------------------
# where numbers come from
_PACKAGES = [
    "memalpha",
    "torch",
    "transformers",
    "trl",
    "peft",
    "accelerate",
    "datasets",
    "faiss-cpu",
    "numpy",
]


def environment(world_size: int = 1) -> JsonObject:
    """Describe code, versions, machine, command (without secrets) and time of a run."""
    from memalpha.generation.products import float32_products

    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.is_file() else ""
    processor = re.search(r"model name\s*:\s*(.*)", text)
    installed = {each.name for each in metadata.distributions()}
    return {
        "command": masked_command(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": processor[1] if processor else platform.processor(),
        "cores": os.cpu_count(),
        "threads": describe_threads(),
        "world_size": world_size,
        "packages": {name: metadata.version(name) for name in _PACKAGES if name in installed},
        "float32_products": float32_products(),
        "code": code_version(),
    }


def code_version() -> str:
    """Return the commit of this checkout, with ``+changes`` if files differ from it; else the
    release.
    """
    root = Path(__file__).resolve().parents[2]
    describe = ["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+changes"]
    try:
        if (root / ".git").exists():  # not a package inside somebody's repository
            return subprocess.check_output(["git", *describe], cwd=root, text=True).strip()
    except (OSError, subprocess.SubprocessError) as error:
        _logger.warning("the version of the code is unknown, since git failed: %s", error)
    return f"release {__version__}"


def folder_digest(folder: str | Path, patterns: Sequence[str]) -> str:
    """Return the sha256 of names and contents of a folder's files by pattern."""
    digest = hashlib.sha256()
    for pattern in patterns:
        for path in sorted(Path(folder).glob(pattern)):
            digest.update(f"{path.name} {file_sha256(path)}\n".encode())
    return digest.hexdigest()


def nameless(word: str) -> str:
    """Replace each absolute path in a word, also after ``--name=`` or a comma, by its last part."""
    flag, equals, value = word.partition("=") if word.startswith("--") else ("", "", word)
    parts = (
        Path(part).name if Path(part.strip()).is_absolute() else part for part in value.split(",")
    )
    return f"{flag}{equals}{','.join(parts)}"


# ------------------------------------------------------------------------------------------------
# secrets
_NAMES = r"(?:token(?!s|i)|key(?!word)|secret|passw|authorization|credential)"  # not view_tokens
_SECRET = re.compile(f"{_NAMES}|extra", re.IGNORECASE)  # extra: fields of a request
_PREFIXES = (  # of services' keys
    r"hf_|sk-|pk-|rk_live_|sk_live_|gh[pousr]_|github_pat_|glpat-|xox[abeoprs]-|xapp-|gsk_|xai-|npm_"
    r"|GOCSPX-|ya29\.|AIza|nvapi-|pplx-|tvly-|r8_|lsv2_|dop_v1_|pypi-|shpat_|SG\.|eyJ"
)
_HIDDEN = re.compile(
    r"(?i:(://)[^/\s@]+(?=@))"  # user and password of an address
    rf"|(?<![A-Za-z0-9])()(?:(?i:{_PREFIXES})[\w.-]{{16,}}|A[KS]IA[0-9A-Z]{{16}}\b)"
    # in a query, in a mapping or in a header
    rf"|(?i:({_NAMES}\w*[\"']?\s*[=:]\s*)(?:\"[^\"]*\"|'[^']*'"
    r"|(?:(?:bearer|basic|token)\s+)?[^&,\s\]}]+))"
    r"|(?i:\b(bearer\s+)(?=\S*[0-9])[\w.~+/=-]{8,})"
    # in the path of an address: after such a name, or 16 and more letters and digits, 8 of them
    # mixed without a hyphen
    r"|(://(?:[^\s/?#]*/)+?)(?:(?i:((?:[\w-]*[_-])?(?:key|token|secret|password)s?/))[^/\s?#]+"
    r"|(bot)?(?=[\w:-]*?(?<![A-Za-z0-9])(?=[A-Za-z0-9]{8})(?:[A-Za-z]+[0-9]+[A-Za-z]"
    r"|[0-9]+[A-Za-z]+[0-9]))[\w:-]{16,}(?=[/?#\s]|$))"
)


def mask_options(value: Any, name: str = "") -> Any:
    """Return data, or the value of the option ``name``, with ``***`` for each secret.

    A text is one if the name of its option, or of a mapping around it, says so, or speaks of the
    ``extra`` fields of a request; elsewhere passwords and keys inside a text are.
    """
    if isinstance(value, Mapping):
        return {key: mask_options(item, f"{name} {key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mask_options(item, name) for item in value]
    if not isinstance(value, str) or not value:
        return value
    return "***" if _SECRET.search(name) else _HIDDEN.sub(r"\1\2\3\4\5\6\7***", value)


def masked_command(words: Sequence[str]) -> list[str]:
    """Return the words of a command, with ``***`` for the values of secret options."""
    shown = []
    option = ""
    for word in words:
        if word.startswith("--"):
            option, equals, value = word.partition("=")
            shown.append(f"{option}{equals}{mask_options(value, option)}")
        else:
            shown.append(mask_options(word, option))
    return shown
