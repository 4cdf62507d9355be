"""Runs an evaluation: every system on its sets, every reader, one line for each result, tables at
the end.

Batches depend on the configuration only, so a killed evaluation goes on with the same numbers: an
incomplete batch is run again, and only missing lines are added. A failed reader or judge gives a
failed line, retried next time; if one answers nothing on several instances in a row, the evaluation
stops.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from memalpha.agent.config import AGENT_FILE, SCHEMA_FILE
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.data.schema import digest_instances
from memalpha.errors import InputError, ServiceError
from memalpha.measure.evaluation_folder import (
    COMPLETIONS_FILE,
    MODEL_FILES,
    EvaluationFolder,
    check_place,
    digest,
)
from memalpha.measure.host import PolicyHost
from memalpha.measure.options import (
    Evaluation,
    ReaderSpec,
    SetSpec,
    make_system,
)
from memalpha.measure.scorecard import observe
from memalpha.measure.systems import Setting, System
from memalpha.measure.tables import write_tables
from memalpha.models.policy import ADAPTER_RECORD
from memalpha.models.registry import resolve_model
from memalpha.protocols import AnswerJudge, EventReport, ReadRequest, TokenCounter
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.readers import EndpointReader, ModelReader, RecallReader, reader_messages
from memalpha.record.folder import check_apart
from memalpha.record.measure import Examination, IngestedMemory, measure
from memalpha.record.rows import InstanceRow, QuestionRow, RowKey
from memalpha.text import chat_ids
from memalpha.types import Instance, Sampling

BudgetedReader = RecallReader | ModelReader | EndpointReader
_LINE_BREAKS = 16  # tokens kept free in a window for what joins the passages
_SECONDS_BETWEEN_LINES = 10.0
_SEVERAL = 2  # so many instances in a row without any answer are no fault of their own


class Outcome(NamedTuple):
    """Result of an evaluation."""

    folder: Path
    results: int
    failed: int  # of them; they wait for a retry


class LoadedSet(NamedTuple):
    """A set and its protocol."""

    spec: SetSpec
    instances: tuple[Instance, ...]
    setting: Setting


@dataclass(frozen=True, slots=True)
class Asks:
    """An examiner: a reader under its budget, and the judge of questions of metric ``judge``."""

    reader: BudgetedReader
    count: TokenCounter
    judge: AnswerJudge | None = None

    def __call__(
        self, instances: Sequence[Instance], memories: Sequence[IngestedMemory]
    ) -> list[Examination]:
        """Ask all questions of a batch at once."""
        budget = self.reader.budget_tokens
        requests: list[ReadRequest] = []
        for instance, memory in zip(instances, memories, strict=True):
            for question in instance.questions:
                requests.append(ReadRequest(question, memory.passages(question, budget)))
        records = QAEvaluator(self.reader, 1, self.judge).ask(requests)
        asked = zip(requests, records, strict=True)
        examinations = []
        for instance, memory in zip(instances, memories, strict=True):
            questions = []
            seen = offered = 0
            for index, (request, record) in enumerate(islice(asked, len(instance.questions))):
                read = self.reader.passages(request)
                seen += sum(map(self.count, read))
                offered += sum(map(self.count, request.passages))
                questions.append(QuestionRow.of(index, record, read))
            n = max(1, len(questions))
            cut = memory.left_out(budget) + round((offered - seen) / n)
            examinations.append(Examination(tuple(questions), seen / n, cut))
        return examinations


@dataclass(frozen=True, slots=True)
class Job:
    """One system on one set; ``readers`` by name, ``seeds`` has one seed if the system does not
    sample.
    """

    name: str
    system: System
    on: LoadedSet
    readers: Mapping[str, Asks]
    seeds: tuple[int, ...]

    def keys(self, reader: str, seed: int, instances: Sequence[Instance]) -> list[RowKey]:
        """Keys of the results on some instances."""
        return [(self.on.spec.name, self.name, reader, seed, instance.id) for instance in instances]


def evaluate(evaluation: Evaluation, report: EventReport = lambda event, data: None) -> Outcome:
    """Run or continue an evaluation; InputError before it starts, RunFolderError, ServiceError if a
    reader or judge is down.
    """
    options = evaluation.options
    check_place(options.output_dir, overwrite=options.overwrite)
    if options.overwrite:
        adapters = [str(system.options.get("adapter", "")) for system in evaluation.systems]
        reads = {
            "the model": [options.model],
            "the adapter": adapters,
        }
        check_apart(
            Path(options.output_dir), {**reads, "the set": [spec.data for spec in evaluation.sets]}
        )
    report("load", {"what": f"{options.model} and {len(evaluation.sets)} sets"})
    host = PolicyHost(options.model, options.dtype, options.generation_rows, options.batch_tokens)
    sets = [_load(spec, evaluation, host) for spec in evaluation.sets]
    judge = (
        EndpointAnswerJudge(evaluation.endpoints.judge_client())
        if evaluation.endpoints.has_judge
        else None
    )
    jobs = make_jobs(evaluation, sets, host, judge)
    inputs = _digests(evaluation, sets, host)
    folder = EvaluationFolder(
        options.output_dir, evaluation.to_json(), inputs, overwrite=options.overwrite
    )
    host.open_cache(folder.path / COMPLETIONS_FILE)
    results, failed = _run(jobs, options.batch_size, folder, report)
    host.release()
    write_tables(folder.path)
    report("compared", {"folder": str(folder.path), "results": results, "failed": failed})
    return Outcome(folder.path, results, failed)


def _digests(
    evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost
) -> dict[str, dict[str, Any]]:
    adapters = sorted(
        {str(adapter) for spec in evaluation.systems if (adapter := spec.options.get("adapter"))}
    )
    own = sorted(
        {
            str(spec.options["adapter"])
            for spec in evaluation.systems
            if spec.options.get("settings") == "own"
        }
    )
    readers = sorted({spec.adapter for spec in evaluation.readers if spec.adapter})
    model = resolve_model(host.model)
    known = (
        digest(model, MODEL_FILES)
        if isinstance(model, Path)
        else getattr(host.config, "_commit_hash", None)
    )
    return {
        "models": {host.model: known} if known else {},
        "agents": {adapter: digest(adapter, (AGENT_FILE, SCHEMA_FILE)) for adapter in own},
        "sets": {loaded.spec.name: digest_instances(loaded.instances) for loaded in sets},
        "adapters": {adapter: digest(adapter, ("adapter_*",)) for adapter in adapters},
        "readers": {adapter: digest(adapter, ("adapter_*", ADAPTER_RECORD)) for adapter in readers},
    }


def _load(spec: SetSpec, evaluation: Evaluation, host: PolicyHost) -> LoadedSet:
    instances, agent = load_data(spec.data, spec.options), evaluation.agent
    if len(instances) < spec.skip + max(1, spec.instances):
        least = spec.skip + max(1, spec.instances)
        raise InputError(
            f"set {spec.name!r} has {len(instances)} instances",
            expected=f"at least {least} (skip and instances)",
        )
    length = spec.max_completion_length or agent.max_completion_length
    step = AgentStep(replace(agent, max_completion_length=length), host.tokenizer)
    tokens, k = spec.reader_tokens or agent.reader_tokens, spec.retrieve_k or agent.retrieve_k
    chosen = tuple(instances[spec.skip :][: spec.instances or None])
    return LoadedSet(spec, chosen, Setting(step, host, tokens, k, evaluation.options.temperature))


def make_jobs(
    evaluation: Evaluation, sets: Sequence[LoadedSet], host: PolicyHost, judge: AnswerJudge | None
) -> list[Job]:
    """Build the jobs, ordered by system so that each adapter is loaded once; InputError if a job
    cannot be read or scored.
    """
    jobs, seeds, temperature = [], tuple(evaluation.options.seeds), evaluation.options.temperature
    left: dict[tuple[str, str], int | None] = {}
    for loaded in sets:
        questions = [question for instance in loaded.instances for question in instance.questions]
        QAEvaluator(RecallReader(1, loaded.setting.count), 1, judge).check(questions)
        left |= {
            (loaded.spec.name, spec.name): window_left(spec, host, loaded.instances)
            for spec in evaluation.readers
        }
    for spec in evaluation.systems:
        system = make_system(spec.kind, spec.options)
        for loaded in (
            loaded for loaded in sets if loaded.spec.name in (spec.sets or (loaded.spec.name,))
        ):
            system.check_fits(loaded.setting, loaded.instances)
            readers = {
                reader.name: Asks(
                    make_reader(
                        reader,
                        evaluation,
                        loaded,
                        left[loaded.spec.name, reader.name],
                        system.budget == "window",
                    ),
                    loaded.setting.count,
                    judge,
                )
                for reader in evaluation.readers
                if reader.name in (spec.readers or (reader.name,))
                and reader.name in (loaded.spec.readers or (reader.name,))
            }
            if not readers:
                what = f"nobody reads for system {spec.name!r} on set {loaded.spec.name!r}"
                raise InputError(what, expected="a reader that both name, or none named")
            jobs.append(
                Job(
                    spec.name,
                    system,
                    loaded,
                    readers,
                    seeds if system.draws(temperature) else seeds[:1],
                )
            )
    return jobs


def make_reader(
    spec: ReaderSpec,
    evaluation: Evaluation,
    loaded: LoadedSet,
    left: int | None,
    reads_window: bool,
) -> BudgetedReader:
    """Return a reader with the common budget, or what is ``left`` of its window if the system reads
    that; else InputError.
    """
    host, count, tokens = loaded.setting.host, loaded.setting.count, loaded.setting.reader_tokens
    if spec.kind == "recall":
        return RecallReader(tokens, count)
    if (left is None or left < 1) if reads_window else (left is not None and left < tokens):
        window = f"a window of {spec.window_tokens or host.positions} tokens (0: unknown), {left or 0} of them beside question"
        fix = "a reader of a larger window_tokens, lower reader_tokens, or budget: reader for full context"
        what = f"reader {spec.name!r} on set {loaded.spec.name!r} has {window} and answer, and reader_tokens is {tokens}"
        raise InputError(what, fix=fix)
    budget = left if reads_window and left else tokens
    if spec.kind == "endpoint":
        return EndpointReader(
            evaluation.endpoints.reader_client(), budget, count, Sampling(spec.max_new_tokens)
        )
    return ModelReader(
        partial(host.answer, max_new_tokens=spec.max_new_tokens, adapter=spec.adapter),
        budget,
        count,
    )


def window_left(spec: ReaderSpec, host: PolicyHost, instances: Sequence[Instance]) -> int | None:
    """Tokens left in a reader's window after the longest question and answer; None if the window is
    unknown.
    """
    window = spec.window_tokens or (host.positions if spec.kind in ("base", "trained") else 0)
    if not window:
        return None
    asked = {question.text for instance in instances for question in instance.questions} or {""}
    longest = max(len(chat_ids(host.tokenizer, reader_messages(text, ()))) for text in asked)
    return window - longest - spec.max_new_tokens - _LINE_BREAKS


def _run(
    jobs: Sequence[Job], size: int, folder: EvaluationFolder, report: EventReport
) -> tuple[int, int]:
    done, waiting = folder.keys()
    failed = 0
    silent = Counter[str]()  # by reader, instances in a row of whose questions none was answered
    batches = (
        (job, seed, start)
        for job in jobs
        for seed in job.seeds
        for start in range(0, len(job.on.instances), size)
    )
    for job, seed, start in batches:  # they depend on the configuration only
        batch = job.on.instances[start : start + size]
        missing = {
            name: examiner
            for name, examiner in job.readers.items()
            if not done.issuperset(job.keys(name, seed, batch))
        }
        position = {"system": job.name, "set": job.on.spec.name, "seed": seed, "first": start + 1}
        position |= {"last": start + len(batch), "instances": len(job.on.instances)}
        if not missing:
            continue
        measured = measure(
            partial(
                job.system.ingest_all,
                job.on.setting,
                seed=seed,
                on_step=_progress(position, report),
            ),
            batch,
            missing,
            names=(job.on.spec.name, job.name),
            seed=seed,
            count=job.on.setting.count,
            clock=job.on.setting.host.clock,
        )
        for name, rows in measured:
            new = [
                replace(row, observed=observe(instance, row))
                for instance, row in zip(batch, rows, strict=True)
                if row.key not in done
            ]
            scores = [row.accuracy for row in new if row.scored]
            mean = sum(scores) / len(scores) if scores else None
            report("read", {**position, "reader": name, "accuracy": mean, "scored": len(scores)})
            folder.append(new)
            done.update(row.key for row in new)
            failed += sum(row.failed is not None for row in new)
            silent[name] += sum(row.key not in waiting for row in new)
            if any(map(_answered, rows)):
                silent[name] = 0
            elif silent[name] >= _SEVERAL:
                what = f"reader {name!r}, or its judge, failed for all {silent[name]} instances that were asked last"
                again = "to go on: the same command again, once the service is back"
                raise ServiceError(f"{what}, of {new[0].set!r}: {new[0].failed}\n  {again}")
    return len(done), failed


def _answered(row: InstanceRow) -> bool:
    """Whether the reader answered anything, or was asked nothing."""
    return not row.questions or any(question.error is None for question in row.questions)


def _progress(position: Mapping[str, Any], report: EventReport) -> Callable[[int, int], None]:
    last = [time.monotonic()]

    def on_step(done: int, total: int) -> None:
        if time.monotonic() - last[0] > _SECONDS_BETWEEN_LINES:
            last[0] = time.monotonic()
            report("writing", {**position, "done": done, "chunks": total})

    return on_step
