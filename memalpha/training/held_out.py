"""Rollouts on held-out instances, scored by the very scorer that training uses."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from memalpha.agent.rollout import Rollout, StepCallback
from memalpha.agent.step import AgentStep
from memalpha.evaluation.held_out import InstanceResult, instance_result
from memalpha.evaluation.records import rollout_to_json
from memalpha.training.scoring import RolloutScorer, check_masked_share
from memalpha.types import Instance, Sampling

Runner = Callable[[Sequence[Instance], Sampling, StepCallback | None], list[Rollout]]
"""Runs one rollout an instance: a trainer's own way, or ``run_rollouts`` with a generator."""


def evaluate_instances(
    instances: Sequence[Instance],
    run: Runner,
    agent: AgentStep,
    scorer: RolloutScorer,
    on_step: StepCallback | None = None,
    temperature: float = 0.0,
    seed: int = 0,
) -> list[tuple[InstanceResult, dict[str, Any]]]:
    """Return, for each instance in order, its result and its whole trajectory as JSON-ready data.

    Greedy unless a temperature is given; then ``seed`` makes two policies comparable draw by draw. What could not be scored is NaN;
    ``check_results`` says whether that is too much.
    """
    sampling = Sampling(agent.config.max_new_tokens, temperature, seed=seed if temperature else None)
    rollouts = run(instances, sampling, on_step)
    found = []
    for rollout, rewards in zip(rollouts, scorer.score(rollouts), strict=True):
        totals = [reward.total(scorer.reward_config) for reward in rewards]
        result = instance_result(rollout, rewards, scorer.reward_config)
        found.append((result, rollout_to_json(rollout, rewards, totals)))
    return found


def check_results(found: Sequence[tuple[InstanceResult, dict[str, Any]]], limit: float) -> None:
    """Raise TrainingAborted if more than a share of the evaluated instances, those of all processes, has something unscorable."""
    masked = sum(math.isnan(result.reward) for result, _ in found)
    check_masked_share(masked, len(found), limit, [_first_error(rollout) for _, rollout in found])


def _first_error(rollout: Mapping[str, Any]) -> str | None:
    return next((part["error"] for part in (*rollout["questions"], *rollout["steps"]) if part["error"]), None)
