"""How a memory is searched, wherever its indexes are: layer 1 chooses sections, layer 2 ranks the
entries in them.

Layer 1 ranks list sections by meaning (description and centroid), by its best entry under BM25, by
both. Lines of the archive are ranked with the entries, whatever layer 1 chooses; of what says
nearly the same, the newest ranks highest. ``k`` limits the entries and the lines, each: an entry is
short and should not take a line's place. Of equal scores the entry created last is first. Where
many lines are read, they are of many turns (``AGAIN``), and what is out of date goes down a few
places, not out (``retrieval.archive.losses``).

Meaning has two stages where an archive is large: a quick embedder knows every line, and the model
reads the ``READ`` lines that are best by it and by words (``read_best``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from memalpha.errors import InputError
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval import RetrievalConfig
from memalpha.retrieval.archive import (
    by_assistant,
    is_pasted,
    line_after,
    losses,
    newer_versions,
    only_asks,
)
from memalpha.retrieval.lexical import search_words, word_cosines
from memalpha.types import Entry, Hit

WEIGHED = 100  # how many entries of each ranking are weighed, at least
# of a cosine in a hybrid score; the rest is BM25 over the best BM25 (Bruch, Gai and Ingber, TOIS
# 2023)
DENSE_SHARE = 0.8
# what a line of the archive loses (this and the next: chosen on dialogues, SQuAD and written
# conversations)
BELOW = 0.07
ANSWERS = 0.15  # what a line of an assistant loses more: people tell, it answers
ASKS = 0.15  # what a line that only asks loses more: it states nothing
PASTES = 0.15  # what a line that somebody pasted loses more: he says nothing by it
AGAIN = 0.3  # what a line loses if another of its turn ranks higher, so that more turns are read,
SPREAD = 4  # below so many places: where few lines are read, a turn may take them all
# of two statements of which a person is told that one is newer: their least cosine, and the least
# share of the question's words that both have, weighed by rarity
RESEMBLES = 0.45
COMMON = 0.4
ABOUT = 0.2  # how much less the newer one may score
OTHERS = 10  # statements without these words, which there are beside those that were found
COMPARED = 24  # among so many of the best, with an archive
READ = 200  # lines of the archive that the model reads for a question
ROUGH = 400  # lines that the quick embedder finds for it, among which these are
_DECIMALS = 9  # scores that differ less are tied
_ROUNDED = 6  # decimals of a cosine


class ReadableMemory(Protocol):
    """The part of a memory's interface that a search and a reader use; ``Memory`` has it."""

    schema: MemorySchema

    def get(self, entry_id: str) -> Entry | None:
        """Return the entry of that id, or None."""

    def several(self, ids: Iterable[str]) -> list[Entry]:
        """Return the entries of those ids that are there, in any order."""

    def entries(self, section: str | None = None) -> tuple[Entry, ...]:
        """Return the entries of one list section, or of all, in order of creation."""

    def section_size(self, section: str) -> int:
        """Number of entries in a section."""


class WordSide(Protocol):
    """BM25 over the entries of a memory (``LexicalIndex``)."""

    def search(
        self, query: str, k: int, groups: Collection[str] | None = None
    ) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by BM25 score, best first, of these sections (None: all)."""

    def rank_groups(self, query: str) -> dict[str, float]:
        """Return the list sections with an entry found, with the score of their best one."""


class MeaningSide(Protocol):
    """Cosines of the entries of a memory (``DenseSide``)."""

    def search(
        self,
        query: str,
        k: int,
        sections: Sequence[str],
        entries: FoundEntries,
        best_first: Callable[[Mapping[str, float]], list[str]],
    ) -> dict[str, float]:
        """Return the cosines with ``query``, by id: of the nearest ``k`` entries of each section
        and of what was found by words, ``entries``.

        ``best_first`` orders ids, given with their cosines, by their whole score.
        """

    def cosines(self, entries: Sequence[Entry]) -> NDArray[np.float32]:
        """Return the cosines of entries with each other, shape (entries, entries)."""

    def nearness(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the cosine of each text, which need not be of the memory, with ``query``."""

    def rank_sections(self, query: str) -> dict[str, float]:
        """Return the cosine of each list section with ``query``: that of the nearer of two
        vectors, of name and description, and of the mean of its entries.
        """


