"""A selector's progress in the terminal: a rich table after each update."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from memalpha.routing.selection import Progress


def progress_table(progress: Progress) -> Table:
    """Return a table with a row an agent: mean reward, divergence and entropy of its update, and each tool's mean probability."""
    tools = list(progress.probabilities[0]) if progress.probabilities else []
    table = Table(title=f"update {progress.updates}: {progress.observed} rewards observed")
    for name in ("agent", "reward", "kl", "entropy", *tools):
        table.add_column(name, justify="right")
    reports = iter(progress.reports)
    for i, (reward, probabilities) in enumerate(zip(progress.rewards, progress.probabilities, strict=True)):
        report = next(reports) if reward is not None else {}
        figures = [reward, report.get("kl"), report.get("entropy"), *(probabilities[tool] for tool in tools)]
        table.add_row(str(i), *("-" if figure is None else f"{figure:.3f}" for figure in figures))
    return table


def show_progress(console: Console) -> Callable[[Progress], None]:
    """Return a callback for ``ToolSelector`` that prints the table."""
    return lambda progress: console.print(progress_table(progress))
