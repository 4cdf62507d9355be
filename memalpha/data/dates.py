"""Dates as the sets write them, as ISO 8601."""

from __future__ import annotations

import re
from datetime import datetime

_FORMATS: tuple[tuple[str, str], ...] = (
    ("%Y/%m/%d %H:%M", "minutes"),  # LongMemEval, its weekday taken out
    ("%Y/%m/%d", ""),
    ("%I:%M %p on %d %B, %Y", "minutes"),  # LoCoMo
    ("%I:%M %p on %d %B %Y", "minutes"),
    ("%Y-%m-%d", ""),
    ("%B %d, %Y", ""),  # PerLTQA's events
    ("%d %B, %Y", ""),
    ("%d %B %Y", ""),
)
# ISO 8601, as PerLTQA's dialogues have it; a zone is kept.
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")
_WEEKDAY = re.compile(r"\s*\([A-Za-z]{2,9}\)\s*")


def iso_date(written: str) -> str | None:
    """Return a date, with hours and minutes where they are given, in ISO 8601; None if the text is no date of a known form."""
    text = " ".join(_WEEKDAY.sub(" ", written).split())
    if _ISO.fullmatch(text):
        try:
            return datetime.fromisoformat(text).isoformat(timespec="minutes")
        except ValueError:
            return None
    for form, precision in _FORMATS:
        try:
            moment = datetime.strptime(text, form)
        except ValueError:
            continue
        return moment.isoformat(timespec="minutes") if precision else moment.date().isoformat()
    return None


def time_of(written: str) -> str | None:
    """Return the date in ISO 8601, the text itself where it is of no known form, None where it is empty."""
    return iso_date(written) or written.strip() or None
