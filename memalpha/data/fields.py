"""Field checks of a row, as types for pydantic models; SchemaError names the place and field. Null and NaN count as missing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, PydanticUserError, ValidationError

from memalpha.errors import SchemaError

EMPTY_ANSWER = "empty answer"
"""Skip reason: all answers are blank or missing."""

_LABEL = re.compile(r"[+-]?[0-9]{1,18}")
_T = TypeVar("_T")
_M = TypeVar("_M", bound=BaseModel)


def is_missing(value: Any) -> bool:
    """Whether a value is null or NaN."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def clean(value: Any) -> str:
    r"""Return a text with ``\n`` line ends, stripped; ValueError if it is not text or not valid Unicode."""
    if not isinstance(value, str):
        raise ValueError("expected text")
    value.encode("utf-8")  # a lone surrogate raises UnicodeEncodeError, a ValueError
    return value.replace("\r\n", "\n").replace("\r", "\n").strip()


def scalar(value: Any) -> str:
    """Return a text, or a number as text, "" if missing; ValueError for anything else, including infinity."""
    if is_missing(value):
        return ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return clean(value)
    if math.isinf(value):
        raise ValueError("expected text or a finite number")
    return str(value)


def answers(value: Any) -> tuple[str, ...]:
    """Return the distinct non-blank answers of a text, a number, None or a list of those; ValueError for others."""
    return tuple(dict.fromkeys(filter(None, map(scalar, value if isinstance(value, list) else [value]))))


def from_json_text(value: Any) -> Any:
    """Return the parsed JSON of a text, other values unchanged; ValueError if the text is not JSON."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _filled(value: str) -> str:
    if not value:
        raise ValueError("expected text that is not empty")
    return value


Cleaned = Annotated[str, BeforeValidator(clean)]
Text = Annotated[str, BeforeValidator(clean), AfterValidator(_filled)]
Scalar = Annotated[str, BeforeValidator(scalar)]
Answers = Annotated[tuple[str, ...], BeforeValidator(answers)]
OrEmpty = BeforeValidator(lambda value: [] if value is None else value)
Rows = Annotated[list[Any], OrEmpty]


def checked(model: type[_M], data: Any, where: str) -> _M:
    """Return a row as a model; SchemaError, with the place ``where``, if a field does not fit or ``data`` is a SchemaError."""
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
    """Return a value as text for a message, cut to 60 characters."""
    text = repr(value) if not isinstance(value, int) else f"{value:.4g}" if abs(value) > 1e15 else str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def convert(read: Callable[[Any], _T], value: Any, where: str) -> _T:
    """Return ``read(value)``; its ValueError becomes a SchemaError with the place."""
    try:
        return read(value)
    except ValueError as error:
        raise SchemaError(f"{where} is {shown(value)}: {error}") from error


def mapping(value: Any, where: str) -> Mapping[str, Any]:
    """Return an object; SchemaError if it is something else or is a SchemaError itself."""
    if isinstance(value, SchemaError):
        raise value
    if not isinstance(value, Mapping):
        raise SchemaError(f"{where} is {type(value).__name__}", expected="an object")
    return value


def check_labels(labels: Iterable[str], where: str) -> None:
    """Raise SchemaError if an answer is not an integer, as metric ``boxed`` needs."""
    if wrong := [label for label in labels if not _LABEL.fullmatch(label)]:
        raise SchemaError(f"{where} has label {wrong[0]!r:.40}", expected="an integer, for metric 'boxed'")


def count_items(data: Any, *keys: str) -> int:
    """Return the total length of the object's lists, 0 for anything else; never raises."""
    lists = [data.get(key) for key in keys] if isinstance(data, Mapping) else []
    return sum(len(value) for value in lists if isinstance(value, list))
