"""BEAM (arXiv 2510.27246): long chats of a user with an assistant, asked about ten abilities.

Read are a folder of its repository (``chats/100K``, ``chats/10M``, with ``N/chat.json`` and
``N/probing_questions/probing_questions.json``), the folder of one chat, and its rows on the Hub. A
chat is an instance, a batch of it a session. The date of a batch stands at its first message.
Departures: a mark of the chat's plan at the end of a message (``->-> 1,3``) is taken off; a
question is scored point by point of its rubric by a judge that says yes or no (there also half).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.rows import Row, iter_rows, path_exists, read_document
from memalpha.data.source import Draft, Metric, SkippedItem, Source, TextOptions, read_each
from memalpha.errors import InputError
from memalpha.qa.metrics import RUBRIC
from memalpha.text.times import to_iso
from memalpha.types import Question, TokenCounter

_CHAT = "chat.json"
_QUESTIONS = "probing_questions/probing_questions.json"
# where the answer of a question stands, by its ability; the last: what an answer should do
_ANSWERS = ("answer", "ideal_answer", "ideal_response", "ideal_summary", "expected_compliance")
# groups of turns of an update
_OLDER = "original_info"
_NEWER = "updated_info"
_PLAN = re.compile(r"plan-([0-9]{1,9})")
_MARK = re.compile(r"\s*->->[\s0-9,]*$")


@dataclass(frozen=True, slots=True)
class BeamOptions(TextOptions):
    """How BEAM becomes instances.

    Attributes:
        split: This split of the data set on the Hub is read.
        turns: If true, each turn is a chunk of its own, without a header, so that evidence is
            counted turn by turn. A turn of more than ``chunk_tokens`` takes several chunks.
        metric: Every question has this metric. ``rubric`` and ``judge`` need a judge; the others
            compare with the ideal answer.
    """

    split: str = "100K"
    turns: bool = False
    metric: Metric = RUBRIC


def _load(
    source: str, options: BeamOptions, seed: int, count: TokenCounter
) -> Iterator[Draft | SkippedItem]:
    is_folder = path_exists(source) and Path(source).is_dir()
    rows = _folder_rows(Path(source)) if is_folder else iter_rows(source, options.split)
    return read_each(rows, _chat, options, count)


def _folder_rows(folder: Path) -> Iterator[Row]:
    """Yield a row as on the Hub for each chat of a folder, by number."""
    chats = (
        [folder]
        if (folder / _CHAT).is_file()
        else [path.parent for path in folder.glob(f"*/{_CHAT}")]
    )
    if not chats:
        raise InputError(
            f"{folder} has no chat",
            expected=f"N/{_CHAT} and N/{_QUESTIONS}, or the folder of one chat",
        )
    for chat in sorted(chats, key=_number):
        name = chat.resolve().name
        data = {
            "conversation_id": name,
            "chat": read_document(chat / _CHAT).data,
            "probing_questions": read_document(chat / _QUESTIONS).data,
        }
        yield Row(f"chat {name}", data)


def _number(chat: Path) -> tuple[int, str]:
    return (int(chat.name) if chat.name.isdecimal() else 0, chat.name)


def _chat(row: Row, options: BeamOptions, count: TokenCounter) -> Draft:
    sessions = _sessions(row["chat"])
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count, turns=options.turns)

    def question(item: tuple[str, Row]) -> Question:
        kind, asked = item
        ideal = next(filter(None, (asked[name].scalar() for name in _ANSWERS)), "")
        points = tuple(point.text() for point in asked["rubric"].items(needed=False))
        golds = points if options.metric == RUBRIC else (ideal,) if ideal else points
        text = asked["question"].text()
        named = asked["source_chat_ids"]
        groups = named.fields() if isinstance(named.data, dict) else {"": named}
        turns = {name: [str(id) for id in _ids(group)] for name, group in groups.items()}
        evidence = dialogue.evidence(id for ids in turns.values() for id in ids)
        older = dialogue.evidence(turns.get(_OLDER, [])) or ()
        newer = dialogue.evidence(turns.get(_NEWER, [])) or ()
        outdated = tuple(place for place in older if place not in newer)
        return Question(text, golds, options.metric, kind, evidence=evidence, outdated=outdated)

    abilities = row["probing_questions"].evaluated("questions by ability").fields()
    asked = [(kind, item) for kind, items in abilities.items() for item in items.items()]
    name = row["conversation_id"].scalar() or row.where
    undated = any(session.time and to_iso(session.time) is None for session in sessions)
    notes = [SkippedItem("sessions with a date that cannot be read", 0)] if undated else []
    return Draft(f"beam-{name}", "beam", dialogue.chunks, notes).ask(asked, question)


def _ids(row: Row) -> Iterator[int]:
    """Yield the ids of messages in a list, in which some chats have lists."""
    for item in row.items(needed=False):
        if isinstance(item.data, list):
            yield from _ids(item)
        else:
            yield item.integer()


def _batches(chat: Row) -> Iterator[Row]:
    """Yield the batches of a chat, at 10M those of one plan after the other.

    There an item holds batches by plan; on the Hub those of other items are null.
    """
    for item in chat.items():
        plans = item.fields() if isinstance(item.data, dict) else {}
        numbers = {name: plan[1] for name in plans if (plan := _PLAN.fullmatch(name))}
        if not numbers:
            yield item
        for name in sorted(numbers, key=lambda name: int(numbers[name])):
            yield from plans[name].items(needed=False)


def _sessions(chat: Row) -> list[Session]:
    sessions = []
    for number, batch in enumerate(_batches(chat), start=1):
        parts = batch.items() if isinstance(batch.data, list) else batch["turns"].items()
        messages = [
            message
            for part in parts
            for message in (part.items() if isinstance(part.data, list) else [part])
        ]
        dates = [message["time_anchor"].scalar() for message in messages]
        turns = [
            Turn(message["role"].text(), _MARK.sub("", message["content"].string()), key)
            for message in messages
            for key in [message["id"].scalar()]
        ]
        sessions.append(Session(turns, f"Session {number}", next(filter(None, dates), "")))
    return sessions


SOURCES = [
    Source(
        "beam",
        "BEAM: a folder of chats with their probing questions, one chat, or rows of the Hub",
        _load,
        BeamOptions,
    )
]
