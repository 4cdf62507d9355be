"""Refusing arguments of a wrong type before they do anything: an entry that is ``None`` must not be read as "all of them"."""

from __future__ import annotations

from memalpha.errors import InputError
from memalpha.memory.tools import is_text


def need_text(what: str, value: object, expected: str = "a text (str)") -> None:
    """Raise InputError unless ``value`` is a str of Unicode text; ``what`` names the argument."""
    if not isinstance(value, str):
        raise InputError(f"{what} is {repr(value)[:80]}, of type {type(value).__name__}", expected=expected)
    if not is_text(value):
        raise InputError(f"{what} holds a lone surrogate ({value[:40]!a})", expected="Unicode text")


def need_number(what: str, value: object, expected: str) -> None:
    """Raise InputError unless ``value`` is an integer, and no bool, of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{what} is {repr(value)[:80]}", expected=expected)


def need_entries(what: str, value: object) -> None:
    """Raise InputError unless ``value`` is a number of entries, at least 1."""
    need_number(what, value, "a number of entries, at least 1")


__all__ = ["need_entries", "need_number", "need_text"]
