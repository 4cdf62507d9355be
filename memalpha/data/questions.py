"""Questions about the end of a synthetic dialogue, and facts that depend on other persons' facts.

| kind | asks | metric | answers | stale | evidence |
| --- | --- | --- | --- | --- | --- |
| single | the value of an attribute that never changed | bound | the value | none | its statement |
| latest | the value of an attribute that changed | bound | the last value | every earlier value | the last change |
| removed | the value of an attribute that was taken back | absent | none | every value it had | the retraction |
| time | when the value that holds was said | bound | the session's date | none | that session |
| count | every value of an attribute that has several | bound_all | the values that hold | those taken back | see below |
| cascade | a follower's value, where the upstream value changed since | bound | the upstream value | those before | link, change |
| absence | a follower's value, where the upstream value was taken back | absent | none | those before | link, retraction |
| absence | an attribute of which nothing was ever said | absent | none | none | no chunk |

The evidence of ``count`` is the statements of the values that hold and every retraction. ``cascade`` and ``absence`` are off by
default: a person of whom an attribute was never stated says that theirs follows somebody else's (``I live with Oskar in Lima and go
wherever Oskar goes.``); later that other person's value changes or is taken back, in words that do not name the follower.

What always holds: no answer is stale; every question names its person and the attribute's word; a person asked about in ``removed``
has something else that still holds. Any passage about the person that day passes for an answer of ``time``; ask for few of them.
With the rates of cascade and absence 0 nothing is drawn and nothing changes; with them on, a dialogue is the one without them plus
one line a link. The value that is followed ends at least one session after the link was said. ``Instance.facts`` holds the link
(attribute ``shared city``, the other person as value) and all that follows from it about the follower, after the facts of each
session's own lines; no line of a follower mentions a value the other person ever had.

A reader without a model does not combine two passages: with it, ``cascade`` asks whether the memory was brought up to date, and
the never-told form of ``absence`` passes with any passage about the person.

Departure from MEME (Jung et al., arXiv 2605.12477), after whose cascade and absence questions these are made: there the
dependence is a rule over a graph of entities, and absence is always that of a broken dependence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from memalpha.config import Options, Share
from memalpha.data.pools import Attribute
from memalpha.qa.metrics import contains
from memalpha.types import Fact, FactAction, Question

CASCADE, ABSENCE = "cascade", "absence"
"""Kinds of the questions about facts that depend on others."""


@dataclass(frozen=True, slots=True)
class QuestionRates(Options):
    """Probability that a possible question of each kind is asked.

    ``cascade`` is the share of the possible dependences that the dialogue speaks of; those whose value is taken back in the end,
    which kind ``absence`` asks about, need ``absence`` above 0 as well.
    """

    single: Share = 1.0
    latest: Share = 1.0
    removed: Share = 1.0
    time: Share = 0.25
    count: Share = 1.0
    cascade: Share = 0.0
    absence: Share = 0.0


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
            self.past += self.live
            self.live.clear()
        self.live[value] = chunk
        if value in self.past:
            self.past.remove(value)

    def retract(self, value: str, chunk: int) -> None:
        """Let a value no longer hold."""
        del self.live[value]
        self.past.append(value)
        self.retractions.append(chunk)


def make_questions(
    rng: random.Random,
    slots: Sequence[Slot],
    times: Sequence[str],
    wordings: Mapping[str, Sequence[str]],
    rates: QuestionRates,
    max_questions: int = 0,
    more: Sequence[Question] = (),
) -> tuple[Question, ...]:
    """Return the questions about slots at the end of a dialogue, then ``more``, with ids ``q0``, ``q1``, ...

    Where chance would ask nothing, one possible question of a kind with a rate above 0 is asked; ``max_questions`` 0 = all.
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


# ------------------------------------------------------------------------------------------------ facts that depend on others
class Link(NamedTuple):
    """One person's value follows another's.

    Attributes:
        chunk: Session in which the follower says so.
        fact: The link as a fact: subject, ``shared ATTRIBUTE``, the other person.
        followed: What holds of the follower through it: the value at that session, then every change of it.
    """

    chunk: int
    fact: Fact
    followed: tuple[Fact, ...]


def draw_links(
    rng: random.Random,
    slots: Sequence[Slot],
    attributes: Mapping[str, Attribute],
    facts: Sequence[Fact],
    lines: Sequence[str],
    rates: QuestionRates,
) -> list[Link]:
    """Return who follows whom, at most one link an attribute of a person; with ``absence`` 0 nobody follows what is taken back."""
    links = []
    for slot in slots:
        if slot.stated or not attributes[slot.attribute].share:
            continue
        others = [o for o in slots if o.attribute == slot.attribute and o.past and (o.live or rates.absence)]
        said = [line for line in lines if line.startswith(f"{slot.subject}: ")]
        others = [o for o in others if not any(contains(line, value) for line in said for value in (*o.live, *o.past))]
        if others and rng.random() < rates.cascade:
            links.append(_link(rng, slot, rng.choice(others), facts))
    return links


def _link(rng: random.Random, slot: Slot, other: Slot, facts: Sequence[Fact]) -> Link:
    upstream = [fact for fact in facts if (fact.subject, fact.attribute) == (other.subject, other.attribute)]
    chunk = rng.randrange(upstream[0].chunk, upstream[-1].chunk)
    now = [fact for fact in upstream if fact.chunk <= chunk][-1]
    first = Fact(chunk, FactAction.STATE, slot.subject, slot.attribute, now.value)
    later = [replace(fact, subject=slot.subject) for fact in upstream if fact.chunk > chunk]
    return Link(chunk, Fact(chunk, FactAction.STATE, slot.subject, f"shared {slot.attribute}", other.subject), (first, *later))


def dependent_questions(
    rng: random.Random, slots: Sequence[Slot], links: Sequence[Link], wordings: Mapping[str, Sequence[str]], rates: QuestionRates
) -> list[Question]:
    """Return the question about each link, and those about what was never told, each with probability ``rates.absence``."""

    def ask(kind: str, subject: str, attribute: str, answer: str | None, stale: Sequence[str], evidence: Sequence[int]) -> Question:
        text = rng.choice(wordings["value"]).format(name=subject, attribute=attribute)
        answers, metric = ((answer,), "bound") if answer else (("none",), "absent")
        return Question(text, answers, metric, kind, subject, tuple(stale), tuple(evidence))

    questions = []
    for link in links:
        last = link.followed[-1]
        answer = None if last.action is FactAction.RETRACT else last.value
        stale = dict.fromkeys(fact.value for fact in link.followed if fact.value != answer)
        kind = CASCADE if answer else ABSENCE
        questions.append(ask(kind, last.subject, last.attribute, answer, list(stale), [link.chunk, last.chunk]))
    linked = {(link.fact.subject, link.followed[0].attribute) for link in links}
    for slot in slots:
        known = any(other.live for other in slots if other.subject == slot.subject)
        never_told = not slot.stated and not slot.multiple and (slot.subject, slot.attribute) not in linked
        if known and never_told and rng.random() < rates.absence:
            questions.append(ask(ABSENCE, slot.subject, slot.attribute, None, (), ()))
    return questions
