"""Long dialogues in sessions: LongMemEval, LoCoMo, MSC, PerLTQA.

A session, or an event, has its own chunk or chunks, under a line with its title and date, and the
chunk carries the date. docs/data.md has the forms, the departures, and whose scores these are.
"""

import html
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import PositiveInt

from memalpha.data.rows import Row, existing_file, read_json
from memalpha.data.source import (
    EMPTY_ANSWER,
    PERSONA,
    CommonOptions,
    Draft,
    Metric,
    Session,
    Skipped,
    Source,
    TextOptions,
    Turn,
    asked_on,
    by_row,
    chunked,
    dialogue_chunks,
    read_each,
)
from memalpha.errors import SchemaError
from memalpha.qa.readers import UNKNOWN
from memalpha.text.times import to_iso
from memalpha.types import Chunk, Question, TokenCounter
from memalpha.units import cut

KINDS: Mapping[int, str] = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
"""Kind of each LoCoMo category."""
_SESSION = re.compile(r"session_0*([0-9]+)")
_TURN = re.compile(r"D0*([0-9]+):0*([0-9]+)")
_SPEAKERS = ("Speaker 1", "Speaker 2")
_KEY = re.compile(r"[0-9]+(?:_[0-9]+)+(?:#[0-9]+)?")


# ------------------------------------------------------------------------------------------------
# LongMemEval
@dataclass(frozen=True, slots=True)
class LongMemEvalOptions(CommonOptions):
    """How LongMemEval becomes instances."""

    chunk_tokens: PositiveInt = 2048  # maximum tokens of a chunk
    join: bool = True  # put consecutive sessions of one day into one chunk while they fit
    # a chunk for each turn, without headers, so that evidence is counted turn by turn; there is
    # none where no turn is marked
    turns: bool = False
    # metric of every question; judge as published, another one if there is no judge
    metric: Metric = "judge"


def _longmemeval(row: Row, options: LongMemEvalOptions, count: TokenCounter) -> Draft:
    dates = [date.string() for date in row["haystack_dates"].items()]
    names = [f"session {name.data}" for name in row["haystack_session_ids"].items()]
    told = row["haystack_sessions"].items()
    if not len(dates) == len(names) == len(told):
        raise row["haystack_sessions"].unfit("as many sessions as dates and session ids")
    sessions = [
        Session(_marked_turns(turns), "Session", date, name)
        for turns, date, name in zip(told, dates, names, strict=True)
    ]
    undated = not all(map(to_iso, dates))
    if not undated:
        sessions.sort(key=lambda session: to_iso(session.time) or "")
    dialogue = dialogue_chunks(
        sessions, options.chunk_tokens, count, join=options.join, turns=options.turns
    )
    marked = [turn.key for session in sessions for turn in session.turns if turn.key and turn.text]
    answered = [f"session {key.data}" for key in row["answer_session_ids"].items(needed=False)]
    id = row["question_id"].scalar() or f"item-{row.where}"
    kind = "abstention" if id.endswith("_abs") else row["question_type"].scalar()
    text = asked_on(row["question_date"].scalar(), row["question"].text())
    answers = row["answer"].answers()
    evidence = dialogue.evidence(marked if options.turns else marked or answered)
    question = Question(text, answers, options.metric, kind, evidence=evidence, id=id)
    asked = [question if answers else Skipped(EMPTY_ANSWER)]
    if undated:
        asked.append(Skipped("order of sessions kept: a date cannot be read", questions=0))
    return Draft(id, "longmemeval", dialogue.chunks, asked)


def _marked_turns(session: Row) -> list[Turn]:
    return [
        Turn(
            turn["role"].scalar(),
            turn["content"].string(),
            turn.path * (turn["has_answer"].data is True),
        )
        for turn in session.items()
    ]


# ------------------------------------------------------------------------------------------------
# LoCoMo
@dataclass(frozen=True, slots=True)
class LocomoOptions(TextOptions):
    """How LoCoMo becomes instances."""

    # ask the questions of category 5 without an answer: what was never said
    adversarial: bool = False
    turns: bool = False  # a chunk for each turn, without headers, so that evidence is a turn


