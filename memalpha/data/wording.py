"""What loaders say themselves in a question: lines around what a set asks, and questions of sets that have answers alone.

They stand here so that the leak check can tell them from what a set asks: two sets share nothing because both hold them.
"""

from __future__ import annotations

import re

ASK_LABEL = "Which label number does this have, going by the examples? Answer with the number in \\boxed{}."
"""Under a sentence to label."""

SUMMARISE = "Summarise the text."
"""What is asked of a chapter."""

_ASKED_ON, _PERSONA = "Asked on {}.", "What has {} said about themselves?"


def asked_on(date: str, question: str) -> str:
    """Return a question under a line with the day it is asked on."""
    return f"{_ASKED_ON.format(date)}\n{question}"


def persona_question(speaker: str) -> str:
    """Return the question for all that a speaker said about themselves."""
    return _PERSONA.format(speaker)


_OWN = re.compile("|".join(re.escape(line).replace(r"\{\}", ".+") for line in (ASK_LABEL, SUMMARISE, _ASKED_ON, _PERSONA)))


def as_asked(question: str) -> str:
    """Return a question's text without the lines that a loader added; empty if all of it is a loader's."""
    return "\n".join(line for line in question.split("\n") if not _OWN.fullmatch(line.strip()))


__all__ = ["ASK_LABEL", "SUMMARISE", "as_asked", "asked_on", "persona_question"]
