"""``memalpha router train`` and ``memalpha router evaluate``: learned routing, from a YAML file whose every option has a flag."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memalpha.cli.console import console, out
from memalpha.errors import InputError

if TYPE_CHECKING:
    from memalpha.routing.compare import Routed
    from memalpha.routing.config import RouterConfig
    from memalpha.routing.run import Report

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
    parser.add_argument("--config", required=True, help="a file of configs/router")
    parser.add_argument("--output", help="run folder to make (default: runs/router/NAME_OF_CONFIG)")
    parser.add_argument("--router", help="evaluate: the run folder or checkpoint (default: the output folder)")
    parser.add_argument("--json", action="store_true", help="print the summary as one JSON object, last")
    parser.add_argument("--overwrite", action="store_true", help="replace a run folder that is there")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    parser.set_defaults(run=run, takes_more=True)


def run(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Train or evaluate."""
    from memalpha.routing.config import load_config

    config = load_config(arguments.config, rest)
    folder = Path(arguments.output or Path("runs") / "router" / Path(arguments.config).stem)
    summary = _train(config, folder, arguments) if arguments.action == "train" else _evaluate(config, folder, arguments)
    if arguments.json:
        out(json.dumps(summary))
    return 0


def _train(config: RouterConfig, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from memalpha.routing.run import train

    with _progress(quiet=arguments.json) as report:
        summary = train(config, folder, report, overwrite=arguments.overwrite, resume=arguments.resume)
    _draw(folder)
    if not arguments.json:
        out(_line(summary))
        out(f"run folder: {folder}")
    return summary


def _evaluate(config: RouterConfig, folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    from memalpha.routing.learner import shape_of
    from memalpha.routing.run import load_learner, make_tasks, measure
    from memalpha.routing.sections_task import SectionTask

    path = arguments.router or folder
    _, held_out = make_tasks(config)
    measured = measure(load_learner(path, config, shape_of(held_out)), held_out, config.run.eval_size, config.run.seed)
    summary = {"learner": config.run.learner, "task": config.run.task, "seed": config.run.seed, **asdict(measured)}
    if not arguments.json:
        out(_line(summary))
    if isinstance(held_out, SectionTask):
        rows = _compare(config, held_out, path)
        if not arguments.json:
            console.print(_table(rows))
        summary["ways"] = [{name: value for name, value in asdict(row).items() if name != "scores"} for row in rows]
    return summary


def _compare(config: RouterConfig, task: Any, path: str | Path) -> list[Routed]:
    from memalpha.retrieval.embedders import make_embedder
    from memalpha.routing.compare import compare, standard_ways
    from memalpha.routing.memories import section_options
    from memalpha.routing.sections import LearnedSectionRouter

    options = section_options({**config.run.task_options, **config.run.eval_options})
    embedder = make_embedder(options.embedder)
    router = LearnedSectionRouter.load(path, embedder, options.embedder)
    return compare(task, standard_ways(options.retrieval(), embedder, {f"learned ({config.run.learner})": router}))


# ------------------------------------------------------------------------------------------------ what is shown
@contextmanager
def _progress(quiet: bool) -> Iterator[Report]:
    """Give a report that moves a bar in a terminal, and else writes a line a measurement."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        bar = progress.add_task("training", total=None)

        def report(event: str, data: dict[str, Any]) -> None:
            shown = f"reward {data['reward']:.3f}"
            if "fraction_of_optimal" in data:
                shown += f", {data['fraction_of_optimal']:.3f} of the optimum on held-out episodes"
                if not quiet and not console.is_terminal:
                    out(f"step {data['step']} of {data['steps']}: {shown}")
            progress.update(bar, completed=data["step"], total=data["steps"], description=shown)

        yield report


def _line(summary: dict[str, Any]) -> str:
    spent = f" after {summary['steps']} steps, {summary['seconds']} s" if "steps" in summary else ""
    return (
        f"{summary['learner']}, seed {summary['seed']}: reward {summary['reward']:.4f} of at best {summary['optimal']:.4f} "
        f"({summary['fraction_of_optimal']:.3f} of the optimum) on {summary['episodes']} held-out episodes{spent}"
    )


def _table(rows: list[Routed]) -> Any:
    from rich.table import Table

    table = Table(title="where to look, on held-out questions")
    table.add_column("sections chosen by", no_wrap=True)
    for name in ("accuracy", "entries searched", "share", "sections", "ms a search"):
        table.add_column(name, justify="right")
    for row in rows:
        spent = "-" if row.milliseconds is None else f"{row.milliseconds:.2f}"
        figures = (
            f"{row.accuracy:.3f} ± {row.stderr:.3f}",
            f"{row.searched:.1f}",
            f"{row.share:.2f}",
            f"{row.sections:.1f}",
            spent,
        )
        table.add_row(row.name, *figures)
    return table


def _draw(folder: Path) -> None:
    """Draw the curves of a run; a run of baselines has few."""
    from memalpha.report.curves import Panel, draw_figure
    from memalpha.runs import RunFolder

    rows = RunFolder(folder).metrics()
    agents = sorted({name.partition("/")[0] for row in rows for name in row if name.startswith("agent_")})
    panels = (
        Panel("share of the optimum, held out", {"": ("fraction_of_optimal",)}),
        Panel("reward while exploring", {"": ("reward",)}),
        Panel("reward of each agent", {agent: (f"{agent}/reward",) for agent in agents}),
        Panel("standing in the group", {agent: (f"{agent}/standing",) for agent in agents}),
        Panel("entropy, nats a choice", {"": ("entropy",)}),
        Panel("divergence of an update", {"": ("kl",)}),
        Panel("value's squared error", {"": ("value_loss",)}),
        Panel("gradient norm", {"": ("grad_norm",)}),
    )
    figure = draw_figure(rows, panels=panels)
    if figure is None:
        raise InputError(f"{folder} has no metrics to draw", expected="a run of at least one update")
    figure.savefig(folder / CURVES, dpi=110)
