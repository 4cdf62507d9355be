"""Options of an evaluation: one YAML file; flat values can be overridden at the command line, as in
training.

``EvaluateOptions`` has what is compared; the protocol (``reader_tokens``, ``retrieve_k``), agents
and servers use the option groups of training.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveInt

from memalpha.agent.config import AgentConfig
from memalpha.config import Options, names, parse, read
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError
from memalpha.measure.systems import KINDS, System
from memalpha.record.folder import LISTS, RunFolder

_Spec = TypeVar("_Spec", "SetSpec", "SystemSpec", "ReaderSpec")
Rows = Annotated[
    list[Any], BeforeValidator(lambda value: [value] if isinstance(value, Mapping) else value)
]


def make_system(kind: str, values: Mapping[str, Any]) -> System:
    """Return the system of a kind with these options; InputError if the kind or an option is unknown or invalid."""
    if kind not in KINDS:
        raise InputError(f"unknown kind of system {kind!r}", expected=f"one of {', '.join(KINDS)}")
    return read(KINDS[kind], values, f"system {kind!r}")


@dataclass(frozen=True, slots=True)
class SetSpec(Options):
    """A set of instances."""

    data: str  # prepared folder, file of instances, or the name of a generated source
    name: str = ""  # in results (empty = the folder's or source's name)
    options: Mapping[str, Any] = field(default_factory=dict)  # of a generated source
    instances: NonNegativeInt = (
        0  # how many (0 = all), after the first ``skip``, such as those used before
    )
    skip: NonNegativeInt = 0
    reader_tokens: NonNegativeInt = 0  # on this set, as the next two (0 = as for all)
    retrieve_k: NonNegativeInt = 0
    max_completion_length: NonNegativeInt = 0
    readers: tuple[str, ...] = ()  # names of the readers that read it (none = all)
    in_mean: bool = (
        True  # whether it counts in the mean over sets; false for a harder copy of another set
    )


@dataclass(frozen=True, slots=True)
class SystemSpec(Options):
    """A system."""

    kind: str  # a key of ``KINDS``
    name: str = ""  # in results (empty = its kind)
    group: str = ""  # systems of one group differ only in their training seed (empty = its name)
    sets: tuple[str, ...] = ()  # names of the sets it is evaluated on (none = all)
    readers: tuple[str, ...] = ()  # names of the readers that read for it (none = all)
    options: Mapping[str, Any] = field(
        default_factory=dict
    )  # of its kind; in a configuration they stand beside the others


@dataclass(frozen=True, slots=True)
class ReaderSpec(Options):
    """A reader: ``recall`` (no model: the passages are the answer), ``base``, ``trained`` (with
    ``adapter``) or ``endpoint``.
    """

    kind: Literal["recall", "base", "trained", "endpoint"]
    name: str = ""  # in results (empty = its kind)
    max_new_tokens: PositiveInt = 32  # longest answer
    window_tokens: NonNegativeInt = (
        0  # its model's window, for full context (0 = what the base model says)
    )
    adapter: str = ""  # of kind trained: folder of the reader

    def check(self) -> None:
        """Raise InputError unless the adapter is given where it is needed."""
        if (self.kind == "trained") is not bool(self.adapter):
            raise InputError(
                f"reader {self.kind} with adapter {self.adapter!r}",
                expected="kind: trained, and the folder of a reader",
            )


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """What is compared, under which protocol.

    Attributes:
        model: Registered name (``memalpha.models.MODELS``), folder or Hub name of the base model
            (agents, reader, token counts).
        dtype: Type of its weights.
        sets: List of sets, each a path or a mapping (``SetSpec``).
        systems: List of systems, each a kind or a mapping (``SystemSpec`` and the kind's own
            options); with a list as ``adapter``,
            one for each training seed.
        readers: List of readers, each a kind or a mapping (``ReaderSpec``).
        temperature: Sampling temperature of writing models (0 = greedy, for which one seed is
            enough).
        seeds: Sampling seeds.
        batch_size: Instances that are read in lockstep; affects memory use, and what a killed run
            loses at most.
        generation_rows: Most rows decoded in one batch.
        batch_tokens: Most tokens of the questions and passages that the base model reads in one
            batch.
        output_dir: The folder to write.
        overwrite: Replace an existing folder; without it, a folder of the same configuration is
            continued.
    """

    model: str = "smollm2-135m-instruct"
    dtype: str = "float32"
    sets: Rows = field(default_factory=list)
    systems: Rows = field(default_factory=list)
    readers: Rows = field(default_factory=lambda: ["recall"])
    temperature: Annotated[float, Field(ge=0)] = 0.0
    seeds: list[int] = field(default_factory=lambda: [0])
    batch_size: PositiveInt = 16
    generation_rows: PositiveInt = 64
    batch_tokens: PositiveInt = 16_384
    output_dir: str = "runs/evaluate"
    overwrite: bool = False

    def check(self) -> None:
        """InputError for empty lists and repeated seeds."""
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(
                f"seeds is {self.seeds}", expected="at least one integer, none of them twice"
            )
        if empty := [name for name in LISTS if not getattr(self, name)]:
            raise InputError(
                f"{empty[0]} is empty",
                expected="a list of them (--config FILE), or --trained FOLDER with --data SET",
            )


GROUPS = (
    EvaluateOptions,
    EndpointOptions,
    AgentConfig,
)  # all option groups of ``memalpha evaluate``


class Evaluation(NamedTuple):
    """All options of an evaluation, checked, with names and groups filled in."""

    options: EvaluateOptions
    endpoints: EndpointOptions
    agent: AgentConfig
    sets: tuple[SetSpec, ...]
    systems: tuple[SystemSpec, ...]
    readers: tuple[ReaderSpec, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the resolved configuration for ``config.yaml``; ``overwrite`` is always false."""
        groups = {
            key: value
            for group in (self.options, self.endpoints, self.agent)
            for key, value in asdict(group).items()
        }
        systems = [{**asdict(spec), **spec.options} for spec in self.systems]
        for row in systems:
            del row["options"]
        lists = {
            "sets": list(map(asdict, self.sets)),
            "systems": systems,
            "readers": list(map(asdict, self.readers)),
        }
        return dict(json.loads(json.dumps({**groups, **lists, "overwrite": False}, default=str)))


