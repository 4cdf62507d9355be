"""Gold evidence: the ceiling of the reader and the budget. It knows each question, its answer and where that stands.

Passages for a question, best first, as many as fit the common budget:

* of generated data: the facts that hold at the end, written as the demonstrations write them, those of the question's subject that
  hold an accepted answer first, then the subject's others;
* of other sets: pieces of the evidence chunks (of all chunks where the set does not say which), those that hold an accepted answer
  first, each kind in the order of BM25.

It is a ceiling and no system: where an answer has to be put together from many places, or is worded otherwise than the text, even
this need not reach 1. ``memory_tokens`` is what it chooses from: the facts, or the evidence of all questions together.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from memalpha.agent.rollout import StepCallback
from memalpha.data.teacher import teacher_operations
from memalpha.evaluation.pieces import UNIT_TOKENS, Piece, pieces
from memalpha.evaluation.systems.base import Kept, PlainSystem, Room, Setting, rendered
from memalpha.evaluation.systems.rag import piece_memory
from memalpha.memory.memory import Memory
from memalpha.memory.schema import MemorySchema, Section, SectionKind
from memalpha.protocols import TokenCounter
from memalpha.qa.evaluator import find_passages
from memalpha.qa.metrics import contains, label
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Answer, Instance, Question

_FACTS = MemorySchema("gold", (Section("facts", SectionKind.LIST, timestamps=True),))


@dataclass(frozen=True, slots=True)
class GoldOptions:
    """Nothing to choose."""


class Gold(PlainSystem):
    """The evidence; a ``System``."""

    def __init__(self, setting: Setting, options: GoldOptions) -> None:
        self.count = setting.count

    def write(self, instances: Sequence[Instance], seed: int, on_step: StepCallback | None = None) -> list[Kept]:
        """Look up the evidence."""
        return [self._facts(instance) if instance.facts else self._evidence(instance) for instance in instances]

    def _facts(self, instance: Instance) -> Kept:
        memory, rng = Memory(_FACTS, self.count), random.Random(0)
        for index, chunk in enumerate(instance.chunks):
            for operation in teacher_operations(instance, index, memory, rng):
                memory.apply(operation, chunk=index, time=chunk.time)
        texts = rendered(memory)

        def find(questions: Sequence[Question], room: Room) -> list[tuple[str, ...]]:
            return [about(question, texts) for question in questions]

        return Kept(find, memory_tokens=memory.tokens, entries=texts)

    def _evidence(self, instance: Instance) -> Kept:
        found = pieces(instance.chunks, 1, UNIT_TOKENS, self.count)
        wanted = {piece.chunk for question in instance.questions for piece in _of(question, found)}

        def find(questions: Sequence[Question], room: Room) -> list[tuple[str, ...]]:
            return [answers_first(question, _of(question, found), self.count) for question in questions]

        return Kept(find, memory_tokens=sum(self.count(piece.text) for piece in found if piece.chunk in wanted))


def about(question: Question, texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts that name the question's subject (all, if it has none), those that hold an accepted answer first."""
    named = [text for text in texts if not question.subject or contains(text, question.subject)]
    return tuple(sorted(named, key=lambda text: not _answers(question, text)))


def answers_first(question: Question, found: Sequence[Piece], count: TokenCounter) -> tuple[str, ...]:
    """Return pieces as passages: those that hold an accepted answer first, each kind in the order of BM25, then of reading."""
    memory = piece_memory(found, count)
    ranked = find_passages(memory, TwoLayerRetriever(memory), question, len(memory)).passages
    passages = dict.fromkeys([*ranked, *rendered(memory)])
    return tuple(sorted(passages, key=lambda text: not _answers(question, text)))


def _of(question: Question, found: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in found if not question.evidence or piece.chunk in question.evidence]


def _answers(question: Question, text: str) -> bool:
    if question.metric == "label":
        return label(question, Answer(text, (text,))) == 1
    return any(contains(text, answer) for answer in question.answers)


__all__ = ["Gold", "GoldOptions", "about", "answers_first"]
