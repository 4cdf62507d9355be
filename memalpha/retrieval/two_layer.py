"""The two-layer retriever: layer 1 chooses sections, layer 2 ranks the entries in them.

Layer 1 ranks list sections by FAISS (description and centroid), by its best entry under BM25, by
both. Lines of the archive are ranked with the entries, whatever layer 1 chooses; of
what says nearly the same, the newest ranks highest. ``k`` limits the
entries and the lines, each: an entry is short and should not take a line's place. All applied
changes are seen; of equal scores the entry created last is first; results depend only on the
memory's present state. Where many lines are read, they are of many turns (``AGAIN``), and what is
out of date goes down a few places, not out (``retrieval.archive.losses``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import attrgetter

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.memory.schema import ARCHIVE
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.archive import by_assistant, losses, turn_of
from memalpha.retrieval.dense import DenseSide
from memalpha.retrieval.embedders import make_embedder
from memalpha.retrieval.lexical import LexicalIndex, word_cosines
from memalpha.types import Embedder, Entry, Hit, Retriever

RetrieverFactory = Callable[[Memory], Retriever]
WEIGHED = 100  # how many entries of each ranking are weighed, at least
# of a cosine in a hybrid score; the rest is BM25 over the best BM25 (Bruch, Gai and Ingber, TOIS
# 2023)
DENSE_SHARE = 0.8
# what a line of the archive loses (this and the next: chosen on dialogues, SQuAD and written
# conversations)
BELOW = 0.07
ANSWERS = 0.15  # what a line of an assistant loses more: people tell, it answers
AGAIN = 0.3  # what a line loses if another of its turn ranks higher, so that more turns are read,
SPREAD = 4  # below so many places: where few lines are read, a turn may take them all
COMPARED = 24  # among so many of the best, with an archive
EMBEDDED = 2000  # changes of a memory whose lines are embedded for its first question
_BATCH = 1024  # entries embedded at once
_DECIMALS = 9  # scores that differ less are tied


class TwoLayerRetriever:
    """Searches the list sections of one memory (a ``Retriever``).

    InputError in dense and hybrid mode without ``embedder``.
    """

    def __init__(
        self,
        memory: Memory,
        config: RetrievalConfig | None = None,
        embedder: Embedder | None = None,
        archive: bool = True,
    ) -> None:
        self._memory = memory
        self._config = config or RetrievalConfig()
        self._embedder = embedder
        self._lists = tuple(section.name for section in memory.schema.lists)
        self._sections = (*self._lists, ARCHIVE.name) if archive else self._lists
        self._reset()

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries and ``k`` lines of the archive from ``sections`` (None:
        all), best first, in one ranking.

        InputError if a section is no list.
        """
        if k < 0:
            raise InputError(f"k is {k}", expected="the number of entries to return, 0 or more")
        names = self._sections if sections is None else tuple(sections)
        unknown = [name for name in names if name not in self._sections]
        if unknown:
            raise InputError(
                f"sections: {unknown}",
                expected=f"list sections of the schema: {', '.join(self._sections)}",
            )
        self._follow()
        if not query.strip():
            return []
        lists = [name for name in names if name != ARCHIVE.name]
        where = self._layer_one(query, lists) if lists else []
        if ARCHIVE.name in names:
            where.append(ARCHIVE.name)
        scores = self._layer_two(query, k, where)
        return [Hit(self._entries[key], score) for key, score in scores.items()]

    def rebind(self, memory: Memory) -> None:
        """Follow another memory from now on, and index what differs.

        The one before must not be used again.
        """
        self._memory.restore(memory.snapshot())
        self._follow()
        self._memory = memory
        self._cursor = len(memory.changes)

    # --------------------------------------------------------------------------------------------
    # layer 1: where to look
    def _layer_one(self, query: str, names: Sequence[str]) -> list[str]:
        """The sections to search, best first; all in their order if layer 1 is not in use."""
        kept = self._config.sections_kept
        if not 0 < kept < len(names):
            return list(names)
        words = self._lexical.rank_groups(query) if self._lexical is not None else {}
        cosines = self._dense.rank_sections(query) if self._dense is not None else {}
        scores = self._weighed(words, cosines)
        order = [
            (-round(scores[name], _DECIMALS), place, name)
            for place, name in enumerate(self._sections)
            if name in scores and name in names
        ]
        return [name for _, _, name in sorted(order)[:kept]]

    # --------------------------------------------------------------------------------------------
    # layer 2: which entries
    def _layer_two(self, query: str, k: int, where: Sequence[str]) -> dict[str, float]:
        words: dict[str, float] = {}
        cosines: dict[str, float] = {}
        if self._lexical is not None:
            everything = sum(map(self._memory.section_size, where)) == len(self._entries)
            groups = None if everything else where
            words = dict(self._lexical.search(query, max(2 * k, WEIGHED), groups))
        if self._dense is not None:
            found = [self._entries[key] for key in words]
            cosines = self._dense.search(query, max(2 * k, WEIGHED), where, found)
        scores = self._weighed(words, cosines)
        if ARCHIVE.name in where and self._memory.section_size(ARCHIVE.name):
            return self._with_lines(scores, k)
        return self._best(scores, k)

    def _with_lines(self, weighed: Mapping[str, float], k: int) -> dict[str, float]:
        """The best entries and lines, where a line loses a little, and what is outdated more."""
        scores = {key: score - _line_loss(self._entries[key]) for key, score in weighed.items()}
        best = self._best(scores, max(2 * k, COMPARED))
        compared = list(best)[: max(k, COMPARED)]
        entries = [self._entries[key] for key in compared]
        if self._dense is not None:
            alike = self._dense.cosines(entries)
        else:
            alike = word_cosines([entry.content for entry in entries])
        ranks = [best[key] for key in compared]
        fits = [weighed[key] for key in compared]
        for key, loss in zip(compared, losses(entries, ranks, fits, alike), strict=True):
            best[key] -= loss
        turns = set[str]()
        for place, key in enumerate(self._best(best, len(best))):
            turn = turn_of(self._entries[key], self._memory)
            if turn is None:
                continue
            if turn in turns and place >= SPREAD:
                best[key] -= AGAIN
            turns.add(turn)
        ranked = self._best(best, len(best))
        lines = [key for key in ranked if self._entries[key].section == ARCHIVE.name]
        others = [key for key in ranked if self._entries[key].section != ARCHIVE.name]
        shown = {*lines[:k], *others[:k]}
        return {key: score for key, score in ranked.items() if key in shown}

    def _best(self, scores: Mapping[str, float], k: int) -> dict[str, float]:
        order = [
            (-round(score, _DECIMALS), -self._entries[key].created, key)
            for key, score in scores.items()
        ]
        return {key: scores[key] for _, _, key in sorted(order)[:k]}

    def _weighed(
        self, words: Mapping[str, float], cosines: Mapping[str, float]
    ) -> dict[str, float]:
        """Scores by id: shares of the cosine, and of BM25 relative to the best."""
        share = {"lexical": 0.0, "dense": 1.0}.get(self._config.retrieval, DENSE_SHARE)
        best = max(words.values(), default=1.0)
        return {
            key: share * cosines.get(key, 0.0) + (1.0 - share) * words.get(key, 0.0) / best
            for key in dict.fromkeys((*words, *cosines))
        }

    # --------------------------------------------------------------------------------------------
    # following the memory
    def _reset(self) -> None:
        mode = self._config.retrieval
        self._cursor = 0  # if the embedder fails below, the next search retries
        self._entries: dict[str, Entry] = {}  # in order of creation
        self._lexical = LexicalIndex() if mode != "dense" else None
        self._dense: DenseSide | None = None
        if mode != "lexical":
            if self._embedder is None:
                raise InputError(
                    f"retrieval mode {mode} without an embedder",
                    expected="embedder=make_embedder(name)",
                )
            self._dense = DenseSide(self._memory.schema, self._embedder)
        self._write([*self._memory.entries(), *self._memory.entries(ARCHIVE.name)])
        self._cursor = len(self._memory.changes)

    def _follow(self) -> None:
        """Apply the net effect of the changes since the last search."""
        changes = self._memory.changes
        if self._cursor == len(changes):
            return
        touched = dict.fromkeys(
            entry.id for change in changes[self._cursor :] for entry in change if entry is not None
        )
        written = []
        for key in touched:
            before = self._entries.get(key)
            after = self._memory.get(key)
            if before is not None and (after is None or _place(after) != _place(before)):
                self._remove(before)
            if after is not None and after.section in self._sections and after != before:
                written.append(after)
        new = [entry.created for entry in written if entry.id not in self._entries]
        last = next((entry.created for entry in reversed(self._entries.values())), -1)
        if min(new, default=last + 1) <= last:
            # a restore brought back an older entry; indexes break ties by order of adding
            self._reset()
        else:
            self._write(written)
        self._cursor = len(changes)

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.id]
        if self._lexical is not None:
            self._lexical.remove(entry.id)
        if self._dense is not None:
            self._dense.remove(entry)

    def _write(self, entries: Sequence[Entry]) -> None:
        ordered = sorted(entries, key=attrgetter("created"))
        for start in range(0, len(ordered), _BATCH):
            batch = ordered[start : start + _BATCH]
            if self._dense is not None:
                self._dense.write(batch)
            for entry in batch:
                if self._lexical is not None:
                    self._lexical.write(entry.id, entry.content, entry.section)
                self._entries[entry.id] = entry


def retriever_factory(
    config: RetrievalConfig | None = None, *, archive: bool = True
) -> RetrieverFactory:
    """Return a function that makes a memory's retriever.

    All of the process share one embedder. Without ``archive`` the lines that a memory may hold are
    not found.
    """
    config = config or RetrievalConfig()
    embedder = None
    if config.retrieval != "lexical":
        embedder = make_embedder(config.embedder)
    return partial(TwoLayerRetriever, config=config, embedder=embedder, archive=archive)


def retriever_by_size(memory: Memory) -> Retriever:
    """Return the retriever of a memory that no model writes: by words and by meaning (``hybrid``),
    above ``EMBEDDED`` changes by words alone, since to embed all lines takes long.
    """
    mode: RetrievalMode = "lexical" if memory.clock > EMBEDDED + 1 else "hybrid"
    return retriever_factory(RetrievalConfig(retrieval=mode))(memory)


def _place(entry: Entry) -> tuple[str, int]:
    return entry.section, entry.created


def _line_loss(entry: Entry) -> float:
    """What an entry loses for being a line of the archive."""
    if entry.section != ARCHIVE.name:
        return 0.0
    return BELOW + ANSWERS * by_assistant(entry)
