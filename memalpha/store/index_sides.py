"""What a search sees of an index on disk (``store.index``): entries, words and vectors."""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.dense import CodeIndex
from memalpha.retrieval.embedders import embed_queries
from memalpha.retrieval.lexical import NORMALISATION, SATURATION, search_words
from memalpha.retrieval.vectors import Vectors
from memalpha.store import records as log
from memalpha.store.index_file import IndexFile, WrongIndexError
from memalpha.store.journal import Journal
from memalpha.store.records import entries_of
from memalpha.types import Embedder, Entry

BLOCK = 1024  # vectors of a row of ``codes``
_MORE = 100  # entries that FTS5 ranks first, beyond those wanted, before BM25 orders them
_ROUNDED = 9  # decimals of a BM25 score
_KEPT = 20_000  # entries that stay in this process


class StoredMemory:
    """The memory of an index, to read (a ``ReadableMemory``): its entries are read from the log."""

    def __init__(self, journal: Journal, chain: str, schema: MemorySchema, file: IndexFile) -> None:
        self.schema = schema
        self._journal = journal
        self._chain = chain
        self._file = file
        self._known: dict[tuple[int, str], Entry] = {}  # by the number of the record, and id

    def get(self, entry_id: str) -> Entry | None:
        """Return the entry of that id, or None."""
        return next(iter(self.several([entry_id])), None)

    def several(self, ids: Iterable[str]) -> list[Entry]:
        """Return the entries of those ids that are there, in order of their records."""
        return self._read(self._file.select_in("id, record", "id", list(ids)))

    def entries(self, section: str | None = None) -> tuple[Entry, ...]:
        """Return the entries of one list section, or of all, in order of creation."""
        wanted = [self.schema[section].name] if section else [s.name for s in self.schema.lists]
        found = self._read(self._file.select_in("id, record", "section", wanted))
        return tuple(sorted(found, key=lambda entry: entry.created))

    def section_size(self, section: str) -> int:
        """Number of entries in a section."""
        rows = self._file.execute("SELECT count(*) FROM entry WHERE section = ?", [section])
        return int(rows[0][0])

    def at(self, slots: Sequence[int]) -> dict[int, Entry]:
        """Return the entries at some slots of the index."""
        rows = list(self._file.select_in("id, record, slot", "slot", slots))
        found = {entry.id: entry for entry in self._read(rows)}
        return {slot: found[key] for key, _, slot in rows}

    def forget(self) -> None:
        """Drop the entries that stay in this process."""
        self._known.clear()

    def _read(self, rows: Iterable[Sequence[Any]]) -> list[Entry]:
        """Read entries, given by id and record, from the log, and check the seals."""
        keys = [(row[1], row[0]) for row in rows]
        if len(self._known) > _KEPT:
            self._known.clear()
        new = {number for number, key in keys if (number, key) not in self._known}
        with self._journal.reading():
            records = self._journal.database.some(self._chain, sorted(new))
        log.check_seals(records, self._journal.key, self._journal.database.name)
        for record in records:
            for key, entry in entries_of(record).items():
                if entry is not None:
                    self._known[record.seq, key] = entry
        try:
            return [self._known[key] for key in keys]
        except KeyError as error:
            raise WrongIndexError(
                "it names records that are not there, or of other entries"
            ) from error


