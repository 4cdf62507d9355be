"""``memalpha evaluate``: systems under one protocol, from a configuration, or one trained agent on one set."""

import argparse
import json
from pathlib import Path
from typing import Any

from memalpha.cli.console import Reporter, out, quiet_libraries
from memalpha.cli.inputs import add_verb, list_options
from memalpha.errors import InputError
from memalpha.files import read_object


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = add_verb(
        verbs,
        "evaluate",
        run,
        (
            "Compare systems under one protocol, or measure a trained agent. Needs: --config FILE with sets, systems and readers; "
            "or --trained and --data. Makes: output_dir with results.jsonl, summary.json, table.md. Run again, it goes on."
        ),
        options="[--config FILE] [--trained FOLDER --data SET] [--name value ...]",
    )
    parser.add_argument("--trained", metavar="FOLDER", help="adapter or run folder to measure, with the settings it has")
    parser.add_argument("--data", help="with --trained: prepared folder, file of instances, or a generated source")
    parser.add_argument("--trust-tools", action="store_true", help="import the functions that its schema names as tools")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, last")


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Run or continue an evaluation; return 1 if some results failed."""
    quiet_libraries()
    from memalpha.evaluation.options import GROUPS, parse_evaluate_options
    from memalpha.evaluation.run import evaluate
    from memalpha.models.policy import agent_folder, base_of

    list_options(arguments, GROUPS)
    if bool(arguments.trained) != bool(arguments.data):
        raise InputError(f"--trained is {arguments.trained!r} and --data is {arguments.data!r}", expected="both, or --config FILE")
    if arguments.trained:
        folder = agent_folder(arguments.trained)
        system = {
            "name": Path(arguments.trained).name,
            "kind": "agent",
            "adapter": str(folder),
            "settings": "own",
            "trust_tools": arguments.trust_tools,
        }
        lists = ["--systems", json.dumps([system]), "--sets", json.dumps([{"data": arguments.data}])]
        named = any(word.partition("=")[0] == "--model" for word in rest)
        rest = [*([] if named else ["--model", base_of(folder)]), *lists, *rest]
    outcome = evaluate(parse_evaluate_options(rest), Reporter(not arguments.json))
    out(json.dumps(read_object(outcome.folder / "summary.json")) if arguments.json else str(outcome.folder / "table.md"))
    return 1 if outcome.failed else 0
