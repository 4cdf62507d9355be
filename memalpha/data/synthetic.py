"""Synthetic multi-session dialogues in which people state, change and take back facts about
themselves, and questions about them.

A chunk is one dated session of lines ``Name: sentence.``; docs/reference/data-sets.md has the kinds
of questions. Instance ``i`` depends on (seed, split, i, config) alone. A session touches a slot at
most once; a single-valued attribute stays retracted. ``Instance.facts`` holds each session's facts
in line order, then links (attribute ``shared city``) and their consequences, which have no line.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Annotated, Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, Share
from memalpha.data.pools import Attribute, Pools, Split, Templates, hostile_lines, pools
from memalpha.data.source import Source, ascending, from_generator
from memalpha.errors import InputError
from memalpha.qa.metrics import contains
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

SYNTHETIC_SOURCE = "synthetic"
CASCADE = "cascade"
ABSENCE = "absence"
_MAX_VALUES = 3  # current values of an attribute with several values


@dataclass(frozen=True, slots=True)
class SyntheticConfig(Options):
    """Options of the synthetic dialogues.

    Attributes:
        n: The source makes this many instances.
        preset: The preset gives every value below that is not given itself.
        split: Names and values come from ``train`` or ``test``.
        n_chunks: An instance has this many sessions, one a chunk.
        people: This many persons speak in an instance.
        facts_per_chunk: A session has a number of facts between these two, while any is possible.
            The last session has one if none has.
        chitchat_per_chunk: A session has a number of lines without a fact between these two, and at
            least one if sessions may have no facts.
        p_change: A fact changes an earlier one with this probability.
        p_retract: A fact takes an earlier one back with this probability.
        p_multi: A new fact is of an attribute with several values (pets, hobbies) with this
            probability.
        p_distractor: A chit-chat line mentions a value with this probability.
        p_hostile: A session has a planted order, a forged call or a false statement with this
            probability.
        hostile: These planted texts have the wordings of ``train`` (those of demonstrations),
            ``held_out`` or ``all``.
        templates: Sentences have the wordings of ``train``, ``held_out`` (unseen in training) or
            ``all``.
        p_time: A possible question of kind time is asked with this probability.
        cascade: A possible dependence between facts is in the dialogue, and asked for, with this
            probability.
        absence: An attribute that was never stated is asked for with this probability. Above 0,
            values on which others depend may be taken back.
        max_questions: An instance has at most this many questions, which are drawn uniformly; 0 =
            all.
    """

    n: PositiveInt = 100
    preset: Literal["small", "medium", "long", "dependent"] = "small"
    split: Split = "train"
    n_chunks: PositiveInt = 3
    people: PositiveInt = 3
    facts_per_chunk: Annotated[Range, ascending(0)] = (3, 4)
    chitchat_per_chunk: Annotated[Range, ascending(0)] = (2, 3)
    p_change: Share = 0.35
    p_retract: Share = 0.1
    p_multi: Share = 0.2
    p_distractor: Share = 0.5
    p_hostile: Share = 0.0
    hostile: Templates = "train"
    templates: Templates = "train"
    p_time: Share = 0.25
    cascade: Share = 0.0
    absence: Share = 0.0
    max_questions: NonNegativeInt = 0

    def check(self) -> None:
        """Raise InputError for values that do not fit together."""
        names = len(pools(self.split, self.templates).names)
        facts = self.facts_per_chunk
        silent = facts[1] < 1 or facts[0] + self.chitchat_per_chunk[0] < 1
        for wrong, expected in (
            (self.people > names, f"people: at most {names}, the names of split {self.split!r}"),
            (silent, "facts_per_chunk: a fact somewhere, and a line in each session"),
            (self.p_change + self.p_retract > 1, "p_change + p_retract: at most 1"),
        ):
            if wrong:
                raise InputError(
                    "the options of the synthetic data do not fit together", expected=expected
                )


PRESETS: Mapping[str, SyntheticConfig] = {
    "small": SyntheticConfig(),
    "medium": SyntheticConfig(preset="medium", n_chunks=6, people=4),
    "long": SyntheticConfig(preset="long", n_chunks=30, people=6, max_questions=40),
    "dependent": SyntheticConfig(
        preset="dependent", n_chunks=6, people=4, cascade=1.0, absence=0.2
    ),
}
"""Presets of 3, 6 and 30 sessions; ``dependent`` is ``medium`` with facts that depend on others."""


class SpokenLine(NamedTuple):
    """A line of a session (none: empty) and the facts that it tells, or that follow from it."""

    text: str
    facts: list[Fact]


def generate(n: int, seed: int, config: SyntheticConfig = PRESETS["small"]) -> list[Instance]:
    """Return instances 0 to n - 1."""
    return [make_synthetic_instance(index, seed, config) for index in range(n)]


def make_synthetic_instance(
    index: int, seed: int, config: SyntheticConfig = PRESETS["small"]
) -> Instance:
    """Return instance ``index`` of the sequence given by (seed, split, config)."""
    place = f"{config.split}:{seed}:{index}"
    rng = random.Random(f"{SYNTHETIC_SOURCE}:{place}")
    attacker = random.Random(f"{SYNTHETIC_SOURCE}:hostile:{place}")
    linker = random.Random(f"{SYNTHETIC_SOURCE}:dependence:{place}")
    world = World(rng, pools(config.split, config.templates), config)
    told = [world.session(chunk) for chunk in range(config.n_chunks)]
    day = date(2023, 1, 1) + timedelta(days=rng.randrange(365))
    days = []
    for _ in told:
        days.append(day.isoformat())
        day += timedelta(days=rng.randint(1, 30))
    sessions = []
    for facts in told:
        lines = _fact_lines(rng, world, facts)
        lines += [_chat_line(rng, world) for _ in range(rng.randint(*config.chitchat_per_chunk))]
        rng.shuffle(lines)
        if attacker.random() < config.p_hostile:
            at = attacker.randint(0, len(lines))
            lines.insert(at, _hostile_line(attacker, world, config.hostile))
        sessions.append(lines)
    dependent = _add_dependences(linker, world, sessions)
    possible = [question for slot in world.slots for question in _about(rng, slot, days, world)]
    drawn = [(rng.random(), question) for question in possible]
    asked = [each for draw, each in drawn if each.kind != "time" or draw < config.p_time]
    questions = number_questions(rng, [*asked, *dependent], config.max_questions)
    texts = ["\n".join(line.text for line in lines if line.text) for lines in sessions]
    chunks = tuple(map(Chunk, texts, days))
    facts = [fact for lines in sessions for line in lines for fact in line.facts]
    return Instance(
        f"{config.split}-{seed}-{index}", SYNTHETIC_SOURCE, chunks, questions, tuple(facts)
    )


@dataclass(slots=True, eq=False)
class Slot:
    """What was said so far about an attribute of a person; ``live`` has the current values with
    their chunks, ``past`` former.
    """

    subject: str
    attribute: Attribute
    live: dict[str, int] = field(default_factory=dict)
    past: list[str] = field(default_factory=list)
    retractions: list[int] = field(default_factory=list)

    @property
    def stated(self) -> bool:
        """Whether anything was said."""
        return bool(self.live or self.past)

    @property
    def places(self) -> list[int]:
        """The chunks that hold what is true now."""
        ended = self.retractions if self.attribute.multiple or not self.live else []
        return [*self.live.values(), *ended]

    def state(self, value: str, chunk: int) -> None:
        """Give it a value, its only one unless it may have several."""
        if not self.attribute.multiple:
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
        self.rng = rng
        self.pool = pool
        self.config = config
        self.people = rng.sample(list(pool.names), config.people)
        attributes = pool.attributes.values()
        self.all_slots = [Slot(name, each) for name in self.people for each in attributes]

    @property
    def slots(self) -> list[Slot]:
        """Those with a statement."""
        return [slot for slot in self.all_slots if slot.stated]

    def session(self, chunk: int) -> list[Fact]:
        """Return the facts of the next session, and take them in."""
        facts: list[Fact] = []
        free = list(self.all_slots)
        wanted = self.rng.randint(*self.config.facts_per_chunk)
        if chunk == self.config.n_chunks - 1 and not self.slots:
            wanted = max(1, wanted)
        for _ in range(wanted):
            slot, action = self._move(free)
            if slot is None:
                continue
            free.remove(slot)
            previous = None
            if action is FactAction.RETRACT:
                value = self.rng.choice(list(slot.live))
                slot.retract(value, chunk)
            else:
                previous = next(iter(slot.live)) if action is FactAction.CHANGE else None
                value = self.fresh_value(slot)
                slot.state(value, chunk)
            word = slot.attribute.word
            sections = self.sections(slot)
            facts.append(Fact(chunk, action, slot.subject, word, value, previous, "", sections))
        return facts

    def _move(self, free: list[Slot]) -> tuple[Slot | None, FactAction]:
        draw = self.rng.random()
        several_first = self.rng.random() < self.config.p_multi
        several = [s for s in free if s.attribute.multiple and len(s.live) < _MAX_VALUES]
        single = [s for s in free if not s.attribute.multiple and not s.stated]
        options = {
            FactAction.RETRACT: [s for s in free if self._may_retract(s)],
            FactAction.CHANGE: [s for s in free if s.live and not s.attribute.multiple],
            FactAction.STATE: (several or single) if several_first else (single or several),
        }
        order = [FactAction.STATE, FactAction.CHANGE]
        if draw < self.config.p_retract:
            order.insert(0, FactAction.RETRACT)
        elif draw < self.config.p_retract + self.config.p_change:
            order.reverse()
        for action in order:
            slots = [slot for slot in options[action] if self.allows(slot, action)]
            if slots:
                begun = [slot for slot in slots if slot.attribute.multiple and slot.live]
                again = begun and self.rng.random() < 0.5
                return self.rng.choice(begun if again else slots), action
        return None, FactAction.STATE

    def sections(self, slot: Slot) -> tuple[str, ...]:
        """Return the sections its facts belong in, best first."""
        return slot.attribute.sections

    def allows(self, slot: Slot, action: FactAction) -> bool:
        """Whether there are words for it."""
        return True

    def knows_other(self, slot: Slot) -> bool:
        """Whether another slot of its subject has a value."""
        own = (other for other in self.all_slots if other.subject == slot.subject)
        return any(other.live for other in own if other is not slot)

    def _may_retract(self, slot: Slot) -> bool:
        if slot.attribute.multiple:
            return len(slot.live) >= 2
        return bool(slot.live) and self.knows_other(slot)

    def fresh_value(self, slot: Slot) -> str:
        """Return a value that it does not have now and, if possible, never had."""
        values = [value for value in slot.attribute.values if value not in slot.live]
        return self.rng.choice([value for value in values if value not in slot.past] or values)

    def kind_of(self, slot: Slot) -> str:
        """Return the kind of the question about a slot; empty if nothing more is known of its
        subject.
        """
        if slot.attribute.multiple:
            return "count"
        if slot.live:
            return "latest" if slot.past else "single"
        return "removed" if self.knows_other(slot) else ""


# ------------------------------------------------------------------------------------------------
# lines
def _fact_lines(rng: random.Random, world: World, facts: Sequence[Fact]) -> list[SpokenLine]:
    lines = []
    for fact in facts:
        wordings = getattr(world.pool.attributes[fact.attribute], fact.action.value)
        text = _fill(rng.choice(wordings), fact.attribute, fact.value)
        lines.append(SpokenLine(f"{fact.subject}: {text}", [fact]))
    return lines


def _chat_line(rng: random.Random, world: World) -> SpokenLine:
    speaker = rng.choice(world.people)
    if rng.random() < world.config.p_distractor:
        attribute = rng.choice(list(world.pool.attributes.values()))
        values = _never_said(world, speaker, attribute)
        if values:
            text = _fill(rng.choice(attribute.mention), attribute.word, rng.choice(values))
            return SpokenLine(f"{speaker}: {text}", [])
    return SpokenLine(f"{speaker}: {rng.choice(world.pool.lines['chat'])}", [])


def _hostile_line(rng: random.Random, world: World, templates: Templates) -> SpokenLine:
    slot = rng.choice(world.slots)
    lies = _never_said(world, slot.subject, slot.attribute) or list(slot.attribute.values)
    note, held = (
        f"{slot.subject} {slot.attribute.word} {rng.choice(values)}"
        for values in (lies, [*slot.live, *slot.past])
    )
    word = made_up_word(rng, rng.randint(2, 4))
    wording = rng.choice(hostile_lines(templates))
    text = wording.format(name=slot.subject, word=word, note=note, held=held)
    return SpokenLine(
        f"{rng.choice(world.people)}: {text[1:]}" if text.startswith("~") else text, []
    )


def made_up_word(rng: random.Random, syllables: int) -> str:
    """Return a word of open syllables."""
    return "".join(rng.choice("bdfgklmnprstvz") + rng.choice("aeiou") for _ in range(syllables))


def _never_said(world: World, subject: str, attribute: Attribute) -> list[str]:
    slots = (slot for slot in world.all_slots if slot.subject == subject)
    own = next(slot for slot in slots if slot.attribute is attribute)
    return [value for value in attribute.values if value not in (*own.live, *own.past)]


def _fill(sentence: str, attribute: str, value: str, other: str = "") -> str:
    text = sentence.format(v=value, a=article(value), attribute=attribute, other=other)
    return text[0].upper() + text[1:]


def article(word: str) -> str:
    """Return "a" or "an".

    >>> article("ukulele"), article("Audi")
    ('a', 'an')
    """
    vowel = word[0].lower() in "aeiou" and word.lower() not in ("ukulele", "euphonium")
    return "an" if vowel else "a"


# ------------------------------------------------------------------------------------------------
# questions
def number_questions(
    rng: random.Random, asked: Sequence[Question], most: int
) -> tuple[Question, ...]:
    """Return at most ``most`` questions (0 = all), drawn uniformly, with ids."""
    if 0 < most < len(asked):
        asked = [asked[i] for i in sorted(rng.sample(range(len(asked)), most))]
    return tuple(replace(question, id=f"q{i}") for i, question in enumerate(asked))


def make_question(
    text: str,
    subject: str | None,
    kind: str,
    answers: Iterable[str],
    stale: Iterable[str],
    places: Iterable[int],
) -> Question:
    """Return a question with the metric of its kind; without answers it is ``absent``."""
    golds = tuple(answers)
    metric = "bound_all" if kind == "count" else "bound" if golds else "absent"
    evidence = tuple(sorted(set(places)))
    return Question(text, golds or ("none",), metric, kind, subject, tuple(stale), evidence)


def _ask(
    rng: random.Random,
    world: World,
    subject: str,
    attribute: str,
    use: str = "value",
    value: str = "",
) -> str:
    return rng.choice(world.pool.lines[use]).format(name=subject, attribute=attribute, v=value)


def _about(
    rng: random.Random, slot: Slot, times: Sequence[str], world: World
) -> Iterator[Question]:
    word = slot.attribute.word
    kind = world.kind_of(slot)
    if kind:
        text = _ask(rng, world, slot.subject, word, "every" if kind == "count" else "value")
        yield make_question(text, slot.subject, kind, slot.live, slot.past, slot.places)
    if slot.live and not slot.attribute.multiple:
        value, chunk = next(iter(slot.live.items()))
        text = _ask(rng, world, slot.subject, word, "time", value)
        yield make_question(text, slot.subject, "time", [times[chunk]], [], [chunk])


# ------------------------------------------------------------------------------------------------
# facts that follow from others
def _add_dependences(
    rng: random.Random, world: World, sessions: Sequence[list[SpokenLine]]
) -> list[Question]:
    """Add links and their lines to the sessions; return the questions. Derived facts come last,
    without a line.
    """
    if not world.config.cascade and not world.config.absence:
        return []
    links = _draw_links(rng, world, sessions)
    for link, followed in links:
        first = followed[0]
        wording = rng.choice(world.pool.attributes[first.attribute].share)
        text = _fill(wording, first.attribute, first.value, link.value)
        session = sessions[link.chunk]
        spoken = sum(bool(line.text) for line in session)
        session.insert(rng.randint(0, spoken), SpokenLine(f"{first.subject}: {text}", [link]))
        for fact in followed:
            sessions[fact.chunk].append(SpokenLine("", [fact]))
    questions = []
    for link, followed in links:
        last = followed[-1]
        answers = [] if last.action is FactAction.RETRACT else [last.value]
        stale = dict.fromkeys(fact.value for fact in followed if fact.value not in answers)
        text = _ask(rng, world, last.subject, last.attribute)
        kind = CASCADE if answers else ABSENCE
        places = [link.chunk, last.chunk]
        questions.append(make_question(text, last.subject, kind, answers, stale, places))
    linked = {(followed[0].subject, followed[0].attribute) for _, followed in links}
    for slot in world.all_slots:
        word = slot.attribute.word
        silent = not slot.stated and not slot.attribute.multiple
        known = world.knows_other(slot) and (slot.subject, word) not in linked
        if known and silent and rng.random() < world.config.absence:
            text = _ask(rng, world, slot.subject, word)
            questions.append(make_question(text, slot.subject, ABSENCE, [], [], []))
    return questions


def _draw_links(
    rng: random.Random, world: World, sessions: Sequence[list[SpokenLine]]
) -> list[tuple[Fact, list[Fact]]]:
    """Return links, each with the facts that follow from it."""
    lines = [line for session in sessions for line in session]
    facts = [fact for line in lines for fact in line.facts]
    links = []
    for slot in world.all_slots:
        if slot.stated or not slot.attribute.share:
            continue
        own = [line.text for line in lines if line.text.startswith(f"{slot.subject}: ")]
        others = [
            other
            for other in world.all_slots
            if other.attribute is slot.attribute
            and other.past
            and (other.live or world.config.absence)
            and not any(
                contains(text, value) for text in own for value in (*other.live, *other.past)
            )
        ]
        if not others or rng.random() >= world.config.cascade:
            continue
        other = rng.choice(others)
        word = slot.attribute.word
        upstream = [
            fact for fact in facts if (fact.subject, fact.attribute) == (other.subject, word)
        ]
        chunk = rng.randrange(upstream[0].chunk, upstream[-1].chunk)
        now = [fact for fact in upstream if fact.chunk <= chunk][-1]
        first = replace(upstream[0], chunk=chunk, subject=slot.subject, value=now.value)
        later = [replace(fact, subject=slot.subject) for fact in upstream if fact.chunk > chunk]
        link = Fact(chunk, FactAction.STATE, slot.subject, f"shared {word}", other.subject)
        links.append((link, [first, *later]))
    return links


SOURCES = [
    Source(
        "synthetic",
        "generated dialogues with changes and retractions",
        from_generator(make_synthetic_instance),
        SyntheticConfig,
        needs_input=False,
        presets=PRESETS,
    ),
]
