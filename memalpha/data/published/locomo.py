"""LoCoMo: a session has its own chunk or chunks, under a line with its number and date.

Scored as in its ``task_eval/evaluation.py``; docs/reference/data-sets.md lists what differs.
"""

import re
import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

from memalpha.data.chunks import Session, Turn, dialogue_chunks
from memalpha.data.published.stems import stem
from memalpha.data.rows import Row
from memalpha.data.source import Draft, SkippedItem, Source, TextOptions, by_row
from memalpha.qa.metrics import AnswerMetric, exact_match, golden_answers, word_f1
from memalpha.qa.readers import UNKNOWN
from memalpha.types import Answer, Question, TokenCounter

_T = TypeVar("_T")
KINDS: Mapping[int, str] = {
    1: "multi-hop",
    2: "temporal",
    3: "open-domain",
    4: "single-hop",
    5: "adversarial",
}
"""Kind of each category."""
_SESSION = re.compile(r"session_([0-9]+)")
_TURN = re.compile(r"D0*([0-9]+):0*([0-9]+)")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the|and)\b")
_UNMENTIONED = ("not mentioned", "no information available")


@dataclass(frozen=True, slots=True)
class LocomoOptions(TextOptions):
    """How LoCoMo becomes instances.

    Attributes:
        adversarial: If true, the questions of category 5, about things that were never said, are
            asked, too; they have no answer.
        turns: If true, each turn is a chunk of its own, without a header, so that evidence is a
            turn.
    """

    adversarial: bool = False
    turns: bool = False


def _locomo(row: Row, options: LocomoOptions, count: TokenCounter) -> Draft:
    sessions = locomo_sessions(row["conversation"])
    dialogue = dialogue_chunks(sessions, options.chunk_tokens, count, turns=options.turns)

    def question(item: Row) -> Question | SkippedItem:
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
            return SkippedItem("adversarial, no gold answer")
        metric = {1: "stemmed_list_f1", 5: "unmentioned"}.get(category, "stemmed_f1")
        return Question(text, golds, options.metric or metric, KINDS[category], evidence=evidence)

    name = row["sample_id"].scalar() or f"locomo {row.where}"
    return Draft(name, "locomo", dialogue.chunks).ask(row["qa"].items(), question)


def locomo_sessions(conversation: Row) -> list[Session]:
    """Return the sessions of a conversation, by their numbers."""
    return [
        Session(
            _locomo_turns(turns),
            f"Session {number.lstrip('0') or '0'}",
            date.scalar() if date else "",
        )
        for number, turns, date in numbered_sessions(conversation.fields())
    ]


def numbered_sessions(talk: Mapping[str, _T]) -> list[tuple[str, _T, _T | None]]:
    """Return the number, the turns and the date of each session in the fields of a conversation, in
    the order of the numbers.
    """
    numbers = [match[1] for match in map(_SESSION.fullmatch, talk) if match]
    return [
        (number, talk[f"session_{number}"], talk.get(f"session_{number}_date_time"))
        for number in sorted(numbers, key=_by_number)
    ]


def _by_number(number: str) -> tuple[int, str]:
    digits = number.lstrip("0")
    return len(digits), digits


def with_caption(text: str, caption: str) -> str:
    """Return what a turn says, with the caption of the picture that it shows."""
    return f"{text} [shows {caption}]".strip() if caption else text


def _locomo_turns(session: Row) -> list[Turn]:
    turns = []
    for turn in session.items():
        text = with_caption(turn["text"].scalar(), turn["blip_caption"].scalar())
        name = turn["dia_id"].scalar()
        turns.append(Turn(turn["speaker"].text(), text, next(_turn_names(name), name)))
    return turns


def _turn_names(written: str) -> Iterator[str]:
    return (f"D{session}:{turn}" for session, turn in _TURN.findall(written))


# ------------------------------------------------------------------------------------------------
# scores
def stemmed_f1(question: Question, answer: Answer) -> float:
    """F1 of word stems, without articles and "and", best over the accepted answers.
    Categories 2 to 4.
    """
    stems = _stems(answer.text)
    return max(word_f1(stems, _stems(gold)) for gold in golden_answers(question))


STEMMED_F1_METRIC = AnswerMetric(stemmed_f1, teachable=True)


def stemmed_list_f1(question: Question, answer: Answer) -> float:
    """Mean over an accepted answer's parts of the best F1 with a part of the answer.

    Parts are cut at commas; best over the answers. Source: LoCoMo's category 1. F1 as in
    ``stemmed_f1``.
    """
    return max(
        _list_f1(answer.text.split(","), gold.split(",")) for gold in golden_answers(question)
    )


STEMMED_LIST_F1_METRIC = AnswerMetric(stemmed_list_f1, teachable=True)


def _list_f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    best = (max(word_f1(_stems(part), _stems(gold)) for part in given) for gold in wanted)
    return sum(best) / len(wanted)


@lru_cache(maxsize=8192)
def _stems(text: str) -> tuple[str, ...]:
    lowered = text.lower().translate(_PUNCTUATION)
    return tuple(map(stem, _ARTICLES.sub(" ", lowered).split()))


def tells_unmentioned(question: Question, answer: Answer) -> float:
    """1 if the answer has one of two phrases for what was never said, or equals an accepted answer.
    Source: LoCoMo's category 5.

    There the two phrases alone count. The accepted answers are what this project's readers write
    instead, and the answer of the few questions that have one.
    """
    text = answer.text.lower()
    return float(any(phrase in text for phrase in _UNMENTIONED) or exact_match(question, answer))


SOURCES = [
    Source(
        "locomo",
        "LoCoMo, original JSON: conversations and their questions",
        by_row(_locomo),
        LocomoOptions,
    ),
]
