"""``memalpha router train`` and ``router evaluate``: learned routing, from a YAML file; every option is also a flag."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from memalpha.cli.console import out
from memalpha.config import listing
from memalpha.errors import InputError

CURVES = "curves.png"


def add_verbs(verbs: Any) -> None:
    """Add the verb."""
    parser = verbs.add_parser(
        "router",
        help="train and measure a learned router",
        description="Needs: a router configuration; to evaluate, a trained router as well. "
        "Makes: the run folder OUTPUT with metrics, checkpoint.pt, curves.png and summary.json. "
        "Every option of the configuration is also a flag: --seed 1 --steps 20000.",
        epilog="memalpha router train --config configs/router/synthetic_mappo.yaml --json",
    )
    parser.add_argument("action", choices=("train", "evaluate"))
    parser.add_argument("--config", help="a file of configs/router")
    parser.add_argument("--options", action="store_true", help="list every option of a configuration with its default")
    parser.add_argument("--output", help="run folder to make (default: runs/router/NAME_OF_CONFIG)")
    parser.add_argument("--router", help="evaluate: the run folder or checkpoint (default: the output folder)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, last")
    parser.add_argument("--overwrite", action="store_true", help="replace a run folder that is there")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.set_defaults(run=run, takes_more=True)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Train or evaluate."""
    from memalpha.routing.run import GROUPS, load_config, load_learner, make_tasks, measure, train

    if arguments.options:
        out(listing(GROUPS))
        return 0
    if not arguments.config:
        raise InputError(f"memalpha router {arguments.action} without --config", expected="a file of configs/router")
    config = load_config(arguments.config, rest)
    folder = Path(arguments.output or Path("runs") / "router" / Path(arguments.config).stem)
    if arguments.action == "train":
        report = None if arguments.json else _report
        summary = train(config, folder, report, overwrite=arguments.overwrite, resume=arguments.resume)
        _draw(folder)
    else:
        _, task = make_tasks(config)
        learner = load_learner(arguments.router or folder, config, task.shape)
        named = {"learner": config.run.learner, "task": config.run.task, "seed": config.run.seed}
        summary = {**named, **measure(learner, task, config.run.eval_size, config.run.seed)}
    if arguments.json:
        out(json.dumps(summary))
        return 0
    out(
        f"{summary['learner']}, seed {summary['seed']}: reward {summary['reward']:.4f} of at best {summary['optimal']:.4f} "
        f"({summary['fraction_of_optimal']:.3f} of the optimum) on {summary['episodes']} held-out episodes"
    )
    if arguments.action == "train":
        out(f"{summary['steps']} steps, {summary['seconds']} s; run folder: {folder}")
    return 0


def _report(row: dict[str, Any]) -> None:
    if "fraction_of_optimal" in row:
        shown = f"reward {row['reward']:.3f}, {row['fraction_of_optimal']:.3f} of the optimum on held-out episodes"
        out(f"step {row['step']} of {row['steps']}: {shown}")


def _draw(folder: Path) -> None:
    from memalpha.report.curves import Panel, draw_figure
    from memalpha.runs import RunFolder

    rows = RunFolder(folder).metrics()
    agents = sorted({name.partition("/")[0] for row in rows for name in row if name.startswith("agent_")})
    panels = (
        Panel("share of the optimum, held out", {"": ("fraction_of_optimal",)}),
        Panel("reward while exploring", {"": ("reward",)}),
        Panel("reward of each agent", {agent: (f"{agent}/reward",) for agent in agents}),
        Panel("relative return in the group", {agent: (f"{agent}/standing",) for agent in agents}),
        Panel("entropy, nats a choice", {"": ("entropy",)}),
        Panel("divergence of an update", {"": ("kl",)}),
        Panel("value's squared error", {"": ("value_loss",)}),
        Panel("gradient norm", {"": ("grad_norm",)}),
    )
    figure = draw_figure(rows, panels=panels)
    if figure is not None:
        figure.savefig(folder / CURVES, dpi=110)