def _locomo(row: Row, options: LocomoOptions, count: TokenCounter) -> Draft:
    sessions = locomo_sessions(row["conversation"])
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count, turns=options.turns)

    def question(item: Row) -> Question | Skipped:
        category = item["category"].integer()
        if category not in KINDS:
            raise item["category"].unfit("a number from 1 to 5")
        evidence = dialogue.evidence(_turn_names(str(item["evidence"].data)))
        golds = item["answer"].answers()
        if category == 3:  # what follows ";" explains
            golds = tuple(filter(None, (gold.partition(";")[0].strip() for gold in golds)))
        if category == 5 and (golds or options.adversarial):
            golds = (*golds, UNKNOWN)
        text = item["question"].text()
        if not golds:
            return Skipped("adversarial, no gold answer" if category == 5 else EMPTY_ANSWER)
        metric = {1: "stemmed_list_f1", 5: "unmentioned"}.get(category, "stemmed_f1")
        return Question(text, golds, options.metric or metric, KINDS[category], evidence=evidence)

    name = row["sample_id"].scalar() or f"locomo {row.where}"
    asked = list(read_each(row["qa"].items(), question))
    return Draft(name, "locomo", dialogue.chunks, asked)


def locomo_sessions(conversation: Row) -> list[Session]:
    """Return the sessions of a conversation, by their numbers."""
    talk = conversation.fields()
    numbers = {key: _SESSION.sub(r"\1", key) for key in talk if _SESSION.fullmatch(key)}
    return [
        Session(
            _locomo_turns(talk[key]),
            f"Session {number}",
            conversation[f"{key}_date_time"].scalar(),
        )
        for key, number in sorted(numbers.items(), key=lambda item: (len(item[1]), item[1]))
    ]


def _locomo_turns(session: Row) -> list[Turn]:
    turns = []
    for turn in session.items():
        caption = turn["blip_caption"].scalar()
        text = f"{turn['text'].scalar()} [shows {caption}]" if caption else turn["text"].scalar()
        name = turn["dia_id"].scalar()
        turns.append(Turn(turn["speaker"].text(), text.strip(), next(_turn_names(name), name)))
    return turns


def _turn_names(written: str) -> Iterator[str]:
    return (f"D{session}:{turn}" for session, turn in _TURN.findall(written))


# ------------------------------------------------------------------------------------------------
# MSC
def _msc(row: Row, options: TextOptions, count: TokenCounter) -> Draft:
    sessions = []
    for number, session in enumerate(row["previous_dialogs"].items(needed=False), start=1):
        ago = session["time_back"].scalar().removesuffix(" ago")
        title = f"Session {number}, {ago} before the last" if ago else f"Session {number}"
        sessions.append(Session(_msc_turns(session), title))
    sessions.append(Session(_msc_turns(row), "Last session"))
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count)
    if row["self_instruct"].data is not None:
        own = row["self_instruct"]
        metric = options.metric or "judge"
        asked = [Question(own["B"].text(), own["A"].answers(), metric, "recall")]
    else:
        personas = [
            " ".join(filter(None, map(Row.string, persona.items())))
            for persona in row["personas"].items(needed=False)
        ]
        asked = [
            Question(
                PERSONA.format(who), (said,) if said else (), options.metric or "f1", "persona"
            )
            for who, said in zip(_SPEAKERS, personas, strict=False)
        ]
    about = row["metadata"]
    name = about["initial_data_id"].scalar() if isinstance(about.data, Mapping) else ""
    golden = [question if question.answers else Skipped(EMPTY_ANSWER) for question in asked]
    return Draft(name or f"msc {row.where}", "msc", dialogue.chunks, golden)


def _msc_turns(session: Row) -> list[Turn]:
    return [
        Turn(turn["id"].scalar() or _SPEAKERS[number % 2], turn["text"].string())
        for number, turn in enumerate(session["dialog"].items())
    ]


# ------------------------------------------------------------------------------------------------
# PerLTQA
def _load_perltqa(
    source: str, options: TextOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | Skipped]:
    """Load PerLTQA person by person; InputError if one of the two files cannot be read."""
    asked = existing_file(source)
    memory = asked.with_name(asked.name.replace("perltqa", "perltmem"))
    memories = read_json(existing_file(str(memory)))
    if memory == asked or not isinstance(memories.data, Mapping):
        raise SchemaError(
            f"{memory} holds no memories",
            expected="perltqa*.json with perltmem*.json beside it",
        )
    given = read_json(asked)
    for item in given.items() if isinstance(given.data, list) else [given]:
        names = list(item.data) if isinstance(item.data, Mapping) else []
        people = [(name, item[name]) for name in names] or [("", item)]
        yield from read_each(people, _perltqa, memories, options, count)


