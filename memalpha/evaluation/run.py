"""Runs an evaluation: every system on its sets, every reader on what it found, one line a result, tables at the end.

Batches hold the same instances whatever was done before, so a killed evaluation goes on where it stopped and ends with the same
numbers: a batch half written down is run again, with what its policy wrote before, and only its missing lines are added. A reader
or judge that fails gives a line that says so, which is tried again next time. One that answers no question of several instances in
a row is taken to be down and stops the evaluation, but for instances that failed before: those are tried again and passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.data.schema import digest_instances
from memalpha.errors import InputError, ServiceError
from memalpha.evaluation.folder import (
    EvaluationFolder,
    check_place,
    digest_adapter,
    digest_agent,
    digest_model,
    read_part,
    writing_to,
)
from memalpha.evaluation.host import PolicyHost, RecordedCalls
from memalpha.evaluation.judging import FALSE_ACCEPT_FILE, false_accepts, plant_answers
from memalpha.evaluation.options import Evaluation, ReaderSpec, SetSpec, SystemSpec, asked_for
from memalpha.evaluation.results import QuestionResult, ResultKey, SystemResult
from memalpha.evaluation.systems import KINDS, system_options
from memalpha.evaluation.systems.base import Kept, Room, Setting, System
from memalpha.evaluation.tables import write_tables
from memalpha.models.registry import resolve_model
from memalpha.protocols import AnswerJudge, ReadRequest
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.metrics import JUDGE
from memalpha.qa.readers import EndpointReader, ModelReader, RecallReader, reader_messages
from memalpha.runs import check_apart
from memalpha.text import chat_ids
from memalpha.types import Instance, QuestionRecord, Sampling

Report = Callable[[str, dict[str, Any]], None]
"""Called with the name of an event (``load``, ``joined``, ``writing``, ``read``, ``compared``) and its data; for the console."""

_SECONDS_BETWEEN_LINES = 10.0
_SEVERAL = 2  # so many instances in a row without any answer are no fault of their own
_LINE_BREAKS = 16  # tokens kept free in a window for what joins the passages


class Outcome(NamedTuple):
    """What came of an evaluation: its folder, how many results it holds, and how many of those failed and wait for another try."""

    folder: Path
    results: int
    failed: int


def evaluate(
    evaluation: Evaluation,
    report: Report = lambda event, data: None,
    parts: Sequence[str | Path] = (),
    only_tables: bool = False,
) -> Outcome:
    """Run an evaluation, or go on with it.

    Args:
        evaluation: All options.
        report: Progress.
        parts: Folders of evaluations of some of this, run side by side: what they have found is taken over first.
        only_tables: Evaluate nothing; write the tables of what is there.

    Raises:
        InputError: If an option, set, model or adapter does not fit, or lies in the folder to be overwritten; before anything is
            evaluated.
        RunFolderError: If the folder is something else, or it or a part began with other options or inputs.
        ServiceError: If a reader or judge is down: it answered nothing on several instances in a row that had not failed before.
        MemAlphaError: If the folder cannot be written, or memory ran out.
    """
    options = evaluation.options
    goes_on = check_place(options.output_dir, overwrite=options.overwrite)
    if options.overwrite:
        check_apart(Path(options.output_dir), _paths_read(evaluation, parts))
    report("load", {"what": f"{options.model} and {len(evaluation.sets)} sets"})
    host = PolicyHost(options.model, options.dtype, options.generation_rows, options.batch_tokens)
    sets = load_sets(evaluation, host)
    judge = EndpointAnswerJudge(evaluation.endpoints.judge_client()) if evaluation.endpoints.has_judge_endpoint else None
    jobs = make_jobs(evaluation, sets, host, judge)
    if not goes_on:
        check_all_asked(evaluation, jobs)
    config, inputs = evaluation.to_json(), _digests(evaluation, sets, host)
    found = [read_part(part, config, inputs) for part in parts]
    with writing_to(options.output_dir):
        folder = EvaluationFolder(options.output_dir, config, inputs, overwrite=options.overwrite)
        done, waiting = folder.keys()
        wanted = {key for job in jobs for seed in job.seeds for name in job.readers for key in job.keys(name, seed)} - done
        for part in found:
            taken = folder.take_over(part, wanted - done)
            done |= taken
            waiting -= taken
            left = len(part.results) + part.failed - len(taken)
            report("joined", {"folder": str(part.folder), "taken": len(taken), "left": left})
        host.calls = RecordedCalls(folder.path / "underway.jsonl")
        failed = (
            len(waiting) if only_tables else _run_all(jobs, folder, host.calls, done, waiting, options.batch_size, judge, report)
        )
        host.release()
        if judge is not None and not only_tables:
            _try_judge(judge, sets, folder)
        write_tables(folder.path)
    report("compared", {"folder": str(folder.path), "results": len(done), "failed": failed})
    return Outcome(folder.path, len(done), failed)


def _paths_read(evaluation: Evaluation, parts: Sequence[str | Path]) -> dict[str, list[str]]:
    """What an evaluation reads that may be a path, by what it is."""
    return {
        "the model": [evaluation.options.model],
        "the router": [evaluation.agent.router],
        "the adapter": [str(system.options.get("adapter", "")) for system in evaluation.systems],
        "the set": [where.data for where in evaluation.sets],
        "the part": [str(part) for part in parts],
    }


def _digests(evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost) -> dict[str, dict[str, Any]]:
    """Digests of what the evaluation is made of; of a model that transformers fetched from the Hub its commit, if it is known."""
    adapters = sorted({str(adapter) for spec in evaluation.systems if (adapter := spec.options.get("adapter"))})
    own = sorted({str(spec.options["adapter"]) for spec in evaluation.systems if spec.options.get("settings") == "own"})
    model = resolve_model(host.model)
    known = digest_model(model) if isinstance(model, Path) else getattr(host.config, "_commit_hash", None)
    return {
        "models": {host.model: known} if known else {},
        "agents": {adapter: digest_agent(adapter) for adapter in own},
        "sets": {where.spec.name: digest_instances(where.instances) for where in sets},
        "adapters": {adapter: digest_adapter(adapter) for adapter in adapters},
    }


# ------------------------------------------------------------------------------------------------ what there is to do
class LoadedSet(NamedTuple):
    """A set and its protocol."""

    spec: SetSpec
    instances: tuple[Instance, ...]
    setting: Setting


BudgetedReader = RecallReader | ModelReader | EndpointReader


@dataclass(frozen=True, slots=True)
class Job:
    """One system on one set.

    Attributes:
        spec: The system's part of the configuration.
        system: The system.
        where: The set.
        readers: Who reads what it finds, and what of it, by name.
        seeds: Sampling seeds; one where it draws nothing.
    """

    spec: SystemSpec
    system: System
    where: LoadedSet
    readers: Mapping[str, tuple[BudgetedReader, Room]]
    seeds: tuple[int, ...]

    def keys(self, reader: str, seed: int, instances: Sequence[Instance] | None = None) -> list[ResultKey]:
        """The keys of the results on some instances, or on all."""
        found = self.where.instances if instances is None else instances
        return [ResultKey(self.where.spec.name, self.spec.name, reader, seed, instance.id) for instance in found]


def load_sets(evaluation: Evaluation, host: PolicyHost) -> list[LoadedSet]:
    """Load the sets; InputError if there is no such set, or it has too few instances."""
    options, steps, loaded = evaluation.options, dict[int, AgentStep](), []
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
        loaded.append(LoadedSet(spec, tuple(asked_for(instances, spec.skip, spec.instances)), setting))
    return loaded


def make_jobs(evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost, judge: AnswerJudge | None) -> list[Job]:
    """Put the jobs together, system by system, so that each adapter is loaded once.

    Raises:
        InputError: If a system cannot work on a set, nobody reads for it, a reader's window has no room for the common budget, or a
            question cannot be scored.
    """
    jobs = [job for spec in evaluation.systems for job in _jobs_of(spec, evaluation, sets, host)]
    for where in sets:
        here = [job for job in jobs if job.where is where]
        budgeted = {name for job in here for name, (_, room) in job.readers.items() if not room.window}
        for spec in evaluation.readers:
            tokens = where.setting.reader_tokens
            if spec.name in budgeted and (left := window_left(spec, host, where.instances)) is not None and left < tokens:
                raise InputError(
                    f"reader {spec.name!r} on set {where.spec.name!r} has room for {left} tokens beside question and answer, and "
                    f"reader_tokens is {tokens}",
                    expected=f"at most {left}" if left > 0 else "a larger window",
                    fix="lower reader_tokens, for all sets or for this one, or take a reader of a larger window",
                )
        if here:
            reader, _ = next(iter(here[0].readers.values()))
            QAEvaluator(reader, 1, judge).check([question for instance in where.instances for question in instance.questions])
    return jobs


def _jobs_of(spec: SystemSpec, evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost) -> Iterator[Job]:
    options = system_options(spec.kind, spec.options)
    seeds = tuple(evaluation.options.seeds)
    for where in (where for where in sets if where.spec.name in (spec.sets or (where.spec.name,))):
        system = KINDS[spec.kind].make(where.setting, options)
        system.check(where.instances)
        readers = {
            reader.name: make_reader(reader, evaluation, where, system.reads_window, host)
            for reader in evaluation.readers
            if reader.name in (spec.readers or (reader.name,)) and reader.name in (where.spec.readers or (reader.name,))
        }
        if not readers:
            raise InputError(
                f"nobody reads for system {spec.name!r} on set {where.spec.name!r}",
                expected="a reader that both name, or none named",
                fix="change readers of the one or the other, or name the system's sets",
            )
        yield Job(spec, system, where, readers, seeds if options.draws(evaluation.options.temperature) else seeds[:1])


def make_reader(
    spec: ReaderSpec, evaluation: Evaluation, where: LoadedSet, reads_window: bool, host: PolicyHost
) -> tuple[BudgetedReader, Room]:
    """Return a reader and what it takes of a system: the common budget, or its model's window where the system reads that.

    Raises:
        InputError: If the window is asked for and not known, or has no room for passages.
    """
    room, count = Room(where.setting.reader_tokens), where.setting.count
    if reads_window and spec.kind != "recall":
        left = window_left(spec, host, where.instances)
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
    """Tokens of a reader's window that are left beside the longest question and answer; None where there is no known window."""
    window = 0 if spec.kind == "recall" else spec.window_tokens or (host.positions if spec.kind == "base" else 0)
    if not window:
        return None
    asked = {question.text for instance in instances for question in instance.questions} or {""}
    longest = max(len(chat_ids(host.tokenizer, reader_messages(text, ()))) for text in asked)
    return window - longest - spec.max_new_tokens - _LINE_BREAKS


