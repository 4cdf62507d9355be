"""A run as a static site, ``RUN/report/``, a page that compares runs, and their curves.

The site needs no server and no network. ``index.html`` is the overview, ``rollouts.html`` the list
with filters; each rollout has a page. Rollouts are read twice, one in memory at a time. Jinja
escapes every value, and the content security policy allows only the site's two scripts. Head and
style sheet are those of every page (``memalpha.text.page``).
"""

import json
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from importlib import resources
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas
import yaml

from memalpha.errors import RunFolderError, from_extra
from memalpha.files import write_whole
from memalpha.measure import tables, view
from memalpha.measure.story import find_moves, tell_change
from memalpha.measure.view import Recorded, Tone, numeric
from memalpha.record.folder import SITE_FILE, RunFolder, files_of_site, make_folder
from memalpha.text.page import style_sheet
from memalpha.types import JsonMapping, JsonObject

# ------------------------------------------------------------------------------------------------
# curves
# Of one or several runs from ``metrics.jsonl``, as SVG pictures. One run: thin line = each step,
# thick line = rolling mean. Several runs of a variant: thin lines = runs, thick line = their mean,
# at steps that every run has. A panel without data is left out. Equal data gives equal files. The
# colours suit light and dark pages; words follow the page.

MetricRows = Sequence[JsonMapping]  # of one run's ``metrics.jsonl``
Line = list[pandas.Series]  # of each run, values by step

_PANELS: Mapping[str, str] = {
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
    "log-probabilities sampled and trained, apart by nats": (
        r"sampling/sampling_logp_difference/(mean|p99)"
    ),
    "KL of sampled to trained policy, nats a token": "sampling/kl",
    "tokens masked by their importance weight, share": "sampling/masked",
    "spread of the reward in a group": "reward_std",
    "groups that teach nothing, share": "frac_reward_zero_std",
    "gradient norm": "grad_norm",
    "loss": "loss",
    "steps skipped, share": "skipped",
    "loss scale in float16": "loss_scale",
    "seconds a step": r"time/(rollouts|scoring)|step_time",
}
"""Title of each panel, and the keys of its lines; a group in the pattern is a line's label."""

