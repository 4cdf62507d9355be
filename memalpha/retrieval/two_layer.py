"""The two-layer retriever: layer 1 chooses sections, layer 2 ranks the entries in them.

Layer 1 ranks list sections by FAISS (description and centroid), by the best entry under BM25, by both fused, or by a
``SectionRouter``. Layer 2 ranks entries by FAISS, BM25 or both fused by reciprocal rank.

What always holds: a search sees all applied changes; blocks are not searched; with all sections open the result is that of brute
force over all entries; of equal scores the entry created last is first; results depend only on the memory's present state; the cost
of following is that of the changes, except for a restore that brings entries back. Lexical mode loads no embedder and no faiss.

Departures from arXiv 2509.25911 (BM25, 20 entries per section): one list of ``k`` over all sections; in lexical mode a query
without common words finds nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from memalpha.errors import InputError
from memalpha.memory.memory import Memory
from memalpha.protocols import Embedder, Hit, RetrieverFactory
from memalpha.retrieval.config import RetrievalConfig, RetrievalMode
from memalpha.retrieval.embedders import CachedEmbedder, make_embedder
from memalpha.retrieval.lexical import LexicalIndex, tokenize
from memalpha.retrieval.ranking import Ranking, fuse, merge
from memalpha.types import Entry

if TYPE_CHECKING:
    from memalpha.retrieval.dense import DenseSide
    from memalpha.retrieval.faiss_index import Vectors


FUSION_DEPTH = 100
"""Hybrid: how many entries of each ranking are fused, at least."""
_BATCH = 1024  # entries embedded at once


class SectionRouter(Protocol):
    """Chooses the sections to search, such as a learned router."""

    def rank(self, query: str, memory: Memory) -> list[str]:
        """Return names of list sections, best first; others are not searched."""
        ...


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
        router: SectionRouter | None = None,
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
        return self.search_many([query], k, sections)[0]

    def forget_texts(self) -> None:
        """Clear the embedder's cache, which holds texts."""
        if isinstance(self._embedder, CachedEmbedder):
            self._embedder.clear()

    def search_many(self, queries: Sequence[str], k: int, sections: Sequence[str] | None = None) -> list[list[Hit]]:
        """Return what ``search`` returns for each query; embeds all in one call."""
        if k < 0:
            raise InputError(f"k is {k}", expected="the number of entries to return, 0 or more")
        names = self._sections if sections is None else tuple(sections)
        self._check_sections(names, "sections")
        self._follow()
        if self._dense is None:
            return [self._search(query, None, k, names) for query in queries]
        return [self._search(query, vector, k, names) for query, vector in zip(queries, self._dense.embed(queries), strict=True)]

    def _search(self, query: str, vector: Vectors | None, k: int, names: Sequence[str]) -> list[Hit]:
        if not query.strip():
            return []
        ranking = self._layer_two(query, vector, k, self._layer_one(query, vector, names))
        return [Hit(self._entries[key], score) for key, score in zip(ranking.ids, ranking.scores, strict=True)]

    # -------------------------------------------------------------------------------------------- layer 1: where to look
    def route(self, query: str) -> list[str]:
        """Return the sections that layer 1 chooses, best first; all in schema order if it is not in use."""
        self._follow()
        vector = None if self._dense is None else self._dense.embed([query])[0]
        return self._layer_one(query, vector, self._sections)

    def _layer_one(self, query: str, vector: Vectors | None, names: Sequence[str]) -> list[str]:
        kept = self._config.sections_kept
        if self._router is not None or 0 < kept < len(names):
            return [name for name in self._rank_sections(query, vector) if name in names][: kept or None]
        return list(names)

    def _rank_sections(self, query: str, vector: Vectors | None) -> Sequence[str]:
        if self._router is not None:
            names = self._router.rank(query, self._memory)
            self._check_sections(names, "sections ranked by the router")
            return names
        rankings = []
        if self._dense is not None and vector is not None:
            rankings.append(self._dense.rank_sections(vector))
        if self._lexical is not None:
            rankings.append(self._lexical.rank_groups(query))
        unscored = [Ranking(tuple(names), (0.0,) * len(names)) for names in rankings]
        return fuse(unscored, lambda name: -self._sections.index(name), len(self._sections)).ids

    # -------------------------------------------------------------------------------------------- layer 2: which entries
    def _layer_two(self, query: str, vector: Vectors | None, k: int, where: Sequence[str]) -> Ranking:
        depth = max(k, FUSION_DEPTH) if self._config.mode is RetrievalMode.HYBRID else k
        rankings = []
        if self._dense is not None and vector is not None:
            rankings.append(merge(self._dense.search(vector, depth, where), self._created, depth))
        if self._lexical is not None:
            groups = where if len(where) < len(self._sections) else None
            rankings.append(self._lexical.search(query, depth, groups))
        return rankings[0] if len(rankings) == 1 else fuse(rankings, self._created, k)

    def _created(self, key: str) -> int:
        return self._entries[key].created

    # -------------------------------------------------------------------------------------------- following the memory
    def _reset(self) -> None:
        """Index the memory's present state from the start."""
        mode = self._config.mode
        self._cursor = 0  # if the embedder fails below, the next search retries
        self._entries: dict[str, Entry] = {}
        self._last_created = -1
        self._lexical = LexicalIndex() if mode is not RetrievalMode.DENSE else None
        self._dense = self._new_dense() if mode is not RetrievalMode.LEXICAL else None
        self._write(self._memory.entries())
        self._cursor = len(self._memory.changes)

    def _new_dense(self) -> DenseSide:
        from memalpha.retrieval.dense import DenseSide  # imports faiss

        if self._embedder is None:
            raise InputError(f"retrieval mode {self._config.mode} without an embedder", expected="embedder=make_embedder(name)")
        return DenseSide(self._memory.schema, self._embedder, self._config)

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
                self._write_one(entry, None if vectors is None else vectors[i])

    def _write_one(self, entry: Entry, vector: Vectors | None) -> None:
        if self._lexical is not None and entry.id in self._lexical:
            self._lexical.update(entry.id, entry.content)
        elif self._lexical is not None:
            self._lexical.add(entry.id, entry.content, entry.section)
        if self._dense is not None and vector is not None:
            self._dense.write(entry, vector)
        self._entries[entry.id] = entry
        self._last_created = max(self._last_created, entry.created)

    def _check_sections(self, names: Sequence[str], what: str) -> None:
        if unknown := [name for name in names if name not in self._sections]:
            raise InputError(f"{what}: {unknown}", expected=f"list sections of the schema: {', '.join(self._sections)}")


def retriever_factory(config: RetrievalConfig | None = None, *, router: SectionRouter | None = None) -> RetrieverFactory:
    """Return a function that makes a memory's retriever; they share one embedder. ``router`` replaces ``config.router``.

    InputError if the embedder or the router's path is unknown, MissingExtraError if the embedder is not installed.
    """
    settings = config or RetrievalConfig()
    embedder = None if settings.mode is RetrievalMode.LEXICAL else make_embedder(settings.embedder)
    if router is None and settings.router:
        from memalpha.retrieval.section_router import LearnedSectionRouter  # imports torch

        router = LearnedSectionRouter.load(settings.router, embedder, settings.embedder)

    def make(memory: Memory) -> TwoLayerRetriever:
        return TwoLayerRetriever(memory, settings, embedder=embedder, router=router)

    return make
