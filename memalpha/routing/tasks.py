"""Routing tasks: a synthetic one with a known optimum, and which sections of a memory to search for
a question.

A task is a batch of episodes in lockstep. In each step K *deciders* choose one of A options each
and the team earns one reward. A state is a tuple of arrays whose first axis is the episode.

Synthetic task: prompts are random unit vectors, each option has hidden specialty vectors, and the
reward is the cosine with noise. All prompts of an episode are drawn at its start, so the best
expected return is known exactly.

Section task: observations are sentence embeddings of questions; one decider per section searches it
or not. The reward is the question's accuracy minus ``cost`` times the share of entries searched.
Each generated dialogue becomes one memory, in one wording:
``words`` (``Marta city Oslo``), ``sentence`` (``The city of Marta is Oslo.``) or ``verbatim``, the
dialogue's own line.
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from memalpha.config import Options
from memalpha.data.pools import Split, Templates, pools
from memalpha.data.synthetic import PRESETS, generate
from memalpha.data.teacher import TeacherConfig, teach
from memalpha.errors import InputError
from memalpha.memory.memory import Memory, count_words
from memalpha.memory.schema import MemorySchema
from memalpha.policies import Shape
from memalpha.protocols import Embedder, Hit, Retriever
from memalpha.qa.evaluator import QAEvaluator
from memalpha.qa.metrics import contains
from memalpha.qa.readers import RecallReader
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.two_layer import TwoLayerRetriever
from memalpha.types import Instance, Question

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
State = tuple[NDArray[Any], ...]
Sections = NDArray[np.bool_]  # a set of the list sections, shape (S,)


class Outcome(NamedTuple):
    """Result of one step: the next state, rewards (n,) and whether each episode is over (n,)."""

    state: State
    rewards: NDArray[np.float64]
    ended: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SyntheticOptions(Options):
    """The synthetic task."""

    dimension: PositiveInt = 32  # length of a prompt
    choices: Annotated[int, Field(ge=2)] = 4  # options of each decider
    deciders: PositiveInt = 1  # routers that choose at a time, each for its own prompt
    facets: PositiveInt = 1  # hidden specialties of each option; the nearest to the prompt counts
    noise: NonNegativeFloat = 0.1  # standard deviation of the reward's noise
    steps: PositiveInt = 1  # most steps of an episode
    p_end: Annotated[float, Field(ge=0, lt=1)] = (
        0.0  # probability that an episode ends after a step
    )
    seed: NonNegativeInt = 42  # draws the hidden specialties


class SyntheticTask:
    """Cosine to hidden ``specialties`` (K, A, facets, D) plus noise.

    States hold prompts (n, steps, K, D), lengths (n,) and the step each episode is at (n,).
    ``routes`` goes into a checkpoint.
    """

    def __init__(self, options: SyntheticOptions = SyntheticOptions()) -> None:
        self.options = o = options
        views = tuple((k * o.dimension, (k + 1) * o.dimension) for k in range(o.deciders))
        self.shape, self.routes = (
            Shape(o.deciders * o.dimension, o.deciders, o.choices, views),
            dict[str, Any](),
        )
        rng = np.random.default_rng(o.seed)
        self.specialties = _unit(rng.normal(size=(o.deciders, o.choices, o.facets, o.dimension)))

    def start(self, n: int, rng: np.random.Generator) -> State:
        """Draw ``n`` new episodes."""
        o = self.options
        prompts = _unit(rng.normal(size=(n, o.steps, o.deciders, o.dimension)))
        lengths = (
            np.minimum(rng.geometric(o.p_end, size=n), o.steps) if o.p_end else np.full(n, o.steps)
        )
        return prompts, lengths, np.zeros(n, dtype=np.int64)

    def held_out(self, n: int, seed: int) -> State:
        """Draw ``n`` episodes that no training run draws; the same for the same seed."""
        return self.start(n, np.random.default_rng([seed, 1]))

    def observe(self, state: State) -> Floats:
        """Return the prompts of the current step, joined over deciders, shape (n, K * D)."""
        return self._prompts(state).reshape(len(state[2]), -1).astype(np.float32)

    def act(self, state: State, actions: Integers, rng: np.random.Generator | None) -> Outcome:
        """Take one step by actions (n, K), 0 to A - 1, for the mean of the chosen cosines; ``rng``
        None adds no noise.
        """
        prompts, lengths, at = state
        gains = self._gains(self._prompts(state))
        rewards = np.take_along_axis(gains, actions[..., None], axis=-1)[..., 0].mean(axis=-1)
        if rng is not None:
            rewards = rewards + rng.normal(scale=self.options.noise, size=rewards.shape)
        return Outcome((prompts, lengths, at + 1), rewards, at + 1 >= lengths)

    def optimum(self, state: State) -> NDArray[np.float64]:
        """Return the best expected return of new episodes, undiscounted, (n,): the mean of the
        highest cosines, summed.
        """
        prompts, lengths, _ = state
        best = self._gains(prompts).max(axis=-1).mean(axis=-1)  # (n, steps)
        return np.asarray((best * (np.arange(best.shape[1]) < lengths[:, None])).sum(axis=1))

    def _prompts(self, state: State) -> NDArray[np.float64]:
        prompts, _, at = state
        return np.asarray(prompts[np.arange(len(at)), np.minimum(at, prompts.shape[1] - 1)])

    def _gains(self, prompts: NDArray[np.float64]) -> NDArray[np.float64]:
        """Cosine of each option's nearest facet: (..., K, D) to (..., K, A)."""
        return np.asarray(np.einsum("...kd,kafd->...kaf", prompts, self.specialties).max(axis=-1))


