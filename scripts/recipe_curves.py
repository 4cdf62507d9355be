"""Draws runs below one another, healthy or not: docs/images/recipe_curves.png, with the numbers in docs/results/recipe_curves.json.

    python scripts/recipe_curves.py "healthy=runs/mixed-1" "it writes everything twice=runs/a-1"
    python scripts/recipe_curves.py "healthy=runs/mixed-2" "it writes everything twice"    a label alone: as it was recorded before
    python scripts/recipe_curves.py        draws the numbers that are there once more

Needs: run folders of ``memalpha train``, finished or not. A thin line is each step, a thick one the mean of the last five.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from labelled_runs import read_labels, record_runs

from memalpha.report.curves import LIGHT, rolling_mean, series
from memalpha.runs import RunFolder

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "results" / "recipe_curves.json"
PICTURE = ROOT / "docs" / "images" / "recipe_curves.png"
PANELS = {
    "accuracy of the rollouts": {"": "memory/reward_accuracy"},
    "op success, content quality": {"op success": "memory/reward_tool", "content": "memory/reward_content"},
    "calls a chunk": {"": "memory/calls_per_chunk"},
    "share of the calls": {"update": "memory/update_share", "delete": "memory/delete_share", "duplicate": "memory/duplicates"},
    "share of the chunks without calls": {"": "memory/silent_chunks"},
}
KEPT = (
    "step",
    "loss",
    "entropy",
    "memory/entry_words",
    "memory/verbatim",
    "memory/tokens",
    "memory/cut_off",
)
WINDOW = 5


def read(run: Path) -> dict[str, Any]:
    """What makes a run's curves traceable."""
    folder = RunFolder(run)
    keys = {*KEPT, *(key for lines in PANELS.values() for key in lines.values())}
    return {**folder.origin(), "curve": [{key: row[key] for key in sorted(keys & row.keys())} for row in folder.metrics()]}


def draw(record: dict[str, Any], picture: Path) -> None:
    """One row of panels a run."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(PANELS), 2.3 * len(record)), layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(len(record), len(PANELS), squeeze=False)
    for row, (label, run) in zip(grid, record.items(), strict=True):
        for axes, (title, lines) in zip(row, PANELS.items(), strict=True):
            for (name, key), colour in zip(lines.items(), LIGHT.lines, strict=False):
                steps, values = series(run["curve"], [key])
                axes.plot(steps, values, color=colour, linewidth=0.7, alpha=0.35)
                axes.plot(steps, rolling_mean(values, WINDOW), color=colour, linewidth=1.8, label=name or None)
            axes.set_title(title, fontsize=8)
            axes.tick_params(labelsize=7)
            axes.grid(color=LIGHT.grid)
            axes.set_ylim(bottom=0)
            if len(lines) > 1:
                axes.legend(fontsize=7, frameon=False)
        row[0].set_ylabel(label, fontsize=8)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110, metadata={"Software": None})


def main() -> None:
    """Write both files."""
    labels = read_labels(__doc__, "*")
    if labels:
        record_runs(RECORD, labels, lambda run: read(Path(run)))
    draw(json.loads(RECORD.read_text(encoding="utf-8")), PICTURE)


if __name__ == "__main__":
    main()
