"""A run as a static site, ``RUN/report/``: open ``index.html`` from disk; no server, no network, nothing outside the folder.

    index.html                overview: the evaluation, curves, where the time went, what went wrong, options
    rollouts.html             every rollout that has a page, with filters
    groups.html, pairs.html   training groups; held-out instances before against after
    rollouts/ groups/ pairs/  one page each
    figures/ assets/          curves; the one stylesheet and two scripts

Several runs make one site only if they differ in their seed alone (``memalpha compare`` is for the others). Two passes over the
recorded rollouts, one line of a file at a time and one group in memory. What always holds: Jinja escapes every value, and each
page's content security policy allows the site's own two scripts and no other, so text of a data set or a model is text; what has
no page is counted on the overview.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.report.catalogue import Catalogue, Facts, catalogue_of
from memalpha.report.compare import check_same_but_seed
from memalpha.report.growth import histories, memory_after_steps
from memalpha.report.page import overview_page
from memalpha.report.templating import ASSETS, asset, render
from memalpha.runs import RunFolder

SITE = "report"
"""The site's folder inside a run folder."""

PAGES = 2000
"""Training rollouts that get a page unless asked otherwise."""

_OWN_FOLDERS = ("assets", "figures", "rollouts", "groups", "pairs")
_LONG_MEMORY = 30


class Loaded(NamedTuple):
    """A rollout with its facts and those of its neighbours on the site."""

    facts: Facts
    rollout: Mapping[str, Any]


