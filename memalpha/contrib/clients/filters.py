"""Filters in Mem0's form: which memories a request is about.

    {"AND": [{"user_id": "marta"}, {"metadata": {"topic": {"in": ["tea", "coffee"]}}}]}

Fields are listed in ``_OPERATORS``, each with the operators that it takes; ``metadata`` has an
object of keys, each with a value or operators. Fields side by side must all hold. A bare value
means ``eq``; ``"*"`` any value but none. Times are compared as far as both are told: a memory of
2024-07-31T14:00 is ``lte`` 2024-07-31. Whatever else stands in a filter is refused (400), and so
are more than ``_MOST_VALUES`` values.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any

from memalpha.text.times import later, moment, to_iso
from memalpha.types import JsonObject
from memalpha.use.access import Problem

ENTITIES = ("user_id", "agent_id", "run_id", "app_id")
NONE = "default"  # name of a part of a namespace that nobody named
_ANY = "*"
_EQUAL = ("eq", "ne", "in", "nin")
_ORDER = ("gt", "gte", "lt", "lte")
_WITHIN = ("contains", "icontains")
_LISTS = ("in", "nin")
_OPERATORS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(ENTITIES, (*_EQUAL, _ANY)),
    **dict.fromkeys(("created_at", "updated_at", "timestamp"), (*_EQUAL, *_ORDER, _ANY)),
    **dict.fromkeys(("keywords", "text"), _WITHIN),
    "memory_ids": ("in",),
    "metadata": (*_EQUAL, *_ORDER, *_WITHIN, _ANY),
}
_BARE = {"keywords": "icontains", "text": "icontains", "memory_ids": "in"}
_GROUPS = ("AND", "OR", "NOT")
_MOST_LEVELS = 20
_MOST_VALUES = 200  # each is compared with each memory
_EXPECTED = f"{', '.join(_OPERATORS)}, or {', '.join(_GROUPS)} with a list of filters"


@dataclass(frozen=True, slots=True)
class Filter:
    """A condition on one field of a memory (``kind`` is its operator), or a group of filters."""

    kind: str
    parts: tuple[Filter, ...] = ()
    field: str = ""
    key: str = ""  # of the metadata
    value: Any = None

    def holds(self, record: JsonObject) -> bool | None:
        """Whether a memory fits; None if that depends on fields that are not in the record."""
        if self.kind not in _GROUPS:
            if self.field not in record:
                return None
            value = record[self.field]
            return _fits(self, (value or {}).get(self.key) if self.key else value)
        verdicts = [part.holds(record) for part in self.parts]
        decisive = self.kind != "AND"  # what one part alone can decide
        if decisive in verdicts:
            verdict: bool | None = decisive
        else:
            verdict = None if None in verdicts else not decisive
        return not verdict if self.kind == "NOT" and verdict is not None else verdict

    def names(self, field: str) -> set[str]:
        """Return all values of a field that are named anywhere."""
        return {
            value
            for each in self._conditions()
            if each.field == field and each.kind != _ANY
            for value in (each.value if each.kind in _LISTS else [each.value])
        }

    def mentions(self, field: str, kind: str = "") -> bool:
        """Whether there is a condition on a field, or one of a kind."""
        return any(each.field == field and kind in ("", each.kind) for each in self._conditions())

    def exact(self) -> dict[str, Any]:
        """Return what fields must equal, whatever else holds."""
        if self.kind == "eq" and not self.key:
            return {self.field: self.value}
        parts = self.parts if self.kind == "AND" else ()
        return {name: value for part in parts for name, value in part.exact().items()}

    def bounds(self, field: str) -> bool:
        """Whether all that fits has a value of a field that is named here."""
        if self.kind in ("AND", "OR"):
            enough = any if self.kind == "AND" else all
            return enough(part.bounds(field) for part in self.parts)
        return self.kind in ("eq", "in") and self.field == field

    def only_names(self) -> bool:
        """Whether it only says what some of ``ENTITIES`` equal, each once."""
        conditions = list(self._conditions())
        plain = all(each.kind == "eq" and each.field in ENTITIES for each in conditions)
        return plain and len(self.exact()) == len({(c.field, c.value) for c in conditions})

    @property
    def size(self) -> int:
        """The number of values that a memory is compared with."""
        return sum(len(each.value) if each.kind in _LISTS else 1 for each in self._conditions())

    def _conditions(self) -> Iterator[Filter]:
        if self.kind not in _GROUPS:
            yield self
        for part in self.parts:
            yield from part._conditions()


def every(*filters: Filter) -> Filter:
    """Return the filter of which all of these are parts."""
    return Filter("AND", filters)


def read_filters(fields: Any, where: str = "the filters", level: int = 0) -> Filter:
    """Read an object of filters; Problem (400) that names what is not understood."""
    if not isinstance(fields, dict) or level > _MOST_LEVELS:
        raise _wrong(where, fields, _EXPECTED)
    read = every(*(_read_filter(name, value, where, level) for name, value in fields.items()))
    if level == 0 and read.size > _MOST_VALUES:
        raise Problem(
            HTTPStatus.BAD_REQUEST,
            f"{where}: {read.size} values to compare with",
            f"at most {_MOST_VALUES}",
            "ask in parts",
        )
    return read


def _read_filter(name: str, value: Any, where: str, level: int) -> Filter:
    place = f"{where}: {name}"
    if name in _GROUPS:
        listed = [value] if name == "NOT" and isinstance(value, dict) else value
        if not isinstance(listed, list) or not listed:
            raise _wrong(place, value, "a list of filters")
        return Filter(name, tuple(read_filters(each, place, level + 1) for each in listed))
    if name not in _OPERATORS:
        raise _wrong(place, value, _EXPECTED)
    if name != "metadata":
        return _of_field(name, "", value, place)
    if not isinstance(value, dict) or not value:
        raise _wrong(place, value, "an object of keys and values")
    return every(*(_of_field(name, key, each, f"{place}.{key}") for key, each in value.items()))


def _of_field(field: str, key: str, value: Any, where: str) -> Filter:
    """What is asked of one field, or of one key of the metadata."""
    operators = _OPERATORS[field]
    if value == _ANY and _ANY in operators:
        return Filter(_ANY, field=field, key=key)
    is_value = not isinstance(value, dict) or (key and value and not set(value) & set(operators))
    if is_value:  # an object without operators is a value, too
        value = {_BARE.get(field, "eq"): value}
    if not value or not set(value) <= set(operators) - {_ANY}:
        raise _wrong(where, value, f"a value, or operators: {', '.join(operators)}")
    parts = []
    for kind, operand in value.items():
        place = f"{where}.{kind}"
        if kind in _LISTS:
            if not isinstance(operand, list) or not operand:
                raise _wrong(place, operand, "a list of values")
            operand = [_operand(field, key, kind, each, place) for each in operand]
        else:
            operand = _operand(field, key, kind, operand, place)
        parts.append(Filter(kind, field=field, key=key, value=operand))
    return every(*parts)


def _operand(field: str, key: str, kind: str, value: Any, where: str) -> Any:
    """One value to compare with, in the form of the field; Problem (400) if it can be none."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if kind in _WITHIN or field == "memory_ids":
        if not isinstance(value, str) or not value:
            raise _wrong(where, value, "a text")
        return value
    if field in ENTITIES:
        if not (number or isinstance(value, str)) or value in ("", _ANY):
            raise _wrong(where, value, 'a name; "*", alone, is any')
        return str(value)
    if not key:
        return timestamp_of(value, where)
    if value is None or (kind in _ORDER and not (number or isinstance(value, str))):
        raise _wrong(where, value, "a value to compare with")
    return value