class RankedSearch(ABC):
    """Searches the list sections and the archive of one memory (a ``Retriever``).

    ``words`` and ``meaning`` are its indexes, None in the mode ``dense`` and ``lexical``.
    """

    words: WordSide | None = None
    meaning: MeaningSide | None = None

    def __init__(self, schema: MemorySchema, config: RetrievalConfig, *, archive: bool) -> None:
        self.config = config
        self.lists = tuple(section.name for section in schema.lists)
        self.sections = (*self.lists, ARCHIVE.name) if archive else self.lists

    @abstractmethod
    def view(self) -> ReadableMemory:
        """Bring the indexes to the present state of the memory, and return it."""

    @abstractmethod
    def turn_of(self, line: Entry) -> str | None:
        """Return what names the turn of a line, None if it is in none."""

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries and ``k`` lines of the archive from ``sections`` (None:
        all), best first, in one ranking.

        InputError if a section is no list.
        """
        if k < 0:
            raise InputError(f"k is {k}", expected="the number of entries to return, 0 or more")
        names = self.sections if sections is None else tuple(sections)
        unknown = [name for name in names if name not in self.sections]
        if unknown:
            raise InputError(
                f"the sections {unknown} are unknown",
                expected=f"list sections of the schema: {', '.join(self.sections)}",
            )
        memory = self.view()
        if not query.strip():
            return []
        lists = [name for name in names if name != ARCHIVE.name]
        where = self._layer_one(query, lists) if lists else []
        if ARCHIVE.name in names:
            where.append(ARCHIVE.name)
        entries = FoundEntries(memory)
        scores = self._layer_two(memory, entries, query, k, where)
        return [Hit(entries[key], score) for key, score in scores.items()]

    # --------------------------------------------------------------------------------------------
    # layer 1: where to look
    def _layer_one(self, query: str, names: Sequence[str]) -> list[str]:
        """The sections to search, best first; all in their order if layer 1 is not in use."""
        kept = self.config.sections_kept
        if not 0 < kept < len(names):
            return list(names)
        words = self.words.rank_groups(query) if self.words is not None else {}
        cosines = self.meaning.rank_sections(query) if self.meaning is not None else {}
        scores = self._weighed(words, cosines)
        order = [
            (-round(scores[name], _DECIMALS), place, name)
            for place, name in enumerate(self.sections)
            if name in scores and name in names
        ]
        return [name for _, _, name in sorted(order)[:kept]]

    # --------------------------------------------------------------------------------------------
    # layer 2: which entries
    def _layer_two(
        self,
        memory: ReadableMemory,
        entries: FoundEntries,
        query: str,
        k: int,
        where: Sequence[str],
    ) -> dict[str, float]:
        words: dict[str, float] = {}
        cosines: dict[str, float] = {}
        wanted = max(2 * k, WEIGHED)
        if self.words is not None:
            everything = not any(
                memory.section_size(name) for name in self.sections if name not in where
            )
            words = dict(self.words.search(query, wanted, None if everything else where))
            entries.fetch(words)
        if self.meaning is not None:

            def best_first(rough: Mapping[str, float]) -> list[str]:
                entries.fetch(rough)
                scores = self._weighed(words, rough)
                return sorted(
                    rough, key=lambda key: scores[key] - _line_loss(entries[key]), reverse=True
                )

            cosines = self.meaning.search(query, wanted, where, entries, best_first)
            entries.fetch(cosines)
        scores = self._weighed(words, cosines)
        if ARCHIVE.name in where and memory.section_size(ARCHIVE.name):
            return self._with_lines(entries, scores, k)
        return _best(entries, scores, k)

    def _with_lines(
        self, entries: FoundEntries, weighed: Mapping[str, float], k: int
    ) -> dict[str, float]:
        """The best entries and lines, where a line loses a little, and what is outdated more."""
        weighed = self._with_answers(entries, weighed)
        scores = {key: score - _line_loss(entries[key]) for key, score in weighed.items()}
        best = _best(entries, scores, max(2 * k, COMPARED))
        compared = list(best)[: max(k, COMPARED)]
        present = [entries[key] for key in compared]
        alike = self._cosines(present)
        ranks = [best[key] for key in compared]
        fits = [weighed[key] for key in compared]
        for key, loss in zip(compared, losses(present, ranks, fits, alike), strict=True):
            best[key] -= loss
        turns = set[str]()
        for place, key in enumerate(_best(entries, best, len(best))):
            turn = self.turn_of(entries[key])
            if turn is None:
                continue
            if turn in turns and place >= SPREAD:
                best[key] -= AGAIN
            turns.add(turn)
        ranked = _best(entries, best, len(best))
        lines = [key for key in ranked if entries[key].section == ARCHIVE.name]
        others = [key for key in ranked if entries[key].section != ARCHIVE.name]
        shown = {*lines[:k], *others[:k]}
        return {key: score for key, score in ranked.items() if key in shown}

    def _cosines(self, entries: Sequence[Entry]) -> NDArray[np.float32]:
        """The cosines of entries with each other, by meaning if the search has it."""
        if self.meaning is not None:
            return self.meaning.cosines(entries)
        return word_cosines([entry.content for entry in entries])

    def nearness(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the cosine of each text with a query; none if the search has no meaning."""
        return [] if self.meaning is None else self.meaning.nearness(query, texts)

    def newer_of(self, query: str, hits: Sequence[Hit]) -> dict[str, Entry]:
        """Return the best newer statement of each that has one among what was found, by id: it fits
        the question about as well, or better, and has most of what the question asks for in common
        with the older one, weighed by rarity.
        """
        entries = [hit.entry for hit in hits]
        found: dict[str, Entry] = {}
        if entries:
            asked = set(search_words(query))
            words = [asked.intersection(search_words(entry.content)) for entry in entries]
            counts = Counter(word for each in words for word in each)
            many = len(entries) + OTHERS
            weights = {word: math.log1p(many / count) for word, count in counts.items()}
            least = COMMON * sum(weights.values())
            for row, other in newer_versions(entries, self._cosines(entries), RESEMBLES):
                shared = sum(weights[word] for word in words[row] & words[other])
                if shared >= least > 0 and hits[other].score >= hits[row].score - ABOUT:
                    found.setdefault(entries[row].id, entries[other])
        return found

    def _with_answers(
        self, entries: FoundEntries, weighed: Mapping[str, float]
    ) -> Mapping[str, float]:
        """The scores, where the first line of an assistant's answer fits a question at least as
        well as the line that asked for it.
        """
        asked = {
            line_after(entries[key]): score
            for key, score in weighed.items()
            if only_asks(entries[key])
        }
        entries.fetch(asked)
        answers = {
            key: max(score, weighed.get(key, score))
            for key, score in asked.items()
            if key in entries and by_assistant(entries[key])
        }
        return {**weighed, **answers}

    @property
    def _share(self) -> float:
        """The share of the cosine in a score."""
        return {"lexical": 0.0, "dense": 1.0}.get(self.config.retrieval, DENSE_SHARE)

    def _weighed(
        self, words: Mapping[str, float], cosines: Mapping[str, float]
    ) -> dict[str, float]:
        """Scores by id: shares of the cosine, and of BM25 relative to the best."""
        share = self._share
        best = max(words.values(), default=1.0)
        return {
            key: share * cosines.get(key, 0.0) + (1.0 - share) * words.get(key, 0.0) / best
            for key in dict.fromkeys((*words, *cosines))
        }


