"""The folder of an evaluation: options, digests of inputs, environment, ``results.jsonl`` and the
tables made from it.

A line of results is one (set, system, reader, seed, instance); a failed one has ``failed`` and no
score. Results are only added; a later line of the same key replaces an earlier one. The same
command continues the folder, also with more sets, systems or readers; other changes that affect
results are refused.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import InputError, RunFolderError
from memalpha.files import append_lines, drop_cut_line, read_object, write_yaml
from memalpha.record.folder import RunFolder, environment, holds_something, masked
from memalpha.record.rows import RESULTS_FILE, InstanceRow, RowKey, read_rows

COMPLETIONS_FILE = (
    "completions.jsonl"  # greedy completions and answers; without it they are made again
)
LISTS = ("sets", "systems", "readers")  # parts of the configuration that may grow

MAY_CHANGE = frozenset(
    {  # options that change no result
        "output_dir",
        "overwrite",
        "endpoint_url",
        "endpoint_timeout",
        "endpoint_retries",
        "endpoint_backoff",
        "endpoint_concurrency",
        "judge_url",
    }
)
MODEL_FILES = (  # what a base model's results depend on
    "*.safetensors",
    "*.bin",
    "*.gguf",
    "*.pt",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


class EvaluationFolder:
    """An evaluation's folder, open for more results; RunFolderError if it is something else or has
    other options or inputs.
    """

    def __init__(
        self,
        path: str | Path,
        config: Mapping[str, Any],
        inputs: Mapping[str, Any],
        *,
        overwrite: bool = False,
    ) -> None:
        from memalpha.generation.products import float32_products

        self.path, here = Path(path), {**environment(), "float32_products": float32_products()}
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

    def keys(self) -> tuple[set[RowKey], set[RowKey]]:
        """Return the keys of finished lines, and of failed lines that wait for a retry."""
        results = read_rows(self.path)
        failed = {result.key for result in results if result.failed is not None}
        return {result.key for result in results} - failed, failed

    def append(self, results: Sequence[InstanceRow]) -> None:
        """Append lines; they are on disk when this returns."""
        append_lines(self.path / RESULTS_FILE, [result.to_json() for result in results])


def check_place(path: str | Path, *, overwrite: bool) -> bool:
    """Return whether the folder is continued (else it is new); RunFolderError if it holds something
    else or is a file.
    """
    folder = Path(path)
    continued = holds_something(folder) and (folder / "config.yaml").is_file() and not overwrite
    if not continued:
        RunFolder.check_free(folder, overwrite=overwrite)
    return continued


def read_config(folder: str | Path) -> dict[str, Any]:
    """Read ``config.yaml`` of a folder; InputError if it is not an evaluation."""
    path = Path(folder) / "config.yaml"
    config = read_object(path) if path.is_file() else {}
    if not all(isinstance(config.get(part), list) for part in LISTS):
        raise InputError(
            f"{path} is missing or not an evaluation's",
            expected="the folder that memalpha evaluate wrote",
        )
    return config


def check_same(run: RunFolder, config: Mapping[str, Any], inputs: Mapping[str, Any]) -> None:
    """RunFolderError with the names if options or inputs that both have differ, or a set, system or
    reader has gone.
    """
    began, now = (
        _by_name(read_config(run.path), run.read_optional("inputs.json")),
        _by_name(config, inputs),
    )
    gone = [
        f"{name} is not there any more"
        for name in began.keys() - now.keys()
        if name.startswith(LISTS) and name.endswith("'")
    ]
    other = [
        f"{name} was {began[name]!r} and is {now[name]!r}"
        for name in began.keys() & now.keys()
        if began[name] != now[name]
    ]
    if different := sorted([*gone, *other]):
        fix = "give the options it began with (more sets, systems and readers may be added), another --output_dir, or --overwrite"
        raise RunFolderError(
            f"{str(run.path)!r} was begun otherwise: " + "; ".join(different), fix=fix
        )


def _by_name(config: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in config.items() if name not in {*MAY_CHANGE, *LISTS}}
    for part in LISTS:
        for row in config[part]:
            what = f"{part} {row['name']!r}"
            found |= {
                f"{what} {key}".removesuffix(" name"): value
                for key, value in row.items()
                if key != "in_mean"
            }
    return found | {
        f"digest of {part} {name!r}": value
        for part, digests in inputs.items()
        for name, value in digests.items()
    }


def digest(folder: str | Path, patterns: Sequence[str]) -> str:
    """Return the sha256 of a folder's files by pattern; lists of names in JSON are sorted, since
    PEFT changes their order.
    """
    found = hashlib.sha256()
    for path in (
        path
        for pattern in patterns
        for path in sorted(Path(folder).glob(pattern))
        if path.is_file()
    ):
        found.update(path.name.encode())
        if path.suffix == ".json":
            values = {
                key: value
                for key, value in read_object(path).items()
                if key != "transformers_version"
            }
            names = {
                key
                for key, value in values.items()
                if isinstance(value, list) and all(isinstance(v, str) for v in value)
            }
            found.update(
                json.dumps(
                    values | {key: sorted(values[key]) for key in names}, sort_keys=True
                ).encode()
            )
        else:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, found.copy)
    return found.hexdigest()
