"""Runs an evaluation: every system on its sets, every reader, one line for each result, tables at the end.

Batches depend on the configuration only, so a killed evaluation continues and gives the same numbers: an incomplete batch is run
again with its recorded completions, and only missing lines are added. A failed reader or judge gives a failed line, which is
retried next time. If one answers nothing on several instances in a row, the evaluation stops; instances that failed before do not
count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.data.schema import digest_instances
from memalpha.errors import ServiceError
from memalpha.evaluation.folder import (
    EvaluationFolder,
    check_place,
    digest_adapter,
    digest_agent,
    digest_model,
    explain_write_errors,
    read_part,
)
from memalpha.evaluation.host import PolicyHost, RecordedCalls
from memalpha.evaluation.jobs import Job, LoadedSet, check_all_used, load_sets, make_jobs
from memalpha.evaluation.judging import FALSE_ACCEPT_FILE, false_accepts, plant_answers
from memalpha.evaluation.options import Evaluation
from memalpha.evaluation.results import QuestionResult, ResultKey, SystemResult
from memalpha.evaluation.systems.base import Kept
from memalpha.evaluation.tables import write_tables
from memalpha.models.registry import resolve_model
from memalpha.protocols import AnswerJudge, ReadRequest
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.metrics import JUDGE
from memalpha.runs import check_apart
from memalpha.types import Instance

Report = Callable[[str, dict[str, Any]], None]
"""Receives events (``load``, ``joined``, ``writing``, ``read``, ``compared``) with data, for the console."""

_SECONDS_BETWEEN_LINES = 10.0
_SEVERAL = 2  # so many instances in a row without any answer are no fault of their own


class Outcome(NamedTuple):
    """Result of an evaluation: its folder, the number of results, and how many of them failed and wait for a retry."""

    folder: Path
    results: int
    failed: int


def evaluate(
    evaluation: Evaluation,
    report: Report = lambda event, data: None,
    parts: Sequence[str | Path] = (),
    only_tables: bool = False,
) -> Outcome:
    """Run or continue an evaluation; copies the results of ``parts`` (folders) first; ``only_tables`` evaluates nothing.

    InputError for invalid inputs (before the evaluation starts), RunFolderError for a folder or part with other options or inputs,
    ServiceError if a reader or judge is down, MemAlphaError if the folder cannot be written or memory runs out.
    """
    options = evaluation.options
    goes_on = check_place(options.output_dir, overwrite=options.overwrite)
    if options.overwrite:
        check_apart(Path(options.output_dir), _paths_read(evaluation, parts))
    report("load", {"what": f"{options.model} and {len(evaluation.sets)} sets"})
    host = PolicyHost(options.model, options.dtype, options.generation_rows, options.batch_tokens)
    sets = load_sets(evaluation, host)
    judge = EndpointAnswerJudge(evaluation.endpoints.judge_client()) if evaluation.endpoints.has_judge else None
    jobs = make_jobs(evaluation, sets, host, judge)
    if not goes_on:
        check_all_used(evaluation, jobs)
    config, inputs = evaluation.to_json(), _digests(evaluation, sets, host)
    found = [read_part(part, config, inputs) for part in parts]
    with explain_write_errors(options.output_dir):
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
        failed = len(waiting)
        if not only_tables:
            failed = _run_all(_batches(jobs, options.batch_size), folder, host.calls, done, waiting, judge, report)
        host.release()
        if judge is not None and not only_tables:
            _try_judge(judge, sets, folder)
        write_tables(folder.path)
    report("compared", {"folder": str(folder.path), "results": len(done), "failed": failed})
    return Outcome(folder.path, len(done), failed)


def _paths_read(evaluation: Evaluation, parts: Sequence[str | Path]) -> dict[str, list[str]]:
    """Options that may be paths, by what they are."""
    return {
        "the model": [evaluation.options.model],
        "the router": [evaluation.agent.router],
        "the adapter": [str(system.options.get("adapter", "")) for system in evaluation.systems],
        "the set": [spec.data for spec in evaluation.sets],
        "the part": [str(part) for part in parts],
    }


def _digests(evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost) -> dict[str, dict[str, Any]]:
    """Digests of all inputs; for a Hub model its commit, if known."""
    adapters = sorted({str(adapter) for spec in evaluation.systems if (adapter := spec.options.get("adapter"))})
    own = sorted({str(spec.options["adapter"]) for spec in evaluation.systems if spec.options.get("settings") == "own"})
    model = resolve_model(host.model)
    known = digest_model(model) if isinstance(model, Path) else getattr(host.config, "_commit_hash", None)
    return {
        "models": {host.model: known} if known else {},
        "agents": {adapter: digest_agent(adapter) for adapter in own},
        "sets": {loaded.spec.name: digest_instances(loaded.instances) for loaded in sets},
        "adapters": {adapter: digest_adapter(adapter) for adapter in adapters},
    }


def _batches(jobs: Sequence[Job], size: int) -> list[tuple[Job, int, int, Sequence[Instance]]]:
    """All jobs in batches, each with its seed and first instance; depends on the configuration only."""
    return [
        (job, seed, start, job.loaded.instances[start : start + size])
        for job in jobs
        for seed in job.seeds
        for start in range(0, len(job.loaded.instances), size)
    ]


def _run_all(
    batches: Sequence[tuple[Job, int, int, Sequence[Instance]]],
    folder: EvaluationFolder,
    calls: RecordedCalls,
    done: set[ResultKey],
    waiting: set[ResultKey],
    judge: AnswerJudge | None,
    report: Report,
) -> int:
    """Run missing batches, add them to ``done`` and return the number of failed results; ``waiting`` failed before."""
    failed = 0
    silent: dict[str, set[tuple[str, str]]] = {}  # by reader, instances in a row of whose questions none was answered
    for job, seed, start, batch in batches:
        missing = {name: keys for name in job.readers if (keys := set(job.keys(name, seed, batch)) - done)}
        if not missing:
            continue
        position = {"system": job.spec.name, "set": job.loaded.spec.name, "seed": seed, "first": start + 1}
        position |= {"last": start + len(batch), "instances": len(job.loaded.instances)}
        clock = time.perf_counter()
        kept = job.system.write(batch, seed, _progress(position, report))
        seconds = (time.perf_counter() - clock + calls.seconds) / len(batch)
        for name in missing:
            everything = ask(job, name, seed, batch, kept, seconds, judge)
            results = [result for result in everything if result.key in missing[name]]
            scores = [result.accuracy for result in results if result.scored]
            mean = sum(scores) / len(scores) if scores else None
            report("read", {**position, "reader": name, "accuracy": mean, "scored": len(scores)})
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
    """Return one result for each instance, in order; all questions go to the reader ``name`` as one batch."""
    (reader, room), count = job.readers[name], job.loaded.setting.count
    clock = time.perf_counter()
    requests = [
        ReadRequest(question, passages)
        for instance, memory in zip(batch, kept, strict=True)
        for question, passages in zip(instance.questions, memory.find(instance.questions, room), strict=True)
    ]
    records = QAEvaluator(reader, 1, judge).ask(requests)
    seconds = (time.perf_counter() - clock) / max(1, len(requests))
    asked = iter(zip(requests, records, strict=True))
    results = []
    for key, instance, memory in zip(job.keys(name, seed, batch), batch, kept, strict=True):
        rows = [next(asked) for _ in instance.questions]
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
                passages=read[index],
                error=record.error,
            )
            for index, (_, record) in enumerate(rows)
        )
        n = max(1, len(rows))
        results.append(
            SystemResult(
                **key._asdict(),
                chunks=len(instance.chunks),
                input_tokens=sum(count(chunk.text) for chunk in instance.chunks),
                memory_tokens=memory.memory_tokens,
                reader_tokens=seen / n,
                write_calls=memory.write_calls,
                cut_off=memory.cut_off,
                cut=memory.cut + memory.left_out(room) + round((offered - seen) / n),
                seconds_write=round(seconds_write, 3),
                seconds_read=round(seconds * len(rows), 3),
                operations=memory.operations,
                entries=memory.entries,
                questions=questions,
                failed=next((question.error for question in questions if question.error is not None), None),
            )
        )
    return results


def _progress(position: Mapping[str, Any], report: Report) -> Callable[[int, int], None]:
    """Report a batch's chunks, at most every ten seconds."""
    last = time.monotonic()

    def on_step(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last > _SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            report("writing", {**position, "done": done, "chunks": total})

    return on_step


def _try_judge(judge: AnswerJudge, sets: Sequence[LoadedSet], folder: EvaluationFolder) -> None:
    """Test the judge with planted answers and save the rates; repeated after added sets or missing verdicts."""
    judged = {
        loaded.spec.name: [
            replace(instance, questions=questions)
            for instance in loaded.instances
            if (questions := tuple(question for question in instance.questions if question.metric == JUDGE))
        ]
        for loaded in sets
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
