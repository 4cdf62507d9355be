"""``memalpha report``, ``compare`` and ``inspect``: show what a run did."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memalpha.cli.console import console, out
from memalpha.cli.inputs import add_verb
from memalpha.errors import InputError
from memalpha.record.folder import RunFolder, trajectory_step


def add_verbs(verbs: Any) -> None:
    """Add the verbs."""
    report = add_verb(
        verbs,
        "report",
        run_report,
        "Make a site of a run, curves and a page a rollout: RUN/report/index.html.",
    )
    report.add_argument("run_folder", metavar="RUN")
    report.add_argument("--output", help="folder of the site (default: RUN/report)")
    report.add_argument(
        "--pages",
        type=int,
        default=2000,
        help="most pages of training rollouts, 0 = all (default: %(default)s)",
    )
    compare = add_verb(
        verbs,
        "compare",
        run_compare,
        "Set runs side by side. Needs: run folders; seeds of one configuration are one column. Makes: OUTPUT/index.html.",
    )
    compare.add_argument("run_folders", metavar="RUN", nargs="+")
    compare.add_argument(
        "--output", default="runs/compare", help="folder of the page (default: %(default)s)"
    )
    inspect = add_verb(
        verbs,
        "inspect",
        run_inspect,
        "Show a rollout in the terminal: chunks, calls, memory, rewards, questions.",
    )
    inspect.add_argument("run_folder", metavar="RUN")
    inspect.add_argument("--step", type=int, help="a training step (default: the last)")
    inspect.add_argument(
        "--rollout",
        type=int,
        default=0,
        help="which rollout of that step or file (default: %(default)s)",
    )
    inspect.add_argument("--held-out", help="a held-out evaluation instead: before or after")
    inspect.add_argument("--list", action="store_true", help="list what there is")


def run_report(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Write the report and print the path of its first page."""
    from memalpha.measure.site import write_site

    if arguments.pages < 0:
        raise InputError(f"--pages is {arguments.pages}", expected="0 (all) or more")
    (run,) = _training_runs([arguments.run_folder])
    out(str(write_site(run, Path(arguments.output) if arguments.output else None, arguments.pages)))


def run_compare(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Show the table, write the page and print its path."""
    from memalpha.measure.site import write_comparison
    from memalpha.measure.terminal import comparison_table

    folders = _training_runs(arguments.run_folders)
    console.print(comparison_table(folders))
    out(str(write_comparison(folders, Path(arguments.output))))


def run_inspect(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Show one rollout."""
    from memalpha.measure.terminal import list_rollouts, show_rollout

    run = RunFolder(arguments.run_folder)
    run.check_training()
    if arguments.list:
        console.print(list_rollouts(run))
        return
    files: dict[Any, list[str]] = {}
    if arguments.held_out is not None:
        files = {
            path.stem: [f"held_out/{path.name}"]
            for path in sorted((run.path / "held_out").glob("*.jsonl"))
        }
        option, chosen, choices = "--held-out", arguments.held_out, ", ".join(files)
    else:
        for file in run.trajectory_files():
            files.setdefault(trajectory_step(file), []).append(f"trajectories/{file.name}")
        option, chosen = (
            "--step",
            arguments.step if arguments.step is not None else max(files, default=0),
        )
        choices = f"{min(files)} to {max(files)}" if files else ""
    if chosen not in files:
        raise InputError(
            f"{option} is {chosen!r} in {str(run.path)!r}",
            expected=choices or "nothing: there are no rollouts yet",
        )
    rows = [row for name in files[chosen] for row in run.read_lines(name)]
    if not 0 <= arguments.rollout < len(rows):
        raise InputError(f"--rollout is {arguments.rollout}", expected=f"0 to {len(rows) - 1}")
    row = rows[arguments.rollout]
    show_rollout(row["rollout"] if arguments.held_out is not None else row, console)


def _training_runs(paths: Sequence[str]) -> list[RunFolder]:
    places = [Path(path).resolve() for path in paths]
    if twice := [
        path for path, place in zip(paths, places, strict=True) if places.count(place) > 1
    ]:
        raise InputError(f"{twice[0]!r} is given twice", expected="each run once")
    folders = [RunFolder(path) for path in paths]
    for folder in folders:
        folder.check_training()
        if (folder.path / "metrics.jsonl").is_file() and not folder.metrics():
            raise InputError(
                f"{folder.path / 'metrics.jsonl'} holds no step",
                expected="a run that has trained at least one",
            )
    return folders
