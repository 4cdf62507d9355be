"""Plots of an evaluation as matplotlib ``Figure`` objects, one colour and mark for each system; unknown values are not drawn."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memalpha.errors import InputError
from memalpha.evaluation.statistics import Estimate, estimate
from memalpha.evaluation.summary import SetSummary, Summary, set_results

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00", "#56b4e9", "#e69f00", "#444444")
"""Okabe and Ito's colour-blind safe palette, darkened for lines."""

MARKS = ("o", "s", "^", "D", "v", "P", "X", "<")

_COLUMNS = 4
_MOST_TICKS = 8


def plot_comparison(summary: Summary, reader: str) -> Any:
    """Return one panel for each set and one for the mean over sets, with a line for each system."""
    items = _items(summary, reader)
    groups = [group for group in summary.kinds_of if any(group in item.cells for item in items)]
    panels: list[tuple[str, Mapping[str, Estimate | None]]] = [
        (f"{item.set} (n = {item.instances})", {group: cell.accuracy for group, cell in item.cells.items()}) for item in items
    ]
    if sum(item.in_mean for item in items) > 1 and any(mean is not None for mean in summary.over_sets[reader].values()):
        panels.append(("mean over sets", summary.over_sets[reader]))
    figure, axes = _panels(len(panels), 3.2, 0.32 * len(groups) + 1.2)
    for index, (panel, (title, estimates)) in enumerate(zip(axes, panels, strict=True)):
        for place, group in enumerate(groups):
            _point(panel, summary, group, estimates.get(group), place, sideways=True)
        panel.set(title=_text(title), xlim=(0, 1), xlabel="accuracy")
        panel.grid(axis="x", alpha=0.3)
        panel.set(yticks=range(len(groups)), yticklabels=[_text(group) for group in groups], ylim=(len(groups) - 0.5, -0.5))
        panel.tick_params(labelleft=index % _COLUMNS == 0)
    return figure


def plot_memory(summary: Summary, reader: str) -> Any:
    """Return one panel for each set: accuracy against the mean tokens kept (logarithmic axis; 0 tokens are drawn at 1)."""
    items = _items(summary, reader)
    figure, axes = _panels(len(items), 3.6, 3.4)
    for panel, item in zip(axes, items, strict=True):
        for group, cell in item.cells.items():
            _point(panel, summary, group, cell.accuracy, max(1.0, cell.costs["memory_tokens"]), label=group)
        panel.set(title=_text(item.set), xscale="log", xlabel="memory, tokens", ylabel="accuracy", ylim=(0, 1))
        panel.grid(alpha=0.3)
    _legend(figure)
    return figure


def plot_kinds(summary: Summary, reader: str, set: str) -> Any:
    """Return one panel: a column for each question kind of a set, a mark for each system."""
    item = next((item for item in _items(summary, reader) if item.set == set), None)
    if item is None:
        raise InputError(f"nothing to draw of set {set!r}", expected="a set with results")
    kinds = {kind: score.questions for cell in item.cells.values() for kind, score in cell.kinds.items()}
    figure, (panel,) = _panels(1, 0.3 + 0.25 * len(kinds) * (len(item.cells) + 1), 3.6)
    for row, (group, cell) in enumerate(item.cells.items()):
        for column, kind in enumerate(kinds):
            found = cell.kinds.get(kind)
            place = column + (row + 1) / (len(item.cells) + 1) - 0.5
            _point(panel, summary, group, found.accuracy if found else None, place, label="" if column else group)
    labels = [f"{_text(kind)}\n({questions})" for kind, questions in kinds.items()]
    panel.set(title=_text(item.set), xticks=range(len(kinds)), xticklabels=labels, ylabel="accuracy", ylim=(0, 1))
    panel.grid(axis="y", alpha=0.3)
    _legend(figure)
    return figure