class FoundEntries(dict[str, Entry]):
    """The entries that a search has looked up, by id."""

    def __init__(self, memory: ReadableMemory) -> None:
        super().__init__()
        self._memory = memory

    def fetch(self, ids: Iterable[str]) -> None:
        """Look up entries that are not there yet."""
        for entry in self._memory.several([key for key in ids if key not in self]):
            self[entry.id] = entry


def _best(entries: Mapping[str, Entry], scores: Mapping[str, float], k: int) -> dict[str, float]:
    order = [
        (-round(score, _DECIMALS), -entries[key].created, key) for key, score in scores.items()
    ]
    return {key: scores[key] for _, _, key in sorted(order)[:k]}


def _line_loss(entry: Entry) -> float:
    """What an entry loses for being a line of the archive."""
    if entry.section != ARCHIVE.name:
        return 0.0
    states_nothing = ASKS * only_asks(entry) + PASTES * is_pasted(entry)
    return BELOW + ANSWERS * by_assistant(entry) + states_nothing


def read_best(
    rough: Mapping[str, float],
    order: Sequence[str],
    read: Callable[[Sequence[str]], NDArray[np.float32]],
) -> dict[str, float]:
    """Return the cosines of lines by id: what the model ``read`` says of the first ``READ`` in an
    order, and of the others what their ``rough`` cosines let expect (least squares over those that
    were read).
    """
    best = order[:READ]
    real = dict(zip(best, np.round(read(best), _ROUNDED).tolist(), strict=True))
    if len(best) == len(order):
        return real
    known = np.array([rough[key] for key in best])
    told = np.array([real[key] for key in best])
    spread = known - known.mean()
    slope = max(0.0, float(spread @ (told - told.mean())) / max(float(spread @ spread), 1e-9))
    others = {
        key: round(float(told.mean() + slope * (rough[key] - known.mean())), _ROUNDED)
        for key in order[READ:]
    }
    return real | others
