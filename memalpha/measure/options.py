"""Options of an evaluation: one YAML file; flat values can be overridden at the command line, as in
training.

``EvaluateOptions`` has what is compared; the protocol (``reader_tokens``, ``retrieve_k``), agents
and servers use the option groups of training.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, NonNegativeInt, PositiveInt

from memalpha.agent.config import AgentConfig
from memalpha.config import OneOf, Options, make_options, names, parse
from memalpha.endpoints import EndpointOptions
from memalpha.errors import InputError
from memalpha.measure.systems import System, system_kinds
from memalpha.qa.readers import reader_names
from memalpha.record.folder import LISTS
from memalpha.types import JsonMapping, JsonObject

_Spec = TypeVar("_Spec", "SetSpec", "SystemSpec", "ReaderSpec")
Rows = Annotated[
    list[Any], BeforeValidator(lambda value: [value] if isinstance(value, Mapping) else value)
]

EVIDENCE = "evidence"  # the kind of reader that asks nothing and looks where passages are from


def _reader_kinds() -> list[str]:
    return [EVIDENCE, *reader_names()]


def make_system(kind: str, values: JsonMapping) -> System:
    """Return the system of a kind with these options; InputError if one is unknown or invalid."""
    kinds = system_kinds()
    if kind not in kinds:
        raise InputError(
            f"the kind of system {kind!r} is unknown",
            expected=f"one of {', '.join(sorted(kinds))}",
        )
    return make_options(kinds[kind], values, f"system {kind!r}")


@dataclass(frozen=True, slots=True)
class SetSpec(Options):
    """A set of instances of an evaluation.

    Attributes:
        data: The set is a prepared folder, a file of instances or a generated source.
        name: Results call the set by this name; an empty text takes the name of the folder or
            source.
        options: A generated source takes these options.
        instances: At most this many instances are read, after the first ``skip``; 0 = all.
        skip: This many instances at the beginning are left out, such as those that were used
            elsewhere.
        reader_tokens: The reader sees at most this many tokens on this set; 0 takes the common
            limit.
        retrieve_k: The retriever finds this many entries for a question of this set; 0 takes the
            common number.
        max_completion_length: The policy writes at most this many tokens for a chunk of this set; 0
            takes the common limit.
        readers: Only the readers with these names read this set; an empty list takes all.
        in_mean: If true, the set counts in the mean over sets. Set it to false for a harder copy of
            another set.
    """

    data: str
    name: str = ""
    options: JsonMapping = field(default_factory=dict)
    instances: NonNegativeInt = 0
    skip: NonNegativeInt = 0
    reader_tokens: NonNegativeInt = 0
    retrieve_k: NonNegativeInt = 0
    max_completion_length: NonNegativeInt = 0
    readers: tuple[str, ...] = ()
    in_mean: bool = True


@dataclass(frozen=True, slots=True)
class SystemSpec(Options):
    """A memory system of an evaluation.

    Attributes:
        kind: This kind of system is measured; ``system_kinds()`` lists them.
        name: Results call the system by this name; an empty text takes its kind.
        group: Systems of one group differ only in their training seed; an empty text takes the
            name.
        sets: The system is evaluated on the sets with these names alone; an empty list takes all.
        readers: Only the readers with these names read for it; an empty list takes all.
        options: The kind takes these options. In a configuration they stand beside the others.
    """

    kind: str
    name: str = ""
    group: str = ""
    sets: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()
    options: JsonMapping = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReaderSpec(Options):
    """A reader of an evaluation.

    Attributes:
        kind: The reader is ``recall`` (no model, the passages are the answer), ``base``,
            ``trained`` (with ``adapter``), ``endpoint`` or that of an installed package.
            ``evidence`` asks nothing and scores how much of a question's evidence is among the
            passages.
        name: Results call the reader by this name; an empty text takes its kind.
        max_new_tokens: An answer has at most this many tokens.
        window_tokens: The reader's model takes this many tokens, for systems with the full context;
            0 takes what the base model says.
        adapter: A reader of kind ``trained`` loads this adapter: a folder, the name of a shipped
            adapter (``memalpha fetch``) or a Hub name.
        searches: A reader that was trained to search again does so at most this many times; null
            takes the number of its training.
    """

    kind: Annotated[str, AfterValidator(OneOf(_reader_kinds))]
    name: str = ""
    max_new_tokens: PositiveInt = 32
    window_tokens: NonNegativeInt = 0
    adapter: str = ""
    searches: NonNegativeInt | None = None

    def check(self) -> None:
        """Raise InputError unless the adapter is given where it is needed."""
        if (self.kind == "trained") is not bool(self.adapter):
            raise InputError(
                f"the reader {self.kind!r} has the adapter {self.adapter!r}",
                expected="kind: trained together with the folder of a reader",
            )
        if self.searches is not None and self.kind != "trained":
            raise InputError(
                f"the reader {self.kind!r} has searches {self.searches}",
                expected="kind: trained together with the folder of a reader that searches again",
            )


@dataclass(frozen=True)
class EvaluateOptions(Options):
    """Options of an evaluation: the sets, systems and readers that are compared.

    Attributes:
        model: Agents and the reader use this base model, and its tokenizer counts tokens. Give a
            registered name (``memalpha.models.MODELS``), a folder or a Hub name.
        dtype: The weights of the base model have this type, e.g. ``float32`` or ``bfloat16``.
        sets: The systems are compared on these sets, each a path or a mapping (``SetSpec``).
        systems: These memory systems are compared, each a kind or a mapping (``SystemSpec`` and the
            kind's own options). A list as ``adapter`` makes one system for each training seed.
        readers: These readers answer the questions, each a kind or a mapping (``ReaderSpec``).
        temperature: The models that write are sampled at this temperature; 0 = greedy, for which
            one seed is enough.
        seeds: The evaluation is repeated with each of these sampling seeds.
        batch_size: This many instances are read at the same time. A run that is killed loses at
            most these, and a larger number takes more memory.
        generation_rows: At most this many rows are decoded in one batch.
        batch_tokens: The base model reads at most this many tokens of questions and passages in one
            batch.
        output_dir: The evaluation writes into this folder.
        overwrite: If true, an existing folder is replaced. Without it, a folder of the same
            configuration is continued.
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
                f"seeds is {self.seeds}",
                expected="at least one integer, and none of them twice",
            )
        for name in LISTS:
            if not getattr(self, name):
                raise InputError(
                    f"{name} is empty",
                    expected="a list in --config FILE, or --trained FOLDER with --data SET",
                )


