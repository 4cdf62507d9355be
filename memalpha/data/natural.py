"""Natural conversations: a user and an assistant, or two friends, talk as people write, of
themselves and of their people.

Made from the wordings of ``natural*.yaml``. A chunk is a dated session of lines ``User: ...`` and
``Assistant: ...``; docs/data.md has the questions. Values and names differ between the splits,
wordings between the parts of ``templates``. In an instance no value belongs to two persons or
attributes. It depends on (seed, its index, options) alone.
"""

import random
import re
from calendar import month_name
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import cache
from importlib import resources
from itertools import accumulate
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, NonNegativeInt, PositiveInt

from memalpha.config import Options, Range, Share
from memalpha.data.pools import Split, Templates, part_of
from memalpha.data.source import Source, generated, in_order
from memalpha.data.synthetic import (
    Slot,
    SyntheticConfig,
    World,
    article,
    kind_of,
    made_up_word,
    make_question,
    numbered,
    places_of,
)
from memalpha.qa.metrics import contains, words
from memalpha.types import Chunk, Fact, FactAction, Instance, Question

SOURCE = "natural"
_FRIENDS, _NAMED, _EMPTY = (
    0.25,
    0.5,
    0.15,
)  # shares: talks between friends, users who say their name, sessions without a fact
_PAIR, _SLIP, _REPLY = (
    0.3,
    0.07,
    0.4,
)  # shares of the facts: told in pairs, with a slip, with a reply
_MENTION, _ASK = (
    0.3,
    0.2,
)  # shares of the small talk: a value that is nobody's, the user asks about himself
_ABOUT_OTHERS = 6  # attributes of a person who is talked about
_HABITS = {
    "lower": 0.3,
    "no stops": 0.35,
    "no apostrophes": 0.15,
    "typos": 0.25,
}  # shares of the people who write so
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
_Lines = list[tuple[str, str]]  # who, what


@dataclass(frozen=True, slots=True)
class NaturalOptions(Options):
    """Which conversations to make."""

    n: PositiveInt = 100
    split: Split = "train"  # names and values of train or test
    templates: Templates | Literal[""] = (
        ""  # wordings: train, held_out or all ("" = train for split train, held_out for test)
    )
    n_chunks: Annotated[int, Field(ge=1, le=100)] = 3  # sessions in an instance
    facts_per_chunk: Annotated[Range, in_order(1)] = (
        1,
        3,
    )  # fewest and most facts of a session that has any, as 85% do
    p_change: Share = 0.35  # probability that a fact changes an earlier one
    p_retract: Share = 0.1  # probability that a fact takes an earlier one back
    p_hostile: Share = (
        0.1  # probability that a session has a planted order, a forged call or a false statement
    )
    max_questions: NonNegativeInt = 0  # most questions of an instance, drawn uniformly (0 = all)


@dataclass(frozen=True, slots=True)
class _Person:
    subject: str  # of their facts
    speaker: str  # who talks about them
    noted: str  # in notes
    he: str  # "he" or "she"
    label: str = ""  # as the speaker calls them; empty for the speaker


def written() -> dict[str, Any]:
    """Return natural.yaml with the traits of the files beside it."""
    folder = resources.files("memalpha.data")
    first, *more = (
        yaml.safe_load((folder / f"natural{part}.yaml").read_text(encoding="utf-8"))
        for part in ("", "_practical", "_personal")
    )
    return {
        **first,
        "traits": {word: row for data in (first, *more) for word, row in data["traits"].items()},
    }


@cache
def wordings(split: Split, templates: Templates) -> SimpleNamespace:
    """Return ``traits`` (by attribute), ``frames`` (by use), ``names`` and ``relations`` ((word,
    pronoun), ...) of natural.yaml.
    """
    data = written()
    for row in data["traits"].values():
        row |= {
            kind: part_of(row.get(kind, ()), templates)
            for kind in ("state", "change", "retract", "mention", "ask")
        }
        row |= {flag: row.get(flag, False) for flag in ("multiple", "dated", "others")}
        row |= {
            "values": row.get(split, "").split(", "),
            "things": row.get("things", {split: ""})[split].split(", "),
        }
    return SimpleNamespace(
        traits={word: SimpleNamespace(word=word, **row) for word, row in data["traits"].items()},
        frames={use: part_of(said, templates) for use, said in data["frames"].items()},
        **{
            kind: [(word, he) for he, row in data[kind][split].items() for word in row.split(", ")]
            for kind in ("names", "relations")
        },
    )


