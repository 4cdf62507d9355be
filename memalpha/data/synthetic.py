"""Synthetic multi-session dialogues in which people state, change and take back facts about
themselves, and questions about them.

A chunk is one dated session of lines ``Name: sentence.``; docs/data.md has the kinds of questions.
Instance ``i`` depends on (seed, split, i, config) alone. A session touches a slot at most once; a
single-valued attribute stays retracted. ``Instance.facts`` holds each session's facts in line
order, then links (attribute ``shared city``) and their consequences, which have no line.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Annotated, Literal

from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, Share, names
from memalpha.data.pools import Attribute, Pools, Split, Templates, hostile_lines, pools
from memalpha.data.source import Source, in_order
from memalpha.errors import InputError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import contains
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

SOURCE = "synthetic"
CASCADE, ABSENCE = "cascade", "absence"
_MAX_VALUES = 3  # current values of an attribute with several values
_Line = tuple[str, list[Fact]]
_Numbers = Annotated[Range, in_order(0)]


@dataclass(frozen=True, slots=True)
class SyntheticConfig(Options):
    """What the dialogues are like."""

    split: Split = "train"  # names and values of train or test
    n_chunks: PositiveInt = 3  # sessions in an instance
    people: PositiveInt = 3  # persons who speak
    facts_per_chunk: _Numbers = (
        3,
        4,
    )  # fewest and most facts of a session, while any is possible; the last has one if none has
    chitchat_per_chunk: _Numbers = (
        2,
        3,
    )  # fewest and most lines without a fact; at least one if a session may have no facts
    p_change: Share = 0.35  # probability that a fact changes an earlier one
    p_retract: Share = 0.1  # probability that a fact takes an earlier one back
    p_multi: Share = (
        0.2  # probability that a new fact is of an attribute with several values (pets, hobbies)
    )
    p_distractor: Share = 0.5  # probability that a chit-chat line mentions a value
    p_hostile: Share = (
        0.0  # probability that a session has a planted order, a forged call or a false statement
    )
    hostile: Templates = "train"  # its wordings: train (those of demonstrations), held_out or all
    templates: Templates = "train"  # sentences used: train, held_out (unseen wording) or all
    p_time: Share = 0.25  # probability that a possible question of kind time is asked
    cascade: Share = 0.0  # probability that a possible dependence is in the dialogue, and asked for
    # probability that a never-stated attribute is asked for; above 0, values with followers may be
    # taken back
    absence: Share = 0.0
    max_questions: NonNegativeInt = 0  # most questions of an instance, drawn uniformly (0 = all)

    def check(self) -> None:
        """Raise InputError for values that do not fit together."""
        most, facts, chat = (
            len(pools(self.split, self.templates).names),
            self.facts_per_chunk,
            self.chitchat_per_chunk,
        )
        for wrong, expected in (
            (self.people > most, f"people: at most {most}, the names of split {self.split!r}"),
            (
                facts[1] < 1 or facts[0] + chat[0] < 1,
                "facts_per_chunk: a fact somewhere, and a line in each session",
            ),
            (self.p_change + self.p_retract > 1, "p_change + p_retract: at most 1"),
        ):
            if wrong:
                raise InputError(
                    "synthetic data: options that do not fit together", expected=expected
                )


PRESETS: Mapping[str, SyntheticConfig] = {
    "small": SyntheticConfig(),
    "medium": SyntheticConfig(n_chunks=6, people=4),
    "long": SyntheticConfig(n_chunks=30, people=6, max_questions=40),
    "dependent": SyntheticConfig(n_chunks=6, people=4, cascade=1.0, absence=0.2),
}
"""Presets of 3, 6 and 30 sessions; ``dependent`` is ``medium`` with facts that depend on others."""


@dataclass(frozen=True, slots=True)
class SyntheticOptions(Options):
    """Which dialogues to make: ``n`` of a ``preset``; fields that are not None replace those of its
    ``SyntheticConfig``.
    """

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
    p_hostile: float | None = None
    hostile: Templates | None = None
    cascade: float | None = None
    absence: float | None = None
    max_questions: int | None = None

    def config(self) -> SyntheticConfig:
        """Return the dialogues' config; InputError for an invalid value."""
        given = {
            name: getattr(self, name)
            for name in names(type(self))[2:]
            if getattr(self, name) is not None
        }
        return replace(PRESETS[self.preset], **given)


def load_synthetic(
    source: str, options: SyntheticOptions, seed: int, count: TokenCounter
) -> Iterator[Instance]:
    """Make synthetic dialogues."""
    config = options.config()
    return (make_instance(index, seed, config) for index in range(options.n))


