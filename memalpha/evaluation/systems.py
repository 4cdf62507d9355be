"""Base of all systems: a system reads inputs without knowing the questions, and later finds passages for them.

``teacher`` and ``gold`` are exceptions: they use annotations or questions to show upper limits. The reader takes the passages of
every system under the same token budget, best first, whole passages only.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from memalpha.agent.rollout import StepCallback
from memalpha.agent.step import AgentStep
from memalpha.config import Options
from memalpha.evaluation.folder import OperationCounts
from memalpha.evaluation.host import PolicyHost
from memalpha.memory.memory import Memory, render_entry
from memalpha.protocols import Retriever, TokenCounter
from memalpha.qa.evaluator import find_passages
from memalpha.types import Instance, OperationKind, OperationResult, Question, Sampling

# Questions and the reader's budget in tokens to the passages of each, best first; may be more than fit.
Finder = Callable[[Sequence[Question], int], list[tuple[str, ...]]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a system kept of one instance, and its cost."""

    find: Finder
    memory_tokens: int
    entries: tuple[str, ...] = ()  # none if the input is kept unchanged
    write_calls: int = 0
    cut_off: int = 0  # write calls that ended at the length limit
    cut: int = 0  # tokens not kept because of a limit
    left_out: Callable[[int], int] = lambda budget: 0  # input tokens that ``find`` leaves out for a budget
    operations: OperationCounts = field(default_factory=OperationCounts)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a system is built from: the protocol of one set. ``temperature`` 0 is greedy."""

    step: AgentStep
    host: PolicyHost
    reader_tokens: int
    retrieve_k: int
    temperature: float = 0.0

    @property
    def count(self) -> TokenCounter:
        """The common token counter: the model's tokenizer."""
        return self.step.encoder.count

    def sampling(self, max_new_tokens: int, seed: int, instances: Sequence[Instance]) -> Sampling:
        """Sampling of a batch: greedy, or random numbers that depend only on the seed and the batch's instances."""
        name = f"{seed}/" + "/".join(instance.id for instance in instances)
        return Sampling(max_new_tokens, self.temperature, seed=zlib.crc32(name.encode()) if self.temperature else None)


@dataclass(frozen=True, slots=True)
class NoOptions(Options):
    """The options of a kind that has none."""


class System:
    """A memory system with its own ``keep`` or ``write``; ``reads_window``: whether its reader may use the model's whole window."""

    reads_window = False

    def check(self, instances: Sequence[Instance]) -> None:
        """InputError if the system cannot process these instances; called before the evaluation starts."""

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Read a batch of inputs; return what is kept of each, in order."""
        return [self.keep(instance, seed) for instance in instances]

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Read one input."""
        raise NotImplementedError


def searched(memory: Memory, retriever: Retriever, k: int) -> Finder:
    """Return the finder of a memory: its blocks, then the ``k`` entries found, as in training."""
    return lambda questions, budget: [find_passages(memory, retriever, question.text, k).passages for question in questions]


def kept_memory(memory: Memory, retriever: Retriever, k: int, results: Sequence[OperationResult], **costs: Any) -> Kept:
    """Return what a system keeps whose memory has entries, as a reader sees them; ``costs`` are fields of ``Kept``."""
    entries = tuple(render_entry(entry) for entry in memory)
    applied = [result.operation.kind for result in results if result.changed and result.operation is not None]
    counts = OperationCounts(
        insert=applied.count(OperationKind.INSERT),
        update=applied.count(OperationKind.UPDATE) + applied.count(OperationKind.REPLACE),
        delete=applied.count(OperationKind.DELETE),
        failed=sum(not result.ok for result in results),
        duplicate=sum(result.repeated for result in results),
    )
    return Kept(searched(memory, retriever, k), memory.tokens, entries, operations=counts, **costs)