class Site:
    """Writes the pages of one site.

    Args:
        runs: The runs, seeds of one configuration.
        target: Folder to write.
        catalogue: What gets a page.
    """

    def __init__(self, runs: Sequence[RunFolder], target: Path, catalogue: Catalogue) -> None:
        self.runs, self.target, self.catalogue = runs, target, catalogue
        self.names = [run.path.resolve().name for run in runs]
        self.pairs = _pairs(catalogue.facts)
        self.groups = list(dict.fromkeys(fact.group for fact in catalogue.facts if fact.group))
        pages = {"rollout": [fact.page for fact in catalogue.facts], "group": self.groups, "pair": list(self.pairs.values())}
        self._neighbours = {kind: _neighbours(names) for kind, names in pages.items()}
        self._before: dict[tuple[int, str], Loaded] = {}

    def write(self) -> Path:
        """Write everything and return the path of the first page."""
        for name in _OWN_FOLDERS:
            shutil.rmtree(self.target / name, ignore_errors=True)
        for name in ASSETS:
            self._save(f"assets/{name}", asset(name))
        for _, members in groupby(self._load(), key=lambda one: one.facts.group or one.facts.page):
            self._write_together(list(members))
        self._write_lists()
        self._save("index.html", overview_page(self.runs, self.target, self.catalogue, self.pairs, self._shared("")))
        return self.target / "index.html"

    # ------------------------------------------------------------------------------------------------ rollouts
    def _load(self) -> Iterator[Loaded]:
        facts = iter(self.catalogue.facts)
        for source in self.catalogue.sources:
            for rollout in source.rollouts():
                yield Loaded(next(facts), rollout)

    def _write_together(self, members: list[Loaded]) -> None:
        """Write the pages of one group, or of one held-out rollout, and of what they are compared in."""
        for member in members:
            self._write_rollout(member)
        first = members[0].facts
        if first.group:
            ranked = sorted(members, key=lambda one: (one.facts.reward is None, -(one.facts.reward or 0.0)))
            labels = [f"{rank} of {len(ranked)}" for rank in range(1, len(ranked) + 1)]
            self._write_sides(f"groups/{first.group}", "group", ranked, labels)
        elif (first.source.run, first.instance) in self.pairs:
            self._write_pair(members[0])

    def _write_pair(self, one: Loaded) -> None:
        key = (one.facts.source.run, one.facts.instance)
        if one.facts.source.where == "before":
            self._before[key] = one
        elif one.facts.source.where == "after":
            self._write_sides(f"pairs/{self.pairs[key]}", "pair", [self._before.pop(key), one], ["before", "after"])

    def _write_rollout(self, one: Loaded) -> None:
        facts, rollout = one
        previous, following = self._neighbours["rollout"][facts.page]
        page = render(
            "rollout.html",
            **self._shared("../"),
            facts=facts,
            rollout=rollout,
            where=self.where(facts),
            memories=memory_after_steps(rollout),
            histories=histories(rollout),
            long_memory=_LONG_MEMORY,
            previous=previous,
            following=following,
            pair=self.pairs.get((facts.source.run, facts.instance), "") if facts.source.where in ("before", "after") else "",
        )
        self._save(f"rollouts/{facts.page}", page)

    def _write_sides(self, name: str, kind: str, members: Sequence[Loaded], labels: Sequence[str]) -> None:
        steps = {len(member.rollout["steps"]) for member in members}
        if len(steps) > 1:
            raise InputError(
                f"rollouts of {members[0].facts.instance!r} have {sorted(steps)} steps", expected="one number of steps"
            )
        previous, following = self._neighbours[kind][Path(name).name]
        page = render(
            "sides.html",
            **self._shared("../"),
            kind=kind,
            members=members,
            labels=labels,
            where=self.where(members[0].facts),
            previous=previous,
            following=following,
        )
        self._save(name, page)

    # ------------------------------------------------------------------------------------------------ lists
    def _write_lists(self) -> None:
        self._save("rollouts.html", render("rollouts.html", **self._shared(""), index=self._index(), several=len(self.runs) > 1))
        if self.groups:
            by_group: dict[str, list[Facts]] = {}
            for fact in self.catalogue.facts:
                if fact.group:
                    by_group.setdefault(fact.group, []).append(fact)
            self._save("groups.html", render("groups.html", **self._shared(""), groups=by_group, where=self.where))
        if self.pairs:
            found: dict[tuple[int, str], dict[str, Facts]] = {key: {} for key in self.pairs}
            for fact in self.catalogue.facts:
                if (fact.source.run, fact.instance) in found and fact.source.where in ("before", "after"):
                    found[fact.source.run, fact.instance][fact.source.where] = fact
            rows = sorted(found.items(), key=lambda item: -_gain(item[1]))
            self._save("pairs.html", render("pairs.html", **self._shared(""), pairs=self.pairs, rows=rows, names=self.names))

    def _index(self) -> str:
        """The index that the list filters, as JSON for a data block; ``<`` never stands in it."""
        rows = [
            [
                fact.page, self.where(fact), fact.instance, _rounded(fact.reward), _rounded(fact.accuracy), fact.calls, fact.failed,
                fact.inserts, fact.updates, fact.deletes, fact.wrong, fact.questions, fact.cut, int(fact.masked), fact.entries,
            ]
            for fact in self.catalogue.facts
        ]  # fmt: skip
        return json.dumps(rows, separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")

    # ------------------------------------------------------------------------------------------------ shared
    def where(self, facts: Facts) -> str:
        """What a rollout's place is called; with several runs its run comes first."""
        return f"{self.names[facts.source.run]}: {facts.source.where}" if len(self.runs) > 1 else facts.source.where

    def _shared(self, root: str) -> dict[str, Any]:
        """What every page is given: the way to the site's root, its name, and which lists there are."""
        name = self.names[0] if len(self.runs) == 1 else f"{len(self.runs)} runs"
        lists = {"index.html": "Overview", "rollouts.html": "Rollouts"}
        lists |= {"groups.html": "Groups"} if self.groups else {}
        lists |= {"pairs.html": "Before and after"} if self.pairs else {}
        return {"root": root, "name": name, "lists": lists}

    def _save(self, name: str, text: str) -> None:
        path = self.target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def write_site(runs: Sequence[RunFolder], target: Path | None = None, limit: int = PAGES) -> Path:
    """Write the site of what runs have so far and return the path of its first page.

    Args:
        runs: One run, or several that differ in their seed alone.
        target: Folder to write; the run's own ``report/`` if not given. Only what a site consists of is replaced in it.
        limit: Most training rollouts that get a page (0 = all).

    Raises:
        InputError: If runs differ in more than their seed, several runs have no target, or a file is damaged (names file and line).
    """
    check_same_but_seed(runs)
    if target is None and len(runs) > 1:
        raise InputError(f"{len(runs)} runs and no folder for their site", expected="--output DIR", fix="add --output runs/report")
    return Site(runs, target or runs[0].path / SITE, catalogue_of(runs, limit)).write()


def _neighbours(names: Sequence[str]) -> dict[str, tuple[str, str]]:
    """The page before and the page after each, empty at the ends."""
    return {name: (before, after) for before, name, after in zip(["", *names], names, [*names[1:], ""], strict=False)}


def _pairs(facts: Sequence[Facts]) -> dict[tuple[int, str], str]:
    """Page of each (run, instance) that was evaluated before and after, in the order of the evaluation."""
    seen: dict[str, dict[tuple[int, str], Facts]] = {"before": {}, "after": {}}
    for fact in facts:
        if fact.source.where in seen:
            seen[fact.source.where][fact.source.run, fact.instance] = fact
    return {key: fact.page.replace("after-", "pair-", 1) for key, fact in seen["after"].items() if key in seen["before"]}


def _gain(sides: Mapping[str, Facts]) -> float:
    """Gain in accuracy, for sorting; what is not known comes last."""
    before, after = sides["before"].accuracy, sides["after"].accuracy
    return float("-inf") if before is None or after is None else after - before


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
