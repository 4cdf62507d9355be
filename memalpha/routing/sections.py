"""The section task: which sections of a memory to search for a question.

Observations are sentence embeddings of questions. One decider per section searches it or not. The reward is the question's
accuracy, with the two-layer retriever and the recall reader of evaluation, minus ``cost`` times the share of entries searched.

Each generated dialogue becomes one memory, written by the demonstrations' teacher in one wording: ``words`` (``Marta city Oslo``),
``sentence`` (``The city of Marta is Oslo.``) or ``verbatim``, the dialogue's own line, which usually shares only the name with a
question. Train and test share question wordings and the eleven attributes, but no name and no value.

What always holds: accuracy is computed once per question and set of sections, without noise; searching no section scores as an
empty result. ``optimum`` tries all sets of sections, with known answers.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeFloat, PositiveInt

from memalpha.config import Options, read
from memalpha.data.pools import Split, Templates, pools
from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import TeacherConfig, teacher_operations
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.policies import Shape
from memalpha.protocols import Embedder, Hit, Retriever
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.metrics import contains
from memalpha.qa.readers import RecallReader
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.embedders import make_embedder
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.routing.tasks import Floats, Integers, Outcome, State
from memalpha.types import Instance, Operation, Question

Wording = Literal["words", "sentence", "verbatim"]
Sections = NDArray[np.bool_]
"""A set of the list sections, shape (S,)."""


@dataclass(frozen=True, slots=True)
class SectionOptions(Options):
    """A section task over generated dialogues.

    Attributes:
        instances: Number of dialogues, each with a memory and its questions.
        split: Whose names and values, ``train`` or ``test``.
        templates: Sentences of the dialogues, ``train``, ``held_out`` (unseen wording) or ``all``.
        preset: Their size, see ``memalpha.data.synthetic.PRESETS``.
        seed: Draws the dialogues.
        schema: Memory schema.
        wording: Form of entries: ``words``, ``sentence`` or ``verbatim``.
        only: Attributes whose questions are kept, by their words; empty keeps all.
        mode: How entries are ranked: ``lexical``, ``dense`` or ``hybrid``.
        embedder: Embeds questions and entries.
        k: Entries retrieved for a question.
        reader_tokens: Budget of the reader, in words.
        cost: Reward lost by searching everything.
    """

    instances: PositiveInt = 60
    split: Split = "train"
    templates: Templates = "train"
    preset: str = "long"
    seed: int = 0
    schema: str = "nine_categories"
    wording: Wording = "verbatim"
    only: tuple[str, ...] = ()
    mode: RetrievalMode = RetrievalMode.DENSE
    embedder: str = "minilm"
    k: PositiveInt = 3
    reader_tokens: PositiveInt = 256
    cost: NonNegativeFloat = 0.1

    def check(self) -> None:
        """Check that the preset and the attributes are known."""
        if self.preset not in PRESETS:
            raise InputError(f"preset is {self.preset!r}", expected=f"one of {', '.join(PRESETS)}")
        if unknown := set(self.only) - {attribute.word for attribute in pools(self.split).attributes}:
            raise InputError(f"no attributes {sorted(unknown)}", expected="words of memalpha/data/pools.yaml")

    def retrieval(self) -> RetrievalConfig:
        """Return how entries are ranked, with all sections open."""
        return RetrievalConfig(retrieval=self.mode, embedder=self.embedder)


def section_options(values: Mapping[str, Any]) -> SectionOptions:
    """Return options from plain data; InputError names what does not fit."""
    return read(SectionOptions, values, "task_options of the section task")


class Case(NamedTuple):
    """One question about one memory, with that memory's retriever over all sections."""

    question: Question
    memory: Memory
    retriever: Retriever


class Found(NamedTuple):
    """Result of a set of sections for a question: its accuracy, and the share of the memory's entries searched."""

    accuracy: float
    searched: float


