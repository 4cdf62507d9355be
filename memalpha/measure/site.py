"""A run as a static site, ``RUN/report/``, and a page that compares runs; open ``index.html``.

The site needs no server and no network. ``index.html`` is the overview, ``rollouts.html`` the list
with filters; each rollout has a page. Rollouts are read twice, one in memory at a time. Jinja
escapes every value, and the content security policy allows only the site's two scripts.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml

from memalpha.measure import tables, view
from memalpha.measure.curves import MetricRows, write_figures
from memalpha.measure.summary import difference_from
from memalpha.measure.view import Recorded, Tone, numeric
from memalpha.record.folder import RunFolder

PAGES = 2000  # default number of training rollouts that get a page
_INDEXED = (  # facts of a rollout that the list shows and filters by
    *("page", "where", "instance", "reward", "accuracy", "calls", "failed", "insert", "update"),
    *("delete", "wrong", "questions", "cut", "masked", "entries"),
)


def facts_of_run(run: RunFolder) -> Iterator[dict[str, Any]]:
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
    facts: dict[str, list[dict[str, Any]]] = {}
    for fact in facts_of_run(run):
        option = f"--step {fact['step']}" if fact["step"] else f"--held-out {fact['where']}"
        facts.setdefault(f"{option} --rollout N", []).append(fact)
    rows = []
    for option, own in facts.items():
        reward = view.number(view.mean([fact["reward"] for fact in own]))
        accuracy = view.number(view.mean([fact["accuracy"] for fact in own]))
        rows.append([option, f"0 to {len(own) - 1}", reward, accuracy])
    head = ["memalpha inspect RUN ...", "rollouts", "reward", "accuracy"]
    return tables.Table(head, rows or [["no rollouts yet", "", "", ""]])


def written_at(rollout: Recorded) -> dict[str, int]:
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
    config, metrics, summary = run.config, run.metrics(), run.read_optional("summary.json")
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
                written=written_at(rollout),
                previous=previous,
                following=following,
            )
    rows = json.dumps([list(map(fact.get, _INDEXED)) for fact in shown])
    index = rows.replace("<", "\\u003c")  # stands in a script element
    site.save("rollouts.html", "rollouts.html", index=index)
    return site.save(
        "overview.html",
        "index.html",
        item=item,
        change=difference_from(item.differences, "before", "after"),
        selection=tables.selection_note(run),
        table=tables.side_by_side(item, [*item.cells], note=tables.selection_note(run)),
        summary=summary,
        last=metrics[-1] if metrics else {},
        environment=run.read_optional("environment.json"),
        control=bool(config.get("shuffle_advantages")),
        temperature=numeric(config.get("eval_temperature")) or 0.0,
        pictures=write_figures(target / "figures", {"": [metrics]}),
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
    return _Site(target, "comparison", {"index.html": "Comparison"}).save(
        "compare.html",
        "index.html",
        table=tables.comparison(columns),
        runs=links,
        pictures=write_figures(target / "figures", variants),
    )


class _Site:
    """Writes pages into a folder, in place of an older site's."""

    def __init__(self, target: Path, name: str, lists: Mapping[str, str]) -> None:
        self.target = target
        self.templates = view.templates(autoescape=True)
        self.templates.globals.update(name=name, lists=lists, interval=tables.interval)
        for folder in ("assets", "figures", "rollouts"):
            shutil.rmtree(target / folder, ignore_errors=True)
            (target / folder).mkdir(parents=True)
        for asset in ("site.css", "site.js", "list.js"):
            source = resources.files("memalpha.measure").joinpath("templates", asset)
            (target / "assets" / asset).write_bytes(source.read_bytes())

    def save(self, template: str, name: str, **context: Any) -> Path:
        page = self.templates.get_template(template)
        text = page.render(root="../" * name.count("/"), here=name, **context)
        (self.target / name).write_text(text, encoding="utf-8")
        return self.target / name


def troubles(facts: Sequence[Mapping[str, Any]], metrics: MetricRows) -> Counter[tuple[str, str]]:
    """Return how often which step was skipped or score is missing, as (where, message)."""
    why = "the step was skipped: loss or gradient was not finite"
    counts = Counter((f"step {row['step']}", why) for row in metrics if row.get("skipped"))
    for fact in facts:
        counts.update((fact["where"], error) for error in fact["errors"])
    return counts


def failures(facts: Sequence[Mapping[str, Any]]) -> dict[str, tuple[int, Counter[str]]]:
    """Return number of calls and codes of failed ones, in training and each held-out evaluation."""
    counts: dict[str, tuple[int, Counter[str]]] = {}
    for fact in facts:
        where = fact["where"] if fact["step"] is None else "training"
        calls, codes = counts.get(where, (0, Counter()))
        counts[where] = calls + fact["calls"], codes + Counter(fact["codes"])
    return counts
