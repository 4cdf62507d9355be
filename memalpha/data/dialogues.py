"""Long dialogues in sessions; docs/data.md has forms and departures.

**LongMemEval** (arXiv 2410.10813): sessions by date, joined to chunks. Evidence: turns marked, else
sessions. **LoCoMo** (arXiv
2402.17753): a session a chunk, pictures as captions. **MSC** (arXiv 2107.07567; ``self_instruct``:
2310.08560): a session a chunk.
**PerLTQA** (arXiv 2402.16288): a fictional person; profile, relations, then each event with its
dialogues, as in arXiv 2509.25911.

Scores. LongMemEval: a judge by question type, see ``memalpha.qa.judges.EndpointAnswerJudge``.
LoCoMo: by category, as its
``task_eval/evaluation.py``; category 5 is asked openly, not as a choice of two, and ``unknown``
counts too. MSC: F1 for personas (there perplexity), the judge for self-instruct (there ROUGE-L
too). PerLTQA: Mem-alpha's ``evaluate_agent_results.py``, letter case aside and without blank parts
(its authors ask a chat model).
"""

import ast
import html
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AliasPath, BaseModel, BeforeValidator, Field, PositiveInt

from memalpha.data import rows as inputs
from memalpha.data.packing import Session, Turn, chunked, dialogue_chunks
from memalpha.data.rows import (
    EMPTY_ANSWER,
    Answers,
    Cleaned,
    OrEmpty,
    Row,
    Rows,
    Scalar,
    Text,
    checked,
)
from memalpha.data.source import (
    CommonOptions,
    LoadResult,
    Metric,
    Source,
    TextOptions,
    by_row,
    read_questions,
    read_rows,
)
from memalpha.data.wording import PERSONA, asked_on
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.readers import UNKNOWN
from memalpha.times import to_iso
from memalpha.types import Chunk, Instance, Question
from memalpha.units import cut

# ------------------------------------------------------------------------------------------------
# LongMemEval
# note: an instance with such sessions keeps their order
UNDATED = "sessions without a date that can be read"


@dataclass(frozen=True, slots=True)
class LongMemEvalOptions(CommonOptions):
    """How LongMemEval becomes instances."""

    chunk_tokens: PositiveInt = 2048  # maximum tokens of a chunk
    join: bool = True  # put consecutive sessions of one day into one chunk while they fit
    metric: Metric = (
        "judge"  # metric of every question; judge as published, another one if there is no judge
    )


class _Said(BaseModel):
    role: Scalar = ""
    content: Cleaned
    has_answer: Any = None


class _Item(BaseModel):
    question_id: Scalar
    question_type: Scalar = ""
    question: Text
    answer: Answers = ()
    question_date: Scalar = ""
    haystack_dates: list[Cleaned]
    haystack_sessions: list[list[_Said]]
    haystack_session_ids: list[Any]
    answer_session_ids: list[Any] = []


def _longmemeval(
    item: _Item, place: str, options: LongMemEvalOptions, count: TokenCounter, result: LoadResult
) -> Instance:
    if (
        len(set(map(len, (item.haystack_session_ids, item.haystack_sessions, item.haystack_dates))))
        > 1
    ):
        raise SchemaError(
            f"{place} has sessions, dates and session ids of different numbers",
            expected="as many of each",
        )
    sessions = []
    told = zip(item.haystack_sessions, item.haystack_dates, item.haystack_session_ids, strict=True)
    for number, (said, date, name) in enumerate(told):
        keys = (
            f"turn {number}.{index}" if turn.has_answer is True else ""
            for index, turn in enumerate(said)
        )
        turns = [
            Turn(turn.role, turn.content, key)
            for turn, key in zip(said, keys, strict=True)
            if turn.content
        ]
        sessions.append(Session(turns, "Session", date, f"session {name}"))
    if undated := sum(to_iso(date) is None for date in item.haystack_dates):
        result.notes[UNDATED] += undated
    else:
        sessions.sort(key=lambda session: to_iso(session.time) or "")
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count, join=options.join)
    marked = [turn.key for session in sessions for turn in session.turns if turn.key]
    evidence = dialogue.evidence(marked or [f"session {key}" for key in item.answer_session_ids])
    name = item.question_id or f"item-{place}"
    kind = "abstention" if name.endswith("_abs") else item.question_type
    text = asked_on(item.question_date, item.question)
    asked = (
        Question(text, item.answer, options.metric, kind, evidence=evidence, id=name)
        if item.answer
        else EMPTY_ANSWER
    )
    return Instance(name, "longmemeval", dialogue.chunks, read_questions([asked], place, result))


