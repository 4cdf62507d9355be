"""Curves of one or several runs from ``metrics.jsonl``: SVG pictures for pages, one PNG for a README.

One run: thin line = each step, thick line = rolling mean. Several runs of a variant: thin lines = runs, thick line = their mean,
band = Student's 95% interval, at steps that every run has. Panels without data and unknown values are left out. Equal data gives
equal files. Matplotlib is imported on use, without global state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.report.view import known, known_values, number

Rows = Sequence[Mapping[str, Any]]
"""Rows of one run's ``metrics.jsonl``."""

_COLUMNS = 3
_LONGEST_WINDOW = 25
_STYLES = ("-", "--", ":")


class Panel(NamedTuple):
    """One panel."""

    title: str  # with unit
    lines: Mapping[str, tuple[str, ...]]  # label of each line -> keys to read; the first key that a run has is used
    share: bool = False  # whether the axis runs from 0 to 1


PANELS: tuple[Panel, ...] = (
    Panel("reward", {"": ("reward",)}),
    Panel("accuracy", {"training rollouts": ("rewards/accuracy/mean", "memory/reward_accuracy")}, share=True),
    Panel(
        "other parts of the reward",
        {name: (f"rewards/{name}/mean", f"memory/reward_{name}") for name in ("tool", "compression", "content", "immediate")},
        share=True,
    ),
    Panel("calls a chunk", {"": ("memory/calls_per_chunk",)}),
    Panel("chunks without a call, share", {"": ("memory/silent_chunks",)}, share=True),
    Panel(
        "what the calls did, share",
        {
            "insert": ("memory/insert_share",),
            "update": ("memory/update_share",),
            "delete": ("memory/delete_share",),
            "duplicate": ("memory/duplicates",),
            "unreadable": ("memory/unparsed",),
        },
        share=True,
    ),
    Panel("completion length, tokens", {"": ("completions/mean_length",)}),
    Panel("completions cut off, share", {"": ("completions/clipped_ratio", "memory/cut_off")}, share=True),
    Panel("entries in the final memory", {"": ("memory/entries",)}),
    Panel("tokens in the final memory", {"": ("memory/tokens",)}),
    Panel("words of what was written", {"": ("memory/entry_words",)}),
    Panel("written word for word, share", {"": ("memory/verbatim",)}, share=True),
    Panel("rollouts that could not be scored, share", {"": ("memory/masked",)}, share=True),
    Panel("entropy, nats a token", {"": ("entropy",)}),
    Panel("KL to the reference, nats a token", {"": ("kl",)}),
    Panel("spread of the reward in a group", {"": ("reward_std",)}),
    Panel("groups that teach nothing, share", {"": ("frac_reward_zero_std",)}, share=True),
    Panel("gradient norm", {"": ("grad_norm",)}),
    Panel("loss", {"": ("loss",)}),
    Panel("steps skipped, share", {"": ("skipped",)}, share=True),
    Panel("seconds a step", {"rollouts": ("time/rollouts",), "scoring": ("time/scoring",), "update": ("step_time",)}),
)


class Theme(NamedTuple):
    """Colours of a picture; line colours are safe for colour-blind readers (palette of Okabe and Ito, lighter on dark)."""

    background: str
    text: str
    grid: str
    lines: tuple[str, ...]


LIGHT = Theme("#ffffff", "#24292f", "#e4e7eb", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00"))
DARK = Theme("#161b22", "#d7dde4", "#2b323b", ("#56b4e9", "#f0883e", "#2fcf9e", "#e29bc4", "#e6c84f"))


class Variant(NamedTuple):
    """Runs that differ only in their seed; the name is empty if there is only one variant."""

    label: str
    runs: Sequence[Rows]
    summaries: Sequence[Mapping[str, Any]]  # ``summary.json`` of each run, empty if missing


class Series(NamedTuple):
    """Values over steps."""

    steps: list[float]
    values: list[float]


class Interval(NamedTuple):
    """A mean of ``n`` values and the half-width of its 95% interval; None for a single value."""

    mean: float
    reach: float | None
    n: int


class Band(NamedTuple):
    """The mean over ``n`` runs and its interval at each step."""

    steps: list[float]
    points: list[Interval]
    n: int


def series(rows: Rows, keys: Sequence[str]) -> Series:
    """Return the values of the first of ``keys`` that occurs in the rows, with their steps."""
    for key in keys:
        pairs = [(known(row.get("step")), known(row.get(key))) for row in rows]
        points = [(step, value) for step, value in pairs if step is not None and value is not None]
        if points:
            return Series([step for step, _ in points], [value for _, value in points])
    return Series([], [])


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Return, for each value, the mean of it and the up to ``window - 1`` values before it."""
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def window_for(steps: int) -> int:
    """Return the window of the rolling mean: a fifth of the steps, from 1 to 25."""
    return max(1, min(_LONGEST_WINDOW, steps // 5))


def interval(values: Sequence[Any]) -> Interval | None:
    """Return mean and Student's 95% t interval of the known values; None if there are none."""
    found = known_values(values)
    if len(found) < 2:
        return Interval(found[0], None, 1) if found else None
    from scipy.stats import t

    mean = math.fsum(found) / len(found)
    variance = math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1)
    return Interval(mean, float(t.ppf(0.975, len(found) - 1)) * math.sqrt(variance / len(found)), len(found))


