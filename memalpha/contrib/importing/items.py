"""The items of an export, and the forms of values that its readers share."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

from memalpha.conversation.messages import ASSISTANT, USER, Utterance
from memalpha.text.times import moment, to_iso

Reasons = Counter[str]
"""How much was not read, by its reason."""
UNREADABLE_TIME = "time that cannot be read (its message is taken as undated)"

# numbers that are times: seconds since 1973 up to the year 5138, and thousandths or less of them
_EARLIEST = 1e8
_NEXT_UNIT = 1e11
_LATEST = 1e20
# numbers such as 20240305, 202403051430 and 20240305143059; the longer ones are as thousandths of
# 1976 and of the year 2600
_DIGITS = {
    "%Y%m%d": range(19000101, 21000000),
    "%Y%m%d%H%M": range(199001010000, 210001010000),
    "%Y%m%d%H%M%S": range(19900101000000, 21000101000000),
}
_LONGEST_TIME = 80  # characters of a text that is a time
_IN_TIMES = ("$date", "$numberLong", "seconds", "_seconds", "value", "iso")  # MongoDB, Firestore
# fields that hold the time of a message: all their words are of these, and one of the first
_NEUTRAL = frozenset("time timestamp date datetime ts epoch".split())
_CREATED = frozenset("created create creation inserted sent send posted received written".split())
_STARTED = frozenset({"start", "started"})
_UPDATED = frozenset("updated update modified modify edited last changed".split())
_OTHERS = frozenset("at on utc gmt ms us ns iso unix millis seconds message msg event".split())
_RANKS = ((0, _CREATED), (3, _UPDATED), (2, _STARTED), (1, _NEUTRAL))  # 0 fits best
_KEY_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_ZONES = {"UTC": 0, "GMT": 0, "Z": 0, "EST": -5, "EDT": -4, "CST": -6, "CDT": -5, "MST": -7}
_ZONES |= {"MDT": -6, "PST": -8, "PDT": -7, "WET": 0, "WEST": 1, "CET": 1, "CEST": 2, "EET": 2}
_ZONES |= {"EEST": 3, "BRT": -3, "JST": 9}
_ZONE = re.compile(  # an offset, before which no digit stands, or a name, which AM and PM are not
    r"(?<=[0-9Mm.]) ?(?:(?:GMT|UTC|(?<= ))(?P<hours>[+-][0-9]{1,2})(?::?(?P<minutes>[0-9]{2}))?"
    r"(?: [A-Z]{1,5})?|(?P<zone>(?![AP]M$)[A-Z]{1,5}))$"
)
_WEEKDAY = re.compile(r"(?i)(?:mon|tues?|wed(?:nes)?|thu(?:rs)?|fri|sat(?:ur)?|sun)(?:day)?,? ")
_IN_BRACKETS = re.compile(r"\s*\([^()]*\)$")  # the name of a zone, after its offset
_DAY_FORMS = (
    "%b %d, %Y",
    "%B %d, %Y",
    "%d %b %Y",
    "%d %B %Y",
    "%b %d %Y",
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    "%Y年%m月%d日",
)
_CLOCK_FORMS = ("%H:%M:%S", "%H:%M", "%I:%M:%S %p", "%I:%M %p")
_CLOCK = re.compile(
    r"[ ,]*(?:\bat\b|T)?[ ,]*(?P<clock>[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?)(?:\.[0-9]+)?"
    r"(?P<half> ?[AaPp]\.?[Mm]\.?)?$"
)


class Chat(NamedTuple):
    """One conversation, in its order. Utterances have ids that are unique in it.

    ``id`` is the same in every export of it; empty if it has none. ``left`` are the ids of what was
    said and is not shown: on another branch, or in a conversation that is not to be remembered.
    ``owner`` names whose it is, where the file does.
    """

    id: str
    utterances: tuple[Utterance, ...]
    left: tuple[str, ...] = ()
    owner: str = ""


class ForeignEntry(NamedTuple):
    """One entry of another memory; ``id`` and ``owner`` as in ``Chat``, ``time`` in ISO 8601,
    ``metadata`` as in ``Entry``.
    """

    id: str
    text: str
    time: str | None
    owner: str = ""
    metadata: str | None = None


Item = Chat | ForeignEntry


def fields(value: Any) -> dict[str, Any]:
    """Return an object of JSON; empty for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list of JSON; empty for anything else."""
    return value if isinstance(value, list) else []


def word(value: Any) -> str:
    """Return a text of JSON, such as a role or an id; empty for anything else."""
    return value if isinstance(value, str) else ""


def clean_text(text: object) -> str:
    """Return a text without white space around and without NUL, that UTF-8 can hold; empty for
    anything else.
    """
    if not isinstance(text, str):
        return ""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text.strip()
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


# ------------------------------------------------------------------------------------------------
# times
def time_in(about: dict[str, Any], *, updated: bool = False, skipped: Reasons | None = None) -> str:
    """Return when a message or an entry was written, in ISO 8601; empty if it does not say.

    Looked for in all fields that are named as times are (``created_at``, ``createdAt``,
    ``timestamp``, ``date_sent``, ...): first those of its making, or with ``updated`` those of its
    last change. A field that is named so and holds no time is counted.
    """
    fields_of_time = [(rank, key) for key in about if (rank := _rank(key)) is not None]
    if not fields_of_time:
        return ""
    fields_of_time.sort(key=lambda each: -1 if updated and each[0] == _RANKS[1][0] else each[0])
    values = [about[key] for _, key in fields_of_time]
    known = time_of(*values)
    if known is None and skipped is not None and any(value not in _NO_TIMES for value in values):
        skipped[UNREADABLE_TIME] += 1
    return known or ""


_NO_TIMES: tuple[Any, ...] = (None, "", 0)


@lru_cache(maxsize=4096)
def _rank(key: str) -> int | None:
    """Return how well a field's name fits the time when something was made; None if it is none."""
    if len(key) > _LONGEST_TIME:
        return None
    words = {word.lower() for word in _KEY_WORDS.findall(key)}
    for rank, own in _RANKS:
        if own & words:
            known = words <= own | _NEUTRAL | _OTHERS
            named = words & (_NEUTRAL | {"at", "on", "created", "updated", "sent", "inserted"})
            return rank if known and named else None
    return None


