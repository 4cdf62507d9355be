"""Schema-Guided Dialogue (SGD, arXiv 1909.05855): the task dialogues of one person.

docs/reference/data-sets.md has the form and the departures from the set.

An instance is one person's dialogues on different days, no two of one domain. Facts are what the
annotated state takes on, in words of the chunk, at most one of a slot in a chunk; an offer alone is
none, and stays in one chunk with its reply. The schema asks.
"""

import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import NonNegativeInt, PositiveInt

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.rows import Row, data_files, iter_rows, path_exists
from memalpha.data.source import Bounds, CommonOptions, Draft, SkippedItem, Source, read_each
from memalpha.qa.metrics import bound_to_subject, contains, words
from memalpha.types import Answer, Chunk, Fact, FactAction, Question, TokenCounter

# of a value; {} is a description, e.g. "the city in which the restaurant is located"
WORDINGS: Mapping[str, Sequence[str]] = {
    "train": (
        "What is {}?",
        "Tell me {}.",
        "Do you remember {}?",
        "I need {} again.",
        "Remind me of {}.",
        "What did I give as {}?",
        "Could you look up {} for me?",
        "What did I settle on as {}?",
        "Say it again: {}?",
        "I am not sure: what is {}?",
    ),
    "test": (
        "What was {}?",
        "Please repeat {}.",
        "Can you recall {}?",
        "Give me {}.",
        "Let me know {}.",
        "Do you still know {}?",
        "What have we got down as {}?",
        "I forgot {}, what was it?",
        "Could I hear {} once more?",
        "What did you note as {}?",
    ),
}
# of a dialogue's date; {} is a domain, e.g. "restaurant"
TIME_WORDINGS: Mapping[str, Sequence[str]] = {
    "train": (
        "On which date did I talk about the {}?",
        "When did I ask about the {}?",
        "What day was it when we spoke of the {}?",
    ),
    "test": (
        "On what day was the {} our topic?",
        "Which date was our conversation on the {}?",
        "When did we deal with the {}?",
    ),
}
_KINDS = ("latest", "time", "single")  # the order in which questions are kept
_NAMES = {"USER": "User", "SYSTEM": "Assistant"}
_NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# dates that need today's
_RELATIVE = re.compile(r"(?i)\b(\w+day|now|tonight|tomorrow|this|next|later|coming)\b")


@dataclass(frozen=True, slots=True)
class SgdOptions(CommonOptions):
    """How SGD becomes instances.

    Attributes:
        dialogues: An instance has a number of dialogues of one person between these two; each
            dialogue is used once at most.
        chunk_tokens: A chunk has at most this many tokens. With 64 it is one exchange, which seldom
            names its subject.
        max_questions: An instance has at most this many questions; 0 = all. Changed values and a
            date come first, and the others are drawn.
        split: The source reads this folder, with the wordings of train or of test. An empty text
            takes the input's name, or else train.
        unseen_in: Dialogues with a service of this schema.json are left out; an empty text leaves
            out none.
    """

    dialogues: Bounds = (8, 12)
    chunk_tokens: PositiveInt = 200
    max_questions: NonNegativeInt = 12
    split: Literal["", "train", "dev", "test"] = ""
    unseen_in: str = ""


class _Slot(NamedTuple):
    name: str
    description: str
    values: set[str]  # the only ones that there are, if these are few
    noun: str  # of its domain


_State = tuple[str, dict[str, tuple[str, ...]]]  # a service, and the values of its slots


class _SpokenTurn(NamedTuple):
    """A turn as a line, and the states after it."""

    line: str
    states: list[_State]


class _Dialogue(NamedTuple):
    exchanges: list[list[_SpokenTurn]]
    slots: dict[tuple[str, str], _Slot]  # those that have values, by (service, name)
    nouns: set[str]


class _Trace(NamedTuple):
    """What becomes of a slot in a dialogue: its question (or why there is none) and its facts."""

    asked: Question | SkippedItem
    facts: list[Fact]


def _schema(path: Path) -> dict[tuple[str, str], _Slot]:
    """Return slots by (service, name). Noun: "bus" of Buses_1, "ride" of RideSharing_2, "doctor" of
    Services_3 with doctor_name.
    """
    schema = {}
    for row in iter_rows(str(path)):
        service = row["service_name"].text()
        slots = {slot["name"].text(): slot for slot in row["slots"].items()}
        named = [name[:-5].replace("_", " ") for name in slots if re.fullmatch(r"\w+_name", name)]
        words = re.sub(r"(?<=[a-z])(?=[A-Z])|_+", " ", re.sub(r"_\d+$", "", service)).lower()
        singular = re.sub(r"(?<=[^aeiou]us)es$|(?<!s)s$", "", re.sub(r" \w+ing$", "", words))
        noun = singular.strip() or service
        noun = named[0] if noun == "service" and named else noun
        for name, slot in slots.items():
            values = {value.scalar() for value in slot["possible_values"].items(needed=False)}
            schema[service, name] = _Slot(name, slot["description"].text(), values, noun)
    return schema


