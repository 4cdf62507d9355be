"""A run as a static site, ``RUN/report/``: open ``index.html`` from disk, without server or network.

    index.html                overview: the evaluation, curves, where the time went, what went wrong, options
    rollouts.html             every rollout that has a page, with filters
    groups.html, pairs.html   training groups; held-out instances before and after training
    rollouts/ groups/ pairs/  one page each
    figures/ assets/          curves; one stylesheet and two scripts
    curves.png table.md       of a single run, in its own folder: for a README

Several runs make one site only if they differ only in their seed (else use ``memalpha compare``). Rollouts are read twice, one
group in memory at a time. Jinja escapes every value, and the content security policy allows only the site's two scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from memalpha.errors import InputError
from memalpha.report.catalogue import Catalogue, Facts, catalogue_of, find_picks, pairs_of
from memalpha.report.compare import Group, check_same_but_seed, comparison, read_run, spread_note
from memalpha.report.curves import Variant, write_curves, write_figures
from memalpha.report.pages import render, start_site
from memalpha.report.tables import (
    cards,
    failures,
    headline,
    several_headline,
    state,
    summary_markdown,
    summary_rows,
    time_split,
    troubles,
)
from memalpha.report.view import UNKNOWN, histories, known, known_values, memory_after_steps, number
from memalpha.runs import RunFolder

SITE = "report"
"""The site's folder inside a run folder."""

PAGES = 2000
"""Default number of training rollouts that get a page."""

HIGHLIGHTS: Mapping[str, tuple[str, ...]] = {
    "policy": ("model", "adapter", "full_finetuning", "lora_r", "lora_alpha", "warm_start_steps"),
    "agent": ("schema", "codec", "max_chunk_tokens", "view_tokens", "max_completion_length", "retrieval", "embedder"),
    "data": ("train_data", "train_options", "eval_data", "eval_options", "eval_instances", "eval_temperature"),
    "questions": ("reader", "reader_tokens", "retrieve_k", "content_judge"),
    "reward": ("accuracy_weight", "tool_weight", "compression_weight", "content_weight", "immediate_weight", "question_share"),
    "training": (
        "max_steps", "learning_rate", "lr_scheduler_type", "per_device_train_batch_size", "num_generations", "grouping",
        "loss_type", "scale_rewards", "beta", "temperature", "seed",
    ),
}  # fmt: skip
"""Options shown first, by topic; the page folds away the others."""

_LONG_MEMORY = 30


def write_site(runs: Sequence[RunFolder], target: Path | None = None, limit: int = PAGES) -> Path:
    """Write the site of one run, or of several that differ only in their seed; return the path of its first page.

    At most ``limit`` training rollouts get a page (0 = all). The default ``target`` is the run's own ``report/``; only the site's
    own files are replaced in it. InputError for other runs, several runs without a target, or a damaged file.
    """
    check_same_but_seed(runs)
    if target is None and len(runs) > 1:
        raise InputError(f"{len(runs)} runs and no folder for their site", expected="--output DIR", fix="add --output runs/report")
    return _Site(runs, target or runs[0].path / SITE, catalogue_of(runs, limit)).write()


class _Loaded(NamedTuple):
    """A rollout with its facts."""

    facts: Facts
    rollout: Mapping[str, Any]


