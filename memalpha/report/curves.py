"""The curves of a training run, drawn from ``metrics.jsonl``.

One small panel a question (does the reward rise, from which part, does the policy still speak, is it cut off, how long does a step
take); a thin line is what each step measured, a thick one the mean over the last steps. Panels without data are left out, and so
are values that are null. Matplotlib is imported when something is drawn, with its Agg canvas and no global state.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.report.view import known
from memalpha.runs import RunFolder

CURVES_FILE = "report/curves.png"
"""Where the picture lies in a run folder."""

_COLUMNS = 3
_LONGEST_WINDOW = 25


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel.

    Attributes:
        title: What it shows, with its unit.
        lines: Label of each line and the keys it is read from; the first key that a run has counts.
        share: Whether values are shares, so that the axis runs from 0 to 1.
    """

    title: str
    lines: Mapping[str, tuple[str, ...]]
    share: bool = False


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
"""Everything that can be drawn, in the order of the picture."""


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of a picture; the lines' are told apart by colour-blind eyes (Okabe and Ito's palette, lighter on dark)."""

    background: str
    text: str
    grid: str
    lines: tuple[str, ...]


LIGHT = Theme("#ffffff", "#24292f", "#e4e7eb", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00"))
DARK = Theme("#161b22", "#d7dde4", "#2b323b", ("#56b4e9", "#f0883e", "#2fcf9e", "#e29bc4", "#e6c84f"))


class Series(NamedTuple):
    """Values over steps."""

    steps: list[float]
    values: list[float]


def series(rows: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> Series:
    """Return the values of the first of ``keys`` that any row knows, over the steps of the rows that know it."""
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
    """Return how many steps the thick lines average over: a fifth of the run, at least 1 and at most 25."""
    return max(1, min(_LONGEST_WINDOW, steps // 5))


def draw_figure(
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any] | None = None,
    theme: Theme = LIGHT,
    panels: Sequence[Panel] = PANELS,
) -> Any:
    """Return a matplotlib ``Figure`` of all panels that have data, or None if there is nothing to draw.

    Args:
        rows: Rows of ``metrics.jsonl``.
        summary: Held-out accuracy before and after is marked in the panel of accuracy, at the first and last step.
        theme: Colours.
        panels: What may be drawn, in order.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels = [panel for panel in panels if any(series(rows, keys).steps for keys in panel.lines.values())]
    if not panels:
        return None
    columns = min(_COLUMNS, len(panels))
    height = -(-len(panels) // columns)
    figure = Figure(
        figsize=(4.1 * columns, 2.5 * height + 0.4),
        facecolor=theme.background,
        layout=ConstrainedLayoutEngine(h_pad=0.1, w_pad=0.08),
    )
    FigureCanvasAgg(figure)
    window = window_for(len(rows))
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(height, columns, index + 1)
        _draw_panel(axes, panel, rows, window, theme)
        if panel.title == "accuracy":
            _draw_held_out(axes, rows, summary or {}, theme)
        finish_panel(axes, panel, theme, lowest_row=index + columns >= len(panels))
    note = f"thin: each step; thick: mean of the last {window} steps" if window > 1 else "each step"
    figure.suptitle(note, fontsize=8, color=theme.text, alpha=0.75, ha="right", x=0.995)
    return figure


def _draw_panel(axes: Any, panel: Panel, rows: Sequence[Mapping[str, Any]], window: int, theme: Theme) -> None:
    for (label, keys), colour in zip(panel.lines.items(), theme.lines, strict=False):
        steps, values = series(rows, keys)
        if not steps:
            continue
        marker = "o" if len(steps) == 1 else None
        if window > 1:
            axes.plot(steps, values, color=colour, linewidth=0.8, alpha=0.35, marker=marker)
        axes.plot(
            steps, rolling_mean(values, window), color=colour, linewidth=1.8, label=label or None, marker=marker, markersize=4
        )


def _draw_held_out(axes: Any, rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], theme: Theme) -> None:
    """Mark the accuracy on held-out instances with its standard error, before the first step and at the last."""
    last = max(known(row.get("step")) or 0.0 for row in rows)
    points = [(step, summary.get(name)) for step, name in ((0.0, "before"), (last, "after"))]
    found = [
        (step, data["accuracy"], known(data.get("stderr")))
        for step, data in points
        if data and known(data.get("accuracy")) is not None
    ]
    if found:
        steps, values, errors = zip(*found, strict=True)
        axes.errorbar(
            steps,
            values,
            yerr=[error or 0.0 for error in errors],
            color=theme.lines[1],
            fmt="D",
            markersize=4.5,
            capsize=3,
            linewidth=1.2,
            label="held out, before and after",
            zorder=5,
        )


def finish_panel(axes: Any, panel: Panel, theme: Theme, *, lowest_row: bool) -> None:
    """Give axes their title, grid, colours and legend; those of the lowest row name what they run over."""
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
    if lowest_row:
        axes.set_xlabel("step", fontsize=8, color=theme.text)
    if axes.get_legend_handles_labels()[1]:
        legend = axes.legend(
            fontsize=7.5, labelcolor=theme.text, loc="best", handlelength=1.4, ncols=2 if len(panel.lines) > 3 else 1
        )
        legend.get_frame().set(facecolor=theme.background, edgecolor="none", alpha=0.8)
        for text in legend.get_texts():
            text.set_parse_math(False)  # a folder's name may hold dollar signs


def curves_png(rows: Sequence[Mapping[str, Any]], summary: Mapping[str, Any] | None = None, theme: Theme = LIGHT) -> bytes | None:
    """Return the picture as PNG; None if there is nothing to draw."""
    figure = draw_figure(rows, summary, theme)
    if figure is None:
        return None
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=110, facecolor=figure.get_facecolor(), pil_kwargs={"optimize": True})
    return buffer.getvalue()


def write_curves(run: RunFolder, summary: Mapping[str, Any] | None = None) -> Path | None:
    """Write ``report/curves.png`` of a run and return its path; None if the run has no metrics yet."""
    picture = curves_png(run.metrics(), summary)
    if picture is None:
        return None
    path = run.path / CURVES_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(picture)
    return path
