"""The entries of an evaluation's lists: a set, a system, a reader, each a name or a mapping in YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

from memalpha.errors import InputError
from memalpha.evaluation.systems.registry import KINDS, system_options
from memalpha.types import Instance

_Spec = TypeVar("_Spec", "SetSpec", "SystemSpec", "ReaderSpec")


class ReaderKind(StrEnum):
    """Who answers."""

    RECALL = "recall"
    """No model: the answer is what was found."""
    BASE = "base"
    """The bare base model."""
    ENDPOINT = "endpoint"
    """The server of ``endpoint_url``."""


@dataclass(frozen=True, slots=True)
class SetSpec:
    """A set of instances.

    Attributes:
        data: Prepared folder, file of instances, or the name of a generated source.
        name: What it is called in results (empty = the folder's or source's name).
        options: Options of a generated source.
        instances: How many instances (0 = all).
        skip: How many of its first instances are passed over, such as those that were looked at before.
        reader_tokens: The readers' budget on this set (0 = the common one).
        retrieve_k: Entries retrieved for a question on this set (0 = the common number).
        max_completion_length: Longest completion of a chunk on this set (0 = the common one).
        readers: Names of the readers that read it (none = all).
        in_mean: Whether it counts in the mean over sets; false for one that repeats another under harder conditions.
    """

    data: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    instances: int = 0
    skip: int = 0
    reader_tokens: int = 0
    retrieve_k: int = 0
    max_completion_length: int = 0
    readers: tuple[str, ...] = ()
    in_mean: bool = True


def asked_for(instances: list[Instance], skip: int, count: int) -> list[Instance]:
    """Return the instances that a set's ``skip`` and ``instances`` (0 = all) ask for."""
    return instances[skip:][: count or None]


@dataclass(frozen=True, slots=True)
class SystemSpec:
    """A system.

    Attributes:
        kind: What it is, a key of ``memalpha.evaluation.systems.registry.KINDS``.
        name: What it is called in results (empty = its kind).
        group: Systems of one group differ in their training seed alone (empty = its name).
        sets: Names of the sets it is evaluated on (none = all).
        readers: Names of the readers that read for it (none = all).
        options: Its own options; in a configuration they stand beside the others.
    """

    kind: str
    name: str = ""
    group: str = ""
    sets: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReaderSpec:
    """A reader.

    Attributes:
        kind: Who answers.
        name: What it is called in results (empty = its kind).
        max_new_tokens: Longest answer, in tokens.
        window_tokens: How many tokens its model takes, for full context (0 = what the base model says).
    """

    kind: ReaderKind
    name: str = ""
    max_new_tokens: int = 32
    window_tokens: int = 0


def flat(spec: SystemSpec) -> dict[str, Any]:
    """A system with its own options beside the others, as it is written in a configuration."""
    return {**{key: value for key, value in asdict(spec).items() if key != "options"}, **spec.options}


def read_set(row: Any) -> SetSpec:
    """Read a set: its data, or a mapping; InputError if it does not fit."""
    spec = _fill(SetSpec, {"data": row} if isinstance(row, str) else row, "a set", "data")
    if not isinstance(spec.options, Mapping):
        raise InputError(f"options of set {spec.data!r} are {spec.options!r}", expected="a mapping such as {n: 60}")
    for name in ("instances", "skip", "reader_tokens", "retrieve_k", "max_completion_length"):
        if getattr(spec, name) < 0:
            raise InputError(f"{name} of set {spec.data!r} is {getattr(spec, name)}", expected="0 or more")
    return replace(spec, name=spec.name or Path(spec.data).name or Path(spec.data).resolve().name or spec.data)


def read_system(row: Any) -> SystemSpec:
    """Read a system: its kind, or a mapping; InputError if it or one of its options does not fit."""
    given = {"kind": row} if isinstance(row, str) else row
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise InputError(f"a system is {row!r}", expected=f"a kind ({', '.join(KINDS)}) or a mapping with kind")
    own = {f.name for f in fields(SystemSpec)} - {"options"}
    options = {key: value for key, value in given.items() if key not in own}
    common = {key: value for key, value in given.items() if key in own}
    spec = _fill(SystemSpec, {**common, "options": options}, "a system", "kind")
    parsed = system_options(spec.kind, spec.options)
    name = spec.name or spec.kind
    return replace(spec, name=name, group=spec.group or name, options=asdict(parsed))


def read_reader(row: Any) -> ReaderSpec:
    """Read a reader: its kind, or a mapping; InputError if it does not fit."""
    spec = _fill(ReaderSpec, {"kind": row} if isinstance(row, str) else row, "a reader", "kind")
    try:
        kind = ReaderKind(spec.kind)
    except ValueError as error:
        raise InputError(f"reader {spec.kind!r}", expected=f"one of {', '.join(ReaderKind)}") from error
    if spec.max_new_tokens < 1 or spec.window_tokens < 0:
        raise InputError(
            f"reader {kind.value!r} has max_new_tokens {spec.max_new_tokens} and window_tokens {spec.window_tokens}",
            expected="at least 1, and 0 or more",
        )
    return replace(spec, kind=kind, name=spec.name or kind.value)


_EXPECTED: Mapping[str, tuple[type, str]] = {
    "str": (str, "text"),
    "int": (int, "an integer"),
    "bool": (bool, "true or false"),
    "ReaderKind": (str, "text"),
    "tuple[str, ...]": (list, "a list of names"),
    "Mapping[str, Any]": (Mapping, "a mapping"),
}


def _fill(spec: type[_Spec], row: Any, what: str, needed: str) -> _Spec:
    """Make a spec from a mapping; InputError for an unknown or missing key or a value of the wrong type."""
    known = {f.name: str(f.type) for f in fields(spec)}
    if not isinstance(row, Mapping) or not row.get(needed):
        raise InputError(f"{what} is {row!r}", expected=f"a mapping with {needed}")
    if unknown := next((key for key in row if key not in known), None):
        raise InputError(f"{what} has an unknown key {unknown!r}: {row!r}", expected=f"some of {', '.join(known)}")
    return spec(**{key: _value(value, known[key], f"{key} of {what}") for key, value in row.items()})


def _value(value: Any, kind: str, what: str) -> Any:
    """Return a value of one of the types of ``_EXPECTED``; a single name stands for a list of one."""
    wanted, named = _EXPECTED[kind]
    if wanted is list:
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
            raise InputError(f"{what} is {value!r}", expected=named)
        return tuple(value)
    if not isinstance(value, wanted) or isinstance(value, bool) != (wanted is bool):
        raise InputError(f"{what} is {value!r}", expected=named)
    return value


__all__ = ["ReaderKind", "ReaderSpec", "SetSpec", "SystemSpec", "asked_for", "flat", "read_reader", "read_set", "read_system"]
