"""The rule-based keeper of the demonstrations, as a system: how far the notation and the memory's limits go with perfect judgement.

It reads the annotations of generated data (never the questions), so it exists for those alone, and is a ceiling of what a policy
trained on its demonstrations can copy; see ``memalpha.data.teacher``. ``coverage``, ``p_correct`` and ``p_update`` make it
imperfect.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.agent.rollout import StepCallback
from memalpha.data.teacher import Style, TeacherConfig, teacher_operations
from memalpha.errors import InputError
from memalpha.evaluation.systems.base import Kept, PlainSystem, Setting, count_operations, rendered, searched
from memalpha.types import Instance, OperationResult


@dataclass(frozen=True, slots=True)
class TeacherOptions:
    """How good the keeper is; see ``memalpha.data.teacher.TeacherConfig``.

    Attributes:
        coverage: Probability that a fact is acted on.
        p_correct: Probability that a changed or retracted fact is corrected where it stands.
        p_update: Of those, the probability of an update rather than a deletion and an insertion.
        style: Wording of an entry.
    """

    coverage: float = 1.0
    p_correct: float = 1.0
    p_update: float = 0.5
    style: Style = "words"

    def config(self) -> TeacherConfig:
        """Return the keeper's configuration; InputError if a value does not fit."""
        return TeacherConfig(self.coverage, self.p_correct, self.p_update, self.style)

    def draws(self, temperature: float) -> bool:
        """Whether what is kept depends on the seed: at any temperature, as no model writes it."""
        return min(self.coverage, self.p_correct) < 1 or 0 < self.p_update < 1


class Teacher(PlainSystem):
    """Writes what the annotations say; a ``System``."""

    def __init__(self, setting: Setting, options: TeacherOptions) -> None:
        self.setting, self.config = setting, options.config()
        self.draws = options.draws(setting.temperature)

    def check(self, instances: Sequence[Instance]) -> None:
        """Raise InputError if an instance has no annotations."""
        if bare := next((instance for instance in instances if not instance.facts), None):
            raise InputError(
                f"system 'teacher' on instance {bare.id}, which has no annotated facts",
                expected="generated data",
                fix="name the sets it is for: sets: [synthetic]",
            )

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Keep what the annotations say."""
        return [self._keep(instance, seed) for instance in instances]

    def _keep(self, instance: Instance, seed: int) -> Kept:
        step, rng = self.setting.step, random.Random(f"{seed}/{instance.id}")
        memory = step.new_memory()
        retriever = step.new_retriever(memory)
        results: list[OperationResult] = []
        for index, chunk in enumerate(instance.chunks):
            operations = teacher_operations(instance, index, memory, rng, self.config)
            results += [memory.apply(operation, chunk=index, time=chunk.time) for operation in operations]
        return Kept(
            searched(memory, retriever, self.setting.retrieve_k),
            memory_tokens=memory.tokens,
            entries=rendered(memory),
            operations=count_operations(results),
        )


__all__ = ["Teacher", "TeacherOptions"]
