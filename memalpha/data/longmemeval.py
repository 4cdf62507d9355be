"""LongMemEval (Wu et al., arXiv 2410.10813): one question about a long history of chats. S, M and oracle, which share one form.

Reads a JSON list of ``{question_id, question_type, question, answer, question_date, haystack_dates, haystack_session_ids,
haystack_sessions[][{role, content, has_answer?}], answer_session_ids}`` item by item, or the same rows on the Hub
(``xiaowu0162/longmemeval``).

Construction as published for Mem-alpha (arXiv 2509.25911): an item is an instance; consecutive sessions are joined to chunks of at
most 2048 tokens. Each session begins with a line that dates it; a chunk's time is that of its first session. The kind is the
item's ``question_type``, or ``abstention`` where its id ends in ``_abs``. The metric is the published yes/no judge.

What always holds: the evidence of a question is the chunks with the turns marked ``has_answer``, or with the sessions in
``answer_session_ids`` where no turn is marked. Reasons to skip: ``empty answer``, ``malformed``.

Departures: sessions are put in order of their dates, which the oracle file does not do, as a memory reads them (those whose date
cannot be read keep their places, and are counted in ``notes``); a session longer
than a chunk is cut between turns rather than standing over-long; the question's date goes on a line of its own before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memalpha.data.dates import iso_date, time_of
from memalpha.data.fields import EMPTY_ANSWER, answers, items, mapping, optional_text, scalar_text, text
from memalpha.data.reading import CommonOptions, check_at_least, load_rows, read_questions
from memalpha.data.rows import Row, check_text, iter_rows
from memalpha.data.sessions import Session, Turn, dialogue_chunks
from memalpha.data.source import LoadResult
from memalpha.data.wording import asked_on
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Instance, Question

SOURCE = "longmemeval"
"""``Instance.source`` of everything made here."""


UNDATED = "sessions without a date that can be read"
"""Note of the sessions that are not put in order."""


@dataclass(frozen=True, slots=True)
class LongMemEvalOptions(CommonOptions):
    """How LongMemEval becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        join: Whether consecutive sessions share a chunk while they fit.
        metric: Metric of every question; ``judge`` as published, another where there is no judge.
    """

    chunk_tokens: int = 2048
    join: bool = True
    metric: str = "judge"

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens")
        check_metric(self.metric, judged=True)


def load_longmemeval(source: str, options: LongMemEvalOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load LongMemEval item by item; raises InputError if the input cannot be read."""

    def instance(row: Row, result: LoadResult) -> Instance:
        return _instance(row, options, count_tokens, result)

    return load_rows(iter_rows(source, options.split), options, seed, lambda data: 1, instance)


def _instance(row: Row, options: LongMemEvalOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = mapping(row.data, row.where)
    name = scalar_text(data.get("question_id"), f"{row.where} field 'question_id'") or f"item-{row.where}"
    sessions, undated = _by_date(list(_sessions(data, row.where)))
    result.notes[UNDATED] += undated
    if not any(session.turns for session in sessions):
        raise SchemaError(f"{row.where} field 'haystack_sessions' holds no turn", expected="sessions of {role, content}")
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count, join=options.join)
    marked = [turn.key for session in sessions for turn in session.turns if turn.key]
    evidence = dialogue.evidence(marked or [f"session {key}" for key in _answer_sessions(data)])

    def question(item: Any, where: str) -> Question | str:
        asked = text(data, "question", row.where)
        date = optional_text(data, "question_date", row.where)
        if not (golds := answers(data.get("answer"), f"{row.where} field 'answer'")):
            return EMPTY_ANSWER
        kind = "abstention" if name.endswith("_abs") else optional_text(data, "question_type", row.where) or "single"
        dated = asked_on(date, asked) if date else asked
        return Question(dated, golds, options.metric, kind, evidence=evidence, id=name)

    return Instance(name, SOURCE, dialogue.chunks, tuple(read_questions([data], row.where, result, question)))


def _sessions(data: Mapping[str, Any], where: str) -> Iterator[Session]:
    sessions, dates = items(data, "haystack_sessions", where), items(data, "haystack_dates", where)
    names = items(data, "haystack_session_ids", where) if data.get("haystack_session_ids") is not None else [""] * len(sessions)
    if not len(sessions) == len(dates) == len(names):
        raise SchemaError(
            f"{where} has {len(sessions)} sessions, {len(dates)} dates and {len(names)} session ids", expected="as many of each"
        )
    for number, (turns, date, name) in enumerate(zip(sessions, dates, names, strict=True)):
        place = f"{where} session {number}"
        if not isinstance(turns, list):
            raise SchemaError(f"{place} is {type(turns).__name__}", expected="a list of turns")
        read = (_turn(turn, f"{place} turn {index}", f"{number}.{index}") for index, turn in enumerate(turns))
        time = time_of(check_text(date, f"{where} haystack_dates[{number}]"))
        yield Session([turn for turn in read if turn.text], "Session", time, f"session {name}")


def _by_date(sessions: list[Session]) -> tuple[list[Session], int]:
    """The sessions in order of their dates, those without a date that can be read in their places; and how many those are."""
    dated = [session.time is not None and iso_date(session.time) is not None for session in sessions]
    ordered = iter(sorted((s for s, known in zip(sessions, dated, strict=True) if known), key=lambda s: s.time or ""))
    placed = [next(ordered) if known else session for session, known in zip(sessions, dated, strict=True)]
    return placed, dated.count(False)


def _turn(data: Any, where: str, key: str) -> Turn:
    turn = mapping(data, where)
    said = check_text(turn.get("content"), f"{where} field 'content'")
    return Turn(optional_text(turn, "role", where), said, f"turn {key}" if turn.get("has_answer") is True else "")


def _answer_sessions(data: Mapping[str, Any]) -> list[Any]:
    named = data.get("answer_session_ids")
    return named if isinstance(named, list) else []