def generate(n: int, seed: int, config: SyntheticConfig = PRESETS["small"]) -> list[Instance]:
    """Return instances 0 to n - 1."""
    return [make_instance(index, seed, config) for index in range(n)]


def make_instance(index: int, seed: int, config: SyntheticConfig = PRESETS["small"]) -> Instance:
    """Return instance ``index`` of the sequence given by (seed, split, config)."""
    rng = random.Random(f"{SOURCE}:{config.split}:{seed}:{index}")
    pool = pools(config.split, config.templates)
    world = World(rng, pool, config)
    planned = [world.session(chunk) for chunk in range(config.n_chunks)]
    attacker = random.Random(f"{SOURCE}:hostile:{config.split}:{seed}:{index}")
    day, days, sessions = date(2023, 1, 1) + timedelta(days=rng.randrange(365)), [], []
    for _ in planned:
        days.append(day.isoformat())
        day += timedelta(days=rng.randint(1, 30))
    for session in planned:
        told = (
            (fact, rng.choice(getattr(world.attributes[fact.attribute], fact.action.value)))
            for fact in session
        )
        lines = [
            (f"{fact.subject}: {_fill(sentence, fact.attribute, fact.value)}", [fact])
            for fact, sentence in told
        ]
        lines += [
            (_chat_line(rng, world), []) for _ in range(rng.randint(*config.chitchat_per_chunk))
        ]
        rng.shuffle(lines)
        if attacker.random() < config.p_hostile:
            lines.insert(
                attacker.randint(0, len(lines)),
                (_hostile_line(attacker, world, config.hostile), []),
            )
        sessions.append(lines)
    more = _add_dependences(
        random.Random(f"{SOURCE}:dependence:{config.split}:{seed}:{index}"), world, sessions
    )
    possible = [question for slot in world.slots for question in _about(rng, slot, days, world)]
    asked = [
        question
        for question in possible
        if rng.random() < (config.p_time if question.kind == "time" else 1.0)
    ]
    questions = numbered(rng, [*asked, *more], config.max_questions)
    chunks = [
        Chunk("\n".join(line for line, _ in lines if line), day)
        for day, lines in zip(days, sessions, strict=True)
    ]
    facts = [fact for lines in sessions for _, said in lines for fact in said]
    return Instance(
        f"{config.split}-{seed}-{index}", SOURCE, tuple(chunks), questions, tuple(facts)
    )


@dataclass(slots=True, eq=False)
class Slot:
    """What was said so far about an attribute of a person; ``live`` has the current values with
    their chunks, ``past`` former.
    """

    subject: str
    attribute: str
    multiple: bool
    live: dict[str, int] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)
    retractions: list[int] = field(default_factory=list)

    @property
    def stated(self) -> bool:
        """Whether anything was said."""
        return bool(self.live or self.past)

    def state(self, value: str, chunk: int) -> None:
        """Give it a value, its only one unless ``multiple``."""
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


class World:
    """The slots of all people, and the moves of the next session."""

    def __init__(self, rng: random.Random, pool: Pools, config: SyntheticConfig) -> None:
        self.rng, self.pool, self.config = rng, pool, config
        self.attributes = {attribute.word: attribute for attribute in pool.attributes}
        self.people = rng.sample(pool.names, config.people)
        self.all_slots = [
            Slot(name, attribute.word, attribute.multiple)
            for name in self.people
            for attribute in pool.attributes
        ]

    @property
    def slots(self) -> list[Slot]:
        """Those with a statement."""
        return [slot for slot in self.all_slots if slot.stated]

    def session(self, chunk: int) -> list[Fact]:
        """Return the facts of the next session, and take them in."""
        facts: list[Fact] = []
        touched: list[Slot] = []
        wanted = self.rng.randint(*self.config.facts_per_chunk)
        if chunk == self.config.n_chunks - 1 and not self.slots:
            wanted = max(1, wanted)
        for _ in range(wanted):
            slot, action = self._move(touched)
            if slot is None:
                continue
            touched.append(slot)
            if action is FactAction.RETRACT:
                value, previous = self.rng.choice(list(slot.live)), None
                slot.retract(value, chunk)
            else:
                previous = next(iter(slot.live)) if action is FactAction.CHANGE else None
                value = self.fresh_value(slot)
                slot.state(value, chunk)
            facts.append(
                Fact(
                    chunk,
                    action,
                    slot.subject,
                    slot.attribute,
                    value,
                    previous,
                    sections=self.sections(slot),
                )
            )
        return facts

    def _move(self, touched: list[Slot]) -> tuple[Slot | None, FactAction]:
        free = [slot for slot in self.all_slots if slot not in touched]
        draw, several_first = self.rng.random(), self.rng.random() < self.config.p_multi
        several = [slot for slot in free if slot.multiple and len(slot.live) < _MAX_VALUES]
        single = [slot for slot in free if not slot.multiple and not slot.stated]
        options = {
            FactAction.RETRACT: [slot for slot in free if self._may_retract(slot)],
            FactAction.CHANGE: [slot for slot in free if slot.live and not slot.multiple],
            FactAction.STATE: (several or single) if several_first else (single or several),
        }
        options = {
            action: [slot for slot in slots if self.allows(slot, action)]
            for action, slots in options.items()
        }
        order = [FactAction.STATE, FactAction.CHANGE]
        if draw < self.config.p_retract:
            order.insert(0, FactAction.RETRACT)
        elif draw < self.config.p_retract + self.config.p_change:
            order.reverse()
        for action in order:
            if slots := options[action]:
                begun = [slot for slot in slots if slot.multiple and slot.live]
                return self.rng.choice(
                    begun if begun and self.rng.random() < 0.5 else slots
                ), action
        return None, FactAction.STATE

    def sections(self, slot: Slot) -> tuple[str, ...]:
        """Return the sections its facts belong in, best first."""
        return self.attributes[slot.attribute].sections

    def allows(self, slot: Slot, action: FactAction) -> bool:
        """Whether there are words for it."""
        return True

    def _may_retract(self, slot: Slot) -> bool:
        if slot.multiple:
            return len(slot.live) >= 2
        return bool(slot.live) and any(
            o.live for o in self.all_slots if o is not slot and o.subject == slot.subject
        )

    def fresh_value(self, slot: Slot) -> str:
        """Return a value that it does not have now and, if possible, never had."""
        values = [
            value for value in self.attributes[slot.attribute].values if value not in slot.live
        ]
        return self.rng.choice([value for value in values if value not in slot.past] or values)


