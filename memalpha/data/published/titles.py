"""Titles of films, for the recommendations of MemoryAgentBench.

They are those of its ``utils/eval_other_utils.py`` (``recsys_redial``): the set's answers are
numbers of its table ``entity2id.json``. A recommendation counts as the title of the table that is
nearest to it by edit distance, letter case aside. Among equally near ones it is the first of the
table; the published scorer takes one by the order of Python's hashes, which differs between its
runs.
"""

import json
import re
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError

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
            f"the titles in {path!r} cannot be read: {error}",
            expected="a JSON object {name: number}",
            fix=fix,
        ) from error


def _title(name: str) -> str:
    spaced = re.sub("[_>-]", " ", name.rpartition("/")[2])
    return " ".join(_PARENTHESES.sub("", spaced).split())


def titles_in(text: str) -> list[str]:
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
