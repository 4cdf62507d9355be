"""The common part of several loaders of published sets: lines added to questions, and summaries."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from memalpha.data.source import SkippedItem, TextOptions
from memalpha.types import Question

# Lines that loaders add to questions, so that the leak check can ignore them.
ASK_LABEL = (
    "Which label number does this have, going by the examples? Answer with the number in \\boxed{}."
)
SUMMARISE = "Summarise the text."
PERSONA = "What has {} said about themselves?"
_ASKED_ON = "Asked on {}."
_OWN_LINES = (ASK_LABEL, SUMMARISE, PERSONA, _ASKED_ON)
_OWN = re.compile("|".join(re.escape(line).replace(r"\{\}", ".+") for line in _OWN_LINES))


def question_on(date: str, question: str) -> str:
    """Return a question under a line with its date, if one is given."""
    return f"{_ASKED_ON.format(date)}\n{question}" if date else question


def as_asked(question: str) -> str:
    """Return a question's text without lines that a loader added; may be empty."""
    return "\n".join(line for line in question.split("\n") if not _OWN.fullmatch(line.strip()))


# ------------------------------------------------------------------------------------------------
# summaries: BookSum, QMSum, MemoryAgentBench
_NAME = re.compile(
    r"(?<![.!?\"“]\s)(?<!^)\b[A-Z][\w'’-]+(?:\s+(?:(?:of|the|de|von|van)\s+)?[A-Z][\w'’-]+)*",
    re.MULTILINE,
)
_LONG_WORD = re.compile(r"\b[a-z]{7,}\b")
_GENITIVE = re.compile(r"['’]s?$")


@dataclass(frozen=True, slots=True)
class SummaryOptions(TextOptions):
    """How texts with summaries become instances.

    Attributes:
        metric: Every question has this metric: ``keywords`` (share of the summary's keywords),
            ``f1`` (common words) or ``judge``.
    """

    metric: Literal["keywords", "f1", "judge"] = "f1"


def keyphrases(summary: str, limit: int = 20) -> tuple[str, ...]:
    """Return at most ``limit`` keywords, by frequency: runs of capitalised words, then words of at
    least 7 lower-case letters.
    """
    flat = " ".join(summary.split())
    names = Counter(_GENITIVE.sub("", name) for name in _NAME.findall(flat))
    words = Counter(_LONG_WORD.findall(flat))
    return tuple(phrase for phrase, _ in (names.most_common() + words.most_common())[:limit])


def summary_question(
    text: str,
    summary: tuple[str, ...],
    kind: str,
    metric: str,
    evidence: tuple[int, ...] | None = None,
) -> Question | SkippedItem:
    """Return a question for a summary; SkippedItem if it is scored by keywords and has none."""
    golds = keyphrases("\n".join(summary)) if metric == "keywords" else summary
    if summary and not golds:
        return SkippedItem("no keywords")
    return Question(text, golds, metric, kind, evidence=evidence)
