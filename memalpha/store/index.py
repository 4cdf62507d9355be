"""The index of a large memory on disk: words (SQLite's FTS5) and vectors, one file a namespace.

It is derived from the log and never the truth: it says which entries there are, by the numbers of
their records, and holds no text. Each entry that a search uses is read from the log, and the seal
of its record is checked. A search first takes in the records that the log has since; a process
holds what a question needs, not the memory. An index that is missing, damaged, or of another
version is made again from the log, a batch a transaction, so that it goes on where it was killed.
Whatever is erased from the log takes the whole index of its namespace with it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import sqlite3
import zlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from memalpha.errors import JournalBusyError, JournalDamagedError, JournalError
from memalpha.memory.memory import LINE_ID
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.dense import CodeIndex, DenseSide
from memalpha.retrieval.embedders import embed_queries
from memalpha.retrieval.lexical import NORMALISATION, SATURATION, tokenize
from memalpha.retrieval.ranking import RankedSearch
from memalpha.retrieval.two_layer import RetrieverMaker
from memalpha.retrieval.vectors import Vectors
from memalpha.speakers import speaker_of
from memalpha.store import records as log
from memalpha.store.database import remove_database
from memalpha.store.journal import Journal
from memalpha.store.records import Body, Head, Note, Record, RecordKind, root
from memalpha.types import Embedder, Entry, Hit

Progress = Callable[[int, int], None]
"""Is told how many operations are in the index, and how many there are."""

_VERSION = 1
_BATCH = 4096  # records that are taken in by one transaction
_BLOCK = 1024  # vectors of a row of ``codes``
_WEIGHED = 200  # entries that FTS5 ranks first, and that BM25 then orders, at least
_ROUNDED = 9  # decimals of a BM25 score
_WAIT = 30.0  # seconds for another process that writes the index
_AT_ONCE = 500  # values that are named in one statement
_KEPT = 20_000  # entries that stay in this process
_TABLES = """
CREATE TABLE state (one INTEGER PRIMARY KEY, kind TEXT, seq INTEGER, hash TEXT, built INTEGER,
    places INTEGER, texts INTEGER, words INTEGER, embedder TEXT, coded INTEGER);
CREATE TABLE entry (place INTEGER PRIMARY KEY, id TEXT UNIQUE, record INTEGER, section TEXT,
    created INTEGER, chunk INTEGER, speaker INTEGER, turn INTEGER, length INTEGER);
CREATE INDEX of_section ON entry (section, created);
CREATE VIRTUAL TABLE words USING fts5(text, content='', detail=none,
    tokenize="ascii tokenchars '_'");
