"""The log in one SQLite file: write-ahead log, ``synchronous=FULL``, deleted bytes overwritten, a witness beside it.

One writer at a time among all processes, by a lock file that the operating system frees when its holder dies; any number of
readers, who never wait for a writer. Files: ``X`` (the database), ``X-wal`` and ``X-shm`` (SQLite's, while it is in use),
``X.witness``, ``X.lock`` (empty). The folder must be on a local file system: network ones lie about locks.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from memalpha.errors import InputError, JournalBusyError, JournalDamagedError, JournalError
from memalpha.files import flush
from memalpha.store import chain
from memalpha.store.sql import SqlBackend
from memalpha.store.witness import State, Witness

_LOG = logging.getLogger(__name__)
APPLICATION_ID = 0x4D454D41  # "MEMA"
_MAGIC = b"SQLite format 3\x00"
_POLL = 0.005  # seconds between two tries for the lock
_BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}
_NO_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}


class SqliteBackend(SqlBackend):
    """A log in a file.

    Args:
        path: The database; made if there is none, in a folder that exists.
        wait: Seconds to wait for another writer.
        renew_witness: Take the database for right and write its witness anew; for a copy made without it.

    Raises:
        JournalDamagedError: If it is no journal, or has lost acknowledged writes.
        InputError: If the folder does not exist, or the name can be none of a file.
        JournalError: If rights to a file or its folder are missing.
    """

    def __init__(self, path: Path, *, wait: float = 30.0, renew_witness: bool = False) -> None:
        self.wait, self.url = wait, str(path)
        with self._translated():
            _check_name(path)
            self.path = path.resolve()
            self.witness = Witness(self.path.with_name(self.path.name + ".witness"))
            self._refuse_others()
        self._lock = FileLock(str(self.path) + ".lock", timeout=wait, poll_interval=_POLL, thread_local=False)
        with self._translated(), self.alone():
            self._connect()
            try:
                self._open(renew_witness)
                self._file = _identity(self.path)
            except BaseException:
                self._connection.close()
                raise

    # -------------------------------------------------------------------------------------------- opening
    def _refuse_others(self) -> None:
        """Refuse a file that never was a store before anything is put beside it."""
        if self.witness.path.exists():
            return
        try:
            with self.path.open("rb") as file:
                head = file.read(len(_MAGIC))
        except FileNotFoundError:
            return
        if head and head != _MAGIC:
            raise JournalDamagedError(
                f"{self.url} is no store: it does not begin as a SQLite file does and has no witness beside it",
                expected="the file of a store, or the name of a new one",
            )

    def _connect(self) -> None:
        self._connection = sqlite3.connect(self.path, timeout=self.wait, isolation_level=None, check_same_thread=False)

    def _open(self, renew_witness: bool) -> None:
        seen, spoilt = self.witness.read()
        if (not self.path.exists() or self.path.stat().st_size == 0) and seen is not None and seen.commits > 0:
            raise JournalDamagedError(f"{self.url} is gone or empty; it held {seen.commits} commits", fix="bring a backup back")
        if not self.execute("SELECT name FROM sqlite_master LIMIT 1"):
            self._create()
        (application,) = self.execute("PRAGMA application_id")[0]
        if application != APPLICATION_ID:
            raise JournalDamagedError(f"{self.url} is a SQLite database but no journal of memalpha", fix="name another file")
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "temp_store=MEMORY"):
            self.execute(f"PRAGMA {pragma}")
        if renew_witness:
            self.witness.path.unlink(missing_ok=True)
            self.witness.write(self.state())
        if problems := self.tail_problems():
            raise JournalDamagedError(
                f"{self.url}: {'; '.join(problems)}",
                fix="bring a backup back, or memalpha.store.salvage.salvage(path, target) for what is left; "
                "for a copy of the database alone, renew_witness=True",
            )
        if spoilt and seen is not None:
            _LOG.warning("%s: %d of 2 slots could not be read (a kill, or damage); written anew", self.witness.path, spoilt)
        self.witness.write(self.state(), both=bool(spoilt))

    def _create(self) -> None:
        self.execute(f"PRAGMA application_id={APPLICATION_ID}")
        self.execute("PRAGMA journal_mode=WAL")
        self.execute("PRAGMA synchronous=FULL")
        self.execute("BEGIN IMMEDIATE")
        self.create()
        self.execute("COMMIT")
        os.close(os.open(self.path, os.O_RDONLY))
        flush(self.path.parent)
        self.witness.write(self.state())

    def tail_problems(self) -> list[str]:
        """Return what the witness and the hash over all heads find wrong, one line each."""
        state, (seen, _) = self.state(), self.witness.read()
        found = []
        if chain.mix(self.heads().items()) != state.mix:
            found.append("the last operations of some namespace are missing or the list of them was edited")
        if seen is None and state.commits == 0:
            return found  # killed while the first file was made
        if seen is None:
            return [*found, f"{self.witness.path.name} is missing or unreadable, so nobody can say that no write was lost"]
        if state.commits < seen.commits:
            found.append(f"the last {seen.commits - state.commits} of {seen.commits} acknowledged commits are missing")
        elif state.commits > seen.commits + 1:
            found.append(f"{self.witness.path.name} stopped at {seen.commits} of {state.commits} commits: it is of another time")
        elif state.commits == seen.commits and state != seen:
            found.append(f"{self.witness.path.name} has seen another commit {seen.commits}")
        return found

    # -------------------------------------------------------------------------------------------- statements and transactions
    def execute(self, sql: str, arguments: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return all rows."""
        with self._translated():
            return self._connection.execute(sql, arguments).fetchall()

    def execute_many(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run one statement for each row of arguments."""
        with self._translated():
            self._connection.executemany(sql, rows)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Everything read inside is of one moment."""
        with self._translated():
            inside = self._connection.in_transaction
        if inside:
            yield
            return
        self.execute("BEGIN")
        try:
            yield
        finally:
            self._rollback()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Alone among all processes; committed and witnessed when the block has been left."""
        with self.alone():
            self._check_place()
            self.execute("BEGIN IMMEDIATE")
            try:
                before = self.state()
                yield
                after = self.count_commit(before)
                self.execute("COMMIT")
            except BaseException:
                self._rollback()
                raise
            if after != before:
                self._testify(after)

    def _check_place(self) -> None:
        """Refuse to write to a file that has no name any more: what goes there is gone with the last process that has it open."""
        try:
            there = _identity(self.path)
        except FileNotFoundError:
            there = None
        except OSError as error:
            raise JournalError(f"{self.url} cannot be reached: {error}", fix=_RIGHTS) from error
        if there != self._file:
            raise JournalDamagedError(
                f"{self.url} was {'removed' if there is None else 'replaced by another file'} while it was in use; "
                "nothing was written",
                expected="the file this process opened",
                fix="bring it or a backup back, and open the journal again",
            )

    def _testify(self, state: State) -> None:
        try:
            self.witness.write(state)
        except OSError as error:
            raise JournalError(
                f"{self.witness.path} could not be written: {error}; the write is in the log but was not acknowledged"
            ) from error

    def _rollback(self) -> None:
        if self._connection.in_transaction:
            self._connection.rollback()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold the writers' lock of all processes; may be nested.

        Raises:
            JournalBusyError: If another process did not finish in time.
        """
        try:
            self._lock.acquire()
        except Timeout as error:
            raise JournalBusyError(
                f"{self.url} is being written by another process for more than {self.wait} s",
                fix="try again, wait longer (wait=...), or find who holds it",
            ) from error
        except OSError as error:
            raise JournalError(
                f"{self.url}.lock cannot be used: {error}", fix="check the rights and the room of the disk"
            ) from error
        try:
            yield
        finally:
            self._lock.release()

    # -------------------------------------------------------------------------------------------- erasing, checking, copying
    def scrub(self) -> None:
        """Rebuild the file without free pages and empty the write-ahead log."""
        with self.alone():
            self.execute("UPDATE state SET scrub = 1")
            self._empty_wal()
            self.execute("VACUUM")
            self._empty_wal()
            self.execute("UPDATE state SET scrub = 0")

    def _empty_wal(self) -> None:
        end = time.monotonic() + self.wait
        while self.execute("PRAGMA wal_checkpoint(TRUNCATE)")[0][0]:
            if time.monotonic() > end:
                raise JournalBusyError(
                    f"{self.url}: forgotten in the log, but readers keep the old write-ahead file in use",
                    fix="close them; the next opening erases it, or call scrub() again",
                )
            time.sleep(_POLL)

    def integrity(self) -> list[str]:
        """Return what SQLite's own check and the witness find."""
        try:
            with self._translated(), self.alone():
                found = [str(row[0]) for row in self.execute("PRAGMA integrity_check")]
                spoilt = self.witness.read()[1]
                slots = [f"{spoilt} of 2 slots of {self.witness.path.name} cannot be read"] if spoilt else []
                return [*(line for line in found if line != "ok"), *slots, *self.tail_problems()]
        except JournalBusyError:
            raise
        except JournalError as error:
            return [str(error)]

    def backups(self) -> list[str]:
        """Return where copies were written, but not this file, if it has taken a copy's place."""
        return [path for path in super().backups() if Path(path) != self.path]

    def copy_to(self, path: Path) -> None:
        """Write a complete journal with the same content to a new file; its own list of copies is empty.

        The file has its name only once it is complete; until then it is ``unfinished(path)``, of which nothing is left if it fails.

        Raises:
            JournalError: If it could not be written.
        """
        draft, witness = unfinished(path), Witness(path.with_name(path.name + ".witness"))
        try:
            target = sqlite3.connect(draft, isolation_level=None)
            try:
                self._connection.backup(target)
                target.execute("PRAGMA secure_delete=ON")
                target.execute("DELETE FROM backups")
            finally:
                target.close()
            witness.write(self.state(), both=True)
            draft.rename(path)
            flush(path.parent)
        except BaseException as error:
            if not path.exists():
                witness.path.unlink(missing_ok=True)
            drop_unfinished(path)
            if isinstance(error, sqlite3.Error | OSError):
                raise JournalError(
                    f"the copy {path} of {self.url} could not be made: {error}",
                    fix="make room, check the rights, or name another place",
                ) from error
            raise

    def close(self) -> None:
        """Close the file; the last one to do so folds the write-ahead log in."""
        self._connection.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise self._error(error) from error
        except UnicodeDecodeError as error:
            raise JournalDamagedError(f"{self.url} holds bytes that are no text: {error}", fix=_RESCUE) from error
        except OSError as error:
            raise JournalError(f"{self.url} cannot be used: {error}", fix=_RIGHTS) from error

    def _error(self, error: sqlite3.Error) -> JournalError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in _BUSY:
            return JournalBusyError(f"{self.url} is in use by another program for more than {self.wait} s", fix="try again")
        if code in _NO_ROOM:
            return JournalError(
                f"{self.url} could not be read or written ({error}); nothing of this write was kept",
                fix="make room on the disk, or check it; what was acknowledged before is safe",
            )
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
            return JournalError(f"{self.url} cannot be opened for writing ({error})", fix=_RIGHTS)
        if isinstance(error, sqlite3.ProgrammingError):
            return JournalError(f"{self.url} was closed ({error})", fix="open the journal again")
        return JournalDamagedError(f"{self.url} is damaged ({error})", fix=_RESCUE)


def _identity(path: Path) -> tuple[int, int]:
    """Return what tells a file from another of the same name."""
    status = path.stat()
    return status.st_dev, status.st_ino


def unfinished(path: Path) -> Path:
    """Return the name of a copy that is being made."""
    return path.with_name(path.name + ".part")


def drop_unfinished(path: Path) -> None:
    """Delete what a copy that was killed has left."""
    for suffix in ("", "-wal", "-shm", "-journal"):
        Path(f"{unfinished(path)}{suffix}").unlink(missing_ok=True)


def _check_name(path: Path) -> None:
    """Refuse what can be no store (InputError); OSError where rights are missing to say."""
    try:
        Path(f"{path}.witness").lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENAMETOOLONG:
            raise
        raise InputError(
            f"a store at {str(path)!r}: {error}", expected="a name that a file can have, with room for .witness"
        ) from error
    if not path.parent.is_dir():
        raise InputError(f"no folder {str(path.parent)!r}", expected="the journal's folder to exist", fix="make it")
    if path.is_dir():
        raise InputError(f"a store at {str(path)!r}, which is a folder", expected="the name of a file", fix="name a file in it")


_RIGHTS = "check the rights of the files and of their folder"
_RESCUE = "bring a backup back, or memalpha.store.salvage.salvage(path, target) for what is left"
