"""``memalpha export``: a trained agent as a folder of its own, and onto the Hub."""

from __future__ import annotations

import argparse
from typing import Any

from memalpha.cli.console import out, quiet_libraries
from memalpha.files import path_of


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "export",
        help="write a trained agent as a folder that stands alone, with a model card",
        description="Needs: a trained folder (a run, an adapter or a whole model). Makes: DIR with weights, tokenizer, "
        "configuration, schema and README.md; with --push a repository on the Hub.",
        epilog="memalpha export runs/mine --output exported --merge",
    )
    parser.add_argument("trained", metavar="TRAINED", help="a run folder, an adapter's or a whole model's")
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to make")
    parser.add_argument("--merge", action="store_true", help="merge the adapter into its base: a whole model, checked against both")
    parser.add_argument("--model", help="base of the adapter (default: the one it names)")
    parser.add_argument("--dtype", help="type of the weights on disk (default: an adapter's as they are, else float32)")
    parser.add_argument("--note", default="", help="a line for the card about what this agent cannot do")
    parser.add_argument("--push", metavar="OWNER/NAME", help="upload the folder to this repository on the Hub")
    parser.add_argument("--private", action="store_true", help="make the repository private if it is new")
    parser.set_defaults(run=run, takes_more=False)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Export, and upload if asked to."""
    from memalpha.use.export import export, push

    quiet_libraries()
    for option, folder in (("TRAINED", arguments.trained), ("--output", arguments.output)):
        path_of(folder, f"the name of a folder for {option}")
    repo = arguments.push or ""
    done = export(
        arguments.trained,
        arguments.output,
        model=arguments.model,
        merge=arguments.merge,
        dtype=arguments.dtype,
        repo=repo,
        note=arguments.note,
    )
    if done.largest_difference is not None:
        out(f"merged; largest difference of a logit to base and adapter: {done.largest_difference:.2g}")
    out(str(done.folder))
    if repo:
        out(push(done.folder, repo, private=arguments.private))
    return 0