def band(runs: Sequence[Rows], keys: Sequence[str], window: int = 1) -> Band:
    """Return mean and interval of a measure over the runs that have it, at common steps; ``window``: rolling mean, in steps."""
    found = [one for rows in runs if (one := series(rows, keys)).steps]
    curves = [dict(zip(one.steps, rolling_mean(one.values, window), strict=True)) for one in found]
    steps = sorted(set.intersection(*map(set, curves))) if curves else []
    points = [point for step in steps if (point := interval([curve[step] for curve in curves]))]
    return Band(steps, points, len(curves))


def draw_figure(rows: Rows, summary: Mapping[str, Any] | None = None, panels: Sequence[Panel] = PANELS) -> Any:
    """Return a matplotlib ``Figure`` of one run's panels with data, or None; ``summary`` adds held-out accuracy."""
    from matplotlib.figure import Figure

    panels = [panel for panel in panels if any(series(rows, keys).steps for keys in panel.lines.values())]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    height = -(-len(panels) // columns)
    figure = Figure(figsize=(4.1 * columns, 2.5 * height + 0.4), facecolor=LIGHT.background, layout="constrained")
    variant, window = Variant("", [rows], [summary or {}]), window_for(len(rows))
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(height, columns, index + 1)
        draw_panel(axes, panel, [variant], LIGHT, x_label=index + columns >= len(panels))
    note = f"thin: each step; thick: mean of the last {window} steps" if window > 1 else "each step"
    figure.suptitle(note, fontsize=8, color=LIGHT.text, alpha=0.75, ha="right", x=0.995)
    return figure


def write_curves(path: Path, rows: Rows, summary: Mapping[str, Any]) -> None:
    """Write the curves of one run as a PNG; no file if there is no data."""
    figure = draw_figure(rows, summary)
    if figure is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="png", dpi=110, pil_kwargs={"optimize": True})


class Picture(NamedTuple):
    """One panel as files of the site, and in words."""

    title: str
    light: str
    dark: str
    words: str


def write_figures(folder: Path, variants: Sequence[Variant], panels: Sequence[Panel] = PANELS) -> list[Picture]:
    """Write every panel that has data as SVG, light and dark; with several variants, one panel per line of a panel."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    if len(variants) > 1:
        panels = [one for panel in panels for one in _single_lines(panel)]
    pictures = []
    for index, panel in enumerate(panels):
        if not (words := describe(panel, variants)):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        names = []
        for shade, theme in (("light", LIGHT), ("dark", DARK)):
            figure = Figure(figsize=(4.6, 2.7), facecolor=theme.background, layout="constrained")
            draw_panel(figure.add_subplot(), panel, variants, theme)
            names.append(f"{folder.name}/{index:02d}-{shade}.svg")
            with rc_context({"svg.fonttype": "none", "svg.hashsalt": "memalpha"}):
                figure.savefig(folder.parent / names[-1], format="svg", metadata={"Date": None, "Creator": None})
        pictures.append(Picture(panel.title, names[0], names[1], words))
    return pictures


def describe(panel: Panel, variants: Sequence[Variant]) -> str:
    """Return each line's first and last value in words; empty if the panel has no data."""
    parts = []
    for variant in variants:
        for label, keys in panel.lines.items():
            found = band(variant.runs, keys)
            if found.steps:
                name = ", ".join(part for part in (variant.label, label) if part)
                ends = [f"{number(found.points[i].mean)} at step {found.steps[i]:g}" for i in (0, -1)]
                over = f" (mean of {found.n} runs)" if found.n > 1 else ""
                parts.append(f"{name}: {', '.join(ends)}{over}".removeprefix(": "))
    return "; ".join(parts)


