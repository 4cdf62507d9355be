"""Verbatim store: every line or sentence of the input becomes an entry, word for word, under the agent's own memory limits.

What an agent must beat to have learned anything: the same schema, limits and retriever, with no judgement at all. When the section
is full the oldest entry goes. Entries go into the first list section of the schema; a line longer than its entries may be is cut at
sentences (``memalpha.evaluation.pieces``).

``cut`` counts the tokens of entries dropped for lack of room; they count as deletes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.agent.rollout import StepCallback
from memalpha.errors import InputError
from memalpha.evaluation.pieces import UNIT_TOKENS, Piece, pieces
from memalpha.evaluation.systems.base import Kept, PlainSystem, Setting, count_operations, rendered, searched
from memalpha.memory.memory import Memory
from memalpha.types import Instance, Operation, OperationKind, OperationResult, ResultCode


@dataclass(frozen=True, slots=True)
class VerbatimOptions:
    """How much is kept.

    Attributes:
        memory_tokens: Most tokens of all entries (0 = the schema's limits alone); to match the size of another system's memory.
    """

    memory_tokens: int = 0

    def __post_init__(self) -> None:
        """Check the number."""
        if self.memory_tokens < 0:
            raise InputError(f"memory_tokens is {self.memory_tokens}", expected="0 (no limit) or more")


class Verbatim(PlainSystem):
    """Keeps the newest lines as they are; a ``System``."""

    def __init__(self, setting: Setting, options: VerbatimOptions) -> None:
        self.setting, self.options = setting, options
        schema = setting.step.schema
        bounded = options.memory_tokens or any(section.max_entries for section in schema.lists[:1])
        needed = {OperationKind.INSERT, *([OperationKind.DELETE] if bounded else [])}
        if not schema.lists or not needed <= set(schema.lists[0].operations):
            raise InputError(
                f"system 'verbatim' with schema {schema.name!r}, whose first list does not allow {' and '.join(sorted(needed))}",
                expected="a list that lines can be put into, and taken from where its room is bounded",
                fix="choose another schema, or leave verbatim out",
            )
        self.section = schema.lists[0]

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Store the inputs line by line."""
        return [self._keep(instance) for instance in instances]

    def _keep(self, instance: Instance) -> Kept:
        step, count = self.setting.step, self.setting.count
        memory, held = step.new_memory(), deque[str]()
        retriever = step.new_retriever(memory)
        results: list[OperationResult] = []
        cut = 0
        for piece in pieces(instance.chunks, 1, self.section.max_entry_tokens or UNIT_TOKENS, count):
            result = self._insert(memory, piece)
            while result.code is ResultCode.SECTION_FULL:
                cut += self._drop_oldest(memory, held, results)
                result = self._insert(memory, piece)
            results.append(result)
            if result.changed:
                held.append(result.entry_id or "")
            while 0 < self.options.memory_tokens < memory.tokens:
                cut += self._drop_oldest(memory, held, results)
        return Kept(
            searched(memory, retriever, self.setting.retrieve_k),
            memory_tokens=memory.tokens,
            entries=rendered(memory),
            cut=cut,
            operations=count_operations(results),
        )

    def _insert(self, memory: Memory, piece: Piece) -> OperationResult:
        operation = Operation(OperationKind.INSERT, self.section.name, piece.text, timestamp=piece.time)
        return memory.apply(operation, chunk=piece.chunk, time=piece.time)

    def _drop_oldest(self, memory: Memory, held: deque[str], results: list[OperationResult]) -> int:
        """Delete the oldest entry; return its tokens."""
        before = memory.tokens
        results.append(memory.apply(Operation(OperationKind.DELETE, self.section.name, entry_id=held.popleft())))
        return before - memory.tokens


__all__ = ["Verbatim", "VerbatimOptions"]
