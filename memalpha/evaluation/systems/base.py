"""What every system is: it reads inputs without knowing the questions, and later finds passages for them.

Questions and annotations are unknown while writing; ``teacher`` and ``gold``, which show what could be reached, are the exceptions.
Whatever a system finds, the reader takes it under the same token budget, best first and whole passages.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from memalpha.agent.rollout import StepCallback
from memalpha.agent.step import AgentStep
from memalpha.config import Options
from memalpha.evaluation.host import PolicyHost
from memalpha.evaluation.results import OperationCounts
from memalpha.memory.memory import Memory, render_entry
from memalpha.protocols import Retriever, TokenCounter
from memalpha.qa.evaluator import find_passages
from memalpha.types import Instance, OperationKind, OperationResult, Question, ResultCode, Sampling


class Room(NamedTuple):
    """What the reader takes.

    Attributes:
        tokens: Most tokens of a question's passages.
        window: Whether that is all that the reader's model takes, for a system that needs no budget.
    """

    tokens: int
    window: bool = False


Finder = Callable[[Sequence[Question], Room], list[tuple[str, ...]]]
"""From questions to the passages of each, best first; more than fit may be given."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What a system kept of one instance, and what that cost.

    Attributes:
        find: Finds passages for questions.
        memory_tokens: Tokens of what is kept.
        entries: Texts of what is kept, as a reader sees them; empty where that is the input as it was.
        write_calls: Model calls made to write.
        cut_off: How many of those ended at their length limit.
        cut: Tokens that a limit kept from being kept.
        left_out: From what a reader takes to the tokens of the input that ``find`` leaves out for that.
        operations: What was done to the memory.
    """

    find: Finder
    memory_tokens: int
    entries: tuple[str, ...] = ()
    write_calls: int = 0
    cut_off: int = 0
    cut: int = 0
    left_out: Callable[[Room], int] = lambda room: 0
    operations: OperationCounts = field(default_factory=OperationCounts)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a system is built from: the protocol of one set.

    Attributes:
        step: The agent's prompts and application, with its tokenizer's counter, schema and retriever.
        host: The base model and the adapters on it.
        reader_tokens: The readers' budget.
        retrieve_k: How many entries are retrieved for a question.
        temperature: Of what models write (0 = greedy).
    """

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
        """How a batch is drawn: greedily, or with random numbers that depend on the seed and the batch's instances alone."""
        name = f"{seed}/" + "/".join(instance.id for instance in instances)
        return Sampling(max_new_tokens, self.temperature, seed=zlib.crc32(name.encode()) if self.temperature else None)


@dataclass(frozen=True, slots=True)
class SystemOptions(Options):
    """Base of each kind's options; itself those of a kind that has none."""

    def draws(self, temperature: float) -> bool:
        """Whether what is kept depends on the seed."""
        return False


@dataclass(frozen=True, slots=True)
class WriterOptions(SystemOptions):
    """Base of the options of systems whose memory a model writes."""

    def draws(self, temperature: float) -> bool:
        """Whether what is kept depends on the seed."""
        return temperature > 0


class System:
    """A way of remembering. A kind defines ``keep``, or ``write`` where a batch is written together.

    Attributes:
        reads_window: Whether its reader may read as much as its model takes, rather than the common budget.
    """

    reads_window = False

    def check(self, instances: Sequence[Instance]) -> None:
        """Raise InputError if it cannot work on these instances; called before anything is evaluated."""

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Read a batch of inputs; return what is kept of each, in order."""
        return [self.keep(instance, seed) for instance in instances]

    def keep(self, instance: Instance, seed: int) -> Kept:
        """Read one input."""
        raise NotImplementedError


def searched(memory: Memory, retriever: Retriever, k: int) -> Finder:
    """Return the finder of a memory: its blocks, then the ``k`` entries found, as in training."""
    return lambda questions, room: [find_passages(memory, retriever, question.text, k).passages for question in questions]


def rendered(memory: Memory) -> tuple[str, ...]:
    """Return the texts of a memory, blocks included, as a reader sees them."""
    return tuple(render_entry(entry) for entry in memory)


def count_operations(results: Iterable[OperationResult]) -> OperationCounts:
    """Count what came of calls; the replacement of a block is an update."""
    results = list(results)

    def applied(*kinds: OperationKind) -> int:
        return sum(r.changed and r.operation is not None and r.operation.kind in kinds for r in results)

    return OperationCounts(
        insert=applied(OperationKind.INSERT),
        update=applied(OperationKind.UPDATE, OperationKind.REPLACE),
        delete=applied(OperationKind.DELETE),
        failed=sum(not result.ok for result in results),
        duplicate=sum(result.code is ResultCode.DUPLICATE for result in results),
    )
