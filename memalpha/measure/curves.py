"""Curves of one or several runs from ``metrics.jsonl``, as SVG pictures.

One run: thin line = each step, thick line = rolling mean. Several runs of a variant: thin lines =
runs, thick line = their mean, at steps that every run has. A panel without data is left out. Equal
data gives equal files. The colours suit light and dark pages.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pandas

MetricRows = Sequence[Mapping[str, Any]]  # of one run's ``metrics.jsonl``
Line = list[pandas.Series]  # of each run, values by step

PANELS: Mapping[str, str] = {
    "reward": "reward|eval_reward",
    "accuracy": r"rewards/(accuracy)/mean|eval_accuracy",
    "other parts of the reward": r"rewards/(?!accuracy)(\w+)/mean",
    "calls a chunk": "memory/calls_per_chunk",
    "what the calls did, share": r"memory/(insert_share|update_share|delete_share|duplicates)",
    "calls that failed or were missing, share": "memory/(unparsed|silent_chunks)",
    "inserts by section, share of calls": r"memory/ops/(\w+)/insert",
    "updates by section, share of calls": r"memory/ops/(\w+)/(?:update|replace)",
    "deletes by section, share of calls": r"memory/ops/(\w+)/delete",
    "completion length, tokens": "completions/mean_length",
    "completions cut off, share": "completions/clipped_ratio",
    "final memory": "memory/(entries|tokens)",
    "words of what was written": "memory/entry_words",
    "written word for word, share": "memory/verbatim",
    "rollouts that could not be scored, share": "memory/masked",
    "entropy and KL to the reference, nats a token": "entropy|kl",
    "spread of the reward in a group": "reward_std",
    "groups that teach nothing, share": "frac_reward_zero_std",
    "gradient norm": "grad_norm",
    "loss": "loss",
    "steps skipped, share": "skipped",
    "seconds a step": r"time/(rollouts|scoring)|step_time",
}
"""Title of each panel, and the keys of its lines; a group in the pattern is a line's label."""

_COLOURS = ("#3b8ec2", "#d9722b", "#2a9d7a", "#bf6f9e", "#a58a1f")  # after Okabe and Ito
_GREY = "#79828e"
_STYLE = {
    "axes.edgecolor": _GREY,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": _GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _GREY,
    "axes.titlelocation": "left",
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "font.size": 8,
    "grid.alpha": 0.3,
    "legend.edgecolor": "none",
    "legend.facecolor": "none",
    "legend.labelcolor": _GREY,
    "svg.fonttype": "none",
    "svg.hashsalt": "memalpha",
    "text.parse_math": False,  # a folder name may contain dollar signs
    "xtick.color": _GREY,
    "ytick.color": _GREY,
}


def frame_of(rows: MetricRows) -> pandas.DataFrame:
    """Return a run's metrics by step; what is no number is missing."""
    frame = pandas.DataFrame(rows or [{"step": 0}]).apply(pandas.to_numeric, errors="coerce")
    return frame.set_index("step")


def panels_of(variants: Mapping[str, Sequence[MetricRows]]) -> dict[str, dict[str, Line]]:
    """Return the lines of each panel with data, by label.

    A line a key; or, with several variants, a line a variant and a panel a key.
    """
    frames = {label: list(map(frame_of, runs)) for label, runs in variants.items()}
    names = dict.fromkeys(chain.from_iterable(chain.from_iterable(frames.values())))
    panels: dict[str, dict[str, Line]] = defaultdict(dict)
    for title, pattern in PANELS.items():
        matches = list(filter(None, (re.fullmatch(pattern, name) for name in names)))
        for match in matches:
            name = next(filter(None, match.groups()), match[0].replace("eval_", "held-out "))
            for variant, runs in frames.items():
                line = [frame[match[0]].dropna() for frame in runs if match[0] in frame]
                line = [series for series in line if len(series)]
                if line and len(frames) == 1:
                    panels[title][name if len(matches) > 1 else ""] = line
                elif line:
                    panels[f"{name}: {title}" if len(matches) > 1 else title][variant] = line
    return panels


def smooth(series: pandas.Series) -> pandas.Series:
    """Return the rolling mean over a fifth of the points, from 1 to 25."""
    return series.rolling(max(1, min(25, len(series) // 5)), min_periods=1).mean()


def draw(axes: Any, title: str, lines: Mapping[str, Line]) -> None:
    """Draw one panel into matplotlib axes."""
    from matplotlib.ticker import MaxNLocator

    for index, (label, runs) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        curves = pandas.concat(list(map(smooth, runs)), axis=1, join="inner")
        middle = curves.mean(axis=1)
        thin = curves if len(runs) > 1 else runs[0]
        axes.plot(thin.index, thin, color=colour, linewidth=0.8, alpha=0.4)
        marker = "o" if len(middle) == 1 else None
        # matplotlib leaves labels with "_" out of a legend
        axes.plot(middle, color=colour, linewidth=2, marker=marker, label=f" {label}")
    axes.set_title(title)
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    if "share" in title or "accuracy" in title:
        axes.set_ylim(-0.03, 1.03)
    if any(lines):
        axes.legend()


def write_figures(
    folder: Path, variants: Mapping[str, Sequence[MetricRows]]
) -> list[tuple[str, str]]:
    """Draw the runs of each variant; return title and path of each panel.

    Paths are from the folder above.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    pictures: list[tuple[str, str]] = []
    for title, lines in panels_of(variants).items():
        folder.mkdir(parents=True, exist_ok=True)
        name = f"{folder.name}/{len(pictures):02d}.svg"
        with rc_context(_STYLE):
            figure = Figure(figsize=(4.6, 2.7), facecolor="none", layout="constrained")
            draw(figure.add_subplot(facecolor="none"), title, lines)
            metadata = {"Date": None, "Creator": None}
            figure.savefig(folder.parent / name, format="svg", metadata=metadata)
        pictures.append((title, name))
    return pictures
