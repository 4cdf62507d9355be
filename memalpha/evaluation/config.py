"""Options of an evaluation: one YAML file, every flat value overridable at the command line, as in training.

    memalpha evaluate --config configs/evaluate/X.yaml --output_dir runs/X

``EvaluateArguments`` says what is compared under which protocol; ``memalpha.training.config.AgentArguments`` (schema, codec,
limits), with the names of training, says how the agents read and write.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import yaml

from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError
from memalpha.evaluation.specs import (
    ReaderKind,
    ReaderSpec,
    SetSpec,
    SystemSpec,
    flat,
    read_reader,
    read_set,
    read_system,
)
from memalpha.training.config import AgentArguments, parse_options


@dataclass
class EvaluateArguments(EndpointOptions):
    """What is compared, under which protocol; the servers it asks are ``EndpointOptions``.

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
        if not 0 <= self.temperature < math.inf:  # nor NaN
            raise InputError(f"temperature is {self.temperature}", expected="0 (greedy) or more")
        if not self.seeds or any(type(seed) is not int for seed in self.seeds) or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds is {self.seeds}", expected="at least one integer, none of them twice")


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
            "systems": [_plain(flat(spec)) for spec in self.systems],
            "readers": [_plain(asdict(spec)) for spec in self.readers],
        }
        return {**_plain(asdict(self.arguments)), **_plain(asdict(self.agent)), **resolved, "overwrite": False}


def parse_evaluate_arguments(arguments: Sequence[str]) -> Evaluation:
    """Read ``--config FILE`` and overrides.

    Raises:
        InputError: If the file is missing or is no YAML mapping, or an option does not exist or does not fit.
    """
    options, agent = parse_options(arguments, [EvaluateArguments, AgentArguments], "memalpha evaluate")
    return resolve(options, agent)


def resolve(options: EvaluateArguments, agent: AgentArguments) -> Evaluation:
    """Read the lists of sets, systems and readers, and check that they fit together.

    Raises:
        InputError: If an entry does not fit, a name stands for two things, or one that is referred to does not exist.
    """
    sets = tuple(read_set(row) for row in rows_of("sets", options.sets, "[{name: synthetic, data: runs/data/synthetic-test}]"))
    systems = tuple(
        read_system(row) for row in rows_of("systems", options.systems, "[full_context, rag_bm25, {name: warm, kind: agent}]")
    )
    readers = tuple(read_reader(row) for row in rows_of("readers", options.readers, "[recall, base]"))
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
        options.reader_client()
    if options.has_judge:
        options.judge_client()
    return Evaluation(options, agent, sets, systems, readers)


def rows_of(name: str, value: None | str | list[Any], example: str) -> list[Any]:
    """Return the rows of one of the lists, which may be given as YAML text, or one row without a list; InputError if it is none."""
    try:
        found = yaml.safe_load(value) if isinstance(value, str) else value
    except yaml.YAMLError as error:
        raise InputError(f"{name} is {value!r}: {error}", expected=f"a list such as {example}") from error
    found = [found] if isinstance(found, (str, Mapping)) else found
    if not isinstance(found, list) or not found:
        raise InputError(f"{name} is {value!r}", expected=f"a list such as {example}")
    return found


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InputError(f"{what} name {name!r}", expected=f"some of {', '.join(known)}")


def _plain(value: Any) -> Any:
    """The value as YAML writes it plainly."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.value if isinstance(value, StrEnum) else value


__all__ = ["EvaluateArguments", "Evaluation", "parse_evaluate_arguments", "resolve", "rows_of"]