def time_of(*values: Any) -> str | None:
    """Return the first of some values that is a time, in ISO 8601 to the second; None if none is.

    A time is a number of seconds, or of thousandths, millionths or billionths, since 1970; a text;
    or one of them in an object, as MongoDB and Firestore write it.
    """
    return next(filter(None, map(_time, values)), None)


def _time(value: Any) -> str | None:
    for _ in range(len(_IN_TIMES)):
        if not isinstance(value, dict):
            break
        value = next((value[key] for key in _IN_TIMES if key in value), None)
    if isinstance(value, str):
        return _time_in_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value < _LATEST:
        return None
    date = _in_digits(value) if isinstance(value, int) else None
    if date:
        return date
    seconds = value
    while seconds >= _NEXT_UNIT:
        seconds /= 1000
    if not seconds >= _EARLIEST:
        return None
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


def _in_digits(value: int) -> str | None:
    form = next((form for form, numbers in _DIGITS.items() if value in numbers), None)
    if form is None:
        return None
    try:
        date = datetime.strptime(str(value), form)
    except ValueError:
        return None
    return date.isoformat(timespec="seconds")[: 10 if form == "%Y%m%d" else None]


def _time_in_text(value: str) -> str | None:
    if len(value) > _LONGEST_TIME:
        return None
    read = moment(value)
    if read and len(value) > len("2024-03-05"):
        return datetime.fromisoformat(value).isoformat(timespec="seconds")
    if read:
        return value
    text = " ".join(value.split())
    if re.fullmatch(r"[0-9]{9,19}(?:\.[0-9]+)?", text):
        return _time(int(text) if text.isdecimal() else float(text))
    return to_iso(text) or _other_form(text)


