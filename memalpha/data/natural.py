"""Natural conversations: a user and an assistant, or two friends, talk as people write, of
themselves and of their people.

Made from the wordings of ``natural*.yaml``. A chunk is a dated session of lines ``User: ...`` and
``Assistant: ...``; docs/reference/data-sets.md has the questions. Values and names differ between
the splits, wordings between the parts of ``templates``. In an instance no value belongs to two
persons or attributes. It depends on (seed, its index, options) alone.
"""

import random
import re
from calendar import month_name
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from itertools import accumulate
from typing import Annotated, Literal, NamedTuple

from pydantic import Field, NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, Share
from memalpha.data.pools import Attribute, Split, Templates, natural_pools
from memalpha.data.source import Source, ascending, from_generator
from memalpha.data.synthetic import (
    Slot,
    SyntheticConfig,
    World,
    article,
    made_up_word,
    make_question,
    number_questions,
)
from memalpha.qa.metrics import contains, words
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

NATURAL_SOURCE = "natural"
# shares of the people who write so
_HABITS = {"lower": 0.3, "no stops": 0.35, "no apostrophes": 0.15, "typos": 0.25}
_MARK = re.compile(r"\b(I'm|I've|I'd|I'll|I|my|myself|me)\b|\[([\w']+)\]")
_THIRD = {
    "have": "has",
    "am": "is",
    "do": "does",
    "don't": "doesn't",
    "haven't": "hasn't",
    "go": "goes",
}
_SHORT = (("m", "is", "s"), ("ve", "has", "s"), ("d", "would", "d"), ("ll", "will", "ll"))
_HIS = {"she": ("her", "her"), "he": ("his", "him"), "they": ("their", "them")}


@dataclass(frozen=True, slots=True)
class NaturalOptions(Options):
    """Options of the natural conversations.

    Attributes:
        n: The source makes this many instances.
        split: Names and values come from ``train`` or ``test``.
        templates: Sentences have the wordings of ``train``, ``held_out`` or ``all``. An empty text
            takes ``train`` for split train and ``held_out`` for split test.
        n_chunks: An instance has this many sessions, one a chunk.
        facts_per_chunk: A session with facts has a number of them between these two; 85 % of the
            sessions have facts.
        p_change: A fact changes an earlier one with this probability.
        p_retract: A fact takes an earlier one back with this probability.
        p_hostile: A session has a planted order, a forged call or a false statement with this
            probability.
        max_questions: An instance has at most this many questions, which are drawn uniformly; 0 =
            all.
    """

    n: PositiveInt = 100
    split: Split = "train"
    templates: Templates | Literal[""] = ""
    n_chunks: Annotated[int, Field(ge=1, le=100)] = 3
    facts_per_chunk: Annotated[Range, ascending(1)] = (1, 3)
    p_change: Share = 0.35
    p_retract: Share = 0.1
    p_hostile: Share = 0.1
    max_questions: NonNegativeInt = 0


class _Person(NamedTuple):
    subject: str  # of their facts
    speaker: str  # who talks about them
    noted: str  # in notes
    he: str  # "he" or "she"
    label: str = ""  # as the speaker calls them; empty for the speaker


_Said = tuple[str, str]  # who ("" for a quotation), what


class _Talk(NamedTuple):
    """What is said one after the other, and the facts that it tells."""

    lines: list[_Said]
    facts: list[Fact]


def make_natural_instance(
    index: int, seed: int, options: NaturalOptions = NaturalOptions()
) -> Instance:
    """Return instance ``index`` of the sequence given by (seed, options)."""
    life = _Life(random.Random(f"{NATURAL_SOURCE}:{options.split}:{seed}:{index}"), options)
    first = life.rng.randrange(365)
    pauses = [life.rng.randint(1, 30) for _ in range(options.n_chunks - 1)]
    numbers = accumulate(pauses, initial=first)
    days = [date(2023, 1, 1) + timedelta(days=number) for number in numbers]
    sessions = [life.talk(number, day) for number, day in enumerate(days)]
    chunks = [
        Chunk("\n".join(lines), day.isoformat())
        for day, (lines, _) in zip(days, sessions, strict=True)
    ]
    facts = tuple(fact for _, told in sessions for fact in told)
    name = f"{NATURAL_SOURCE}-{options.split}-{seed}-{index}"
    return Instance(name, NATURAL_SOURCE, tuple(chunks), life.questions(), facts)