def draw_panel(axes: Any, panel: Panel, variants: Sequence[Variant], theme: Theme, *, x_label: bool = True) -> None:
    """Draw one panel into matplotlib axes."""
    window = window_for(max(len(rows) for variant in variants for rows in variant.runs))
    several = len(variants) > 1
    for v, variant in enumerate(variants):
        for line, (label, keys) in enumerate(panel.lines.items()):
            index = v if several else line
            colour, style = theme.lines[index % len(theme.lines)], _STYLES[index // len(theme.lines) % len(_STYLES)]
            _draw_line(axes, variant, keys, window, colour, style, variant.label or label)
        if panel.title.startswith("accuracy"):
            mark = theme.lines[v % len(theme.lines)] if several else theme.lines[1]
            _draw_held_out(axes, variant, mark, "" if several else "held out, before and after")
    _finish(axes, panel, theme, x_label=x_label)


def _draw_line(axes: Any, variant: Variant, keys: Sequence[str], window: int, colour: str, style: str, label: str) -> None:
    found = band(variant.runs, keys, window)
    marker = "o" if len(found.steps) == 1 else None
    for rows in variant.runs:
        steps, values = series(rows, keys)
        shown = values if found.n < 2 else rolling_mean(values, window)
        if steps and (found.n > 1 or window > 1):
            axes.plot(steps, shown, color=colour, linewidth=0.8, alpha=0.4)
    if found.n > 1 and found.steps:
        low, high = ([point.mean + sign * (point.reach or 0.0) for point in found.points] for sign in (-1, 1))
        axes.fill_between(found.steps, low, high, color=colour, alpha=0.16, linewidth=0)
    if found.steps:
        means = [point.mean for point in found.points]
        label = f" {label}" if label.startswith("_") else label  # matplotlib leaves labels with "_" out of a legend
        axes.plot(found.steps, means, color=colour, linestyle=style, linewidth=2, label=label or None, marker=marker, markersize=4)


def _draw_held_out(axes: Any, variant: Variant, colour: str, label: str) -> None:
    """Mark held-out accuracy before and after training with standard error (one run) or 95% interval (several)."""
    last = max((known(row.get("step")) or 0.0 for rows in variant.runs for row in rows), default=0.0)
    for step, name in ((0.0, "before"), (last, "after")):
        found = [data for summary in variant.summaries if (data := summary.get(name))]
        point = interval([data.get("accuracy") for data in found])
        if point:
            reach = point.reach if point.reach is not None else known(found[0].get("stderr")) or 0.0
            named = label if name == "before" else None
            axes.errorbar(
                [step], [point.mean], yerr=[reach], color=colour, fmt="D", markersize=5, capsize=3, linewidth=1.4,
                label=named or None, zorder=5,
            )  # fmt: skip


def _finish(axes: Any, panel: Panel, theme: Theme, *, x_label: bool) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title, fontsize=9.5, color=theme.text, loc="left", fontweight="bold")
    axes.set_facecolor(theme.background)
    axes.grid(color=theme.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=theme.text, labelsize=8, length=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axes.ticklabel_format(axis="y", useOffset=False)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(side == "bottom")
        axes.spines[side].set_color(theme.grid)
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    if x_label:
        axes.set_xlabel("step", fontsize=8, color=theme.text)
    if axes.get_legend_handles_labels()[1]:
        columns = 2 if len(panel.lines) > 3 else 1
        legend = axes.legend(fontsize=7.5, labelcolor=theme.text, loc="best", handlelength=1.4, ncols=columns)
        legend.get_frame().set(facecolor=theme.background, edgecolor="none", alpha=0.8)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a folder name may contain dollar signs


def _single_lines(panel: Panel) -> list[Panel]:
    if len(panel.lines) == 1:
        return [panel]
    name = "{}, share of calls" if panel.title.startswith("what the calls did") else f"{{}}: {panel.title}"
    return [Panel(name.format(label), {"": keys}, panel.share) for label, keys in panel.lines.items()]
