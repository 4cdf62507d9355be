"""The index of a large memory on disk: words (SQLite's FTS5) and vectors, one file a namespace.

It is derived from the log and never the truth: it says which entries there are, by the numbers of
their records, and holds no text. Each entry that a search uses is read from the log, and the seal
of its record is checked. A search first takes in the records that the log has since; a process
holds what a question needs, not the memory. An index that is missing, damaged, or of another
version is made again from the log, a batch a transaction, so that it goes on where it was killed.
Whatever is erased from the log takes the whole index of its namespace with it.
"""

from __future__ import annotations

import logging
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from memalpha.errors import JournalBusyError, JournalError
from memalpha.memory.memory import LINE_ID
from memalpha.memory.schema import ARCHIVE, MemorySchema
from memalpha.retrieval.dense import CodeIndex, DenseSide
from memalpha.retrieval.lexical import search_words
from memalpha.retrieval.ranking import RankedSearch
from memalpha.retrieval.two_layer import RetrieverMaker
from memalpha.retrieval.vectors import Vectors
from memalpha.speakers import speaker_of
from memalpha.store import records as log
from memalpha.store.index_file import IndexFile, IndexState, WrongIndexError
from memalpha.store.index_sides import BLOCK, KeptEmbedder, StoredLines, StoredMemory, StoredWords
from memalpha.store.journal import Journal
from memalpha.store.records import Head, Note, Record, RecordKind, entries_of, root
from memalpha.types import Entry, Hit

IndexProgress = Callable[[int, int], None]
"""Is told how many operations are in the index, and how many there are."""

_VERSION = 3
_MANY = 20_000  # operations whose index takes seconds
_BATCH = 4096  # entries that are embedded at a time
_AT_ONCE = 256  # lines that the embedder reads at a time
_RECORDS = 1024  # that are taken in by one transaction
_NO_DAMAGE = (
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_PERM,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
)
_Result = TypeVar("_Result")
_logger = logging.getLogger(__name__)