def _unit(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


@dataclass(frozen=True, slots=True)
class SectionOptions(Options):
    """A section task over generated dialogues."""

    instances: PositiveInt = 60  # number of dialogues, each with a memory and its questions
    split: Split = "train"  # whose names and values, ``train`` or ``test``
    templates: Templates = (
        "train"  # sentences of the dialogues, ``train``, ``held_out`` (unseen wording) or ``all``
    )
    preset: str = "long"  # their size, see ``memalpha.data.synthetic.PRESETS``
    seed: int = 0  # draws the dialogues
    schema: str = "nine_categories"  # memory schema
    wording: Literal["words", "sentence", "verbatim"] = (
        "verbatim"  # form of entries: ``words``, ``sentence`` or ``verbatim``
    )
    only: tuple[
        str, ...
    ] = ()  # attributes whose questions are kept, by their words; empty keeps all
    mode: RetrievalMode = (
        RetrievalMode.DENSE
    )  # how entries are ranked: ``lexical``, ``dense`` or ``hybrid``
    embedder: str = "minilm"  # embeds questions and entries
    k: PositiveInt = 3  # entries retrieved for a question
    reader_tokens: PositiveInt = 256  # budget of the reader, in words
    cost: NonNegativeFloat = 0.1  # reward lost by searching everything

    def check(self) -> None:
        """Check that the preset and the attributes are known."""
        if self.preset not in PRESETS:
            raise InputError(f"preset is {self.preset!r}", expected=f"one of {', '.join(PRESETS)}")
        if unknown := set(self.only) - {
            attribute.word for attribute in pools(self.split).attributes
        }:
            raise InputError(
                f"no attributes {sorted(unknown)}", expected="words of memalpha/data/pools.yaml"
            )


class Case(NamedTuple):
    """One question about one memory, with that memory's retriever over all sections."""

    question: Question
    memory: Memory
    retriever: Retriever


def remember(instance: Instance, schema: MemorySchema, wording: str) -> Memory:
    """Return the memory of a generated dialogue after its last session, with all facts kept and
    corrected.
    """
    if wording == "verbatim":  # notes are the lines that say the facts
        facts = []
        for fact in instance.facts:
            said = [
                line
                for line in instance.chunks[fact.chunk].text.splitlines()
                if line.startswith(f"{fact.subject}: ")
            ]
            note = next((line for line in said if contains(line, fact.value)), "")
            facts.append(replace(fact, note=note))
        instance = replace(instance, facts=tuple(facts))
    config = TeacherConfig(
        style="sentence" if wording == "sentence" else "words", dates=wording != "verbatim"
    )
    memory = Memory(schema)
    teach(memory, instance, random.Random(f"{instance.id}:0"), config)
    return memory


class SectionTask:
    """Routing of questions to sections; states hold case numbers (n,). InputError if no question is
    left.
    """

    def __init__(self, options: SectionOptions, embedder: Embedder) -> None:
        self.options = options
        self.evaluator = QAEvaluator(RecallReader(options.reader_tokens, count_words), options.k)
        schema = MemorySchema.load(options.schema)
        self.sections = tuple(section.name for section in schema.lists)
        self.cases: list[Case] = []
        config = replace(PRESETS[options.preset], split=options.split, templates=options.templates)
        for instance in generate(options.instances, options.seed, config):
            memory = remember(instance, schema, options.wording)
            ranking = RetrievalConfig(retrieval=options.mode, embedder=options.embedder)
            retriever = TwoLayerRetriever(memory, ranking, embedder=embedder)
            for question in instance.questions:
                if not options.only or any(
                    contains(question.text, attribute) for attribute in options.only
                ):
                    self.cases.append(Case(question, memory, retriever))
        if not self.cases:
            raise InputError(
                "a section task without questions",
                expected="at least one",
                fix="more instances, or another only",
            )
        self.embeddings = embedder.embed([case.question.text for case in self.cases])
        size, many = embedder.dimension, len(self.sections)
        self.shape = Shape(size, many, 2, ((0, size),) * many)
        self.sizes = np.array(
            [[case.memory.section_size(name) for name in self.sections] for case in self.cases]
        )
        trained = [name for i, name in enumerate(self.sections) if self.sizes[:, i].any()]
        self.routes: dict[str, Any] = {
            "sections": list(self.sections),
            "trained_sections": trained,
            "embedder": options.embedder,
        }
        self._found: dict[tuple[int, bytes], tuple[float, float]] = {}
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
        rewards = [
            self.reward(int(number), chosen)
            for number, chosen in zip(state[0], actions.astype(bool), strict=True)
        ]
        return Outcome(state, np.array(rewards), np.ones(len(rewards), dtype=bool))

    def optimum(self, state: State) -> NDArray[np.float64]:
        """Return the best reward of any set of sections, shape (n,)."""
        return np.array([self.reward(int(number), self.best(int(number))) for number in state[0]])

    def found(self, number: int, chosen: Sections) -> tuple[float, float]:
        """Return the accuracy of searching the chosen sections for question ``number``, and the
        share of entries searched.
        """
        chosen = chosen & (self.sizes[number] > 0)  # empty ones give nothing
        key = (number, chosen.tobytes())
        if key not in self._found:
            case, sizes = self.cases[number], self.sizes[number]
            within = _Within(
                case.retriever,
                [name for name, wanted in zip(self.sections, chosen, strict=True) if wanted],
            )
            ((record,),) = self.evaluator.evaluate_many([(case.memory, within, [case.question])])
            self._found[key] = record.score, float(sizes[chosen].sum() / max(1, sizes.sum()))
        return self._found[key]

    def reward(self, number: int, chosen: Sections) -> float:
        """Return accuracy minus the cost of what was searched."""
        accuracy, searched = self.found(number, chosen)
        return accuracy - self.options.cost * searched

    def best(self, number: int) -> Sections:
        """Return the set of sections with the highest reward for question ``number``; the smallest
        if equal. It tries all sets.
        """
        if number not in self._best:
            filled = np.flatnonzero(self.sizes[number])
            sets = [
                members
                for size in range(len(filled) + 1)
                for members in itertools.combinations(filled, size)
            ]
            masks = [np.isin(np.arange(len(self.sections)), members) for members in sets]
            self._best[number] = max(masks, key=lambda chosen: self.reward(number, chosen))
        return self._best[number]


class _Within:
    def __init__(self, retriever: Retriever, names: Sequence[str]) -> None:
        self._retriever, self._names = retriever, names

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        return self._retriever.search(query, k, self._names) if self._names else []


class Episodes:
    """``n`` episodes of a task in lockstep; one that ends is followed by another at once.
    ``held_out``: no noise, no other.
    """

    def __init__(
        self, task: SyntheticTask | SectionTask, n: int, seed: int, *, held_out: bool = False
    ) -> None:
        self.task, self._rng = task, None if held_out else np.random.default_rng(seed)
        self._state = task.start(n, self._rng) if self._rng else task.held_out(n, seed)
        self.optimum = task.optimum(self._state) if held_out else None

    def observe(self) -> Floats:
        """Return the observations, shape (n, size)."""
        return self.task.observe(self._state)

    def step(
        self, actions: Integers
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Floats]:
        """Take one step by ``actions`` (n, K); returns rewards, terminated, truncated (n,) and
        observations before any restart.
        """
        state, rewards, ended = self.task.act(self._state, actions, self._rng)
        reached = self.task.observe(state)
        if self._rng and ended.any():
            state = tuple(array.copy() for array in state)
            for array, fresh in zip(
                state, self.task.start(int(ended.sum()), self._rng), strict=True
            ):
                array[ended] = fresh
        self._state = state
        return rewards, ended, np.zeros_like(ended), reached
