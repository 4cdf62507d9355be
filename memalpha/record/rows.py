"""Results of held-out instances, and rollouts as JSON for run folders, reports and ``memalpha
inspect``.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import stdev
from typing import Any

from memalpha.agent.rollout import Rollout, StepRecord
from memalpha.record.folder import RunFolder
from memalpha.rewards.total import PARTS, RewardConfig, StepReward
from memalpha.types import Change, OperationKind, OperationResult, QuestionRecord


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """Result of a rollout on a held-out instance: means over chunks; ``accuracy`` is NaN if a
    reader or judge failed.
    """

    instance: str
    accuracy: float
    reward: float
    tool_success: float
    compression: float
    content: float
    memory_tokens: int
    input_tokens: int
    entries: int
    calls: int
    updates: int
    deletes: int
    cut_off: float
    kinds: dict[str, float]
    kind_counts: dict[str, int]
    operations: dict[str, int] = field(
        default_factory=dict
    )  # those applied, by section and kind: ``semantic/insert``
    own: dict[str, float | None] = field(
        default_factory=dict
    )  # parts of the option ``rewards``; None: not scored


def instance_result(
    rollout: Rollout, rewards: Sequence[StepReward], config: RewardConfig
) -> InstanceResult:
    """Summarise one finished, scored rollout."""
    results = [result for step in rollout.steps for result in step.outcome.results]
    kinds: dict[str, list[float]] = defaultdict(list)
    for record in rollout.questions:
        kinds[record.question.kind].append(record.score)
    done = operation_mix(results)
    parts = {name: _mean([reward[name] for reward in rewards]) for name in config.parts}
    return InstanceResult(
        instance=rollout.instance.id,
        accuracy=rewards[0]["accuracy"],
        reward=_mean([reward.total(config) for reward in rewards]),
        tool_success=parts["tool"],
        compression=rewards[0]["compression"],
        content=parts["content"],
        own={
            name: None if math.isnan(value) else value
            for name, value in parts.items()
            if name not in PARTS
        },
        memory_tokens=rollout.memory.tokens,
        input_tokens=rollout.tokens_read,
        entries=len(rollout.memory),
        calls=len(results),
        updates=sum(n for name, n in done.items() if name.endswith(OperationKind.UPDATE)),
        deletes=sum(n for name, n in done.items() if name.endswith(OperationKind.DELETE)),
        cut_off=_mean([float(step.completion.cut_off) for step in rollout.steps]),
        kinds={kind: _mean(scores) for kind, scores in sorted(kinds.items())},
        kind_counts={kind: len(scores) for kind, scores in sorted(kinds.items())},
        operations=dict(done),
    )


def operation_mix(results: Iterable[OperationResult]) -> Counter[str]:
    """Return the number of applied operations by section and kind, such as ``semantic/insert``."""
    done = (result.operation for result in results if result.changed and result.operation)
    return Counter(f"{operation.section}/{operation.kind}" for operation in done)


def summarise(results: Sequence[InstanceResult]) -> dict[str, Any]:
    """Return means over instances and the accuracy's standard error; ``operations`` are shares of
    calls.
    """
    scored = [result for result in results if not math.isnan(result.accuracy)]
    fields = (
        "accuracy",
        "reward",
        "tool_success",
        "compression",
        "content",
        "memory_tokens",
        "input_tokens",
        "entries",
    )
    columns = {name: [float(getattr(result, name)) for result in scored] for name in fields}
    for name in dict.fromkeys(name for result in scored for name in result.own):
        columns[f"reward_{name}"] = [
            value for result in scored if (value := result.own.get(name)) is not None
        ]
    means = {
        name: _mean([value for value in values if not math.isnan(value)])
        for name, values in columns.items()
    }
    calls = sum(result.calls for result in scored)
    done = sum((Counter(result.operations) for result in scored), Counter[str]())
    return {
        **means,
        "calls_per_instance": _mean([float(result.calls) for result in scored]),
        "update_share": sum(result.updates for result in scored) / calls if calls else math.nan,
        "delete_share": sum(result.deletes for result in scored) / calls if calls else math.nan,
        "cut_off": _mean([result.cut_off for result in scored]),
        "n": len(scored),
        "masked": len(results) - len(scored),
        "stderr": standard_error([result.accuracy for result in scored]),
        "kinds": _by_kind(scored),
        "operations": {name: done[name] / calls for name in sorted(done)},
    }


def paired_difference(
    before: Sequence[InstanceResult], after: Sequence[InstanceResult]
) -> dict[str, Any]:
    """Return the mean paired difference in accuracy over instances scored in both, and its standard
    error.
    """
    first = {result.instance: result.accuracy for result in before}
    pairs = [
        (first[result.instance], result.accuracy) for result in after if result.instance in first
    ]
    differences = [b - a for a, b in pairs if not math.isnan(b - a)]
    return {
        "accuracy": _mean(differences),
        "stderr": standard_error(differences),
        "n": len(differences),
    }


def standard_error(values: Sequence[float]) -> float:
    """Standard error of a mean: unbiased standard deviation over the root of n; NaN for fewer than
    two values.
    """
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


def read_results(folder: RunFolder, name: str) -> list[InstanceResult]:
    """Read a run's held-out evaluation, ``before`` or ``after``; empty if missing. null becomes
    NaN.
    """
    rows: list[dict[str, Any]] = [
        row["result"] for row in folder.read_lines(f"held_out/{name}.jsonl")
    ]
    nan: Any = math.nan
    return [
        InstanceResult(**{key: nan if value is None else value for key, value in row.items()})
        for row in rows
    ]


def _by_kind(results: Sequence[InstanceResult]) -> dict[str, Any]:
    scores, counts = defaultdict[str, float](float), defaultdict[str, int](int)
    for result in results:
        for kind, score in result.kinds.items():
            scores[kind] += score * result.kind_counts[kind]
            counts[kind] += result.kind_counts[kind]
    return {
        kind: {"accuracy": scores[kind] / counts[kind], "questions": counts[kind]}
        for kind in sorted(counts)
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def rollout_to_json(
    rollout: Rollout,
    rewards: Sequence[StepReward],
    config: RewardConfig,
    advantages: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Return a scored rollout as JSON-ready data, with rewards, weighted totals and advantages per
    chunk step.
    """
    of_steps: Sequence[float | None] = advantages or [None] * len(rewards)
    steps = zip(rollout.steps, rewards, of_steps, strict=True)
    return {
        "instance": rollout.instance.id,
        "source": rollout.instance.source,
        "system": rollout.steps[0].prompt.messages[0]["content"] if rollout.steps else "",
        "steps": [
            _step(rollout, step, reward, reward.total(config), advantage)
            for step, reward, advantage in steps
        ],
        "questions": [_question(record) for record in rollout.questions],
        "memory": [asdict(entry) for entry in rollout.memory],
        "memory_tokens": rollout.memory.tokens,
        "input_tokens": rollout.tokens_read,
    }


