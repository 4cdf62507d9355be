"""Options of an evaluation: one YAML file, every flat value overridable at the command line, as in training.

    memalpha evaluate --config configs/evaluate/X.yaml --output_dir runs/X

``EvaluateArguments`` says what is compared under which protocol; ``memalpha.training.config.AgentArguments`` (schema, codec,
limits), with the names of training, says how the agents read and write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import yaml

from memalpha.errors import InputError
from memalpha.evaluation.systems.registry import KINDS, system_options
from memalpha.training.config import AgentArguments, parse_options
from memalpha.training.endpoints import EndpointArguments

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
        instances: How many of its first instances (0 = all).
        reader_tokens: The readers' budget on this set (0 = the common one).
        retrieve_k: Entries retrieved for a question on this set (0 = the common number).
        max_completion_length: Longest completion of a chunk on this set (0 = the common one).
        readers: Names of the readers that read it (none = all).
    """

    data: str
    name: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    instances: int = 0
    reader_tokens: int = 0
    retrieve_k: int = 0
    max_completion_length: int = 0
    readers: tuple[str, ...] = ()


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


@dataclass
class EvaluateArguments(EndpointArguments):
    """What is compared, under which protocol; the servers it asks are ``EndpointArguments``.

    Attributes:
        model: Registered name (see ``memalpha model list``), folder or Hub name of the base model: of agents, of the ``base``
            reader and of every token count.
        dtype: Type of its weights.
        sets: List of sets, each a path or a mapping (``SetSpec``).
        systems: List of systems, each a kind or a mapping (``SystemSpec`` and the kind's own options).
        readers: List of readers, each a kind or a mapping (``ReaderSpec``).
        reader_tokens: Budget of what a reader sees, in tokens: the same for every system.
        retrieve_k: How many entries are retrieved for a question: the same for every system.
        temperature: Of what models write (0 = greedy, for which one seed is enough).
        seeds: Sampling seeds.
        max_completion_length: Longest completion of one chunk, in tokens.
        batch_size: Instances that are read in lockstep; what memory depends on, and what a killed run loses at most.
        generation_rows: Most rows decoded in one batch.
        batch_tokens: Most tokens of the questions and passages that the base model reads in one batch.
        output_dir: The folder to write.
        overwrite: Replace an existing folder; without it, one of the same configuration is gone on with.
    """

    model: str = "smollm2-135m-instruct"
    dtype: str = "float32"
    sets: None | str | list[Any] = None  # in this order: the parser takes the second as its type
    systems: None | str | list[Any] = None
    readers: None | str | list[Any] = "recall"
    reader_tokens: int = 256
    retrieve_k: int = 10
    temperature: float = 0.0
    seeds: list[int] = field(default_factory=lambda: [0])
    max_completion_length: int = 1024
    batch_size: int = 16
    generation_rows: int = 64
    batch_tokens: int = 16_384
    output_dir: str = "runs/evaluate"
    overwrite: bool = False

    def __post_init__(self) -> None:
        """Check values that no type checks."""
        for name in (
            "reader_tokens", "retrieve_k", "max_completion_length", "batch_size", "generation_rows", "batch_tokens",
        ):  # fmt: skip
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)}", expected="at least 1")
        if self.temperature < 0:
            raise InputError(f"temperature is {self.temperature}", expected="0 (greedy) or more")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds is {self.seeds}", expected="at least one seed, none of them twice")


