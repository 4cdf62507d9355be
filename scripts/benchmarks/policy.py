"""The policy and the training run that three benchmarks measure: the quickstart's, on generated dialogues."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

CONFIGS = Path(__file__).parents[2] / "configs" / "train"


class Setup(NamedTuple):
    """One training run before its first step: all options; and policy, agent, reader and data."""

    arguments: Any
    parts: Any


def add_model(parser: Any) -> None:
    parser.add_argument("--model", help="base model; another than the default starts without the shipped adapter")


def quickstart(options: Any, output_dir: str, *overrides: str) -> Setup:
    """Load the quickstart's policy and dialogues, with options of ``memalpha train``; ``--quick``: the nano policy and toy task."""
    from memalpha.training.build import build_parts

    arguments = quickstart_arguments(options, output_dir, *overrides)
    return Setup(arguments, build_parts(arguments))


def quickstart_arguments(options: Any, output_dir: str, *overrides: str) -> Any:
    """The options of such a run."""
    from transformers.utils import logging

    from memalpha.training.config import parse_train_arguments

    warnings.filterwarnings("ignore", category=UserWarning)
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    if options.quick:
        name, data = "nano", ("toy", "{n: 8, split: train}")
        model = ["--full_finetuning", "false", "--warm_start_steps", "0"]
    else:
        name, data = "quickstart", ("synthetic", "{n: 16, preset: small, split: train}")
        model = ["--model", options.model, "--adapter", ""] if options.model else []
    words = ["--config", str(CONFIGS / f"{name}.yaml"), "--output_dir", output_dir, "--overwrite", "true", "--eval_data", ""]
    return parse_train_arguments([*words, "--train_data", data[0], "--train_options", data[1], *model, *overrides])


def endless(model: Any, tokenizer: Any, **more: Any) -> Any:
    """A generator whose completions have all the tokens they may have: nothing ends one."""
    from memalpha.generation.hf import HFGenerator

    class Endless(HFGenerator):
        end_ids = frozenset()  # type: ignore[assignment]

    return Endless(model, tokenizer, **more)


def describe(setup: Setup) -> dict[str, Any]:
    """Which policy is measured."""
    run, parameters = setup.arguments.run, list(setup.parts.model.parameters())
    return {
        "model": run.model,
        "adapter": run.adapter or "new",
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trained_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "dtype": str(parameters[0].dtype).removeprefix("torch."),
    }