_COLOURS = ("#3b8ec2", "#d9722b", "#2a9d7a", "#bf6f9e", "#a58a1f")  # after Okabe and Ito
_GREY, _PALE = "#55606c", "#a3afbb"  # of words and axes, on light and on dark pages
_STYLE = {
    "axes.edgecolor": _GREY,
    "axes.formatter.useoffset": False,
    "axes.grid": True,
    "axes.labelcolor": _GREY,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": _GREY,
    "axes.titlelocation": "left",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "font.size": 9.5,
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
_DARK = (
    f"<style>@media (prefers-color-scheme: dark) {{ text {{ fill: {_PALE} !important; }} }}</style>"
)


def frame_of(rows: MetricRows) -> pandas.DataFrame:
    """Return a run's metrics by step; values that are not numbers are missing."""
    numbers = [{name: numeric(value) for name, value in row.items()} for row in rows]
    frame = pandas.DataFrame(numbers or [{"step": 0}], dtype=float)
    return frame.set_index("step")


def panels_of(variants: Mapping[str, Sequence[MetricRows]]) -> dict[str, dict[str, Line]]:
    """Return the lines of each panel with data, by label.

    A line a key; or, with several variants, a line a variant and a panel a key.
    """
    frames = {label: list(map(frame_of, runs)) for label, runs in variants.items()}
    names = dict.fromkeys(chain.from_iterable(chain.from_iterable(frames.values())))
    panels: dict[str, dict[str, Line]] = defaultdict(dict)
    for title, pattern in _PANELS.items():
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


def _smooth(series: pandas.Series) -> pandas.Series:
    """Return the rolling mean over a fifth of the points, from 1 to 25."""
    return series.rolling(max(1, min(25, len(series) // 5)), min_periods=1).mean()


def draw_lines(axes: Any, title: str, lines: Mapping[str, Line]) -> None:
    """Draw one panel into matplotlib axes."""
    with from_extra("report"):
        from matplotlib.ticker import MaxNLocator

    for index, (label, runs) in enumerate(lines.items()):
        colour = _COLOURS[index % len(_COLOURS)]
        curves = pandas.concat(list(map(_smooth, runs)), axis=1, join="inner")
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


def draw_panels(variants: Mapping[str, Sequence[MetricRows]]) -> Iterator[tuple[str, str]]:
    """Draw the runs of each variant; yield title and SVG picture of each panel."""
    with from_extra("report"):
        from matplotlib import rc_context
        from matplotlib.figure import Figure

    for title, lines in panels_of(variants).items():
        with rc_context(_STYLE):
            figure = Figure(figsize=(4.6, 2.7), facecolor="none", layout="constrained")
            draw_lines(figure.add_subplot(facecolor="none"), title, lines)
            picture = StringIO()
            figure.savefig(picture, format="svg", metadata={"Date": None, "Creator": None})
        yield title, picture.getvalue().replace("<defs>", f"{_DARK}<defs>", 1)


# ------------------------------------------------------------------------------------------------
# pages

PAGES = 2000  # default number of training rollouts that get a page
_INDEXED = (  # facts of a rollout that the list shows and filters by
    *("page", "where", "instance", "reward", "accuracy", "calls", "failed", "insert", "update"),
    *("delete", "wrong", "questions", "cut", "masked", "entries"),
)


def facts_of_run(run: RunFolder) -> Iterator[JsonObject]:
    """Iterate over the facts of all rollouts of a run, for lists and filters.

    InputError if a file is damaged.
    """
    for source in view.sources_of(run):
        for index, rollout in enumerate(source.rollouts(run)):
            steps, questions = rollout["steps"], rollout["questions"]
            tones = Counter(call.tone for step in steps for call in view.calls(step))
            scores = [numeric(question["score"]) for question in questions]
            reward = view.rollout_reward(rollout)
            errors = [str(part["error"]) for part in (*questions, *steps) if part.get("error")]
            results = chain.from_iterable(step["results"] for step in steps)
            stops = [step["stop"] for step in steps]
            codes = [result["code"] for result in results if not result["ok"]]
            wrong = [score for score in scores if score is not None and score < 0.5]
            yield {
                "page": f"{Path(source.name).stem}-{index:04d}.html",
                "where": source.where,
                "step": source.step,  # None for held-out evaluations
                "instance": str(rollout["instance"]),
                "reward": reward,
                "accuracy": view.rollout_accuracy(rollout),
                "calls": tones.total(),  # includes text that is not a readable call
                **{tone.value: tones[tone] for tone in Tone},
                "wrong": len(wrong),
                "questions": len(questions),
                "cut": stops.count("length"),
                "masked": bool(None in scores or errors or (reward is None and steps)),
                "entries": len(rollout["memory"]),
                "codes": codes,
                "errors": errors,
            }


def rollouts_table(run: RunFolder) -> tables.Table:
    """Return what ``memalpha inspect`` can show of a run, by the arguments that show it."""
    facts: dict[str, list[JsonObject]] = {}
    for fact in facts_of_run(run):
        option = f"--step {fact['step']}" if fact["step"] else f"--held-out {fact['where']}"
        facts.setdefault(f"{option} --rollout N", []).append(fact)
    rows = []
    for option, own in facts.items():
        reward = view.number(view.mean([fact["reward"] for fact in own]))
        share = view.points(view.mean([fact["accuracy"] for fact in own]))
        rows.append([option, f"0 to {len(own) - 1}", reward, share])
    head = ["memalpha inspect RUN ...", "N", "mean reward", "mean accuracy, %"]
    return tables.Table(head, rows)


def _last_writes(rollout: Recorded) -> dict[str, int]:
    """Return the last chunk that wrote each entry."""
    written: dict[str, int] = {}
    for step in rollout["steps"]:
        for change in step["changes"]:
            if change["after"]:
                written[str(change["after"]["id"])] = step["chunk"]
    return written


def kept_steps(counts: Mapping[int, int], limit: int) -> set[int]:
    """Return the steps whose rollouts get pages, of steps with their number of rollouts.

    Whole steps at even distances, the last included.
    """
    steps = sorted(counts)
    if not limit or sum(counts.values()) <= limit:
        return set(steps)
    fit, last = max(1, min(len(steps), limit // max(counts.values()))), len(steps) - 1
    return {steps[last - round(i * last / max(fit - 1, 1))] for i in range(fit)}


def write_site(run: RunFolder, target: Path | None = None, limit: int = PAGES) -> Path:
    """Write the site of a run and return the path of its first page.

    At most ``limit`` (0 = all) training rollouts get a page.
    """
    target = target or run.path / "report"
    config, metrics, summary = run.config, run.metrics(), run.summary
    facts = list(facts_of_run(run))
    item = tables.held_out(run)
    steps = Counter(fact["step"] for fact in facts if fact["step"] is not None)
    paged = {None, *kept_steps(steps, limit)}
    shown = [fact for fact in facts if fact["step"] in paged]
    site = _Site(
        target, run.path.resolve().name, {"index.html": "Overview", "rollouts.html": "Rollouts"}
    )
    pages = [fact["page"] for fact in shown]
    rest = zip(shown, ["", *pages], [*pages[1:], ""], strict=False)
    for source in view.sources_of(run):
        for rollout in source.rollouts(run) if source.step in paged else ():
            fact, previous, following = next(rest)
            site.save(
                "rollout.html",
                f"rollouts/{fact['page']}",
                facts=fact,
                rollout=rollout,
                memories=view.memory_after_steps(rollout),
                final={str(entry["id"]): view.entry_text(entry) for entry in rollout["memory"]},
                written=_last_writes(rollout),
                previous=previous,
                following=following,
            )
    rows = json.dumps([list(map(fact.get, _INDEXED)) for fact in shown])
    better, worse = find_moves(facts)
    index = rows.replace("<", "\\u003c")  # stands in a script element
    site.save("rollouts.html", "rollouts.html", index=index)
    return site.save(
        "overview.html",
        "index.html",
        story=tell_change(run, item, metrics[-1] if metrics else {}),
        better=better,
        worse=worse,
        selection=tables.selection_note(run),
        table=tables.before_and_after(run, item),
        summary=summary,
        environment=run.environment,
        control=bool(config.get("shuffle_advantages")),
        temperature=numeric(config.get("eval_temperature")) or 0.0,
        pictures=site.figures({"": [metrics]}),
        troubles=troubles(facts, metrics),
        failures=failures(facts),
        pages=len(shown),
        training=sum(steps[step] for step in paged if step is not None),
        all_training=steps.total(),
        config=yaml.safe_dump(config, sort_keys=True, allow_unicode=True),
    )


def write_comparison(columns: Sequence[tables.Column], target: Path) -> Path:
    """Write ``index.html`` with table and curves of several runs and return its path.

    Only this page's own files are replaced.
    """
    links = {}
    for run in chain.from_iterable(column.runs for column in columns):
        report = run.path.resolve() / "report" / "index.html"
        path = Path(os.path.relpath(report, target.resolve())).as_posix()
        links[run.path.resolve().name] = quote(path) if report.is_file() else ""
    variants = {column.label: list(map(RunFolder.metrics, column.runs)) for column in columns}
    site = _Site(target, "comparison", {"index.html": "Comparison"})
    return site.save(
        "compare.html",
        "index.html",
        table=tables.comparison(columns),
        measured=any(column.names for column in columns),
        runs=links,
        pictures=site.figures(variants),
    )


def write_page(
    title: str, lead: Sequence[str], note: str, parts: Mapping[str, tables.Table], target: Path
) -> Path:
    """Write ``index.html`` and return its path: ``lead``, tables by title, what their columns mean.

    Only this page's own files are replaced.
    """
    return _Site(target, title.lower(), {"index.html": title}).save(
        "tables.html", "index.html", title=title, lead=lead, note=note, tables=parts
    )


_NAMES = (  # patterns of all that a site writes
    *(SITE_FILE, "index.html", "rollouts.html", "assets/site.css", "assets/site.js"),
    *("assets/list.js", "figures/[0-9][0-9].svg", "rollouts/*-[0-9][0-9][0-9][0-9]*.html"),
)


class _Site:
    """Writes pages into a folder, in place of an older site's, whose files are listed there.

    RunFolderError for a file that no site made: it is neither replaced nor removed.
    """

    def __init__(self, target: Path, name: str, lists: Mapping[str, str]) -> None:
        self.target = target
        self.templates = view.templates(autoescape=True)
        self.templates.globals.update(name=name, lists=lists)
        self.templates.filters["coded"] = view.mark_code
        make_folder(target)
        earlier = files_of_site(target)
        self._check_free(earlier)
        for file in earlier:
            if file.is_file() and not file.is_symlink():
                file.unlink()
        write_whole(target / SITE_FILE, "")
        self.write("assets/site.css", style_sheet())
        for asset in ("site.js", "list.js"):
            source = resources.files("memalpha.measure").joinpath("templates", asset)
            self.write(f"assets/{asset}", source.read_text(encoding="utf-8"))

    def save(self, template: str, name: str, **context: Any) -> Path:
        page = self.templates.get_template(template)
        text = page.render(root="../" * name.count("/"), here=name, **context)
        return self.write(name, text)

    def write(self, name: str, text: str) -> Path:
        """Write a file of the site, listed before it is there; return its path."""
        path = self.target / name
        make_folder(path.parent)
        with (self.target / SITE_FILE).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        path.write_text(text, encoding="utf-8")
        return path

    def figures(self, variants: Mapping[str, Sequence[MetricRows]]) -> list[tuple[str, str]]:
        """Draw the runs of each variant; return title and name of each panel."""
        pictures = []
        for number, (title, picture) in enumerate(draw_panels(variants)):
            name = f"figures/{number:02d}.svg"
            self.write(name, picture)
            pictures.append((title, name))
        return pictures

    def _check_free(self, earlier: AbstractSet[Path]) -> None:
        """Raise RunFolderError if what is to be written stands there and is not of the site."""
        there = [path for name in _NAMES for path in self.target.glob(name)]
        folders = [self.target / name for name in ("assets", "figures", "rollouts")]
        theirs = [path for path in there if path.is_symlink() or path not in earlier]
        theirs += [path for path in folders if path.is_symlink() or path.is_file()]
        if theirs:
            raise RunFolderError(
                f"{str(self.target)!r} holds "
                f"{theirs[0].relative_to(self.target) if theirs else ''}, "
                "which no report or comparison made",
                expected="a new folder, or one that an earlier call made",
                fix="move it, or choose another --output",
            )


def troubles(facts: Sequence[JsonMapping], metrics: MetricRows) -> Counter[tuple[str, str]]:
    """Return how often which step was skipped or score is missing, as (where, message)."""
    why = "the step was skipped, since loss or gradient was not finite"
    counts = Counter((f"step {row['step']}", why) for row in metrics if row.get("skipped"))
    for fact in facts:
        counts.update((fact["where"], error) for error in fact["errors"])
    return counts


def failures(facts: Sequence[JsonMapping]) -> dict[str, tuple[int, Counter[str]]]:
    """Return number of calls and codes of failed ones, in training and each held-out evaluation."""
    counts: dict[str, tuple[int, Counter[str]]] = {}
    for fact in facts:
        where = fact["where"] if fact["step"] is None else "training"
        calls, codes = counts.get(where, (0, Counter()))
        counts[where] = calls + fact["calls"], codes + Counter(fact["codes"])
    return counts
