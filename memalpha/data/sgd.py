"""Schema-Guided Dialogue (SGD, arXiv 1909.05855): the task dialogues of one person; docs/data.md
has form and departures.

An instance is one person's dialogues on different days, no two of one domain. Facts are what the
annotated state takes on, in words of the chunk, at most one of a slot in a chunk; an offer alone is
none, and stays in one chunk with its reply. The schema asks.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, Field, NonNegativeInt, PositiveInt

from memalpha.data.packing import Session, Turn, dialogue_chunks
from memalpha.data.rows import (
    Answers,
    Cleaned,
    Row,
    Scalar,
    Text,
    checked,
    data_files,
    data_path,
    iter_rows,
)
from memalpha.data.source import (
    Bounds,
    CommonOptions,
    LoadResult,
    Source,
    read_questions,
    read_rows,
)
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import bound, contains, words
from memalpha.types import Answer, Fact, FactAction, Instance, Question

WORDINGS: Mapping[
    str, Sequence[str]
] = {  # of a value; {} is a description, e.g. "the city in which the restaurant is located"
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
TIME_WORDINGS: Mapping[
    str, Sequence[str]
] = {  # of a dialogue's date; {} is a domain, e.g. "restaurant"
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
_NUMBERS = dict(
    zip(
        "123456789",
        ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
        strict=True,
    )
)
_RELATIVE = re.compile(
    r"\b(\w+day|now|tonight|tomorrow|this|next|later|coming)\b", re.IGNORECASE
)  # dates that need today's


@dataclass(frozen=True, slots=True)
class SgdOptions(CommonOptions):
    """How SGD becomes instances."""

    dialogues: Bounds = (8, 12)  # fewest and most dialogues of a person; each is used at most once
    chunk_tokens: PositiveInt = (
        200  # most tokens of a chunk; one exchange alone (64) seldom names what it is about
    )
    max_questions: NonNegativeInt = (
        12  # most questions of an instance (0 = all): changed values, a date, then others, drawn
    )
    split: Literal["", "train", "dev", "test"] = (
        ""  # folder, and wordings of train or of test ("" = the input's name, else train)
    )
    unseen_in: str = ""  # a schema.json: dialogues with a service of it are left out


class _Slot(BaseModel):
    name: Text
    description: Text
    possible_values: list[Scalar] = []
    noun: str = ""  # of its domain


class _Service(BaseModel):
    service_name: Text
    slots: list[_Slot]


class _Frame(BaseModel):
    service: Text
    values: Annotated[
        dict[Cleaned, Answers] | None, Field(validation_alias=AliasPath("state", "slot_values"))
    ] = None


class _Turn(BaseModel):
    speaker: Literal["USER", "SYSTEM"]
    utterance: Text
    frames: list[_Frame] = []


class _Dialogue(BaseModel):
    turns: Annotated[list[_Turn], Field(min_length=1)]
    # those that have values, by (service, name); set by the loader, as are the nouns of their
    # domains
    slots: Any = None
    nouns: Any = None


def _schema(path: Path) -> dict[tuple[str, str], _Slot]:
    """Return slots by (service, name). Noun: "bus" of Buses_1, "ride" of RideSharing_2, "doctor" of
    Services_3 with doctor_name.
    """
    schema = dict[tuple[str, str], _Slot]()
    for row in iter_rows(str(path)):
        service = checked(_Service, row.data, row.where)
        noun = re.sub(
            r"(?<=[a-z])(?=[A-Z])|_+", " ", re.sub(r"_\d+$", "", service.service_name)
        ).lower()
        noun = (
            re.sub(r"(?<=[^aeiou]us)es$|(?<!s)s$", "", re.sub(r" \w+ing$", "", noun)).strip()
            or service.service_name
        )
        named = (
            slot.name[:-5].replace("_", " ")
            for slot in service.slots
            if re.fullmatch(r"\w+_name", slot.name)
        )
        noun = next(named, noun) if noun == "service" else noun
        schema |= {
            (service.service_name, slot.name): slot.model_copy(update={"noun": noun})
            for slot in service.slots
        }
    return schema


def load_sgd(
    source: str, options: SgdOptions, seed: int, count: TokenCounter, result: LoadResult
) -> Iterator[Instance]:
    """Load SGD person by person; InputError if dialogues or their schema.json cannot be read."""
    folder = data_path(source)
    part = options.split or (folder.name if folder.name in ("dev", "test") else "train")
    files = data_files(
        str(folder / part if (folder / part).is_dir() else folder), "dialogues_*.json"
    )
    schema = _schema(files[0].with_name("schema.json"))
    seen = (
        {service for service, _ in _schema(Path(options.unseen_in))}
        if options.unseen_in
        else set[str]()
    )

    def dialogue(row: Row) -> _Dialogue:
        made = checked(_Dialogue, row.data, row.where)
        keys = [
            (frame.service, slot)
            for turn in made.turns
            for frame in turn.frames
            for slot in frame.values or ()
        ]
        if unknown := [key for key in keys if key not in schema]:
            raise SchemaError(
                f"{row.where} has the slot {unknown[0]}", expected="slots of schema.json"
            )
        made.slots, made.nouns = (
            {key: schema[key] for key in keys},
            frozenset(schema[key].noun for key in keys),
        )
        return made

    read = list(
        read_rows((row for file in files for row in iter_rows(str(file))), result, dialogue)
    )
    left, rng, made = sum(len(each.slots) for each in read), random.Random(f"sgd:{part}:{seed}"), 0
    pool = [
        each
        for each in rng.sample(read, len(read))
        if seen.isdisjoint(service for service, _ in each.slots)
    ]
    while person := _person(pool, options.dialogues, rng):
        left -= sum(len(each.slots) for each in person)
        yield _instance(f"{part}-{seed}-{made}", person, options, count, result)
        made += 1
    read_questions(["of dialogues left over"] * left, part, result)


def _person(pool: list[_Dialogue], bounds: tuple[int, int], rng: random.Random) -> list[_Dialogue]:
    """Take dialogues of different domains out of the pool, the most frequent domains first; none if
    there are too few.
    """
    left, wanted = Counter(noun for each in pool for noun in each.nouns), rng.randint(*bounds)
    person, used = list[int](), set[str]()
    for place in sorted(
        range(len(pool)),
        key=lambda place: -min((left[noun] for noun in pool[place].nouns), default=0),
    ):
        if len(person) < wanted and used.isdisjoint(pool[place].nouns):
            person.append(place)
            used |= pool[place].nouns
    taken = [pool.pop(place) for place in sorted(person, reverse=True)]
    return rng.sample(taken, len(taken)) if len(taken) >= bounds[0] else []


def _instance(
    name: str,
    person: Sequence[_Dialogue],
    options: SgdOptions,
    count: TokenCounter,
    result: LoadResult,
) -> Instance:
    rng, split = random.Random(f"sgd:{name}"), "train" if name.startswith("train") else "test"
    day, sessions, exchanges = (
        date(2019, 1, 1) + timedelta(days=rng.randrange(25)),
        [],
        list[dict[str, list[_Turn]]](),
    )
    for number, dialogue in enumerate(person):
        starts = [
            i for i, turn in enumerate(dialogue.turns[:-1]) if turn.speaker == "SYSTEM" and i
        ] + [len(dialogue.turns)]
        exchanges.append(
            {
                f"{number}.{i}": dialogue.turns[i:j]
                for i, j in zip([0, *starts], starts, strict=False)
            }
        )
        lines = [
            (key, [f"{_NAMES[turn.speaker]}: {turn.utterance}" for turn in said])
            for key, said in exchanges[-1].items()
        ]
        sessions.append(
            Session(
                [Turn("", "\n".join(said), key) for key, said in lines],
                "Dialogue",
                day.isoformat(),
                f"{number}",
            )
        )
        day += timedelta(days=rng.randint(1, 3))
    made = dialogue_chunks(sessions, options.chunk_tokens, count)
    traces = list[tuple[Question | str, list[Fact]]]()
    for number, dialogue in enumerate(person):
        for (service, _), slot in dialogue.slots.items():
            states: dict[int, list[Any]] = {place: [] for place in made.places[f"{number}"]}
            for key, said in exchanges[number].items():
                held = (
                    frame.values
                    for turn in said
                    for frame in turn.frames
                    if frame.service == service
                )
                states[made.places[key][-1]] += [
                    values.get(slot.name, ()) for values in held if values is not None
                ]
            steps = (
                (place, made.chunks[place].text.partition("\n")[2], given)
                for place, given in states.items()
            )
            traces.append(_traced(slot, steps, rng.choice(WORDINGS[split])))
    asked = list[Question | str]()
    for question, own in traces:
        if isinstance(question, Question):
            others = [
                fact.note
                for _, its in traces
                if its is not own
                for fact in its
                if contains(fact.note, own[0].subject)
            ]
            told = [
                (note, value) for note in others for value in (*question.answers, *question.stale)
            ]
            told += [(fact.note, fact.previous or "") for fact in own]
            if any(contains(*each) for each in told) or not bound(
                question, Answer("", (own[-1].note,))
            ):
                own[:], question = [], "ambiguous"
        asked.append(question)
    facts = sorted((fact for _, own in traces for fact in own), key=lambda fact: fact.chunk)
    for fact in rng.sample(facts, min(1, len(facts))):
        time, text = (
            made.chunks[fact.chunk].time or "",
            rng.choice(TIME_WORDINGS[split]).format(fact.subject),
        )
        places = tuple(place for place, chunk in enumerate(made.chunks) if chunk.time == time)
        asked.append(Question(text, (time,), "bound", "time", fact.subject, evidence=places))
    read = sorted(
        rng.sample(asked, len(asked)),
        key=lambda each: isinstance(each, Question) and _KINDS.index(each.kind),
    )
    kept = read_questions(read, name, result)
    most = options.max_questions or len(kept)
    result.skipped["over max_questions"] += len(kept[most:])
    return Instance(name, "sgd", made.chunks, kept[:most], tuple(facts))


def _traced(
    slot: _Slot, steps: Iterable[tuple[int, str, list[Any]]], wording: str
) -> tuple[Question | str, list[Fact]]:
    """Return a slot's question (or why there is none) and facts, from the index, text and states of
    each chunk.
    """
    noun, dated = slot.noun, "date" in slot.name
    repeated = rf"^{re.escape(noun.rpartition(' ')[2])} | of {re.escape(noun)}$"
    attribute = re.sub(repeated, "", slot.name.replace("_", " ")).strip() or slot.name
    sections = ("episodic",) * (dated or "time" in slot.name) + (
        "semantic",
        "spatiotemporal_context",
    )
    held, past, noted, facts = (
        dict[str, None](),
        dict[str, None](),
        "",
        list[Fact](),
    )  # spellings of the value, and of earlier ones
    for place, text, states in steps:
        for given in states:
            spelled = (
                []
                if "dontcare" in given
                else [*given, *(_NUMBERS[each] for each in given if each in _NUMBERS)]
            )
            same = {*map(words, spelled)} & {*map(words, held)}
            past |= {} if same else held
            held = (held if same else {}) | dict.fromkeys(spelled)
        said = [
            each for each in held if contains(text, each) and not (dated and _RELATIVE.search(each))
        ]
        if said and noted not in held:
            action, previous, noted = (
                FactAction.CHANGE if noted else FactAction.STATE,
                noted or None,
                max(said, key=len),
            )
            note = f"{noun[0].upper()}{noun[1:]} {attribute}: {noted}"
            facts.append(Fact(place, action, noun, attribute, noted, previous, note, sections))
    if {*slot.possible_values} == {"True", "False"} or noted not in held:
        reason = "value not in the text, or a relative date" if held else "no value at the end"
        return "yes or no" if "True" in slot.possible_values else reason, []
    asked = (
        attribute
        if re.match(r"(?i)(how|whether|what|which|if)\b", slot.description)
        else slot.description.rstrip(". ")
    )
    asked = re.sub(
        r"^(?!(the|an?) )", "the ", asked if asked[1:2].isupper() else asked[:1].lower() + asked[1:]
    )
    asked = wording.format(asked if contains(asked, noun) else f"{asked} for the {noun}")
    answers, stale = (
        tuple(dict.fromkeys([noted, *held])),
        tuple(value for value in past if value not in held),
    )
    return Question(
        asked, answers, "bound", "latest" if stale else "single", noun, stale, (facts[-1].chunk,)
    ), facts


SOURCES = (
    Source(
        "sgd",
        "Schema-Guided Dialogue: a folder of dialogues_*.json with schema.json",
        load_sgd,
        SgdOptions,
    ),
)
