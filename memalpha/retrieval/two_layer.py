"""The two-layer retriever: layer 1 chooses sections, layer 2 ranks the entries in them.

Layer 1 ranks list sections by FAISS (description and centroid), by the best entry under BM25, by both fused, or by a router.
Layer 2 ranks entries by FAISS, BM25 or both fused by reciprocal rank. A ranking is a list of (id, score), best first.

What always holds: a search sees all applied changes; blocks are not searched; with all sections open the result is that of brute
force over all entries; of equal scores the entry created last is first; results depend only on the memory's present state; the cost
of following is that of the changes, except for a restore that brings entries back. Lexical mode loads no embedder and no faiss.

Departures from arXiv 2509.25911 (BM25, 20 entries per section): one list of ``k`` over all sections; in lexical mode a query
without common words finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder, Hit, RetrieverFactory
from memalpha.retrieval import RetrievalConfig, RetrievalMode
from memalpha.retrieval.embedders import CachedEmbedder, make_embedder
from memalpha.retrieval.lexical import LexicalIndex, tokenize
from memalpha.types import Entry

if TYPE_CHECKING:
    from memalpha.retrieval.dense import DenseSide, Vectors

Router = Callable[[str, Memory], list[str]]
"""Names the list sections to search for a query, best first; others are not searched (``LearnedSectionRouter.rank``)."""

RRF_CONSTANT = 60
"""Constant of reciprocal-rank fusion (Cormack, Clarke and Buettcher, SIGIR 2009: 60 is near-optimal)."""
FUSION_DEPTH = 100
"""Hybrid: how many entries of each ranking are fused, at least."""
_BATCH = 1024  # entries embedded at once


class TwoLayerRetriever:
    """Searches the list sections of one memory (a ``Retriever``); by default BM25 over all sections.

    InputError in dense and hybrid mode without ``embedder``. A ``router`` replaces the built-in ranking, even if all sections are
    kept.
    """

    def __init__(
        self,
        memory: Memory,
        config: RetrievalConfig | None = None,
        *,
        embedder: Embedder | None = None,
        router: Router | None = None,
    ) -> None:
        self._memory = memory
        self._config = config or RetrievalConfig()
        self._embedder = embedder
        self._router = router
        self._sections = tuple(section.name for section in memory.schema.lists)
        self._reset()

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries, best first, from ``sections`` (None: all list sections); a blank query finds nothing.

        InputError if a section is not a list section, or ``k`` is negative.
        """
        if k < 0:
            raise InputError(f"k is {k}", expected="the number of entries to return, 0 or more")
        names = self._sections if sections is None else tuple(sections)
        self._check_sections(names, "sections")
        self._follow()
        if not query.strip():
            return []
        vector = self._embedded(query)
        ranking = self._layer_two(query, vector, k, self._layer_one(query, vector, names))
        return [Hit(self._entries[key], score) for key, score in ranking]

    def _embedded(self, query: str) -> Vectors | None:
        return None if self._dense is None else self._dense.embed([query])[0]

    def forget_texts(self) -> None:
        """Clear the embedder's cache, which holds texts."""
        if isinstance(self._embedder, CachedEmbedder):
            self._embedder.clear()

    # -------------------------------------------------------------------------------------------- layer 1: where to look
    def route(self, query: str) -> list[str]:
        """Return the sections that layer 1 chooses, best first; all in schema order if it is not in use."""
        self._follow()
        return self._layer_one(query, self._embedded(query), self._sections)

    def _layer_one(self, query: str, vector: Vectors | None, names: Sequence[str]) -> list[str]:
        kept = self._config.sections_kept
        if self._router is not None or 0 < kept < len(names):
            return [name for name in self._rank_sections(query, vector) if name in names][: kept or None]
        return list(names)

    def _rank_sections(self, query: str, vector: Vectors | None) -> Sequence[str]:
        if self._router is not None:
            names = self._router(query, self._memory)
            self._check_sections(names, "sections ranked by the router")
            return names
        rankings = []
        if self._dense is not None and vector is not None:
            rankings.append(self._dense.rank_sections(vector))
        if self._lexical is not None:
            rankings.append(self._lexical.rank_groups(query))
        return [name for name, _ in fuse(rankings, lambda name: -self._sections.index(name), len(self._sections))]

    # -------------------------------------------------------------------------------------------- layer 2: which entries
    def _layer_two(self, query: str, vector: Vectors | None, k: int, where: Sequence[str]) -> list[tuple[str, float]]:
        depth = max(k, FUSION_DEPTH) if self._config.retrieval is RetrievalMode.HYBRID else k
        rankings = []
        if self._dense is not None and vector is not None:
            found = [pair for ranking in self._dense.search(vector, depth, where) for pair in ranking]
            rankings.append(sorted(found, key=lambda pair: (-pair[1], -self._created(pair[0])))[:depth])
        if self._lexical is not None:
            groups = where if len(where) < len(self._sections) else None
            rankings.append(self._lexical.search(query, depth, groups))
        if len(rankings) == 1:
            return rankings[0]
        return fuse([[key for key, _ in ranking] for ranking in rankings], self._created, k)

    def _created(self, key: str) -> int:
        return self._entries[key].created

    # -------------------------------------------------------------------------------------------- following the memory
    def _reset(self) -> None:
        """Index the memory's present state from the start."""
        mode = self._config.retrieval
        self._cursor = 0  # if the embedder fails below, the next search retries
        self._entries: dict[str, Entry] = {}
        self._last_created = -1
        self._lexical = LexicalIndex() if mode is not RetrievalMode.DENSE else None
        self._dense: DenseSide | None = None
        if mode is not RetrievalMode.LEXICAL:
            from memalpha.retrieval.dense import DenseSide  # imports faiss

            if self._embedder is None:
                raise InputError(f"retrieval mode {mode} without an embedder", expected="embedder=make_embedder(name)")
            self._dense = DenseSide(self._memory.schema, self._embedder)
        self._write(self._memory.entries())
        self._cursor = len(self._memory.changes)

    def _follow(self) -> None:
        """Apply the net effect of the changes since the last search."""
        changes = self._memory.changes
        if self._cursor == len(changes):
            return
        touched = dict.fromkeys(entry.id for change in changes[self._cursor :] for entry in change if entry is not None)
        written = []
        for key in touched:
            before, after = self._entries.get(key), self._memory.get(key)
            if before is not None and (after is None or (after.section, after.created) != (before.section, before.created)):
                self._remove(before)
            if after is not None and after.section in self._sections and after != before:
                written.append(after)
        written.sort(key=lambda entry: entry.created)
        if any(entry.created <= self._last_created for entry in written if entry.id not in self._entries):
            self._reset()  # a restore brought back an older entry; indexes break ties by order of adding
            return
        self._write(written)
        self._cursor = len(changes)

    def faults(self) -> list[str]:
        """Compare the indexes with the memory; return one line per difference."""
        self._follow()
        entries = {entry.id: entry for entry in self._memory.entries()}
        found = []
        if self._entries != entries:
            found.append("the entries that can be found are not those of the memory")
        if self._lexical is not None:
            odd = {e.id for e in entries.values() if e.id not in self._lexical}
            odd |= {e.id for e in entries.values() if e.id not in odd and self._lexical.words(e.id) != Counter(tokenize(e.content))}
            if odd or len(self._lexical) != len(entries):
                found.append(f"BM25 holds {len(self._lexical)} texts, the memory {len(entries)}; different: {sorted(odd)}")
        return found + (self._dense.faults(tuple(entries.values())) if self._dense is not None else [])

    def _remove(self, entry: Entry) -> None:
        del self._entries[entry.id]
        if self._lexical is not None:
            self._lexical.remove(entry.id)
        if self._dense is not None:
            self._dense.remove(entry)

    def _write(self, entries: Sequence[Entry]) -> None:
        for start in range(0, len(entries), _BATCH):
            batch = entries[start : start + _BATCH]
            vectors = self._dense.embed([entry.content for entry in batch]) if self._dense is not None else None
            for i, entry in enumerate(batch):
                if self._lexical is not None:
                    self._lexical.write(entry.id, entry.content, entry.section)
                if self._dense is not None and vectors is not None:
                    self._dense.write(entry, vectors[i])
                self._entries[entry.id] = entry
                self._last_created = max(self._last_created, entry.created)

    def _check_sections(self, names: Sequence[str], what: str) -> None:
        if unknown := [name for name in names if name not in self._sections]:
            raise InputError(f"{what}: {unknown}", expected=f"list sections of the schema: {', '.join(self._sections)}")


