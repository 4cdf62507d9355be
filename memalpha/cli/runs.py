"""``memalpha report``, ``compare`` and ``inspect``: show what a run did."""

import argparse
from pathlib import Path
from typing import Any

from memalpha.cli.console import console, out
from memalpha.cli.inputs import add_verb
from memalpha.errors import InputError
from memalpha.record.folder import RunFolder


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
        "Set runs and evaluations side by side. Needs: their folders; seeds of one configuration are "
        "one column. Makes: OUTPUT/index.html.",
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
    run = RunFolder(arguments.run_folder)
    run.check_training()
    out(str(write_site(run, Path(arguments.output) if arguments.output else None, arguments.pages)))


def run_compare(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Show the table, write the page and print its path."""
    from memalpha.measure import tables
    from memalpha.measure.site import write_comparison

    folders = {Path(path).resolve(): RunFolder(path) for path in arguments.run_folders}
    if len(folders) < len(arguments.run_folders):
        names = ", ".join(arguments.run_folders)
        raise InputError(f"a run of {names} is given twice", expected="each run once")
    columns = tables.columns_of(list(folders.values()))
    console.print(tables.terminal(tables.comparison(columns)))
    out(str(write_comparison(columns, Path(arguments.output))))


def run_inspect(arguments: argparse.Namespace, rest: list[str]) -> None:
    """Show one rollout, or list what there is."""
    from memalpha.measure.tables import rollouts_table, terminal
    from memalpha.measure.view import Recorded, show_rollout, sources_of

    run = RunFolder(arguments.run_folder)
    run.check_training()
    if arguments.list:
        console.print(terminal(rollouts_table(run)))
        return
    held_out = arguments.held_out is not None
    sources = [source for source in sources_of(run) if (source.step is None) is held_out]
    names = [str(source.step) if source.step else Path(source.name).stem for source in sources]
    option, chosen = "--held-out" if held_out else "--step", arguments.held_out
    if not held_out:
        chosen = str(arguments.step) if arguments.step is not None else "".join(names[-1:])
    rollouts: list[Recorded] = []
    for name, source in zip(names, sources, strict=True):
        if name == chosen:
            rollouts += source.rollouts(run)
    if not rollouts:
        there = ", ".join(dict.fromkeys(names))
        raise InputError(
            f"{option} is {chosen!r} in {str(run.path)!r}",
            expected=there or "nothing: there are no rollouts yet",
        )
    if not 0 <= arguments.rollout < len(rollouts):
        raise InputError(f"--rollout is {arguments.rollout}", expected=f"0 to {len(rollouts) - 1}")
    show_rollout(rollouts[arguments.rollout], console)
