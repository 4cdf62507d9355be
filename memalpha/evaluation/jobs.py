"""Builds the jobs of an evaluation (each system on each of its sets) and checks them before any work starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.errors import InputError
from memalpha.evaluation.host import PolicyHost
from memalpha.evaluation.options import Evaluation, ReaderSpec, SetSpec, SystemSpec, asked_for
from memalpha.evaluation.results import ResultKey
from memalpha.evaluation.systems import KINDS, system_options
from memalpha.evaluation.systems.base import Room, Setting, System
from memalpha.protocols import AnswerJudge
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.readers import EndpointReader, ModelReader, RecallReader, reader_messages
from memalpha.text import chat_ids
from memalpha.types import Instance, Sampling

_LINE_BREAKS = 16  # tokens kept free in a window for what joins the passages


class LoadedSet(NamedTuple):
    """A set and its protocol."""

    spec: SetSpec
    instances: tuple[Instance, ...]
    setting: Setting


BudgetedReader = RecallReader | ModelReader | EndpointReader


@dataclass(frozen=True, slots=True)
class Job:
    """One system on one set; ``readers`` by name, ``seeds`` has one seed if the system does not sample."""

    spec: SystemSpec
    system: System
    loaded: LoadedSet
    readers: Mapping[str, tuple[BudgetedReader, Room]]
    seeds: tuple[int, ...]

    def keys(self, reader: str, seed: int, instances: Sequence[Instance] | None = None) -> list[ResultKey]:
        """Keys of the results on some instances (None = all)."""
        asked = self.loaded.instances if instances is None else instances
        return [ResultKey(self.loaded.spec.name, self.spec.name, reader, seed, instance.id) for instance in asked]


def load_sets(evaluation: Evaluation, host: PolicyHost) -> list[LoadedSet]:
    """Load the sets; InputError if a set does not exist or has too few instances."""
    options, steps, found = evaluation.options, dict[int, AgentStep](), list[LoadedSet]()
    for spec in evaluation.sets:
        instances = load_data(spec.data, spec.options)
        if len(instances) < spec.skip + max(1, spec.instances):
            raise InputError(
                f"set {spec.name!r} has {len(instances)} instances",
                expected=f"at least {spec.skip + max(1, spec.instances)}",
                fix="lower instances or skip",
            )
        length = spec.max_completion_length or options.max_completion_length
        step = steps.get(length) or steps.setdefault(length, AgentStep(evaluation.agent_config(length), host.tokenizer))
        tokens, k = spec.reader_tokens or options.reader_tokens, spec.retrieve_k or options.retrieve_k
        setting = Setting(step, host, tokens, k, options.temperature)
        found.append(LoadedSet(spec, tuple(asked_for(instances, spec.skip, spec.instances)), setting))
    return found


def make_jobs(evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost, judge: AnswerJudge | None) -> list[Job]:
    """Build the jobs, ordered by system so that each adapter is loaded once; InputError if a job cannot be read or scored."""
    jobs = [job for spec in evaluation.systems for job in _jobs_of(spec, evaluation, sets, host)]
    for loaded in sets:
        here = [job for job in jobs if job.loaded is loaded]
        budgeted = {name for job in here for name, (_, room) in job.readers.items() if not room.window}
        for spec in evaluation.readers:
            tokens = loaded.setting.reader_tokens
            if spec.name in budgeted and (left := window_left(spec, host, loaded.instances)) is not None and left < tokens:
                raise InputError(
                    f"reader {spec.name!r} on set {loaded.spec.name!r} has room for {left} tokens beside question and answer, and "
                    f"reader_tokens is {tokens}",
                    expected=f"at most {left}" if left > 0 else "a larger window",
                    fix="lower reader_tokens, for all sets or for this one, or take a reader of a larger window",
                )
        if here:
            reader, _ = next(iter(here[0].readers.values()))
            QAEvaluator(reader, 1, judge).check([question for instance in loaded.instances for question in instance.questions])
    return jobs


def _jobs_of(spec: SystemSpec, evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost) -> Iterator[Job]:
    options = system_options(spec.kind, spec.options)
    seeds = tuple(evaluation.options.seeds)
    for loaded in (loaded for loaded in sets if loaded.spec.name in (spec.sets or (loaded.spec.name,))):
        system = KINDS[spec.kind].make(loaded.setting, options)
        system.check(loaded.instances)
        readers = {
            reader.name: make_reader(reader, evaluation, loaded, system.reads_window, host)
            for reader in evaluation.readers
            if reader.name in (spec.readers or (reader.name,)) and reader.name in (loaded.spec.readers or (reader.name,))
        }
        if not readers:
            raise InputError(
                f"nobody reads for system {spec.name!r} on set {loaded.spec.name!r}",
                expected="a reader that both name, or none named",
                fix="change readers of the one or the other, or name the system's sets",
            )
        yield Job(spec, system, loaded, readers, seeds if options.draws(evaluation.options.temperature) else seeds[:1])


def make_reader(
    spec: ReaderSpec, evaluation: Evaluation, loaded: LoadedSet, reads_window: bool, host: PolicyHost
) -> tuple[BudgetedReader, Room]:
    """Return a reader and its ``Room``: the common budget, or the model's window if the system reads that."""
    room, count = Room(loaded.setting.reader_tokens), loaded.setting.count
    if reads_window and spec.kind != "recall":
        left = window_left(spec, host, loaded.instances)
        if left is None or left < 1:
            raise InputError(
                f"reader {spec.name!r} has window_tokens {spec.window_tokens or host.positions} (0 = not known), which leaves "
                "full context no room beside question and answer",
                expected="a larger window_tokens of the reader",
                fix=f"{{name: {spec.name}, kind: {spec.kind}, window_tokens: 32768}}, or budget: reader for the system",
            )
        room = Room(left, window=True)
    if spec.kind == "recall":
        return RecallReader(room.tokens, count), room
    if spec.kind == "endpoint":
        return EndpointReader(evaluation.endpoints.reader_client(), room.tokens, count, Sampling(spec.max_new_tokens)), room
    return ModelReader(partial(host.answer, max_new_tokens=spec.max_new_tokens), room.tokens, count), room


