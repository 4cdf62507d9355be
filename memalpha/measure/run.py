"""Runs an evaluation: every system on its sets, every reader, a row for each result, tables at the
end.

Batches depend on the configuration only, so a killed evaluation goes on with the same numbers: an
incomplete batch is run again, and only missing rows are added. A failed reader or judge gives a
failed row, retried next time; if one answers nothing of a whole batch, the evaluation stops.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from memalpha.agent.config import AGENT_FILE, SCHEMA_FILE
from memalpha.agent.step import AgentStep
from memalpha.data.load import load_data
from memalpha.data.rows import digest_instances
from memalpha.errors import InputError, ServiceError
from memalpha.files import drop_cut_line
from memalpha.hub import fetch_repository
from memalpha.measure.evidence import LooksForEvidence
from memalpha.measure.host import PolicyHost
from memalpha.measure.options import (
    EVIDENCE,
    Evaluation,
    ReaderSpec,
    SetSpec,
    SystemSpec,
    make_system,
)
from memalpha.measure.summary import Summary, observe
from memalpha.measure.systems import Setting, System
from memalpha.measure.tables import write_tables
from memalpha.models.adapters import ADAPTER_RECORD
from memalpha.models.readers import resolve_reader
from memalpha.models.registry import resolve_model
from memalpha.models.shipped import resolve_adapter
from memalpha.qa.judges import EndpointAnswerJudge
from memalpha.qa.readers import (
    BASE,
    BudgetedReader,
    QAEvaluator,
    RecallReader,
    open_reader,
    reader_messages,
    reader_of_kind,
)
from memalpha.record.folder import MARKER, RunFolder, check_place, environment, folder_digest
from memalpha.record.lock import FolderLock
from memalpha.record.measure import Examination, Examiner, IngestedMemory, measure
from memalpha.record.rows import (
    RESULTS_FILE,
    InstanceRow,
    QuestionRow,
    RowKey,
    append_rows,
    read_rows,
)
from memalpha.retrieval.embedders import forget_texts
from memalpha.text.encoding import chat_ids
from memalpha.types import (
    AnswerJudge,
    EventReport,
    Instance,
    JsonMapping,
    JsonObject,
    Sampling,
    TokenCounter,
    silent,
)

# Files of a model and of an adapter that results depend on: their digests are recorded, and an
# evaluation goes on with the same ones only. Those that are copied are ``MODEL_FILES`` of
# ``models.registry`` and ``ADAPTER_FILES`` of ``models.adapters``.
MODEL_INPUTS = (
    "*.safetensors",
    "*.bin",
    "*.gguf",
    "*.pt",
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)
ADAPTER_INPUTS = ("adapter_*", ADAPTER_RECORD, AGENT_FILE, SCHEMA_FILE)
_LINE_BREAKS = 16  # tokens kept free in a window for what joins the passages


class Outcome(NamedTuple):
    """Result of an evaluation."""

    folder: Path
    results: int
    failed: int  # of them; they wait for a retry
    summary: Summary


@dataclass(frozen=True, kw_only=True)
class Job:
    """One system on one set; ``seeds`` has one seed if the system does not sample."""

    set: str
    system: str
    instances: Sequence[Instance]
    ingest: Callable[..., Sequence[IngestedMemory]]  # of (instances, seed, on_step)
    examiners: Mapping[str, Examiner]  # by reader
    seeds: tuple[int, ...]
    count: TokenCounter
    clock: Callable[[], float] = time.perf_counter
    observe: Callable[[Instance, InstanceRow], JsonMapping] | None = None  # a scorecard

    def keys(self, reader: str, seed: int, instances: Sequence[Instance]) -> list[RowKey]:
        """Keys of the rows on some instances."""
        return [(self.set, self.system, reader, seed, instance.id) for instance in instances]


# ------------------------------------------------------------------------------------------------
# an evaluation becomes jobs
@dataclass(frozen=True)
class LoadedSet:
    """A set and its protocol."""

    spec: SetSpec
    instances: tuple[Instance, ...]
    setting: Setting

    @cached_property
    def question_tokens(self) -> int:
        """Tokens of a reader's prompt with the longest question and no passage."""
        questions = [question for instance in self.instances for question in instance.questions]
        texts = {question.text for question in questions} or {""}
        tokenizer = self.setting.host.tokenizer
        return max(len(chat_ids(tokenizer, reader_messages(text, ()))) for text in texts)


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
        requests = []
        for instance, memory in zip(instances, memories, strict=True):
            for question in instance.questions:
                requests.append(memory.request(question, budget))
        records = QAEvaluator(self.reader, 1, self.judge).ask(requests)
        asked = zip(requests, records, strict=True)
        examinations = []
        for instance, memory in zip(instances, memories, strict=True):
            questions = []
            seen = offered = 0
            for index, (request, record) in enumerate(islice(asked, len(instance.questions))):
                read = tuple(request.passages[at] for at in self.reader.fitting(request))
                if record.answer and record.answer.read is not None:
                    read = record.answer.read
                seen += sum(map(self.count, read))
                offered += sum(map(self.count, request.passages))
                questions.append(QuestionRow.of(index, record, read))
            n = max(1, len(questions))
            cut = memory.left_out(budget) + round((offered - seen) / n)
            examinations.append(Examination(tuple(questions), seen / n, cut))
        return examinations


