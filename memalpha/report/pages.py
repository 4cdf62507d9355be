"""The Jinja environment of the site: every value is escaped, undefined names are errors."""

from __future__ import annotations

import shutil
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from memalpha.report import view

ASSETS = ("site.css", "site.js", "list.js")
"""Shared files of every page, copied from the template folder."""

OWN_FOLDERS = ("assets", "figures", "rollouts", "groups", "pairs")
"""Folders of a site, replaced when it is written again."""


def render(template: str, **context: Any) -> str:
    """Return a template as HTML; every value in ``context`` is escaped."""
    return _environment().get_template(template).render(**context)


def start_site(target: Path) -> None:
    """Remove an older site from a folder, and copy the shared files into it."""
    for name in OWN_FOLDERS:
        shutil.rmtree(target / name, ignore_errors=True)
    (target / "assets").mkdir(parents=True)
    for name in ASSETS:
        text = resources.files("memalpha.report").joinpath("templates", name).read_text(encoding="utf-8")
        (target / "assets" / name).write_text(text, encoding="utf-8")


def _verdict(score: Any) -> str:
    found = view.known(score)
    return "not scored" if found is None else "right" if found >= 0.5 else "wrong"


def _clamped(value: Any) -> float:
    """Return a number limited to 0..1, for bars; 0 if unknown."""
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