def fuse(rankings: Iterable[Sequence[str]], created: Callable[[str], int], k: int) -> list[tuple[str, float]]:
    """Fuse rankings by reciprocal rank; at most ``k`` ids. ``created`` breaks ties: a higher number is newer.

    score(id) = sum over the rankings that hold it of 1 / (60 + rank), rank from 1.
    """
    scores: dict[str, float] = {}
    for ranking in rankings:
        for rank, key in enumerate(ranking, start=1):
            scores[key] = scores.get(key, 0.0) + 1.0 / (RRF_CONSTANT + rank)
    return sorted(scores.items(), key=lambda pair: (-pair[1], -created(pair[0])))[:k]


def retriever_factory(config: RetrievalConfig | None = None) -> RetrieverFactory:
    """Return a function that makes a memory's retriever; they share one embedder.

    InputError if the embedder or the router's path is unknown, MissingExtraError if the embedder is not installed.
    """
    settings = config or RetrievalConfig()
    embedder = None if settings.retrieval is RetrievalMode.LEXICAL else make_embedder(settings.embedder)
    router = None
    if settings.router:
        from memalpha.retrieval.dense import LearnedSectionRouter  # imports faiss and torch

        router = LearnedSectionRouter.load(settings.router, embedder, settings.embedder).rank

    def make(memory: Memory) -> TwoLayerRetriever:
        return TwoLayerRetriever(memory, settings, embedder=embedder, router=router)

    return make