# ------------------------------------------------------------------------------------------------
# English
def in_person(clause: str, label: str, he: str, *, named: bool = False) -> str:
    """Return a clause of the first person as one about ``label`` ("" = as it is): named once,
    unless ``named``, then by pronoun.
    """
    his, him = _HIS[he]
    forms = {
        "I": (label, he),
        "my": (f"{label}'s", his),
        "me": (label, him),
        "myself": (f"{him}self",) * 2,
    }
    forms |= {f"I'{short}": (f"{label} {verb}", f"{he}'{later}") for short, verb, later in _SHORT}

    def put(match: re.Match[str]) -> str:
        nonlocal named
        word, verb = match.groups()
        if not label:
            return str(word or verb)
        if verb:
            return (
                _THIRD.get(verb)
                or re.sub(r"(?<=[^aeiou])y$", "ie", re.sub(r"(s|sh|ch|x)$", r"\1e", verb)) + "s"
            )
        found, named = forms[word][named], True
        return found

    return _MARK.sub(put, clause)


def date_forms(day: date) -> tuple[str, ...]:
    """Return a day as people write it without its year: 14 June, June 14, 14th of June, June
    14th.
    """
    number = day.day
    month = month_name[day.month]
    ending = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    named = f"{number}{ending}"
    return f"{number} {month}", f"{month} {number}", f"{named} of {month}", f"{month} {named}"