def make_instance(index: int, seed: int, options: NaturalOptions = NaturalOptions()) -> Instance:
    """Return instance ``index`` of the sequence given by (seed, options)."""
    life = _Life(random.Random(f"{SOURCE}:{options.split}:{seed}:{index}"), options)
    after = accumulate(
        (life.rng.randint(1, 30) for _ in range(options.n_chunks - 1)),
        initial=life.rng.randrange(365),
    )
    days = [date(2023, 1, 1) + timedelta(days=number) for number in after]
    sessions = [life.talk(number, day) for number, day in enumerate(days)]
    chunks = (
        Chunk("\n".join(lines), day.isoformat())
        for day, (lines, _) in zip(days, sessions, strict=True)
    )
    facts = (fact for _, told in sessions for fact in told)
    return Instance(
        f"{SOURCE}-{options.split}-{seed}-{index}",
        SOURCE,
        tuple(chunks),
        life.questions(),
        tuple(facts),
    )


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
    number, month = day.day, month_name[day.month]
    ordinal = f"{number}{'th' if 10 < number < 14 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"
    return f"{number} {month}", f"{month} {number}", f"{ordinal} of {month}", f"{month} {ordinal}"


class _Life(World):
    """The people of an instance and what was said of them so far."""

    def __init__(self, rng: random.Random, options: NaturalOptions) -> None:
        moves = SyntheticConfig(n_chunks=options.n_chunks, facts_per_chunk=options.facts_per_chunk)
        self.config = replace(moves, p_change=options.p_change, p_retract=options.p_retract)
        self.rng, self.options = rng, options
        said = wordings(
            options.split,
            options.templates or ("train" if options.split == "train" else "held_out"),
        )
        self.traits, self.frames = said.traits, said.frames
        self.friends, named = rng.random() < _FRIENDS, rng.random() < _NAMED
        names, relations = rng.sample(said.names, 4), rng.sample(said.relations, 4)
        self.name = names[0][0] if named and not self.friends else ""
        speakers = [_Person(name, name, name, he) for name, he in names[:2]]
        if not self.friends:
            speakers = [_Person("User", "User", "User", names[0][1])]
        self.speakers, self.folk = (
            [person.speaker for person in speakers],
            {person.subject: person for person in speakers},
        )
        for number in range(2 + (options.n_chunks > 3) + (options.n_chunks > 8)):
            owner, friend = rng.choice(speakers), number < 2 and rng.random() < 0.3
            name, he = names[2 + number] if friend else relations[number]
            called = f"friend {name}" if friend else name
            self.folk[name] = _Person(
                name, owner.speaker, f"{owner.noted}'s {called}", he, f"my {called}"
            )
        self.all_slots, self.things = list[Slot](), dict[tuple[str, str], str]()
        left = {
            word: rng.sample(trait.things, len(trait.things)) for word, trait in said.traits.items()
        }
        shared = [trait for trait in said.traits.values() if trait.others]
        for person in self.folk.values():
            for trait in (
                rng.sample(shared, _ABOUT_OTHERS) if person.label else said.traits.values()
            ):
                if trait.things == [""] or left[trait.word]:
                    self.things[person.subject, trait.word] = (
                        left[trait.word].pop() if left[trait.word] else ""
                    )
                    self.all_slots.append(Slot(person.subject, trait.word, trait.multiple))
        self.forms, self.used = dict[str, tuple[str, ...]](), set[str]()
        self.notes = dict[tuple[str, str, str], str]()  # by subject, attribute, value
        self.habits = {
            speaker: {habit for habit, share in _HABITS.items() if rng.random() < share}
            for speaker in self.speakers
        }

    # --------------------------------------------------------------------------------------------
    # facts
    def allows(self, slot: Slot, action: FactAction) -> bool:
        unused = action is FactAction.RETRACT or self._unused(self.traits[slot.attribute])
        return bool(unused and self._clauses(slot.subject, slot.attribute, action))

    def sections(self, slot: Slot) -> tuple[str, ...]:
        other = bool(self.folk[slot.subject].label)
        return tuple(
            section
            for section in self.traits[slot.attribute].sections
            if not (other and section == "core")
        )

    def fresh_value(self, slot: Slot) -> str:
        return self._value(self.traits[slot.attribute])

    def _unused(self, trait: Any) -> list[tuple[str, ...]]:
        """Return what it can still be, each in its forms."""
        return [
            forms
            for forms in (self.dates if trait.dated else zip(trait.values))
            if forms[0] not in self.used
        ]

    def _value(self, trait: Any) -> str:
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
        rng, blocks = self.rng, list[tuple[_Lines, list[Fact]]]()
        days = (day + timedelta(days=later) for later in range(3, 91))
        self.dates = [
            date_forms(later)
            for later in days
            if (31 * later.month + later.day) % 3 == (self.options.split == "test")
        ]
        left = (
            [self._noted(fact) for fact in self.session(number)]
            if not number or rng.random() >= _EMPTY
            else []
        )
        rng.shuffle(left)
        chats = rng.randint(0, 2) if left else rng.randint(2, 3)
        while left:
            together = left[: 1 + (rng.random() < _PAIR)]
            if len({self.folk[fact.subject].speaker for fact in together}) > 1 or not all(
                map(self._singles, together)
            ):
                together = left[:1]
            del left[: len(together)]
            blocks.append(self._tell(*together))
        blocks += [(self._chat(), []) for _ in range(chats)] + [(self._hostile(), [])] * (
            rng.random() < self.options.p_hostile
        )
        rng.shuffle(blocks)
        if self.name and not number:
            name = Fact(
                0,
                FactAction.STATE,
                "User",
                "name",
                self.name,
                None,
                f"User's name is {self.name}",
                ("core", "semantic"),
            )
            blocks.insert(
                0, ([("User", rng.choice(self.frames["name"]).format(v=self.name))], [name])
            )
        lines = list[str]()
        for block, said in blocks:
            if said and rng.random() < _REPLY:
                block.append(
                    (
                        self._other(block[-1][0]),
                        rng.choice(self.frames["nods" if self.friends else "replies"]),
                    )
                )
            lines += [f"{who}: {self._typed(who, text)}" if who else text for who, text in block]
        return lines, [self._kept(fact) for _, said in blocks for fact in said]

    def _noted(self, fact: Fact) -> Fact:
        note = self._fill(self.traits[fact.attribute].note, fact)
        return replace(fact, note=note[0].upper() + note[1:])

    def _kept(self, fact: Fact) -> Fact:
        """Return the fact, a change with the note of the value that it replaces, but for the
        value.
        """
        old, was = (
            re.compile(rf"\b(an? )?{re.escape(fact.previous or '')}\b", re.IGNORECASE),
            (fact.subject, fact.attribute),
        )
        if fact.previous and old.search(note := self.notes.get((*was, fact.previous), "")):
            now = old.sub(
                lambda found: (f"{article(fact.value)} " if found[1] else "") + fact.value, note
            )
            fact = replace(fact, note=now)
        self.notes[*was, fact.value] = fact.note
        return fact

    def _clauses(self, subject: str, attribute: str, action: FactAction) -> list[str]:
        said = getattr(self.traits[attribute], action.value)
        return [
            clause for clause in said if not (self.folk[subject].label and clause.startswith("~"))
        ]

    def _singles(self, fact: Fact) -> list[str]:
        """Return the clauses that can be part of a sentence."""
        said = self._clauses(fact.subject, fact.attribute, fact.action)
        return [clause for clause in said if not re.search(r"^~|[.?!] ", clause)]

    def _say(self, fact: Fact, clauses: Sequence[str], *, named: bool = False) -> tuple[str, Fact]:
        """Return a clause about the fact, and the fact with the clause in the third person as its
        note where that says all.
        """
        person, clause = self.folk[fact.subject], self.rng.choice(clauses)
        text = self._fill(in_person(clause, person.label, person.he, named=named), fact)
        if (
            fact.action is not FactAction.STATE
            or not self.traits[fact.attribute].others
            or re.search(r"[.?!] ", clause)
        ):
            return text, fact
        note = self._fill(
            in_person(clause, person.noted, person.he if person.label or self.friends else "they"),
            fact,
        )
        whole = contains(note, fact.subject) and not re.search(r"\bthey\b|^(if|when|as|so)\b", note)
        return text, replace(fact, note=note[0].upper() + note[1:]) if whole else fact

    def _tell(self, fact: Fact, also: Fact | None = None) -> tuple[_Lines, list[Fact]]:
        rng, person, singles = self.rng, self.folk[fact.subject], self._singles(fact)
        if also:
            c, fact = self._say(fact, singles)
            d, also = self._say(
                also, self._singles(also), named=bool(person.label) and also.subject == fact.subject
            )
            return [(person.speaker, rng.choice(self.frames["pair"]).format(c=c, d=d))], [
                fact,
                also,
            ]
        slips = [
            clause
            for clause in singles
            if clause.count("{v}") == 1 and fact.action is not FactAction.RETRACT
        ]
        if slips and rng.random() < _SLIP and self._unused(trait := self.traits[fact.attribute]):
            wrong, _ = self._say(replace(fact, value=self._value(trait)), slips)
            return [
                (
                    person.speaker,
                    rng.choice(self.frames["slip"]).format(c=wrong, v=self._fill("{v}", fact)),
                )
            ], [fact]
        clause = rng.choice(self._clauses(fact.subject, fact.attribute, fact.action))
        if clause.startswith("~"):
            *asked, text = self._fill(clause[1:], fact).split(" | ")
            return [
                *((self._other(person.speaker), question) for question in asked),
                (person.speaker, text),
            ], [fact]
        uses = {
            "bare": True,
            "loose": True,
            "tight": clause in singles,
            "about": person.label,
            "order": not self.friends,
        }
        use = rng.choice([use for use, fits in uses.items() if fits])
        c, fact = self._say(fact, [clause], named=use == "about")
        return [(person.speaker, rng.choice(self.frames[use]).format(c=c, l=person.label))], [fact]

    def _chat(self) -> _Lines:
        rng, who, trait = (
            self.rng,
            self.rng.choice(self.speakers),
            self.rng.choice(list(self.traits.values())),
        )
        kind, thing = (
            rng.random(),
            None if self.friends else self.things.get((next(iter(self.folk)), trait.word)),
        )
        if kind < _MENTION and self._unused(trait):
            return [(who, self._fill(rng.choice(trait.mention), self._made_up(who, trait)))]
        if kind > 1 - _ASK and thing is not None:
            asked = in_person(rng.choice(trait.ask), "", "they").format(x=thing)
            return [(who, asked), ("Assistant", rng.choice(self.frames["unsure"]))][
                : rng.randint(1, 2)
            ]
        told = [*self.frames["chat"], *(() if self.friends else self.frames["errands"])]
        self.used.add(said := rng.choice([text for text in told if text not in self.used] or told))
        first, *then = said.split(" | ")
        if first.endswith(".") and rng.random() < 0.5:
            first = rng.choice(self.frames["loose"]).format(c=first[:-1])
        return [(who, first), *((self._other(who), text) for text in then)]

    def _hostile(self) -> _Lines:
        who, traits = (
            self.rng.choice(self.speakers),
            [trait for trait in self.traits.values() if trait.things == [""]],
        )
        lie = self._made_up(
            who, self.rng.choice([trait for trait in traits if self._unused(trait)])
        )
        note, word = self._noted(lie).note, made_up_word(self.rng, self.rng.randint(2, 4))
        held = self.rng.choice([*self.notes.values()] or [note])
        text = self.rng.choice(self.frames["hostile"]).format(
            S=lie.subject, note=note, held=held, word=word
        )
        return [(who, text[1:]) if text.startswith("~") else ("", text)]

    def _made_up(self, speaker: str, trait: Any) -> Fact:
        subject = next(person.subject for person in self.folk.values() if person.speaker == speaker)
        return Fact(0, FactAction.STATE, subject, trait.word, self._value(trait))

    def _other(self, speaker: str) -> str:
        return next((other for other in self.speakers if other != speaker), "Assistant")

    def _typed(self, who: str, text: str) -> str:
        text = re.sub(r"(^|[.?!] )([a-z])", lambda match: match[1] + match[2].upper(), text)
        habits, kept = (
            self.habits.get(who, ()),
            {word for said in (*self.forms, *self.folk) for word in words(said)},
        )
        places = [
            found.start() for found in re.finditer(r"\b[a-z]{5,}\b", text) if found[0] not in kept
        ]
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
        asked = [self._question(slot, kind) for slot in self.slots if (kind := kind_of(slot, self))]
        if self.name:
            asked.append(
                make_question(
                    self.rng.choice(self.frames["ask_name"]), None, "single", [self.name], [], [0]
                )
            )
        return numbered(self.rng, asked, self.options.max_questions)

    def _question(self, slot: Slot, kind: str) -> Question:
        trait, person = self.traits[slot.attribute], self.folk[slot.subject]
        if kind == "count" and len(slot.live) == 1 and not slot.past:
            kind = "single"
        kind = (
            "time"
            if trait.dated and slot.live
            else "other"
            if kind == "single" and person.label
            else kind
        )
        label = person.noted if self.friends else person.label
        text = in_person(self.rng.choice(trait.ask), label, person.he).format(
            x=self.things[slot.subject, slot.attribute]
        )
        answers, stale = (
            [form for value in values for form in self.forms[value]]
            for values in (slot.live, slot.past)
        )
        subject = (
            slot.subject if self.friends or person.label else None
        )  # "User: ..." does not say the user's name
        return make_question(
            text[0].upper() + text[1:], subject, kind, answers, stale, places_of(slot)
        )


SOURCES = (
    Source(
        SOURCE,
        "generated conversations as people write them",
        generated(make_instance),
        NaturalOptions,
        needs_input=False,
    ),
)
