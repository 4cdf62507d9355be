"""A comparison of runs as a page in the site's style, and as a table for the terminal."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from memalpha.report.compare import Group, Run, comparison, differences, group_runs, read_run, spread_note
from memalpha.report.figures import write_figures
from memalpha.report.templating import ASSETS, asset, render
from memalpha.report.view import printable
from memalpha.runs import RunFolder

if TYPE_CHECKING:
    from rich.table import Table


def write_comparison(folders: Sequence[RunFolder], target: Path) -> Path:
    """Write ``index.html`` with tables and curves of several runs into a folder and return its path.

    Args:
        folders: The runs, in the order of the columns; a run's own report is linked if it has one.
        target: Folder to write; only what this page consists of is replaced in it.

    Raises:
        InputError: If a file of a run is damaged.
    """
    runs = [read_run(folder) for folder in folders]
    groups = group_runs(runs)
    for name in ("figures", "assets"):
        shutil.rmtree(target / name, ignore_errors=True)
        (target / name).mkdir(parents=True)
    for name in ASSETS:
        (target / "assets" / name).write_text(asset(name), encoding="utf-8")
    alone = [Group(run.name, [run]) for run in runs]
    page = render(
        "compare.html",
        root="",
        name="comparison",
        lists={"index.html": "Comparison"},
        groups=groups,
        lines=comparison(groups),
        note=spread_note(groups),
        each=comparison(alone) if len(groups) < len(runs) else [],
        each_note=spread_note(alone),
        runs=runs,
        links=[_link(folder, target) for folder in folders],
        options=_options(groups),
        pictures=write_figures(target / "figures", [group.variant for group in groups]),
    )
    path = target / "index.html"
    path.write_text(page, encoding="utf-8")
    return path


def comparison_table(folders: Sequence[RunFolder]) -> Table:
    """Return the comparison for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    groups = group_runs([read_run(folder) for folder in folders])
    table = Table(box=box.SIMPLE_HEAD, caption=Text(spread_note(groups), "dim"), caption_justify="left")
    table.add_column("")
    for group in groups:
        table.add_column(Text(printable(group.label)), justify="right")
    for name, values in _options(groups).items():
        table.add_row(Text(f"option {printable(name)}", "dim"), *(Text(printable(value), "dim") for value in values))
    for line in comparison(groups):
        style = "bold" if line.name == "change in accuracy, paired" else ""
        table.add_row(Text(printable(line.name), style), *(Text(cell, style) for cell in line.cells))
    return table


def _options(groups: Sequence[Group]) -> dict[str, list[str]]:
    found = differences([group.runs[0].config for group in groups])
    return {name: ["none" if value in ("", None) else str(value) for value in values] for name, values in found.items()}


def _link(folder: RunFolder, target: Path) -> str:
    """The way from the page to a run's own report; empty if there is none."""
    page = folder.path / "report" / "index.html"
    return quote(Path(os.path.relpath(page.resolve(), target.resolve())).as_posix()) if page.is_file() else ""


__all__ = ["Run", "comparison_table", "write_comparison"]