def _load_sgd(
    source: str, options: SgdOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | SkippedItem]:
    """Load SGD person by person; InputError if dialogues or their schema.json cannot be read."""
    folder = Path(source)
    split = options.split or (folder.name if folder.name in ("dev", "test") else "train")
    inner = folder / split
    files = data_files(str(inner if path_exists(str(inner)) else folder), "dialogues_*.json")
    schema = _schema(files[0].with_name("schema.json"))
    known = _schema(Path(options.unseen_in)) if options.unseen_in else {}
    services = {service for service, _ in known}
    rows = (row for file in files for row in iter_rows(str(file)))
    dialogues = []
    for item in read_each(rows, _dialogue, schema):
        if isinstance(item, SkippedItem):
            yield item
        else:
            dialogues.append(item)
    rng = random.Random(f"sgd:{split}:{seed}")
    pool = [
        dialogue
        for dialogue in rng.sample(dialogues, len(dialogues))
        if services.isdisjoint(service for service, _ in dialogue.slots)
    ]
    left = sum(len(dialogue.slots) for dialogue in dialogues)
    person = _person(pool, options.dialogues, rng)
    number = 0
    while person:
        left -= sum(len(dialogue.slots) for dialogue in person)
        yield _draft(f"{split}-{seed}-{number}", person, options, count)
        person = _person(pool, options.dialogues, rng)
        number += 1
    yield from [SkippedItem("of dialogues left over")] * left


def _dialogue(row: Row, schema: Mapping[tuple[str, str], _Slot]) -> _Dialogue:
    turns = row["turns"].items()
    exchanges: list[list[_SpokenTurn]] = [[]]
    for number, turn in enumerate(turns):
        name = _NAMES.get(turn["speaker"].text())
        if name is None:
            raise turn["speaker"].unfit("'USER' or 'SYSTEM'")
        if name == "Assistant" and 0 < number < len(turns) - 1:
            exchanges.append([])
        exchanges[-1].append(_SpokenTurn(f"{name}: {turn['utterance'].text()}", _states(turn)))
    said = [each for exchange in exchanges for each in exchange]
    keys = [(service, name) for each in said for service, values in each.states for name in values]
    unknown = [key for key in keys if key not in schema]
    if unknown or not turns:
        raise row["turns"].unfit(f"turns with slots of schema.json, not {unknown[:1]}")
    slots = {key: schema[key] for key in keys}
    return _Dialogue(exchanges, slots, {slot.noun for slot in slots.values()})


def _states(turn: Row) -> list[_State]:
    frames = turn["frames"].items(needed=False)
    given = [
        (frame["service"].text(), frame["state"].fields().get("slot_values")) for frame in frames
    ]
    return [
        (service, {name: value.answers() for name, value in values.fields().items()})
        for service, values in given
        if values is not None
    ]


def _person(pool: list[_Dialogue], bounds: tuple[int, int], rng: random.Random) -> list[_Dialogue]:
    """Take dialogues of different domains out of the pool, the most frequent domains first; none if
    there are too few.
    """
    left = Counter(noun for dialogue in pool for noun in dialogue.nouns)
    wanted = rng.randint(*bounds)
    rarest = [min((left[noun] for noun in dialogue.nouns), default=0) for dialogue in pool]
    person: list[int] = []
    used: set[str] = set()
    for place in sorted(range(len(pool)), key=rarest.__getitem__, reverse=True):
        if len(person) < wanted and used.isdisjoint(pool[place].nouns):
            person.append(place)
            used |= pool[place].nouns
    taken = [pool.pop(place) for place in sorted(person, reverse=True)]
    return rng.sample(taken, len(taken)) if len(taken) >= bounds[0] else []


