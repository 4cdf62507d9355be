"""Small functions on text for the loaders: what they write themselves in a question, dates, and the keywords of a summary.

The lines that loaders add to a question stand here so that the leak check can tell them from what a set asks: two sets share
nothing because both hold them.
"""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime

# ------------------------------------------------------------------------------------------------ questions
ASK_LABEL = "Which label number does this have, going by the examples? Answer with the number in \\boxed{}."
"""Under a sentence to label."""

SUMMARISE = "Summarise the text."
"""What is asked of a chapter."""

_ASKED_ON, _PERSONA = "Asked on {}.", "What has {} said about themselves?"
_OWN = re.compile("|".join(re.escape(line).replace(r"\{\}", ".+") for line in (ASK_LABEL, SUMMARISE, _ASKED_ON, _PERSONA)))


def asked_on(date: str, question: str) -> str:
    """Return a question under a line with the day it is asked on, where a day is given."""
    return f"{_ASKED_ON.format(date)}\n{question}" if date else question


def persona_question(speaker: str) -> str:
    """Return the question for all that a speaker said about themselves."""
    return _PERSONA.format(speaker)


def as_asked(question: str) -> str:
    """Return a question's text without the lines that a loader added; empty if all of it is a loader's."""
    return "\n".join(line for line in question.split("\n") if not _OWN.fullmatch(line.strip()))


# ------------------------------------------------------------------------------------------------ dates
_DAYS = ("%Y/%m/%d", "%Y-%m-%d", "%B %d, %Y", "%d %B, %Y", "%d %B %Y")
_MINUTES = ("%Y/%m/%d %H:%M", "%I:%M %p on %d %B, %Y", "%I:%M %p on %d %B %Y")  # LongMemEval, LoCoMo
# ISO 8601, as PerLTQA's dialogues have it; a zone is kept.
_ISO = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}.*")
_WEEKDAY = re.compile(r"\s*\([A-Za-z]{2,9}\)\s*")


def iso_date(written: str) -> str | None:
    """Return a date, with hours and minutes where they are given, in ISO 8601; None if the text is no date of a known form."""
    text = " ".join(_WEEKDAY.sub(" ", written).split())
    if _ISO.fullmatch(text):
        try:
            return datetime.fromisoformat(text).isoformat(timespec="minutes")
        except ValueError:
            return None
    for form in (*_MINUTES, *_DAYS):
        try:
            moment = datetime.strptime(text, form)
        except ValueError:
            continue
        return moment.isoformat(timespec="minutes") if form in _MINUTES else moment.date().isoformat()
    return None


def time_of(written: str) -> str | None:
    """Return the date in ISO 8601, the text itself where it is of no known form, None where it is empty."""
    return iso_date(written) or written.strip() or None


# ------------------------------------------------------------------------------------------------ keywords
_NAME = re.compile(r"(?<![.!?\"“]\s)(?<!^)\b[A-Z][\w'’-]+(?:\s+(?:(?:of|the|de|von|van)\s+)?[A-Z][\w'’-]+)*", re.MULTILINE)
_WORD = re.compile(r"\b[a-z]{7,}\b")
_SUFFIX = re.compile(r"['’]s?$")


def keyphrases(summary: str, limit: int) -> tuple[str, ...]:
    """Return at most ``limit`` keywords of a summary: names, then long words, most frequent first, ties by place; none twice.

    A name is a run of capitalised words that does not begin a sentence; a word has at least seven small letters. Stands in for the
    keywords that the published system had a language model draw; only for languages with capitals and spaces.
    """
    flat = " ".join(summary.split())
    names = Counter(_SUFFIX.sub("", match.group()) for match in _NAME.finditer(flat))
    words = Counter(_WORD.findall(flat))
    return tuple(name for name, _ in (names.most_common() + words.most_common())[:limit])