@lru_cache(maxsize=4096)
def _other_form(text: str) -> str | None:
    """Read a time as programs and people write it: a date with the month's name or the year first,
    a clock time, a zone. Nothing is guessed where day and month are both numbers.
    """
    plain = _IN_BRACKETS.sub("", text).replace("Sept ", "Sep ")
    weekday = _WEEKDAY.match(plain)
    plain = plain[weekday.end() :] if weekday else plain
    zone = _ZONE.search(plain)
    offset = None
    if zone:
        plain = plain[: zone.start()]
        if zone["hours"]:
            ahead = timedelta(hours=int(zone["hours"][1:]), minutes=int(zone["minutes"] or 0))
            offset = -ahead if zone["hours"][0] == "-" else ahead
        elif zone["zone"] in _ZONES:
            offset = timedelta(hours=_ZONES[zone["zone"]])
    clock = _CLOCK.search(plain)
    day = plain[: clock.start()] if clock else plain
    for form in _DAY_FORMS:
        try:
            date = datetime.strptime(day.strip(" ,"), form)
        except ValueError:
            continue
        return date.date().isoformat() if clock is None else _with_clock(date, clock, offset)
    try:
        return parsedate_to_datetime(text).isoformat(timespec="seconds")
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _with_clock(date: datetime, clock: re.Match[str], offset: timedelta | None) -> str | None:
    half = (clock["half"] or "").replace(".", "").strip().upper()
    written = f"{clock['clock']} {half}".strip()
    for form in _CLOCK_FORMS:
        try:
            time = datetime.strptime(written, form)
            zone = timezone(offset) if offset is not None else None
        except ValueError:
            continue
        whole = datetime.combine(date.date(), time.time(), zone)
        return whole.isoformat(timespec="seconds")
    return None


def in_time_order(utterances: Sequence[Utterance]) -> list[Utterance]:
    """Return what was said in a conversation without a tree, oldest first.

    In a list that is newest first, of what has one time a user speaks before the assistant.
    """
    times = [known for each in utterances if (known := moment(each.time or "")) is not None]
    if not is_newest_first(times):
        return list(utterances)
    grows = any(first < second for first, second in pairwise(times))
    if grows and len(times) == len(utterances):  # parts of it are oldest first
        return sorted(utterances, key=_moment_of)
    ordered: list[Utterance] = []
    for _, group in groupby(reversed(utterances), key=lambda each: each.time):
        alike = list(group)
        turned = alike[0].role == ASSISTANT and alike[-1].role == USER
        ordered += reversed(alike) if turned else alike
    return ordered


def is_newest_first(times: Sequence[datetime]) -> bool:
    """Whether times end before they begin, and go back as often as forward or more."""
    steps = [(first > second) - (first < second) for first, second in pairwise(times)]
    return bool(times) and times[0] > times[-1] and sum(steps) >= 0


def _moment_of(utterance: Utterance) -> float:
    known = moment(utterance.time or "")
    return known.timestamp() if known else 0.0


def with_times(utterances: Iterable[Utterance], start: str | None) -> Iterator[Utterance]:
    """Yield utterances, those without a time with that of the one before, or else ``start``."""
    time = start
    for utterance in utterances:
        time = utterance.time or time
        yield utterance if utterance.time else replace(utterance, time=time)


# ------------------------------------------------------------------------------------------------
# whose it is, and what is not to be remembered
_OWNERS = ("user_id", "userId", "userID", "user", "owner", "account_uuid", "account", "owner_id")
_PARTS_OF_A_USER = ("agent_id", "app_id", "run_id")  # of what no user owns
_NAMES = ("uuid", "id", "user_id", "email_address", "email", "name")
_FLAGS = frozenset(
    "isdonotremember donotremember istemporary temporary istemporarychat temporarychat incognito"
    " isincognito".split()
)
NOT_TO_REMEMBER = "message of a conversation that is temporary or not to be remembered"


def owner_of(*abouts: dict[str, Any]) -> str:
    """Return whose something is, by the first object that names a user; empty if none does.

    What belongs to an agent, an app or a run and to no user is named so.
    """
    for keys, form in ((_OWNERS, "{1}"), (_PARTS_OF_A_USER, "{0}={1}")):
        for about in abouts:
            for key in keys:
                value = about.get(key)
                if isinstance(value, dict):
                    value = next((value[name] for name in _NAMES if value.get(name)), None)
                if isinstance(value, int | str) and not isinstance(value, bool) and value != "":
                    return form.format(key, value)
    return ""


def not_to_remember(about: dict[str, Any]) -> bool:
    """Whether a person has said of a conversation that it is not to be remembered."""
    flags = (key for key in about if re.sub("[^a-z]", "", key.lower()) in _FLAGS)
    return any(about[key] in (True, 1, "true") for key in flags)
