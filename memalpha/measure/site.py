"""A run as a static site, ``RUN/report/``: open ``index.html`` from disk, without server or
network. And the comparison of runs.

``index.html`` is the overview, ``rollouts.html`` the list with filters; each rollout has a page.
Rollouts are read twice, one in memory at a time. Jinja escapes every value, and the content
security policy allows only the site's two scripts.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, partial
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jinja2
import yaml

from memalpha.measure import runs as run_tables
from memalpha.measure import view
from memalpha.measure.curves import Rows, Variant, write_figures
from memalpha.measure.view import Source, Tone, known, number
from memalpha.record.folder import RunFolder

PAGES = 2000  # default number of training rollouts that get a page
_LONG_MEMORY = 30


class Facts(NamedTuple):
    """The facts of one rollout for lists and filters; the first 15 fields are a row of the list's
    index.
    """

    page: str  # page name without folder
    where: str  # "before", "after", "step 3"
    instance: str
    reward: float | None  # mean weighted reward
    accuracy: float | None  # mean score of its questions
    calls: int  # includes text that is not a readable call
    failed: int
    inserts: int
    updates: int
    deletes: int
    wrong: int  # questions with a score below 0.5
    questions: int
    cut: int  # completions cut off at the maximum length
    masked: bool  # whether a score is missing
    entries: int  # entries of the final memory
    step: int | None  # None for held-out evaluations
    codes: Mapping[str, int]  # failed calls by code
    errors: tuple[str, ...]  # messages about missing scores


def facts_of(source: Source, index: int, row: Mapping[str, Any]) -> Facts:
    """Return the facts of one rollout: a line of its source, at an index."""
    rollout = source.rollout(row)
    tones = Counter(call.tone for step in rollout["steps"] for call in view.calls(step))
    scores = [known(question["score"]) for question in rollout["questions"]]
    reward = view.rollout_reward(rollout)
    errors = tuple(
        str(part["error"])
        for part in (*rollout["questions"], *rollout["steps"])
        if part.get("error")
    )
    return Facts(
        page=f"{source.key}-{index:04d}.html",
        where=source.where,
        instance=str(rollout["instance"]),
        reward=reward,
        accuracy=view.rollout_accuracy(rollout),
        calls=tones.total(),
        failed=tones[Tone.FAILED],
        inserts=tones[Tone.INSERT],
        updates=tones[Tone.UPDATE],
        deletes=tones[Tone.DELETE],
        wrong=sum(score is not None and score < 0.5 for score in scores),
        questions=len(scores),
        cut=sum(step["stop"] == "length" for step in rollout["steps"]),
        masked=None in scores or bool(errors) or (reward is None and bool(rollout["steps"])),
        entries=len(rollout["memory"]),
        step=source.step,
        codes=Counter(
            str(result["code"])
            for step in rollout["steps"]
            for result in step["results"]
            if not result["ok"]
        ),
        errors=errors,
    )


def facts_of_run(run: RunFolder, sources: Sequence[Source]) -> list[Facts]:
    """Return the facts of all rollouts in files of a run; InputError (with file and line) if a file
    is damaged.
    """
    return [
        facts
        for source in sources
        for facts in view.recorded(run, source.name, partial(facts_of, source))
    ]


def kept_steps(counts: Mapping[int, int], limit: int) -> set[int]:
    """Return the steps whose rollouts get pages, given their numbers: whole steps at even
    distances, the last included.
    """
    steps = sorted(counts)
    if not limit or sum(counts.values()) <= limit:
        return set(steps)
    fit, last = max(1, min(len(steps), limit // max(counts.values()))), len(steps) - 1
    return {steps[last - round(i * last / max(fit - 1, 1))] for i in range(fit)}


def write_site(run: RunFolder, target: Path | None = None, limit: int = PAGES) -> Path:
    """Write the site of a run, with at most ``limit`` (0 = all) pages of training rollouts; return
    the path of its first page.
    """
    target, found, sources = (
        target or run.path / "report",
        run_tables.read_run(run),
        view.sources_of(run),
    )
    every = facts_of_run(run, sources)
    steps = Counter(fact.step for fact in every if fact.step is not None)
    kept = kept_steps(steps, limit)
    shown = [fact for fact in every if fact.step is None or fact.step in kept]
    site = _Site(target, found.name, {"index.html": "Overview", "rollouts.html": "Rollouts"})
    pages = [f"rollouts/{fact.page}" for fact in shown]
    rest = zip(shown, ["", *pages], [*pages[1:], ""], strict=False)
    for source in sources:
        if source.step is None or source.step in kept:
            for row in run.read_lines(source.name):
                site.write_rollout(*next(rest), source.rollout(row))
    rows = json.dumps(
        [fact[:15] for fact in shown], separators=(",", ":")
    )  # stands in a script element: no <
    index = rows.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    site.save("rollouts.html", "rollouts.html", index=index)
    columns, table = run_tables.summary_rows(found.summary)
    return site.save(
        "overview.html",
        "index.html",
        headline=run_tables.headline(found.summary),
        state=state(found.metrics, found.summary),
        environment=run.read_optional("environment.json"),
        control=bool(found.config.get("shuffle_advantages")),
        columns=columns,
        rows=table,
        temperature=known(found.config.get("eval_temperature")) or 0.0,
        pictures=write_figures(target / "figures", [Variant("", [found.metrics], [found.summary])]),
        troubles=troubles(every, found.metrics),
        failures=failures(every),
        pages=len(shown),
        training=sum(steps[step] for step in kept),
        all_training=steps.total(),
        config=yaml.safe_dump(found.config, sort_keys=True, allow_unicode=True),
    )


def write_comparison(folders: Sequence[RunFolder], target: Path) -> Path:
    """Write ``index.html`` with table and curves of several runs and return its path; replaces only
    this page's own files.
    """
    runs = [run_tables.read_run(folder) for folder in folders]
    groups = run_tables.group_runs(runs)
    reports = [folder.path / "report" / "index.html" for folder in folders]
    paths = [
        Path(os.path.relpath(page.resolve(), target.resolve())) if page.is_file() else None
        for page in reports
    ]
    links = ["" if path is None else quote(path.as_posix()) for path in paths]
    variants = [
        Variant(label, [run.metrics for run in group], [run.summary for run in group])
        for label, group in groups
    ]
    site = _Site(target, "comparison", {"index.html": "Comparison"})
    return site.save(
        "compare.html",
        "index.html",
        columns=[group.label for group in groups],
        rows=run_tables.comparison(groups),
        note=run_tables.SPREAD,
        runs=list(zip([run.name for run in runs], links, strict=True)),
        pictures=write_figures(target / "figures", variants),
    )


class _Site:
    """Writes pages into a folder, in place of an older site's."""

    def __init__(self, target: Path, name: str, lists: Mapping[str, str]) -> None:
        self.target, self.shared = target, {"name": name, "lists": lists}
        for folder in (
            "assets",
            "figures",
            "rollouts",
            "groups",
            "pairs",
        ):  # the last two are those of older versions
            shutil.rmtree(target / folder, ignore_errors=True)
        (target / "assets").mkdir(parents=True)
        for asset in ("site.css", "site.js", "list.js"):
            text = (
                resources.files("memalpha.measure")
                .joinpath("templates", asset)
                .read_text(encoding="utf-8")
            )
            (target / "assets" / asset).write_text(text, encoding="utf-8")

    def save(self, template: str, name: str, **context: Any) -> Path:
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        root = "../" * name.count("/")
        page = (
            _environment()
            .get_template(template)
            .render(root=root, here=name, **self.shared, **context)
        )
        path.write_text(page, encoding="utf-8")
        return path

    def write_rollout(
        self, facts: Facts, previous: str, following: str, rollout: Mapping[str, Any]
    ) -> None:
        written: dict[str, int] = {}  # entry to the last chunk that wrote it
        for step in rollout["steps"]:
            written |= {
                str(change["after"]["id"]): step["chunk"]
                for change in step["changes"]
                if change["after"]
            }
        context = {
            "facts": facts,
            "rollout": rollout,
            "memories": view.memory_after_steps(rollout),
            "final": {str(entry["id"]): view.entry_text(entry) for entry in rollout["memory"]},
            "written": written,
            "long_memory": _LONG_MEMORY,
            "previous": previous,
            "following": following,
        }
        self.save("rollout.html", f"rollouts/{facts.page}", **context)


