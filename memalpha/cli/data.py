"""``memalpha prepare``: make a folder of instances."""

import argparse
from typing import Any

from memalpha.cli.console import console, out
from memalpha.cli.inputs import add_verb
from memalpha.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    prepare = add_verb(
        verbs,
        "prepare",
        run_prepare,
        "Make a folder of instances from a data set. Needs: its original file, if any.",
    )
    prepare.add_argument(
        "name",
        help="source: squad, hotpotqa, locomo, longmemeval, trec_coarse, synthetic, ... (docs/data.md)",
    )
    prepare.add_argument(
        "--input",
        help="original file or folder, or OWNER/NAME[:CONFIGURATION] on the Hugging Face Hub",
    )
    prepare.add_argument("--output", required=True, help="folder to make, such as runs/data/mine")
    prepare.add_argument(
        "--seed", type=int, default=0, help="of everything that is drawn (default: %(default)s)"
    )
    several: dict[str, Any] = {"action": "append", "default": []}
    prepare.add_argument(
        "--option", **several, metavar="NAME=VALUE", help="an option of the source; may be repeated"
    )
    prepare.add_argument(
        "--model", help="count tokens with this model's tokenizer instead of words"
    )
    prepare.add_argument(
        "--check-against",
        **several,
        metavar="FOLDER",
        help="no question or context of this folder may come again",
    )
    prepare.add_argument(
        "--drop-leaks",
        action="store_true",
        help="leave out, and count, what comes again rather than refuse",
    )
    prepare.add_argument(
        "--overwrite", action="store_true", help="replace a folder prepared before"
    )


def run_prepare(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Prepare a data set and print a short manifest."""
    from memalpha.data.load import prepare
    from memalpha.data.packing import count_words_and_signs, tokenizer_counter
    from memalpha.models import resolve_model

    if wrong := next((text for text in arguments.option if "=" not in text), None):
        raise InputError(f"--option {wrong!r}", expected="NAME=VALUE")
    given, options = arguments, dict(text.split("=", 1) for text in arguments.option)
    count_tokens = (
        tokenizer_counter(str(resolve_model(given.model))) if given.model else count_words_and_signs
    )
    with console.status(f"preparing {given.name}") as status:
        manifest = prepare(
            given.name,
            given.input,
            given.output,
            seed=given.seed,
            options=options,
            count_tokens=count_tokens,
            token_counter=given.model or "words",
            overwrite=given.overwrite,
            check_against=given.check_against,
            drop_leaks=given.drop_leaks,
            progress=lambda done: status.update(f"preparing {given.name}: {done} instances"),
        )
    skipped = ", ".join(f"{count} {reason}" for reason, count in manifest.skipped.items()) or "none"
    out(
        f"{manifest.instances} instances, {manifest.chunks} chunks, {manifest.questions} questions; skipped: {skipped}"
    )
    out(f"{arguments.output}/manifest.json")
