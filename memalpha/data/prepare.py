"""Prepare a data set: any source to a folder of ``instances.parquet`` and ``manifest.json``.

The folder is written under a temporary name and renamed last; instances stream. The same source,
input, options, seed and token counter give the same bytes. The counts account for every input
question.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

from memalpha.data.leaks import LeakCheck, LeakError, without
from memalpha.data.load import MANIFEST_NAME, Manifest, get_source, iter_prepared, read_manifest
from memalpha.data.packing import count_words_and_signs
from memalpha.data.schema import PARQUET_NAME, write_parquet
from memalpha.errors import InputError, MemAlphaError
from memalpha.files import file_sha256, replacing_folder
from memalpha.protocols import TokenCounter
from memalpha.types import Instance


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
    progress: Callable[[int], None] | None = None,
    check_against: Sequence[str | Path] = (),
    drop_leaks: bool = False,
) -> Manifest:
    """Make a folder of instances from a source of ``SOURCES`` and return its manifest; InputError
    if that cannot be.

    ``input`` is a file or Hub name, None for generated data. LeakError lists what repeats questions
    or contexts of the folders
    ``check_against``; with ``drop_leaks`` it is skipped. ``token_counter`` names ``count_tokens``
    in the manifest.
    """
    source, folder = get_source(name), Path(output).resolve()
    held = (
        sorted(item.name for item in folder.iterdir())
        if folder.is_dir()
        else [folder.name] * folder.exists()
    )
    if held and (not overwrite or {*held} - {PARQUET_NAME, MANIFEST_NAME}):
        expected = (
            "a folder that does not exist yet, or one that an earlier call made, with --overwrite"
        )
        raise InputError(
            f"output {folder} exists and holds {', '.join(held[:5])}", expected=expected
        )
    made_with, leaks = source.parse(options), LeakCheck()
    for other in check_against:
        leaks.learn(
            iter_prepared(other), own_examples=not read_manifest(other).options.get("examples")
        )
    count = lru_cache(maxsize=256)(count_tokens)  # the loader and the manifest count the same chunk
    result = source.load(input, options, seed, count)
    counts: Counter[str] = Counter()

    def kept() -> Iterator[Instance]:
        for instance in result.instances:
            found = leaks.check(instance, own_examples=not getattr(made_with, "examples", ""))
            left = without(instance, found) if drop_leaks else instance
            result.skipped["repeats a checked set"] += len(instance.questions) - (
                len(left.questions) if left else 0
            )
            if left is not None:
                yield left
                lengths = [count(chunk.text) for chunk in left.chunks]
                counts.update(instances=1, chunks=len(lengths), questions=len(left.questions))
                counts["tokens of chunks"] += sum(lengths)
                counts["tokens of questions"] += sum(
                    count(question.text) for question in left.questions
                )
                counts["tokens of longest_chunk"] = max(counts["tokens of longest_chunk"], *lengths)
                if progress is not None:
                    progress(counts["instances"])

    with replacing_folder(folder) as partial:
        write_parquet(partial / PARQUET_NAME, kept())
        if source.needs_input and result.asked != counts["questions"] + sum(
            result.skipped.values()
        ):
            made = f"made {counts['questions']} and skipped {dict(+result.skipped)}: some are lost or counted twice"
            fix = "this is a fault of the loader, not of the input; please report it"
            raise MemAlphaError(
                f"source {name!r} read {result.asked} questions, {made}\n  to fix: {fix}"
            )
        if not counts["instances"]:
            reasons = (
                ", ".join(f"{number} {reason}" for reason, number in result.skipped.most_common())
                or "no question found"
            )
            problem = f"; the first problem: {result.problems[0]}" if result.problems else ""
            made = f"source {name!r} made no instance{f' of {input}' if input else ''}"
            raise InputError(
                f"{made}: {reasons}{problem}", expected="at least one question that can be kept"
            )
        if leaks.leaks and not drop_leaks:
            raise LeakError(f"{name} from {input}" if input else name, leaks.leaks)
        shown = (
            None if input is None else Path(input).name if Path(input).exists() else str(input)
        )  # a folder is machine-specific
        manifest = Manifest(
            source=source.name,
            input=shown,
            instances=counts["instances"],
            chunks=counts["chunks"],
            questions=counts["questions"],
            skipped=dict(sorted((+result.skipped).items())),
            tokens={
                name: counts[f"tokens of {name}"]
                for name in ("chunks", "questions", "longest_chunk")
            },
            token_counter=token_counter,
            sha256=file_sha256(partial / PARQUET_NAME),
            seed=seed,
            options=json.loads(json.dumps(asdict(made_with))),  # tuples as lists, as in the file
            notes=dict(sorted((+result.notes).items())),
            problems=result.problems,
            asked=result.asked or counts["questions"],
            checked_against=[Path(other).name for other in check_against],
        )
        text = json.dumps(asdict(manifest), ensure_ascii=False, indent=2)
        (partial / MANIFEST_NAME).write_text(
            text + "\n", encoding="utf-8", errors="replace"
        )  # file names may hold surrogates
    return manifest