# ------------------------------------------------------------------------------------------------
# LoCoMo
KINDS: Mapping[int, str] = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
"""Kind of each LoCoMo category."""
_LOCOMO_METRICS: Mapping[int, str] = {
    1: "stemmed_list_f1",
    5: "unmentioned",
}  # stemmed_f1 for the others

_SESSION = re.compile(r"session_0*([0-9]+)")
_TURN = re.compile(r"D0*([0-9]+):0*([0-9]+)")


@dataclass(frozen=True, slots=True)
class LocomoOptions(TextOptions):
    """How LoCoMo becomes instances."""

    adversarial: bool = (
        False  # ask the questions of category 5 without an answer: what was never said
    )


class _LocomoTurn(BaseModel):
    speaker: Text
    text: Scalar = ""
    blip_caption: Scalar = ""
    dia_id: Scalar = ""

    def shown(self) -> str:
        return (
            f"{self.text} [shows {self.blip_caption}]".strip() if self.blip_caption else self.text
        )


class _Turns(BaseModel):
    turns: list[_LocomoTurn]
    time: Scalar = ""


class _LocomoRow(BaseModel):
    sample_id: Scalar = ""
    conversation: dict[str, Any]
    qa: list[Any]


class _LocomoQuestion(BaseModel):
    question: Text
    category: Annotated[int, Field(strict=True, ge=1, le=5)]
    answer: Answers = ()
    evidence: Any = None


def _locomo(
    data: _LocomoRow, place: str, options: LocomoOptions, count: TokenCounter, result: LoadResult
) -> Instance:
    talk, sessions = data.conversation, []
    numbers = {key: match[1] for key in talk if (match := _SESSION.fullmatch(key))}
    for key, number in sorted(numbers.items(), key=lambda item: (len(item[1]), item[1])):
        held = checked(
            _Turns, {"turns": talk[key], "time": talk.get(f"{key}_date_time")}, f"{place} {key}"
        )
        turns = (
            Turn(turn.speaker, turn.shown(), next(_turn_names(turn.dia_id), turn.dia_id))
            for turn in held.turns
        )
        sessions.append(
            Session([turn for turn in turns if turn.text], f"Session {number}", held.time)
        )
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count)

    def question(item: Any, where: str) -> Question | str:
        asked = checked(_LocomoQuestion, item, where)
        evidence = dialogue.evidence(_turn_names(str(asked.evidence)))
        result.notes["evidence that is not there"] += evidence is None
        golds = asked.answer
        if asked.category == 3:  # what follows ";" explains
            golds = tuple(filter(None, (answer.partition(";")[0].strip() for answer in golds)))
        if asked.category == 5 and (golds or options.adversarial):
            golds = (*golds, UNKNOWN)
        if not golds:
            return "adversarial, no gold answer" if asked.category == 5 else EMPTY_ANSWER
        metric = options.metric or _LOCOMO_METRICS.get(asked.category, "stemmed_f1")
        return Question(asked.question, golds, metric, KINDS[asked.category], evidence=evidence)

    questions = read_questions(data.qa, place, result, question)
    return Instance(data.sample_id or f"locomo {place}", "locomo", dialogue.chunks, questions)


def _turn_names(written: str) -> Iterator[str]:
    return (f"D{session}:{turn}" for session, turn in _TURN.findall(written))


# ------------------------------------------------------------------------------------------------
# MSC
_SPEAKERS = ("Speaker 1", "Speaker 2")


class _MscTurn(BaseModel):
    text: Cleaned
    id: Scalar = ""


class _MscSession(BaseModel):
    dialog: list[_MscTurn]
    time_back: Scalar = ""

    def turns(self) -> list[Turn]:
        return [
            Turn(turn.id or _SPEAKERS[i % 2], turn.text)
            for i, turn in enumerate(self.dialog)
            if turn.text
        ]


class _SelfInstruct(BaseModel):
    B: Text
    A: Answers = ()


class _MscRow(_MscSession):
    previous_dialogs: Annotated[list[_MscSession], OrEmpty] = []
    personas: Annotated[list[list[Cleaned]], OrEmpty] = []
    self_instruct: _SelfInstruct | None = None
    name: Annotated[Scalar, Field(validation_alias=AliasPath("metadata", "initial_data_id"))] = ""


