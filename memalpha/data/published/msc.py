"""Multi-Session Chat: asked is what the set asks, else what each speaker said about themselves."""

from collections.abc import Mapping

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.published.shared import PERSONA
from memalpha.data.rows import Row
from memalpha.data.source import Draft, Source, TextOptions, by_row
from memalpha.types import Question, TokenCounter

_SPEAKERS = ("Speaker 1", "Speaker 2")


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
    return Draft(name or f"msc {row.where}", "msc", dialogue.chunks, asked)


def _msc_turns(session: Row) -> list[Turn]:
    return [
        Turn(turn["id"].scalar() or _SPEAKERS[number % 2], turn["text"].string())
        for number, turn in enumerate(session["dialog"].items())
    ]


SOURCES = [
    Source("msc", "Multi-Session Chat, original JSON Lines", by_row(_msc), TextOptions),
]