def _perltqa(
    named: tuple[str, Row], memories: Row, options: TextOptions, count: TokenCounter
) -> Draft:
    name, person = named
    asked = [("profile", qa) for qa in person["profile"].items(needed=False)]
    for section in ("social_relationship", "events", "dialogues"):
        keyed = [item.fields().values() for item in person[section].items(needed=False)]
        for values in itertools.chain.from_iterable(keyed):
            asked += [(section, qa) for qa in values.items(needed=False)]
    if memories[name].data is None:
        return Draft(name, "perltqa", (), [Skipped("person without memories", len(asked))])
    parts = _memories(Row(f"memories of {name!r}", memories[name].data))
    memory = chunked(
        (Chunk(piece, time), keys)
        for text, time, keys in parts
        for piece in cut(text, options.chunk_tokens, count)
    )
    if not memory.chunks:
        raise SchemaError(f"memories of {name!r} are empty", expected="a profile or events")

    def question(item: tuple[str, Row]) -> Question | Skipped:
        section, qa = item
        text = qa["Question"].text()
        answers = qa["Answer"].answers()
        reference = _joined(qa["Reference Memory"], " ")
        anchors = _anchors(qa["Memory Anchors"])
        if not answers:
            return Skipped(EMPTY_ANSWER)
        side = "circle" if section == "social_relationship" else "event"
        keys = [f"{side} {key}" for key in _KEY.findall(reference)]
        evidence = memory.evidence([f"profile {reference}"] if section == "profile" else keys)
        golds = ("; ".join(anchors),) if anchors else answers
        return Question(text, golds, options.metric or "parts", section, evidence=evidence)

    return Draft(name, "perltqa", memory.chunks, list(read_each(asked, question)))


def _joined(row: Row, separator: str) -> str:
    values = row.items() if isinstance(row.data, list) else [row]
    return separator.join(map(Row.scalar, values))


def _anchors(row: Row) -> list[str]:
    anchors = row.items() if isinstance(row.data, list) else []
    fields = [anchor.fields() for anchor in anchors if isinstance(anchor.data, Mapping)]
    phrases = (html.unescape(name).replace(";", ",") for name in itertools.chain(*fields))
    return list(dict.fromkeys(filter(None, (" ".join(phrase.split()) for phrase in phrases))))


def _memories(row: Row) -> Iterator[tuple[str, str | None, list[str]]]:
    """Yield the text, time and keys of the profile, the circle, and each event with its
    dialogues, which are apart: each has its time.
    """
    profile = {key: _joined(value, ", ") for key, value in row["profile"].fields().items()}
    lines = [f"{key}: {value}" for key, value in profile.items() if value]
    described = row["profile_description"].scalar()
    if lines or described:
        text = "\n".join(filter(None, ["[Profile]", *lines, described]))
        yield text, None, [f"profile {key}" for key in profile]
    circle = _circle(row["social_relationship"])
    if circle:
        yield (
            "\n".join(["[People around]", *circle.values()]),
            None,
            [f"circle {key}" for key in circle],
        )
    dialogues = row["dialogues"].fields()
    # A dialogue belongs to the event it names, else to the event whose key is its prefix.
    event_of = {
        key: talk["events"].data or key.partition("#")[0] for key, talk in dialogues.items()
    }
    events = row["events"].fields()
    for key, event in events.items():
        written = event["Creation Time"].scalar()
        title = f"[Event, {to_iso(written) or written}]" if written else "[Event]"
        lines = [f"{title} {event['summary'].scalar()}".strip(), event["content"].scalar()]
        yield "\n".join(filter(None, lines)), to_iso(written), [f"event {key}"]
        yield from _talks({name: dialogues[name] for name in dialogues if event_of[name] == key})
    yield from _talks({name: dialogues[name] for name in dialogues if event_of[name] not in events})


def _circle(row: Row) -> dict[str, str]:
    """Return a line for each person around; some circles are Python text."""
    lines = {}
    for key, each in row.evaluated("people").fields().items():
        who = each["Supporting Characters"].scalar()
        how = each["Relationship"].scalar()
        lines[key] = f"{who} ({how}): {each['Description'].scalar()}".replace(" ()", "")
    return lines


def _talks(dialogues: Mapping[str, Row]) -> Iterator[tuple[str, str | None, list[str]]]:
    for name, talk in dialogues.items():
        for when, lines in talk["contents"].fields().items():
            header = f"[Dialogue, {to_iso(when) or when}]"
            text = "\n".join([header, *map(Row.scalar, lines.items())])
            yield text, to_iso(when), [f"event {name}"]


SOURCES = [
    Source(
        "perltqa",
        "PerLTQA, perltqa*.json with perltmem*.json beside it",
        _load_perltqa,
        TextOptions,
    ),
    Source(
        "locomo",
        "LoCoMo, original JSON: conversations and their questions",
        by_row(_locomo),
        LocomoOptions,
    ),
    Source(
        "longmemeval",
        "LongMemEval S, M or oracle, original JSON",
        by_row(_longmemeval),
        LongMemEvalOptions,
    ),
    Source("msc", "Multi-Session Chat, original JSON Lines", by_row(_msc), TextOptions),
]
