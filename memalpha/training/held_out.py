"""Measures a policy on held-out instances with the scores and rewards of training."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

from accelerate import PartialState
from accelerate.utils import gather_object

from memalpha.agent.rollout import Rollout, StepCallback
from memalpha.protocols import EventReport
from memalpha.record.folder import RunFolder
from memalpha.record.measure import Examination, SearchedMemory, measure, rollout_memory
from memalpha.record.rows import (
    TOTAL,
    InstanceRow,
    QuestionRow,
    mean_rewards,
    rollout_to_json,
    summarise,
)
from memalpha.training.build import RunComponents
from memalpha.training.scoring import RolloutScorer, check_masked_share
from memalpha.types import Instance, Sampling

Draw = Callable[[Sequence[Instance], Sampling, StepCallback | None], list[Rollout]]


@dataclass(frozen=True, slots=True)
class ScoringExaminer:
    """Asks and scores as in training: all parts of the reward."""

    scorer: RolloutScorer

    def __call__(self, instances: Sequence[Instance], memories: Sequence[Any]) -> list[Examination]:
        """Score the rollouts that wrote the memories."""
        config = self.scorer.reward_config
        rollouts = [memory.rollout for memory in memories]
        examinations = []
        for rollout, rewards in zip(rollouts, self.scorer.score(rollouts), strict=True):
            questions = tuple(starmap(QuestionRow.of, enumerate(rollout.questions)))
            recorded = rollout_to_json(rollout, rewards, config)
            parts = mean_rewards(rewards, config)
            examinations.append(Examination(questions, rewards=parts, rollout=recorded))
        return examinations


@dataclass(frozen=True)
class HeldOut:
    """Held-out measurement of a run; ``draw`` makes the rollouts of the policy as it is now."""

    parts: RunComponents
    draw: Draw
    folder: RunFolder
    seed: int
    report: EventReport

    def measure(self, instances: Sequence[Instance], name: str) -> list[InstanceRow]:
        """Measure instances, split among processes, into ``held_out/NAME.jsonl``; TrainingAborted
        if too few are scored.
        """
        if not instances:
            return []
        state = PartialState()
        clock = time.time()
        ((_, rows),) = measure(
            lambda mine: self._ingest(mine, name, len(instances)),
            instances[state.process_index :: state.num_processes],
            {"scorer": ScoringExaminer(self.parts.scorer)},
            names=("held out", "policy"),
            seed=self.seed,
            count=self.parts.agent.encoder.count,
            clock=untimed,
        )
        if state.num_processes > 1:
            order = {instance.id: index for index, instance in enumerate(instances)}
            rows = sorted(gather_object(rows), key=lambda row: order[row.instance])
        if state.is_main_process:
            self.folder.write_lines(f"held_out/{name}.jsonl", [row.to_json() for row in rows])
        errors = []
        for row in rows:
            recorded = row.rollout or {}
            errors += [part["error"] for part in (*recorded["questions"], *recorded["steps"])]
        unscored = sum(math.isnan(row.rewards[TOTAL]) for row in rows)
        check_masked_share(unscored, len(rows), self.parts.scorer.max_masked_share, errors)
        if state.is_main_process:
            seconds = round(time.time() - clock, 1)
            self.report("evaluated", {"name": name, "seconds": seconds, **summarise(rows)})
        return rows

    def _ingest(self, mine: Sequence[Instance], name: str, total: int) -> list[SearchedMemory]:
        config = self.parts.agent.config
        temperature = self.parts.eval_temperature
        seed = self.seed if temperature else None
        sampling = Sampling(config.max_completion_length, temperature, seed=seed)

        def tell(done: int, chunks: int) -> None:
            place = {"name": name, "done": done, "total": chunks, "instances": total}
            self.report("evaluate", place)

        rollouts = self.draw(mine, sampling, tell)
        return [rollout_memory(rollout, config.retrieve_k) for rollout in rollouts]


def untimed() -> float:
    """Return 0: a resumed run writes the same rows."""
    return 0.0
