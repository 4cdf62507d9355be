"""Runs an evaluation: every system on its sets, every reader on what it found, one line a result, tables at the end.

What always holds: batches are the same instances whatever was done before, so a killed evaluation goes on where it stopped and ends
with the same numbers (a batch half written down is run again, with what its policy wrote before, and only its missing lines are
added); a reader or judge that fails gives a line that says so and is tried again next time; one that answers no question of several
instances in a row is taken to be down and stops the evaluation, but for instances that failed before: those are tried again and
passed over.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.errors import ServiceError
from memalpha.evaluation.asking import Reading, ask
from memalpha.evaluation.config import Evaluation
from memalpha.evaluation.false_accept import FALSE_ACCEPT_FILE, false_accepts, plant_answers
from memalpha.evaluation.folder import EvaluationFolder, check_place, writing_to
from memalpha.evaluation.inputs import digests, names_read
from memalpha.evaluation.jobs import Job, LoadedSet, NamedReader, check_all_asked, load_sets, make_jobs
from memalpha.evaluation.joining import read_part, take_over
from memalpha.evaluation.policies import PolicyHost
from memalpha.evaluation.results import ResultKey, SystemResult
from memalpha.evaluation.systems.base import Kept
from memalpha.evaluation.tables import write_tables
from memalpha.evaluation.underway import UnderWay
from memalpha.protocols import AnswerJudge
from memalpha.qa.metrics import JUDGE
from memalpha.runs import check_apart
from memalpha.types import Instance

Report = Callable[[str, dict[str, Any]], None]
"""Called with the name of an event (``load``, ``joined``, ``writing``, ``read``, ``compared``) and its data; for the console."""

_SECONDS_BETWEEN_LINES = 10.0
_SEVERAL = 2
"""So many instances in a row without any answer are no fault of their own."""


class Outcome(NamedTuple):
    """What came of an evaluation: its folder, how many results it holds, and how many of those failed and wait for another try."""

    folder: Path
    results: int
    failed: int


class _Batch(NamedTuple):
    """Some instances of a set under one seed, and the results that are missing, by reader."""

    job: Job
    seed: int
    start: int
    instances: Sequence[Instance]
    missing: dict[str, set[str]]


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
    arguments = evaluation.arguments
    goes_on = check_place(arguments.output_dir, overwrite=arguments.overwrite)
    if arguments.overwrite:
        check_apart(Path(arguments.output_dir), names_read(evaluation, parts))
    report("load", {"what": f"{arguments.model} and {len(evaluation.sets)} sets"})
    host = PolicyHost(arguments.model, arguments.dtype, arguments.generation_rows, arguments.batch_tokens)
    sets = load_sets(evaluation, host)
    judge = _judge(evaluation)
    jobs = make_jobs(evaluation, sets, host, judge)
    if not goes_on:
        check_all_asked(evaluation, jobs)
    config, inputs = evaluation.to_json(), digests(evaluation, sets, host)
    found = [read_part(part, config, inputs) for part in parts]
    with writing_to(arguments.output_dir):
        folder = EvaluationFolder(arguments.output_dir, config, inputs, overwrite=arguments.overwrite)
        done, waiting = folder.keys()
        wanted = _wanted(jobs) - done if found else set()
        for part in found:
            taken = take_over(folder, part, wanted - done)
            done |= taken
            waiting -= taken
            report(
                "joined", {"folder": str(part.folder), "taken": len(taken), "left": len(part.results) + part.failed - len(taken)}
            )
        host.underway = folder.underway
        failed = len(waiting) if only_tables else _run_all(jobs, folder, done, waiting, arguments.batch_size, judge, report)
        host.release()
        write_tables(folder.path)
        if judge is not None and not only_tables and _try_judge(judge, sets, folder):
            write_tables(folder.path)
    outcome = Outcome(folder.path, len(done), failed)
    report("compared", {"folder": str(folder.path), "results": outcome.results, "failed": failed})
    return outcome


def _wanted(jobs: Sequence[Job]) -> set[ResultKey]:
    """Keys of all results that the jobs give."""
    return {
        _key(job, reader, seed, instance)
        for job in jobs
        for reader in job.readers
        for seed in job.seeds
        for instance in job.where.instances
    }


def _run_all(
    jobs: Sequence[Job],
    folder: EvaluationFolder,
    done: set[ResultKey],
    waiting: set[ResultKey],
    size: int,
    judge: AnswerJudge | None,
    report: Report,
) -> int:
    """Run what is not done yet, add it to ``done`` and return how many results failed; those in ``waiting`` had failed before."""
    failed = 0
    service = _Service(waiting)
    for job in jobs:
        for batch in _batches(job, size, done):
            for results, answered in _run(batch, folder.underway, judge, report):
                folder.append(results)
                done |= {result.key for result in results}
                failed += sum(result.failed is not None for result in results)
                service.check(results, answered)
            folder.underway.clear()
    folder.underway.clear()  # of a process that was killed between a batch's last lines and this
    return failed


def _judge(evaluation: Evaluation) -> AnswerJudge | None:
    from memalpha.qa.judges import EndpointAnswerJudge

    return EndpointAnswerJudge(evaluation.arguments.judge_client()) if evaluation.arguments.has_judge else None


def _try_judge(judge: AnswerJudge, sets: Sequence[LoadedSet], folder: EvaluationFolder) -> bool:
    """Plant wrong answers among the questions that the judge decides and write down how many it lets pass; return whether it did.

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
    had = folder.read_json(FALSE_ACCEPT_FILE) if folder.has(FALSE_ACCEPT_FILE) else {}
    if not names or (had and had.get("sets", names) == names and not had["failed"]):
        return False
    planted = plant_answers([instance for name in names for instance in judged[name]])
    try:
        report = false_accepts(judge, planted).to_json()
    except ServiceError as error:
        report = {"rates": {}, "failed": len(planted), "examples": [], "not_tried": str(error)}
    folder.write_json(FALSE_ACCEPT_FILE, {**report, "sets": names})
    return True


