"""LoCoMo (Maharana et al., arXiv 2402.17753): very long conversations of two people, with questions of five categories.

Reads the JSON list of ``{sample_id, qa[{question, answer, evidence[], category}], conversation{speaker_a, speaker_b, session_N[],
session_N_date_time}}``. A conversation is an instance and a session a chunk, cut between turns above ``chunk_tokens``; a shared
picture stands as its caption. The kinds are the five categories; the metric is the published F1.

What always holds: the evidence of a question is the chunks with the turns it names, None where it names none that is there (counted
in ``notes``). Reasons to skip: ``adversarial, no gold answer`` (category 5 asks what was never said, and gives only the answer to
fall for), ``empty answer``, ``malformed``.

Departures: the published F1 compares only what stands before a semicolon in category 3, and the parts between commas one by one in
category 1; here one F1 compares the whole. With the option ``adversarial`` category 5 is asked as well and scored by this project's
``absent``: the answer must say that nothing is known and must not give the answer to fall for (a stale value) of the speaker named.
Summaries, observations and events of the file are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memalpha.data.dates import time_of
from memalpha.data.fields import EMPTY_ANSWER, answers, items, listed, mapping, optional_text, text
from memalpha.data.reading import CommonOptions, check_at_least, load_rows, read_questions
from memalpha.data.rows import Row, check_text, iter_rows
from memalpha.data.sessions import Dialogue, Session, Turn, dialogue_chunks
from memalpha.data.source import LoadResult
from memalpha.errors import SchemaError
from memalpha.protocols import TokenCounter
from memalpha.qa.metrics import check_metric
from memalpha.types import Instance, Question

SOURCE = "locomo"
"""``Instance.source`` of everything made here."""

KINDS: Mapping[int, str] = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
"""Name of each category."""

NO_GOLD = "adversarial, no gold answer"
"""Reason of the questions of category 5."""

_SESSION = re.compile(r"session_([0-9]+)")
_TURN = re.compile(r"D([0-9]{1,9}):([0-9]{1,9})(?![0-9])")
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class LocomoOptions(CommonOptions):
    """How LoCoMo becomes instances.

    Attributes:
        chunk_tokens: Most tokens of a chunk.
        metric: Metric of the questions that have an answer.
        adversarial: Whether to ask category 5 as well.
    """

    chunk_tokens: int = 2048
    metric: str = "f1"
    adversarial: bool = False

    def __post_init__(self) -> None:
        """Check every option; InputError names the first that cannot be."""
        CommonOptions.__post_init__(self)
        check_at_least(self, 1, "chunk_tokens")
        check_metric(self.metric, judged=True)


def load_locomo(source: str, options: LocomoOptions, seed: int, count_tokens: TokenCounter) -> LoadResult:
    """Load LoCoMo conversation by conversation; raises InputError if the input cannot be read."""

    def instance(row: Row, result: LoadResult) -> Instance:
        return _Conversation(row, options, count_tokens, result).instance()

    return load_rows(iter_rows(source, options.split), options, seed, _held, instance)


def _held(data: Any) -> int:
    return listed(data.get("qa")) if isinstance(data, Mapping) else 0


class _Conversation:
    """One conversation and its questions."""

    def __init__(self, row: Row, options: LocomoOptions, count: TokenCounter, result: LoadResult) -> None:
        self.where, self.options, self.result = row.where, options, result
        self.data = mapping(row.data, row.where)
        self.talk = mapping(self.data.get("conversation"), f"{row.where} field 'conversation'")
        self.speakers = [optional_text(self.talk, key, row.where) for key in ("speaker_a", "speaker_b")]
        sessions = list(self._sessions())
        if not any(session.turns for session in sessions):
            raise SchemaError(f"{row.where} field 'conversation' holds no turn", expected="session_1, session_2, ... of turns")
        self.dialogue: Dialogue = dialogue_chunks(sessions, options.chunk_tokens, count)

    def instance(self) -> Instance:
        name = optional_text(self.data, "sample_id", self.where) or f"{SOURCE} {self.where}"
        asked = items(self.data, "qa", self.where)
        questions = tuple(read_questions(asked, self.where, self.result, self._question))
        return Instance(name, SOURCE, self.dialogue.chunks, questions)

    def _sessions(self) -> Iterator[Session]:
        found = [match for key in self.talk if (match := _SESSION.fullmatch(str(key)))]
        if long := next((match[0] for match in found if len(match[1]) > _MOST_DIGITS), None):
            raise SchemaError(f"{self.where} has a session {long:.30}...", expected=f"a number of at most {_MOST_DIGITS} digits")
        for number, key in sorted((int(match[1]), match[0]) for match in found):
            turns = items(self.talk, key, f"{self.where} field 'conversation'")
            read = (self._turn(turn, f"{self.where} {key} turn {index}") for index, turn in enumerate(turns))
            time = time_of(optional_text(self.talk, f"{key}_date_time", self.where))
            yield Session([turn for turn in read if turn.text], f"Session {number}", time)

    def _turn(self, data: Any, where: str) -> Turn:
        turn = mapping(data, where)
        said, caption = optional_text(turn, "text", where), optional_text(turn, "blip_caption", where)
        shown = f"{said} [shows {caption}]".strip() if caption else said
        name = optional_text(turn, "dia_id", where)
        return Turn(text(turn, "speaker", where), shown, next(_turn_names(name), name))

    def _question(self, item: Any, where: str) -> Question | str:
        asked = mapping(item, where)
        words = text(asked, "question", where)
        category = asked.get("category")
        if not isinstance(category, int) or isinstance(category, bool) or category not in KINDS:
            raise SchemaError(f"{where} field 'category' is {category!r:.40}", expected=f"one of {sorted(KINDS)}")
        evidence = self._evidence(asked, where)
        if category == 5:
            return self._adversarial(asked, words, evidence, where)
        golds = answers(asked.get("answer"), f"{where} field 'answer'")
        return Question(words, golds, self.options.metric, KINDS[category], evidence=evidence) if golds else EMPTY_ANSWER

    def _adversarial(self, asked: Mapping[str, Any], words: str, evidence: tuple[int, ...] | None, where: str) -> Question | str:
        if not self.options.adversarial:
            return NO_GOLD
        named = [speaker for speaker in self.speakers if speaker and speaker.lower() in words.lower()]
        stale = answers(asked.get("adversarial_answer"), f"{where} field 'adversarial_answer'")
        if len(named) != 1 or not stale:
            return NO_GOLD
        return Question(words, ("not mentioned",), "absent", KINDS[5], subject=named[0], stale=stale, evidence=evidence)

    def _evidence(self, asked: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
        given = asked.get("evidence")
        texts = [given] if isinstance(given, str) else given if isinstance(given, list) else []
        named = [check_text(item, f"{where} field 'evidence'") for item in texts]
        found = self.dialogue.evidence(name for item in named for name in _turn_names(item))
        self.result.notes["evidence that is not there"] += found is None
        return found


def _turn_names(written: str) -> Iterator[str]:
    """The turns that a text names, as ``D1:2`` whatever zeros stand before the numbers."""
    return (f"D{int(session)}:{int(turn)}" for session, turn in _TURN.findall(written))
