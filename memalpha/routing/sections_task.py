"""The real task: which sections of a memory a question is looked up in.

Observations are sentence embeddings of the questions. The reward is the question's accuracy, found by the two-layer retriever and
the recall reader exactly as in evaluation, minus ``cost`` times the share of the memory's entries that were searched. Two forms:

* a *set*: one decider a section, which searches it or leaves it out; one step (the team of MAPPO);
* a *sequence*: one decider that names one section after another, or stops; the observation also says what was searched.

What always holds: an accuracy is looked up once for each question and set of sections, and rewards carry no noise; a question for
which no section is searched scores what empty hands score. The oracle of ``optimum`` has seen the answers: it is the best any set
of sections can earn, found by trying them all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder, Hit, Retriever
from memalpha.qa.evaluator import QAEvaluator
from memalpha.routing.tasks import Floats, Integers, Outcome, State
from memalpha.types import Question


@dataclass(frozen=True, slots=True)
class Case:
    """One question about one memory, with the retriever made for that memory, all of its sections open."""

    question: Question
    memory: Memory
    retriever: Retriever


class Found(NamedTuple):
    """What a set of sections gives for a question: its accuracy, and the share of the memory's entries that were searched."""

    accuracy: float
    searched: float


class SectionTask:
    """Routing of questions to sections; a ``memalpha.routing.tasks.Task``.

    States hold case numbers (n,) and which sections were searched, bool (n, S).

    Args:
        cases: At least one; all memories have one schema.
        evaluator: Reads and scores; ``evaluator.k`` entries are retrieved.
        embedder: Embeds the questions.
        embedder_name: Its name, for checkpoints.
        cost: Reward lost by searching everything.
        sequential: Name sections one after another instead of all at once.
    """

    bounds = (-1.0, 1.0)

    def __init__(
        self,
        cases: Sequence[Case],
        evaluator: QAEvaluator,
        embedder: Embedder,
        *,
        embedder_name: str = "",
        cost: float = 0.1,
        sequential: bool = False,
    ) -> None:
        if not cases:
            raise InputError("a section task without questions", expected="at least one")
        self.cases, self.evaluator, self.embedder_name = tuple(cases), evaluator, embedder_name
        self.cost, self.sequential = cost, sequential
        self.sections = tuple(section.name for section in cases[0].memory.schema.lists)
        self.embeddings = embedder.embed([case.question.text for case in self.cases])
        many = len(self.sections)
        self.deciders, self.choices = (1, many + 1) if sequential else (many, 2)
        self.size = embedder.dimension + (many if sequential else 0)
        self.views = (slice(0, self.size),) * self.deciders
        self._sizes = np.array([[case.memory.section_size(name) for name in self.sections] for case in self.cases])
        self._found: dict[tuple[int, bytes], Found] = {}
        self._best: dict[int, float] = {}

    # -------------------------------------------------------------------------------------------- as a task
    def start(self, n: int, rng: np.random.Generator) -> State:
        """Draw ``n`` questions, with replacement."""
        return self._begin(rng.integers(len(self.cases), size=n))

    def held_out(self, n: int, seed: int) -> State:
        """Return the first ``n`` questions; ``seed`` has no effect."""
        return self._begin(np.arange(min(n, len(self.cases))))

    def observe(self, state: State) -> Floats:
        """Return the questions' embeddings, in a sequence joined with what was searched."""
        number, searched = state
        seen = self.embeddings[number]
        return np.concatenate([seen, searched], axis=1).astype(np.float32) if self.sequential else seen

    def act(self, state: State, actions: Integers, rng: np.random.Generator | None) -> Outcome:
        """Search; a set ends at once, a sequence when it stops, names a section again or has named them all."""
        number, searched = state
        if not self.sequential:
            chosen = actions.astype(bool)
            return Outcome((number, chosen), self._rewards(number, chosen), np.ones(len(number), dtype=bool))
        named = actions[:, 0]
        rows = np.arange(len(number))
        again = np.concatenate([searched, np.ones((len(number), 1), dtype=bool)], axis=1)[rows, named]
        after = searched.copy()
        after[rows[~again], named[~again]] = True
        ended = again | after.all(axis=1)
        rewards = np.where(ended, self._rewards(number, after), 0.0)
        return Outcome((number, after), rewards, ended)

    def optimum(self, state: State) -> NDArray[np.float64]:
        """Return the best reward of any set of sections, shape (n,)."""
        return np.array([self._optimum(int(number)) for number in state[0]])

    def routes(self) -> dict[str, Any]:
        """Return the sections, those that ever held an entry, the embedder's name and the form of the task."""
        trained = [name for i, name in enumerate(self.sections) if self._sizes[:, i].any()]
        return {
            "sections": list(self.sections),
            "trained_sections": trained,
            "embedder": self.embedder_name,
            "sequential": self.sequential,
        }

    # -------------------------------------------------------------------------------------------- what it knows
    def found(self, number: int, chosen: NDArray[np.bool_]) -> Found:
        """Return what searching the chosen sections (S,) gives for question ``number``."""
        chosen = np.array([a and s > 0 for a, s in zip(chosen, self._sizes[number], strict=True)])  # empty ones give nothing
        key = (number, chosen.tobytes())
        if key not in self._found:
            case, sizes = self.cases[number], self._sizes[number]
            names = [name for name, wanted in zip(self.sections, chosen.tolist(), strict=True) if wanted]
            (record,) = self.evaluator.evaluate(case.memory, _Within(case.retriever, names), [case.question])
            share = float(sizes[chosen].sum() / max(1, sizes.sum()))
            self._found[key] = Found(record.score, share)
        return self._found[key]

    def sets(self, number: int) -> list[NDArray[np.bool_]]:
        """Return every set of the sections that hold an entry for question ``number``, smaller sets first."""
        filled = np.flatnonzero(self._sizes[number])
        sets = []
        for size in range(len(filled) + 1):
            for members in itertools.combinations(filled, size):
                chosen = np.zeros(len(self.sections), dtype=bool)
                chosen[list(members)] = True
                sets.append(chosen)
        return sets

    def reward(self, found: Found) -> float:
        """Return accuracy minus the cost of what was searched."""
        return found.accuracy - self.cost * found.searched

    def _begin(self, numbers: Integers) -> State:
        return numbers, np.zeros((len(numbers), len(self.sections)), dtype=bool)

    def _rewards(self, numbers: Integers, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
        rewards = np.array([self.reward(self.found(int(n), row)) for n, row in zip(numbers, chosen, strict=True)])
        if np.isnan(rewards).any():
            raise InputError("a question could not be scored", expected="questions with a metric, and a reader that does not fail")
        return rewards

    def _optimum(self, number: int) -> float:
        if number not in self._best:
            self._best[number] = max((self.reward(self.found(number, chosen)) for chosen in self.sets(number)), default=-math.inf)
        return self._best[number]


class _Within:
    """A retriever kept to some sections; none of them finds nothing."""

    def __init__(self, retriever: Retriever, names: Sequence[str]) -> None:
        self._retriever, self._names = retriever, names

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Search those sections."""
        return self._retriever.search(query, k, self._names) if self._names else []