CREATE VIRTUAL TABLE counts USING fts5vocab(words, row);
CREATE TABLE codes (block INTEGER PRIMARY KEY, rows BLOB);
CREATE TABLE vectors (text BLOB PRIMARY KEY, vector BLOB) WITHOUT ROWID;
"""
_SETTINGS = (
    f"PRAGMA busy_timeout={int(_WAIT * 1000)}",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=NORMAL",  # what a power cut takes is made again
    "PRAGMA temp_store=MEMORY",
    "PRAGMA cache_size=-32000",  # 32 MB
)
_logger = logging.getLogger(__name__)


_NO_DAMAGE = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_Result = TypeVar("_Result")


class _WrongIndexError(Exception):
    """The index does not fit its log."""


def _code_of(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code


@dataclass(frozen=True, slots=True)
class _State:
    """How far an index has come: ``built`` is the last operation when it was begun, ``places`` how
    many entries it was ever given, ``texts`` and ``words`` those that BM25 counts, ``coded`` how
    many places have vectors of the ``embedder``.
    """

    kind: str
    seq: int
    hash: str
    built: int
    places: int = 0
    texts: int = 0
    words: int = 0
    embedder: str = ""
    coded: int = 0


class IndexFile:
    """The tables of one index; used by one thread at a time. sqlite3.Error where it is damaged."""

    def __init__(self, path: Path, kind: str) -> None:
        self.path = path
        self.kind = kind
        self._connection: sqlite3.Connection | None = None
        self._opened: os.stat_result | None = None

    def execute(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Run one statement; return all rows."""
        return self._open().execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for each row of values."""
        self._open().executemany(statement, rows)

    def select_in(self, columns: str, column: str, values: Sequence[Any]) -> Iterator[Any]:
        """Yield the rows of entries whose column has one of some values."""
        for start in range(0, len(values), _AT_ONCE):
            part = values[start : start + _AT_ONCE]
            marks = ",".join("?" * len(part))
            yield from self.execute(
                f"SELECT {columns} FROM entry WHERE {column} IN ({marks})", part
            )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Write in one transaction, as the only process."""
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def state(self) -> _State | None:
        """Return how far it has come; None if it is empty or of another kind."""
        if not self.execute("SELECT 1 FROM sqlite_master WHERE name = 'state'"):
            return None
        rows = self.execute(f"SELECT {', '.join(_State.__slots__)} FROM state")
        state = _State(*rows[0]) if rows else None
        return state if state and state.kind == self.kind else None

    def set_state(self, state: _State) -> None:
        """Inside ``writing``: say how far it has come."""
        names = _State.__slots__
        self.execute("DELETE FROM state")
        self.execute(
            f"INSERT INTO state ({', '.join(names)}) VALUES ({','.join('?' * len(names))})",
            [getattr(state, name) for name in names],
        )

    def begin(self, built: int, before: Head) -> _State:
        """Make the file anew, of a log that has ``built`` operations."""
        self.remove()
        state = _State(self.kind, before.seq, before.hash, built)
        with self.writing():
            for statement in _TABLES.split(";\n"):
                if statement.strip():
                    self.execute(statement)
            self.set_state(state)
        return state

    def remove(self) -> None:
        """Remove the file."""
        self.close()
        remove_database(self.path)

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._opened = None

    @property
    def replaced(self) -> bool:
        """Whether another process has removed the file since it was opened, or made it anew."""
        if self._opened is None:
            return False
        try:
            return not os.path.samestat(self.path.stat(), self._opened)
        except FileNotFoundError:
            return True

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.path.touch(0o600)
            self._connection = sqlite3.connect(
                self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False
            )
            for setting in _SETTINGS:
                self._connection.execute(setting)
            self._opened = self.path.stat()
        return self._connection


class StoredMemory:
    """The memory of an index, to read (a ``ReadableMemory``): its entries are read from the log."""

    def __init__(self, journal: Journal, chain: str, schema: MemorySchema, file: IndexFile) -> None:
        self.schema = schema
        self._journal = journal
        self._chain = chain
        self._file = file
        self._known: dict[int, Entry] = {}  # by the number of the record

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

    def at(self, places: Sequence[int]) -> dict[int, Entry]:
        """Return the entries at some places of the index."""
        rows = list(self._file.select_in("id, record, place", "place", places))
        found = {entry.id: entry for entry in self._read(rows)}
        return {place: found[key] for key, _, place in rows}

    def forget(self) -> None:
        """Drop the entries that stay in this process."""
        self._known.clear()

    def _read(self, rows: Iterable[Sequence[Any]]) -> list[Entry]:
        """Read entries, given by id and record, from the log, and check the seals."""
        ids = {row[1]: row[0] for row in rows}
        if len(self._known) > _KEPT:
            self._known.clear()
        new = [number for number in ids if number not in self._known]
        with self._journal.reading():
            records = self._journal.database.some(self._chain, new)
        for record in records:
            self._known[record.seq] = self._entry(record)
        if len(records) < len(new) or any(self._known[seq].id != key for seq, key in ids.items()):
            raise _WrongIndexError("it names records that are not there, or of other entries")
        return [self._known[number] for number in ids]

    def _entry(self, record: Record) -> Entry:
        problem = log.fault(record, Head(record.seq - 1, record.previous), self._journal.key)
        if problem:
            raise JournalDamagedError(
                f"{self._journal.database.name}: operation {record.seq} {problem}",
                fix="bring a backup back",
            )
        after = record.read(Body).after
        if after is None:
            raise _WrongIndexError(f"operation {record.seq} has no content")
        return after


