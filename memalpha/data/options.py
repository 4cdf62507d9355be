"""Options of a data source: a frozen dataclass, filled from the command line's ``key=value`` texts or from YAML.

What always holds: an unknown name or a value of the wrong type is one InputError that lists what there is; values are checked
by the dataclass's own ``__post_init__``.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from memalpha.errors import InputError

_T = TypeVar("_T")

_PAIR = re.compile(r"\[?\s*([0-9]{1,9})\s*[,-]\s*([0-9]{1,9})\s*\]?")


def parse_options(cls: type[_T], values: Mapping[str, Any] | None, source: str, what: str = "source") -> _T:
    """Fill an options dataclass.

    Args:
        cls: A dataclass whose fields all have defaults and are int, float, bool, str, a Literal, ``tuple[int, int]`` or one of
            those or None.
        values: Option names to values; a text may stand for any of these: ``10``, ``1e-3``, ``true``, ``none``, ``80,160`` or
            ``80-160`` or ``[80, 160]``.
        source: Name of the source, for messages.
        what: What the options belong to, for messages.

    Raises:
        InputError: If a name is unknown or a value does not fit.
    """
    hints = get_type_hints(cls)
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
    given = dict(values or {})
    if unknown := sorted(set(given) - set(names), key=str):
        raise InputError(
            f"{what} {source!r} has no option {', '.join(map(repr, unknown))}", expected=f"some of {', '.join(names) or 'none'}"
        )
    return cls(**{name: _convert(given[name], hints[name], f"option {name!r} of {what} {source!r}") for name in given})


def _convert(value: Any, hint: Any, where: str) -> Any:
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for kind in kinds:
        ok, converted = _as(value, kind)
        if ok:
            return converted
    raise InputError(f"{where} is {value!r}", expected=" or ".join(_named(kind) for kind in kinds))


def _as(value: Any, kind: Any) -> tuple[bool, Any]:
    """Whether ``value`` is of ``kind`` or a text that stands for one, and the converted value."""
    if get_origin(kind) is Literal:
        return value in get_args(kind), value
    if isinstance(value, str) and kind is not str:
        value = _read(value, kind)
    if get_origin(kind) is tuple:
        fits = isinstance(value, (list, tuple)) and len(value) == 2 and all(_is_int(item) for item in value)
        return fits, tuple(value) if fits else None
    if kind is int:
        return _is_int(value), value
    if kind is float:
        fits = (_is_int(value) or isinstance(value, float)) and math.isfinite(value)
        return fits, float(value) if fits else None
    return isinstance(value, kind), value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _read(text: str, kind: Any) -> Any:
    """Return what a text stands for, or the text itself where it stands for nothing of that kind."""
    word = text.strip().lower()
    if kind is bool:
        return {"true": True, "false": False}.get(word, text)
    if kind is types.NoneType:
        return None if word in ("none", "null") else text
    if get_origin(kind) is tuple:
        match = _PAIR.fullmatch(word)
        return [int(match[1]), int(match[2])] if match else text
    try:
        return kind(word)
    except ValueError:
        return text


def _named(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        return "two integers, fewest and most, such as 80,160"
    return {int: "an integer", float: "a number", bool: "true or false", str: "text", types.NoneType: "none"}.get(kind, str(kind))
