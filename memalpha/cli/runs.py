"""``memalpha rollout``, ``report``, ``compare`` and ``inspect``: run a policy, and show what it did."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.cli.console import Reporter, console, out, quiet_libraries
from memalpha.errors import InputError
from memalpha.runs import RunFolder, trajectory_step


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    rollout = verbs.add_parser(
        "rollout",
        help="let an agent read instances, and write down everything it did",
        description="Needs: a training configuration with eval_data. Makes: OUTPUT_DIR/summary.json, and "
        "held_out/rollouts.jsonl with every prompt, call and reward part.",
        epilog="memalpha rollout --config configs/train/quickstart.yaml --adapter runs/mine/adapter --output_dir runs/rollout",
    )
    rollout.add_argument("--config", required=True, help="a training configuration: how the agent reads, writes and is scored")
    rollout.add_argument("--output_dir", required=True, help="folder to make")
    rollout.add_argument("--json", action="store_true", help="print the summary as one JSON object, last")
    rollout.set_defaults(run=run_rollout, takes_more=True)
    report = verbs.add_parser(
        "report",
        help="make a site of a run: curves and a page a rollout",
        description="Needs: a run folder. Makes: RUN/report/index.html and the pages beside it, which open from disk.",
    )
    report.add_argument("run_folder", metavar="RUN")
    report.add_argument("--output", help="folder of the site (default: RUN/report)")
    report.add_argument(
        "--pages", type=int, default=2000, help="most training rollouts that get a page, 0 = all (default: %(default)s)"
    )
    report.set_defaults(run=run_report, takes_more=False)
    compare = verbs.add_parser(
        "compare",
        help="set runs side by side: options, results, curves",
        description="Needs: run folders; those that differ in their seed alone become one column. Shows a table. Makes: "
        "OUTPUT/index.html.",
    )
    compare.add_argument("run_folders", metavar="RUN", nargs="+")
    compare.add_argument("--output", default="runs/compare", help="folder of the page (default: %(default)s)")
    compare.set_defaults(run=run_compare, takes_more=False)
    inspect = verbs.add_parser(
        "inspect",
        help="show a rollout in the terminal",
        description="Needs: a run folder. Shows: chunk, calls, results, memory diff, reward parts, questions.",
    )
    inspect.add_argument("run_folder", metavar="RUN")
    inspect.add_argument("--step", type=int, help="a training step (default: the last)")
    inspect.add_argument("--rollout", type=int, default=0, help="which rollout of that step or file (default: %(default)s)")
    inspect.add_argument("--held-out", help="a held-out evaluation instead: before or after")
    inspect.add_argument("--list", action="store_true", help="list what there is")
    inspect.set_defaults(run=run_inspect, takes_more=False)


def run_rollout(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Run the configuration's adapter on its held-out instances."""
    from memalpha.training.config import parse_train_arguments
    from memalpha.training.run import evaluate

    quiet_libraries()
    parsed = parse_train_arguments(["--config", arguments.config, *rest, "--output_dir", arguments.output_dir])
    with Reporter(not arguments.json) as reporter:
        evaluate(parsed, reporter)
    path = Path(arguments.output_dir) / "summary.json"
    out(json.dumps(json.loads(path.read_text(encoding="utf-8"))) if arguments.json else str(path))
    return 0


def run_report(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Write the report and print the path of its first page."""
    from memalpha.report.site import write_site

    if arguments.pages < 0:
        raise InputError(f"--pages is {arguments.pages}", expected="0 (all) or more")
    (run,) = _training_runs([arguments.run_folder])
    out(str(write_site(run, Path(arguments.output) if arguments.output else None, arguments.pages)))
    return 0


def run_compare(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Show the table, write the page and print its path."""
    from memalpha.report.site import write_comparison
    from memalpha.report.tables import comparison_table

    folders = _training_runs(arguments.run_folders)
    console.print(comparison_table(folders))
    out(str(write_comparison(folders, Path(arguments.output))))
    return 0


def run_inspect(arguments: argparse.Namespace, rest: list[str]) -> int:
    """Show one rollout."""
    from memalpha.report.terminal import list_rollouts, show_rollout

    run = RunFolder(arguments.run_folder)
    run.check_training()
    if arguments.list:
        console.print(list_rollouts(run))
        return 0
    rows = _recorded(run, arguments.held_out, arguments.step)
    if not 0 <= arguments.rollout < len(rows):
        raise InputError(f"--rollout is {arguments.rollout}", expected=f"0 to {len(rows) - 1}")
    show_rollout(rows[arguments.rollout], console)
    return 0


def _recorded(run: RunFolder, held_out: str | None, step: int | None) -> list[dict[str, Any]]:
    """Read the rollouts of a held-out evaluation or a training step (None = last); InputError if there are none."""
    names = sorted(path.stem for path in (run.path / "held_out").glob("*.jsonl"))
    files = run.trajectory_files()
    steps = sorted({trajectory_step(file) for file in files})
    if held_out is not None:
        if held_out not in names:
            raise InputError(f"--held-out is {held_out!r}", expected=f"one of {', '.join(names)}" if names else "nothing: none yet")
        return [row["rollout"] for row in run.read_lines(f"held_out/{held_out}.jsonl")]
    if not steps:
        evaluations = f"--held-out with one of {', '.join(names)}" if names else "a run that came that far"
        raise InputError(f"{str(run.path)!r} has no rollouts of training", expected=evaluations)
    chosen = steps[-1] if step is None else step
    if chosen not in steps:
        raise InputError(f"--step is {chosen}", expected=f"a step with rollouts, {steps[0]} to {steps[-1]}")
    return [row for file in files if trajectory_step(file) == chosen for row in run.read_lines(f"trajectories/{file.name}")]


def _training_runs(paths: Sequence[str]) -> list[RunFolder]:
    """Open run folders; InputError if one is repeated, not a training run, or has metrics without a step."""
    places = [Path(path).resolve() for path in paths]
    if twice := next((path for path, place in zip(paths, places, strict=True) if places.count(place) > 1), None):
        raise InputError(f"{twice!r} is given twice", expected="each run once", fix="take one of them out")
    folders = [RunFolder(path) for path in paths]
    for folder in folders:
        folder.check_training()
        if (folder.path / "metrics.jsonl").is_file() and not folder.metrics():
            raise InputError(f"{folder.path / 'metrics.jsonl'} holds no step", expected="a run that has trained at least one")
    return folders
