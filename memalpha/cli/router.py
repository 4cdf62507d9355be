"""``memalpha router``: train learned routing from a YAML file, every option also a flag; select a
tool, report how it did.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from memalpha.cli.console import out
from memalpha.cli.inputs import add_verb, list_options
from memalpha.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "router",
        run,
        (
            "Train and measure a learned router, or select a tool. Needs: --config FILE, one of configs/router. Makes: the run "
            "folder OUTPUT with metrics, checkpoint.pt and summary.json. select needs --tools and --selector, a file made if new."
        ),
        options="(train --config FILE [--name value ...] | select [QUERY] ...)",
    )
    parser.add_argument("action", choices=("train", "select"))
    parser.add_argument("query", nargs="?", help="select: what a tool is wanted for")
    parser.add_argument(
        "--tools", help="select: YAML or JSON file {tools: {name: description}, options: {...}}"
    )
    parser.add_argument("--selector", help="select: file of the saved selector")
    parser.add_argument("--context", default="", help="select: what is known so far")
    parser.add_argument(
        "--greedy",
        action="store_true",
        help="select: take the likeliest tool; nothing is learned from it",
    )
    parser.add_argument(
        "--reward", type=float, help="report how well a selected tool did, instead of a query"
    )
    parser.add_argument(
        "--selection",
        type=int,
        help="which selection the reward is for (default: the last without one)",
    )
    parser.add_argument("--config", help="a file of configs/router")
    parser.add_argument("--output", help="run folder to make (default: runs/router/NAME_OF_CONFIG)")
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON object, last"
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="replace a run folder that is there"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")


def run(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Train."""
    from memalpha.routing.run import GROUPS, load_config, train

    list_options(arguments, GROUPS)
    if arguments.action == "select":
        select(arguments, rest)
        return
    if arguments.query is not None:
        raise InputError(
            f"memalpha router train {arguments.query}",
            expected="--config FILE and options, --name value",
        )
    if not arguments.config:
        raise InputError(
            "memalpha router train without --config", expected="a file of configs/router"
        )
    folder = Path(arguments.output or Path("runs") / "router" / Path(arguments.config).stem)
    summary = train(
        load_config(arguments.config, rest),
        folder,
        None if arguments.json else _report,
        overwrite=arguments.overwrite,
        resume=arguments.resume,
    )
    told = "{learner}, seed {seed}: reward {reward} on {episodes} held-out episodes"
    told += (
        ", at best {optimal:.4f} ({fraction_of_optimal:.3f} of the optimum)"
        if "optimal" in summary
        else ""
    )
    told += "\n{steps} steps, {seconds} s; run folder: "
    out(json.dumps(summary) if arguments.json else told.format(**summary) + str(folder))


def select(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Select a tool, or report the outcome of a selection; both are kept in the selector's file."""
    from memalpha.use.tools import open_selector, read_tools

    asks, reports = arguments.query is not None, arguments.reward is not None
    if rest or not arguments.tools or not arguments.selector or asks is reports:
        raise InputError(
            f"memalpha router select {' '.join(rest)}".strip(),
            expected="QUERY or --reward NUMBER, with --tools FILE and --selector FILE",
        )
    path = Path(arguments.selector)
    selector = open_selector(path, *read_tools(arguments.tools))
    if asks:
        chosen = selector.select(arguments.query, arguments.context, explore=not arguments.greedy)
        told, lines = chosen._asdict(), [f"{chosen.tool} (selection {chosen.number})"]
        lines += [
            f"  {share:.3f}  {name}"
            for name, share in sorted(chosen.probabilities.items(), key=lambda pair: -pair[1])
        ]
    else:
        waiting = selector.stats()["waiting"]
        if arguments.selection is None and not waiting:
            raise InputError(
                f"no selection in {path} waits for an outcome", expected="one made without --greedy"
            )
        number = waiting[-1] if arguments.selection is None else arguments.selection
        report = selector.observe(number, arguments.reward)
        told = {
            "selection": number,
            "reward": arguments.reward,
            "updates": selector.updates,
            "report": report,
        }
        lines = [
            f"selection {number}: {arguments.reward:g}; {selector.observations} outcomes, {selector.updates} updates"
        ]
    selector.save(path)
    out(json.dumps(told) if arguments.json else "\n".join(lines))


def _report(row: dict[str, Any]) -> None:
    if "held_out" in row:
        out(
            "step {step} of {steps}: reward {reward:.3f}, {held_out} on held-out episodes".format(
                **row
            )
        )
    if "fraction_of_optimal" in row:
        out(
            "step {step} of {steps}: reward {reward:.3f}, {fraction_of_optimal:.3f} of the optimum on held-out episodes".format(
                **row
            )
        )
