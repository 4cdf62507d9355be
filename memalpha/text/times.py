"""Times in ISO 8601, checked where they enter; loaders convert other forms of data sets."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

from memalpha.errors import InputError

ISO_8601 = "ISO 8601, such as 2024-03-05 or 2024-03-05T14:30:00+01:00"
_DAY = r"[0-9]{4}(?:-?[0-9]{2}-?[0-9]{2}|-?W[0-9]{2}(?:-?[0-9])?)"
# at most 35 characters, so that a time stores no facts
_ISO = re.compile(rf"{_DAY}(?:[Tt ][0-9:.,Z+-]{{2,24}})?")
_REDUCED = re.compile(r"[0-9]{4}(?:-[0-9]{2})?")  # a year, or a year and a month
_DAY_DIGITS = len("2024-03-05")
_DAY_AHEAD = timedelta(days=1)
_WEEKDAY = re.compile(r"\s*\([A-Za-z]{2,9}\)\s*")
_FORMS = (  # LongMemEval, LoCoMo, PerLTQA, BEAM
    "%Y/%m/%d %H:%M",
    "%I:%M %p on %d %B, %Y",
    "%I:%M %p on %d %B %Y",
    "%Y/%m/%d",
    "%B %d, %Y",
    "%d %B, %Y",
    "%d %B %Y",
    "%B-%d-%Y",
)


@lru_cache(maxsize=4096)
def moment(text: str) -> datetime | None:
    """Return the beginning of an ISO 8601 time (UTC if it names no offset), or None if the text is
    not such a time.

    Read are a date, a week or a day of a week, each with or without a clock time, and a month
    (``2024-03``) or a year (``2024``).
    """
    whole = f"{text}-01-01"[:10] if _REDUCED.fullmatch(text) else text
    try:
        read = datetime.fromisoformat(whole)
    except ValueError:
        return None
    zoned = read if read.tzinfo else read.replace(tzinfo=UTC)
    # fromisoformat takes any sign before the clock time
    return zoned if _ISO.fullmatch(whole) else None


def check_time(time: Any, what: str = "the time") -> str:
    """Return a time in ISO 8601; InputError, naming ``what``, if ``moment`` does not read it."""
    if not isinstance(time, str) or moment(time) is None:
        raise InputError(
            f"{what} is {time!r:.60}",
            expected=ISO_8601,
            fix="write the time in this form, or leave it out",
        )
    return time


def is_to_come(time: str | None, now: datetime) -> bool:
    """Whether a time is more than a day after the clock: zones differ, and clocks do."""
    read = moment(time or "")
    return read is not None and read - now > _DAY_AHEAD


def check_said(time: str | None, now: datetime, what: str = "the time") -> None:
    """Raise InputError, naming ``what``, for a time when nothing can have been said yet: it would
    be newer than whatever is said until then.
    """
    if is_to_come(time, now):
        raise InputError(
            f"{what} is {time!r:.60}, which lies in the future: the clock shows "
            f"{now.isoformat(timespec='minutes')}",
            expected="a time in the past, or less than a day ahead",
            fix="give the time at which it was said, or leave it out",
        )


def to_iso(written: str) -> str | None:
    """Return a time as a data set writes it in ISO 8601, to the minute.

    None if its form is unknown.
    """
    text = " ".join(_WEEKDAY.sub(" ", written).split())
    if moment(text):
        has_clock = re.search("[Tt ]", text)
        return datetime.fromisoformat(text).isoformat(timespec="minutes") if has_clock else text
    for form in _FORMS:
        try:
            read = datetime.strptime(text, form)
        except ValueError:
            continue
        return read.isoformat(timespec="minutes") if "%M" in form else read.date().isoformat()
    return None


def later(first: str | None, second: str | None) -> bool | None:
    """Return whether the first time is after the second; None if one is no time or they are equal.

    The coarser of the two decides how far they are compared: 2024-03-05 equals 2024-03-05T14:30.
    """
    one = moment(first or "")
    other = moment(second or "")
    if one is None or other is None:
        return None
    digits = min(_digits(first or ""), _digits(second or ""))
    if digits > _DAY_DIGITS:
        return None if one == other else one > other
    days = [time.date().isoformat()[:digits] for time in (one, other)]
    return None if days[0] == days[1] else days[0] > days[1]


def _digits(time: str) -> int:
    """Characters of an ISO 8601 text that a time determines.

    More than a day's where it names a clock time.
    """
    return len(time) if _REDUCED.fullmatch(time) or len(time) > _DAY_DIGITS else _DAY_DIGITS