class _StoredWords:
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
        scores = self._scores(query, groups, max(2 * k, _WEIGHED))
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
        for word, times in Counter(tokenize(query)).items():
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
            "SELECT entry.place, entry.length FROM words JOIN entry ON entry.place = words.rowid "
            f"WHERE words MATCH ? {within} ORDER BY words.rank LIMIT ?",
            [match, *(groups or ()), limit],
        )
        entries = self._memory.at([place for place, _ in rows])
        mean = state.words / max(1, state.texts)
        scored = []
        for place, length in rows:
            counts = Counter(tokenize(entries[place].content))
            saturation = SATURATION * (1 - NORMALISATION + NORMALISATION * length / mean)
            score = sum(idf[w] * counts[w] / (counts[w] + saturation) for w in idf if counts[w])
            scored.append((entries[place], round(score, _ROUNDED)))
        return sorted(scored, key=lambda pair: (-pair[1], -pair[0].created))


class _StoredLines:
    """The quick vectors of the lines of an index (a ``LineIndex``)."""

    def __init__(self, file: IndexFile, dimension: int) -> None:
        self._file = file
        self._dimension = dimension
        self._codes = CodeIndex(dimension)

    def follow(self, coded: int) -> None:
        """Load the vectors of places that are not loaded yet; all, if there are fewer."""
        if len(self._codes) > coded:
            self._codes = CodeIndex(self._dimension)
        first = len(self._codes)
        rows = self._file.execute(
            "SELECT block, rows FROM codes WHERE block >= ? ORDER BY block", [first // _BLOCK]
        )
        for block, data in rows:
            codes = np.frombuffer(data, np.int8).reshape(-1, self._dimension)
            self._codes.add(codes[max(0, first - block * _BLOCK) :])
        if len(self._codes) != coded:
            raise _WrongIndexError(f"it has {len(self._codes)} vectors, and should have {coded}")

    def search(self, vector: ArrayLike, k: int) -> list[tuple[str, float]]:
        """Return at most ``k`` ids by cosine with ``vector``, best first."""
        wanted = k
        while True:
            places, cosines = self._codes.search(np.asarray(vector, np.float32), wanted)
            ids = self._lines_at(places)
            if len(ids) >= k or len(places) == len(self._codes):
                break
            wanted *= 4  # places of entries that are gone, or no lines
        pairs = zip(places, cosines, strict=True)
        return [(ids[place], cosine) for place, cosine in pairs if place in ids][:k]

    def _lines_at(self, places: Sequence[int]) -> dict[int, str]:
        rows = self._file.select_in("place, id, section", "place", places)
        return {place: key for place, key, section in rows if section == ARCHIVE.name}

    def cosines(self, vector: Vectors, keys: Sequence[str]) -> dict[str, float]:
        """Return the cosines of lines with the unit ``vector``, by id."""
        rows = list(self._file.select_in("place, id", "id", keys))
        if not rows:
            return {}
        scores = self._codes.vectors([place for place, _ in rows]) @ vector
        return {key: float(score) for (_, key), score in zip(rows, scores, strict=True)}


class _KeptEmbedder:
    """An embedder whose vectors of passages stay in an index; queries are kept nowhere."""

    def __init__(self, file: IndexFile, embedder: Embedder) -> None:
        self.name = embedder.name
        self.dimension = embedder.dimension
        self._file = file
        self._embedder = embedder

    def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a row for each passage, as the embedder does."""
        keys = {text: hashlib.sha256(text.encode()).digest()[:16] for text in texts}
        known: dict[bytes, Vectors] = {}
        names = list(keys.values())
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            marks = ",".join("?" * len(part))
            rows = self._file.execute(
                f"SELECT text, vector FROM vectors WHERE text IN ({marks})", part
            )
            known.update((name, np.frombuffer(data, np.float16)) for name, data in rows)
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


class StoredSearch(RankedSearch):
    """Searches a namespace by its index on disk (a ``Retriever``), with the rules of
    ``TwoLayerRetriever``. ``chain`` is the id of the namespace's records in the log, ``file`` that
    of the index, ``maker`` says how it is searched.

    JournalDamagedError if the log is damaged, JournalError if the index cannot be written.
    """

    def __init__(
        self, journal: Journal, chain: str, schema: MemorySchema, file: Path, maker: RetrieverMaker
    ) -> None:
        super().__init__(schema, maker.config, archive=maker.archive)
        self._journal = journal
        self._chain = chain
        self._indexed = frozenset(self.sections)
        self._file = IndexFile(file, f"{_VERSION} {chain} {'with' * maker.archive} archive")
        self._memory = StoredMemory(journal, chain, schema, self._file)
        mode = maker.config.retrieval
        self.words = _StoredWords(self._file, self._memory, self.lists) if mode != "dense" else None
        self._maker = maker
        self._quick = maker.quick or maker.embedder
        self._begin_meaning()

    def _begin_meaning(self) -> None:
        """Load nothing yet of vectors, as after the index was made anew."""
        self._memory.forget()
        self._listed: dict[str, tuple[int, Entry]] = {}  # entries of lists with their records
        self._lines: _StoredLines | None = None
        self.meaning = self._dense = None
        embedder = self._maker.embedder
        if embedder is not None and self._quick is not None:
            self._lines = _StoredLines(self._file, self._quick.dimension)
            kept = _KeptEmbedder(self._file, embedder)
            self._dense = DenseSide(self._memory.schema, kept, self._quick, self._lines)
            self.meaning = self._dense

    def close(self) -> None:
        """Close the file of the index."""
        self._file.close()

    def search(self, query: str, k: int, sections: Sequence[str] | None = None) -> list[Hit]:
        """Return at most ``k`` entries and ``k`` lines, best first (``RankedSearch.search``)."""
        return self._mended(lambda: RankedSearch.search(self, query, k, sections))

    def _mended(self, work: Callable[[], _Result]) -> _Result:
        """Do some work; if the index is damaged, make it again and do it once more."""
        try:
            return work()
        except (sqlite3.Error, _WrongIndexError) as error:
            if _code_of(error) in _NO_DAMAGE:
                raise self._error(error) from error
            _logger.warning("the index %s is made again: %s", self._file.path, error)
            self._file.remove()
            self._begin_meaning()
        try:
            return work()
        except (sqlite3.Error, _WrongIndexError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> JournalError:
        if _code_of(error) == sqlite3.SQLITE_BUSY:
            what = f"{self._file.path} is being written by another process"
            return JournalBusyError(what, fix="try again")
        return JournalError(
            f"the index {self._file.path} could not be written or read: {error}",
            fix="make room on the disk, or remove the file",
        )

    def view(self) -> StoredMemory:
        """Take in what the log has since the last search, and return the memory."""
        self.follow()
        return self._memory

    def turn_of(self, line: Entry) -> str | None:
        """Return the number of the first line of its turn."""
        rows = self._file.execute("SELECT turn FROM entry WHERE id = ?", [line.id])
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    # --------------------------------------------------------------------------------------------
    # following the log
    def update(self, progress: Progress | None = None) -> None:
        """Take in the records after the last one that is in the index."""
        self._mended(lambda: self.follow(progress))

    def rebuild(self, progress: Progress | None = None) -> None:
        """Make the index anew."""
        self._file.remove()
        self._begin_meaning()
        self._mended(lambda: self.follow(progress))

    def follow(self, progress: Progress | None = None) -> None:
        """Do what ``update`` does, and raise what a damaged index leads to."""
        if self._file.replaced:
            self._file.close()
            self._begin_meaning()
        state = self._file.state()
        while True:
            with self._journal.reading():
                head = self._journal.database.head(self._chain)
                if state is None or state.seq > head.seq:
                    state = self._restart(head.seq)
                if state.seq == head.seq and state.hash != head.hash:
                    raise _WrongIndexError("it is of another log")
                if state.seq == head.seq:
                    break
                records = self._journal.database.rows(self._chain, state.seq, _BATCH)
            state = self._take(state, records)
            if state is not None and progress is not None:
                progress(state.seq, head.seq)
        if self._dense is not None and self._lines is not None:
            state = self._code(state)
            self._lines.follow(state.coded)
            self._follow_lists(self._dense)

    def _restart(self, built: int) -> _State:
        state = self._file.begin(built, root(self._chain))
        self._begin_meaning()
        return state

    def _take(self, before: _State, records: Sequence[Record]) -> _State | None:
        """Take records in, in one transaction; return the new state, None if all must be read again
        since something was erased.
        """
        head = Head(before.seq, before.hash)
        last: dict[str, tuple[int, Entry | None]] = {}
        for record in records:
            problem = log.fault(record, head, self._journal.key)
            if problem:
                raise JournalDamagedError(
                    f"{self._journal.database.name}: operation {record.seq} {problem}",
                    fix="bring a backup back",
                )
            head = record.head
            if record.kind == RecordKind.FORGET:
                if record.seq > before.built and record.read(Note).erased:
                    self._file.remove()
                    return None
            elif record.kind != RecordKind.READ:
                after = record.read(Body).after
                last[record.entry] = record.seq, after
        with self._file.writing():
            state = self._file.state()
            if state != before:  # another process was faster
                return state
            state = replace(self._write(state, last), seq=head.seq, hash=head.hash)
            self._file.set_state(state)
        return state

    def _write(self, state: _State, last: Mapping[str, tuple[int, Entry | None]]) -> _State:
        """Write what became of entries: number of the record, and the entry, None if it is gone."""
        texts, words = state.texts, state.words
        old = list(self._file.select_in("place, section, length", "id", list(last)))
        indexed = [place for place, section, _ in old if section in self._indexed]
        entries = self._memory.at(indexed)
        self._file.execute_many(
            "INSERT INTO words(words, rowid, text) VALUES ('delete', ?, ?)",
            [(place, " ".join(tokenize(entries[place].content))) for place in indexed],
        )
        self._file.execute_many("DELETE FROM entry WHERE place = ?", [(row[0],) for row in old])
        texts -= len(indexed)
        words -= sum(length for _, section, length in old if section in self._indexed)
        rows = []
        posts = []
        place = state.places
        turns = _Turns(self._file)
        for number, entry in last.values():
            blocks = self._memory.schema.blocks
            if entry is None or not (
                entry.section in self._indexed or any(entry.section == b.name for b in blocks)
            ):
                continue
            said = tokenize(entry.content)
            if entry.section in self._indexed:
                posts.append((place, " ".join(said)))
                texts += 1
                words += len(said)
            speaker, turn = turns.of(entry)
            about = entry.section, entry.created, entry.source_chunk
            rows.append((place, entry.id, number, *about, speaker, turn, len(said)))
            place += 1
        self._file.execute_many(f"INSERT INTO entry VALUES ({','.join('?' * 9)})", rows)
        self._file.execute_many("INSERT INTO words(rowid, text) VALUES (?, ?)", posts)
        state = replace(state, places=place, texts=texts, words=words)
        if self._quick is not None and self._fits(state) and state.coded == place - len(rows):
            contents = [entry.content for _, entry in last.values() if entry is not None]
            lines = dict(zip(contents, self._quick.embed(contents), strict=True))
            by_id = {entry.id: entry for _, entry in last.values() if entry is not None}
            vectors = [lines[by_id[row[1]].content] for row in rows]
            state = self._add_codes(state, [row[3] for row in rows], vectors)
        return state

    # --------------------------------------------------------------------------------------------
    # vectors
    def _fits(self, state: _State) -> bool:
        return self._quick is not None and state.embedder in ("", self._embedder_name)

    @property
    def _embedder_name(self) -> str:
        assert self._quick is not None and self._maker.embedder is not None
        return f"{self._quick.name} {self._maker.embedder.name}"

    def _code(self, state: _State) -> _State:
        """Embed the places that have no vectors of this embedder yet."""
        assert self._quick is not None
        if not self._fits(state):
            with self._file.writing():
                self._file.execute("DELETE FROM codes")
                self._file.execute("DELETE FROM vectors")
                state = replace(self._file.state() or state, embedder="", coded=0)
                self._file.set_state(state)
        while state.coded < state.places:
            places = range(state.coded, min(state.places, state.coded + _BATCH))
            entries = self._memory.at(places)
            vectors = self._quick.embed([entry.content for entry in entries.values()])
            of_place = dict(zip(entries, vectors, strict=True))
            zeros = np.zeros(self._quick.dimension, np.float32)
            sections = [entries[p].section if p in entries else "" for p in places]
            with self._file.writing():
                now = self._file.state()
                if now is None or now.coded != state.coded or not self._fits(now):
                    raise _WrongIndexError("another process gives it other vectors")
                state = self._add_codes(now, sections, [of_place.get(p, zeros) for p in places])
                self._file.set_state(state)
        return state

    def _add_codes(
        self, state: _State, sections: Sequence[str], vectors: Sequence[Vectors]
    ) -> _State:
        """Inside ``writing``: add the vectors of the next places; those of lines alone count."""
        assert self._quick is not None
        rows = np.zeros((len(vectors), self._quick.dimension), np.float32)
        for row, section, vector in zip(rows, sections, vectors, strict=True):
            if section == ARCHIVE.name:
                row[:] = vector
        codes = CodeIndex.codes(rows)
        first = state.coded
        block = first // _BLOCK
        begun = self._file.execute("SELECT rows FROM codes WHERE block = ?", [block])
        data = (begun[0][0] if begun else b"") + codes.tobytes()
        size = _BLOCK * self._quick.dimension
        self._file.execute_many(
            "INSERT OR REPLACE INTO codes VALUES (?, ?)",
            [
                (block + number, data[start : start + size])
                for number, start in enumerate(range(0, len(data), size))
            ],
        )
        return replace(state, embedder=self._embedder_name, coded=first + len(rows))

    def _follow_lists(self, dense: DenseSide) -> None:
        """Bring the vectors of the entries of lists, which are in this process, up to date."""
        now = dict(self._file.select_in("id, record", "section", self.lists))
        for key in [key for key, (record, _) in self._listed.items() if now.get(key) != record]:
            dense.remove(self._listed.pop(key)[1])
        new = self._memory.several([key for key in now if key not in self._listed])
        if new:
            new.sort(key=lambda entry: entry.created)
            dense.write(new)
            self._listed.update((entry.id, (now[entry.id], entry)) for entry in new)


class _Turns:
    """Tells to which turn a line belongs: lines in a row of one speaker in one chunk."""

    def __init__(self, file: IndexFile) -> None:
        self._file = file
        self._seen: dict[str, tuple[int | None, int | None, int | None]] = {}

    def of(self, line: Entry) -> tuple[int | None, int | None]:
        """Return a number for the speaker, and that of the turn's first line; None without one."""
        if line.section != ARCHIVE.name:
            return None, None
        name = speaker_of(line.content)
        speaker = zlib.crc32(name.encode()) if name else None
        turn = line.created if name else None
        before = f"{LINE_ID}{line.created - 1}"
        if before not in self._seen:
            rows = list(self._file.select_in("chunk, speaker, turn", "id", [before]))
            self._seen[before] = rows[0] if rows else (None, None, None)
        chunk, last_speaker, last_turn = self._seen[before]
        if name and last_turn is not None and (chunk, last_speaker) == (line.source_chunk, speaker):
            turn = last_turn
        self._seen[line.id] = line.source_chunk, speaker, turn
        return speaker, turn