def evaluate(
    evaluation: Evaluation, report: EventReport = silent, *, apart: bool = False
) -> Outcome:
    """Run an evaluation, or continue the one in its folder.

    Args:
        evaluation: The options, as ``parse_evaluate_options`` returns them.
        report: A function that is told events (``load``, ``evaluate``, ``step``, ``done``) and
            their data.
        apart: Whether each system embeds each set for itself, so that its seconds are its own.

    Returns:
        The folder, the summary and the instances that failed.

    Raises:
        InputError: The options do not fit the data or models; nothing is written then.
        RunFolderError: The folder holds something else, or another evaluation.
        ServiceError: A reader or judge is down; the evaluation can be continued.
    """
    options = evaluation.options
    adapters = [str(spec.options.get("adapter", "")) for spec in evaluation.systems]
    reads = {
        "the model": [options.model],
        "the adapter": adapters,
        "the set": [spec.data for spec in evaluation.sets],
    }
    check_place(options.output_dir, overwrite=options.overwrite, resume=None, reads=reads)
    report("load", {"what": f"{options.model} and {len(evaluation.sets)} sets"})
    host = PolicyHost(options.model, options.dtype, options.generation_rows, options.batch_tokens)
    sets = [_load(spec, evaluation, host) for spec in evaluation.sets]
    jobs = make_jobs(evaluation, sets)
    inputs: dict[str, JsonMapping] = {
        "models": {host.model: _model_digest(host)},
        "sets": {loaded.spec.name: digest_instances(loaded.instances) for loaded in sets},
    }
    adapters += [spec.adapter for spec in evaluation.readers]
    inputs["adapters"] = {
        name: folder_digest(resolve_adapter(name), ADAPTER_INPUTS) for name in adapters if name
    }
    with FolderLock(options.output_dir) as lock:
        lock.take(where=MARKER)
        folder = RunFolder.begin(
            options.output_dir,
            evaluation.to_json(),
            inputs,
            environment(),
            overwrite=options.overwrite,
        )
        lock.take()
        results, failed = run_jobs(jobs, options.batch_size, folder, report, apart=apart)
        host.release()
        summary = write_tables(folder.path)
    report("compared", {"folder": str(folder.path), "results": results, "failed": failed})
    return Outcome(folder.path, results, failed, summary)


