"""Words of entries and lines as the detectors compare them: stems, people, numbers, negation.

Rules for English text, without a model: what they do not know they leave alone.
"""

import re
from functools import lru_cache

from memalpha.retrieval.lexical import STOP_WORDS, tokenize
from memalpha.text.stems import english_stem

# of an entry or line: words that say how a fact is put, not which fact it is
GENERIC = frozenset(
    """
    about after all also always any anymore ask bear become before begin both but call can cannot
    certain city couldn current d day didn dislike do doesn don down each enjoy ever every everybody
    everything fact favorite favourite find get give go goal goes good grow happen happy hate have
    home hometown if isn join just keep kind know like live ll long longer look lot love m make
    mention more most move much name never new no nobody not now off old one only other our out over
    own person plan prefer re really s say see since sing so some somebody stand start still such t
    take tell then thing time today too try until up use user usually ve very want wasn week well
    while will work would year yes
    """.split()
)
_PREFIX = 5  # letters in common that make two long words one
_ROLE = re.compile(r"(?i)(?:the )?(?:assistant|system|ai|bot|model|chatgpt|claude|gemini|agent)")
_NEGATION = re.compile(r"(?i)n't\b|n’t\b|\b(?:not|never|no longer|no more|no|without)\b")
_POSSESSIVE = re.compile(r"['’]s?(?!\w)")
_ACTS = re.compile(
    r"(?:[Tt]he )?[^\W\d_][\w-]*(?:['’]s?| has| is| was| had| got| went| does| can| will"
    r"| [a-z]{2,}(?:ed|s))(?!\w)"
)
USER_NAME = "User"
MEMORY_TAG_OPEN = re.compile(r"(?i)<(?:recalled|relevant|retrieved)?_?memor(?:y|ies)[^>]*>")
MEMORY_TAG_CLOSE = re.compile(r"(?i)</(?:recalled|relevant|retrieved)?_?memor(?:y|ies)>")


_GENERIC_STEMS = frozenset(map(english_stem, GENERIC))


@lru_cache(maxsize=65536)
def stems(text: str) -> frozenset[str]:
    """Return the stems of a text's words, stop words left out."""
    return frozenset(map(english_stem, tokenize(_POSSESSIVE.sub("", text))))


def is_generic(word: str) -> bool:
    """Whether a stem says how a fact is put, not which fact it is."""
    return word in _GENERIC_STEMS


@lru_cache(maxsize=65536)
def telling(text: str) -> frozenset[str]:
    """Return the stems that say which fact it is; all, if there are no others."""
    words = stems(text)
    return frozenset(word for word in words if word not in _GENERIC_STEMS) or words


def common_stems(words: frozenset[str], others: frozenset[str]) -> frozenset[str]:
    """Return which stems are among others, also if they only begin alike: Norway, Norwegian."""
    begins = {other[:_PREFIX] for other in others if len(other) > _PREFIX}
    long = {word for word in words if len(word) > _PREFIX and word[:_PREFIX] in begins}
    return (words & others) | long


def overlap(words: frozenset[str], others: frozenset[str]) -> float:
    """Return the share of stems that are among others; 1 of none."""
    return len(common_stems(words, others)) / len(words) if words else 1.0


def is_negated(text: str) -> bool:
    """Whether a text denies something."""
    return bool(_NEGATION.search(text))


def forget_words() -> None:
    """Drop every text that these functions have kept, as something of it was erased."""
    for kept in (english_stem, stems, telling):
        kept.cache_clear()


def is_assistant(speaker: str) -> bool:
    """Whether a speaker is a program."""
    return bool(_ROLE.fullmatch(speaker.strip()))


def named_first(text: str) -> str:
    """Return the capitalised word that a text begins with, without a possessive; else an empty
    text.
    """
    match = re.match(r"(?:The |the )?([^\W\d_][\w-]*)", text)
    word = match[1] if match else ""
    root = english_stem(word.casefold())
    plain = word.casefold() in STOP_WORDS or is_generic(root) or root.isdecimal()
    return word if word[:1].isupper() and (word == USER_NAME or not plain) else ""


def subject_of(text: str) -> str:
    """Return who does or has something by a text that begins with a name; else an empty text."""
    return named_first(text) if _ACTS.match(text) else ""