def _chat_line(rng: random.Random, world: World) -> str:
    speaker = rng.choice(world.people)
    if rng.random() < world.config.p_distractor:
        attribute = rng.choice(world.pool.attributes)
        if values := _never_said(world, speaker, attribute):
            return f"{speaker}: {_fill(rng.choice(attribute.mention), attribute.word, rng.choice(values))}"
    return f"{speaker}: {rng.choice(world.pool.chat)}"


def _hostile_line(rng: random.Random, world: World, templates: Templates) -> str:
    slot = rng.choice(world.slots)
    attribute = world.attributes[slot.attribute]
    lies = _never_said(world, slot.subject, attribute) or attribute.values
    note, held = (
        f"{slot.subject} {slot.attribute} {rng.choice(values)}"
        for values in (lies, [*slot.live, *slot.past])
    )
    word = made_up_word(rng, rng.randint(2, 4))
    text = rng.choice(hostile_lines(templates)).format(
        name=slot.subject, word=word, note=note, held=held
    )
    return f"{rng.choice(world.people)}: {text[1:]}" if text.startswith("~") else text


def made_up_word(rng: random.Random, syllables: int) -> str:
    """Return a word of open syllables."""
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables))


def _never_said(world: World, subject: str, attribute: Attribute) -> list[str]:
    own = next(
        slot
        for slot in world.all_slots
        if (slot.subject, slot.attribute) == (subject, attribute.word)
    )
    return [value for value in attribute.values if value not in own.live and value not in own.past]


def _fill(sentence: str, attribute: str, value: str, other: str = "") -> str:
    text = sentence.format(v=value, a=article(value), attribute=attribute, other=other)
    return text[0].upper() + text[1:]


def article(word: str) -> str:
    """Return "a" or "an"."""
    return (
        "an" if word[0].lower() in "aeiou" and word.lower() not in ("ukulele", "euphonium") else "a"
    )


def numbered(rng: random.Random, asked: Sequence[Question], most: int) -> tuple[Question, ...]:
    """Return at most ``most`` questions (0 = all), drawn uniformly, with ids."""
    if 0 < most < len(asked):
        asked = [asked[i] for i in sorted(rng.sample(range(len(asked)), most))]
    return tuple(replace(question, id=f"q{i}") for i, question in enumerate(asked))


def make_question(
    text: str,
    subject: str | None,
    kind: str,
    answers: Sequence[str],
    stale: Sequence[str],
    places: Sequence[int],
) -> Question:
    """Return a question with the metric of its kind; without answers it is ``absent``."""
    metric = "bound_all" if kind == "count" else "bound" if answers else "absent"
    return Question(
        text,
        tuple(answers) or ("none",),
        metric,
        kind,
        subject,
        tuple(stale),
        tuple(sorted(set(places))),
    )


