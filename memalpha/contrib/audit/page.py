"""The page of an audit: one file with the head and style of every page, without scripts.

Secrets are masked in it, since a page is passed on. The content security policy allows the style
sheet in it alone.
"""

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from memalpha.contrib.audit.texts import mask_secrets
from memalpha.credentials import without_secrets
from memalpha.errors import InputError, MissingExtraError
from memalpha.files import write_whole
from memalpha.measure import view
from memalpha.text.page import style_sheet
from memalpha.types import JsonMapping

MOST = 200  # findings of one kind that a namespace shows
_WIDTH, _HEIGHT = 700, 150  # of a curve, in its own units


def write_audit_page(path: Path, store: str, reports: Sequence[JsonMapping]) -> Path:
    """Write the page of the audits of a store's namespaces (``verb.AuditReport.shown``).

    InputError if it cannot be written.
    """
    templates = view.templates("memalpha.contrib.audit", autoescape=True)
    templates.filters["hidden"] = _hide_secrets
    templates.globals.update(curve=curve, most=MOST, width=_WIDTH, height=_HEIGHT)
    css = style_sheet()
    counts = Counter[str]()
    for report in reports:
        counts.update(report["counts"])
    text = templates.get_template("audit.html").render(
        store=store,
        reports=reports,
        counts=counts,
        entries=sum(report["entries"] for report in reports),
        faulty=sum(report["faulty"] for report in reports),
        lines=sum(report["lines"] for report in reports),
        faulty_lines=sum(report["faulty_lines"] for report in reports),
        css=css,
        digest=base64.b64encode(hashlib.sha256(css.encode()).digest()).decode(),
    )
    try:
        write_whole(path, text)
    except OSError as error:
        expected = "a folder to write in"
        raise InputError(f"cannot write {path}: {error}", expected=expected) from error
    return path


def curve(moments: Sequence[JsonMapping]) -> str:
    """Return the points of a line of shares over numbers of operations, for an SVG polyline;
    moments without entries have none.
    """
    last = max((moment["operation"] for moment in moments), default=1)
    points = [(0.0, 0.0), *_places(moments, last)]
    return " ".join(f"{_WIDTH * x:.1f},{_HEIGHT * (1 - y):.1f}" for x, y in points)


def _places(moments: Sequence[JsonMapping], last: int) -> list[tuple[float, float]]:
    shares = [each for each in moments if each["share"] is not None]
    return [(each["operation"] / last, each["share"]) for each in shares]


_LONG_TOKEN = re.compile(r"(?<![\w+/=-])(?=\S*[0-9])(?=\S*[A-Za-z])[\w+/=-]{32,}")


def _hide_secrets(text: str) -> str:
    """A text without its secrets, and without long tokens, which may be pieces of one."""
    try:
        shown = mask_secrets(text)[0]
    except MissingExtraError:
        shown = without_secrets(text)  # the page tells that some were not looked for
    return _LONG_TOKEN.sub("[long token removed]", shown)
