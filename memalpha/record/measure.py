"""One measurement: a system ingests instances, and examiners ask what it holds of each.

Held-out evaluation in training, ``rollout``, ``evaluate`` and ``poison`` all go through
``measure``; they differ in the system (what reads the chunks) and in the examiner (who asks and
scores: a reader under a budget, the rewards of training, the effects of an attack).
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from typing_extensions import override

from memalpha.agent.rollout import Rollout
from memalpha.memory.memory import Memory, render_entry
from memalpha.qa.readers import find_passages, request_to_read
from memalpha.record.rows import InstanceRow, QuestionRow, count_operations
from memalpha.types import (
    Instance,
    JsonObject,
    OperationResult,
    Question,
    ReadRequest,
    Retriever,
    TokenCounter,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestedMemory:
    """The memory that a system made of one instance, with its cost. A reader gets all entries
    unless a subclass says otherwise.
    """

    memory_tokens: int
    entries: tuple[str, ...] = ()  # none if the input is kept unchanged
    write_calls: int = 0
    cut_off: int = 0  # write calls that ended at the length limit
    cut: int = 0  # tokens not stored because of a limit
    operations: Mapping[str, int] = field(default_factory=dict)

    def passages(self, question: Question, budget: int) -> tuple[str, ...]:
        """Return the passages of a question, best first; may be more than ``budget`` tokens."""
        return self.entries

    def request(self, question: Question, budget: int) -> ReadRequest:
        """Return the request to a reader, with a search of the memory if it can be searched."""
        return ReadRequest(question, self.passages(question, budget))

    def sourced(self, question: Question, budget: int) -> list[tuple[str, int | None]]:
        """Return the passages of a question, each with the chunk that it is of (None: unknown)."""
        return [(passage, None) for passage in self.passages(question, budget)]

    def close(self) -> None:
        """Release resources outside of this process; called once all questions are asked."""

    def left_out(self, budget: int) -> int:
        """Number of input tokens that ``passages`` leaves out for a budget."""
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedMemory(IngestedMemory):
    """A memory of which a reader gets the blocks, then the ``k`` entries found, as in training."""

    memory: Memory
    retriever: Retriever
    k: int
    rollout: Rollout | None = None  # that wrote it
    # of each chunk that was read, the instance's chunk that it is a part of (none: the same chunks)
    parts_of: tuple[int, ...] = ()

    @override
    def passages(self, question: Question, budget: int) -> tuple[str, ...]:
        return find_passages(self.memory, self.retriever, question.text, self.k).passages

    @override
    def request(self, question: Question, budget: int) -> ReadRequest:
        return request_to_read(question, self.memory, self.retriever, self.k)[0]

    @override
    def sourced(self, question: Question, budget: int) -> list[tuple[str, int | None]]:
        found = find_passages(self.memory, self.retriever, question.text, self.k)
        chunks = [entry.source_chunk for entry in found.entries]
        if self.parts_of:
            chunks = [None if chunk is None else self.parts_of[chunk] for chunk in chunks]
        return list(zip(found.passages, chunks, strict=True))


def written_memory(
    memory: Memory, retriever: Retriever, k: int, results: Sequence[OperationResult], **costs: Any
) -> SearchedMemory:
    """Return a memory that was written by operations; ``costs`` are fields of the result."""
    return SearchedMemory(
        memory_tokens=memory.tokens,
        entries=tuple(map(render_entry, memory)),
        operations=count_operations(results),
        memory=memory,
        retriever=retriever,
        k=k,
        **costs,
    )


def rollout_memory(rollout: Rollout, k: int) -> SearchedMemory:
    """Return the memory that a rollout wrote."""
    return written_memory(
        rollout.memory,
        rollout.retriever,
        k,
        list(chain.from_iterable(step.outcome.results for step in rollout.steps)),
        write_calls=len(rollout.steps),
        cut_off=[step.completion.cut_off for step in rollout.steps].count(True),
        rollout=rollout,
    )


@dataclass(frozen=True, slots=True)
class Examination:
    """The findings of an examiner about one memory."""

    questions: tuple[QuestionRow, ...]
    reader_tokens: float = math.nan  # mean over the questions of what was read
    cut: int = 0  # tokens that were offered and not read
    rewards: Mapping[str, float] = field(default_factory=dict)
    rollout: JsonObject | None = None


Ingest = Callable[[Sequence[Instance]], Sequence[IngestedMemory]]
Examiner = Callable[[Sequence[Instance], Sequence[Any]], list[Examination]]


def measure(
    ingest: Ingest,
    instances: Sequence[Instance],
    examiners: Mapping[str, Examiner],
    *,
    names: tuple[str, str],
    seed: int,
    count: TokenCounter,
    clock: Callable[[], float] = time.perf_counter,
) -> Iterator[tuple[str, list[InstanceRow]]]:
    """Yield each examiner's name with a row for each instance, in order; ``names``: set, system.

    The memories are closed at the end, also where an examiner fails.
    """
    start = clock()
    memories = ingest(instances)
    seconds_write = (clock() - start) / max(1, len(instances))
    input_tokens = [sum(count(chunk.text) for chunk in each.chunks) for each in instances]
    try:
        for name, examiner in examiners.items():
            start = clock()
            examinations = examiner(instances, memories)
            asked = sum(len(examination.questions) for examination in examinations)
            seconds = (clock() - start) / max(1, asked)
            rows = []
            for instance, memory, tokens, found in zip(
                instances, memories, input_tokens, examinations, strict=True
            ):
                errors = [
                    question.error for question in found.questions if question.error is not None
                ]
                row = InstanceRow(
                    *names,
                    name,
                    seed,
                    instance.id,
                    chunks=len(instance.chunks),
                    input_tokens=tokens,
                    memory_tokens=memory.memory_tokens,
                    reader_tokens=found.reader_tokens,
                    write_calls=memory.write_calls,
                    cut_off=memory.cut_off,
                    cut=memory.cut + found.cut,
                    seconds_write=round(seconds_write, 3),
                    seconds_read=round(seconds * len(found.questions), 3),
                    operations=memory.operations,
                    entries=memory.entries,
                    questions=found.questions,
                    rewards=found.rewards,
                    rollout=found.rollout,
                    failed=errors[0] if errors else None,
                )
                rows.append(row)
            yield name, rows
    finally:
        for memory in memories:
            memory.close()