class SectionTask:
    """Routing of questions to sections, a ``Task``; states hold case numbers (n,). InputError if no question is left."""

    def __init__(self, options: SectionOptions, embedder: Embedder) -> None:
        self.options = options
        self.evaluator = QAEvaluator(RecallReader(options.reader_tokens, count_words), options.k)
        schema = MemorySchema.load(options.schema)
        self.sections = tuple(section.name for section in schema.lists)
        self.cases: list[Case] = []
        config = replace(PRESETS[options.preset], split=options.split, templates=options.templates)
        for instance in generate(options.instances, options.seed, config):
            memory = remember(instance, schema, options.wording)
            retriever = TwoLayerRetriever(memory, options.retrieval(), embedder=embedder)
            self.cases += [Case(question, memory, retriever) for question in kept_questions(instance, options.only)]
        if not self.cases:
            raise InputError("a section task without questions", expected="at least one", fix="more instances, or another only")
        self.embeddings = embedder.embed([case.question.text for case in self.cases])
        size, many = embedder.dimension, len(self.sections)
        self.shape = Shape(size, many, 2, ((0, size),) * many)
        self.sizes = np.array([[case.memory.section_size(name) for name in self.sections] for case in self.cases])
        self._found: dict[tuple[int, bytes], Found] = {}
        self._best: dict[int, Sections] = {}

    def start(self, n: int, rng: np.random.Generator) -> State:
        """Draw ``n`` questions, with replacement."""
        return (rng.integers(len(self.cases), size=n),)

    def held_out(self, n: int, seed: int) -> State:
        """Return the first ``n`` questions; ``seed`` has no effect."""
        return (np.arange(min(n, len(self.cases))),)

    def observe(self, state: State) -> Floats:
        """Return the questions' embeddings."""
        return self.embeddings[state[0]]

    def act(self, state: State, actions: Integers, rng: np.random.Generator | None) -> Outcome:
        """Search the chosen sections; this ends the episode."""
        rewards = [self.reward(int(number), chosen) for number, chosen in zip(state[0], actions.astype(bool), strict=True)]
        return Outcome(state, np.array(rewards), np.ones(len(rewards), dtype=bool))

    def optimum(self, state: State) -> NDArray[np.float64]:
        """Return the best reward of any set of sections, shape (n,)."""
        return np.array([self.reward(int(number), self.best(int(number))) for number in state[0]])

    def routes(self) -> dict[str, Any]:
        """Return the sections, those that ever held an entry, and the embedder's name."""
        trained = [name for i, name in enumerate(self.sections) if self.sizes[:, i].any()]
        return {"sections": list(self.sections), "trained_sections": trained, "embedder": self.options.embedder}

    def found(self, number: int, chosen: Sections) -> Found:
        """Return the result of searching the chosen sections for question ``number``."""
        chosen = chosen & (self.sizes[number] > 0)  # empty ones give nothing
        key = (number, chosen.tobytes())
        if key not in self._found:
            case, sizes = self.cases[number], self.sizes[number]
            names = [name for name, wanted in zip(self.sections, chosen, strict=True) if wanted]
            ((record,),) = self.evaluator.evaluate_many([(case.memory, _Within(case.retriever, names), [case.question])])
            self._found[key] = Found(record.score, float(sizes[chosen].sum() / max(1, sizes.sum())))
        return self._found[key]

    def reward(self, number: int, chosen: Sections) -> float:
        """Return accuracy minus the cost of what was searched."""
        found = self.found(number, chosen)
        return found.accuracy - self.options.cost * found.searched

    def best(self, number: int) -> Sections:
        """Return the set of sections with the highest reward for question ``number``; the smallest if equal."""
        if number not in self._best:
            filled = np.flatnonzero(self.sizes[number])
            sets = [members for size in range(len(filled) + 1) for members in itertools.combinations(filled, size)]
            masks = [np.isin(np.arange(len(self.sections)), members) for members in sets]
            self._best[number] = max(masks, key=lambda chosen: self.reward(number, chosen))
        return self._best[number]


class _Within:
    """A retriever restricted to some sections; no sections find nothing."""

    def __init__(self, retriever: Retriever, names: Sequence[str]) -> None:
        self._retriever, self._names = retriever, names

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Search those sections."""
        return self._retriever.search(query, k, self._names) if self._names else []


def section_tasks(train: SectionOptions, held_out: SectionOptions) -> tuple[SectionTask, SectionTask]:
    """Return the task to train on and the held-out one, with one embedder; InputError if they name two."""
    if train.embedder != held_out.embedder:
        raise InputError(f"the held-out task has embedder {held_out.embedder!r}", expected=train.embedder)
    embedder = make_embedder(train.embedder)
    return SectionTask(train, embedder), SectionTask(held_out, embedder)


def remember(instance: Instance, schema: MemorySchema, wording: Wording) -> Memory:
    """Return the memory of a generated dialogue after its last session, with all facts kept and corrected."""
    rng, memory = random.Random(f"{instance.id}:0"), Memory(schema)
    teacher = TeacherConfig(style="sentence" if wording == "sentence" else "words", dates=wording != "verbatim")
    for t, chunk in enumerate(instance.chunks):
        for operation in teacher_operations(instance, t, memory, rng, teacher):
            said = _verbatim(operation, instance, t) if wording == "verbatim" else operation
            memory.apply(said, chunk=t, time=chunk.time)
    return memory


def kept_questions(instance: Instance, only: Sequence[str]) -> list[Question]:
    """Return the questions about the attributes ``only``, given by their words; all questions if it is empty."""
    return [q for q in instance.questions if not only or any(contains(q.text, attribute) for attribute in only)]


def _verbatim(operation: Operation, instance: Instance, t: int) -> Operation:
    """The operation with the dialogue's own line as text."""
    if operation.content is None:
        return operation
    subject, *_ = operation.content.split()
    wanted = next(
        fact.value
        for fact in instance.facts
        if fact.chunk == t and operation.content.startswith(f"{fact.subject} {fact.attribute} {fact.value}")
    )
    lines = [line for line in instance.chunks[t].text.splitlines() if line.startswith(f"{subject}: ") and contains(line, wanted)]
    return replace(operation, content=lines[0])