class Evaluation(NamedTuple):
    """All options of an evaluation, read and checked.

    Attributes:
        arguments: The flat options.
        agent: How agents read and write.
        sets: The sets, names filled in.
        systems: The systems, names and groups filled in.
        readers: The readers, names filled in.
    """

    arguments: EvaluateArguments
    agent: AgentArguments
    sets: tuple[SetSpec, ...]
    systems: tuple[SystemSpec, ...]
    readers: tuple[ReaderSpec, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the resolved configuration, as ``config.yaml`` holds it; given as ``--config`` it overwrites nothing."""
        resolved = {
            "sets": [_plain(asdict(spec)) for spec in self.sets],
            "systems": [_plain(_flat(spec)) for spec in self.systems],
            "readers": [_plain(asdict(spec)) for spec in self.readers],
        }
        return {**_plain(asdict(self.arguments)), **_plain(asdict(self.agent)), **resolved, "overwrite": False}


def parse_evaluate_arguments(arguments: Sequence[str]) -> Evaluation:
    """Read ``--config FILE`` and overrides.

    Raises:
        InputError: If the file is missing or is no YAML mapping, or an option does not exist or does not fit.
    """
    flat, agent = parse_options(arguments, [EvaluateArguments, AgentArguments], "memalpha evaluate")
    return resolve(flat, agent)


def resolve(flat: EvaluateArguments, agent: AgentArguments) -> Evaluation:
    """Read the lists of sets, systems and readers, and check that they fit together.

    Raises:
        InputError: If an entry does not fit, a name stands for two things, or one that is referred to does not exist.
    """
    sets = tuple(_set(row) for row in _rows("sets", flat.sets, "[{name: synthetic, data: runs/data/synthetic-test}]"))
    systems = tuple(_system(row) for row in _rows("systems", flat.systems, "[full_context, rag_bm25, {name: warm, kind: agent}]"))
    readers = tuple(_reader(row) for row in _rows("readers", flat.readers, "[recall, base]"))
    for what, names in (
        ("sets", [one.name for one in sets]),
        ("systems", [system.name for system in systems]),
        ("readers", [reader.name for reader in readers]),
    ):
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"two {what} are called {twice!r}", expected="a name for each", fix="add name: to one of them")
    for one in sets:
        _check_names(f"readers of {one.name!r}", one.readers, [reader.name for reader in readers])
    for system in systems:
        _check_names(f"readers of {system.name!r}", system.readers, [reader.name for reader in readers])
        _check_names(f"sets of {system.name!r}", system.sets, [one.name for one in sets])
    if any(reader.kind is ReaderKind.ENDPOINT for reader in readers):
        flat.reader_client()
    if flat.has_judge_endpoint:
        flat.judge_client()
    return Evaluation(flat, agent, sets, systems, readers)


def _rows(name: str, value: None | str | list[Any], example: str) -> list[Any]:
    """Read a list that may be given as YAML text at the command line."""
    try:
        found = yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise InputError(f"{name} is {value!r}: {error}", expected=f"a list such as {example}") from error
    found = [found] if isinstance(found, (str, Mapping)) else found
    if not isinstance(found, list) or not found:
        raise InputError(f"{name} is {value!r}", expected=f"a list such as {example}")
    return found


def _set(row: Any) -> SetSpec:
    spec = _fill(SetSpec, {"data": row} if isinstance(row, str) else row, "a set", "data")
    if not isinstance(spec.options, Mapping):
        raise InputError(f"options of set {spec.data!r} are {spec.options!r}", expected="a mapping such as {n: 60}")
    for name in ("instances", "reader_tokens", "retrieve_k", "max_completion_length"):
        if getattr(spec, name) < 0:
            raise InputError(f"{name} of set {spec.data!r} is {getattr(spec, name)}", expected="0 (the common value) or more")
    return replace(spec, name=spec.name or Path(spec.data).name)


def _system(row: Any) -> SystemSpec:
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


def _reader(row: Any) -> ReaderSpec:
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
    if not isinstance(value, wanted) or isinstance(value, bool):
        raise InputError(f"{what} is {value!r}", expected=named)
    return value


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"{what} name {name!r}", expected=f"some of {', '.join(known)}")


def _flat(spec: SystemSpec) -> dict[str, Any]:
    """A system with its own options beside the others, as it is written in a configuration."""
    return {**{key: value for key, value in asdict(spec).items() if key != "options"}, **spec.options}


def _plain(value: Any) -> Any:
    """The value as YAML writes it plainly."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


__all__ = [
    "EvaluateArguments", "Evaluation", "ReaderKind", "ReaderSpec", "SetSpec", "SystemSpec", "parse_evaluate_arguments", "resolve",
]  # fmt: skip