def _msc(
    data: _MscRow, place: str, options: TextOptions, count: TokenCounter, result: LoadResult
) -> Instance:
    sessions = []
    for number, session in enumerate(data.previous_dialogs, start=1):
        ago = (
            f", {session.time_back.removesuffix(' ago')} before the last"
            if session.time_back
            else ""
        )
        sessions.append(Session(session.turns(), f"Session {number}{ago}"))
    dialogue = dialogue_chunks(
        [*sessions, Session(data.turns(), "Last session")], options.chunk_tokens, count
    )
    if own := data.self_instruct:
        asked = [Question(own.B, own.A, options.metric or "judge", "recall")]
    else:
        told = (
            (speaker, " ".join(filter(None, said)))
            for speaker, said in zip(_SPEAKERS, data.personas, strict=False)
        )
        asked = [
            Question(
                PERSONA.format(who), (said,) if said else (), options.metric or "f1", "persona"
            )
            for who, said in told
        ]
    questions = read_questions(
        (each if each.answers else EMPTY_ANSWER for each in asked), place, result
    )
    return Instance(data.name or f"msc {place}", "msc", dialogue.chunks, questions)


# ------------------------------------------------------------------------------------------------
# PerLTQA
_KEY = re.compile(r"[0-9]+(?:_[0-9]+)+(?:#[0-9]+)?")


def load_perltqa(
    source: str, options: TextOptions, seed: int, count: TokenCounter, result: LoadResult
) -> Iterator[Instance]:
    """Load PerLTQA person by person; InputError if one of the two files cannot be read."""
    asked = inputs.existing_file(source)
    memory = asked.with_name(asked.name.replace("perltqa", "perltmem"))
    if memory == asked or not isinstance(memories := inputs.json_document(str(memory)), Mapping):
        raise SchemaError(
            f"{memory} holds no memories", expected="perltqa*.json with perltmem*.json beside it"
        )
    given = inputs.json_document(str(asked))
    rows = (
        Row(f"{asked.name} item {index} {name!r}", (name, data))
        for index, item in enumerate(given if isinstance(given, list) else [given])
        for name, data in (item.items() if isinstance(item, Mapping) else [("", item)])
    )
    return read_rows(rows, result, lambda row: _perltqa(row, memories, options, count, result))


def _joined(separator: str) -> BeforeValidator:
    return BeforeValidator(
        lambda value: (
            separator.join(map(inputs.scalar, value))
            if isinstance(value, list)
            else inputs.scalar(value)
        )
    )


def _anchors(value: Any) -> list[str]:
    phrases = [
        key
        for item in (value if isinstance(value, list) else [])
        if isinstance(item, Mapping)
        for key in item
    ]
    cleaned = (
        " ".join(html.unescape(inputs.scalar(phrase)).replace(";", ",").split())
        for phrase in phrases
    )
    return list(dict.fromkeys(filter(None, cleaned)))


# Some circles are Python text.
_Circle = BeforeValidator(
    lambda value: ast.literal_eval(value) if isinstance(value, str) else value
)


class _Person(BaseModel):
    profile: Rows = []
    social_relationship: list[dict[str, Rows]] = []
    events: list[dict[str, Rows]] = []
    dialogues: list[dict[str, Rows]] = []

    def questions(self) -> list[tuple[str, Any]]:
        told = [
            ("social_relationship", self.social_relationship),
            ("events", self.events),
            ("dialogues", self.dialogues),
        ]
        keyed = (
            (section, asked)
            for section, items in told
            for item in items
            for value in item.values()
            for asked in value
        )
        return [*(("profile", asked) for asked in self.profile), *keyed]


class _Qa(BaseModel):
    question: Annotated[Cleaned, Field(alias="Question", min_length=1)]
    answer: Annotated[Answers, Field(alias="Answer")] = ()
    reference: Annotated[str, _joined(" "), Field(alias="Reference Memory")] = ""
    anchors: Annotated[list[str], BeforeValidator(_anchors), Field(alias="Memory Anchors")] = []


class _Relation(BaseModel):
    who: Annotated[Scalar, Field(alias="Supporting Characters")] = ""
    how: Annotated[Scalar, Field(alias="Relationship")] = ""
    what: Annotated[Scalar, Field(alias="Description")] = ""


class _Event(BaseModel):
    time: Annotated[Scalar, Field(alias="Creation Time")] = ""
    summary: Scalar = ""
    content: Scalar = ""


