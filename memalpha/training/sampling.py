"""Chooses the rollouts that a step trains: instances, questions and random numbers, drawn ahead if
asked.

Everything random depends on (seed, step, rank) alone, so a resumed run draws the same, except with
vLLM servers, which have random numbers of their own.
"""

from __future__ import annotations

import math
import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from memalpha.agent.rollout import BeginEpisodes, Rollout
from memalpha.agent.step import AgentStep
from memalpha.rewards import StepReward
from memalpha.training.schedule import (
    RolloutDraw,
    at_once,
    in_background,
    instances_of_draw,
    of_each_kind,
)
from memalpha.training.scoring import RolloutScorer
from memalpha.types import AdapterEngine, Generator, Instance, Sampling


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """The size of a draw, and how it is sampled. ``rollouts`` counts those of all ranks,
    ``group_size`` for each instance; a draw is trained for ``steps`` optimizer steps. With
    ``staleness`` above 0 as many later steps are drawn ahead.

    ``rollouts`` are those of all ranks, ``group_size`` of each instance; a draw is trained for
    ``steps`` optimizer steps. With ``staleness`` above 0 as many later steps are drawn ahead.
    """

    rollouts: int
    group_size: int
    steps: int
    seed: int
    rank: int
    ranks: int
    sampling: Sampling
    staleness: int = 0
    question_share: float = 1.0


class RolloutSampler:
    """Draws rollouts of instances with the current policy and scores them in the background.

    ``ready`` is entered while completions are generated: it has the policy's weights in place.
    """

    def __init__(
        self,
        agent: AgentStep,
        instances: Sequence[Instance],
        generator: Generator,
        scorer: RolloutScorer,
        begin: BeginEpisodes,
        plan: DrawPlan,
        ready: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.agent = agent
        self.instances = instances
        self.generator = generator
        self.scorer = scorer
        self.begin = begin
        self.plan = plan
        self._ready = ready
        self._ahead = deque[RolloutDraw]()  # drawn, not yet trained; the oldest first
        self._scoring = threading.Lock()

    def take(self, step: int, last_step: int) -> RolloutDraw:
        """Return the draw of a step, whose rollouts and rewards may not be finished yet. With
        staleness 0 it is drawn at once; else the draws of later steps, up to ``last_step``, are
        begun before it is returned.

        With staleness 0 it is drawn now; else the draws of later steps, up to ``last_step``, are
        begun before it is returned.
        """
        while len(self._ahead) <= self.plan.staleness:
            later = step + len(self._ahead) * self.plan.steps
            if self._ahead and later >= last_step:
                break
            self._ahead.append(self._draw(later))
        return self._ahead.popleft()

    def wait(self) -> None:
        """Wait until all rollouts that were begun are drawn: a rollout keeps its policy."""
        for drawn in self._ahead:
            drawn.rollouts.result()

    def _draw(self, step: int) -> RolloutDraw:
        """Begin the rollouts that ``step`` trains; they are scored in the background."""
        engine = self.generator
        concurrent = isinstance(engine, AdapterEngine) and engine.concurrent
        start: Any = in_background if concurrent and self.plan.staleness else at_once
        with self._ready():
            run = partial(self.scorer.credit.draw, self.begin, self.instances_of(step), self.agent)
            rollouts = start(
                partial(run, self.generator, self.sampling(step), self.plan.group_size)
            )
        return RolloutDraw(rollouts, in_background(partial(self._score, rollouts)))

    def _score(self, rollouts: Future[list[Rollout]]) -> list[list[StepReward]]:
        drawn = rollouts.result()
        with self._scoring:
            return self.scorer.score(drawn)

    def instances_of(self, step: int) -> list[Instance]:
        """Return this rank's instances of a step, each ``group_size`` times."""
        plan = self.plan
        sources = [instance.source for instance in self.instances]
        groups = plan.rollouts // plan.group_size
        indices = instances_of_draw(sources, step // plan.steps, groups, plan.seed)
        share = plan.rollouts // plan.ranks
        first = plan.rank * share
        mine = [index for index in indices for _ in range(plan.group_size)][first : first + share]
        return [self.with_questions(self.instances[index], step) for index in mine]

    def with_questions(self, instance: Instance, step: int) -> Instance:
        """Keep ``question_share`` of the questions of each kind, the same for a group."""
        questions = instance.questions
        count = math.ceil(self.plan.question_share * len(questions))
        rng = random.Random(f"questions/{self.plan.seed}/{step}/{instance.id}")
        kept = of_each_kind([question.kind for question in questions], count, rng)
        return replace(instance, questions=tuple(questions[index] for index in kept))

    def sampling(self, step: int) -> Sampling:
        """Return how completions of a step are sampled on this rank."""
        name = f"{self.plan.seed}/{step}/{self.plan.rank}"
        return replace(self.plan.sampling, seed=random.Random(name).getrandbits(40))
