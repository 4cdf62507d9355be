"""Facts that hang on other facts, for the synthetic dialogues: a person's value follows another's (``cascade``) or was never told.

A person of whom an attribute was never stated says that theirs follows somebody else's (``I live with Oskar in Lima and go wherever
Oskar goes.``). Later that other person's value changes or is taken back, in words that do not name the follower.

| kind | asks | metric | answers | stale | evidence |
| --- | --- | --- | --- | --- | --- |
| cascade | a follower's value, where the upstream value changed since | bound | the upstream value | those before | link, change |
| absence | a follower's value, where the upstream value was taken back | absent | none | those before | link, retraction |
| absence | an attribute of which nothing was ever said | absent | none | none | no chunk |

What always holds: with both rates 0 nothing is drawn and nothing changes; with them on, a dialogue is the one without them plus
one line a link. The value that is followed ends at least one session after the link was said. ``Instance.facts`` holds the link
(attribute ``shared city``, the other person as value) and all that follows from it about the follower, after the facts of each
session's own lines; no line of a follower mentions a value the other person ever had.

A reader without a model does not combine two passages: with it, ``cascade`` asks whether the *memory* was brought up to date, and
the never-told form of ``absence`` passes with any passage about the person, so it says something about generated answers alone.

Departure from MEME (Jung et al., arXiv 2605.12477), after whose cascade and absence questions these are made: there the
dependence is a rule over a graph of entities, and absence is always that of a broken dependence.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from memalpha.data.pools import Attribute
from memalpha.data.questions import QuestionRates, Slot
from memalpha.qa.metrics import contains
from memalpha.types import Fact, FactAction, Question

CASCADE, ABSENCE = "cascade", "absence"
"""Kinds of the questions made here."""


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
    """Return who follows whom, at most one link an attribute of a person.

    Args:
        rng: Draws which of the possible links there are, each with probability ``rates.cascade``.
        slots: All slots, as the dialogue leaves them.
        attributes: Attributes by their word.
        facts: Everything that happened, session by session.
        lines: Every line of the dialogue, ``Name: sentence.``
        rates: With ``absence`` 0 nobody follows a value that is taken back.
    """
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
    """Return the question about each link, and those about what was never told, each with probability ``rates.absence``.

    Nothing never told is asked of a person of whom nothing is known at the end.

    Args:
        rng: Draws wordings and what is asked.
        slots: All slots, as the dialogue leaves them.
        links: Who follows whom.
        wordings: Sentences by what is asked; ``value`` is used.
        rates: Share that is asked.
    """

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
    questions += [
        ask(ABSENCE, slot.subject, slot.attribute, None, (), ())
        for slot in _never_told(slots, links)
        if rng.random() < rates.absence
    ]
    return questions


def _never_told(slots: Sequence[Slot], links: Sequence[Link]) -> Iterator[Slot]:
    linked = {(link.fact.subject, link.followed[0].attribute) for link in links}
    for slot in slots:
        known = any(other.live for other in slots if other.subject == slot.subject)
        if known and not slot.stated and not slot.multiple and (slot.subject, slot.attribute) not in linked:
            yield slot


__all__ = ["ABSENCE", "CASCADE", "Link", "dependent_questions", "draw_links"]