def _step(
    rollout: Rollout, step: StepRecord, reward: StepReward, total: float, advantage: float | None
) -> dict[str, Any]:
    chunk, written, outcome = (
        rollout.instance.chunks[step.chunk_index],
        step.completion,
        step.outcome,
    )
    return {
        "chunk": step.chunk_index,
        "text": chunk.text,
        "time": chunk.time,
        "prompt": step.prompt.messages[-1]["content"],
        "prompt_tokens": len(step.prompt.ids),
        "completion": written.transcript,
        "completion_tokens": written.sampled,
        "stop": written.stop.value,
        "results": [_result(result) for result in outcome.results],
        "changes": [_change(change) for change in outcome.changes],
        "memory_tokens": step.memory_tokens,
        "entries": step.entries,
        "reward": dict(reward),
        "total": total,
        "advantage": advantage,
        "error": rollout.errors.get(step.chunk_index),
    }


def _result(result: OperationResult) -> dict[str, Any]:
    return {
        "ok": result.ok,
        "code": result.code.value,
        "message": result.message,
        "entry": result.entry_id,
        "operation": asdict(result.operation) if result.operation else None,
    }


def _change(change: Change) -> dict[str, Any]:
    return {name: entry and asdict(entry) for name, entry in change._asdict().items()}


def _question(record: QuestionRecord) -> dict[str, Any]:
    question = record.question
    return {
        "question": question.text,
        "kind": question.kind,
        "answers": list(question.answers),
        "stale": list(question.stale),
        "evidence": question.evidence,
        "answer": record.answer.text if record.answer else None,
        "entries": list(record.entry_ids),
        "score": record.score,
        "error": record.error,
    }
