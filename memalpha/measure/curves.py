"""Curves of one or several runs from ``metrics.jsonl`` as SVG pictures, light and dark.

One run: thin line = each step, thick line = rolling mean. Several runs of a variant: thin lines =
runs, thick line = their mean, band = Student's 95% interval, at steps that every run has. Panels
without data and unknown values are left out. Equal data gives equal files. Matplotlib is imported
on use, without global state.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from memalpha.measure.view import known

Rows = Sequence[Mapping[str, Any]]  # rows of one run's ``metrics.jsonl``
_STYLES = ("-", "--", ":")
_CALLS = {
    "insert": "insert_share",
    "update": "update_share",
    "delete": "delete_share",
    "duplicate": "duplicates",
    "unreadable": "unparsed",
}
_MIX, _PART = "memory/ops/", "memory/reward_"


class Panel(NamedTuple):
    """One panel."""

    title: str  # with unit
    lines: Mapping[
        str, tuple[str, ...]
    ]  # label of each line -> keys to read; the first key that a run has is used
    share: bool = False  # whether the axis runs from 0 to 1


PANELS: tuple[Panel, ...] = (
    Panel("reward", {"": ("reward",)}),
    Panel(
        "accuracy",
        {"training rollouts": ("rewards/accuracy/mean", "memory/reward_accuracy")},
        share=True,
    ),
    Panel("accuracy, held out, while training", {"": ("eval_accuracy",)}, share=True),
    Panel("reward, held out, while training", {"": ("eval_reward",)}),
    Panel(
        "other parts of the reward",
        {
            name: (f"rewards/{name}/mean", f"memory/reward_{name}")
            for name in ("tool", "compression", "content", "immediate")
        },
        share=True,
    ),
    Panel("calls a chunk", {"": ("memory/calls_per_chunk",)}),
    Panel("chunks without a call, share", {"": ("memory/silent_chunks",)}, share=True),
    Panel(
        "what the calls did, share",
        {name: (f"memory/{key}",) for name, key in _CALLS.items()},
        share=True,
    ),
    Panel("completion length, tokens", {"": ("completions/mean_length",)}),
    Panel(
        "completions cut off, share",
        {"": ("completions/clipped_ratio", "memory/cut_off")},
        share=True,
    ),
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
    Panel(
        "seconds a step",
        {"rollouts": ("time/rollouts",), "scoring": ("time/scoring",), "update": ("step_time",)},
    ),
)


class Theme(NamedTuple):
    """Colours of a picture; line colours are safe for colour-blind readers (palette of Okabe and
    Ito, lighter on dark).
    """

    background: str
    text: str
    grid: str
    lines: tuple[str, ...]

    def style(self) -> dict[str, Any]:
        """Return the settings of matplotlib."""
        spines = {f"axes.spines.{side}": False for side in ("top", "right", "left")}
        return spines | {
            "axes.facecolor": self.background,
            "axes.edgecolor": self.grid,
            "axes.axisbelow": True,
            "axes.formatter.useoffset": False,
            "axes.titlesize": 9.5,
            "axes.titlecolor": self.text,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.labelsize": 8,
            "axes.labelcolor": self.text,
            "axes.grid": True,
            "grid.color": self.grid,
            "grid.linewidth": 0.8,
            "xtick.color": self.text,
            "xtick.labelsize": 8,
            "xtick.major.size": 0,
            "ytick.color": self.text,
            "ytick.labelsize": 8,
            "ytick.major.size": 0,
            "legend.fontsize": 7.5,
            "legend.labelcolor": self.text,
            "legend.handlelength": 1.4,
            "legend.facecolor": self.background,
            "legend.edgecolor": "none",
            "text.parse_math": False,  # a folder name may contain dollar signs
            "svg.fonttype": "none",
            "svg.hashsalt": "memalpha",
        }


LIGHT = Theme(
    "#ffffff", "#24292f", "#e4e7eb", ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#8a6d00")
)
DARK = Theme(
    "#161b22", "#d7dde4", "#2b323b", ("#56b4e9", "#f0883e", "#2fcf9e", "#e29bc4", "#e6c84f")
)


class Variant(NamedTuple):
    """Runs that differ only in their seed; the name is empty if there is only one variant."""

    label: str
    runs: Sequence[Rows]
    summaries: Sequence[Mapping[str, Any]]  # ``summary.json`` of each run, empty if missing


def series(rows: Rows, keys: Sequence[str]) -> tuple[list[float], list[float]]:
    """Return steps and values of the first of ``keys`` that occurs in the rows."""
    for key in keys:
        pairs = [(known(row.get("step")), known(row.get(key))) for row in rows]
        points = [(step, value) for step, value in pairs if step is not None and value is not None]
        if points:
            return [step for step, _ in points], [value for _, value in points]
    return [], []


def rolling_mean(values: Sequence[float], window: int) -> list[float]:
    """Return, for each value, the mean of it and the up to ``window - 1`` values before it."""
    parts = [values[max(0, i + 1 - window) : i + 1] for i in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def window_for(steps: int) -> int:
    """Return the window of the rolling mean: a fifth of the steps, from 1 to 25."""
    return max(1, min(25, steps // 5))


def interval(values: Sequence[Any]) -> tuple[float, float | None] | None:
    """Return the mean of the known values and the half-width of Student's 95% t interval (None for
    one); None if there are none.
    """
    found = [item for value in values if (item := known(value)) is not None]
    if len(found) < 2:
        return (found[0], None) if found else None
    from scipy.stats import t

    return fmean(found), float(t.ppf(0.975, len(found) - 1)) * stdev(found) / math.sqrt(len(found))


class Picture(NamedTuple):
    """One panel as files of the site."""

    title: str
    light: str
    dark: str


def logged_panels(variants: Sequence[Variant]) -> list[Panel]:
    """Return a panel for each kind of operation that several sections log, and for each part of the
    reward not in ``PANELS``.
    """
    drawn, parts = (
        {key for panel in PANELS for keys in panel.lines.values() for key in keys},
        list[Panel](),
    )
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for key in dict.fromkeys(
        key for one in variants for rows in one.runs for row in rows for key in row
    ):
        if key.startswith(_MIX):
            section, kind = key.removeprefix(_MIX).split("/")
            found.setdefault(kind, {})[section] = (key,)
        elif key.startswith(_PART) and key not in drawn:
            name = key.removeprefix(_PART)
            parts.append(Panel(f"{name}, part of the reward", {"": (f"rewards/{name}/mean", key)}))
    shares = [
        Panel(f"{kind} by section, share of the calls", lines, share=True)
        for kind, lines in found.items()
        if len(lines) > 1
    ]
    return shares + parts


def write_figures(
    folder: Path, variants: Sequence[Variant], panels: Sequence[Panel] = PANELS
) -> list[Picture]:
    """Write every panel that has data as SVG, light and dark; with several variants, one panel per
    line of a panel.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    panels = [*panels, *logged_panels(variants)]
    if len(variants) > 1:
        panels = [
            panel._replace(
                title=f"{label}: {panel.title}" if len(panel.lines) > 1 else panel.title,
                lines={"": keys},
            )
            for panel in panels
            for label, keys in panel.lines.items()
        ]
    pictures = []
    for index, panel in enumerate(panels):
        if not any(
            series(rows, keys)[0]
            for one in variants
            for rows in one.runs
            for keys in panel.lines.values()
        ):
            continue
        folder.mkdir(parents=True, exist_ok=True)
        names = []
        for shade, theme in (("light", LIGHT), ("dark", DARK)):
            names.append(f"{folder.name}/{index:02d}-{shade}.svg")
            with rc_context(theme.style()):
                figure = Figure(
                    figsize=(4.6, 2.7), facecolor=theme.background, layout="constrained"
                )
                draw_panel(figure.add_subplot(), panel, variants, theme)
                figure.savefig(
                    folder.parent / names[-1],
                    format="svg",
                    metadata={"Date": None, "Creator": None},
                )
        pictures.append(Picture(panel.title, *names))
    return pictures


