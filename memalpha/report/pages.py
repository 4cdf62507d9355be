"""The Jinja environment of the site: every value is escaped, undefined names are errors, and the words that templates share."""

from __future__ import annotations

import shutil
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from memalpha.report import view

ASSETS = ("site.css", "site.js", "list.js")
"""Files that every page shares; they lie beside the templates and are copied as they are."""

OWN_FOLDERS = ("assets", "figures", "rollouts", "groups", "pairs")
"""Folders of a site, replaced when it is written again."""


def render(template: str, **context: Any) -> str:
    """Return a template as HTML; every value in ``context`` is escaped."""
    return _environment().get_template(template).render(**context)


def start_site(target: Path) -> None:
    """Remove what an older site left in a folder, and copy the shared files into it."""
    for name in OWN_FOLDERS:
        shutil.rmtree(target / name, ignore_errors=True)
    (target / "assets").mkdir(parents=True)
    for name in ASSETS:
        text = resources.files("memalpha.report").joinpath("templates", name).read_text(encoding="utf-8")
        (target / "assets" / name).write_text(text, encoding="utf-8")


def _verdict(score: Any) -> str:
    """Say in a word what a question's score means: ``right`` from one half on, ``wrong``, or ``not scored``."""
    found = view.known(score)
    return "not scored" if found is None else "right" if found >= 0.5 else "wrong"


def _clamped(value: Any) -> float:
    """Return a number's place between 0 and 1, for bars; 0 if it is not known."""
    return min(max(view.known(value) or 0.0, 0.0), 1.0)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("memalpha.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=view.number, duration=view.duration, verdict=_verdict, clamped=_clamped)
    environment.globals.update(
        {name: getattr(view, name) for name in ("calls", "counted", "known", "reward_parts")}, signs=view.SIGNS
    )
    return environment
