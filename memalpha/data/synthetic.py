"""Synthetic multi-session dialogues in which people state, change and take back facts about themselves.

A chunk is one dated session of lines ``Name: sentence.`` Chit-chat mentions values without stating a fact, never one that its
speaker had. ``Instance.facts`` holds each session's facts in line order. Instance ``i`` depends on (seed, split, i, config) alone.
Train and test share no name or value. Dates strictly rise. A session touches a slot at most once. A single-valued attribute stays
retracted; the last of several values is never retracted. Not covered: facts about other persons (except dependences, off by
default) and times inside the text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, Share, names
from memalpha.data.pools import Attribute, Pools, Split, Templates, pools
from memalpha.data.questions import QuestionRates, Slot, dependent_questions, draw_links, make_questions
from memalpha.data.source import LoadResult, Source
from memalpha.errors import InputError
from memalpha.protocols import TokenCounter
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

SOURCE = "synthetic"

_FIRST_DAY = date(2023, 1, 1)

_Line = tuple[str, list[Fact]]


def _in_order(bounds: tuple[int, int]) -> tuple[int, int]:
    if not 0 <= bounds[0] <= bounds[1]:
        raise ValueError("expected a pair (fewest, most) with 0 <= fewest <= most")
    return bounds


_Numbers = Annotated[Range, AfterValidator(_in_order)]


@dataclass(frozen=True, slots=True)
class SyntheticConfig(Options):
    """What the dialogues are like.

    Attributes:
        split: Names and values of ``train`` or ``test``.
        n_chunks: Sessions in an instance.
        people: Persons who speak.
        facts_per_chunk: Fewest and most facts of a session; fewer if none are possible; the last has one if no other has.
        chitchat_per_chunk: Fewest and most lines without a fact; at least one if a session may have no facts.
        p_change: Probability that a fact changes an earlier one.
        p_retract: Probability that a fact takes an earlier one back.
        p_multi: Probability that a new fact is of an attribute with several values (pets, hobbies).
        max_values: Most current values of such an attribute.
        p_distractor: Probability that a chit-chat line mentions a value.
        templates: Sentences used: ``train``, ``held_out`` (unseen wording) or ``all``.
        rates: Share of the possible questions asked, by kind; ``cascade`` and ``absence`` are off by default.
        max_questions: Most questions of an instance, drawn uniformly after ``rates`` (0 = all).
    """

    split: Split = "train"
    n_chunks: PositiveInt = 3
    people: PositiveInt = 3
    facts_per_chunk: _Numbers = (3, 4)
    chitchat_per_chunk: _Numbers = (2, 3)
    p_change: Share = 0.35
    p_retract: Share = 0.1
    p_multi: Share = 0.2
    max_values: PositiveInt = 3
    p_distractor: Share = 0.5
    templates: Templates = "train"
    rates: QuestionRates = field(default_factory=QuestionRates)
    max_questions: NonNegativeInt = 0

    def check(self) -> None:
        """Raise InputError for values that do not fit together."""
        most = len(pools(self.split, self.templates).names)
        facts, chat = self.facts_per_chunk, self.chitchat_per_chunk
        for name, value, ok, expected in (
            ("people", self.people, self.people <= most, f"at most {most}, the names of split {self.split!r}"),
            ("facts_per_chunk", facts, facts[1] >= 1, "at least 1 as the most: there must be facts"),
            ("chitchat_per_chunk", chat, facts[0] + chat[0] >= 1, "at least 1 where facts_per_chunk may be 0"),
            ("p_change + p_retract", self.p_change + self.p_retract, self.p_change + self.p_retract <= 1, "at most 1"),
        ):
            if not ok:
                raise InputError(f"synthetic data: {name} is {value!r}", expected=expected)


PRESETS: Mapping[str, SyntheticConfig] = MappingProxyType(
    {
        "small": SyntheticConfig(),
        "medium": SyntheticConfig(n_chunks=6, people=4),
        "long": SyntheticConfig(n_chunks=30, people=6, max_questions=40),
        "dependent": SyntheticConfig(n_chunks=6, people=4, rates=QuestionRates(cascade=1.0, absence=0.2)),
    }
)
"""Presets of 3, 6 and 30 sessions; ``dependent`` is ``medium`` with facts that depend on others."""


@dataclass(frozen=True, slots=True)
class SyntheticOptions(Options):
    """Which dialogues to make: ``n`` of a ``preset``; fields that are not None replace those of its ``SyntheticConfig``."""

    n: PositiveInt = 100
    preset: Literal["small", "medium", "long", "dependent"] = "small"
    split: Split = "train"
    templates: Templates = "train"
    n_chunks: int | None = None
    people: int | None = None
    facts_per_chunk: Range | None = None
    chitchat_per_chunk: Range | None = None
    p_change: float | None = None
    p_retract: float | None = None
    p_multi: float | None = None
    p_distractor: float | None = None
    cascade: float | None = None
    absence: float | None = None
    max_questions: int | None = None

    def config(self) -> SyntheticConfig:
        """Return the dialogues' config; InputError for an invalid value."""
        given = {name: getattr(self, name) for name in names(type(self))[2:] if getattr(self, name) is not None}
        rates = {name: given.pop(name) for name in ("cascade", "absence") if name in given}
        preset = PRESETS[self.preset]
        return replace(preset, **given, rates=replace(preset.rates, **rates))


