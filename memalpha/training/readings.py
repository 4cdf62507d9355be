"""Examples that teach a model to read: a question with passages, and the answer or ``unknown``.

The passages are those of the teacher's memory where facts are annotated (as ``ask`` would find them), else sentences of the text.
The answer is the accepted one if a passage holds it. A share of the examples is without the passages that do: ``unknown`` is right.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memalpha.agent.step import AgentStep
from memalpha.data.packing import sentences
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.memory.memory import render_entry
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.evaluator import find_passages
from memalpha.qa.metrics import contains
from memalpha.qa.readers import UNKNOWN, within_budget
from memalpha.retrieval.lexical import LexicalIndex
from memalpha.types import Instance, Question

ANSWERED = frozenset({"substring", "exact_match", "f1", "parts", "bound", "bound_all", "absent"})
"""Metrics whose accepted answers are what a reader should write."""


class Reading(NamedTuple):
    """A question, the passages that are shown, best first, and the right answer."""

    question: str
    passages: tuple[str, ...]
    answer: str


def make_readings(
    instances: Iterable[Instance],
    agent: AgentStep,
    seed: int,
    unknown_share: float,
    teacher: TeacherConfig,
) -> Iterator[Reading]:
    """Yield a reading per question with such a metric, unless what is found is out of date; passages fit the reader's budget."""
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        find = _Notes(instance, agent, teacher, rng) if instance.facts else _Sentences(instance, agent)
        for question in instance.questions:
            if question.metric in ANSWERED:
                found = find(question)
                left_out = rng.random() < unknown_share
                kept = [passage for passage in found if not (left_out and find.holds(passage, question))]
                held = question.metric != "absent" and any(find.holds(passage, question) for passage in kept)
                if question.metric == "bound_all":  # all of them, or it is not known
                    held = all(any(contains(passage, gold) for passage in kept) for gold in question.answers)
                if not held and any(contains(passage, old) for passage in kept for old in question.stale):
                    continue  # what is shown is out of date
                golds = question.answers if question.metric in ("bound_all", "parts") else question.answers[:1]
                yield Reading(question.text, tuple(kept), ", ".join(golds) if held else UNKNOWN)


def _holds(passage: str, question: Question) -> bool:
    about = question.subject is None or contains(passage, question.subject)
    return about and any(contains(passage, gold) for gold in question.answers)


class _Notes:
    """Finds notes that the teacher wrote, and with ``archive`` the lines that are not outdated by them."""

    def __init__(self, instance: Instance, agent: AgentStep, teacher: TeacherConfig, rng: random.Random) -> None:
        self.agent, self.memory = agent, agent.new_memory()
        teach(self.memory, instance, rng, teacher, keep_lines=agent.config.archive)
        self.retriever = agent.new_retriever(self.memory)

    def __call__(self, question: Question) -> Sequence[str]:
        config = self.agent.config
        found = find_passages(self.memory, self.retriever, question.text, config.retrieve_k).passages
        return within_budget(found, config.reader_tokens, self.agent.encoder.count)

    def holds(self, passage: str, question: Question) -> bool:
        """Whether it is a note about the subject, or a line of the evidence, with an accepted answer."""
        lines = (line for line in self.memory.entries(ARCHIVE.name) if line.source_chunk in (question.evidence or ()))
        said = any(contains(passage, gold) for gold in question.answers)
        return _holds(passage, question) or (said and passage in map(render_entry, lines))


class _Sentences:
    """Finds sentences by BM25, the one that holds the answer among them."""

    holds = staticmethod(_holds)

    def __init__(self, instance: Instance, agent: AgentStep) -> None:
        self.agent, self.index = agent, LexicalIndex()
        self.texts, self.chunk = dict[str, str](), dict[str, int]()
        for number, chunk in enumerate(instance.chunks):
            for start, end in sentences(chunk.text):
                key = str(len(self.texts))
                self.texts[key], self.chunk[key] = chunk.text[start:end], number
                self.index.write(key, self.texts[key])

    def __call__(self, question: Question) -> Sequence[str]:
        config, evidence = self.agent.config, question.evidence
        keys = [key for key, _ in self.index.search(question.text, config.retrieve_k)]
        if not any(_holds(self.texts[key], question) for key in keys):
            near = [key for key, _ in self.index.search(question.text, len(self.texts))]
            there = [key for key in self.chunk if evidence is None or self.chunk[key] in evidence]
            held = [key for key in dict.fromkeys([*near, *there]) if key in there and _holds(self.texts[key], question)]
            keys = held[:1] + keys[: config.retrieve_k - 1]
            random.Random(question.text).shuffle(keys)
        return within_budget([self.texts[key] for key in keys], config.reader_tokens, self.agent.encoder.count)