def _model_digest(host: PolicyHost) -> str:
    """Return the digest of a model's folder, or the commit of one on the Hub."""
    model = resolve_model(host.model)
    if isinstance(model, Path):
        return folder_digest(model, MODEL_INPUTS)
    return fetch_repository(model, ["config.json"]).name  # the cache has a folder for each commit


def _load(spec: SetSpec, evaluation: Evaluation, host: PolicyHost) -> LoadedSet:
    instances = load_data(spec.data, spec.options)
    agent = evaluation.agent
    least = spec.skip + max(1, spec.instances)
    if len(instances) < least:
        raise InputError(
            f"the set {spec.name!r} has {len(instances)} instances",
            expected=f"at least {least}, as skip and instances say",
        )
    length = spec.max_completion_length or agent.max_completion_length
    setting = Setting(
        AgentStep(replace(agent, max_completion_length=length), host.tokenizer),
        host,
        spec.reader_tokens or agent.reader_tokens,
        spec.retrieve_k or agent.retrieve_k,
        evaluation.options.temperature,
    )
    return LoadedSet(spec, tuple(instances[spec.skip :][: spec.instances or None]), setting)


def make_jobs(evaluation: Evaluation, sets: Sequence[LoadedSet]) -> list[Job]:
    """Build the jobs, ordered by system so that each adapter is loaded once; InputError if a job
    cannot be read or scored.
    """
    endpoints = evaluation.endpoints
    judge = EndpointAnswerJudge(endpoints.judge_client()) if endpoints.has_judge else None
    for loaded in sets:
        readers = loaded.spec.readers
        named = [each for each in evaluation.readers if each.name in (readers or (each.name,))]
        questions = [question for instance in loaded.instances for question in instance.questions]
        if any(reader.kind != EVIDENCE for reader in named):
            QAEvaluator(RecallReader(1, loaded.setting.count), 1, judge).check(questions)
    jobs = []
    for spec in evaluation.systems:
        system = make_system(spec.kind, spec.options)
        for loaded in sets:
            if loaded.spec.name in (spec.sets or (loaded.spec.name,)):
                jobs.append(_job(evaluation, spec, system, loaded, judge))
    return jobs


def _job(
    evaluation: Evaluation,
    spec: SystemSpec,
    system: System,
    loaded: LoadedSet,
    judge: AnswerJudge | None,
) -> Job:
    setting = system.prepare(loaded.setting)
    seeds = tuple(evaluation.options.seeds)
    system.check_fits(setting, loaded.instances)
    examiners: dict[str, Examiner] = {}
    for each in evaluation.readers:
        if all(
            each.name in (names or (each.name,)) for names in (spec.readers, loaded.spec.readers)
        ):
            if each.kind == EVIDENCE:
                looks = LooksForEvidence(setting.reader_tokens, setting.count)
                examiners[each.name] = looks
                continue
            reader = make_reader(each, evaluation, loaded, system.budget == "window")
            examiners[each.name] = Asks(reader, setting.count, judge)
    if not examiners:
        raise InputError(
            f"no reader reads for the system {spec.name!r} on the set {loaded.spec.name!r}",
            expected="a reader that both of them name, or no names at all",
        )
    return Job(
        set=loaded.spec.name,
        system=spec.name,
        instances=loaded.instances,
        ingest=partial(system.ingest_all, setting),
        examiners=examiners,
        seeds=seeds if system.draws(setting.temperature) else seeds[:1],
        count=setting.count,
        clock=setting.host.clock,
        observe=observe,
    )


