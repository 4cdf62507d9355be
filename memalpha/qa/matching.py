"""Stems of words and nearest titles, for the metrics of LoCoMo and MemoryAgentBench.

Stems are Porter's (1980) with the departures of nltk's default, which LoCoMo's scorer uses: a few
irregular words, words of two letters, ``ie`` of short words, ``y`` only after a consonant,
``alli``, ``fulli``, ``bli`` and ``logi``, and stems of a vowel and a consonant count as short.
Titles are those of MemoryAgentBench's ``utils/eval_other_utils.py`` (``recsys_redial``): the set's
answers are numbers of its table ``entity2id.json``. A recommendation counts as the title of the
table that is nearest to it by edit distance, letter case aside. Among equally near ones it is the
first of the table; the published scorer takes one by the order of Python's hashes, which differs
between its runs.
"""

import json
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError

_IRREGULAR = {
    "skies": "sky", "sky": "sky", "dying": "die", "lying": "lie", "tying": "tie", "news": "news",
    "innings": "inning", "inning": "inning", "outings": "outing", "outing": "outing",
    "cannings": "canning", "canning": "canning", "howe": "howe", "proceed": "proceed",
    "exceed": "exceed", "succeed": "succeed",
}  # fmt: skip

# Conditions on what stands before an ending, where a "y" that is a vowel is written "i".
_ANY, _VOWEL, _AFTER_CONSONANT = "", "[aeiou]", "(?<=.)[^aeiou]$"
_M1, _M2 = "[aeiou][^aeiou]", "[aeiou][^aeiou].*[aeiou][^aeiou]"  # Porter's m > 0 and m > 1
_SHORT = "^([^aeiou]+[aeiou][^aeiouwxy]|[aeiou][^aeiou])$"  # m = 1 and *o
_NOT_SHORT = f"^(?!{_SHORT}).*{_M1}"
_VOWEL_Y = re.compile("([^aeiou])y")

# Of each step the first rule with a fitting end decides: (end, what takes its place, condition on
# what stands before it).
_STEPS = tuple(
    tuple((re.compile(f"(?:{end})$"), new, re.compile(condition)) for end, new, condition in rules)
    for rules in (
        [
            ("sses", "ss", _ANY),
            ("(?<=^.)ies", "ie", _ANY),
            ("ies", "i", _ANY),
            ("(?<!s)s", "", _ANY),
        ],
        [
            ("(?<=^.)ied", "ie", _ANY),
            ("ied", "i", _ANY),
            ("eed", "ee", _M1),
            ("ed", "#", _VOWEL),
            ("ing", "#", _VOWEL),
        ],
        [
            ("(?<=at|bl|iz)#", "e", _ANY),
            (r"(?<=([^aeioulsz]))\1#", "", _ANY),
            ("(?<=ll|ss|zz)#", "", _ANY),
            ("#", "e", _SHORT),
        ],
        [("#", "", _ANY)],
        [("y", "i", _AFTER_CONSONANT)],
        [("alli", "al", _M1)],
        [
            ("ational", "ate", _M1),
            ("tional", "tion", _M1),
            ("enci", "ence", _M1),
            ("anci", "ance", _M1),
            ("izer", "ize", _M1),
            ("bli", "ble", _M1),
            ("entli", "ent", _M1),
            ("eli", "e", _M1),
            ("ousli", "ous", _M1),
            ("ization", "ize", _M1),
            ("ation", "ate", _M1),
            ("ator", "ate", _M1),
            ("alism", "al", _M1),
            ("iveness", "ive", _M1),
            ("fulness", "ful", _M1),
            ("ousness", "ous", _M1),
            ("aliti", "al", _M1),
            ("iviti", "ive", _M1),
            ("biliti", "ble", _M1),
            ("fulli", "ful", _M1),
            ("(?<=l)ogi", "og", _M1),
        ],
        [
            ("icate", "ic", _M1),
            ("ative", "", _M1),
            ("alize", "al", _M1),
            ("iciti", "ic", _M1),
            ("ical", "ic", _M1),
            ("ful", "", _M1),
            ("ness", "", _M1),
        ],
        [
            ("al|ance|ence|er|ic|able|ible|ant|ement", "", _M2),
            ("ment", "", _M2),
            ("ent", "", _M2),
            ("(?<=[st])ion|ou|ism|ate|iti|ous|ive|ize", "", _M2),
        ],
        [("e", "", _NOT_SHORT)],
        [("(?<=l)l", "", _M2)],
    )
)