def _draft(
    name: str, person: Sequence[_Dialogue], options: SgdOptions, count: TokenCounter
) -> Draft:
    rng = random.Random(f"sgd:{name}")
    split: Literal["train", "test"] = "train" if name.startswith("train") else "test"
    day = date(2019, 1, 1) + timedelta(days=rng.randrange(25))
    sessions = []
    for number, dialogue in enumerate(person):
        turns = [
            Turn("", "\n".join(said.line for said in exchange), f"{number}.{index}")
            for index, exchange in enumerate(dialogue.exchanges)
        ]
        sessions.append(Session(turns, "Dialogue", day.isoformat(), f"{number}"))
        day += timedelta(days=rng.randint(1, 3))
    packed = dialogue_chunks(sessions, options.chunk_tokens, count)
    traces = []
    for number, dialogue in enumerate(person):
        for (service, _), slot in dialogue.slots.items():
            states: dict[int, list[tuple[str, ...]]] = {
                place: [] for place in packed.places[f"{number}"]
            }
            for index, exchange in enumerate(dialogue.exchanges):
                held = (each for said in exchange for each in said.states)
                states[packed.places[f"{number}.{index}"][-1]] += [
                    values.get(slot.name, ()) for name, values in held if name == service
                ]
            traces.append(_trace(slot, states, packed.chunks, rng.choice(WORDINGS[split])))
    asked: list[Question | SkippedItem] = []
    for trace in traces:
        others = [fact for other in traces if other is not trace for fact in other.facts]
        if _is_ambiguous(trace, others):
            trace.facts.clear()
            asked.append(SkippedItem("ambiguous"))
        else:
            asked.append(trace.asked)
    told = (fact for trace in traces for fact in trace.facts)
    facts = sorted(told, key=lambda fact: fact.chunk)
    for fact in rng.sample(facts, min(1, len(facts))):
        time = packed.chunks[fact.chunk].time or ""
        text = rng.choice(TIME_WORDINGS[split]).format(fact.subject)
        places = tuple(place for place, chunk in enumerate(packed.chunks) if chunk.time == time)
        asked.append(Question(text, (time,), "bound", "time", fact.subject, evidence=places))
    asked = sorted(rng.sample(asked, len(asked)), key=_rank)
    kept = [place for place, each in enumerate(asked) if isinstance(each, Question)]
    for place in kept[options.max_questions or len(kept) :]:
        asked[place] = SkippedItem("over max_questions")
    return Draft(name, "sgd", packed.chunks, asked, tuple(facts))


def _rank(asked: Question | SkippedItem) -> int:
    return _KINDS.index(asked.kind) if isinstance(asked, Question) else 0


def _is_ambiguous(trace: _Trace, others: Sequence[Fact]) -> bool:
    """Whether another note of the domain says a value, or the own last note does not answer."""
    asked = trace.asked
    if isinstance(asked, SkippedItem):
        return False
    notes = [fact.note for fact in others if contains(fact.note, asked.subject or "")]
    told = [(note, value) for note in notes for value in (*asked.answers, *asked.stale)]
    told += [(fact.note, fact.previous or "") for fact in trace.facts]
    answer = Answer("", (trace.facts[-1].note,))
    return any(contains(*each) for each in told) or not bound_to_subject(asked, answer)


def _trace(
    slot: _Slot,
    states: Mapping[int, list[tuple[str, ...]]],
    chunks: Sequence[Chunk],
    wording: str,
) -> _Trace:
    """Follow a slot through the states of each chunk, by its index."""
    noun = slot.noun
    dated = "date" in slot.name
    repeated = rf"^{re.escape(noun.rpartition(' ')[2])} | of {re.escape(noun)}$"
    attribute = re.sub(repeated, "", slot.name.replace("_", " ")).strip() or slot.name
    episodic = ("episodic",) if dated or "time" in slot.name else ()
    sections = (*episodic, "semantic", "spatiotemporal_context")
    held: dict[str, None] = {}  # spellings of the value
    past: dict[str, None] = {}  # and of earlier ones
    noted = ""
    facts: list[Fact] = []
    for place, values in states.items():
        text = chunks[place].text.partition("\n")[2]
        for value in values:
            digits = [_NUMBERS[int(each)] for each in value if re.fullmatch("[1-9]", each)]
            spelled = [] if "dontcare" in value else [*value, *digits]
            if {*map(words, spelled)}.isdisjoint(map(words, held)):
                past |= held
                held = {}
            held |= dict.fromkeys(spelled)
        said = [
            each for each in held if contains(text, each) and not (dated and _RELATIVE.search(each))
        ]
        if said and noted not in held:
            action = FactAction.CHANGE if noted else FactAction.STATE
            previous = noted or None
            noted = max(said, key=len)
            note = f"{noun[0].upper()}{noun[1:]} {attribute}: {noted}"
            facts.append(Fact(place, action, noun, attribute, noted, previous, note, sections))
    if slot.values == {"True", "False"} or noted not in held:
        unsaid = "value not in the text, or a relative date" if held else "no value at the end"
        return _Trace(SkippedItem("yes or no" if "True" in slot.values else unsaid), [])
    asked = slot.description.rstrip(". ")
    if re.match(r"(?i)(how|whether|what|which|if)\b", asked):
        asked = attribute
    asked = asked if asked[1:2].isupper() else asked[:1].lower() + asked[1:]
    asked = re.sub(r"^(?!(the|an?) )", "the ", asked)
    asked = wording.format(asked if contains(asked, noun) else f"{asked} for the {noun}")
    answers = tuple(dict.fromkeys([noted, *held]))
    stale = tuple(value for value in past if value not in held)
    kind = "latest" if stale else "single"
    return _Trace(Question(asked, answers, "bound", kind, noun, stale, (facts[-1].chunk,)), facts)


SOURCES = [
    Source(
        "sgd",
        "Schema-Guided Dialogue: a folder of dialogues_*.json with schema.json",
        _load_sgd,
        SgdOptions,
    ),
]
