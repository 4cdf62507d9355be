"""What an evaluation has to do, put together and checked before anything is done: each system on each of its sets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from memalpha.agent.config import AgentConfig
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.evaluation.config import Evaluation
from memalpha.evaluation.policies import PolicyHost
from memalpha.evaluation.readers import BudgetedReader, check_budget, make_reader, room_of
from memalpha.evaluation.specs import ReaderSpec, SetSpec, SystemSpec, asked_for
from memalpha.evaluation.systems.base import Room, Setting, System
from memalpha.evaluation.systems.registry import make_system, system_options
from memalpha.protocols import AnswerJudge
from memalpha.qa.evaluator import QAEvaluator
from memalpha.types import Instance


@dataclass(frozen=True, slots=True)
class LoadedSet:
    """A set and its protocol."""

    spec: SetSpec
    instances: tuple[Instance, ...]
    setting: Setting


@dataclass(frozen=True, slots=True)
class NamedReader:
    """A reader as one system on one set has it."""

    name: str
    reader: BudgetedReader
    room: Room


@dataclass(frozen=True, slots=True)
class Job:
    """One system on one set.

    Attributes:
        spec: The system's part of the configuration.
        system: The system.
        where: The set.
        readers: Who reads what it finds.
        seeds: Sampling seeds; one where it draws nothing.
    """

    spec: SystemSpec
    system: System
    where: LoadedSet
    readers: tuple[NamedReader, ...]
    seeds: tuple[int, ...]


def load_sets(evaluation: Evaluation, host: PolicyHost) -> list[LoadedSet]:
    """Load the sets.

    Raises:
        InputError: If there is no such set, or it has no instances.
    """
    steps: dict[AgentConfig, AgentStep] = {}
    return [_load_set(spec, evaluation, host, steps) for spec in evaluation.sets]


def _load_set(spec: SetSpec, evaluation: Evaluation, host: PolicyHost, steps: dict[AgentConfig, AgentStep]) -> LoadedSet:
    arguments = evaluation.arguments
    instances = load_data(spec.data, spec.options)
    if len(instances) < spec.skip + max(1, spec.instances):
        raise InputError(
            f"set {spec.name!r} has {len(instances)} instances",
            expected=f"at least {spec.skip + max(1, spec.instances)}",
            fix="lower instances or skip",
        )
    config = evaluation.agent.config(spec.max_completion_length or arguments.max_completion_length)
    step = steps.setdefault(config, steps.get(config) or AgentStep(config, host.tokenizer))
    setting = Setting(
        step=step,
        host=host,
        reader_tokens=spec.reader_tokens or arguments.reader_tokens,
        retrieve_k=spec.retrieve_k or arguments.retrieve_k,
        temperature=arguments.temperature,
    )
    return LoadedSet(spec, tuple(asked_for(instances, spec.skip, spec.instances)), setting)


def make_jobs(evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost, judge: AnswerJudge | None) -> list[Job]:
    """Put the jobs together, system by system, so that each adapter is loaded once.

    Raises:
        InputError: If a system cannot work on a set, nobody reads for it, a reader's window has no room for the common budget, or a
            question cannot be scored.
    """
    jobs = [job for spec in evaluation.systems for job in _jobs_of(spec, evaluation, sets, host)]
    for where in sets:
        budgeted = {reader.name for job in jobs if job.where is where for reader in job.readers if not reader.room.window}
        for spec in (spec for spec in evaluation.readers if spec.name in budgeted):
            check_budget(spec, where.setting.reader_tokens, host, where.instances, where.spec.name)
        questions = [question for instance in where.instances for question in instance.questions]
        for reader in (reader for job in jobs if job.where is where for reader in job.readers[:1]):
            QAEvaluator(reader.reader, 1, judge).check(questions)
            break
    return jobs


def check_all_asked(evaluation: Evaluation, jobs: Sequence[Job]) -> None:
    """See that every set and reader of an evaluation is used, and that each group is of one kind; for one that is new.

    Raises:
        InputError: If a set has no system or a reader nothing to read: the tables would be without it. If a group has systems of
            several kinds: their mean would be shown as that of one.
    """
    for where in evaluation.sets:
        if not any(job.where.spec.name == where.name for job in jobs):
            raise InputError(
                f"no system is evaluated on set {where.name!r}",
                expected="at least one",
                fix="name it in sets of a system, or leave it out",
            )
    for named in evaluation.readers:
        if not any(reader.name == named.name for job in jobs for reader in job.readers):
            raise InputError(
                f"reader {named.name!r} reads nothing: each set or system names others",
                expected="a set and a system for it",
                fix="name it in readers of a set or system, or leave it out",
            )
    kinds: dict[str, str] = {}
    for system in evaluation.systems:
        if (kind := kinds.setdefault(system.group, system.kind)) != system.kind:
            raise InputError(
                f"group {system.group!r} has systems of the kinds {kind!r} and {system.kind!r}",
                expected="systems that differ in their training seed alone",
                fix="give one of them another group",
            )


def _jobs_of(spec: SystemSpec, evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost) -> Iterator[Job]:
    options = system_options(spec.kind, spec.options)
    seeds = tuple(evaluation.arguments.seeds)
    for where in sets:
        if spec.sets and where.spec.name not in spec.sets:
            continue
        system = make_system(spec.kind, where.setting, options)
        system.check(where.instances)
        readers = tuple(
            _reader(reader, evaluation, where, system, host)
            for reader in evaluation.readers
            if reader.name in (spec.readers or (reader.name,)) and reader.name in (where.spec.readers or (reader.name,))
        )
        if not readers:
            raise InputError(
                f"nobody reads for system {spec.name!r} on set {where.spec.name!r}",
                expected="a reader that both name, or none named",
                fix="change readers of the one or the other, or name the system's sets",
            )
        yield Job(spec, system, where, readers, seeds if system.draws else seeds[:1])


def _reader(spec: ReaderSpec, evaluation: Evaluation, where: LoadedSet, system: System, host: PolicyHost) -> NamedReader:
    setting = where.setting
    room = room_of(spec, setting.reader_tokens, system.reads_window, host, where.instances)
    return NamedReader(spec.name, make_reader(spec, room.tokens, evaluation.arguments, host, setting.count), room)


__all__ = ["Job", "LoadedSet", "NamedReader", "check_all_asked", "load_sets", "make_jobs"]
