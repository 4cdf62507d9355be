"""One row for each instance that a system was measured on, and rollouts as JSON.

Held-out evaluation in training, ``rollout``, ``evaluate`` and ``poison`` write the same lines:
``InstanceRow``, one for each (set, system, reader, seed, instance). A score that could not be
computed is NaN in Python and null in a file, never 0.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain
from operator import attrgetter
from pathlib import Path

from pydantic import TypeAdapter

from memalpha.agent.rollout import Rollout, StepRecord
from memalpha.errors import InputError
from memalpha.files import append_lines, finite, read_lines
from memalpha.record.folder import mask_options
from memalpha.record.shapes import Count, Number, Score
from memalpha.record.statistics import estimate
from memalpha.rewards import RewardConfig, StepReward
from memalpha.types import Change, Entry, JsonObject, OperationKind, OperationResult, QuestionRecord

RowKey = tuple[str, str, str, int, str]  # set, system, reader, seed and instance
RESULTS_FILE = "results.jsonl"  # of a folder
TOTAL = "total"  # in ``InstanceRow.rewards``, the weighted sum of the parts


@dataclass(frozen=True, slots=True)
class QuestionRow:
    """One scored question."""

    id: str  # the question's, or its index
    kind: str
    text: str
    score: Score  # in [0, 1], NaN if the reader or judge failed
    answer: str | None  # None if the reader failed
    passages: tuple[str, ...] = ()  # what the reader got, best first
    error: str | None = None
    # of an update, where evidence was looked for: whether what holds now came first
    newer_first: bool | None = None

    @classmethod
    def of(cls, index: int, record: QuestionRecord, passages: Sequence[str] = ()) -> "QuestionRow":
        """Return the row of a question that was asked."""
        question = record.question
        name = question.id or str(index)
        answer = record.answer.text if record.answer else None
        return cls(
            name,
            question.kind,
            question.text,
            record.score,
            answer,
            tuple(passages),
            mask_options(record.error),
        )


@dataclass(frozen=True, slots=True)
class InstanceRow:
    """One system on one instance with one reader."""

    set: str
    system: str
    reader: str
    seed: int  # the first of the configuration if the system does not sample
    instance: str
    chunks: Count
    input_tokens: Count
    memory_tokens: Count = 0  # kept between input and questions
    reader_tokens: Number = math.nan  # mean over questions of what the reader saw
    write_calls: Count = 0
    cut_off: Count = 0  # write calls that ended at their length limit
    cut: int = 0  # tokens left out by a budget
    # wall time, a batch's split evenly; NaN where it is not measured
    seconds_write: Number = math.nan
    seconds_read: Number = math.nan
    operations: Mapping[str, Count] = field(default_factory=dict)  # see ``count_operations``
    entries: tuple[str, ...] = ()  # none if the input is kept unchanged
    questions: tuple[QuestionRow, ...] = ()
    rewards: Mapping[str, Number] = field(default_factory=dict)  # means over chunks, and TOTAL
    observed: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # for the scorecard
    rollout: JsonObject | None = None  # everything that happened, where that is recorded
    failed: str | None = None  # why there is no result

    @property
    def key(self) -> RowKey:
        """Set, system, reader, seed and instance."""
        return self.set, self.system, self.reader, self.seed, self.instance

    @property
    def accuracy(self) -> float:
        """Mean score of the questions; NaN if a score is missing or there are no questions."""
        return _mean([question.score for question in self.questions])

    @property
    def scored(self) -> bool:
        """Whether the instance has a score."""
        return self.failed is None and not math.isnan(self.accuracy)

    def scores_by_kind(self) -> dict[str, list[float]]:
        """Return the scores of the questions by their kind."""
        scores: dict[str, list[float]] = defaultdict(list)
        for question in self.questions:
            scores[question.kind].append(question.score)
        return scores

    def count(self, kind: str) -> int:
        """Return how many ``calls`` there were, ``failed`` or were ``duplicate``; or how many of a
        kind changed the memory: ``insert``, ``update`` (blocks included), ``delete``.
        """
        kinds = ("update", "replace") if kind == "update" else (kind,)
        return sum(n for name, n in self.operations.items() if name.endswith(kinds))

    def to_json(self) -> JsonObject:
        """Return the line as JSON-ready data; NaN is null."""
        return dict(finite(asdict(self)))


_LINE = TypeAdapter(InstanceRow)


def read_rows(path: str | Path) -> list[InstanceRow]:
    """Return the last row of each key of a file (of a folder: its results); none if it is missing.

    A last line that its writer did not finish is ignored; InputError for any other damage.
    """
    path = Path(path)
    path = path / RESULTS_FILE if path.is_dir() else path
    rows: dict[RowKey, InstanceRow] = {}
    for where, line in read_lines(path):
        try:
            row = _LINE.validate_python(line)
        except ValueError as error:
            fix = "remove the line; the same command makes it again"
            raise InputError(f"{where} is damaged: {error}", fix=fix) from error
        rows.pop(row.key, None)
        rows[row.key] = row
    return list(rows.values())


def append_rows(path: Path, rows: Iterable[InstanceRow]) -> None:
    """Append rows to a file; they are on disk when this returns."""
    append_lines(path, [row.to_json() for row in rows])


# ------------------------------------------------------------------------------------------------
# means over rows
def summarise(rows: Sequence[InstanceRow]) -> JsonObject:
    """Return means over scored instances, the accuracy's with its interval and standard error.

    ``operations`` are shares of calls, ``kinds`` means over questions, ``masked`` the unscored.
    """
    scored = [row for row in rows if row.scored]
    rewards = reward_means(scored)
    shares = call_shares(scored)
    calls = sum(row.count("calls") for row in scored)
    return {
        **_accuracy({row.instance: row.accuracy for row in scored}),
        **{key: rewards.get(name, math.nan) for name, key in summary_names(rewards).items()},
        "memory_tokens": _mean([row.memory_tokens for row in scored]),
        "input_tokens": _mean([row.input_tokens for row in scored]),
        "entries": _mean([len(row.entries) for row in scored]),
        "calls_per_instance": _mean([row.count("calls") for row in scored]),
        "cut_off": _mean([row.cut_off / max(1, row.write_calls) for row in scored]),
        "update_share": _share_of(shares, OperationKind.UPDATE, calls),
        "delete_share": _share_of(shares, OperationKind.DELETE, calls),
        "masked": len(rows) - len(scored),
        "kinds": _by_kind(scored),
        "operations": shares,
    }


def summary_names(parts: Iterable[str]) -> dict[str, str]:
    """Return the name in a summary of the mean of each part of the reward, and of ``TOTAL``.

    ``accuracy`` has none: the accuracy of a summary is that of all questions, whatever is paid.
    """
    own = {
        TOTAL: "reward",
        "tool": "tool_success",
        "compression": "compression",
        "content": "content",
    }
    others = [name for name in parts if name not in own and name != "accuracy"]
    return {**own, **{name: f"reward_{name}" for name in others}}


def reward_means(rows: Sequence[InstanceRow]) -> dict[str, float]:
    """Return the mean of each part of the reward over the rows that know it."""
    names = dict.fromkeys(chain.from_iterable(row.rewards for row in rows))
    means = {}
    for name in names:
        means[name] = known_mean([row.rewards.get(name, math.nan) for row in rows])
    return means


def call_shares(rows: Sequence[InstanceRow]) -> dict[str, float]:
    """Return the share of all calls that changed the memory, by section and kind of operation."""
    total = Counter[str]()
    for row in rows:
        total.update(row.operations)
    calls = total["calls"]
    applied = [name for name in sorted(total) if "/" in name]
    return {name: total[name] / calls for name in applied} if calls else {}


def paired_difference(before: Sequence[InstanceRow], after: Sequence[InstanceRow]) -> JsonObject:
    """Return the mean of after - before over the instances that both have a score for."""
    first = {row.instance: row.accuracy for row in before if row.scored}
    changes = {
        row.instance: row.accuracy - first[row.instance]
        for row in after
        if row.scored and row.instance in first
    }
    return _accuracy(changes)


def _accuracy(values: Mapping[str, float]) -> JsonObject:
    if not values:
        return {**dict.fromkeys(("accuracy", "low", "high", "stderr"), math.nan), "n": 0}
    mean = estimate({0: values})
    return {
        "accuracy": mean.mean,
        "low": mean.low,
        "high": mean.high,
        "stderr": mean.stderr,
        "n": mean.n,
    }


def _share_of(shares: Mapping[str, float], kind: OperationKind, calls: int) -> float:
    return (
        sum(share for name, share in shares.items() if name.endswith(kind)) if calls else math.nan
    )


def _by_kind(rows: Sequence[InstanceRow]) -> JsonObject:
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        for kind, own in row.scores_by_kind().items():
            scores[kind] += own
    return {
        kind: {"accuracy": _mean(scores[kind]), "questions": len(scores[kind])}
        for kind in sorted(scores)
    }


def known_mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    return _mean([value for value in values if not math.isnan(value)])


def _mean(values: Sequence[float]) -> float:
    if len(set(values)) == 1:  # a part of the whole rollout; no rounding
        return float(values[0])
    return sum(values) / len(values) if values else math.nan


def count_operations(results: Sequence[OperationResult]) -> dict[str, int]:
    """Return the number of ``calls``, of those that ``failed`` and of inserts of what was there
    (``duplicate``), and of applied operations as ``operation_mix``.
    """
    return {
        "calls": len(results),
        "failed": [result.ok for result in results].count(False),
        "duplicate": sum(map(attrgetter("repeated"), results)),
        **operation_mix(results),
    }


def operation_mix(results: Iterable[OperationResult]) -> Counter[str]:
    """Return the number of applied operations by section and kind, such as ``semantic/insert``."""
    applied = (result.operation for result in results if result.changed and result.operation)
    return Counter(f"{operation.section}/{operation.kind}" for operation in applied)


def mean_rewards(rewards: Sequence[StepReward], config: RewardConfig) -> dict[str, float]:
    """Return the means over a rollout's steps of each part and of the weighted sum, ``TOTAL``."""
    means = {TOTAL: _mean([reward.total(config) for reward in rewards])}
    for name in config.parts:
        means[name] = _mean([reward[name] for reward in rewards])
    return means