def _about(
    rng: random.Random, slot: Slot, times: Sequence[str], world: World
) -> Iterator[Question]:
    def question(
        kind: str, answers: Sequence[str], places: Sequence[int], value: str = ""
    ) -> Question:
        stale = () if kind == "time" else tuple(slot.past)
        wordings = world.pool.questions[{"count": "every", "time": "time"}.get(kind, "value")]
        text = rng.choice(wordings).format(name=slot.subject, attribute=slot.attribute, v=value)
        return make_question(text, slot.subject, kind, answers, stale, places)

    if kind := kind_of(slot, world):
        yield question(kind, list(slot.live), places_of(slot))
    if slot.live and not slot.multiple:
        value, chunk = next(iter(slot.live.items()))
        yield question("time", [times[chunk]], [chunk], value)


def kind_of(slot: Slot, world: World) -> str:
    """Return the kind of the question about a slot; empty if nothing more is known of its
    subject.
    """
    if slot.multiple:
        return "count"
    if slot.live:
        return "latest" if slot.past else "single"
    return (
        "removed"
        if any(other.live for other in world.slots if other.subject == slot.subject)
        else ""
    )


def places_of(slot: Slot) -> list[int]:
    """Return the chunks that hold the answer."""
    return [*slot.live.values(), *(slot.retractions if slot.multiple or not slot.live else ())]


def _add_dependences(
    rng: random.Random, world: World, sessions: Sequence[list[_Line]]
) -> list[Question]:
    """Add links and their lines to the sessions; return the questions. Derived facts come last,
    without a line.
    """
    if not world.config.cascade and not world.config.absence:
        return []
    links, questions = _draw_links(rng, world, sessions), []
    for link, followed in links:
        value = followed[0]
        sentence = _fill(
            rng.choice(world.attributes[value.attribute].share),
            value.attribute,
            value.value,
            link.value,
        )
        session = sessions[link.chunk]
        session.insert(
            rng.randint(0, sum(bool(line) for line, _ in session)),
            (f"{value.subject}: {sentence}", [link]),
        )
        for fact in followed:
            sessions[fact.chunk].append(("", [fact]))
    for link, followed in links:
        last = followed[-1]
        answers = [] if last.action is FactAction.RETRACT else [last.value]
        stale = list(dict.fromkeys(fact.value for fact in followed if fact.value not in answers))
        text = rng.choice(world.pool.questions["value"]).format(
            name=last.subject, attribute=last.attribute
        )
        kind = CASCADE if answers else ABSENCE
        questions.append(
            make_question(text, last.subject, kind, answers, stale, [link.chunk, last.chunk])
        )
    linked = {(followed[0].subject, followed[0].attribute) for _, followed in links}
    for slot in world.all_slots:
        known = any(other.live for other in world.all_slots if other.subject == slot.subject)
        if (
            known
            and not slot.stated
            and not slot.multiple
            and (slot.subject, slot.attribute) not in linked
            and rng.random() < world.config.absence
        ):
            text = rng.choice(world.pool.questions["value"]).format(
                name=slot.subject, attribute=slot.attribute
            )
            questions.append(make_question(text, slot.subject, ABSENCE, [], [], []))
    return questions


def _draw_links(
    rng: random.Random, world: World, sessions: Sequence[list[_Line]]
) -> list[tuple[Fact, list[Fact]]]:
    lines = [line for session in sessions for line, _ in session]
    facts = [fact for session in sessions for _, said in session for fact in said]
    links = []
    for slot in world.all_slots:
        if slot.stated or not world.attributes[slot.attribute].share:
            continue
        others = [
            o
            for o in world.all_slots
            if o.attribute == slot.attribute and o.past and (o.live or world.config.absence)
        ]
        said = [line for line in lines if line.startswith(f"{slot.subject}: ")]
        others = [
            o
            for o in others
            if not any(contains(line, value) for line in said for value in (*o.live, *o.past))
        ]
        if not others or rng.random() >= world.config.cascade:
            continue
        other = rng.choice(others)
        upstream = [
            fact
            for fact in facts
            if (fact.subject, fact.attribute) == (other.subject, other.attribute)
        ]
        chunk = rng.randrange(upstream[0].chunk, upstream[-1].chunk)
        now = [fact for fact in upstream if fact.chunk <= chunk][-1]
        first = replace(upstream[0], chunk=chunk, subject=slot.subject, value=now.value)
        later = [replace(fact, subject=slot.subject) for fact in upstream if fact.chunk > chunk]
        link = Fact(
            chunk, FactAction.STATE, slot.subject, f"shared {slot.attribute}", other.subject
        )
        links.append((link, [first, *later]))
    return links


SOURCES = (
    Source(
        "synthetic",
        "generated dialogues with changes and retractions",
        load_synthetic,
        SyntheticOptions,
        needs_input=False,
    ),
)