class StoredWords:
    """BM25 over an index (a ``WordSide``): FTS5 finds the best, and they are ordered as
    ``LexicalIndex`` orders them.
    """

    def __init__(self, file: IndexFile, memory: StoredMemory, lists: Sequence[str]) -> None:
        self._file = file
        self._memory = memory
        self._lists = lists

    def search(
        self, query: str, k: int, groups: Collection[str] | None = None
    ) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by BM25 score, best first, of these sections (None: all)."""
        scores = self._scores(query, groups, k + _MORE)
        return [(entry.id, score) for entry, score in scores[: max(0, k)]]

    def rank_groups(self, query: str) -> dict[str, float]:
        """Return the list sections with an entry found, with the score of their best one."""
        best: dict[str, float] = {}
        for entry, score in self._scores(query, self._lists, -1):
            best.setdefault(entry.section, score)
        return best

    def _scores(
        self, query: str, groups: Collection[str] | None, limit: int
    ) -> list[tuple[Entry, float]]:
        state = self._file.state()
        assert state is not None
        idf: dict[str, float] = {}
        for word, times in Counter(search_words(query)).items():
            found = self._file.execute("SELECT doc FROM counts WHERE term = ?", [word])
            if found:
                texts = found[0][0]
                idf[word] = times * math.log1p((state.texts - texts + 0.5) / (texts + 0.5))
        if not idf:
            return []
        match = " OR ".join(f'"{word}"' for word in idf)
        within = ""
        if groups is not None:
            within = f"AND entry.section IN ({','.join('?' * len(groups))})"
        rows = self._file.execute(
            "SELECT entry.slot, entry.length FROM words JOIN entry ON entry.slot = words.rowid "
            f"WHERE words MATCH ? {within} ORDER BY words.rank LIMIT ?",
            [match, *(groups or ()), limit],
        )
        entries = self._memory.at([slot for slot, _ in rows])
        mean = state.words / max(1, state.texts)
        scored = []
        for slot, length in rows:
            counts = Counter(search_words(entries[slot].content))
            saturation = SATURATION * (1 - NORMALISATION + NORMALISATION * length / mean)
            score = sum(idf[w] * counts[w] / (counts[w] + saturation) for w in idf if counts[w])
            scored.append((entries[slot], round(score, _ROUNDED)))
        return sorted(scored, key=lambda pair: (-pair[1], -pair[0].created))


class StoredLines:
    """The quick vectors of the lines of an index (a ``LineIndex``)."""

    def __init__(self, file: IndexFile, dimension: int) -> None:
        self._file = file
        self._dimension = dimension
        self._codes = CodeIndex(dimension)

    def follow(self, coded: int) -> None:
        """Load the vectors of slots that are not loaded yet; all, if there are fewer."""
        if len(self._codes) > coded:
            self._codes = CodeIndex(self._dimension)
        first = len(self._codes)
        rows = self._file.execute(
            "SELECT block, rows FROM codes WHERE block >= ? ORDER BY block", [first // BLOCK]
        )
        for block, data in rows:
            codes = np.frombuffer(data, np.int8).reshape(-1, self._dimension)
            self._codes.add(codes[max(0, first - block * BLOCK) :])
        if len(self._codes) != coded:
            raise WrongIndexError(f"it has {len(self._codes)} vectors, and should have {coded}")

    def search(self, vector: ArrayLike, k: int) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by cosine with ``vector``, best first."""
        wanted = k
        while True:
            slots, cosines = self._codes.search(np.asarray(vector, np.float32), wanted)
            ids = self._lines_at(slots)
            if len(ids) >= k or len(slots) == len(self._codes):
                break
            wanted *= 4  # slots of entries that are gone, or no lines
        pairs = zip(slots, cosines, strict=True)
        return [(ids[slot], cosine) for slot, cosine in pairs if slot in ids][:k]

    def _lines_at(self, slots: Sequence[int]) -> dict[int, str]:
        rows = self._file.select_in("slot, id, section", "slot", slots)
        return {slot: key for slot, key, section in rows if section == ARCHIVE.name}

    def cosines(self, vector: Vectors, keys: Sequence[str]) -> dict[str, float]:
        """Return the cosines of lines with the unit ``vector``, by id."""
        rows = list(self._file.select_in("slot, id", "id", keys))
        if not rows:
            return {}
        scores = self._codes.vectors([slot for slot, _ in rows]) @ vector
        return {key: float(score) for (_, key), score in zip(rows, scores, strict=True)}


class KeptEmbedder:
    """An embedder whose vectors of passages stay in an index; queries are kept nowhere."""

    def __init__(self, file: IndexFile, embedder: Embedder) -> None:
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._file = file
        self._embedder = embedder

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a row for each passage, as the embedder does."""
        keys = {text: hashlib.sha256(text.encode()).digest()[:16] for text in texts}
        rows = self._file.select_in("text, vector", "text", list(keys.values()), "vectors")
        known = {name: np.frombuffer(data, np.float16) for name, data in rows}
        new = [text for text, key in keys.items() if key not in known]
        if new:
            made = self._embedder.embed(new).astype(np.float16)
            known.update((keys[text], row) for text, row in zip(new, made, strict=True))
            with self._file.writing():
                self._file.execute_many(
                    "INSERT OR IGNORE INTO vectors VALUES (?, ?)",
                    [(keys[text], row.tobytes()) for text, row in zip(new, made, strict=True)],
                )
        rows_of = [known[keys[text]] for text in texts]
        return np.array(rows_of, dtype=np.float32).reshape(len(texts), self.dimension)

    def embed_queries(self, queries: Sequence[str]) -> Vectors:
        """Return a row for each query, as the embedder does."""
        return embed_queries(self._embedder, queries)