def check_all_asked(evaluation: Evaluation, jobs: Sequence[Job]) -> None:
    """See that every set and reader of a new evaluation is used, and that each group is of one kind; else InputError.

    The tables would be without the set or reader, or show the mean of several kinds as that of one.
    """
    used = {"set": {job.where.spec.name for job in jobs}, "reader": {name for job in jobs for name in job.readers}}
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


# ------------------------------------------------------------------------------------------------ doing it
def _run_all(
    jobs: Sequence[Job],
    folder: EvaluationFolder,
    calls: RecordedCalls,
    done: set[ResultKey],
    waiting: set[ResultKey],
    size: int,
    judge: AnswerJudge | None,
    report: Report,
) -> int:
    """Run what is not done yet, add it to ``done`` and return how many results failed; those in ``waiting`` had failed before.

    Batches depend on the configuration alone. The whole batch is written and read again if a line of it is missing.
    """
    failed = 0
    silent: dict[str, set[tuple[str, str]]] = {}  # by reader, instances in a row of whose questions none was answered
    batches = [(job, seed, start) for job in jobs for seed in job.seeds for start in range(0, len(job.where.instances), size)]
    for job, seed, start in batches:
        batch = job.where.instances[start : start + size]
        missing = {name: keys for name in job.readers if (keys := set(job.keys(name, seed, batch)) - done)}
        if not missing:
            continue
        told = {"system": job.spec.name, "set": job.where.spec.name, "seed": seed, "first": start + 1}
        told |= {"last": start + len(batch), "instances": len(job.where.instances)}
        clock = time.perf_counter()
        kept = job.system.write(batch, seed, _progress(told, report))
        seconds = (time.perf_counter() - clock + calls.seconds) / len(batch)
        for name in missing:
            everything = ask(job, name, seed, batch, kept, seconds, judge)
            results = [result for result in everything if result.key in missing[name]]
            scores = [result.accuracy for result in results if result.scored]
            mean = sum(scores) / len(scores) if scores else None
            report("read", {**told, "reader": name, "accuracy": mean, "scored": len(scores)})
            folder.append(results)
            done |= missing[name]
            failed += sum(result.failed is not None for result in results)
            quiet = silent.setdefault(name, set())
            if any(not r.questions or any(question.error is None for question in r.questions) for r in everything):
                quiet.clear()
            else:
                quiet |= {(result.set, result.instance) for result in results if result.key not in waiting}
            if len(quiet) >= _SEVERAL:
                raise ServiceError(
                    f"reader {name!r}, or its judge, failed for all {len(quiet)} instances that were asked last, of "
                    f"{results[0].set!r}: {results[0].failed}\n  to go on: the same command again, once the service is back"
                )
        calls.clear()
    calls.clear()  # of a process that was killed between a batch's last lines and this
    return failed