def timestamp_of(value: Any, where: str) -> str:
    """Return a time, a text or seconds since 1970, in ISO 8601; Problem (400) if it is none."""
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1 << 35:
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="seconds")
    text = value if isinstance(value, str) else ""
    time = text if moment(text) else to_iso(text)
    if not time:
        raise _wrong(where, value, "a time such as 2024-03-05T14:30:00Z, or seconds since 1970")
    return time


def _wrong(where: str, value: Any, expected: str) -> Problem:
    return Problem(HTTPStatus.BAD_REQUEST, f"{where} is {json.dumps(value)[:80]}", expected)


# ------------------------------------------------------------------------------------------------
# comparing
def _fits(condition: Filter, value: Any) -> bool:
    """Whether a value (None: there is none) meets a condition."""
    kind = condition.kind
    if kind == _ANY:
        return value is not None and not (condition.field in ENTITIES and value == NONE)
    if kind in ("ne", "nin"):
        asked = {"ne": "eq", "nin": "in"}[kind]
        return not _fits(Filter(asked, field=condition.field, value=condition.value), value)
    if value is None:
        return False
    if kind in _WITHIN:
        return _holds_text(value, condition.value, fold=kind == "icontains")
    same, after = (_same, _after) if condition.field in _UNTIMED else (_same_time, _later)
    return _compare(kind, value, condition.value, same, after)


_UNTIMED = (*ENTITIES, "memory_ids", "metadata")


def _compare(
    kind: str,
    value: Any,
    operand: Any,
    same: Callable[[Any, Any], bool],
    after: Callable[[Any, Any], bool],
) -> bool:
    match kind:
        case "in":
            return any(same(value, each) for each in operand)
        case "gt" | "gte" if after(value, operand):
            return True
        case "lt" | "lte" if after(operand, value):
            return True
    return kind in ("eq", "gte", "lte") and same(value, operand)


def _holds_text(value: Any, text: str, *, fold: bool) -> bool:
    if isinstance(value, str):
        return text.casefold() in value.casefold() if fold else text in value
    if isinstance(value, Sequence):
        return any(_holds_whole(each, text, fold=fold) for each in value)
    return False


def _holds_whole(value: Any, text: str, *, fold: bool) -> bool:
    if not isinstance(value, str):
        return False
    return text.casefold() == value.casefold() if fold else text == value


def _same(one: Any, other: Any) -> bool:
    # JSON has true beside 1
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def _after(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return False
    numbers = isinstance(one, int | float) and isinstance(other, int | float)
    texts = isinstance(one, str) and isinstance(other, str)
    return bool(one > other) if numbers or texts else False


def _same_time(one: str, other: str) -> bool:
    return later(one, other) is None


def _later(one: str, other: str) -> bool:
    return later(one, other) is True
