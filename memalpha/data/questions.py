"""Questions about the end of a synthetic dialogue, and facts that depend on other persons' facts.

| kind | asks | metric | answers | stale | evidence |
| --- | --- | --- | --- | --- | --- |
| single | an attribute that never changed | bound | the value | none | its statement |
| latest | an attribute that changed | bound | the last value | every earlier value | the last change |
| removed | an attribute that was taken back | absent | none | every value it had | the retraction |
| time | when the current value was said | bound | the session's date | none | that session |
| count | every value of a multiple attribute | bound_all | current values | retracted values | their statements, all retractions |
| cascade | a follower's value after the upstream value changed | bound | the upstream value | those before | link, change |
| absence | a follower's value after the upstream value was taken back | absent | none | those before | link, retraction |
| absence | an attribute that was never stated | absent | none | none | no chunk |

``cascade`` and ``absence`` are off by default. A link is a line in which one person says that their value follows another's (``I
live with Oskar in Lima and go wherever Oskar goes.``); the upstream value ends in a later session that does not name the follower.
``Instance.facts`` holds links (attribute ``shared city``) and their consequences, after the session's own facts.

No answer is stale. In ``removed`` the person still has another current fact. Limit: any passage about the person of that day passes
``time``, and any about the person passes the never-stated ``absence``. Departure from MEME (Jung et al., arXiv 2605.12477): there
dependences are rules over an entity graph, and absence is always a broken dependence.
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


@dataclass(frozen=True, slots=True)
class QuestionRates(Options):
    """Probability that a possible question of each kind is asked.

    ``cascade`` is the share of possible dependences in the dialogue; links to a value taken back also need ``absence`` above 0.
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
    """What was said so far about an attribute of a person; ``live`` has the current values with their chunks, ``past`` former."""

    subject: str
    attribute: str
    multiple: bool
    live: dict[str, int] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)
    retractions: list[int] = field(default_factory=list)

    @property
    def stated(self) -> bool:
        """Whether any value was ever stated."""
        return bool(self.live or self.past)

    def state(self, value: str, chunk: int) -> None:
        """Add a value from this chunk on; replace the present one unless ``multiple``."""
        if not self.multiple:
            self.past += self.live
            self.live.clear()
        self.live[value] = chunk
        if value in self.past:
            self.past.remove(value)

    def retract(self, value: str, chunk: int) -> None:
        """Take a value back."""
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

    If no question is drawn, one of a kind with a rate above 0 is asked. ``max_questions`` 0 = all.
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


class Link(NamedTuple):
    """A dependence of one person's value on another's, stated in session ``chunk``; ``followed`` has the facts that result."""

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
    """Draw links, at most one per attribute of a person; with ``absence`` 0 none to a value that is taken back."""
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
    """Return the question about each link, and never-stated ones, each with probability ``rates.absence``."""

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
