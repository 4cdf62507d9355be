"""BM25 over short texts, with an inverted index that follows each write.

Libraries such as bm25s must index all texts again. Scores are Lucene's: sum over the query's words
of ``idf * tf / (tf + k1 * (1 - b + b * length / mean length))`` with ``idf = ln(1 + (N - df + .5) /
(df + .5))``; N, df and mean length are those of all groups. Of equal scores the text added last is
first (a replaced text keeps its rank). Of scripts without spaces (Han, Kana, Thai, Lao, Khmer,
Myanmar) and of Hangul, whose words carry their particles, a word is each pair of neighbouring
characters.

Words are searched by their stems: accents of Latin letters go, and English endings, of every word
in Latin letters, since a line does not say its language (``search_words``).
"""

import re
import unicodedata
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from memalpha.text.stems import english_stem
from memalpha.units import UNSPACED

# not: no, not, will, may, us, am (negations, names, months, acronyms)
STOP_WORDS = frozenset(
    "a an and are as at be been but by did do does for from had has have he her hers him his how i "
    "in into is it its me my of on or our she so than that the their them then there these they "
    "this those to was we were what when where which who whom whose why with you your".split()
)
_DOTTED = "i\u0307"  # lower() of a capital dotted i
_MARK = "\u0300"  # represents every mark
_ACCENT = re.compile("[\u0300-\u036f]")
_WORD = re.compile(rf"\w[\w{_MARK}]*")
_IN_PAIRS = rf"{UNSPACED}\uac00-\ud7a3"  # and Hangul
# a run of them, each with its marks, or of others
_RUN = re.compile(rf"(?:[{_IN_PAIRS}]{_MARK}*)+|(?:[^{_IN_PAIRS}])+")
_LETTER = re.compile(rf".{_MARK}*", re.DOTALL)
_PAIRED = re.compile(f"[{_IN_PAIRS}]")
_DECIMALS = 9  # scores that differ only by rounding must tie
SATURATION = 1.5  # k1 of BM25, of repeated words
NORMALISATION = 0.75  # b of BM25, of lengths


@lru_cache(maxsize=65536)
def tokenize(text: str) -> tuple[str, ...]:
    """Split a text into lower-case words (NFKC) without stop words.

    If there are no others, they are kept ("The Who").
    """
    words = _words(unicodedata.normalize("NFKC", text).lower().replace(_DOTTED, "i"))
    return tuple([word for word in words if word not in STOP_WORDS] or words)


@lru_cache(maxsize=65536)
def search_words(text: str) -> tuple[str, ...]:
    """Return the words of a text by which it is found: the stems of ``tokenize``'s."""
    return tuple(map(_stem, tokenize(text)))


@lru_cache(maxsize=65536)
def _stem(word: str) -> str:
    """The stem of a word in Latin letters without their accents; other words stay as they are."""
    plain = word if word.isascii() else _ACCENT.sub("", unicodedata.normalize("NFD", word))
    return english_stem(plain) if plain.isascii() else word


def forget_search_words() -> None:
    """Drop the texts and words that these functions have kept."""
    for kept in (tokenize, search_words, _stem, english_stem):
        kept.cache_clear()


def word_cosines(texts: Sequence[str]) -> NDArray[np.float32]:
    """Return the cosines of texts with each other as sets of words, shape (texts, texts)."""
    words = [frozenset(tokenize(text)) for text in texts]
    shared = np.zeros((len(words), len(words)), dtype=np.float32)
    for row, column in np.ndindex(shared.shape):
        shared[row, column] = len(words[row] & words[column])
    lengths: NDArray[np.float32] = np.sqrt(np.maximum(1, shared.diagonal()))
    return shared / np.outer(lengths, lengths)


def _words(text: str) -> list[str]:
    if max(text, default="") < _MARK:
        return _WORD.findall(text)
    marked = "".join(_MARK if _is_mark(char) else char for char in text)
    spans = [word.span() for word in _WORD.finditer(marked)]
    if _PAIRED.search(text):
        spans = [part for span in spans for part in _parts(marked, *span)]
    return [text[start:end] for start, end in spans]