def load_synthetic(source: str, options: SyntheticOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Make synthetic dialogues; skips nothing; ``source`` and ``count_tokens`` are unused."""
    config = options.config()
    return LoadResult((make_instance(index, seed, config) for index in range(options.n)), total=options.n)


def generate(n: int, seed: int, config: SyntheticConfig = PRESETS["small"]) -> list[Instance]:
    """Return instances 0 to n - 1; InputError if ``n`` is below 1."""
    if n < 1:
        raise InputError(f"number of instances is {n}", expected="at least 1")
    return [make_instance(index, seed, config) for index in range(n)]


def make_instance(index: int, seed: int, config: SyntheticConfig = PRESETS["small"]) -> Instance:
    """Return instance ``index`` of the sequence given by (seed, split, config)."""
    rng = random.Random(f"{SOURCE}:{config.split}:{seed}:{index}")
    pool = pools(config.split, config.templates)
    world = _World(rng, pool, config)
    planned = [world.session(chunk) for chunk in range(config.n_chunks)]
    days, sessions = _dates(rng, config.n_chunks), []
    for session in planned:
        lines = [(_fact_line(rng, fact, world.attributes[fact.attribute]), [fact]) for fact in session]
        lines += [(_chat_line(rng, world), []) for _ in range(rng.randint(*config.chitchat_per_chunk))]
        rng.shuffle(lines)
        sessions.append(lines)
    more = _add_dependences(random.Random(f"{SOURCE}:dependence:{config.split}:{seed}:{index}"), world, sessions)
    questions = make_questions(rng, world.slots, days, pool.questions, config.rates, config.max_questions, more)
    chunks = [Chunk("\n".join(line for line, _ in lines if line), day) for day, lines in zip(days, sessions, strict=True)]
    facts = [fact for lines in sessions for _, said in lines for fact in said]
    return Instance(f"{config.split}-{seed}-{index}", SOURCE, tuple(chunks), questions, tuple(facts))


def _add_dependences(rng: random.Random, world: _World, sessions: Sequence[list[_Line]]) -> list[Question]:
    """Add links and their lines to the sessions; return the questions. Derived facts come last, without a line."""
    rates = world.config.rates
    if not rates.cascade and not rates.absence:
        return []
    lines = [line for session in sessions for line, _ in session]
    facts = [fact for session in sessions for _, said in session for fact in said]
    links = draw_links(rng, world.all_slots, world.attributes, facts, lines, rates)
    for link in links:
        value = link.followed[0]
        attribute = world.attributes[value.attribute]
        sentence = _fill(rng.choice(attribute.share), value.attribute, value.value, link.fact.value)
        session = sessions[link.chunk]
        session.insert(rng.randint(0, sum(bool(line) for line, _ in session)), (f"{value.subject}: {sentence}", [link.fact]))
        for fact in link.followed:
            sessions[fact.chunk].append(("", [fact]))
    return dependent_questions(rng, world.all_slots, links, world.pool.questions, rates)


class _World:
    def __init__(self, rng: random.Random, pool: Pools, config: SyntheticConfig) -> None:
        self.rng, self.pool, self.config = rng, pool, config
        self.attributes = {attribute.word: attribute for attribute in pool.attributes}
        self.people = rng.sample(pool.names, config.people)
        self.all_slots = [Slot(name, attribute.word, attribute.multiple) for name in self.people for attribute in pool.attributes]

    @property
    def slots(self) -> list[Slot]:
        return [slot for slot in self.all_slots if slot.stated]

    def session(self, chunk: int) -> list[Fact]:
        facts: list[Fact] = []
        touched: list[Slot] = []
        wanted = self.rng.randint(*self.config.facts_per_chunk)
        if chunk == self.config.n_chunks - 1 and not self.slots:
            wanted = max(1, wanted)
        for _ in range(wanted):
            slot, action = self._move(touched)
            if slot is not None:
                touched.append(slot)
                facts.append(self._act(slot, action, chunk))
        return facts

    def _move(self, touched: list[Slot]) -> tuple[Slot | None, FactAction]:
        """Draw the next action and its slot; None if nothing is possible."""
        free = [slot for slot in self.all_slots if slot not in touched]
        draw = self.rng.random()
        options = {
            FactAction.RETRACT: [slot for slot in free if self._may_retract(slot)],
            FactAction.CHANGE: [slot for slot in free if slot.live and not slot.multiple],
            FactAction.STATE: self._open(free),
        }
        order = [FactAction.STATE, FactAction.CHANGE]
        if draw < self.config.p_retract:
            order.insert(0, FactAction.RETRACT)
        elif draw < self.config.p_retract + self.config.p_change:
            order.reverse()
        for action in order:
            if options[action]:
                return self._choose(options[action]), action
        return None, FactAction.STATE

    def _open(self, free: list[Slot]) -> list[Slot]:
        several = [slot for slot in free if slot.multiple and len(slot.live) < self.config.max_values]
        single = [slot for slot in free if not slot.multiple and not slot.stated]
        first, second = (several, single) if self.rng.random() < self.config.p_multi else (single, several)
        return first or second

    def _choose(self, slots: list[Slot]) -> Slot:
        several = [slot for slot in slots if slot.multiple and slot.live]
        return self.rng.choice(several if several and self.rng.random() < 0.5 else slots)

    def _may_retract(self, slot: Slot) -> bool:
        if slot.multiple:
            return len(slot.live) >= 2
        return bool(slot.live) and any(o.live for o in self.all_slots if o is not slot and o.subject == slot.subject)

    def _act(self, slot: Slot, action: FactAction, chunk: int) -> Fact:
        if action is FactAction.RETRACT:
            value, previous = self.rng.choice(list(slot.live)), None
            slot.retract(value, chunk)
        else:
            previous = next(iter(slot.live)) if action is FactAction.CHANGE else None
            value = self._fresh_value(slot)
            slot.state(value, chunk)
        return Fact(chunk, action, slot.subject, slot.attribute, value, previous)

    def _fresh_value(self, slot: Slot) -> str:
        """A value that the slot never had; one it does not have now if all were used."""
        values = [value for value in self.attributes[slot.attribute].values if value not in slot.live]
        return self.rng.choice([value for value in values if value not in slot.past] or values)


def _fact_line(rng: random.Random, fact: Fact, attribute: Attribute) -> str:
    sentences = {FactAction.STATE: attribute.state, FactAction.CHANGE: attribute.change, FactAction.RETRACT: attribute.retract}
    return f"{fact.subject}: {_fill(rng.choice(sentences[fact.action]), fact.attribute, fact.value)}"


def _chat_line(rng: random.Random, world: _World) -> str:
    speaker = rng.choice(world.people)
    if rng.random() >= world.config.p_distractor:
        return f"{speaker}: {rng.choice(world.pool.chat)}"
    attribute = rng.choice(world.pool.attributes)
    own = next(slot for slot in world.all_slots if (slot.subject, slot.attribute) == (speaker, attribute.word))
    values = [value for value in attribute.values if value not in own.live and value not in own.past]
    if not values:
        return f"{speaker}: {rng.choice(world.pool.chat)}"
    return f"{speaker}: {_fill(rng.choice(attribute.mention), attribute.word, rng.choice(values))}"


def _fill(sentence: str, attribute: str, value: str, other: str = "") -> str:
    article = "an" if value[0].lower() in "aeiou" and value.lower() not in ("ukulele", "euphonium") else "a"
    text = sentence.format(v=value, a=article, attribute=attribute, other=other)
    return text[0].upper() + text[1:]


def _dates(rng: random.Random, n: int) -> list[str]:
    day = _FIRST_DAY + timedelta(days=rng.randrange(365))
    days = []
    for _ in range(n):
        days.append(day.isoformat())
        day += timedelta(days=rng.randint(1, 30))
    return days


SOURCES = (
    Source("synthetic", "generated dialogues with changes and retractions", load_synthetic, SyntheticOptions, needs_input=False),
)