def make_reader(
    spec: ReaderSpec, evaluation: Evaluation, loaded: LoadedSet, reads_window: bool
) -> BudgetedReader:
    """Return a reader with the common budget, or with what question and answer leave of its window
    if the system reads that; InputError if it is too small or not known.
    """
    setting = loaded.setting
    if spec.kind == "recall":
        return RecallReader(setting.reader_tokens, setting.count)
    is_hosted = spec.kind in (BASE, "trained")
    window = spec.window_tokens or (setting.host.positions if is_hosted else 0)
    left = window and window - loaded.question_tokens - spec.max_new_tokens - _LINE_BREAKS
    if left < 1 if reads_window else window and left < setting.reader_tokens:
        raise InputError(
            f"reader {spec.name!r} on set {loaded.spec.name!r} has a window of {window} tokens (0: "
            f"unknown), {left} of them beside question and answer, and reader_tokens is "
            f"{setting.reader_tokens}",
            fix="take a reader with a larger window_tokens, lower reader_tokens, or "
            "set budget: reader for full context",
        )
    budget = left if reads_window else setting.reader_tokens
    return open_reader(
        resolve_reader(reader_of_kind(spec.kind, spec.adapter, evaluation.endpoints.reader_client)),
        budget,
        setting.count,
        lambda reader: setting.host.reader(str(reader), spec.max_new_tokens),
        sampling=Sampling(spec.max_new_tokens),
        searches=spec.searches,
    )


# ------------------------------------------------------------------------------------------------
# jobs become rows
def run_jobs(
    jobs: Iterable[Job],
    size: int,
    folder: RunFolder,
    report: EventReport = silent,
    *,
    apart: bool = False,
) -> tuple[int, int]:
    """Append the rows that a folder lacks, ``size`` instances at a time; return how many rows there
    are, and how many of the new ones failed. ServiceError if a reader or judge is down.
    """
    path = folder.path / RESULTS_FILE
    drop_cut_line(path)
    done = {row.key for row in read_rows(path) if row.failed is None}
    failed = 0
    for job, seed, batch, position in _batches(jobs, size):
        missing = {
            name: examiner
            for name, examiner in job.examiners.items()
            if not done.issuperset(job.keys(name, seed, batch))
        }
        if not missing:
            continue
        if apart and position["first"] == 1:
            forget_texts(frozenset())
        ingest = partial(job.ingest, seed=seed, on_step=partial(_progress, position, report))
        measured = measure(
            ingest,
            batch,
            missing,
            names=(job.set, job.system),
            seed=seed,
            count=job.count,
            clock=job.clock,
        )
        for name, rows in measured:
            if job.observe and not isinstance(missing[name], LooksForEvidence):
                observed = map(job.observe, batch, rows)
                rows = [
                    replace(row, observed=each) for row, each in zip(rows, observed, strict=True)
                ]
            new = [row for row in rows if row.key not in done]
            scores = [row.accuracy for row in new if row.scored]
            mean = sum(scores) / len(scores) if scores else None
            report("read", {**position, "reader": name, "accuracy": mean, "scored": len(scores)})
            append_rows(path, new)
            done.update(row.key for row in new)
            failed += sum(row.failed is not None for row in new)
            if len(rows) > 1 and not any(map(_has_answer, rows)):
                raise ServiceError(
                    f"reader {name!r}, or its judge, failed for all {len(rows)} instances that "
                    f"were asked last, of {job.set!r}: {rows[0].failed}\n"
                    "  to go on: the same command again, once the service is back",
                )
    return len(done), failed


def _batches(
    jobs: Iterable[Job], size: int
) -> Iterator[tuple[Job, int, Sequence[Instance], JsonObject]]:
    """Job, seed, instances and their place, by the configuration only."""
    for job in jobs:
        for seed in job.seeds:
            for start in range(0, len(job.instances), size):
                batch = job.instances[start : start + size]
                position = {
                    "system": job.system,
                    "set": job.set,
                    "seed": seed,
                    "first": start + 1,
                    "last": start + len(batch),
                    "instances": len(job.instances),
                }
                yield job, seed, batch, position


def _has_answer(row: InstanceRow) -> bool:
    """Whether the reader answered anything, or was asked nothing."""
    return not row.questions or any(question.error is None for question in row.questions)


def _progress(position: JsonMapping, report: EventReport, done: int, total: int) -> None:
    report("writing", {**position, "done": done, "chunks": total})
