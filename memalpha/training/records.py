"""Rollouts as JSON-ready data: what run folders hold, reports show and ``memalpha inspect`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from memalpha.agent.rollout import Rollout, StepRecord
from memalpha.rewards.total import StepReward
from memalpha.types import Change, Entry, OperationResult, QuestionRecord


def rollout_to_json(
    rollout: Rollout, rewards: Sequence[StepReward], totals: Sequence[float], advantages: Sequence[float] | None = None
) -> dict[str, Any]:
    """Return one rollout with everything that happened in it.

    Args:
        rollout: A finished, scored rollout.
        rewards: Reward parts of each chunk step.
        totals: Weighted reward of each chunk step.
        advantages: Advantage of each chunk step, for training rollouts.
    """
    steps = [
        _step(step, rollout, rewards[i], totals[i], advantages[i] if advantages else None) for i, step in enumerate(rollout.steps)
    ]
    return {
        "instance": rollout.instance.id,
        "source": rollout.instance.source,
        "system": rollout.steps[0].prompt.messages[0]["content"] if rollout.steps else "",
        "steps": steps,
        "questions": [_question(record) for record in rollout.questions],
        "memory": [_entry(entry) for entry in rollout.memory],
        "memory_tokens": rollout.memory.tokens,
        "input_tokens": sum(rollout.memory.count_tokens(chunk.text) for chunk in rollout.instance.chunks),
    }


def _step(step: StepRecord, rollout: Rollout, reward: StepReward, total: float, advantage: float | None) -> dict[str, Any]:
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
        "results": [_result(result) for result in step.outcome.results],
        "changes": [_change(change) for change in step.outcome.changes],
        "memory_tokens": step.memory_tokens,
        "entries": step.entries,
        "reward": reward._asdict(),
        "total": total,
        "advantage": advantage,
        "error": rollout.content_errors.get(step.chunk_index),
    }


def _result(result: OperationResult) -> dict[str, Any]:
    return {
        "ok": result.ok,
        "code": result.code.value,
        "message": result.message,
        "entry": result.entry_id,
        "operation": asdict(result.operation) if result.operation else None,
    }


def _entry(entry: Entry | None) -> dict[str, Any] | None:
    return asdict(entry) if entry else None


def _change(change: Change) -> dict[str, Any]:
    return {"before": _entry(change.before), "after": _entry(change.after)}


def _question(record: QuestionRecord) -> dict[str, Any]:
    return {
        "question": record.question.text,
        "kind": record.question.kind,
        "answers": list(record.question.answers),
        "stale": list(record.question.stale),
        "evidence": record.question.evidence,
        "answer": record.answer.text if record.answer else None,
        "entries": list(record.entry_ids),
        "score": record.score,
        "error": record.error,
    }