def window_left(spec: ReaderSpec, host: PolicyHost, instances: Sequence[Instance]) -> int | None:
    """Tokens left in a reader's window after the longest question and answer; None if the window is unknown."""
    window = 0 if spec.kind == "recall" else spec.window_tokens or (host.positions if spec.kind == "base" else 0)
    if not window:
        return None
    asked = {question.text for instance in instances for question in instance.questions} or {""}
    longest = max(len(chat_ids(host.tokenizer, reader_messages(text, ()))) for text in asked)
    return window - longest - spec.max_new_tokens - _LINE_BREAKS


def check_all_used(evaluation: Evaluation, jobs: Sequence[Job]) -> None:
    """InputError if a set or reader of a new evaluation is not used, or a group mixes kinds."""
    used = {"set": {job.loaded.spec.name for job in jobs}, "reader": {name for job in jobs for name in job.readers}}
    for what, specs in (("set", evaluation.sets), ("reader", evaluation.readers)):
        if idle := next((spec.name for spec in specs if spec.name not in used[what]), None):
            raise InputError(
                f"{what} {idle!r} is not used: systems and sets name others",
                expected="a system, a set and a reader for each",
                fix=f"name it in {what}s of a system or set, or leave it out",
            )
    kinds: dict[str, str] = {}
    for system in evaluation.systems:
        if (kind := kinds.setdefault(system.group, system.kind)) != system.kind:
            raise InputError(
                f"group {system.group!r} has systems of the kinds {kind!r} and {system.kind!r}",
                expected="systems that differ in their training seed alone",
                fix="give one of them another group",
            )
