"""``memalpha warmup`` and ``memalpha train``: options come from a YAML file and from flags."""

from __future__ import annotations

import argparse
from typing import Any

from memalpha.cli.console import Reporter, console, is_main_process, out, quiet_libraries
from memalpha.config import listing
from memalpha.errors import InputError


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    warmup = verbs.add_parser(
        "warmup",
        help="teach a small model the notation and every tool, on demonstrations",
        description="Needs: a base model and instances to demonstrate on. Makes: output_dir with a LoRA adapter. "
        "All options: --options.",
        epilog="memalpha warmup --config configs/train/warmup.yaml --output_dir runs/warmup",
    )
    train = verbs.add_parser(
        "train",
        help="train a memory agent with GRPO",
        description="Needs: a base model, an adapter to start from (small models), training and held-out instances. "
        "Makes: the run folder output_dir with metrics, trajectories, checkpoints, adapter and summary.json. "
        "All options, GRPOConfig's included: --options.",
        epilog="accelerate launch -m memalpha train --config configs/train/quickstart.yaml --learning_rate 1e-4",
    )
    for parser, run in ((warmup, run_warmup), (train, run_train)):
        parser.add_argument("--options", action="store_true", help="list every option with its default")
        parser.set_defaults(run=run, takes_more=True)


def run_warmup(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Make a warm-start adapter."""
    from memalpha.training.warm_start import WARMUP_GROUPS, parse_warmup_arguments, warm_up

    quiet_libraries()
    _check_given(arguments, rest, "warmup", "where demonstrations come from: --config FILE, or at least --data", "warmup.yaml")
    if arguments.options:
        out(listing(WARMUP_GROUPS))
        return 0
    parsed = parse_warmup_arguments(rest)
    with Reporter(is_main_process()) as reporter:
        folder = warm_up(parsed, reporter)
    out(f"adapter: {folder}")
    return 0


def run_train(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Train, then show results before and after."""
    from memalpha.training.config import TRAIN_GROUPS, parse_train_arguments

    quiet_libraries()
    _check_given(arguments, rest, "train", "what to train on what: --config FILE, or at least --train_data", "nano.yaml")
    if arguments.options:
        out(listing(TRAIN_GROUPS))
        return 0
    parsed = parse_train_arguments(rest)
    with Reporter(is_main_process(), str(parsed.grpo.output_dir), parsed.run.log_rollouts) as reporter:
        reporter("load", {"what": f"{parsed.run.model} and {parsed.run.train_data}"})
        from memalpha.training.run import train

        summary = train(parsed, reporter)
    if is_main_process():
        from memalpha.report.tables import summary_table

        if "delta" in summary:
            console.print(summary_table(summary))
        out(f"run folder: {parsed.grpo.output_dir}")
    return 0


def _check_given(arguments: argparse.Namespace, rest: list[str], verb: str, expected: str, example: str) -> None:
    if not rest and not arguments.options:
        raise InputError(
            f"memalpha {verb} without options",
            expected=expected,
            fix=f"memalpha {verb} --config configs/train/{example}; memalpha {verb} --options lists everything",
        )
