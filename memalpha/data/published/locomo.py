"""LoCoMo: a session has its own chunk or chunks, under a line with its number and date."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.rows import Row
from memalpha.data.source import Draft, Skipped, Source, TextOptions, by_row
from memalpha.qa.readers import UNKNOWN
from memalpha.types import Question, TokenCounter

KINDS: Mapping[int, str] = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
"""Kind of each category."""
_SESSION = re.compile(r"session_0*([0-9]+)")
_TURN = re.compile(r"D0*([0-9]+):0*([0-9]+)")


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
        if category == 5 and not golds:
            return Skipped("adversarial, no gold answer")
        metric = {1: "stemmed_list_f1", 5: "unmentioned"}.get(category, "stemmed_f1")
        return Question(text, golds, options.metric or metric, KINDS[category], evidence=evidence)

    name = row["sample_id"].scalar() or f"locomo {row.where}"
    return Draft(name, "locomo", dialogue.chunks).ask(row["qa"].items(), question)


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


SOURCES = [
    Source(
        "locomo",
        "LoCoMo, original JSON: conversations and their questions",
        by_row(_locomo),
        LocomoOptions,
    ),
]
