"""Demonstrations for a warm start: what a rule-based teacher writes, on the prompts of training.

A demonstration is a ``Row``: a prompt and the teacher's completion with its end token. The
teacher's own calls build the memory through ``AgentStep``, so each prompt is the one that a policy
would get that writes what the teacher writes.
"""

import random
from collections.abc import Callable, Iterable, Iterator

from memalpha.agent.step import AgentStep
from memalpha.data import toy
from memalpha.data.teacher import TeacherConfig, excerpt_operations, teacher_operations
from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.qa.readers import reader_messages
from memalpha.text import chat_ids
from memalpha.training.reader_examples import make_reader_examples
from memalpha.types import Instance, Operation
from memalpha.update.logps import Row

Teacher = Callable[[Instance, int, Memory, random.Random], list[Operation]]
"""Returns the operations of a good agent for the chunk of this index, given the memory."""


def demonstrate_reading(
    instances: Iterable[Instance],
    agent: AgentStep,
    teacher: TeacherConfig,
    end_token: int,
    seed: int,
    unknown_share: float,
) -> list[Row]:
    """Return a demonstration for each question: from passages to the answer or ``unknown``."""
    rows = []
    for reading in make_reader_examples(instances, agent, seed, unknown_share, teacher):
        chat = reader_messages(reading.question, reading.passages)
        prompt = chat_ids(agent.encoder.tokenizer, chat)
        answer = (*agent.encoder.untrusted(reading.answer), end_token)
        rows.append(Row(prompt, answer, len(prompt)))
    return rows


def rule_based(config: TeacherConfig) -> Teacher:
    """Return the teacher of any instance: from annotated facts, else from excerpts of the text."""

    def teach(
        instance: Instance, index: int, memory: Memory, rng: random.Random
    ) -> list[Operation]:
        if instance.source == toy.SOURCE:
            return toy.toy_teacher_operations(instance, index, memory, rng)
        operations_of = teacher_operations if instance.facts else excerpt_operations
        return operations_of(instance, index, memory, rng, config)

    return teach


def demonstrate(
    instances: Iterable[Instance], agent: AgentStep, teacher: Teacher, end_token: int, seed: int
) -> Iterator[tuple[Row, list[Operation]]]:
    """Yield demonstration and operations of each chunk from ``begin`` on.

    InputError if one is too long or a call of the teacher fails.
    """
    limit = agent.config.max_completion_length
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        memory = agent.new_memory(instance.initial_entries)
        retriever = agent.new_retriever(memory)
        for index in range(instance.begin, len(instance.chunks)):
            chunk = instance.chunks[index]
            prompt = agent.prompt(memory, retriever, chunk)
            operations = teacher(instance, index, memory, rng)
            text = agent.write(memory, operations)
            completion = (*agent.encoder.untrusted(text), end_token)
            InputError.raise_if(
                len(completion) > limit,
                f"a demonstration of {instance.id} has {len(completion)} tokens",
                expected=f"at most max_completion_length = {limit}",
                fix="raise max_completion_length",
            )
            results = agent.apply(memory, index, chunk, text).results
            failures = [result.message for result in results if not result.ok]
            InputError.raise_if(
                failures,
                f"the teacher's call fails on {instance.id}: {', '.join(failures[:1])}",
                expected="calls that succeed",
            )
            yield Row(prompt.ids, completion, prompt.shared), operations
