"""Multi-Session Chat (Xu et al., arXiv 2107.07567): two people who meet several times and say who they are.

Reads the original JSON Lines (``session_N/{train,valid,test}.txt``: ``{dialog[{text, id}], previous_dialogs[{dialog[{text}],
time_back}], personas[][]}``), the same with a ``self_instruct{B: question, A: answer}`` as MemGPT's retrieval task has it (Packer
et al., arXiv 2310.08560; ``MemGPT/MSC-Self-Instruct``), and rows of one session each, those of one dialogue after one another, as
on the Hub (``nayohan/multi_session_chat``: ``{dialoug_id, session_id, dialogue[], speaker[], persona1[], persona2[]}``).

A dialogue is an instance and a session a chunk, cut between turns above ``chunk_tokens``. With ``self_instruct`` its question is
asked (kind ``recall``, metric ``judge`` as published). Without, since the set itself asks nothing, one question a person asks what
that person said of themselves (kind ``persona``, metric ``f1`` against the annotated persona).

What always holds: sessions keep their order; how long ago a session was stands in its first line, since the set has no dates. No
question has evidence: the set does not say. Reasons to skip: ``empty answer``, ``malformed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from memalpha.data.fields import EMPTY_ANSWER, answers, items, mapping, optional_text, text, texts
from memalpha.data.reading import CommonOptions, check_at_least, load_rows, read_questions
from memalpha.data.rows import Row, check_text, iter_rows
from memalpha.data.sessions import Session, Turn, dialogue_chunks
from memalpha.data.source import LoadResult
from memalpha.data.wording import persona_question
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Instance, Question

SOURCE = "msc"
"""``Instance.source`` of everything made here."""

_SPEAKERS = ("Speaker 1", "Speaker 2")


@dataclass(frozen=True, slots=True)
class MscOptions(CommonOptions):
    """How MSC becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        metric: Metric of every question ("" = ``judge`` for ``recall``, ``f1`` for ``persona``).
    """

    chunk_tokens: int = 2048
    metric: str = ""

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens")
        if self.metric:
            check_metric(self.metric, judged=True)


def load_msc(source: str, options: MscOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load MSC dialogue by dialogue; raises InputError if the input cannot be read."""

    def instance(row: Row, result: LoadResult) -> Instance:
        return _instance(row, options, count_tokens, result)

    return load_rows(_joined(iter_rows(source, options.split)), options, seed, _held, instance)


def _held(data: Any) -> int:
    """One question of ``self_instruct``, else one a person with a persona."""
    if not isinstance(data, Mapping):
        return 0
    if data.get("self_instruct") is not None:
        return 1
    personas = data.get("personas")
    return min(len(personas), len(_SPEAKERS)) if isinstance(personas, list) else 0


# ------------------------------------------------------------------------------------------------ forms
def _joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Turn runs of one-session rows into one row a dialogue, of the original form."""
    for number, group in groupby(rows, key=_dialogue_number):
        if number is None:
            yield from group
            continue
        sessions = list(group)
        yield Row(sessions[0].where, _as_original([row.data for row in sessions]))


def _dialogue_number(row: Row) -> str | None:
    return str(row.data["dialoug_id"]) if isinstance(row.data, Mapping) and "dialoug_id" in row.data else None


def _as_original(sessions: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Fields that are wrong stay wrong, for ``_instance`` to find."""
    dialogs = []
    for session in sessions:
        said, who = session.get("dialogue"), session.get("speaker")
        names = who if isinstance(who, list) and isinstance(said, list) and len(who) == len(said) else None
        turns = [{"text": t, "id": names[i] if names else None} for i, t in enumerate(said)] if isinstance(said, list) else said
        dialogs.append({"dialog": turns})
    last = sessions[-1]
    personas = [last.get(key) for key in ("persona1", "persona2")]
    return {**dialogs[-1], "previous_dialogs": dialogs[:-1], "personas": personas, "id": last.get("dialoug_id")}


# ------------------------------------------------------------------------------------------------ one dialogue
def _instance(row: Row, options: MscOptions, count: TokenCounter, result: LoadResult) -> Instance:
    data = mapping(row.data, row.where)
    sessions = [
        *_earlier(data, row.where),
        Session(_turns(data, f"{row.where} field 'dialog'"), "Last session"),
    ]
    if not any(session.turns for session in sessions):
        raise SchemaError(f"{row.where} holds no turn", expected="'dialog' and 'previous_dialogs' with turns")
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count)
    about = data.get("metadata")
    name = optional_text(data, "id", row.where) or optional_text(
        about if isinstance(about, Mapping) else {}, "initial_data_id", row.where
    )
    questions = read_questions(
        list(_asked(data, row.where)), row.where, result, lambda item, where: _question(item, options, where)
    )
    return Instance(name or f"{SOURCE} {row.where}", SOURCE, dialogue.chunks, tuple(questions))


def _earlier(data: Mapping[str, Any], where: str) -> Iterator[Session]:
    earlier = items(data, "previous_dialogs", where) if data.get("previous_dialogs") is not None else []
    for number, item in enumerate(earlier):
        place = f"{where} previous_dialogs[{number}]"
        session = mapping(item, place)
        back = optional_text(session, "time_back", place)
        ago = f", {back.removesuffix(' ago')} before the last" if back else ""
        yield Session(_turns(session, place), f"Session {number + 1}{ago}")


def _turns(data: Mapping[str, Any], where: str) -> list[Turn]:
    turns = []
    for index, item in enumerate(items(data, "dialog", where)):
        turn = mapping(item, f"{where} turn {index}")
        said = check_text(turn.get("text"), f"{where} turn {index} field 'text'")
        speaker = optional_text(turn, "id", f"{where} turn {index}") or _SPEAKERS[index % 2]
        turns += [Turn(speaker, said)] if said else []
    return turns


def _asked(data: Mapping[str, Any], where: str) -> Iterator[Any]:
    if data.get("self_instruct") is not None:
        yield data["self_instruct"]
        return
    personas = items(data, "personas", where) if data.get("personas") is not None else []
    yield from zip(_SPEAKERS, personas, strict=False)


def _question(item: Any, options: MscOptions, where: str) -> Question | str:
    if isinstance(item, tuple):
        speaker, persona = item
        if not (said := texts([] if persona is None else persona, f"{where} persona")):
            return EMPTY_ANSWER
        return Question(persona_question(speaker), (" ".join(said),), options.metric or "f1", "persona")
    asked = mapping(item, f"{where} field 'self_instruct'")
    golds = answers(asked.get("A"), f"{where} field 'A'")
    return Question(text(asked, "B", where), golds, options.metric or "judge", "recall") if golds else EMPTY_ANSWER