def draw_panel(axes: Any, panel: Panel, variants: Sequence[Variant], theme: Theme) -> None:
    """Draw one panel into matplotlib axes."""
    window = window_for(max(len(rows) for variant in variants for rows in variant.runs))
    several = len(variants) > 1
    for v, variant in enumerate(variants):
        for line, (label, keys) in enumerate(panel.lines.items()):
            index = v if several else line
            colour, style = (
                theme.lines[index % len(theme.lines)],
                _STYLES[index // len(theme.lines) % len(_STYLES)],
            )
            _draw_line(
                axes,
                variant,
                keys,
                1 if keys[0].startswith("eval_") else window,
                colour,
                style,
                variant.label or label,
            )
            if (
                keys == ("eval_accuracy",)
                and len(variant.runs) == 1
                and (errors := series(variant.runs[0], ("eval_stderr",))[1])
            ):
                axes.errorbar(
                    *series(variant.runs[0], keys),
                    yerr=errors,
                    fmt="none",
                    color=colour,
                    capsize=2,
                    linewidth=1,
                )
        if panel.title.startswith("accuracy"):
            mark = theme.lines[v % len(theme.lines)] if several else theme.lines[1]
            _draw_held_out(axes, variant, mark, "" if several else "held out, before and after")
    _finish(axes, panel)


def _draw_line(
    axes: Any,
    variant: Variant,
    keys: Sequence[str],
    window: int,
    colour: str,
    style: str,
    label: str,
) -> None:
    found = [one for rows in variant.runs if (one := series(rows, keys))[0]]
    several = len(found) > 1
    curves = [
        dict(zip(steps, rolling_mean(values, window), strict=True)) for steps, values in found
    ]
    for (steps, values), curve in zip(found, curves, strict=True):
        if several or window > 1:
            axes.plot(
                steps,
                [curve[step] for step in steps] if several else values,
                color=colour,
                linewidth=0.8,
                alpha=0.4,
            )
    common = sorted(set.intersection(*map(set, curves))) if curves else []
    points = [point for step in common if (point := interval([curve[step] for curve in curves]))]
    if several and points:
        low, high = ([mean + sign * (reach or 0.0) for mean, reach in points] for sign in (-1, 1))
        axes.fill_between(common, low, high, color=colour, alpha=0.16, linewidth=0)
    if points:
        label = (
            f" {label}" if label.startswith("_") else label
        )  # matplotlib leaves labels with "_" out of a legend
        look = {"color": colour, "linestyle": style, "marker": "o" if len(common) == 1 else None}
        axes.plot(
            common,
            [mean for mean, _ in points],
            linewidth=2,
            label=label or None,
            markersize=4,
            **look,
        )


def _draw_held_out(axes: Any, variant: Variant, colour: str, label: str) -> None:
    last = max(
        (known(row.get("step")) or 0.0 for rows in variant.runs for row in rows), default=0.0
    )
    chosen = [known((summary.get("selection") or {}).get("step")) for summary in variant.summaries]
    last = max((step for step in chosen if step), default=last)
    for step, name in ((0.0, "before"), (last, "after")):
        found = [data for summary in variant.summaries if (data := summary.get(name))]
        if point := interval([data.get("accuracy") for data in found]):
            reach = point[1] if point[1] is not None else known(found[0].get("stderr")) or 0.0
            look = {
                "color": colour,
                "fmt": "D",
                "markersize": 5,
                "capsize": 3,
                "linewidth": 1.4,
                "zorder": 5,
            }
            axes.errorbar(
                [step],
                [point[0]],
                yerr=[reach],
                label=(label if name == "before" else None) or None,
                **look,
            )


def _finish(axes: Any, panel: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_title(panel.title)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if panel.share:
        axes.set_ylim(-0.03, 1.03)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(ncols=2 if len(panel.lines) > 3 else 1)
