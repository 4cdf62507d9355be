"""Examples that teach a model to read: a question with passages, and the answer or ``unknown``.

The passages are those of the teacher's memory where facts are annotated (as ``ask`` would find
them), else sentences of the text. A passage with the answer that the search misses takes the place
of the last one; without it most examples would say ``unknown``.
A share of the examples is without the passages that hold the answer: there ``unknown`` is right.
"""

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from memalpha.agent.step import AgentStep
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.memory.memory import render_entry
from memalpha.memory.schema import ARCHIVE
from memalpha.qa.evaluator import find_passages
from memalpha.qa.metrics import contains
from memalpha.qa.readers import UNKNOWN, within_budget
from memalpha.retrieval.lexical import LexicalIndex
from memalpha.types import Instance, Question
from memalpha.units import sentences

ANSWERED = frozenset(
    {
        "substring",
        "exact_match",
        "f1",
        "stemmed_f1",
        "stemmed_list_f1",
        "parts",
        "bound",
        "bound_all",
        "absent",
    }
)
"""Metrics whose accepted answers are what a reader should write."""
_ALL = 1000  # passages that are looked through for one with the answer


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
    """Yield a reading per question with such a metric, unless what is found is out of date;
    passages fit the reader's budget.
    """
    config, count = agent.config, agent.encoder.count
    for instance in instances:
        rng = random.Random(f"{seed}/{instance.id}")
        find = _Notes(instance, agent, teacher, rng) if instance.facts else _Sentences(instance)
        for question in instance.questions:
            if question.metric in ANSWERED:
                found = list(find(question.text, config.retrieve_k))
                if (
                    not any(find.holds(passage, question) for passage in found)
                    and question.metric != "absent"
                ):
                    further = (
                        passage
                        for passage in find(question.text, _ALL)
                        if find.holds(passage, question)
                    )
                    found = [*islice(further, 1), *found[: config.retrieve_k - 1]]
                    rng.shuffle(found)
                found = list(within_budget(found, config.reader_tokens, count))
                left_out = rng.random() < unknown_share
                kept = [
                    passage for passage in found if not (left_out and find.holds(passage, question))
                ]
                held = question.metric != "absent" and any(
                    find.holds(passage, question) for passage in kept
                )
                if question.metric == "bound_all":  # all of them, or it is not known
                    held = all(
                        any(contains(passage, gold) for passage in kept)
                        for gold in question.answers
                    )
                if not held and any(
                    contains(passage, old) for passage in kept for old in question.stale
                ):
                    continue  # what is shown is out of date
                golds = (
                    question.answers
                    if question.metric in ("bound_all", "parts")
                    else question.answers[:1]
                )
                yield Reading(question.text, tuple(kept), ", ".join(golds) if held else UNKNOWN)


def _holds(passage: str, question: Question) -> bool:
    about = question.subject is None or contains(passage, question.subject)
    return about and any(contains(passage, gold) for gold in question.answers)


class _Notes:
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

    def __call__(self, question: str, k: int) -> Sequence[str]:
        return find_passages(self.memory, self.retriever, question, k).passages

    def holds(self, passage: str, question: Question) -> bool:
        """Whether it is a note about the subject, or a line of the evidence, with an accepted
        answer.
        """
        line = any((passage, chunk) in self.lines for chunk in question.evidence or ())
        return _holds(passage, question) or (
            line and any(contains(passage, gold) for gold in question.answers)
        )


class _Sentences:
    """Finds sentences by BM25, then the others in their order."""

    def __init__(self, instance: Instance) -> None:
        self.index, self.chunk = LexicalIndex(), dict[str, int]()
        for number, chunk in enumerate(instance.chunks):
            for start, end in sentences(chunk.text):
                self.chunk[chunk.text[start:end]] = number
                self.index.write(chunk.text[start:end], chunk.text[start:end])

    def __call__(self, question: str, k: int) -> Sequence[str]:
        found = [text for text, _ in self.index.search(question, k)]
        return found if k < _ALL else list(dict.fromkeys([*found, *self.chunk]))

    def holds(self, passage: str, question: Question) -> bool:
        """Whether it is a sentence of the evidence with an accepted answer."""
        return _holds(passage, question) and (
            question.evidence is None or self.chunk[passage] in question.evidence
        )
