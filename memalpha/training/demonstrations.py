"""Demonstrations for a warm start: what a rule-based teacher writes, on the prompts of training.

A demonstration is a ``CompletionRow``: a prompt and the teacher's completion with its end token.
The teacher's own calls build the memory through ``AgentStep``, so each prompt is the one that a
policy would get that writes what the teacher writes.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from memalpha.agent.step import AgentStep
from memalpha.data import toy
from memalpha.data.teacher import TeacherConfig, excerpt_operations, teach, teacher_operations
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, render_entry
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.metrics import contains, is_teachable, needs_all
from memalpha.qa.readers import (
    UNKNOWN,
    find_passages,
    reader_messages,
    wanted_answers,
    within_budget,
)
from memalpha.retrieval.lexical import LexicalIndex
from memalpha.text.encoding import chat_ids
from memalpha.types import Instance, Operation, Question
from memalpha.units import sentences
from memalpha.update.logps import CompletionRow

TeacherFunction = Callable[[Instance, int, Memory, random.Random], list[Operation]]
"""Returns the operations of a good agent for the chunk of this index, given the memory."""


def demonstrate_reading(
    instances: Iterable[Instance],
    agent: AgentStep,
    teacher: TeacherConfig,
    end_token: int,
    seed: int,
    unknown_share: float,
) -> list[CompletionRow]:
    """Return a demonstration for each question: from passages to the answer or ``unknown``."""
    rows = []
    for reading in make_reader_examples(instances, agent, seed, unknown_share, teacher):
        chat = reader_messages(reading.question, reading.passages)
        prompt = chat_ids(agent.encoder.tokenizer, chat)
        answer = (*agent.encoder.untrusted(reading.answer), end_token)
        rows.append(CompletionRow(prompt, answer, len(prompt)))
    return rows


def rule_based(config: TeacherConfig) -> TeacherFunction:
    """Return the teacher of any instance: from annotated facts, else from excerpts of the text."""

    def teach(
        instance: Instance, index: int, memory: Memory, rng: random.Random
    ) -> list[Operation]:
        if instance.source == toy.TOY_SOURCE:
            return toy.toy_teacher_operations(instance, index, memory, rng)
        operations_of = teacher_operations if instance.facts else excerpt_operations
        return operations_of(instance, index, memory, rng, config)

    return teach


def demonstrate(
    instances: Iterable[Instance],
    agent: AgentStep,
    teacher: TeacherFunction,
    end_token: int,
    seed: int,
) -> Iterator[tuple[CompletionRow, list[Operation]]]:
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
            if len(completion) > limit:
                raise InputError(
                    f"a demonstration of {instance.id} has {len(completion)} tokens",
                    expected=f"at most max_completion_length = {limit}",
                    fix="raise max_completion_length",
                )
            results = agent.apply(memory, index, chunk, text).results
            failures = [result.message for result in results if not result.ok]
            if failures:
                raise InputError(
                    f"the teacher's call fails on instance {instance.id}: "
                    f"{', '.join(failures[:1])}",
                    expected="calls that succeed",
                )
            yield CompletionRow(prompt.ids, completion, prompt.shared), operations


# ------------------------------------------------------------------------------------------------
# Examples that teach a model to read: a question with passages, and the answer or ``unknown``.
#
# The passages are those of the teacher's memory where facts are annotated (as ``ask`` would find
# them), else sentences of the text. A passage with the answer that the search misses takes the
# place of the last one; without it most examples would say ``unknown``.
# A share of the examples is without the passages that hold the answer: there ``unknown`` is right.
_ALL = 1000  # passages that are looked through for one with the answer


class ReaderExample(NamedTuple):
    """A question, the passages that are shown, best first, and the right answer."""

    question: str
    passages: tuple[str, ...]
    answer: str


def make_reader_examples(
    instances: Iterable[Instance],
    agent: AgentStep,
    seed: int,
    unknown_share: float,
    teacher: TeacherConfig,
) -> Iterator[ReaderExample]:
    """Yield an example for each question with such a metric, unless its passages are out of date;
    passages fit the reader's budget.
    """
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        source = _Notes(instance, agent, teacher, rng) if instance.facts else _Sentences(instance)
        for question in instance.questions:
            if is_teachable(question):
                yield from _examples(question, source, agent, rng, unknown_share)


def _examples(
    question: Question,
    source: "_Notes | _Sentences",
    agent: AgentStep,
    rng: random.Random,
    unknown_share: float,
) -> Iterator[ReaderExample]:
    count = agent.config.retrieve_k
    passages = list(source.find(question.text, count))
    if question.metric != "absent" and not source.answers(passages, question):
        more = [p for p in source.find(question.text, _ALL) if source.holds(p, question)]
        passages = [*more[:1], *passages[: count - 1]]
        rng.shuffle(passages)
    budget = agent.config.reader_tokens
    passages = list(within_budget(passages, budget, agent.encoder.count))
    if rng.random() < unknown_share:
        passages = [passage for passage in passages if not source.holds(passage, question)]
    answered = question.metric != "absent" and source.answers(passages, question)
    if needs_all(question):  # all of them, or it is not known
        answered = all(_shows(passages, gold) for gold in question.answers)
    outdated = any(_shows(passages, old) for old in question.stale)
    if answered or not outdated:
        answer = wanted_answers(question)[0] if answered else UNKNOWN
        yield ReaderExample(question.text, tuple(passages), answer)


def _shows(passages: Sequence[str], text: str) -> bool:
    return any(contains(passage, text) for passage in passages)


class _Source:
    """Where passages come from."""

    def answers(self, passages: Sequence[str], question: Question) -> bool:
        """Whether one of the passages holds an accepted answer."""
        return any(self.holds(passage, question) for passage in passages)

    def holds(self, passage: str, question: Question) -> bool:
        """Whether a passage about the subject has an accepted answer."""
        about = question.subject is None or contains(passage, question.subject)
        return about and any(contains(passage, gold) for gold in question.answers)


class _Notes(_Source):
    """Finds notes that the teacher wrote, and with ``archive`` the lines that are not outdated by
    them.
    """

    def __init__(
        self, instance: Instance, agent: AgentStep, teacher: TeacherConfig, rng: random.Random
    ) -> None:
        self.memory = agent.new_memory()
        teach(self.memory, instance, rng, teacher, keep_lines=agent.config.archive)
        self.retriever = agent.new_retriever(self.memory)
        self.lines = {
            (render_entry(line), line.source_chunk) for line in self.memory.entries(ARCHIVE.name)
        }

    def find(self, question: str, k: int) -> Sequence[str]:
        return find_passages(self.memory, self.retriever, question, k).passages

    def holds(self, passage: str, question: Question) -> bool:
        """Whether it is a note about the subject, or a line of the evidence, with an accepted
        answer.
        """
        line = any((passage, chunk) in self.lines for chunk in question.evidence or ())
        return super().holds(passage, question) or (
            line and any(contains(passage, gold) for gold in question.answers)
        )


class _Sentences(_Source):
    """Finds sentences by BM25, then the others in their order."""

    def __init__(self, instance: Instance) -> None:
        self.index = LexicalIndex()
        self.chunk = dict[str, int]()
        for number, chunk in enumerate(instance.chunks):
            for start, end in sentences(chunk.text):
                self.chunk[chunk.text[start:end]] = number
                self.index.write(chunk.text[start:end], chunk.text[start:end])

    def find(self, question: str, k: int) -> Sequence[str]:
        hits = [text for text, _ in self.index.search(question, k)]
        return hits if k < _ALL else list(dict.fromkeys([*hits, *self.chunk]))

    def holds(self, passage: str, question: Question) -> bool:
        """Whether it is a sentence of the evidence with an accepted answer."""
        return super().holds(passage, question) and (
            question.evidence is None or self.chunk[passage] in question.evidence
        )
