"""Checks of the fields of a row, as types for pydantic models; what does not fit is a SchemaError with the place and the field.

A value is missing where it is null or NaN, as tables write it that know no null for numbers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, PydanticUserError, ValidationError

from memalpha.errors import SchemaError

EMPTY_ANSWER = "empty answer"
"""Reason to skip a question whose answers are all blank or missing."""

_LABEL = re.compile(r"[+-]?[0-9]{1,18}")
_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: null, or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def clean(value: Any) -> str:
    r"""Return a text with ``\n`` line ends and no white space around it; ValueError if it is no text or not valid Unicode."""
    if not isinstance(value, str):
        raise ValueError("expected text")
    value.encode("utf-8")  # a lone surrogate is a UnicodeEncodeError, which is a ValueError
    return value.replace("\r\n", "\n").replace("\r", "\n").strip()


def scalar(value: Any) -> str:
    """Return a text or a number's digits, "" where it is missing; ValueError for anything else, so for infinity."""
    if is_missing(value):
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(value)
    if math.isinf(value):
        raise ValueError("expected text or a finite number")
    return str(value)


def answers(value: Any) -> tuple[str, ...]:
    """Return the distinct answers that are not blank, from a text, a number, None or a list of those; ValueError for others."""
    return tuple(dict.fromkeys(filter(None, map(scalar, value if isinstance(value, list) else [value]))))


def from_json_text(value: Any) -> Any:
    """Return what a JSON text spells, as tables hold lists, and what is no text as it is; ValueError for any other text."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _filled(value: str) -> str:
    if not value:
        raise ValueError("expected text that is not empty")
    return value


Cleaned = Annotated[str, BeforeValidator(clean)]
"""A text, which may be empty."""
Text = Annotated[str, BeforeValidator(clean), AfterValidator(_filled)]
"""A text that is not empty."""
Scalar = Annotated[str, BeforeValidator(scalar)]
"""A text or a number, "" where it is missing."""
Answers = Annotated[tuple[str, ...], BeforeValidator(answers)]
"""Distinct answers that are not blank."""
OrEmpty = BeforeValidator(lambda value: [] if value is None else value)
"""For a list that is empty where it is missing."""
Rows = Annotated[list[Any], OrEmpty]
"""A list of anything, empty where it is missing."""


def checked(model: type[_M], data: Any, where: str) -> _M:
    """Return a row as a model.

    Args:
        model: Its fields.
        data: The row, or a SchemaError that stands in its place.
        where: Its place; begins the message.

    Raises:
        SchemaError: If a field does not fit.
    """
    if isinstance(data, SchemaError):
        raise data
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise SchemaError(f"{where} {_fault(error)}", expected=f"an object with {', '.join(model.model_fields)}") from error
    except (PydanticUserError, RecursionError) as error:
        raise SchemaError(f"{where} cannot be read: {error}") from error


def _fault(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"]).lstrip(".")
    wanted = "expected an object" if first["type"] == "model_type" else first["msg"].removeprefix("Value error, ")
    found = "is missing" if first["type"] == "missing" else f"is {shown(first['input'])}: {wanted}"
    return f"field {path!r} {found}" if path else found


def shown(value: Any) -> str:
    """Return a value for a message, cut to 60 characters."""
    text = repr(value) if not isinstance(value, int) else f"{value:.4g}" if abs(value) > 1e15 else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def convert(read: Callable[[Any], _T], value: Any, where: str) -> _T:
    """Return ``read(value)``, its ValueError as a SchemaError with the place."""
    try:
        return read(value)
    except ValueError as error:
        raise SchemaError(f"{where} is {shown(value)}: {error}") from error


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object; SchemaError if it is something else, or the SchemaError that stands in its place."""
    if isinstance(value, SchemaError):
        raise value
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where} is {type(value).__name__}", expected="an object")
    return value


def check_labels(labels: Iterable[str], where: str) -> None:
    """Raise SchemaError if one of the answers is no label as metric ``boxed`` reads them, an integer."""
    if wrong := [label for label in labels if not _LABEL.fullmatch(label)]:
        raise SchemaError(f"{where} has label {wrong[0]!r:.40}", expected="an integer, for metric 'boxed'")


def count_items(data: Any, *keys: str) -> int:
    """Return how many items the lists of an object hold together, 0 for anything else; never raises."""
    lists = [data.get(key) for key in keys] if isinstance(data, Mapping) else []
    return sum(len(value) for value in lists if isinstance(value, list))
