"""Update and delete scorecard: what a system answers and keeps after facts changed.

Whoever makes a row observes (``observe``); tables take the shares (docs/evaluation.md). A measure
without data is missing, never 0; unanswered questions are not counted. A memory *holds* a value if
one line or sentence names subject and value (``Marta left Rome`` holds Rome). A system without
entries but with tokens keeps the input as memory. An empty memory has no contradictions or residue,
so read these with ``current``. Cascade, absence: MEME (arXiv 2605.12477).
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from memalpha.data.synthetic import ABSENCE, CASCADE
from memalpha.qa.metrics import contains, gives_stale, words
from memalpha.record.rows import InstanceRow, QuestionRow
from memalpha.record.statistics import Estimate, Seed, estimate
from memalpha.types import Answer, Fact, FactAction, Instance

_SENTENCE = re.compile(r"\n+|(?<=[.!?;])\s+")


class Measure(StrEnum):
    """The measures of the scorecard."""

    STALE_ANSWERS = "stale answers"
    STALE_PASSAGES = "stale passages"
    CURRENT = "current"
    CONTRADICTIONS = "contradictions"
    RESIDUE_MEMORY = "residue in memory"
    RESIDUE_ANSWERS = "residue in answers"
    CASCADE = "cascade accuracy"
    ABSENCE = "absence accuracy"

    @property
    def higher_is_better(self) -> bool:
        """Whether more of it is better."""
        return self in (Measure.CURRENT, Measure.CASCADE, Measure.ABSENCE)


def observe(instance: Instance, row: InstanceRow) -> dict[str, tuple[float, ...]]:
    """Return 1 or 0 (or a score) for each observation on the instance of a row, by measure."""
    observed: dict[str, list[float]] = {measure: [] for measure in Measure}
    retractions = _retracted(instance.facts)
    for question, result in zip(instance.questions, row.questions, strict=True):
        if result.answer is None:
            continue
        answer = _answer(result)
        if question.stale:
            passages = Answer("", result.passages)
            observed[Measure.STALE_ANSWERS].append(gives_stale(question, answer))
            observed[Measure.STALE_PASSAGES].append(gives_stale(question, passages))
        values = [
            value for value in question.stale if (question.subject or "", value) in retractions
        ]
        if values:
            about_them = replace(question, stale=tuple(values))
            observed[Measure.RESIDUE_ANSWERS].append(gives_stale(about_them, answer))
        for kind, measure in ((CASCADE, Measure.CASCADE), (ABSENCE, Measure.ABSENCE)):
            if question.kind == kind and not math.isnan(result.score):
                observed[measure].append(result.score)
    if instance.facts:
        keeps_input = not row.entries and row.memory_tokens > 0
        texts = [chunk.text for chunk in instance.chunks] if keeps_input else row.entries
        holds = holder(texts)
        for subject, value, before in _changed(instance.facts):
            now = holds(subject, value)
            observed[Measure.CURRENT].append(now)
            observed[Measure.CONTRADICTIONS].append(now and any(holds(subject, b) for b in before))
        observed[Measure.RESIDUE_MEMORY] += [
            holds(subject, value) for subject, value in retractions
        ]
    return {measure: tuple(map(float, hits)) for measure, hits in observed.items() if hits}


def scorecard(members: Mapping[Seed, Sequence[InstanceRow]]) -> dict[str, Estimate | None]:
    """Return every measure of one system on one set with one reader; None: not measured."""
    card: dict[str, Estimate | None] = {}
    for measure in Measure:
        hits: dict[Seed, dict[str, tuple[float, ...]]] = {}
        for seed, rows in members.items():
            own = {row.instance: row.observed[measure] for row in rows if measure in row.observed}
            hits |= {seed: own} if own else {}
        card[measure.value] = pooled(hits) if hits else None
    return card


def pooled(values: Mapping[Seed, Mapping[str, Sequence[float]]]) -> Estimate:
    """Return the mean over all values by seed and instance, instances being drawn."""
    means: dict[Seed, dict[str, float]] = {}
    sizes: dict[str, list[int]] = {}
    for seed, by_instance in values.items():
        means[seed] = {name: sum(own) / len(own) for name, own in by_instance.items()}
        for name, own in by_instance.items():
            sizes.setdefault(name, []).append(len(own))
    return estimate(means, weights={name: sum(own) / len(own) for name, own in sizes.items()})


def _answer(result: QuestionRow) -> Answer:
    is_recall = result.answer == "\n".join(result.passages)
    return Answer(result.answer or "", result.passages if is_recall else None)


def holder(texts: Sequence[str]) -> Callable[[str, str], bool]:
    """Return whether a subject and a value stand in one sentence, of sentences indexed by word."""
    sentences = [part for text in texts for part in _SENTENCE.split(text) if part]
    places: dict[str, set[int]] = {}
    for index, sentence in enumerate(sentences):
        for word in words(sentence):
            places.setdefault(word, set()).add(index)

    def holds(subject: str, value: str) -> bool:
        sets = [places.get(word, set()) for word in (*words(subject), *words(value))]
        candidates = set.intersection(*sets) if sets else range(len(sentences))
        texts = (sentences[index] for index in candidates)
        return any(contains(text, subject) and contains(text, value) for text in texts)

    return holds


def _changed(facts: Sequence[Fact]) -> list[tuple[str, str, list[str]]]:
    """Subject, value and earlier values of what changed and still holds."""
    last = {(fact.subject, fact.attribute): fact for fact in facts}
    before: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        if fact.action is FactAction.CHANGE and fact.previous is not None:
            before.setdefault((fact.subject, fact.attribute), []).append(fact.previous)
    changes = []
    for key, values in before.items():
        now = last[key]
        if now.action is not FactAction.RETRACT:
            changes.append((now.subject, now.value, [v for v in values if v != now.value]))
    return changes


def _retracted(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    last = {(fact.subject, fact.attribute, fact.value): fact.action for fact in facts}
    values = [key for key, action in last.items() if action is FactAction.RETRACT]
    return [(subject, value) for subject, _, value in values]