class _Talk(BaseModel):
    contents: dict[Cleaned, list[Scalar]] = {}
    events: Any = None

    def parts(self, name: str) -> Iterator[tuple[str, str | None, list[str]]]:
        for when, said in self.contents.items():
            yield (
                "\n".join([f"[Dialogue, {to_iso(when) or when}]", *said]),
                to_iso(when),
                [f"event {name}"],
            )


class _Memories(BaseModel):
    profile: dict[Cleaned, Annotated[str, _joined(", ")]] = {}
    profile_description: Scalar = ""
    social_relationship: Annotated[dict[Cleaned, _Relation], _Circle] = {}
    events: dict[Cleaned, _Event] = {}
    dialogues: dict[Cleaned, _Talk] = {}

    def parts(self) -> Iterator[tuple[str, str | None, list[str]]]:
        # An event and its dialogues are apart: each has its time.
        lines = [f"{key}: {value}" for key, value in self.profile.items() if value]
        if lines or self.profile_description:
            told = filter(None, ["[Profile]", *lines, self.profile_description])
            yield "\n".join(told), None, [f"profile {key}" for key in self.profile]
        if circle := self.social_relationship:
            known = (
                f"{each.who} ({each.how}): {each.what}".replace(" ()", "")
                for each in circle.values()
            )
            yield "\n".join(["[People around]", *known]), None, [f"circle {key}" for key in circle]
        # A dialogue belongs to the event it names, else to the event whose key is its prefix.
        named = ((key, talk.events) for key, talk in self.dialogues.items())
        event_of = {
            key: event if isinstance(event, str) and event else key.partition("#")[0]
            for key, event in named
        }
        for key, event in self.events.items():
            time = to_iso(event.time)
            header = (
                f"[Event, {time or event.time}] {event.summary}"
                if event.time
                else f"[Event] {event.summary}"
            )
            yield "\n".join(filter(None, [header.strip(), event.content])), time, [f"event {key}"]
            yield from (
                part
                for name, talk in self.dialogues.items()
                if event_of[name] == key
                for part in talk.parts(name)
            )
        for name in (name for name, of in event_of.items() if of not in self.events):
            yield from self.dialogues[name].parts(name)


def _perltqa(
    row: Row,
    memories: Mapping[str, Any],
    options: TextOptions,
    count: TokenCounter,
    result: LoadResult,
) -> Instance:
    name, data = row.data
    asked = checked(_Person, data, row.where).questions()
    if name not in memories:
        result.asked += len(asked)
        result.skipped["person without memories"] += len(asked)
        return Instance(name, "perltqa", (Chunk(name),), ())
    parts = checked(_Memories, memories[name], f"memories of {name!r}").parts()
    made = chunked(
        (Chunk(piece, time), keys)
        for text, time, keys in parts
        for piece in cut(text, options.chunk_tokens, count)
    )
    if not made.chunks:
        raise SchemaError(f"memories of {name!r} are empty", expected="a profile or events")

    def question(item: tuple[str, Any], where: str) -> Question | str:
        section, qa = item[0], checked(_Qa, item[1], where)
        if not qa.answer:
            return EMPTY_ANSWER
        side = "circle" if section == "social_relationship" else "event"
        keys = (
            [f"profile {qa.reference}"]
            if section == "profile"
            else [f"{side} {key}" for key in _KEY.findall(qa.reference)]
        )
        evidence = made.evidence(keys)
        result.notes["evidence that is not there"] += evidence is None
        golds = ("; ".join(qa.anchors),) if qa.anchors else qa.answer
        return Question(qa.question, golds, options.metric or "parts", section, evidence=evidence)

    return Instance(
        name, "perltqa", made.chunks, read_questions(asked, row.where, result, question)
    )


SOURCES = (
    Source(
        "perltqa", "PerLTQA, perltqa*.json with perltmem*.json beside it", load_perltqa, TextOptions
    ),
    Source(
        "locomo",
        "LoCoMo, original JSON: conversations and their questions",
        by_row(_LocomoRow, _locomo),
        LocomoOptions,
    ),
    Source(
        "longmemeval",
        "LongMemEval S, M or oracle, original JSON",
        by_row(_Item, _longmemeval),
        LongMemEvalOptions,
    ),
    Source("msc", "Multi-Session Chat, original JSON Lines", by_row(_MscRow, _msc), TextOptions),
)