# ------------------------------------------------------------------------------------------------
class _Life(World):
    """The people of an instance and what was said of them so far."""

    def __init__(self, rng: random.Random, options: NaturalOptions) -> None:
        moves = ("n_chunks", "facts_per_chunk", "p_change", "p_retract")
        self.config = SyntheticConfig(**{name: getattr(options, name) for name in moves})
        self.rng = rng
        self.options = options
        own = options.templates or ("train" if options.split == "train" else "held_out")
        self.pool = natural_pools(options.split, own)
        self.frames = self.pool.lines
        self.friends = rng.random() < 0.25
        named = rng.random() < 0.5
        names = rng.sample(list(self.pool.names.items()), 4)
        relations = rng.sample(list(self.pool.relations.items()), 4)
        self.name = names[0][0] if named and not self.friends else ""
        speakers = [_Person(name, name, name, he) for name, he in names[:2]]
        if not self.friends:
            speakers = [_Person("User", "User", "User", names[0][1])]
        self.speakers = [person.speaker for person in speakers]
        self.folk = {person.subject: person for person in speakers}
        for number in range(2 + (options.n_chunks > 3) + (options.n_chunks > 8)):
            owner = rng.choice(speakers)
            friend = number < 2 and rng.random() < 0.3
            name, he = names[2 + number] if friend else relations[number]
            called = f"friend {name}" if friend else name
            noted = f"{owner.noted}'s {called}"
            self.folk[name] = _Person(name, owner.speaker, noted, he, f"my {called}")
        self.all_slots = []
        self.things: dict[tuple[str, str], str] = {}
        traits = self.pool.attributes.values()
        left = {trait.word: rng.sample(trait.things, len(trait.things)) for trait in traits}
        shared = [trait for trait in traits if trait.others]
        for person in self.folk.values():
            for trait in rng.sample(shared, 6) if person.label else traits:
                if not trait.things[0] or left[trait.word]:
                    thing = left[trait.word].pop() if left[trait.word] else ""
                    self.things[person.subject, trait.word] = thing
                    self.all_slots.append(Slot(person.subject, trait))
        self.forms: dict[str, tuple[str, ...]] = {}  # of a value: four ways to write a day
        self.used: set[str] = set()
        self.notes: dict[tuple[str, str, str], str] = {}  # by subject, attribute, value
        self.habits = {
            speaker: {habit for habit, share in _HABITS.items() if rng.random() < share}
            for speaker in self.speakers
        }

    # --------------------------------------------------------------------------------------------
    # facts
    def allows(self, slot: Slot, action: FactAction) -> bool:
        unused = action is FactAction.RETRACT or self._unused(slot.attribute)
        return bool(unused and self._clauses(slot.subject, slot.attribute.word, action))

    def sections(self, slot: Slot) -> tuple[str, ...]:
        barred = "core" if self.folk[slot.subject].label else ""
        return tuple(section for section in slot.attribute.sections if section != barred)

    def fresh_value(self, slot: Slot) -> str:
        return self._value(slot.attribute)

    def _unused(self, trait: Attribute) -> list[tuple[str, ...]]:
        """Return what it can still be, each in its forms."""
        possible = self.dates if trait.dated else [(value,) for value in trait.values]
        return [forms for forms in possible if forms[0] not in self.used]

    def _value(self, trait: Attribute) -> str:
        forms = self.rng.choice(self._unused(trait))
        self.used |= {*forms}
        value = self.rng.choice(forms)
        self.forms[value] = forms
        return value

    def _fill(self, text: str, fact: Fact) -> str:
        v, p = (
            re.sub(r"^(\d.* of )", r"the \1", value) for value in (fact.value, fact.previous or "")
        )
        thing = self.things[fact.subject, fact.attribute]
        articles = {"a": article(v), "ap": article(p or "x"), "ax": article(thing or "x")}
        return text.format(v=v, p=p, x=thing, S=self.folk[fact.subject].noted, **articles)

    # --------------------------------------------------------------------------------------------
    # lines
    def talk(self, number: int, day: date) -> tuple[list[str], list[Fact]]:
        """Return the lines of the next session, and its facts in the lines' order."""
        rng = self.rng
        days = [day + timedelta(days=later) for later in range(3, 91)]
        own = int(self.options.split == "test")  # a third of all days is of each split
        self.dates = [date_forms(each) for each in days if (31 * each.month + each.day) % 3 == own]
        silent = number and rng.random() < 0.15
        left = [] if silent else [self._noted(fact) for fact in self.session(number)]
        rng.shuffle(left)
        chats = rng.randint(0, 2) if left else rng.randint(2, 3)
        talks = []
        while left:
            together = left[: 1 + (rng.random() < 0.3)]
            speakers = {self.folk[fact.subject].speaker for fact in together}
            if len(speakers) > 1 or not all(map(self._singles, together)):
                together = left[:1]
            del left[: len(together)]
            talks.append(self._tell(*together))
        talks += [_Talk(self._chat(), []) for _ in range(chats)]
        hostile = _Talk(self._hostile(), [])
        if rng.random() < self.options.p_hostile:
            talks.append(hostile)
        rng.shuffle(talks)
        if self.name and not number:
            note = f"User's name is {self.name}"
            sections = ("core", "semantic")
            name = Fact(0, FactAction.STATE, "User", "name", self.name, None, note, sections)
            said = rng.choice(self.frames["name"]).format(v=self.name)
            talks.insert(0, _Talk([("User", said)], [name]))
        lines = []
        for talk in talks:
            if talk.facts and rng.random() < 0.4:
                reply = rng.choice(self.frames["nods" if self.friends else "replies"])
                talk.lines.append((self._other(talk.lines[-1][0]), reply))
            lines += [
                f"{who}: {self._typed(who, text)}" if who else text for who, text in talk.lines
            ]
        return lines, [self._remember(fact) for talk in talks for fact in talk.facts]

    def _noted(self, fact: Fact) -> Fact:
        note = self._fill(self.pool.attributes[fact.attribute].note, fact)
        return replace(fact, note=note[0].upper() + note[1:])

    def _remember(self, fact: Fact) -> Fact:
        """Return the fact, a change with the note of the value that it replaces, but for the
        value.
        """
        note = self.notes.get((fact.subject, fact.attribute, fact.previous or ""), "")
        old = re.compile(rf"\b(an? )?{re.escape(fact.previous or '')}\b", re.IGNORECASE)
        if fact.previous and old.search(note):
            named = f"{article(fact.value)} {fact.value}"
            note = old.sub(lambda match: named if match[1] else fact.value, note)
            fact = replace(fact, note=note)
        self.notes[fact.subject, fact.attribute, fact.value] = fact.note
        return fact

    def _clauses(self, subject: str, attribute: str, action: FactAction) -> list[str]:
        """Return the wordings; those in the first person are for the speaker alone."""
        clauses = getattr(self.pool.attributes[attribute], action.value)
        other = self.folk[subject].label
        return [clause for clause in clauses if not (other and clause.startswith("~"))]

    def _singles(self, fact: Fact) -> list[str]:
        """Return the clauses that can be part of a sentence."""
        clauses = self._clauses(fact.subject, fact.attribute, fact.action)
        return [clause for clause in clauses if not re.search(r"^~|[.?!] ", clause)]

    def _say(self, fact: Fact, clauses: Sequence[str], *, named: bool = False) -> tuple[str, Fact]:
        """Return a clause about the fact, and the fact with the clause in the third person as its
        note where that says all.
        """
        person = self.folk[fact.subject]
        clause = self.rng.choice(clauses)
        text = self._fill(in_person(clause, person.label, person.he, named=named), fact)
        plain = fact.action is FactAction.STATE and self.pool.attributes[fact.attribute].others
        he = person.he if person.label or self.friends else "they"
        note = self._fill(in_person(clause, person.noted, he), fact)
        vague = re.search(r"\bthey\b|^(if|when|as|so)\b", note) or re.search(r"[.?!] ", clause)
        if plain and not vague and contains(note, fact.subject):
            fact = replace(fact, note=note[0].upper() + note[1:])
        return text, fact

    def _tell(self, fact: Fact, also: Fact | None = None) -> _Talk:
        rng = self.rng
        person = self.folk[fact.subject]
        singles = self._singles(fact)
        if also:
            named = bool(person.label) and also.subject == fact.subject
            c, fact = self._say(fact, singles)
            d, also = self._say(also, self._singles(also), named=named)
            text = rng.choice(self.frames["pair"]).format(c=c, d=d)
            return _Talk([(person.speaker, text)], [fact, also])
        slips = [clause for clause in singles if clause.count("{v}") == 1]
        trait = self.pool.attributes[fact.attribute]
        if (
            slips
            and fact.action is not FactAction.RETRACT
            and rng.random() < 0.07
            and self._unused(trait)
        ):
            wrong, _ = self._say(replace(fact, value=self._value(trait)), slips)
            text = rng.choice(self.frames["slip"]).format(c=wrong, v=self._fill("{v}", fact))
            return _Talk([(person.speaker, text)], [fact])
        clause = rng.choice(self._clauses(fact.subject, fact.attribute, fact.action))
        if clause.startswith("~"):
            *asked, text = self._fill(clause[1:], fact).split(" | ")
            other = self._other(person.speaker)
            lines = [(other, question) for question in asked]
            return _Talk([*lines, (person.speaker, text)], [fact])
        uses = {
            "bare": True,
            "loose": True,
            "tight": clause in singles,
            "about": person.label,
            "order": not self.friends,
        }
        use = rng.choice([use for use, fits in uses.items() if fits])
        c, fact = self._say(fact, [clause], named=use == "about")
        text = rng.choice(self.frames[use]).format(c=c, l=person.label)
        return _Talk([(person.speaker, text)], [fact])

    def _chat(self) -> list[_Said]:
        rng = self.rng
        who = rng.choice(self.speakers)
        trait = rng.choice(list(self.pool.attributes.values()))
        kind = rng.random()
        user = next(iter(self.folk))
        thing = None if self.friends else self.things.get((user, trait.word))
        if kind < 0.3 and self._unused(trait):
            return [(who, self._fill(rng.choice(trait.mention), self._made_up(who, trait)))]
        if kind > 0.8 and thing is not None:
            asked = in_person(rng.choice(trait.ask), "", "they").format(x=thing)
            lines = [(who, asked), ("Assistant", rng.choice(self.frames["unsure"]))]
            return lines[: rng.randint(1, 2)]
        texts = self.frames["chat"] + (() if self.friends else self.frames["errands"])
        text = rng.choice([each for each in texts if each not in self.used] or texts)
        self.used.add(text)
        first, *then = text.split(" | ")
        if first.endswith(".") and rng.random() < 0.5:
            first = rng.choice(self.frames["loose"]).format(c=first[:-1])
        return [(who, first), *((self._other(who), line) for line in then)]

    def _hostile(self) -> list[_Said]:
        rng = self.rng
        who = rng.choice(self.speakers)
        traits = [trait for trait in self.pool.attributes.values() if not trait.things[0]]
        lie = self._made_up(who, rng.choice([trait for trait in traits if self._unused(trait)]))
        note = self._noted(lie).note
        word = made_up_word(rng, rng.randint(2, 4))
        held = rng.choice([*self.notes.values()] or [note])
        wording = rng.choice(self.frames["hostile"])
        text = wording.format(S=lie.subject, note=note, held=held, word=word)
        return [(who, text[1:]) if text.startswith("~") else ("", text)]

    def _made_up(self, speaker: str, trait: Attribute) -> Fact:
        subject = next(person.subject for person in self.folk.values() if person.speaker == speaker)
        return Fact(0, FactAction.STATE, subject, trait.word, self._value(trait))

    def _other(self, speaker: str) -> str:
        return next((other for other in self.speakers if other != speaker), "Assistant")

    def _typed(self, who: str, text: str) -> str:
        """Return a text as its speaker types; names and values have no typing errors."""
        text = re.sub(r"(^|[.?!] )([a-z])", lambda match: match[1] + match[2].upper(), text)
        habits = self.habits.get(who, ())
        known = {word for text in (*self.forms, *self.folk) for word in words(text)}
        long = re.finditer(r"\b[a-z]{5,}\b", text)
        places = [match.start() for match in long if match[0] not in known]
        if "typos" in habits and places and self.rng.random() < 0.25:
            place = self.rng.choice(places) + self.rng.randint(1, 2)
            text = text[:place] + text[place + 1] + text[place] + text[place + 2 :]
        text = text.lower() if "lower" in habits else text
        text = text.replace("'", "") if "no apostrophes" in habits else text
        return text.removesuffix(".") if "no stops" in habits else text

    # --------------------------------------------------------------------------------------------
    # questions
    def questions(self) -> tuple[Question, ...]:
        """Return one question about each slot, and one for the user's name."""
        asked = [self._question(slot) for slot in self.slots if self.kind_of(slot)]
        if self.name:
            text = self.rng.choice(self.frames["ask_name"])
            asked.append(make_question(text, None, "single", [self.name], [], [0]))
        return number_questions(self.rng, asked, self.options.max_questions)

    def _question(self, slot: Slot) -> Question:
        person = self.folk[slot.subject]
        kind = self.kind_of(slot)
        if kind == "count" and len(slot.live) == 1 and not slot.past:
            kind = "single"
        if slot.attribute.dated and slot.live:
            kind = "time"
        elif kind == "single" and person.label:
            kind = "other"
        label = person.noted if self.friends else person.label
        wording = in_person(self.rng.choice(slot.attribute.ask), label, person.he)
        text = wording.format(x=self.things[slot.subject, slot.attribute.word])
        answers, stale = (
            [form for value in values for form in self.forms[value]]
            for values in (slot.live, slot.past)
        )
        # "User: ..." does not say the user's name
        subject = slot.subject if self.friends or person.label else None
        text = text[0].upper() + text[1:]
        return make_question(text, subject, kind, answers, stale, slot.places)


SOURCES = [
    Source(
        NATURAL_SOURCE,
        "generated conversations as people write them",
        from_generator(make_natural_instance),
        NaturalOptions,
        needs_input=False,
    ),
]
