"""``memalpha router train``: learned routing, from a YAML file; every option is also a flag."""

import argparse
import json
from pathlib import Path
from typing import Any

from memalpha.cli.console import out
from memalpha.cli.inputs import add_verb
from memalpha.config import listing
from memalpha.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    about = "Train and measure a learned router. Needs: --config FILE, one of configs/router. Makes: the run folder OUTPUT with "
    about += "metrics, checkpoint.pt and summary.json."
    parser = add_verb(verbs, "router", run, about, options="train --config FILE [--name value ...]")
    parser.add_argument("action", choices=("train",))
    parser.add_argument("--config", help="a file of configs/router")
    parser.add_argument("--output", help="run folder to make (default: runs/router/NAME_OF_CONFIG)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, last")
    parser.add_argument("--overwrite", action="store_true", help="replace a run folder that is there")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Train."""
    from memalpha.routing.run import GROUPS, load_config, train

    if arguments.options:
        out(listing(GROUPS))
        return 0
    if not arguments.config:
        raise InputError("memalpha router train without --config", expected="a file of configs/router")
    folder = Path(arguments.output or Path("runs") / "router" / Path(arguments.config).stem)
    report, config = None if arguments.json else _report, load_config(arguments.config, rest)
    summary = train(config, folder, report, overwrite=arguments.overwrite, resume=arguments.resume)
    told = "{learner}, seed {seed}: reward {reward:.4f} of at best {optimal:.4f} ({fraction_of_optimal:.3f} of the optimum) on "
    told += "{episodes} held-out episodes\n{steps} steps, {seconds} s; run folder: "
    out(json.dumps(summary) if arguments.json else told.format(**summary) + str(folder))
    return 0


def _report(row: dict[str, Any]) -> None:
    if "fraction_of_optimal" in row:
        told = "step {step} of {steps}: reward {reward:.3f}, {fraction_of_optimal:.3f} of the optimum on held-out episodes"
        out(told.format(**row))
