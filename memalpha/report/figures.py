"""The curves of one or several runs as small SVG pictures, one a panel, for light and for dark.

With one run, a thin line is what each step measured and a thick one the mean over the last steps. With several runs of a variant
the thin lines are the runs, the thick one their mean and the band its 95% interval. What always holds: a picture depends on its
data alone (no date, no random ids); the text beside it says in words where each line begins and ends.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.report.curves import DARK, LIGHT, PANELS, Panel, Theme, finish_panel, rolling_mean, series, window_for
from memalpha.report.seeds import band, interval
from memalpha.report.view import known, number

Rows = Sequence[Mapping[str, Any]]
"""Rows of one run's ``metrics.jsonl``."""

_SIZE = (4.6, 2.7)
_STYLES = ("-", "--", ":")


class Variant(NamedTuple):
    """Runs that differ in their seed alone, under one name; the name is empty where there is but one variant.

    Attributes:
        label: Its name.
        runs: Metrics of each run.
        summaries: ``summary.json`` of each run, empty where a run has none yet.
    """

    label: str
    runs: Sequence[Rows]
    summaries: Sequence[Mapping[str, Any]]


class Picture(NamedTuple):
    """One panel as files of the site, and in words."""

    title: str
    light: str
    dark: str
    words: str


def write_figures(folder: Path, variants: Sequence[Variant], panels: Sequence[Panel] = PANELS) -> list[Picture]:
    """Write every panel that has data into a folder and return them in order.

    Args:
        folder: Made if it does not exist; its name is what the pictures' paths begin with.
        variants: What is drawn; with several of them a panel of several lines becomes one panel a line.
        panels: What may be drawn.
    """
    if len(variants) > 1:
        panels = [one for panel in panels for one in _single_lines(panel)]
    pictures = []
    for index, panel in enumerate(panels):
        words = describe(panel, variants)
        if not words:
            continue
        folder.mkdir(parents=True, exist_ok=True)
        names = {}
        for shade, theme in (("light", LIGHT), ("dark", DARK)):
            path = folder / f"{index:02d}-{shade}.svg"
            path.write_bytes(_svg(draw_panel(panel, variants, theme)))
            names[shade] = f"{folder.name}/{path.name}"
        pictures.append(Picture(panel.title, names["light"], names["dark"], words))
    return pictures


def describe(panel: Panel, variants: Sequence[Variant]) -> str:
    """Return each line's first and last value in words; empty if the panel has no data."""
    parts = []
    for variant in variants:
        for label, keys in panel.lines.items():
            found = band(variant.runs, keys)
            if found.steps:
                name = ", ".join(part for part in (variant.label, label) if part)
                over = f" (mean of {found.n} runs)" if found.n > 1 else ""
                ends = f"{number(found.mean[0])} at step {found.steps[0]:g}, {number(found.mean[-1])} at step {found.steps[-1]:g}"
                parts.append(f"{name}: {ends}{over}" if name else f"{ends}{over}")
    return "; ".join(parts)


def draw_panel(panel: Panel, variants: Sequence[Variant], theme: Theme) -> Any:
    """Return one panel as a matplotlib ``Figure``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, facecolor=theme.background, layout="constrained")
    axes = figure.add_subplot()
    window = window_for(max(len(rows) for variant in variants for rows in variant.runs))
    for v, variant in enumerate(variants):
        for line, (label, keys) in enumerate(panel.lines.items()):
            index = v if len(variants) > 1 else line
            colour, style = theme.lines[index % len(theme.lines)], _STYLES[index // len(theme.lines) % len(_STYLES)]
            _draw_line(axes, variant, keys, window, colour, style, _legible(variant.label or label))
        if panel.title.startswith("accuracy"):
            mark = theme.lines[v % len(theme.lines)] if len(variants) > 1 else theme.lines[1]
            _draw_held_out(axes, variant, mark, named=len(variants) == 1)
    finish_panel(axes, panel, theme, lowest_row=True)
    return figure


def _draw_line(axes: Any, variant: Variant, keys: Sequence[str], window: int, colour: str, style: str, label: str) -> None:
    found = band(variant.runs, keys, window)
    for rows in variant.runs:
        steps, values = series(rows, keys)
        shown = values if found.n < 2 else rolling_mean(values, window)
        if found.n > 1 or window > 1:
            axes.plot(steps, shown, color=colour, linewidth=0.8, alpha=0.4)
    if found.low:
        axes.fill_between(found.steps, found.low, found.high, color=colour, alpha=0.16, linewidth=0)
    marker = "o" if len(found.steps) == 1 else None
    if found.steps:
        axes.plot(
            found.steps, found.mean, color=colour, linestyle=style, linewidth=2, label=label or None, marker=marker, markersize=4
        )


def _draw_held_out(axes: Any, variant: Variant, colour: str, *, named: bool) -> None:
    """Mark held-out accuracy before the first step and at the last: its standard error for one run, the interval over several."""
    last = max((known(row.get("step")) or 0.0 for rows in variant.runs for row in rows), default=0.0)
    for step, name in ((0.0, "before"), (last, "after")):
        found = [data for summary in variant.summaries if (data := summary.get(name))]
        point = interval([data.get("accuracy") for data in found])
        if point is None:
            continue
        alone = known(found[0].get("stderr")) or 0.0
        reach = alone if point.high is None else point.high - point.mean
        label = "held out, before and after" if named and name == "before" else None
        axes.errorbar(
            [step], [point.mean], yerr=[reach], color=colour, fmt="D", markersize=5, capsize=3, linewidth=1.4, label=label, zorder=5
        )


def _legible(label: str) -> str:
    """A label that a legend shows: matplotlib leaves out those that begin with an underscore."""
    return f" {label}" if label.startswith("_") else label


def _single_lines(panel: Panel) -> list[Panel]:
    if len(panel.lines) == 1:
        return [panel]
    return [Panel(_title(panel.title, label), {"": keys}, panel.share) for label, keys in panel.lines.items()]


def _title(title: str, label: str) -> str:
    share = title.startswith("what the calls did")
    return f"{label}, share of calls" if share else f"{label}: {title}"


def _svg(figure: Any) -> bytes:
    from matplotlib import rc_context

    buffer = io.BytesIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "memalpha"}):
        figure.savefig(buffer, format="svg", facecolor=figure.get_facecolor(), metadata={"Date": None, "Creator": None})
    return buffer.getvalue()
