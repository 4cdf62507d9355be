"""Measures how often a judge accepts wrong answers: known wrong answers are planted and judged as in an evaluation.

| plant | the planted answer |
| --- | --- |
| other | the accepted answer of another question of the set |
| stale | an earlier value, if the question has one |
| same_type | the answer of a question of the same kind with the same form (number, date or name) and word count |
| accepted | a correct answer: a judge that rejects everything has no false accepts |

A planted wrong answer shares no word (except articles) with an accepted answer; a ``stale`` one is only not contained in one. The
same set and seed give the same plants. Missing verdicts are counted (``failed``) and enter no rate. Nearly right answers are not
covered.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from memalpha.errors import ServiceError
from memalpha.evaluation.statistics import estimate
from memalpha.protocols import AnswerJudge, AnswerRequest
from memalpha.qa.evaluator import ask_all
from memalpha.qa.metrics import contains, overlap_f1
from memalpha.types import Answer, Instance, Question

FALSE_ACCEPT_FILE = "false_accept.json"
PLANTS = ("other", "stale", "same_type", "accepted")

_ALL_ASKED = ("bound_all", "keywords")  # metrics that want every answer
_DRAWS = 50
_EXAMPLES = 10


class Planted(NamedTuple):
    """A question with a planted answer; ``plant`` is one of ``PLANTS``."""

    instance: str
    question: Question
    plant: str
    text: str


def plant_answers(instances: Sequence[Instance], seed: int = 0, *, max_questions: int = 200) -> list[Planted]:
    """Return one answer of each possible plant for a sample of at most ``max_questions`` questions (0 = all)."""
    asked = [(instance.id, question) for instance in instances for question in instance.questions if question.answers]
    rng = random.Random(f"false_accept:{seed}")
    chosen = sorted(rng.sample(range(len(asked)), max_questions)) if 0 < max_questions < len(asked) else range(len(asked))
    questions = [question for _, question in asked]
    return [planted for index in chosen for planted in _plants(rng, *asked[index], questions)]


def false_accepts(judge: AnswerJudge, planted: Sequence[Planted]) -> dict[str, Any]:
    """Return ``rates`` (``Estimate`` by plant), ``failed`` and ``examples``; ServiceError if the judge gave no verdict."""
    requests = [AnswerRequest(item.question, Answer(item.text)) for item in planted]
    verdicts = ask_all(judge.judge, requests, type(judge).__name__)
    given = [
        (item, bool(verdict)) for item, verdict in zip(planted, verdicts, strict=True) if not isinstance(verdict, ServiceError)
    ]
    if planted and not given:
        raise ServiceError(f"the judge gave no verdict on any of {len(planted)} planted answers; the first failure: {verdicts[0]}")
    rates = {}
    for plant in PLANTS:
        by_instance: dict[str, list[bool]] = {}
        for item, accepted in given:
            if item.plant == plant:
                by_instance.setdefault(item.instance, []).append(accepted)
        if by_instance:
            shares = {name: sum(found) / len(found) for name, found in by_instance.items()}
            asked = {name: len(found) for name, found in by_instance.items()}
            rates[plant] = asdict(estimate({0: shares}, weights=asked)) | {"asked": sum(asked.values())}
    wrong = [item for item, accepted in given if accepted and item.plant != "accepted"]
    examples = [
        {"question": item.question.text, "answers": list(item.question.answers), "planted": item.text, "plant": item.plant}
        for item in wrong[:_EXAMPLES]
    ]
    return {"rates": rates, "failed": len(planted) - len(given), "examples": examples}


def _plants(rng: random.Random, instance: str, question: Question, questions: Sequence[Question]) -> Iterator[Planted]:
    whole = ", ".join(question.answers) if question.metric in _ALL_ASKED else question.answers[0]
    yield Planted(instance, question, "accepted", whole)
    if (other := _drawn(rng, question, questions)) is not None:
        yield Planted(instance, question, "other", other)
    stale = [value for value in question.stale if not any(contains(gold, value) for gold in question.answers)]
    if stale:
        yield Planted(instance, question, "stale", rng.choice(stale))
    alike = [o for o in questions if o.kind == question.kind and _shape(o.answers[0]) == _shape(question.answers[0])]
    if (other := _drawn(rng, question, alike)) is not None:
        yield Planted(instance, question, "same_type", other)


def _drawn(rng: random.Random, question: Question, others: Sequence[Question]) -> str | None:
    """A random answer from ``others`` that is wrong here; None if several tries find none."""
    for _ in range(_DRAWS if others else 0):
        text = rng.choice(others).answers[0]
        if all(overlap_f1(text, known) == 0 for known in (*question.answers, *question.stale)):
            return text
    return None


def _shape(text: str) -> tuple[str, int]:
    """Form of an answer (date, number, name or phrase) and word count (at most three)."""
    if re.search(r"\b\d{4}-\d\d-\d\d\b|\b(19|20)\d\d\b", text):
        kind = "date"
    elif re.search(r"\d", text):
        kind = "number"
    else:
        kind = "name" if text[:1].isupper() else "phrase"
    return kind, min(3, len(text.split()))
