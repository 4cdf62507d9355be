"""The policy and the training run that three benchmarks measure: the quickstart's, on generated dialogues."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

CONFIGS = Path(__file__).parents[2] / "configs" / "train"


class Setup(NamedTuple):
    """One training run before its first step.

    Attributes:
        arguments: All options.
        parts: Policy, agent, reader and data.
    """

    arguments: Any
    parts: Any


def add_model(parser: Any) -> None:
    """Add the option ``--model``."""
    parser.add_argument("--model", help="base model; another than the default starts without the shipped adapter")


def quickstart(options: Any, output_dir: str, *overrides: str) -> Setup:
    """Load the quickstart's policy and dialogues; with ``--quick`` the nano policy and the toy task.

    Args:
        options: Those of the benchmark.
        output_dir: A folder that may be written to.
        *overrides: Options of ``memalpha train``.
    """
    from memalpha.training.build import build_parts

    arguments = quickstart_arguments(options, output_dir, *overrides)
    return Setup(arguments, build_parts(arguments))


def quickstart_arguments(options: Any, output_dir: str, *overrides: str) -> Any:
    """Return the options of such a run; arguments as for :func:`quickstart`."""
    from transformers.utils import logging

    from memalpha.training.config import parse_train_arguments

    warnings.filterwarnings("ignore", category=UserWarning)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    name = "nano" if options.quick else "quickstart"
    data = "n: 8, split: train" if options.quick else "n: 16, preset: small, split: train"
    words = [
        *("--config", str(CONFIGS / f"{name}.yaml"), "--output_dir", output_dir, "--overwrite", "true"),
        *("--eval_data", "", "--train_data", "toy" if options.quick else "synthetic", "--train_options", f"{{{data}}}"),
        *_model(options),
        *overrides,
    ]
    return parse_train_arguments(words)


def _model(options: Any) -> Sequence[str]:
    if options.quick:
        return ["--full_finetuning", "false", "--warm_start_steps", "0"]
    return ["--model", options.model, "--adapter", ""] if options.model else []


def describe(setup: Setup) -> dict[str, Any]:
    """Say which policy is measured."""
    model, run = setup.parts.model, setup.arguments.run
    return {
        "model": run.model,
        "adapter": run.adapter or "new",
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trained_parameters": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
    }
