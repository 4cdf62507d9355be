"""Update and delete scorecard: what a system still answers and keeps after facts changed or were
retracted (docs/evaluation.md).

A measure without data is missing, never 0; unanswered questions are not counted. A memory *holds* a
value if one line or sentence names subject and value (``Marta left Rome`` holds Rome). A system
without entries but with tokens keeps the input as memory. An empty memory has no contradictions or
residue, so read these with ``current``. Cascade, absence: MEME (arXiv 2605.12477).
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from memalpha.data.synthetic import ABSENCE, CASCADE
from memalpha.errors import InputError
from memalpha.qa.metrics import contains, gives_stale, words
from memalpha.record.rows import InstanceRow, QuestionRow
from memalpha.record.statistics import Estimate, Seed, estimate
from memalpha.types import Answer, Fact, FactAction, Instance, Question

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


def measured(instance: Instance, result: InstanceRow) -> dict[Measure, list[float]]:
    """Return 1 or 0 (or a score) for each observation on one instance; InputError if the result is
    of another instance.
    """
    pairs = [pair for pair in _pairs(instance, result) if pair[1].answer is not None]
    changed = [pair for pair in pairs if pair[0].stale]
    found = {
        Measure.STALE_ANSWERS: [
            float(gives_stale(question, _answer(said))) for question, said in changed
        ],
        Measure.STALE_PASSAGES: [
            float(gives_stale(question, Answer("", said.passages))) for question, said in changed
        ],
        Measure.CASCADE: [
            said.score
            for question, said in pairs
            if question.kind == CASCADE and not math.isnan(said.score)
        ],
        Measure.ABSENCE: [
            said.score
            for question, said in pairs
            if question.kind == ABSENCE and not math.isnan(said.score)
        ],
    }
    if instance.facts:
        found |= _memory_measures(instance, result)
        removed = _taken_back(instance.facts)
        gone = [
            (tuple(v for v in q.stale if (q.subject or "", v) in removed), q, said)
            for q, said in pairs
        ]
        asked = [(replace(question, stale=stale), said) for stale, question, said in gone if stale]
        found[Measure.RESIDUE_ANSWERS] = [
            float(gives_stale(question, _answer(said))) for question, said in asked
        ]
    return {measure: hits for measure, hits in found.items() if hits}


def scorecard(
    results: Mapping[Seed, Sequence[InstanceRow]], instances: Mapping[str, Instance]
) -> dict[Measure, Estimate | None]:
    """Return every measure of one system on one set with one reader (None = not measured);
    InputError if a result failed.
    """
    found: dict[Measure, dict[Seed, dict[str, list[float]]]] = {measure: {} for measure in Measure}
    for seed, result in ((seed, result) for seed, rows in results.items() for result in rows):
        if result.failed is not None or result.instance not in instances:
            what = f"{result.system} on {result.instance!r} of set {result.set!r}: {result.failed or 'no such instance'}"
            raise InputError(
                what, expected="results that did not fail, on the instances that were evaluated"
            )
        for measure, hits in measured(instances[result.instance], result).items():
            found[measure].setdefault(seed, {})[result.instance] = hits
    return {measure: _share(by_seed) if by_seed else None for measure, by_seed in found.items()}


def _share(by_seed: Mapping[Seed, Mapping[str, list[float]]]) -> Estimate:
    sizes: dict[str, list[int]] = {}
    for name, hits in (item for row in by_seed.values() for item in row.items()):
        sizes.setdefault(name, []).append(len(hits))
    scores = {
        seed: {name: sum(hits) / len(hits) for name, hits in row.items()}
        for seed, row in by_seed.items()
    }
    return estimate(scores, weights={name: sum(of) / len(of) for name, of in sizes.items()})


def _pairs(instance: Instance, result: InstanceRow) -> Iterator[tuple[Question, QuestionRow]]:
    left = iter(enumerate(instance.questions))
    for said in result.questions:
        question = next(
            (q for index, q in left if (q.id or str(index), q.text) == (said.id, said.text)), None
        )
        if question is None:
            what = f"question {said.id!r} of the result on {result.instance!r} is not one of instance {instance.id!r}"
            raise InputError(f"{what}: {said.text!r}", expected="the data that were evaluated")
        yield question, said


def _answer(said: QuestionRow) -> Answer:
    recalled = said.answer == "\n".join(said.passages)
    return Answer(said.answer or "", said.passages if recalled else None)


def _memory_measures(instance: Instance, result: InstanceRow) -> dict[Measure, list[float]]:
    keeps_input = not result.entries and result.memory_tokens > 0
    texts = [chunk.text for chunk in instance.chunks] if keeps_input else result.entries
    holds = _Sentences(texts).hold
    current, both = [], []
    for (subject, _), (value, before) in _changed(instance.facts).items():
        now = holds(subject, value)
        current.append(float(now))
        both.append(float(now and any(holds(subject, old) for old in before)))
    residue = [float(holds(subject, value)) for subject, value in _taken_back(instance.facts)]
    return {Measure.CURRENT: current, Measure.CONTRADICTIONS: both, Measure.RESIDUE_MEMORY: residue}


class _Sentences:
    """Sentences of a memory indexed by word, for fast search."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._sentences = [
            sentence for text in texts for sentence in _SENTENCE.split(text) if sentence
        ]
        self._with: dict[str, set[int]] = {}
        for index, sentence in enumerate(self._sentences):
            for word in words(sentence):
                self._with.setdefault(word, set()).add(index)

    def hold(self, subject: str, value: str) -> bool:
        wanted = {*words(subject), *words(value)}
        found = (
            set.intersection(*(self._with.get(word, set()) for word in wanted))
            if wanted
            else range(len(self._sentences))
        )
        named = (self._sentences[index] for index in found)
        return any(contains(sentence, subject) and contains(sentence, value) for sentence in named)


def _changed(facts: Sequence[Fact]) -> dict[tuple[str, str], tuple[str, list[str]]]:
    last = {(fact.subject, fact.attribute): fact for fact in facts}
    before: dict[tuple[str, str], list[str]] = {}
    for fact in facts:
        if fact.action is FactAction.CHANGE and fact.previous is not None:
            before.setdefault((fact.subject, fact.attribute), []).append(fact.previous)
    return {
        key: (last[key].value, [value for value in values if value != last[key].value])
        for key, values in before.items()
        if last[key].action is not FactAction.RETRACT
    }


def _taken_back(facts: Sequence[Fact]) -> list[tuple[str, str]]:
    last = {(fact.subject, fact.attribute, fact.value): fact.action for fact in facts}
    return [
        (subject, value)
        for (subject, _, value), action in last.items()
        if action is FactAction.RETRACT
    ]