# ------------------------------------------------------------------------------------------------
# rollouts
def rollout_to_json(
    rollout: Rollout,
    rewards: Sequence[StepReward],
    config: RewardConfig,
    advantages: Sequence[float] | None = None,
) -> JsonObject:
    """Return a scored rollout as JSON-ready data, with rewards, weighted totals and advantages per
    chunk step.
    """
    of_steps: Sequence[float | None] = advantages or [None] * len(rewards)
    steps = zip(rollout.steps, rewards, of_steps, strict=True)
    return {
        "role": rollout.role,
        "instance": rollout.instance.id,
        "source": rollout.instance.source,
        "system": rollout.steps[0].prompt.messages[0]["content"] if rollout.steps else "",
        "steps": [
            _step(rollout, step, reward, reward.total(config), advantage)
            for step, reward, advantage in steps
        ],
        "questions": list(map(_question, rollout.questions)),
        "memory": list(map(_entry, rollout.memory)),
        "memory_tokens": rollout.memory.tokens,
        "input_tokens": rollout.tokens_read,
    }


def _step(
    rollout: Rollout, step: StepRecord, reward: StepReward, total: float, advantage: float | None
) -> JsonObject:
    chunk = rollout.instance.chunks[step.chunk_index]
    return {
        "chunk": step.chunk_index,
        "text": chunk.text,
        "time": chunk.time,
        "prompt": step.prompt.messages[-1]["content"],
        "prompt_tokens": len(step.prompt.ids),
        "completion": step.completion.text,
        "completion_tokens": len(step.completion.ids),
        "stop": step.completion.stop.value,
        "results": list(map(_result, step.outcome.results)),
        "changes": list(map(_change, step.outcome.changes)),
        "memory_tokens": step.memory_tokens,
        "entries": step.entries,
        "reward": dict(reward),
        "total": total,
        "advantage": advantage,
        "error": mask_options(rollout.errors.get(step.chunk_index)),
    }


def _result(result: OperationResult) -> JsonObject:
    return {
        "ok": result.ok,
        "code": result.code.value,
        "message": result.message,
        "entry": result.entry_id,
        "operation": asdict(result.operation) if result.operation else None,
    }


def _change(change: Change) -> JsonObject:
    return {name: entry and _entry(entry) for name, entry in change._asdict().items()}


def _entry(entry: Entry) -> JsonObject:
    fields = asdict(entry)
    del fields["metadata"]  # which no rollout has
    return fields


def _question(record: QuestionRecord) -> JsonObject:
    question = record.question
    graded = {} if math.isnan(record.graded) else {"graded": record.graded}
    return {
        "question": question.text,
        "kind": question.kind,
        "answers": list(question.answers),
        "stale": list(question.stale),
        "evidence": question.evidence,
        "answer": record.answer.text if record.answer else None,
        "entries": list(record.entry_ids),
        "score": record.score,
        **graded,
        "error": mask_options(record.error),
    }
