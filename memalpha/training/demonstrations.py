"""Demonstrations for the warm start: a rule-based teacher walks through generated instances with the very step that training uses.

The memory a demonstration sees is the one that the teacher's own calls led to, rendered and applied by ``AgentStep``, so prompts
of the warm start and of training are the same function of the same state.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from memalpha.agent.step import AgentStep
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.types import Instance, Operation, OperationKind

Teacher = Callable[[Instance, int, Memory, random.Random], list[Operation]]
"""Returns what a good keeper would do with a chunk (its index given), the memory being as it is."""


class Demonstration(NamedTuple):
    """One prompt and the completion the teacher would write, as token ids; the completion ends with the end token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    shared: int


class DemonstrationCounts(NamedTuple):
    """How many operations of each kind the demonstrations hold."""

    insert: int
    update: int
    delete: int


def demonstrate(
    instances: Iterable[Instance], agent: AgentStep, teacher: Teacher, end_token: int, seed: int
) -> Iterator[tuple[Demonstration, list[Operation]]]:
    """Yield one demonstration a chunk, with its operations.

    Raises:
        InputError: If a demonstrated completion is longer than the agent's ``max_new_tokens``, or one of its calls fails.
    """
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        memory = agent.new_memory()
        retriever = agent.new_retriever(memory)
        for index, chunk in enumerate(instance.chunks):
            prompt = agent.prompt(memory, retriever, chunk)
            operations = teacher(instance, index, memory, rng)
            text = agent.write(memory, operations)
            completion = (*agent.encoder.untrusted(text), end_token)
            if len(completion) > agent.config.max_completion_length:
                raise InputError(
                    f"a demonstration of {instance.id} has {len(completion)} tokens",
                    expected=f"at most max_completion_length = {agent.config.max_completion_length}",
                    fix="raise max_completion_length",
                )
            outcome = agent.apply(memory, index, chunk, text)
            if failed := [result for result in outcome.results if not result.ok]:
                raise InputError(f"the teacher's call fails on {instance.id}: {failed[0].message}", expected="calls that succeed")
            yield Demonstration(prompt.ids, completion, prompt.shared), operations


def count_operations(operations: Sequence[Operation]) -> DemonstrationCounts:
    """Count operations by kind."""
    kinds = [operation.kind for operation in operations]
    return DemonstrationCounts(*(kinds.count(kind) for kind in (OperationKind.INSERT, OperationKind.UPDATE, OperationKind.DELETE)))
