"""``memalpha warmup``, ``train`` and ``rollout``: options come from a YAML file and from flags."""

import argparse
import json
from pathlib import Path
from typing import Any

from memalpha.cli.console import Reporter, console, is_main_process, out, quiet_libraries
from memalpha.cli.inputs import add_verb
from memalpha.config import listing
from memalpha.errors import InputError
from memalpha.files import read_object


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    usage = "[--config FILE] [--name value ...]"
    about = "Teach a small model notation and tools. Needs: a base model, instances. Makes: output_dir with a LoRA adapter."
    add_verb(verbs, "warmup", run_warmup, about, options=usage)
    about = (
        "Train a memory agent with GRPO. Needs: a base model, training and held-out instances. Makes: the run folder output_dir."
    )
    add_verb(verbs, "train", run_train, about, options=usage)
    about = "Let an agent read instances, and write down everything it did. Needs: a training configuration. Makes: output_dir."
    parser = add_verb(verbs, "rollout", run_rollout, about, options=usage)
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, last")


def run_warmup(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Make a warm-start adapter."""
    from memalpha.training.warm_start import WARMUP_GROUPS, parse_warmup_arguments, warm_up

    if _only_listed(arguments, rest, WARMUP_GROUPS):
        return 0
    out(f"adapter: {warm_up(parse_warmup_arguments(rest), Reporter(is_main_process()))}")
    return 0


def run_train(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Train, then show results before and after."""
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    if _only_listed(arguments, rest, TRAIN_GROUPS):
        return 0
    parsed, reporter = parse_train_arguments(rest), Reporter(is_main_process())
    reporter("load", {"what": f"{parsed.run.model} and {parsed.run.train_data}"})
    from memalpha.training.run import train

    summary = train(parsed, reporter)
    if is_main_process():
        from memalpha.report.terminal import summary_table

        if "delta" in summary:
            console.print(summary_table(summary))
        out(f"run folder: {parsed.grpo.output_dir}")
    return 0


def run_rollout(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Run the configuration's adapter on its held-out instances."""
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    if _only_listed(arguments, rest, TRAIN_GROUPS):
        return 0
    from memalpha.training.run import evaluate

    parsed = parse_train_arguments(rest)
    evaluate(parsed, Reporter(not arguments.json))
    path = Path(str(parsed.grpo.output_dir)) / "summary.json"
    out(json.dumps(read_object(path)) if arguments.json else str(path))
    return 0


def _only_listed(arguments: argparse.Namespace, rest: list[str], groups: tuple[type, ...]) -> bool:
    quiet_libraries()
    if not rest and not arguments.options:
        raise InputError(
            f"memalpha {arguments.verb} without options", expected="--config FILE (see configs/train), or --name value"
        )
    if arguments.options:
        out(listing(groups))
    return bool(arguments.options)