def ask(
    job: Job, name: str, seed: int, batch: Sequence[Instance], kept: Sequence[Kept], seconds_write: float, judge: AnswerJudge | None
) -> list[SystemResult]:
    """One result an instance, in order; all questions go to the reader as one batch."""
    reader, room = job.readers[name]
    clock = time.perf_counter()
    requests = [
        ReadRequest(question, passages)
        for instance, memory in zip(batch, kept, strict=True)
        for question, passages in zip(instance.questions, memory.find(instance.questions, room), strict=True)
    ]
    records = QAEvaluator(reader, 1, judge).ask(requests)
    seconds = (time.perf_counter() - clock) / max(1, len(requests))
    rows = iter(zip(requests, records, strict=True))
    return [
        _result(key, instance, memory, [next(rows) for _ in instance.questions], job, name, seconds_write, seconds)
        for key, instance, memory in zip(job.keys(name, seed, batch), batch, kept, strict=True)
    ]


def _result(
    key: ResultKey,
    instance: Instance,
    kept: Kept,
    rows: Sequence[tuple[ReadRequest, QuestionRecord]],
    job: Job,
    name: str,
    seconds_write: float,
    seconds_question: float,
) -> SystemResult:
    (reader, room), count = job.readers[name], job.where.setting.count
    read = [reader.passages(request) for request, _ in rows]
    seen = sum(count(passage) for passages in read for passage in passages)
    offered = sum(count(passage) for request, _ in rows for passage in request.passages)
    questions = tuple(
        QuestionResult(
            id=record.question.id or str(index),
            kind=record.question.kind,
            text=record.question.text,
            score=record.score,
            answer=record.answer.text if record.answer else None,
            passages=passages,
            error=record.error,
        )
        for index, ((_, record), passages) in enumerate(zip(rows, read, strict=True))
    )
    n = max(1, len(rows))
    return SystemResult(
        **key._asdict(),
        chunks=len(instance.chunks),
        input_tokens=sum(count(chunk.text) for chunk in instance.chunks),
        memory_tokens=kept.memory_tokens,
        reader_tokens=seen / n,
        write_calls=kept.write_calls,
        cut_off=kept.cut_off,
        cut=kept.cut + kept.left_out(room) + round((offered - seen) / n),
        seconds_write=round(seconds_write, 3),
        seconds_read=round(seconds_question * len(rows), 3),
        operations=kept.operations,
        entries=kept.entries,
        questions=questions,
        failed=next((question.error for question in questions if question.error is not None), None),
    )