def parse_evaluate_options(arguments: Sequence[str]) -> Evaluation:
    """Read ``--config FILE`` and overrides; InputError for an invalid file or option, duplicate
    names, or unknown references.
    """
    options, endpoints, agent = parse(arguments, GROUPS, "memalpha evaluate")
    sets = tuple(_spec(SetSpec, row, "data") for row in options.sets)
    systems = tuple(read_system(row) for each in options.systems for row in _seeds(each))
    readers = tuple(_spec(ReaderSpec, row, "kind") for row in options.readers)
    called = {
        "sets": [s.name for s in sets],
        "systems": [s.name for s in systems],
        "readers": [r.name for r in readers],
    }
    for what, known in called.items():
        if twice := next((name for name in known if known.count(name) > 1), None):
            raise InputError(
                f"two {what} are called {twice!r}",
                expected="a name for each",
                fix="add name: to one of them",
            )
    rows: list[SetSpec | SystemSpec] = [*sets, *systems]
    wanted = [("readers", spec.name, name) for spec in rows for name in spec.readers]
    wanted += [("sets", spec.name, name) for spec in systems for name in spec.sets]
    for what, owner, name in wanted:
        if name not in called[what]:
            raise InputError(
                f"{what} of {owner!r} name {name!r}", expected=f"some of {', '.join(called[what])}"
            )
    kinds = {spec.group: spec.kind for spec in systems}
    if mixed := next((spec for spec in systems if spec.kind != kinds[spec.group]), None):
        raise InputError(
            f"group {mixed.group!r} has systems of two kinds",
            expected="systems that differ in their seed alone",
        )
    if any(reader.kind == "endpoint" for reader in readers):
        endpoints.reader_client()
    if endpoints.has_judge:
        endpoints.judge_client()
    return Evaluation(options, endpoints, agent, sets, systems, readers)


def _seeds(row: Any) -> list[Any]:
    """Return a system for each of several adapters, NAME-1, NAME-2, ... in the group NAME; any
    other row as it is.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("adapter"), list):
        return [row]
    name = row.get("name") or row.get("kind")
    return [
        {"group": name, **row, "name": f"{name}-{seed}", "adapter": each}
        for seed, each in enumerate(row["adapter"], start=1)
    ]


def read_system(row: Any) -> SystemSpec:
    """Read a system: its kind, or a mapping with the kind's own options beside the others;
    InputError if something is invalid.
    """
    given = dict(row) if isinstance(row, Mapping) else row
    options = (
        {key: given.pop(key) for key in list(given) if key not in names(SystemSpec)}
        if isinstance(given, dict)
        else {}
    )
    spec = _spec(SystemSpec, given, "kind")
    options = asdict(make_system(spec.kind, {**spec.options, **options}))
    return replace(spec, group=spec.group or spec.name, options=options)


def _spec(group: type[_Spec], row: Any, needed: str) -> _Spec:
    what = f"a {group.__name__.removesuffix('Spec').lower()}"
    given = {needed: row} if isinstance(row, str) else row
    if not isinstance(given, Mapping) or not given.get(needed):
        raise InputError(f"{what} is {row!r}", expected=f"{needed} or a mapping with {needed}")
    spec = read(group, given, f"{what} {given[needed]!r}")
    value = Path(getattr(spec, needed))
    return replace(spec, name=spec.name or value.name or value.resolve().name)


def read_config(folder: str | Path) -> dict[str, Any]:
    """Return the options of an evaluation's folder; InputError if it is none."""
    config = RunFolder(folder).config
    InputError.raise_if(
        not all(isinstance(config.get(part), list) for part in LISTS),
        f"{str(folder)!r} is not an evaluation's",
        expected="the folder that memalpha evaluate wrote",
    )
    return config
