"""``memalpha evaluate``: systems under one protocol, or one trained agent on one set; ``memalpha
poison``: agents under attack.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from memalpha.cli.console import Reporter, out, quiet_libraries
from memalpha.cli.inputs import add_verb, list_options
from memalpha.errors import InputError
from memalpha.files import read_object

UNTRAINED = "untrained"


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    about = (
        "Compare systems under one protocol, or measure a trained agent. Needs: --config FILE with sets, systems and readers; "
        "or --trained and --data. Makes: output_dir with results.jsonl, summary.json, table.md. Run again, it goes on."
    )
    parser = add_verb(
        verbs,
        "evaluate",
        run_evaluate,
        about,
        options="[--config FILE] [--trained FOLDER --data SET] [--name value ...]",
    )
    parser.add_argument(
        "--trained",
        metavar="FOLDER",
        help="adapter or run folder to measure, with the settings it has",
    )
    parser.add_argument(
        "--data", help="with --trained: prepared folder, file of instances, or a generated source"
    )
    parser.add_argument(
        "--trust-tools",
        action="store_true",
        help="import the functions that its schema names as tools",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON object, last"
    )
    about = (
        "Attack policies with hostile chunks and count what they let in. Needs: trained agents. Shows: for each attack how often "
        "it succeeds, with a 95% interval, beside the same chunks without it. Makes: OUTPUT, a JSON file with every trial."
    )
    parser = add_verb(verbs, "poison", run_poison, about)
    text = f"a trained folder, or {UNTRAINED!r}: the base without adapter"
    parser.add_argument("policies", nargs="+", metavar="TRAINED", help=text)
    parser.add_argument(
        "--like",
        help=f"folder whose base and configuration {UNTRAINED!r} takes (default: the first folder)",
    )
    parser.add_argument("--schema", help="another memory schema than the trained one")
    parser.add_argument(
        "--per-attack", type=int, default=8, help="trials of each attack (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of dialogues and marks (default: %(default)s)"
    )
    parser.add_argument(
        "--dtype", default="float32", help="type of the base's weights (default: %(default)s)"
    )
    parser.add_argument(
        "--trust-tools",
        action="store_true",
        help="import the functions that the agents' schemas name as tools",
    )
    parser.add_argument("--output", help="JSON file to write")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object")


def run_evaluate(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Run or continue an evaluation; return 1 if some results failed."""
    quiet_libraries()
    from memalpha.measure.options import GROUPS, parse_evaluate_options
    from memalpha.measure.run import evaluate
    from memalpha.models.policy import agent_folder, base_of

    list_options(arguments, GROUPS)
    if bool(arguments.trained) != bool(arguments.data):
        raise InputError(
            f"--trained is {arguments.trained!r} and --data is {arguments.data!r}",
            expected="both, or --config FILE",
        )
    if arguments.trained:
        folder = agent_folder(arguments.trained)
        system = {
            "name": Path(arguments.trained).name,
            "kind": "agent",
            "adapter": str(folder),
            "settings": "own",
            "trust_tools": arguments.trust_tools,
        }
        lists = [
            "--systems",
            json.dumps([system]),
            "--sets",
            json.dumps([{"data": arguments.data}]),
        ]
        named = any(word.partition("=")[0] == "--model" for word in rest)
        rest = [*([] if named else ["--model", base_of(folder)]), *lists, *rest]
    outcome = evaluate(parse_evaluate_options(rest), Reporter(not arguments.json))
    out(
        json.dumps(read_object(outcome.folder / "summary.json"))
        if arguments.json
        else str(outcome.folder / "table.md")
    )
    return 1 if outcome.failed else 0


def run_poison(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Run the suite against each policy."""
    from memalpha.measure.attacks import run_trials, summarise_trials
    from memalpha.record.folder import environment

    quiet_libraries()
    record: dict[str, Any] = {
        "environment": environment(),
        "seed": arguments.seed,
        "per_attack": arguments.per_attack,
        "policies": {},
    }
    for name in arguments.policies:
        step, generator = _load(name, arguments)
        trials = run_trials(step, generator, arguments.per_attack, arguments.seed)
        summary = summarise_trials(trials, bool(step.schema.blocks))
        record["policies"][name] = {**summary, "trials": [trial.to_json() for trial in trials]}
        if arguments.output:
            Path(arguments.output).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        if not arguments.json:
            _show(name, summary)
    if arguments.json:
        summaries = {
            name: {key: row[key] for key in row if key != "trials"}
            for name, row in record["policies"].items()
        }
        out(json.dumps({**record, "policies": summaries}))
    return 0


def _load(name: str, arguments: argparse.Namespace) -> Any:
    from memalpha.agent.step import AgentStep
    from memalpha.generation.hf import HFGenerator
    from memalpha.models import load_policy_model
    from memalpha.models.policy import base_of
    from memalpha.use.agent import find_trained, load_trained

    like = next(
        (
            other
            for other in (name, arguments.like, *arguments.policies)
            if other and other != UNTRAINED
        ),
        None,
    )
    if like is None:
        raise InputError(
            f"{UNTRAINED!r} alone",
            expected="to know whose base",
            fix="add --like FOLDER, or another policy",
        )
    step, generator, _ = load_trained(
        like, dtype=arguments.dtype, trust_tools=arguments.trust_tools
    )
    if name == UNTRAINED:
        loaded = load_policy_model(base_of(find_trained(like)[0]), dtype=arguments.dtype)
        generator = HFGenerator(loaded.model.eval(), loaded.tokenizer)
    if arguments.schema:
        step = AgentStep(replace(step.config, schema=arguments.schema), step.encoder.tokenizer)
    return step, generator


def _show(name: str, summary: dict[str, Any]) -> None:
    out(f"{name}: how often an attack succeeds, with its 95% interval, and without the attack")
    rows = [(attack, row["rate"], row["control"]) for attack, row in summary["attacks"].items()]
    whole = {
        "mark persisted": "instructions_persisted",
        "in the attack's own words": "instructions_verbatim",
    }
    rows += [(f"any: {what}", summary[key], None) for what, key in whole.items()]
    rows.append(
        ("any: entries lost", summary["entries_lost"], summary["entries_lost_without_attack"])
    )
    for label, rate, control in rows:
        beside = f"; {control['hits']} of {control['trials']} without" if control else ""
        out(
            f"  {label:32}{rate['hits']} of {rate['trials']} [{rate['low']:.2f}, {rate['high']:.2f}]{beside}"
        )