def _batches(job: Job, size: int, done: set[ResultKey]) -> Iterator[_Batch]:
    """Cut a job into batches that depend on the configuration alone; leave out those of which nothing is missing."""
    instances = job.where.instances
    for seed in job.seeds:
        for start in range(0, len(instances), size):
            batch = instances[start : start + size]
            missing = {
                reader.name: {instance.id for instance in batch if _key(job, reader, seed, instance) not in done}
                for reader in job.readers
            }
            if any(missing.values()):
                yield _Batch(job, seed, start, batch, missing)


def _key(job: Job, reader: NamedReader, seed: int, instance: Instance) -> ResultKey:
    return ResultKey(job.where.spec.name, job.spec.name, reader.name, seed, instance.id)


def _run(batch: _Batch, underway: UnderWay, judge: AnswerJudge | None, report: Report) -> Iterator[tuple[list[SystemResult], bool]]:
    """Write once, then read with each reader that has something missing; yield its missing results, and whether it answered at all.

    The whole batch is read, and an answer on an instance that is not missing shows as well that the reader's service is up.
    """
    job = batch.job
    clock = time.perf_counter()
    kept = job.system.write(batch.instances, batch.seed, _progress(batch, report))
    seconds = (time.perf_counter() - clock + underway.recalled) / len(batch.instances)
    for reader in job.readers:
        if not batch.missing[reader.name]:
            continue
        readings = ask(batch.instances, kept, reader.reader, reader.room, job.where.setting.count, judge)
        rows = zip(batch.instances, kept, readings, strict=True)
        results = [_result(batch, reader, *row, seconds) for row in rows if row[0].id in batch.missing[reader.name]]
        _tell(batch, reader, results, report)
        yield results, any(reading.answered for reading in readings)


def _result(batch: _Batch, reader: NamedReader, instance: Instance, kept: Kept, reading: Reading, seconds: float) -> SystemResult:
    key = _key(batch.job, reader, batch.seed, instance)
    count = batch.job.where.setting.count
    return SystemResult(
        **key._asdict(),
        chunks=len(instance.chunks),
        input_tokens=sum(count(chunk.text) for chunk in instance.chunks),
        memory_tokens=kept.memory_tokens,
        reader_tokens=reading.reader_tokens,
        write_calls=kept.write_calls,
        cut_off=kept.cut_off,
        cut=kept.cut + reading.cut,
        seconds_write=round(seconds, 3),
        seconds_read=round(reading.seconds, 3),
        operations=kept.operations,
        entries=kept.entries,
        questions=reading.questions,
        failed=reading.failed,
    )


@dataclass(slots=True)
class _Service:
    """Tells a service that is down from instances that fail for a reason of their own.

    Attributes:
        before: Results that had failed when this run began: that they fail again says nothing.
        silent: By reader, instances in a row of whose questions none was answered.
    """

    before: set[ResultKey]
    silent: dict[str, set[tuple[str, str]]] = field(default_factory=dict)

    def check(self, results: Sequence[SystemResult], answered: bool) -> None:
        """Stop where a reader or judge gave nothing for several instances in a row: it is down, and the rest would fail as well."""
        reader = results[0].reader
        silent = self.silent.setdefault(reader, set())
        if answered:
            silent.clear()
            return
        silent |= {(result.set, result.instance) for result in results if result.key not in self.before}
        if len(silent) >= _SEVERAL:
            raise ServiceError(
                f"reader {reader!r}, or its judge, failed for all {len(silent)} instances that were asked last, of "
                f"{results[0].set!r}: {results[0].failed}\n  to go on: the same command again, once the service is back"
            )


def _progress(batch: _Batch, report: Report) -> Callable[[int, int], None]:
    """Report a batch's chunks, at most one line every ten seconds."""
    said = [time.monotonic()]

    def on_step(done: int, total: int) -> None:
        if time.monotonic() - said[0] > _SECONDS_BETWEEN_LINES:
            said[0] = time.monotonic()
            report("writing", {**_where(batch), "done": done, "chunks": total})

    return on_step


def _tell(batch: _Batch, reader: NamedReader, results: Sequence[SystemResult], report: Report) -> None:
    """Report the mean over a batch's instances that have a score: what the table calls accuracy."""
    scores = [result.accuracy for result in results if result.failed is None and not math.isnan(result.accuracy)]
    accuracy = sum(scores) / len(scores) if scores else None
    report("read", {**_where(batch), "reader": reader.name, "accuracy": accuracy, "scored": len(scores)})


def _where(batch: _Batch) -> dict[str, Any]:
    return {
        "system": batch.job.spec.name,
        "set": batch.job.where.spec.name,
        "seed": batch.seed,
        "first": batch.start + 1,
        "last": batch.start + len(batch.instances),
        "instances": len(batch.job.where.instances),
    }


__all__ = ["Outcome", "Report", "evaluate"]
