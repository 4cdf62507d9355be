"""What an agent in use answers with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.agent.rollout import StepRecord
from memalpha.protocols import Hit
from memalpha.types import OperationResult


@dataclass(frozen=True, slots=True)
class Added:
    """What reading a text did; all of it is in the store.

    Attributes:
        steps: One record a piece of the text: what the model saw, what it wrote, what that did.
        operations: Numbers of the operations in the namespace's journal, in order: what ``undo`` takes.
    """

    steps: tuple[StepRecord, ...]
    operations: tuple[int, ...]

    @property
    def results(self) -> tuple[OperationResult, ...]:
        """What came of each call of the model, in order; mistakes of the model are results too."""
        return tuple(result for step in self.steps for result in step.outcome.results)


def joined(parts: Sequence[Added]) -> Added:
    """Return what reading several texts one after the other did."""
    return Added(tuple(step for part in parts for step in part.steps), tuple(done for part in parts for done in part.operations))


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer and where it came from.

    Attributes:
        text: The answer; without a reader what was found, a passage a line.
        entries: The retrieved entries the answer was read from, best first; written blocks were read as well.
    """

    text: str
    entries: tuple[Hit, ...]

    def __str__(self) -> str:
        """Return the answer."""
        return self.text


__all__ = ["Added", "Reply", "joined"]
