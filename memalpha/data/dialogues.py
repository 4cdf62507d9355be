"""Long dialogues in sessions: LongMemEval, LoCoMo, Multi-Session Chat (MSC). Skip reasons: ``empty answer``, ``malformed``.

**LongMemEval** (Wu et al., arXiv 2410.10813), S, M and oracle: original JSON or Hub rows (``xiaowu0162/longmemeval``). As published
for Mem-alpha (arXiv 2509.25911), an item is an instance; consecutive sessions, each under a date line, are joined to chunks of at
most 2048 tokens. Kind: ``question_type``, or ``abstention`` for ids in ``_abs``; metric: the published judge. Evidence: turns with
``has_answer``, else ``answer_session_ids``. Departures: sessions are sorted by date (undated ones keep their place, see ``notes``);
sessions longer than a chunk are cut between turns; the question date is on its own line.
**LoCoMo** (Maharana et al., arXiv 2402.17753): original JSON. A conversation is an instance, a session a chunk, a category a kind;
metric: F1. Pictures are shown as captions. Evidence: the named turns, None if none exists (``notes``). Category 5 has no gold
answer and is skipped (``adversarial, no gold answer``); with option ``adversarial``, metric ``absent`` wants "not mentioned"
without the given wrong answer. Departures: F1 uses whole answers (published: up to a semicolon in category 3, comma parts in 1).
**MSC** (Xu et al., arXiv 2107.07567): original JSON Lines, also with ``self_instruct`` (``MemGPT/MSC-Self-Instruct``, arXiv
2310.08560). A dialogue is an instance, a session a chunk; its first line says how long ago it was. With ``self_instruct`` its
question is asked (``recall``, metric ``judge`` as published); otherwise, what each person said about themselves (``persona``,
metric ``f1``). No evidence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt

from memalpha.data.packing import Chunked, Session, Turn, dialogue_chunks
from memalpha.data.rows import EMPTY_ANSWER, Answers, Cleaned, OrEmpty, Row, Scalar, Text, checked
from memalpha.data.source import CommonOptions, LoadResult, Metric, Source, by_row, read_questions
from memalpha.data.wording import asked_on, iso_date, persona_question, time_of
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.types import Instance, Question


def _chunks(sessions: list[Session], where: str, limit: int, count: TokenCounter, *, join: bool = False) -> Chunked:
    if not any(session.turns for session in sessions):
        raise SchemaError(f"{where} holds no turn", expected="sessions with turns")
    return dialogue_chunks(sessions, limit, count, join=join)


# ------------------------------------------------------------------------------------------------ LongMemEval
UNDATED = "sessions without a date that can be read"
"""Note: sessions that are not sorted."""


@dataclass(frozen=True, slots=True)
class LongMemEvalOptions(CommonOptions):
    """How LongMemEval becomes instances.

    Attributes:
        chunk_tokens: Maximum tokens of a chunk.
        join: Put consecutive sessions into one chunk while they fit.
        metric: Metric of every question; ``judge`` as published, another one if there is no judge.
    """

    chunk_tokens: PositiveInt = 2048
    join: bool = True
    metric: Metric = "judge"


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
    haystack_session_ids: list[Any] | None = None
    answer_session_ids: Any = None


def _longmemeval(row: Row, options: LongMemEvalOptions, count: TokenCounter, result: LoadResult) -> Instance:
    item = checked(_Item, row.data, row.where)
    names = item.haystack_session_ids if item.haystack_session_ids is not None else [""] * len(item.haystack_sessions)
    if len({len(names), len(item.haystack_sessions), len(item.haystack_dates)}) > 1:
        raise SchemaError(f"{row.where} has sessions, dates and session ids of different numbers", expected="as many of each")
    sessions = []
    for number, (said, date, name) in enumerate(zip(item.haystack_sessions, item.haystack_dates, names, strict=True)):
        keys = (f"turn {number}.{index}" if turn.has_answer is True else "" for index, turn in enumerate(said))
        turns = [Turn(turn.role, turn.content, key) for turn, key in zip(said, keys, strict=True) if turn.content]
        sessions.append(Session(turns, "Session", time_of(date), f"session {name}"))
    dialogue = _chunks(_by_date(sessions, result), row.where, options.chunk_tokens, count, join=options.join)
    marked = [turn.key for session in sessions for turn in session.turns if turn.key]
    named = item.answer_session_ids if isinstance(item.answer_session_ids, list) else []
    evidence = dialogue.evidence(marked or [f"session {key}" for key in named])
    name = item.question_id or f"item-{row.where}"

    def question(item: _Item, where: str) -> Question | str:
        kind = "abstention" if name.endswith("_abs") else item.question_type
        text = asked_on(item.question_date, item.question)
        return Question(text, item.answer, options.metric, kind, evidence=evidence, id=name) if item.answer else EMPTY_ANSWER

    return Instance(name, "longmemeval", dialogue.chunks, read_questions([item], row.where, result, question))


def _by_date(sessions: list[Session], result: LoadResult) -> list[Session]:
    """Sort the sessions by date; those without a readable date keep their place."""
    dated = [session.time is not None and iso_date(session.time) is not None for session in sessions]
    result.notes[UNDATED] += dated.count(False)
    ordered = iter(sorted((s for s, known in zip(sessions, dated, strict=True) if known), key=lambda s: s.time or ""))
    return [next(ordered) if known else session for session, known in zip(sessions, dated, strict=True)]


# ------------------------------------------------------------------------------------------------ LoCoMo
KINDS: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
"""Kind of each LoCoMo category."""

NO_GOLD = "adversarial, no gold answer"

_SESSION = re.compile(r"session_0*([0-9]+)")
_TURN = re.compile(r"D0*([0-9]+):0*([0-9]+)")


@dataclass(frozen=True, slots=True)
class LocomoOptions(CommonOptions):
    """How LoCoMo becomes instances.

    Attributes:
        chunk_tokens: Maximum tokens of a chunk.
        metric: Metric of the questions that have an answer.
        adversarial: Also ask category 5.
    """

    chunk_tokens: PositiveInt = 2048
    metric: Metric = "f1"
    adversarial: bool = False


class _LocomoTurn(BaseModel):
    speaker: Text
    text: Scalar = ""
    blip_caption: Scalar = ""
    dia_id: Scalar = ""


class _Turns(BaseModel):
    turns: list[_LocomoTurn]
    time: Scalar = ""


class _Conversation(BaseModel, extra="allow"):
    speaker_a: Scalar = ""
    speaker_b: Scalar = ""


class _LocomoRow(BaseModel):
    sample_id: Scalar = ""
    conversation: _Conversation
    qa: list[Any]


class _LocomoQuestion(BaseModel):
    question: Text
    category: Annotated[int, Field(strict=True, ge=1, le=5)]
    answer: Answers = ()
    adversarial_answer: Answers = ()
    evidence: Annotated[
        list[Cleaned], BeforeValidator(lambda v: v if isinstance(v, list) else [v] if isinstance(v, str) else [])
    ] = []


def _locomo(row: Row, options: LocomoOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = checked(_LocomoRow, row.data, row.where)
    speakers = (data.conversation.speaker_a, data.conversation.speaker_b)
    talk, sessions = data.conversation.model_extra or {}, []
    numbers = {key: match[1] for key in talk if (match := _SESSION.fullmatch(key))}
    for key, number in sorted(numbers.items(), key=lambda item: (len(item[1]), item[1])):
        held = checked(_Turns, {"turns": talk[key], "time": talk.get(f"{key}_date_time")}, f"{row.where} {key}")
        turns = (Turn(turn.speaker, _shown(turn), next(_turn_names(turn.dia_id), turn.dia_id)) for turn in held.turns)
        sessions.append(Session([turn for turn in turns if turn.text], f"Session {number}", time_of(held.time)))
    dialogue = _chunks(sessions, row.where, options.chunk_tokens, count)

    def question(item: Any, where: str) -> Question | str:
        asked = checked(_LocomoQuestion, item, where)
        evidence = dialogue.evidence(name for text in asked.evidence for name in _turn_names(text))
        result.notes["evidence that is not there"] += evidence is None
        kind = KINDS[asked.category]
        if asked.category != 5:
            return Question(asked.question, asked.answer, options.metric, kind, evidence=evidence) if asked.answer else EMPTY_ANSWER
        named = [speaker for speaker in speakers if speaker and speaker.lower() in asked.question.lower()]
        if not options.adversarial or len(named) != 1 or not asked.adversarial_answer:
            return NO_GOLD
        return Question(asked.question, ("not mentioned",), "absent", kind, named[0], asked.adversarial_answer, evidence)

    questions = read_questions(data.qa, row.where, result, question)
    return Instance(data.sample_id or f"locomo {row.where}", "locomo", dialogue.chunks, questions)


def _shown(turn: _LocomoTurn) -> str:
    return f"{turn.text} [shows {turn.blip_caption}]".strip() if turn.blip_caption else turn.text


def _turn_names(written: str) -> Iterator[str]:
    return (f"D{session}:{turn}" for session, turn in _TURN.findall(written))


# ------------------------------------------------------------------------------------------------ MSC
_SPEAKERS = ("Speaker 1", "Speaker 2")


@dataclass(frozen=True, slots=True)
class MscOptions(CommonOptions):
    """How MSC becomes instances.

    Attributes:
        chunk_tokens: Maximum tokens of a chunk.
        metric: Metric of every question ("" = ``judge`` for ``recall``, ``f1`` for ``persona``).
    """

    chunk_tokens: PositiveInt = 2048
    metric: Metric = ""


class _MscTurn(BaseModel):
    text: Cleaned
    id: Scalar = ""


class _MscSession(BaseModel):
    dialog: list[_MscTurn]
    time_back: Scalar = ""

    def turns(self) -> list[Turn]:
        return [Turn(turn.id or _SPEAKERS[i % 2], turn.text) for i, turn in enumerate(self.dialog) if turn.text]


class _Metadata(BaseModel):
    initial_data_id: Scalar = ""


class _MscRow(_MscSession):
    previous_dialogs: Annotated[list[_MscSession], OrEmpty] = []
    personas: Annotated[list[list[Cleaned]], OrEmpty] = []
    self_instruct: Any = None
    metadata: _Metadata = _Metadata()


class _SelfInstruct(BaseModel):
    B: Text
    A: Answers = ()


def _msc(row: Row, options: MscOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = checked(_MscRow, row.data, row.where)
    sessions = []
    for number, session in enumerate(data.previous_dialogs, start=1):
        ago = f", {session.time_back.removesuffix(' ago')} before the last" if session.time_back else ""
        sessions.append(Session(session.turns(), f"Session {number}{ago}"))
    dialogue = _chunks([*sessions, Session(data.turns(), "Last session")], row.where, options.chunk_tokens, count)

    def question(item: Any, where: str) -> Question | str:
        if isinstance(item, tuple):
            speaker, persona = item
            said = " ".join(filter(None, persona))
            return Question(persona_question(speaker), (said,), options.metric or "f1", "persona") if said else EMPTY_ANSWER
        asked = checked(_SelfInstruct, item, f"{where} field 'self_instruct'")
        return Question(asked.B, asked.A, options.metric or "judge", "recall") if asked.A else EMPTY_ANSWER

    asked = [data.self_instruct] if data.self_instruct is not None else list(zip(_SPEAKERS, data.personas, strict=False))
    questions = read_questions(asked, row.where, result, question)
    return Instance(data.metadata.initial_data_id or f"msc {row.where}", "msc", dialogue.chunks, questions)


SOURCES = (
    Source("locomo", "LoCoMo, original JSON: a conversation's sessions and its questions", by_row(_locomo), LocomoOptions),
    Source("longmemeval", "LongMemEval S, M or oracle, original JSON", by_row(_longmemeval), LongMemEvalOptions),
    Source("msc", "Multi-Session Chat, original JSON Lines", by_row(_msc), MscOptions),
)
"""Every set of dialogues."""
