"""What a file of an export holds, and the forms of values that its readers share."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memalpha.conversation.messages import Utterance
from memalpha.text import moment, to_iso

Reasons = Counter[str]
"""How much was not read, by its reason."""
_MILLISECONDS = 1e11  # a number of seconds above it would be after the year 5000


class Chat(NamedTuple):
    """One conversation, in its order. Utterances have ids that are unique in it.

    ``id`` is the same in every export of it; empty if it has none.
    """

    id: str
    utterances: tuple[Utterance, ...]


class Remembered(NamedTuple):
    """One entry of another memory; ``id`` as in ``Chat``, ``time`` in ISO 8601, ``metadata`` as in
    ``Entry``.
    """

    id: str
    text: str
    time: str | None
    metadata: str | None = None


Item = Chat | Remembered


def fields(value: Any) -> dict[str, Any]:
    """Return an object of JSON; empty for anything else."""
    return value if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a list of JSON; empty for anything else."""
    return value if isinstance(value, list) else []


def word(value: Any) -> str:
    """Return a text of JSON, such as a role or an id; empty for anything else."""
    return value if isinstance(value, str) else ""


def clean(text: object) -> str:
    """Return a text without white space around, that UTF-8 can hold; empty for anything else."""
    if not isinstance(text, str):
        return ""
    if text.isascii():
        return text.strip()
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").strip()


def time_of(*values: Any) -> str | None:
    """Return the first of some values that is a time, in ISO 8601 to the second: seconds or
    milliseconds since 1970, or a text; None if none is.
    """
    for value in values:
        if isinstance(value, int | float) and not isinstance(value, bool):
            if 0 < value < 1000 * _MILLISECONDS:
                seconds = value / 1000 if value > _MILLISECONDS else value
                return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
        elif isinstance(value, str):
            read = moment(value)
            if read and len(value) > len("2024-03-05"):
                return datetime.fromisoformat(value).isoformat(timespec="seconds")
            text = value if read else to_iso(value)
            if text:
                return text
    return None


def dated(utterances: Iterable[Utterance], start: str | None) -> Iterator[Utterance]:
    """Yield utterances, those without a time with that of the one before, or else ``start``."""
    time = start
    for utterance in utterances:
        time = utterance.time or time
        yield utterance if utterance.time else replace(utterance, time=time)