class _Site:
    """Writes the pages of one site into a folder."""

    def __init__(self, runs: Sequence[RunFolder], target: Path, catalogue: Catalogue) -> None:
        self.runs, self.target, self.catalogue = runs, target, catalogue
        self.names = [run.path.resolve().name for run in runs]
        self.pairs = pairs_of(catalogue.facts)
        self.groups: dict[str, list[Facts]] = {}
        for fact in catalogue.facts:
            if fact.group:
                self.groups.setdefault(fact.group, []).append(fact)
        pages = {"rollouts": [fact.page for fact in catalogue.facts], "groups": [*self.groups], "pairs": [*self.pairs.values()]}
        # previous and next page of each page, empty at the ends
        self._neighbours = {
            f"{kind}/{name}": {"previous": before, "following": after}
            for kind, names in pages.items()
            for before, name, after in zip(["", *names], names, [*names[1:], ""], strict=False)
        }
        self._before: dict[tuple[int, str], _Loaded] = {}

    def write(self) -> Path:
        """Write everything and return the path of the first page."""
        start_site(self.target)
        for _, members in groupby(self._load(), key=lambda one: one.facts.group or one.facts.page):
            self._write_together(list(members))
        self._save("rollouts.html", "rollouts.html", index=self._index())
        if self.groups:
            self._write_groups()
        if self.pairs:
            self._write_pairs()
        self._write_overview()
        return self.target / "index.html"

    def _load(self) -> Iterator[_Loaded]:
        facts = iter(self.catalogue.facts)
        for source in self.catalogue.sources:
            for rollout in source.rollouts():
                yield _Loaded(next(facts), rollout)

    def _write_together(self, members: list[_Loaded]) -> None:
        """Write the pages of one group, or of one held-out rollout, and their comparison pages."""
        for facts, rollout in members:
            self._save(
                "rollout.html",
                f"rollouts/{facts.page}",
                facts=facts,
                rollout=rollout,
                where=self._where(facts),
                memories=memory_after_steps(rollout),
                histories=histories(rollout),
                long_memory=_LONG_MEMORY,
                pair=self.pairs.get((facts.source.run, facts.instance), "") if facts.source.where in ("before", "after") else "",
            )
        first, key = members[0].facts, (members[0].facts.source.run, members[0].facts.instance)
        if first.group:
            ranked = sorted(members, key=lambda one: (one.facts.reward is None, -(one.facts.reward or 0.0)))
            labels = [f"{rank} of {len(ranked)}" for rank in range(1, len(ranked) + 1)]
            self._write_sides(f"groups/{first.group}", "group", ranked, labels)
        elif key in self.pairs and first.source.where == "before":
            self._before[key] = members[0]
        elif key in self.pairs and first.source.where == "after":
            self._write_sides(f"pairs/{self.pairs[key]}", "pair", [self._before.pop(key), members[0]], ["before", "after"])

    def _write_sides(self, path: str, kind: str, members: Sequence[_Loaded], labels: Sequence[str]) -> None:
        steps = {len(member.rollout["steps"]) for member in members}
        if len(steps) > 1:
            raise InputError(f"rollouts of {members[0].facts.instance!r} have {sorted(steps)} steps", expected="the same number")
        where = self._where(members[0].facts)
        self._save("sides.html", path, kind=kind, members=members, labels=labels, where=where)

    def _index(self) -> str:
        """Return the list index as JSON for a data block, without ``<``."""
        rows = [
            [
                fact.page, self._where(fact), fact.instance, _rounded(fact.reward), _rounded(fact.accuracy), fact.calls,
                fact.failed, fact.inserts, fact.updates, fact.deletes, fact.wrong, fact.questions, fact.cut, int(fact.masked),
                fact.entries,
            ]
            for fact in self.catalogue.facts
        ]  # fmt: skip
        return json.dumps(rows, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    def _write_groups(self) -> None:
        columns = ("group", "where", "rollouts", "best reward", "worst reward", "best accuracy", "worst accuracy")
        rows = []
        for page, facts in self.groups.items():
            cells = [self._where(facts[0]), str(len(facts))]
            for values in ([fact.reward for fact in facts], [fact.accuracy for fact in facts]):
                found = [value for value in values if value is not None]
                cells += [number(max(found)), number(min(found))] if found else [UNKNOWN, UNKNOWN]
            rows.append((f"groups/{page}", facts[0].instance, cells))
        what = "the rollouts of one instance in one training step"
        self._save("list.html", "groups.html", title="Groups", what=what, columns=columns, rows=rows)

    def _write_pairs(self) -> None:
        sides: dict[tuple[int, str], dict[str, Facts]] = {key: {} for key in self.pairs}
        for fact in self.catalogue.facts:
            if (key := (fact.source.run, fact.instance)) in sides:
                sides[key][fact.source.where] = fact
        rows = []
        for key, page in self.pairs.items():
            before, after = sides[key]["before"], sides[key]["after"]
            unknown = before.accuracy is None or after.accuracy is None
            gain = None if unknown else (after.accuracy or 0.0) - (before.accuracy or 0.0)
            run = [self.names[key[0]]] if len(self.runs) > 1 else []
            accuracies = [number(before.accuracy), number(after.accuracy), number(gain, signed=True)]
            rows.append((gain, (f"pairs/{page}", key[1], [*run, *accuracies, str(before.entries), str(after.entries)])))
        rows.sort(key=lambda row: float("inf") if row[0] is None else -row[0])
        columns = ["accuracy before", "after", "difference", "entries before", "after"]
        columns = ["instance", *(["run"] if len(self.runs) > 1 else []), *columns]
        what = "the same held-out instance, largest gain first"
        self._save("list.html", "pairs.html", title="Before and after", what=what, columns=columns, rows=[row for _, row in rows])

    def _write_overview(self) -> None:
        """Write the first page and its curves; of a single run also ``curves.png`` and ``table.md`` into its own folder."""
        found = [read_run(run) for run in self.runs]
        config, metrics, summary = found[0].config, found[0].metrics, found[0].summary
        seconds = [known(run.summary.get("seconds")) for run in found]
        facts, alone = self.catalogue.facts, len(found) == 1
        if alone:
            columns, rows = summary_rows(summary)
            note = "± is the standard error over instances."
            write_curves(self.runs[0].path / SITE / "curves.png", metrics, summary)
            if rows:
                path = self.runs[0].path / SITE / "table.md"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(summary_markdown(summary), encoding="utf-8")
        else:
            groups = [Group(run.name, [run]) for run in found] + [Group("mean", found)]
            columns, rows, note = (*self.names, "mean"), tuple(comparison(groups)), spread_note(groups)
        variant = Variant("", [run.metrics for run in found], [run.summary for run in found])
        self._save(
            "overview.html",
            "index.html",
            headline=headline(summary) if alone else several_headline(variant.summaries),
            states=[(run.name, state(run.metrics, run.summary)) for run in found],
            environments=[run.read_optional("environment.json") for run in self.runs],
            cards=cards(metrics, config) if alone else [],
            control=bool(config.get("shuffle_advantages")),
            table={"columns": columns, "rows": rows, "note": note},
            temperature=known(config.get("eval_temperature")) or 0.0,
            pictures=write_figures(self.target / "figures", [variant]),
            split=time_split(
                [row for run in found for row in run.metrics], None if None in seconds else sum(known_values(seconds))
            ),
            troubles=[trouble for run in found for trouble in troubles([], run.metrics)] + troubles(facts, []),
            failures=failures(facts),
            picks=find_picks(facts, self.pairs),
            pages=len(facts),
            training=sum(fact.source.step is not None for fact in facts),
            all_training=self.catalogue.training,
            highlights=_highlights(config),
            config=yaml.safe_dump(config, sort_keys=True, allow_unicode=True),
        )

    def _where(self, facts: Facts) -> str:
        return f"{self.names[facts.source.run]}: {facts.source.where}" if len(self.runs) > 1 else facts.source.where

    def _save(self, template: str, name: str, **context: Any) -> None:
        """Write a page; adds its name, the path to the site's root and the existing lists to the context."""
        lists = {"index.html": "Overview", "rollouts.html": "Rollouts"}
        lists |= {"groups.html": "Groups"} if self.groups else {}
        lists |= {"pairs.html": "Before and after"} if self.pairs else {}
        shared = {"root": "../" * name.count("/"), "here": name, "lists": lists} | self._neighbours.get(name, {})
        title = self.names[0] if len(self.runs) == 1 else f"{len(self.runs)} runs"
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(template, name=title, **shared, **context), encoding="utf-8")


def _highlights(config: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    shown = {topic: {name: _option(config[name]) for name in names if name in config} for topic, names in HIGHLIGHTS.items()}
    return {topic: values for topic, values in shown.items() if values}


def _option(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    return "none" if value in ("", None) else str(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
