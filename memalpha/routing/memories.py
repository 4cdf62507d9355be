"""Questions about real memories to train and measure a section router on: generated dialogues, kept by the demonstration keeper.

Each dialogue becomes one memory of the schema, written change by change as a good agent would, in one of three wordings: ``words``
(``Marta city Oslo``), ``sentence`` (``The city of Marta is Oslo.``) or ``verbatim``, the dialogue's own line (``Marta: You can find
me in Oslo these days.``), which seldom shares a word with a question but the name. Train and test dialogues share no name and no
value; they do share the wordings of questions and the eleven attributes. ``only`` keeps the questions of some attributes, so that a
router can be measured on attributes it never met.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from memalpha.data.pools import Split, Templates, pools
from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import TeacherConfig, teacher_operations
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.protocols import Embedder
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.metrics import contains
from memalpha.qa.readers import RecallReader
from memalpha.retrieval.config import RetrievalConfig, RetrievalMode
from memalpha.retrieval.embedders import make_embedder
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.routing.sections_task import Case, SectionTask
from memalpha.types import Instance, Operation, Question

Wording = Literal["words", "sentence", "verbatim"]


@dataclass(frozen=True, slots=True)
class SectionOptions:
    """A section task over generated dialogues.

    Attributes:
        instances: Number of dialogues, each with a memory and its questions.
        split: Whose names and values, ``train`` or ``test``.
        templates: Sentences of the dialogues, ``train``, ``held_out`` (unseen wording) or ``all``.
        preset: Their size, see ``memalpha.data.synthetic.PRESETS``.
        seed: Draws the dialogues.
        schema: Memory schema.
        wording: What entries look like: ``words``, ``sentence`` or ``verbatim``.
        only: Attributes whose questions are kept, by their words; empty keeps all.
        mode: How entries are ranked: ``lexical``, ``dense`` or ``hybrid``.
        embedder: Embeds questions and entries.
        k: Entries retrieved for a question.
        reader_tokens: Budget of what is read, in words.
        cost: Reward lost by searching everything.
        sequential: Name sections one after another.
    """

    instances: int = 60
    split: Split = "train"
    templates: Templates = "train"
    preset: str = "long"
    seed: int = 0
    schema: str = "nine_categories"
    wording: Wording = "verbatim"
    only: tuple[str, ...] = ()
    mode: str = "dense"
    embedder: str = "minilm"
    k: int = 3
    reader_tokens: int = 256
    cost: float = 0.1
    sequential: bool = False

    def __post_init__(self) -> None:
        """Check what nothing below checks."""
        if self.preset not in PRESETS or self.wording not in ("words", "sentence", "verbatim"):
            raise InputError(
                f"section task: preset {self.preset!r}, wording {self.wording!r}",
                expected=f"one of {', '.join(PRESETS)}; words, sentence or verbatim",
            )
        object.__setattr__(self, "only", tuple(self.only))
        if unknown := set(self.only) - {attribute.word for attribute in pools(self.split).attributes}:
            raise InputError(f"section task: no attributes {sorted(unknown)}", expected="words of memalpha/data/pools.yaml")
        if self.cost < 0:
            raise InputError(f"section task: cost is {self.cost}", expected="at least 0")

    def retrieval(self) -> RetrievalConfig:
        """Return how entries are ranked, with all sections open."""
        return RetrievalConfig(mode=RetrievalMode(self.mode), embedder=self.embedder)


def section_task(options: SectionOptions, embedder: Embedder | None = None) -> SectionTask:
    """Make the dialogues, their memories and the task.

    Args:
        options: What to make.
        embedder: Used in place of a new one of the configured name, so that several tasks can share one.

    Raises:
        InputError: If an option is not possible, or no question is left.
    """
    shared = embedder or make_embedder(options.embedder)
    config = replace(PRESETS[options.preset], split=options.split, templates=options.templates)
    schema = MemorySchema.load(options.schema)
    cases = []
    for instance in generate(options.instances, options.seed, config):
        memory = remember(instance, schema, options.wording)
        retriever = TwoLayerRetriever(memory, options.retrieval(), embedder=shared)
        cases += [Case(question, memory, retriever) for question in kept_questions(instance, options.only)]
    evaluator = QAEvaluator(RecallReader(options.reader_tokens, count_words), options.k)
    return SectionTask(cases, evaluator, shared, embedder_name=options.embedder, cost=options.cost, sequential=options.sequential)


def remember(instance: Instance, schema: MemorySchema, wording: Wording, seed: int = 0) -> Memory:
    """Return the memory of a generated dialogue after its last session, everything kept and corrected.

    Args:
        instance: The dialogue, with its facts.
        schema: Of the memory.
        wording: What entries look like.
        seed: Draws how changes are corrected.
    """
    rng, memory = random.Random(f"{instance.id}:{seed}"), Memory(schema)
    teacher = TeacherConfig(style="sentence" if wording == "sentence" else "words", dates=wording != "verbatim")
    for t, chunk in enumerate(instance.chunks):
        for operation in teacher_operations(instance, t, memory, rng, teacher):
            said = _verbatim(operation, instance, t) if wording == "verbatim" else operation
            memory.apply(said, chunk=t, time=chunk.time)
    return memory


def kept_questions(instance: Instance, only: Sequence[str]) -> list[Question]:
    """Return the questions about some attributes, by their words; all of them where none is named."""
    return [q for q in instance.questions if not only or any(contains(q.text, attribute) for attribute in only)]


def _verbatim(operation: Operation, instance: Instance, t: int) -> Operation:
    """The operation with the dialogue's own line in place of the keeper's wording (``Marta city Oslo``)."""
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


def section_options(values: dict[str, Any]) -> SectionOptions:
    """Return options from plain data; InputError names those that there are not."""
    names = {item.name for item in fields(SectionOptions)}
    if unknown := sorted(set(values) - names):
        raise InputError(f"section task: unknown options {unknown}", expected=", ".join(sorted(names)))
    return SectionOptions(**values)
