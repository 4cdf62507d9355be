"""LongMemEval: a session has its own chunk or chunks, under a line with its date."""

from dataclasses import dataclass

from pydantic import PositiveInt

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.published.shared import question_on
from memalpha.data.rows import Row
from memalpha.data.source import CommonOptions, Draft, Metric, SkippedItem, Source, by_row
from memalpha.text.times import to_iso
from memalpha.types import Question, TokenCounter


@dataclass(frozen=True, slots=True)
class LongMemEvalOptions(CommonOptions):
    """How LongMemEval becomes instances.

    Attributes:
        chunk_tokens: A chunk has at most this many tokens.
        join: If true, consecutive sessions of one day share a chunk while they fit.
        turns: If true, each turn is a chunk of its own, without a header, so that evidence is
            counted turn by turn. An item in which no turn is marked has no evidence.
        metric: Every question has this metric. The published one is ``judge``; choose another if
            there is no judge.
    """

    chunk_tokens: PositiveInt = 2048
    join: bool = True
    turns: bool = False
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
    text = question_on(row["question_date"].scalar(), row["question"].text())
    answers = row["answer"].answers()
    evidence = dialogue.evidence(marked if options.turns else marked or answered)
    question = Question(text, answers, options.metric, kind, evidence=evidence, id=id)
    asked: list[Question | SkippedItem] = [question]
    if undated:
        asked.append(SkippedItem("order of sessions kept: a date cannot be read", questions=0))
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


SOURCES = [
    Source(
        "longmemeval",
        "LongMemEval S, M or oracle, original JSON",
        by_row(_longmemeval),
        LongMemEvalOptions,
    ),
]
