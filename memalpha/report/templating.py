"""The Jinja environment of the site: autoescape everywhere, undefined names are errors, and the words that templates share."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import jinja2

from memalpha.report.overview import duration
from memalpha.report.tables import with_error
from memalpha.report.view import (
    SIGNS,
    Tone,
    calls,
    counted,
    entry_text,
    known,
    mean,
    number,
    reward_parts,
    rollout_accuracy,
    rollout_reward,
)

ASSETS = ("site.css", "site.js", "list.js")
"""Files that every page shares; they lie beside the templates and are copied as they are."""


def render(template: str, **context: Any) -> str:
    """Return a template as HTML; every value in ``context`` is escaped."""
    return _environment().get_template(template).render(**context)


def asset(name: str) -> str:
    """Return one of the shared files."""
    return resources.files("memalpha.report").joinpath("templates", name).read_text(encoding="utf-8")


def verdict(score: Any) -> str:
    """Say in a word what a question's score means: ``right`` from one half on, ``wrong``, or ``not scored``."""
    found = known(score)
    return "not scored" if found is None else "right" if found >= 0.5 else "wrong"


def clamped(value: Any) -> float:
    """Return a number's place between 0 and 1, for bars; 0 if it is not known."""
    return min(max(known(value) or 0.0, 0.0), 1.0)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("memalpha.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, duration=duration, verdict=verdict, clamped=clamped)
    environment.globals.update(
        calls=calls,
        counted=counted,
        entry_text=entry_text,
        accuracy=rollout_accuracy,
        reward=rollout_reward,
        known=known,
        reward_parts=reward_parts,
        mean=mean,
        with_error=with_error,
        signs=SIGNS,
        tones=list(Tone),
    )
    return environment