@lru_cache(maxsize=65536)
def stem(word: str) -> str:
    """Return the stem of a word in lower case, as ``nltk.stem.PorterStemmer().stem`` does."""
    if word in _IRREGULAR or len(word) <= 2:
        return _IRREGULAR.get(word, word)
    for rules in _STEPS:
        for end, new, condition in rules:
            match = end.search(word)
            if match:
                before = word[: match.start()]
                if condition.search(_VOWEL_Y.sub(r"\1i", before)):
                    word = before + new
                break
    return word


# ------------------------------------------------------------------------------------------------
# titles

_PARENTHESES = re.compile(r"\([^()]*\)")
_NUMBER = re.compile(r"^[0-9]+[.)、]?\s*[-—–]?\s*")
_MAX_LETTERS = 128  # of a recommendation, so that prose in place of a list costs no minutes


def read_titles(path: str) -> dict[str, str]:
    """Return the titles of a table of names and numbers, by number.

    InputError if it cannot be read.
    """
    try:
        numbers = json.loads(Path(path).read_text(encoding="utf-8"))
        return {str(number): _title(name) for name, number in numbers.items()}
    except (OSError, ValueError, AttributeError) as error:
        fix = "give the set's entity2id.json as option 'entities' when preparing the data"
        raise InputError(
            f"cannot read titles from {path!r}: {error}",
            expected="a JSON object {name: number}",
            fix=fix,
        ) from error


def _title(name: str) -> str:
    spaced = re.sub("[_>-]", " ", name.rpartition("/")[2])
    return " ".join(_PARENTHESES.sub("", spaced).split())


def recommended(text: str) -> list[str]:
    """Return what an answer recommends.

    The lines from "1." on, else its parts at commas and line ends; numbers taken off.
    """
    _, one, numbered = text.partition("1.")
    lines = (numbered if one else text.replace(",", "\n")).split("\n")
    return [" ".join(_NUMBER.sub("", _PARENTHESES.sub("", line.strip())).split()) for line in lines]


@lru_cache(maxsize=8192)
def nearest(title: str, path: str) -> str:
    """Return a table's title that is nearest to the given one; a table is read once a process.
    InputError as ``read_titles``.
    """
    titles, letters = _table(path)
    return titles[int(_distances(title.lower()[:_MAX_LETTERS], letters).argmin())]


@lru_cache(maxsize=2)
def _table(path: str) -> tuple[list[str], NDArray[np.uint32]]:
    """The distinct titles, and their letters in lower case, a row each, filled up with zeros."""
    titles = list(dict.fromkeys(read_titles(path).values()))
    return titles, np.array([title.lower() for title in titles]).view(np.uint32).reshape(
        len(titles), -1
    )


def _distances(word: str, letters: NDArray[np.uint32]) -> NDArray[np.int16]:
    """Levenshtein distances of a word to each row of letters."""
    columns = np.arange(letters.shape[1] + 1, dtype=np.int16)
    row = np.tile(columns, (len(letters), 1))
    for number, letter in enumerate(word, start=1):
        row[:, 1:] = np.minimum(row[:, :-1] + (letters != ord(letter)), row[:, 1:] + 1)
        row[:, 0] = number
        row = np.minimum.accumulate(row - columns, axis=1) + columns  # insertions
    return np.asarray(row[np.arange(len(letters)), np.count_nonzero(letters, axis=1)], np.int16)