def _parts(marked: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of a word's parts: pairs of characters where its script has no spaces."""
    for run in _RUN.finditer(marked, start, end):
        if not _PAIRED.match(run[0]):
            yield run.span()
            continue
        letters = [letter.span() for letter in _LETTER.finditer(marked, *run.span())]
        if len(letters) == 1:
            yield run.span()
        for first, second in pairwise(letters):
            yield first[0], second[1]


def _is_mark(char: str) -> bool:  # of a word: a variation selector only picks a glyph
    return unicodedata.category(char) in ("Mn", "Mc") and not unicodedata.name(char, "").startswith(
        "VARIATION SELECTOR"
    )


class LexicalIndex:
    """Texts by id, searched by BM25.

    ``k1``: saturation of repeated words, ``b``: length normalisation in [0, 1].
    """

    def __init__(self, *, k1: float = SATURATION, b: float = NORMALISATION) -> None:
        self._k1 = k1
        self._b = b
        self._slots: dict[str, int] = {}  # the text added last has the highest
        # of each word: slots of the texts that have it, ascending, and how often
        self._postings: dict[str, tuple[array[int], array[int]]] = {}
        self._groups: dict[str, int] = {}
        self._total_length = 0
        # by slot, of all texts that were ever added
        self._ids: list[str] = []
        self._words: list[tuple[str, ...]] = []
        self._lengths = array("d")
        self._group_of = array("i")

    def __len__(self) -> int:
        return len(self._slots)

    def write(self, key: str, text: str, group: str = "") -> None:
        """Add a text to a group of texts, or replace it.

        Then it keeps its group and its rank among ties.
        """
        if key in self._slots:
            self._erase(self._slots[key])
        else:
            self._slots[key] = len(self._ids)
            self._ids.append(key)
            self._words.append(())
            self._lengths.append(0)
            self._group_of.append(self._groups.setdefault(group, len(self._groups)))
        self._post(self._slots[key], search_words(text))

    def remove(self, key: str) -> None:
        """Remove a text; KeyError if there is none of that id."""
        self._erase(self._slots.pop(key))

    def search(
        self, query: str, k: int, groups: Collection[str] | None = None
    ) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by BM25 score, best first, from these ``groups`` (None: all)."""
        slots, scores = self._score(query)
        if groups is not None:
            codes = [self._groups[name] for name in groups if name in self._groups]
            inside = np.isin(np.frombuffer(self._group_of, np.int32)[slots], codes)
            slots = slots[inside]
            scores = scores[inside]
        if 0 < k < len(slots):
            good = scores >= np.partition(scores, -k)[-k]
            slots = slots[good]
            scores = scores[good]
        best = np.lexsort((-slots, -scores))[: max(0, k)]
        ids = [self._ids[slot] for slot in slots[best]]
        return list(zip(ids, scores[best].tolist(), strict=True))

    def rank_groups(self, query: str) -> dict[str, float]:
        """Return the groups with a text found by ``query``, with the score of their best text."""
        slots, scores = self._score(query)
        codes = np.frombuffer(self._group_of, np.int32)[slots]
        best = {name: scores[codes == code] for name, code in self._groups.items()}
        return {name: float(found.max()) for name, found in best.items() if len(found)}

    def _score(self, query: str) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
        """Slots of the texts found and their rounded scores, both of shape (found,)."""
        words = Counter(word for word in search_words(query) if word in self._postings)
        if not words:
            return np.zeros(0, np.intp), np.zeros(0)
        postings = [self._postings[word] for word in words]
        texts = np.array([len(slots) for slots, _ in postings])
        idf = np.log1p((len(self) - texts + 0.5) / (texts + 0.5)) * np.array(list(words.values()))
        # An ``array`` cannot grow while a numpy array shares its memory.
        slots = np.concatenate([np.frombuffer(column, np.int32) for column, _ in postings])
        counts = np.concatenate([np.frombuffer(column, np.int32) for _, column in postings])
        lengths = np.frombuffer(self._lengths)[slots] * (len(self) / self._total_length)
        saturation = counts + self._k1 * (1 - self._b + self._b * lengths)
        total = np.bincount(slots, np.repeat(idf, texts) * counts / saturation)
        found = np.flatnonzero(total)
        rounded: NDArray[np.float64] = np.round(total[found], _DECIMALS)
        return found[rounded > 0], rounded[rounded > 0]

    def _post(self, slot: int, words: Sequence[str]) -> None:
        frequencies = Counter(words)
        for word, count in frequencies.items():
            slots, counts = self._postings.setdefault(word, (array("i"), array("i")))
            place = bisect_left(slots, slot)
            slots.insert(place, slot)
            counts.insert(place, count)
        self._words[slot] = tuple(frequencies)
        self._lengths[slot] = len(words)
        self._total_length += len(words)

    def _erase(self, slot: int) -> None:
        for word in self._words[slot]:
            slots, counts = self._postings[word]
            place = bisect_left(slots, slot)
            del slots[place], counts[place]
            if not slots:
                del self._postings[word]
        self._total_length -= int(self._lengths[slot])
        self._words[slot] = ()
