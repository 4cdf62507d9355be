"""Prepare a data set: any source to a folder of ``instances.parquet`` and ``manifest.json``.

The folder is written under a temporary name and renamed last. Instances stream; memory holds only their ids. The same source,
input, options, seed and token counter give the same bytes. The manifest's counts account for every input question, and its sha256
is that of the instances' file. Nothing is written that repeats the folders to check against (``memalpha.data.leaks``).
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from memalpha import __version__
from memalpha.data.counting import count_words_and_signs
from memalpha.data.leaks import LeakCheck, LeakError, without
from memalpha.data.registry import get_source
from memalpha.data.schema import FILE_NAME, PARQUET_NAME, iter_instances, iter_parquet, write_parquet
from memalpha.data.source import LoadResult
from memalpha.errors import InputError, MemAlphaError, SchemaError
from memalpha.files import file_sha256
from memalpha.protocols import TokenCounter
from memalpha.types import Instance

MANIFEST_NAME = "manifest.json"

REPEATS = "repeats a checked set"
"""Skip reason of a question that repeats a checked set, alone or by its context."""

Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class Manifest:
    """Contents and origin of a prepared folder; data/README.md describes the fields."""

    source: str
    input: str | None
    instances: int
    chunks: int
    questions: int
    skipped: dict[str, int]
    tokens: dict[str, int]
    token_counter: str
    sha256: str
    seed: int
    options: dict[str, Any]
    notes: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    asked: int = 0
    checked_against: list[str] = field(default_factory=list)
    version: str = __version__


class Prepared(NamedTuple):
    """A prepared folder, read and verified."""

    manifest: Manifest
    instances: list[Instance]


def prepare(
    name: str,
    input: str | Path | None,
    output: str | Path,
    *,
    seed: int = 0,
    options: Mapping[str, Any] | None = None,
    count_tokens: TokenCounter = count_words_and_signs,
    token_counter: str = "words",
    overwrite: bool = False,
    progress: Progress | None = None,
    check_against: Sequence[str | Path] = (),
    drop_leaks: bool = False,
) -> Manifest:
    """Make a folder of instances from a source of ``SOURCES`` and return its manifest.

    ``input`` is a file or Hub name, None for generated data; ``output`` may exist if empty, or with ``overwrite``. Questions and
    contexts of the folders ``check_against`` must not repeat here: LeakError lists repeats; with ``drop_leaks`` the question, or
    all questions of a repeated context, are skipped. ``token_counter`` names ``count_tokens`` in the manifest. InputError if an
    argument is invalid, the input cannot be read or gives no instance, or the output exists.
    """
    source, folder = get_source(name), Path(output).resolve()
    _check_output(folder, overwrite=overwrite)
    made_with, leaks = source.parse(options), LeakCheck()
    for other in check_against:
        leaks.learn(iter_prepared(other), own_examples=not read_manifest(other).options.get("examples"))
    count = lru_cache(maxsize=256)(count_tokens)  # the loader and the manifest count the same chunk
    result = source.load(input, options, seed, count)
    counts: Counter[str] = Counter()
    shown = None if input is None else Path(input).name if Path(input).exists() else str(input)  # a folder is machine-specific
    with _replacing(folder) as partial:
        checked = _checked(result, leaks, own_examples=not getattr(made_with, "examples", ""), drop=drop_leaks)
        write_parquet(partial / PARQUET_NAME, _counted(checked, counts, count, result.total, progress))
        if source.needs_input:
            _check_balance(name, result, counts["questions"])
        if not counts["instances"]:
            reasons = ", ".join(f"{number} {reason}" for reason, number in result.skipped.most_common()) or "no question found"
            problem = f"; the first problem: {result.problems[0]}" if result.problems else ""
            made = f"source {name!r} made no instance{f' of {input}' if input else ''}"
            raise InputError(f"{made}: {reasons}{problem}", expected="at least one question that can be kept")
        if leaks.leaks and not drop_leaks:
            raise LeakError(f"{name} from {input}" if input else name, leaks.leaks)
        manifest = Manifest(
            source=source.name,
            input=shown,
            instances=counts["instances"],
            chunks=counts["chunks"],
            questions=counts["questions"],
            skipped=_positive(result.skipped),
            tokens={
                "chunks": counts["chunk tokens"],
                "questions": counts["question tokens"],
                "longest_chunk": counts["longest chunk"],
            },
            token_counter=token_counter,
            sha256=file_sha256(partial / PARQUET_NAME),
            seed=seed,
            options=json.loads(json.dumps(asdict(made_with))),  # tuples as lists, as in the file
            notes=_positive(result.notes),
            problems=result.problems,
            asked=result.asked or counts["questions"],
            checked_against=[Path(other).name for other in check_against],
        )
        text = json.dumps(asdict(manifest), ensure_ascii=False, indent=2)
        (partial / MANIFEST_NAME).write_text(text + "\n", encoding="utf-8", errors="replace")  # file names may hold surrogates
    return manifest


def read_manifest(folder: str | Path) -> Manifest:
    """Read a prepared folder's manifest; InputError if it is missing or invalid."""
    path = Path(folder) / MANIFEST_NAME
    try:
        return Manifest(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        fix = "make one with: memalpha prepare"
        raise InputError(f"{folder} has no {MANIFEST_NAME}", expected="a prepared folder", fix=fix) from error
    except (ValueError, TypeError) as error:
        raise SchemaError(f"{path} is not a manifest: {error}", expected="an object as memalpha prepare writes it") from error


def load_prepared(folder: str | Path) -> Prepared:
    """Read a prepared folder and verify its checksum; InputError if it is missing or changed."""
    return Prepared(read_manifest(folder), list(iter_prepared(folder)))


def iter_prepared(folder: str | Path) -> Iterator[Instance]:
    """Yield the instances of a prepared folder; raises as ``load_prepared``. Also reads ``instances.jsonl`` of earlier versions."""
    manifest, fix = read_manifest(folder), "prepare it again with overwrite"
    path = next((path for name in (PARQUET_NAME, FILE_NAME) if (path := Path(folder) / name).is_file()), None)
    if path is None:
        raise InputError(f"{folder} has no {PARQUET_NAME}", expected="a prepared folder", fix=fix)
    if (found := file_sha256(path)) != manifest.sha256:
        raise InputError(f"{path} has sha256 {found}", expected=f"{manifest.sha256}, as its manifest says", fix=fix)
    return iter_parquet(path) if path.name == PARQUET_NAME else iter_instances(path)


def _checked(result: LoadResult, leaks: LeakCheck, *, own_examples: bool, drop: bool) -> Iterator[Instance]:
    for instance in result.instances:
        found = leaks.check(instance, own_examples=own_examples)
        kept = without(instance, found) if drop else instance
        result.skip(REPEATS, len(instance.questions) - (len(kept.questions) if kept else 0))
        if kept is not None:
            yield kept


def _counted(
    instances: Iterator[Instance], counts: Counter[str], count: TokenCounter, total: int | None, progress: Progress | None
) -> Iterator[Instance]:
    for instance in instances:
        yield instance
        lengths = [count(chunk.text) for chunk in instance.chunks]
        counts["instances"] += 1
        counts["chunks"] += len(lengths)
        counts["questions"] += len(instance.questions)
        counts["chunk tokens"] += sum(lengths)
        counts["question tokens"] += sum(count(question.text) for question in instance.questions)
        counts["longest chunk"] = max(counts["longest chunk"], *lengths)
        if progress is not None:
            progress(counts["instances"], total)


def _check_balance(name: str, result: LoadResult, questions: int) -> None:
    if result.asked != questions + sum(result.skipped.values()):
        raise MemAlphaError(
            f"source {name!r} read {result.asked} questions, made {questions} and skipped {dict(result.skipped)}: "
            "some are lost or counted twice\n  to fix: this is a fault of the source's loader, not of the input; please report it"
        )


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Give a temporary folder that replaces ``folder`` at the end, or is removed on an error."""
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}.partial")
    try:
        partial.mkdir(parents=True)
        yield partial
        if folder.exists():
            old = partial.with_suffix(".old")
            folder.rename(old)
            partial.rename(folder)
            shutil.rmtree(old)
        else:
            partial.rename(folder)
    except OSError as error:
        raise InputError(f"cannot write {folder}: {error}", expected="a folder that can be made there") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _check_output(folder: Path, *, overwrite: bool) -> None:
    held = sorted(item.name for item in folder.iterdir()) if folder.is_dir() else [folder.name] * folder.exists()
    others = [name for name in held if name not in (PARQUET_NAME, FILE_NAME, MANIFEST_NAME)]
    if held and (others or not overwrite):
        expected = "a folder that does not exist yet, or one that an earlier call made, with --overwrite"
        raise InputError(f"output {folder} exists and holds {', '.join(held[:5])}", expected=expected, fix="choose another folder")


def _positive(counts: Mapping[str, int]) -> dict[str, int]:
    return {key: counts[key] for key in sorted(counts) if counts[key]}
