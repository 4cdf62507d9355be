"""Fields of a row as its loader wants them; what does not fit is a SchemaError that names the row's place and the field.

A value is missing where it is null or NaN, as tables write it that know no null for numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from memalpha.data.rows import check_text
from memalpha.errors import SchemaError

EMPTY_ANSWER = "empty answer"
"""Reason to skip a question whose answers are all blank or missing."""

_LABEL = re.compile(r"[+-]?[0-9]{1,18}")


def missing(value: Any) -> bool:
    """Whether a value stands for none: null, or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object; SchemaError if it is something else, or the SchemaError that stands in its place."""
    if isinstance(value, SchemaError):
        raise value
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where} is {type(value).__name__}", expected="an object")
    return value


def items(row: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """Return the list in field ``key``; SchemaError if there is none."""
    if not isinstance(value := row.get(key), list):
        raise SchemaError(f"{where} field {key!r} is {type(value).__name__}", expected="a list")
    return value


def spelled(value: Any, where: str) -> Any:
    """Return what a JSON text spells, as tables hold lists, and what is no text as it is; SchemaError for any other text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise SchemaError(f"{where} is not JSON: {error}", expected="JSON text") from error


def text(row: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text in field ``key``, cleaned; SchemaError if it is missing, blank or no text."""
    cleaned = check_text(row.get(key), f"{where} field {key!r}")
    if not cleaned:
        raise SchemaError(f"{where} field {key!r} is empty", expected="text")
    return cleaned


def optional_text(row: Mapping[str, Any], key: str, where: str) -> str:
    """Return the text in field ``key``, "" where it is missing; a number counts as its digits."""
    value = row.get(key)
    return "" if value is None else scalar_text(value, f"{where} field {key!r}")


def scalar_text(value: Any, where: str) -> str:
    """Return a text, or a number's digits, "" for NaN; SchemaError for anything else, so for infinity."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return check_text(value, where)
    if isinstance(value, float) and math.isinf(value):
        raise SchemaError(f"{where} is {value}", expected="text or a finite number")
    return "" if missing(value) else str(value)


def texts(value: Any, where: str) -> list[str]:
    """Return the texts of a list that are not blank; SchemaError if it is no list of texts."""
    if not isinstance(value, list):
        raise SchemaError(f"{where} is {type(value).__name__}", expected="a list of texts")
    return [cleaned for i, item in enumerate(value) if (cleaned := check_text(item, f"{where}[{i}]"))]


def answers(value: Any, where: str) -> tuple[str, ...]:
    """Return the distinct answers that are not blank, from a text, a number, None or a list of those; SchemaError for others."""
    given = value if isinstance(value, list) else [value]
    return tuple(dict.fromkeys(filter(None, ("" if item is None else scalar_text(item, where) for item in given))))


def check_labels(labels: Iterable[str], where: str) -> None:
    """Raise SchemaError if one of the answers is no label as metric ``boxed`` reads them, an integer."""
    if wrong := [label for label in labels if not _LABEL.fullmatch(label)]:
        raise SchemaError(f"{where} has label {wrong[0]!r:.40}", expected="an integer, for metric 'boxed'")


def listed(value: Any) -> int:
    """Return how many items a list holds, 0 for anything else; never raises."""
    return len(value) if isinstance(value, list) else 0


def first_of(row: Mapping[str, Any], keys: Iterable[str], where: str) -> Any:
    """Return the value of the first field that is not missing; SchemaError that lists them all if there is none."""
    names = list(keys)
    for key in names:
        if not missing(value := row.get(key)):
            return value
    raise SchemaError(f"{where} has none of {', '.join(map(repr, names))}", expected="one of these fields")
