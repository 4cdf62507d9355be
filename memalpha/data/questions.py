"""Questions about the end of a synthetic dialogue.

| kind | asks | metric | answers | stale | evidence |
| --- | --- | --- | --- | --- | --- |
| single | the value of an attribute that never changed | bound | the value | none | its statement |
| latest | the value of an attribute that changed | bound | the last value | every earlier value | the last change |
| removed | the value of an attribute that was taken back | absent | none | every value it had | the retraction |
| time | when the value that holds was said | bound | the session's date | none | that session |
| count | every value of an attribute that has several | bound_all | the values that hold | those taken back | see below |

The evidence of ``count`` is the statements of the values that hold and every retraction. Two more kinds, ``cascade`` and
``absence``, are off by default and made by ``memalpha.data.dependence``.

What always holds: no answer is stale; every question has its person as subject and names the person and the attribute's word; a
person asked about in ``removed`` has something else that still holds. The subject of ``time`` is the person as well, so a passage
about something else the person said that day passes for its answer; ask for few of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

from memalpha.errors import InputError
from memalpha.types import Question


@dataclass(frozen=True, slots=True)
class QuestionRates:
    """Probability that a possible question of each kind is asked, from 0 (never) to 1 (always).

    ``cascade`` is the share of the possible dependences that the dialogue speaks of (see ``memalpha.data.dependence``); those whose
    value is taken back in the end, which kind ``absence`` asks about, need ``absence`` above 0 as well.
    """

    single: float = 1.0
    latest: float = 1.0
    removed: float = 1.0
    time: float = 0.25
    count: float = 1.0
    cascade: float = 0.0
    absence: float = 0.0

    def __post_init__(self) -> None:
        """Check that each is a probability; InputError names the one that is not."""
        for kind in fields(self):
            if not 0 <= (rate := getattr(self, kind.name)) <= 1:
                raise InputError(f"rate of {kind.name!r} questions is {rate!r}", expected="a probability, from 0 to 1")


@dataclass(slots=True, eq=False)
class Slot:
    """What was said about one attribute of one person so far.

    Attributes:
        subject: The person.
        attribute: The attribute's word.
        multiple: Whether several values can hold at once.
        live: Values that hold, each with the chunk that stated it.
        past: Values that held once and do not now, in order, each once.
        retractions: Chunks in which something was taken back.
    """

    subject: str
    attribute: str
    multiple: bool
    live: dict[str, int] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)
    retractions: list[int] = field(default_factory=list)

    @property
    def stated(self) -> bool:
        """Whether anything was ever said."""
        return bool(self.live or self.past)

    def state(self, value: str, chunk: int) -> None:
        """Let a value hold from this chunk on, instead of the present one where only one can."""
        if not self.multiple:
            for old in list(self.live):
                self._end(old)
        self.live[value] = chunk
        if value in self.past:
            self.past.remove(value)

    def retract(self, value: str, chunk: int) -> None:
        """Let a value no longer hold."""
        self._end(value)
        self.retractions.append(chunk)

    def _end(self, value: str) -> None:
        del self.live[value]
        self.past.append(value)


def make_questions(
    rng: random.Random,
    slots: Sequence[Slot],
    times: Sequence[str],
    wordings: Mapping[str, Sequence[str]],
    rates: QuestionRates,
    max_questions: int = 0,
    more: Sequence[Question] = (),
) -> tuple[Question, ...]:
    """Return the questions about slots at the end of a dialogue.

    Args:
        rng: Draws wordings and which questions are asked.
        slots: What was said, every slot stated at least once.
        times: Date of each chunk.
        wordings: Sentences by what is asked: ``value``, ``every``, ``time``.
        rates: Share that is asked, by kind. Where chance would ask nothing, one possible question of a kind with a
            rate above 0 is asked.
        max_questions: Most questions (0 = all).
        more: Further questions that are asked, drawn elsewhere; they count among ``max_questions``.

    Returns:
        Questions in the order of the slots, then ``more``, with ids ``q0``, ``q1``, ...
    """
    possible = [q for slot in slots for q in _about(rng, slot, times, wordings, slots) if getattr(rates, q.kind) > 0]
    asked = [question for question in possible if rng.random() < getattr(rates, question.kind)] or possible[:1]
    asked += more
    if 0 < max_questions < len(asked):
        asked = [asked[i] for i in sorted(rng.sample(range(len(asked)), max_questions))]
    return tuple(replace(question, id=f"q{i}") for i, question in enumerate(asked))


def _about(
    rng: random.Random, slot: Slot, times: Sequence[str], wordings: Mapping[str, Sequence[str]], slots: Sequence[Slot]
) -> Iterator[Question]:
    """Every question one slot allows."""

    def question(
        wording: str, kind: str, metric: str, answers: Sequence[str], evidence: Sequence[int], value: str = ""
    ) -> Question:
        text = rng.choice(wordings[wording]).format(name=slot.subject, attribute=slot.attribute, v=value)
        stale = () if kind == "time" else tuple(slot.past)
        return Question(text, tuple(answers), metric, kind, slot.subject, stale, tuple(sorted(set(evidence))))

    if slot.multiple:
        yield question("every", "count", "bound_all", list(slot.live), [*slot.live.values(), *slot.retractions])
    elif slot.live:
        value, chunk = next(iter(slot.live.items()))
        yield question("value", "latest" if slot.past else "single", "bound", [value], [chunk])
        yield question("time", "time", "bound", [times[chunk]], [chunk], value)
    elif any(other.live for other in slots if other.subject == slot.subject):
        yield question("value", "removed", "absent", ["none"], slot.retractions)