def _progress(told: Mapping[str, Any], report: Report) -> Callable[[int, int], None]:
    """Report a batch's chunks, at most one line every ten seconds."""
    last = time.monotonic()

    def on_step(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            report("writing", {**told, "done": done, "chunks": total})

    return on_step


def _try_judge(judge: AnswerJudge, sets: Sequence[LoadedSet], folder: EvaluationFolder) -> None:
    """Plant wrong answers among the questions that the judge decides and write down how many it lets pass.

    Once, and again where sets have been added or an answer got no verdict. A judge that gives no verdict at all is not tried, which
    the report says; the evaluation stands.
    """
    judged = {
        where.spec.name: [
            replace(instance, questions=questions)
            for instance in where.instances
            if (questions := tuple(question for question in instance.questions if question.metric == JUDGE))
        ]
        for where in sets
    }
    names = sorted(name for name, instances in judged.items() if instances)
    had = folder.run.read_optional(FALSE_ACCEPT_FILE)
    if not names or (had and had.get("sets", names) == names and not had["failed"]):
        return
    planted = plant_answers([instance for name in names for instance in judged[name]])
    try:
        report = false_accepts(judge, planted)
    except ServiceError as error:
        report = {"rates": {}, "failed": len(planted), "examples": [], "not_tried": str(error)}
    folder.run.write_json(FALSE_ACCEPT_FILE, {**report, "sets": names})