def _code_of(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code


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
        self.words = StoredWords(self._file, self._memory, self.lists) if mode != "dense" else None
        self._maker = maker
        self._quick = maker.quick or maker.embedder
        self._begin_meaning()

    def _begin_meaning(self) -> None:
        """Load nothing yet of vectors, as after the index was made anew."""
        self._memory.forget()
        self._listed: dict[str, tuple[int, Entry]] = {}  # entries of lists with their records
        self._lines: StoredLines | None = None
        self._kept: KeptEmbedder | None = None
        self.meaning = self._dense = None
        embedder = self._maker.embedder
        if embedder is not None and self._quick is not None:
            self._lines = StoredLines(self._file, self._quick.dimension)
            self._kept = KeptEmbedder(self._file, embedder)
            self._dense = DenseSide(self._memory.schema, self._kept, self._quick, self._lines)
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
        except (sqlite3.Error, WrongIndexError) as error:
            if _code_of(error) in _NO_DAMAGE:
                raise self._error(error) from error
            _logger.warning("the index %s is rebuilt: %s", self._file.path, error)
            self._file.remove()
            self._begin_meaning()
        try:
            return work()
        except (sqlite3.Error, WrongIndexError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> JournalError:
        if _code_of(error) == sqlite3.SQLITE_BUSY:
            what = f"another process is writing {self._file.path}"
            return JournalBusyError(what, fix="try again")
        return JournalError(
            f"the index {self._file.path} could not be written or read: {error}",
            fix="free disk space, check the rights of the file, or remove it",
        )

    def view(self) -> StoredMemory:
        """Take in what the log has since the last search, and return the memory."""
        self._mended(self.follow)
        return self._memory

    @contextmanager
    def reading(self) -> Iterator[StoredMemory]:
        """Give the memory of now; what goes wrong with the index inside is a JournalError."""
        try:
            yield self.view()
        except (sqlite3.Error, WrongIndexError) as error:
            raise self._error(error) from error

    def turn_of(self, line: Entry) -> str | None:
        """Return the number of the first line of its turn."""
        rows = self._file.execute("SELECT turn FROM entry WHERE id = ?", [line.id])
        return str(rows[0][0]) if rows and rows[0][0] is not None else None

    # --------------------------------------------------------------------------------------------
    # following the log
    def update(self, progress: IndexProgress | None = None, *, anew: bool = False) -> None:
        """Take in the records after the last one that is in the index, or all ``anew``."""
        if anew:
            self._file.remove()
            self._begin_meaning()
        self._mended(lambda: self.follow(progress))

    def embed_lines(self, progress: IndexProgress | None = None) -> None:
        """Let the embedder read every line that has no vector yet, so that no question waits for
        it.
        """
        self._mended(lambda: self._embed_lines(progress))

    def _embed_lines(self, progress: IndexProgress | None) -> None:
        self.follow(progress)
        state = self._file.state()
        if self._kept is None or state is None:
            return
        for start in range(0, state.slots, _AT_ONCE):
            slots = range(start, min(state.slots, start + _AT_ONCE))
            entries = self._memory.at(slots).values()
            self._kept.embed([each.content for each in entries if each.section == ARCHIVE.name])
            if progress is not None:
                progress(slots.stop, state.slots)

    def follow(self, progress: IndexProgress | None = None) -> None:
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
                    raise WrongIndexError("it is of another log")
                if state.seq == head.seq:
                    break
                if state.seq == 0 and head.seq > _MANY and progress is None:
                    _logger.warning(
                        "an index of %d operations is built; this happens once", head.seq
                    )
                records = self._journal.database.rows(self._chain, state.seq, _RECORDS)
            state = self._take(state, records)
            if state is not None and progress is not None:
                progress(state.seq, head.seq)
        if self._dense is not None and self._lines is not None:
            state = self._code(state)
            self._lines.follow(state.coded)
            self._follow_lists(self._dense)

    def _restart(self, built: int) -> IndexState:
        state = self._file.begin(built, root(self._chain))
        self._begin_meaning()
        return state

    def _take(self, before: IndexState, records: Sequence[Record]) -> IndexState | None:
        """Take records in, in one transaction; return the new state, None if all must be read again
        since something was erased.
        """
        head = Head(before.seq, before.hash)
        last: dict[str, tuple[int, Entry | None]] = {}
        for record in records:
            log.check_record(record, head, self._journal.key, self._journal.database.name)
            head = record.head
            if record.kind == RecordKind.FORGET:
                if record.seq > before.built and record.read(Note).erased:
                    self._file.remove()
                    return None
            else:
                last.update((key, (record.seq, after)) for key, after in entries_of(record).items())
        with self._file.writing():
            state = self._file.state()
            if state != before:  # another process was faster
                return state
            state = replace(self._write(state, last), seq=head.seq, hash=head.hash)
            self._file.set_state(state)
        return state

    def _write(self, state: IndexState, last: Mapping[str, tuple[int, Entry | None]]) -> IndexState:
        """Write what became of entries: number of the record, and the entry, None if it is gone."""
        texts, words = state.texts, state.words
        old = list(self._file.select_in("slot, section, length", "id", list(last)))
        indexed = [slot for slot, section, _ in old if section in self._indexed]
        entries = self._memory.at(indexed)
        self._file.execute_many(
            "INSERT INTO words(words, rowid, text) VALUES ('delete', ?, ?)",
            [(slot, " ".join(search_words(entries[slot].content))) for slot in indexed],
        )
        self._file.execute_many("DELETE FROM entry WHERE slot = ?", [(row[0],) for row in old])
        texts -= len(indexed)
        words -= sum(length for _, section, length in old if section in self._indexed)
        rows = []
        posts = []
        slot = state.slots
        turns = _Turns(self._file)
        kept = self._indexed | {block.name for block in self._memory.schema.blocks}
        for number, entry in last.values():
            if entry is None or entry.section not in kept:
                continue
            said = search_words(entry.content)
            if entry.section in self._indexed:
                posts.append((slot, " ".join(said)))
                texts += 1
                words += len(said)
            speaker, turn = turns.of(entry)
            about = entry.section, entry.created, entry.source_chunk
            rows.append((slot, entry.id, number, *about, speaker, turn, len(said)))
            slot += 1
        self._file.execute_many(f"INSERT INTO entry VALUES ({','.join('?' * 9)})", rows)
        self._file.execute_many("INSERT INTO words(rowid, text) VALUES (?, ?)", posts)
        state = replace(state, slots=slot, texts=texts, words=words)
        if self._quick is not None and self._fits(state) and state.coded == slot - len(rows):
            contents = [entry.content for _, entry in last.values() if entry is not None]
            lines = dict(zip(contents, self._quick.embed(contents), strict=True))
            by_id = {entry.id: entry for _, entry in last.values() if entry is not None}
            vectors = [lines[by_id[row[1]].content] for row in rows]
            state = self._add_codes(state, [row[3] for row in rows], vectors)
        return state

    # --------------------------------------------------------------------------------------------
    # vectors
    def _fits(self, state: IndexState) -> bool:
        return self._quick is not None and state.embedder in ("", self._embedder_name)

    @property
    def _embedder_name(self) -> str:
        assert self._quick is not None and self._maker.embedder is not None
        return f"{self._quick.name} {self._maker.embedder.name}"

    def _code(self, state: IndexState) -> IndexState:
        """Embed the slots that have no vectors of this embedder yet."""
        assert self._quick is not None
        if not self._fits(state):
            with self._file.writing():
                self._file.execute("DELETE FROM codes")
                self._file.execute("DELETE FROM vectors")
                state = replace(self._file.state() or state, embedder="", coded=0)
                self._file.set_state(state)
        while state.coded < state.slots:
            slots = range(state.coded, min(state.slots, state.coded + _BATCH))
            entries = self._memory.at(slots)
            vectors = self._quick.embed([entry.content for entry in entries.values()])
            of_slot = dict(zip(entries, vectors, strict=True))
            zeros = np.zeros(self._quick.dimension, np.float32)
            sections = [entries[p].section if p in entries else "" for p in slots]
            with self._file.writing():
                now = self._file.state()
                if now is None or not self._fits(now):
                    raise WrongIndexError(
                        "another process gives it the vectors of another embedder"
                    )
                if now.coded == state.coded:  # else another process was faster
                    now = self._add_codes(now, sections, [of_slot.get(p, zeros) for p in slots])
                    self._file.set_state(now)
            state = now
        return state

    def _add_codes(
        self, state: IndexState, sections: Sequence[str], vectors: Sequence[Vectors]
    ) -> IndexState:
        """Inside ``writing``: add the vectors of the next slots; those of lines alone count."""
        assert self._quick is not None
        rows = np.zeros((len(vectors), self._quick.dimension), np.float32)
        for row, section, vector in zip(rows, sections, vectors, strict=True):
            if section == ARCHIVE.name:
                row[:] = vector
        codes = CodeIndex.codes(rows)
        first = state.coded
        block = first // BLOCK
        begun = self._file.execute("SELECT rows FROM codes WHERE block = ?", [block])
        data = (begun[0][0] if begun else b"") + codes.tobytes()
        size = BLOCK * self._quick.dimension
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