@cache
def _environment() -> jinja2.Environment:
    loader, strict = jinja2.PackageLoader("memalpha.measure"), jinja2.StrictUndefined
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=strict, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(number=number)
    environment.globals.update(
        calls=view.calls,
        counted=view.counted,
        known=known,
        reward_parts=view.reward_parts,
        signs=view.SIGNS,
    )
    return environment


def state(metrics: Rows, summary: Mapping[str, Any]) -> str:
    """Return one line about how far a run came."""
    took = view.duration(summary.get("seconds"))
    if summary:
        return (
            f"{number(summary['steps'], 0)} steps in {took}"
            if "steps" in summary
            else f"evaluation in {took}"
        )
    if not metrics:
        return "no step logged yet"
    return f"unfinished: step {number(metrics[-1].get('step'), 0)} of {number(metrics[-1].get('max_steps'), 0)}"


def troubles(facts: Sequence[Facts], metrics: Rows) -> list[tuple[str, str, int]]:
    """Return skipped steps and missing scores as (where, message, count), in order."""
    skipped = [f"step {number(row.get('step'), 0)}" for row in metrics if known(row.get("skipped"))]
    found = [
        (where, "the step was skipped: loss or gradient was not finite", 1) for where in skipped
    ]
    errors = Counter((fact.where, error) for fact in facts for error in fact.errors)
    return found + [(where, text, count) for (where, text), count in errors.items()]


def failures(facts: Sequence[Facts]) -> dict[str, tuple[int, list[tuple[str, int]]]]:
    """Return number of calls and (code, number) of failed ones: for training, and for each held-out
    evaluation.
    """
    calls: Counter[str] = Counter()
    codes: dict[str, Counter[str]] = {}
    for fact in facts:
        where = fact.where if fact.step is None else "training"
        calls[where] += fact.calls
        codes.setdefault(where, Counter()).update(fact.codes)
    return {where: (calls[where], found.most_common()) for where, found in codes.items()}
