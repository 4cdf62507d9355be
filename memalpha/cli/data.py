"""``memalpha prepare``: make a folder of instances from original files or a generator."""

from __future__ import annotations

import argparse
from typing import Any

from memalpha.cli.console import console, out
from memalpha.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "prepare",
        help="make a folder of instances from a data set",
        description="Needs: a source's original file, if any. Makes: OUTPUT/instances.parquet, OUTPUT/manifest.json.",
    )
    parser.add_argument("name", help="source: squad, hotpotqa, locomo, longmemeval, trec_coarse, synthetic, ... (docs/data.md)")
    parser.add_argument("--input", help="original file or folder, or OWNER/NAME[:CONFIGURATION] on the Hugging Face Hub")
    parser.add_argument("--output", required=True, help="folder to make, such as runs/data/mine")
    parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="an option of the source; may be repeated"
    )
    parser.add_argument("--model", help="count tokens with this model's tokenizer instead of words")
    parser.add_argument(
        "--check-against",
        action="append",
        default=[],
        metavar="FOLDER",
        help="prepared folder of which no question and no context may come again, exactly or nearly; may be repeated",
    )
    parser.add_argument("--drop-leaks", action="store_true", help="leave out, and count, what comes again rather than refuse")
    parser.add_argument("--overwrite", action="store_true", help="replace a folder prepared before")
    parser.set_defaults(run=run, takes_more=False)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Prepare a data set and print a short manifest."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from memalpha.data.packing import count_words_and_signs, tokenizer_counter
    from memalpha.data.prepare import prepare
    from memalpha.models import resolve_model

    options = dict(_pair(text) for text in arguments.option)
    count = tokenizer_counter(str(resolve_model(arguments.model))) if arguments.model else count_words_and_signs
    columns = (SpinnerColumn(), TextColumn("{task.description}: {task.completed} instances"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(f"preparing {arguments.name}", total=None)
        manifest = prepare(
            arguments.name,
            arguments.input,
            arguments.output,
            seed=arguments.seed,
            options=options,
            count_tokens=count,
            token_counter=arguments.model or "words",
            overwrite=arguments.overwrite,
            check_against=arguments.check_against,
            drop_leaks=arguments.drop_leaks,
            progress=lambda done: progress.update(task, completed=done),
        )
    skipped = ", ".join(f"{count} {reason}" for reason, count in manifest.skipped.items()) or "none"
    out(f"{manifest.instances} instances, {manifest.chunks} chunks, {manifest.questions} questions; skipped: {skipped}")
    out(f"{arguments.output}/manifest.json")
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not found:
        raise InputError(f"--option {text!r}", expected="NAME=VALUE")
    return name, value
