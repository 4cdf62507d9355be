"""Ways to choose the sections of a question, side by side: everything, FAISS layer 1, a learned router, and an oracle.

All are measured on the same questions with the same layer 2; what differs is which sections they open. What always holds: times are
processor time of the whole search, layer 1 and layer 2, with the question's embedding known beforehand (all need the same one, but
for BM25 over everything, which needs none); the oracle has no time, for it tries every set and has seen the answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder
from memalpha.retrieval.config import RetrievalConfig
from memalpha.retrieval.two_layer import SectionRouter, TwoLayerRetriever
from memalpha.routing.sections_task import Found, SectionTask

MakeRetriever = Callable[[Memory], TwoLayerRetriever]
"""Makes the retriever of one memory, with a layer 1 of its own."""


@dataclass(frozen=True, slots=True)
class Routed:
    """One way to choose, measured.

    Attributes:
        name: What it is.
        accuracy: Mean over questions.
        stderr: Standard error of that mean, over memories (questions about one memory are not independent).
        searched: Mean number of entries searched for a question.
        share: Mean share of the memory's entries that were searched.
        sections: Mean number of sections opened that hold an entry.
        milliseconds: Mean processor time of a search; None where it has none.
        scores: Score of each question, in order, for paired comparisons.
    """

    name: str
    accuracy: float
    stderr: float
    searched: float
    share: float
    sections: float
    milliseconds: float | None
    scores: tuple[float, ...]


class _Choice(NamedTuple):
    found: Found
    sections: int


def compare(task: SectionTask, ways: dict[str, MakeRetriever]) -> list[Routed]:
    """Measure every way and the oracle on all questions of a task.

    Args:
        task: Whose questions, memories, reader and k.
        ways: For each name, what makes the retriever whose layer 1 chooses and whose layer 2 finds.

    Returns:
        One row a way, in order, then the oracle.
    """
    rows = [_measure(task, name, make) for name, make in ways.items()]
    best = []
    for number in range(len(task.cases)):
        found = [(task.found(number, chosen), int(chosen.sum())) for chosen in task.sets(number)]
        best.append(_Choice(*max(found, key=lambda pair: task.reward(pair[0]))))
    return [*rows, _row(task, "oracle", best, None)]


def standard_ways(
    config: RetrievalConfig, embedder: Embedder, routers: dict[str, SectionRouter], kept: Sequence[int] = (1, 2, 3)
) -> dict[str, MakeRetriever]:
    """Return everything, the built-in layer 1 for each number of sections kept, and each router.

    Args:
        config: How layer 2 ranks.
        embedder: Shared by all.
        routers: Trained routers by name.
        kept: Numbers of sections the built-in layer 1 keeps.
    """

    def way(settings: RetrievalConfig, router: SectionRouter | None = None) -> MakeRetriever:
        return lambda memory: TwoLayerRetriever(memory, settings, embedder=embedder, router=router)

    built_in = {f"layer 1, {n} kept": way(replace(config, sections_kept=n)) for n in kept}
    return {"everything": way(config), **built_in, **{name: way(config, router) for name, router in routers.items()}}


def _measure(task: SectionTask, name: str, make: MakeRetriever) -> Routed:
    choices: list[_Choice] = []
    retrievers: dict[int, TwoLayerRetriever] = {}
    seconds = 0.0
    for number, case in enumerate(task.cases):
        retriever = retrievers.get(id(case.memory)) or retrievers.setdefault(id(case.memory), make(case.memory))
        names = retriever.route(case.question.text)  # also embeds the question and takes in the memory
        began = time.process_time()
        retriever.search(case.question.text, task.evaluator.k)
        seconds += time.process_time() - began
        chosen = np.array([section in names for section in task.sections])
        choices.append(_Choice(task.found(number, chosen), sum(case.memory.section_size(section) > 0 for section in names)))
    return _row(task, name, choices, 1000 * seconds / len(task.cases))


def _row(task: SectionTask, name: str, choices: Sequence[_Choice], milliseconds: float | None) -> Routed:
    scores = np.array([choice.found.accuracy for choice in choices])
    sizes = np.array([sum(case.memory.section_size(section) for section in task.sections) for case in task.cases])
    shares = np.array([choice.found.searched for choice in choices])
    groups: dict[int, list[float]] = {}
    for case, score in zip(task.cases, scores, strict=True):
        groups.setdefault(id(case.memory), []).append(float(score))
    means = np.array([np.mean(group) for group in groups.values()])
    spread = float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else float("nan")
    return Routed(
        name=name,
        accuracy=float(scores.mean()),
        stderr=spread,
        searched=float((shares * sizes).mean()),
        share=float(shares.mean()),
        sections=float(np.mean([choice.sections for choice in choices])),
        milliseconds=milliseconds,
        scores=tuple(scores.tolist()),
    )
