"""LoCoMo-Plus (arXiv 2602.10715): remarks in a long conversation, and what they explain later.

Read are ``locomo_plus.json`` and, beside it, the conversations of ``locomo10.json``. Each pair is
an instance, put into a conversation: the cue is a session of its own at its date, and the remark
that should bring it to mind is the question, a week after the last session. The turns of the cue
are the evidence. Departures from ``data/build_conv.py`` of its repository: "several", "a few" and
"a couple of" months count (there as no time at all).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.published.locomo import locomo_sessions
from memalpha.data.published.shared import question_on
from memalpha.data.rows import Row, existing_file, path_exists, read_document
from memalpha.data.source import Draft, Loaded, Metric, Source, TextOptions, read_each
from memalpha.errors import SchemaError
from memalpha.qa.metrics import JUDGE
from memalpha.text.times import to_iso
from memalpha.types import Question, TokenCounter

PAIRS = "locomo_plus.json"
CONVERSATIONS = "locomo10.json"
_CUE = "cue"  # key of its session
_SPOKEN = re.compile(r"\s*([AB]):\s*(.*\S)")
_GAP = re.compile(r"\b([0-9]{1,3}|[a-z]+)(?: of)? (day|week|month|year)s?\b")
_DAYS = {"day": 1, "week": 7, "month": 30, "year": 365}
_NUMBERS = {"a": 1, "an": 1, "couple": 2, "few": 3, "several": 3}
_NUMBERS |= {
    word: number
    for number, word in enumerate(
        "one two three four five six seven eight nine ten eleven twelve".split(), start=1
    )
}
_TO_QUESTION = timedelta(days=7)  # from the last session


@dataclass(frozen=True, slots=True)
class LocomoPlusOptions(TextOptions):
    """How LoCoMo-Plus becomes instances.

    Attributes:
        turns: If true, each turn is a chunk of its own, without a header, so that evidence is a
            turn.
        metric: Every question has this metric.
    """

    turns: bool = False
    metric: Metric = JUDGE


def _load(
    source: str, options: LocomoPlusOptions, seed: int, count: TokenCounter
) -> Iterator[Loaded]:
    is_folder = path_exists(source) and Path(source).is_dir()
    pairs = existing_file(str(Path(source) / PAIRS) if is_folder else source)
    conversations = read_document(existing_file(str(pairs.with_name(CONVERSATIONS)))).items()
    if not conversations:
        raise SchemaError(f"{CONVERSATIONS} beside {pairs} is empty", expected="conversations")
    return read_each(enumerate(read_document(pairs).items()), _pair, conversations, options, count)


def _pair(
    numbered: tuple[int, Row],
    conversations: list[Row],
    options: LocomoPlusOptions,
    count: TokenCounter,
) -> Draft:
    number, row = numbered
    talk = conversations[number % len(conversations)]["conversation"]
    names = {"A": talk["speaker_a"].text(), "B": talk["speaker_b"].text()}
    sessions = locomo_sessions(talk)
    if not sessions:
        raise talk.unfit("a conversation with sessions")
    asked = max(_moment(session, talk) for session in sessions) + _TO_QUESTION
    said = asked - _gap(row["time_gap"])
    cue = _turns(row["cue_dialogue"], names)
    sessions.append(Session(cue, "", said.isoformat(), _CUE))
    sessions.sort(key=partial(_moment, talk=talk))
    in_order = [
        session._replace(title=f"Session {place}") for place, session in enumerate(sessions, 1)
    ]
    dialogue = dialogue_chunks(in_order, options.chunk_tokens, count, turns=options.turns)
    question = Question(
        question_on(asked.date().isoformat(), _lines(_turns(row["trigger_query"], names))),
        (_lines(cue),),
        options.metric,
        f"{row['relation_type'].text()} cue",
        evidence=dialogue.evidence([_CUE]),
    )
    return Draft(f"locomo-plus-{number}", "locomo_plus", dialogue.chunks, [question])


def _moment(session: Session, talk: Row) -> datetime:
    time = to_iso(session.time)
    if time is None:
        raise talk.unfit(f"sessions with a date, not {session.time!r}")
    return datetime.fromisoformat(time)


def _gap(row: Row) -> timedelta:
    """Return the time between cue and question, as words say it."""
    for word, unit in _GAP.findall(row.text().lower()):
        number = int(word) if word.isdecimal() else _NUMBERS.get(word, 0)
        if number:
            return timedelta(days=number * _DAYS[unit])
    raise row.unfit('such as "two weeks later"')


def _turns(row: Row, names: dict[str, str]) -> list[Turn]:
    spoken = [_SPOKEN.fullmatch(line) for line in row.text().split("\n") if line.strip()]
    turns = [Turn(names[each[1]], each[2]) for each in spoken if each]
    if len(turns) < len(spoken):
        raise row.unfit("lines that begin with A: or B:")
    return turns


def _lines(turns: list[Turn]) -> str:
    return "\n".join(f"{turn.speaker}: {turn.text}" for turn in turns)


SOURCES = [
    Source(
        "locomo_plus",
        f"LoCoMo-Plus, {PAIRS} with {CONVERSATIONS} beside it",
        _load,
        LocomoPlusOptions,
    )
]