# all option groups of ``memalpha evaluate``
EVALUATE_GROUPS = (EvaluateOptions, EndpointOptions, AgentConfig)


class Evaluation(NamedTuple):
    """All options of an evaluation, checked, with names and groups filled in."""

    options: EvaluateOptions
    endpoints: EndpointOptions
    agent: AgentConfig
    sets: tuple[SetSpec, ...]
    systems: tuple[SystemSpec, ...]
    readers: tuple[ReaderSpec, ...]

    def check(self) -> None:
        """Raise InputError for names that repeat or name nothing, mixed groups, missing servers."""
        self._check_names()
        kinds = {spec.group: spec.kind for spec in self.systems}
        for spec in self.systems:
            if spec.kind != kinds[spec.group]:
                raise InputError(
                    f"the group {spec.group!r} has systems of two kinds",
                    expected="systems that differ only in their seed",
                )
        if any(reader.kind == "endpoint" for reader in self.readers):
            self.endpoints.reader_client()
        if self.endpoints.has_judge:
            self.endpoints.judge_client()

    def _check_names(self) -> None:
        known: dict[str, list[str]] = {}
        for part in LISTS:
            called = known[part] = [spec.name for spec in getattr(self, part)]
            for name in called:
                if called.count(name) > 1:
                    raise InputError(
                        f"two {part} are called {name!r}",
                        expected="a name for each",
                        fix="give one of them another name",
                    )
        specs: list[SetSpec | SystemSpec] = [*self.sets, *self.systems]
        for spec, part in product(specs, ("sets", "readers")):
            for name in getattr(spec, part, ()):
                if name not in known[part]:
                    raise InputError(
                        f"{part} of {spec.name!r} name {name!r}",
                        expected=f"some of {', '.join(known[part])}",
                    )

    def to_json(self) -> JsonObject:
        """Return the resolved configuration for ``config.yaml``; ``overwrite`` is always false."""
        values = asdict(self.options) | asdict(self.endpoints) | asdict(self.agent)
        for name in LISTS:
            values[name] = [asdict(spec) for spec in getattr(self, name)]
        return dict(json.loads(json.dumps({**values, "overwrite": False}, default=str)))


