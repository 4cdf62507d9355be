"""The one head, style sheet and palette of every page that memalpha shows.

A page is a template that extends ``page.html``. Light and dark follow ``prefers-color-scheme``.
"""

from importlib import resources
from typing import Any

import jinja2

_HOME = "memalpha.text"


def load_templates(package: str, folder: str = "templates", **options: Any) -> jinja2.Environment:
    """Return the templates of a package and those that all pages share.

    ``options`` are those of a jinja environment.
    """
    loaders = (jinja2.PackageLoader(package, folder), jinja2.PackageLoader(_HOME))
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        **options,
    )


def style_sheet() -> str:
    """Return the style sheet of all pages."""
    return resources.files(_HOME).joinpath("templates", "page.css").read_text(encoding="utf-8")
