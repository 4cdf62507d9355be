"""``memalpha warmup``, ``train`` and ``rollout``: options come from a YAML file and from flags."""

import argparse
import json
from pathlib import Path
from typing import Any

from memalpha.cli.console import Reporter, console, is_main_process, out, quiet_libraries
from memalpha.cli.inputs import add_verb, list_options
from memalpha.errors import InputError
from memalpha.files import read_object


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    usage = "[--config FILE] [--name value ...]"
    add_verb(
        verbs,
        "warmup",
        run_warmup,
        "Teach a small model notation and tools. Needs: a base model, instances. Makes: output_dir with a LoRA adapter.",
        options=usage,
    )
    add_verb(
        verbs,
        "train",
        run_train,
        "Train a memory agent with GRPO. Needs: a base model, training and held-out instances. Makes: the run folder output_dir.",
        options=usage,
    )
    parser = add_verb(
        verbs,
        "rollout",
        run_rollout,
        "Let an agent read instances, and write down everything it did. Needs: a training configuration. Makes: output_dir.",
        options=usage,
    )
    parser.add_argument(
        "--json", action="store_true", help="print the summary as one JSON object, last"
    )


def run_warmup(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Make a warm-start adapter."""
    from memalpha.training.warm_start import WARMUP_GROUPS, parse_warmup_arguments, warm_up

    _begin(arguments, rest, WARMUP_GROUPS)
    out(f"adapter: {warm_up(parse_warmup_arguments(rest), Reporter(is_main_process()))}")


def run_train(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Train, then show results before and after."""
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    _begin(arguments, rest, TRAIN_GROUPS)
    parsed, reporter = parse_train_arguments(rest), Reporter(is_main_process())
    reporter("load", {"what": f"{parsed.run.model} and {parsed.run.train_data}"})
    from memalpha.training.run import train

    summary = train(parsed, reporter)
    if is_main_process():
        from memalpha.measure.tables import before_and_after, terminal
        from memalpha.record.folder import RunFolder

        if "delta" in summary:
            console.print(terminal(before_and_after(RunFolder(str(parsed.grpo.output_dir)))))
        out(f"run folder: {parsed.grpo.output_dir}")


def run_rollout(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Run the configuration's adapter on its held-out instances."""
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    _begin(arguments, rest, TRAIN_GROUPS)
    from memalpha.training.run import roll_out

    parsed = parse_train_arguments(rest)
    roll_out(parsed, Reporter(not arguments.json))
    path = Path(str(parsed.grpo.output_dir)) / "summary.json"
    out(json.dumps(read_object(path)) if arguments.json else str(path))


def _begin(arguments: argparse.Namespace, rest: list[str], groups: tuple[type, ...]) -> None:
    quiet_libraries()
    list_options(arguments, groups)
    if not rest:
        raise InputError(
            f"memalpha {arguments.verb} without options",
            expected="--config FILE (see configs/train), or --name value",
        )