def parse_evaluate_options(
    arguments: Sequence[str], given: Mapping[str, object] | None = None
) -> Evaluation:
    """Read the options of an evaluation from a file and a command line.

    Args:
        arguments: Words such as ``--config FILE`` and ``--name value``, which override the others.
            The file may be a name, such as ``quick``.
        given: Options by name, which override those of the file.

    Returns:
        All options of the evaluation, checked.

    Raises:
        InputError: A file or option is invalid, a name occurs twice, or a name is unknown.
    """
    options, endpoints, agent = parse(
        arguments, EVALUATE_GROUPS, "memalpha evaluate", given=given, kind="evaluate"
    )
    sets = tuple(_spec(SetSpec, row, "data") for row in options.sets)
    rows = chain.from_iterable(map(_seeds, options.systems))
    readers = tuple(_spec(ReaderSpec, row, "kind") for row in options.readers)
    systems = tuple(map(read_system, rows))
    evaluation = Evaluation(options, endpoints, agent, sets, systems, readers)
    evaluation.check()
    return evaluation


def _seeds(row: Any) -> list[Any]:
    """Return a system for each of several adapters, NAME-1, NAME-2, ... in the group NAME; any
    other row as it is.
    """
    if not isinstance(row, Mapping) or not isinstance(row.get("adapter"), list):
        return [row]
    name = row.get("name") or row.get("kind")
    if not row["adapter"]:
        raise InputError(
            f"the adapter of {name!r} is an empty list", expected="a folder, or a list of folders"
        )
    adapters = enumerate(row["adapter"], start=1)
    return [{"group": name, **row, "name": f"{name}-{n}", "adapter": each} for n, each in adapters]


def read_system(row: Any) -> SystemSpec:
    """Read a system: its kind, or a mapping with the kind's own options beside the others;
    InputError if something is invalid.
    """
    if isinstance(row, Mapping):
        own = {key: row[key] for key in row if key not in names(SystemSpec)}
        shared = {key: row[key] for key in row if key in names(SystemSpec)}
        row = {**shared, "options": {**shared.get("options", {}), **own}}
    spec = _spec(SystemSpec, row, "kind")
    options = asdict(make_system(spec.kind, spec.options))
    return replace(spec, group=spec.group or spec.name, options=options)


def _spec(group: type[_Spec], row: Any, needed: str) -> _Spec:
    what = f"a {group.__name__.removesuffix('Spec').lower()}"
    given = {needed: row} if isinstance(row, str) else row
    if not isinstance(given, Mapping) or not given.get(needed):
        raise InputError(
            f"{what} is {row!r}",
            expected=f"a value for {needed}, or a mapping with {needed}",
        )
    spec = make_options(group, given, f"{what} {given[needed]!r}")
    value = Path(getattr(spec, needed))
    return replace(spec, name=spec.name or value.name or value.resolve().name)