def plot_chunks(folder: str | Path, summary: Summary, reader: str, sets: Sequence[str] = ()) -> Any:
    """Return one panel: accuracy against chunk count, over ``sets`` together (none = all); only instances all systems share."""
    lengths: dict[str, dict[int, dict[str, float]]] = {}  # group -> chunks -> instance -> mean accuracy of its members
    for item in set_results(folder):
        if item.reader != reader or (sets and item.set["name"] not in sets):
            continue
        for group, members in item.complete().items():
            for rows in zip(*(rows.values() for rows in members.values()), strict=True):
                here = lengths.setdefault(group, {}).setdefault(rows[0].chunks, {})
                here[f"{rows[0].set}/{rows[0].instance}"] = sum(row.accuracy for row in rows) / len(rows)
    if not lengths:
        raise InputError(f"nothing to draw of reader {reader!r}", expected="a reader with results")
    figure, (panel,) = _panels(1, 4.4, 3.8)
    for group, by_length in lengths.items():
        points = {chunks: estimate({"0": scores}) for chunks, scores in sorted(by_length.items())}
        panel.plot(list(points), [point.mean for point in points.values()], color=_look(summary, group)[0], linewidth=1, alpha=0.6)
        for place, (chunks, point) in enumerate(points.items()):
            _point(panel, summary, group, point, chunks, label="" if place else group)
    panel.set(xscale="log", xlabel="chunks of the input", ylabel="accuracy", ylim=(0, 1))
    if len(ticks := sorted({chunks for by_length in lengths.values() for chunks in by_length})) <= _MOST_TICKS:
        panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
        panel.minorticks_off()
    panel.grid(alpha=0.3)
    _legend(figure)
    return figure


def write_plots(folder: str | Path, summary: Summary) -> list[Path]:
    """Write all plots to ``plots/*.png`` in the folder and return their paths; a reader without data has no plots."""
    target = Path(folder) / "plots"
    target.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for reader in dict.fromkeys(item.reader for item in summary.sets if item.cells):
        figures = {"comparison": plot_comparison(summary, reader), "memory": plot_memory(summary, reader)}
        figures["chunks"] = plot_chunks(folder, summary, reader)
        figures |= {f"kinds-{item.set}": plot_kinds(summary, reader, item.set) for item in _items(summary, reader)}
        for name, figure in figures.items():
            stem = path = target / re.sub(r"""[/\\:*?"<>|\s\0]""", "_", f"{reader}-{name}")[:100]
            while path.with_name(f"{path.name}.png") in written:  # another name reads the same as a file
                path = stem.with_name(f"{stem.name}-{len(written)}")
            written.append(path.with_name(f"{path.name}.png"))
            figure.savefig(written[-1], dpi=120)
    return written


def _text(name: str) -> str:
    """Escape ``$``, which starts a formula in matplotlib."""
    return name.replace("$", r"\$")


def _items(summary: Summary, reader: str) -> list[SetSummary]:
    items = [item for item in summary.sets if item.reader == reader and item.cells]
    if not items:
        raise InputError(f"nothing to draw of reader {reader!r}", expected=f"one of {', '.join(summary.over_sets)}, with results")
    return items


def _look(summary: Summary, group: str) -> tuple[str, str]:
    """Colour and mark of a system, by its place in the configuration."""
    place = list(summary.kinds_of).index(group)
    return COLOURS[place % len(COLOURS)], MARKS[(place + place // len(COLOURS)) % len(MARKS)]


def _point(
    panel: Any, summary: Summary, group: str, found: Estimate | None, place: float, *, label: str = "", sideways: bool = False
) -> None:
    """Draw one mean with its interval if known; nothing for None."""
    if found is None:
        return
    colour, mark = _look(summary, group)
    known = not math.isnan(found.low)
    reach = [[max(0.0, found.mean - found.low)], [max(0.0, found.high - found.mean)]] if known else None
    where = {"x": [found.mean], "y": [place], "xerr": reach} if sideways else {"x": [place], "y": [found.mean], "yerr": reach}
    panel.errorbar(**where, fmt=mark, color=colour, markersize=5, capsize=2, linewidth=1.2, label=_text(label) or "_nolegend_")


def _panels(count: int, width: float, height: float) -> tuple[Any, list[Any]]:
    """A figure and its panels, at most four in a row; width and height of one panel in inches."""
    from matplotlib.figure import Figure

    columns = min(count, _COLUMNS)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns + 1.2, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for empty in axes[count:]:
        empty.remove()
    return figure, axes[:count]


def _legend(figure: Any) -> None:
    named: dict[str, Any] = {}
    for panel in figure.axes:
        named |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside right upper", frameon=False, fontsize="small")
