"""``memalpha export``: a trained agent as a separate folder, and to the Hub."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from memalpha.cli.console import out, quiet_libraries
from memalpha.cli.inputs import add_verb, read_options
from memalpha.config import Options
from memalpha.files import path_of


@dataclass(frozen=True, slots=True)
class ExportOptions(Options):
    """What to make.

    Attributes:
        output: Folder to make.
        merge: Merge the adapter into its base and check the whole model against both.
        model: Base of the adapter; null takes the one it names.
        dtype: Type of the stored weights; null keeps an adapter's, and stores a merged model in float32.
        note: A line for the card about what this agent cannot do.
        push: Upload the folder to this Hub repository, OWNER/NAME.
        private: Make a new repository private.
    """

    output: str
    merge: bool = False
    model: str | None = None
    dtype: str | None = None
    note: str = ""
    push: str = ""
    private: bool = False


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    add_verb(
        verbs,
        "export",
        run,
        help="write a trained agent as a folder that stands alone, with a model card",
        description="Needs: a trained folder (a run, an adapter or a whole model). Makes: --output DIR with weights, tokenizer, "
        "configuration, schema and README.md; with --push a repository on the Hub. All options: --options.",
        epilog="memalpha export runs/mine --output exported --merge",
    )


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Export, and upload if asked to."""
    from memalpha.use.export import export, push

    quiet_libraries()
    trained, options = read_options(arguments, rest, ExportOptions)
    for option, folder in (("TRAINED", trained), ("--output", options.output)):
        path_of(folder, f"the name of a folder for {option}")
    done = export(
        trained,
        options.output,
        model=options.model,
        merge=options.merge,
        dtype=options.dtype,
        repo=options.push,
        note=options.note,
    )
    if done.largest_difference is not None:
        out(f"merged; largest difference of a logit to base and adapter: {done.largest_difference:.2g}")
    out(str(done.folder))
    if options.push:
        out(push(done.folder, options.push, private=options.private))
    return 0
