"""What makes forgetting complete: digests keyed with a secret that is thrown away, the records that
are erased, and the old bytes in the files.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
from time import monotonic, sleep

from memalpha.errors import JournalError
from memalpha.store import parts
from memalpha.store.chain import Tail
from memalpha.store.database import Database
from memalpha.store.history import Event
from memalpha.store.records import Record, RecordKind, Registration, fingerprint
from memalpha.types import Entry

SCRUB_WAIT = 1.0  # seconds that an erasure waits for other readers
_SCRUB_EVERY = 1.0  # seconds between two tries when the store is idle
_DIGEST = re.compile(r"(?<![0-9A-Za-z])[0-9a-f]{64}(?![0-9A-Za-z])")
_LOG = logging.getLogger(__name__)


# ------------------------------------------------------------------------------------------------
# digests
def key_digests(text: str, secret: str) -> str:
    """Return a text with each SHA-256 digest in it keyed with a secret."""
    key = secret.encode()
    return _DIGEST.sub(lambda match: hmac.digest(key, match[0].encode(), "sha256").hex(), text)


class DigestSecret:
    """The secret that keys the digests of one chain; ``unsealed``: the next record has to seal
    it.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._key = ("", "")
        self.unsealed = False

    def read(self, ns: str, *, again: bool) -> str:
        """Return the secret of a chain, made if there is none; it is read ``again``, or if it is of
        another chain.
        """
        if again or self._key[0] != ns:
            secret = self._database.secret(ns)
            self.unsealed = not secret
            self._key = ns, secret or self._database.new_secret(ns)
        return self._key[1]

    def seal(self) -> str:
        """Return the fingerprint with which a record seals the secret."""
        self.unsealed = False
        return fingerprint(self._key[1])


def faults_of_secret(
    database: Database, ns: str, body: Registration, records: Sequence[Record]
) -> list[str]:
    """Return the faults of the secret of a chain's digests; an import brings none along."""
    sealed = next((record for record in reversed(records) if record.secret), None)
    secret = database.secret(ns)
    if sealed is None or (not secret and sealed.seq <= body.imported):
        return []
    fault = f"chain {ns}: the secret of its digests is not that of operation {sealed.seq}"
    return [] if fingerprint(secret) == sealed.secret else [fault]


# ------------------------------------------------------------------------------------------------
# records
def texts_of(events: Sequence[Event], ids: set[str]) -> set[str]:
    """Return the texts of some entries' events."""
    return {text for event in events if event.entry in ids for text in event.texts}


def events_left(
    events: Sequence[Event], ids: set[str], keep: Collection[str], memory: Iterable[Entry]
) -> list[Event]:
    """Return the events that stay when the entries ``ids`` are forgotten: those of others that say
    something else, or are of an entry of ``memory`` or of one to ``keep``.
    """
    texts = texts_of(events, ids)
    same = {entry.id for entry in memory if entry.content in texts}.union(keep) - ids
    others = [event for event in events if event.entry not in ids]
    return [event for event in others if event.entry in same or not event.texts & texts]


def erase(
    database: Database,
    tail: Tail,
    entry: str,
    records: Sequence[Record],
    numbers: Sequence[int],
    now: str,
) -> Record:
    """Erase the operations of some numbers from a chain, of which ``records`` are all, and make a
    new secret; return the receipt.
    """
    secret = fingerprint(database.new_secret(tail.ns))
    note = json.dumps({"erased": numbers, "secret": secret})
    receipt = tail.seal(RecordKind.FORGET, entry, now, note=note)
    database.append([receipt])
    database.erase(tail.ns, _without(records, set(numbers)))
    return receipt


def _without(records: Iterable[Record], numbers: Set[int]) -> Iterator[Record]:
    """Return the records that lose operations, without these."""
    for record in records:
        of_record = range(record.first, record.seq + 1)
        gone = [number for number in of_record if number in numbers]
        if len(gone) + len(record.erased) >= len(of_record) and gone:
            yield record._replace(body=None, salt=None)
        elif gone and record.body is not None and record.salt is not None:
            places = [number - record.first + 1 for number in gone]
            body, salt = parts.erase_parts(record.body, record.salt, places)
            yield record._replace(body=body, salt=salt)


# ------------------------------------------------------------------------------------------------
# files
class Scrubber:
    """Removes erased bytes from a store's files; if that fails they are ``pending``, and it is
    tried again in a thread until it succeeds or ``pending`` is set to False. ``lock`` is that of
    the store.
    """

    def __init__(self, database: Database, lock: threading.RLock) -> None:
        self._database = database
        self._lock = lock
        self.pending = False

    def scrub(self, wait: float) -> None:
        """Scrub the files, with the lock held; ``wait``: seconds for other readers."""
        try:
            self._database.scrub(wait)
            self.pending = False
        except JournalError as error:
            if not self.pending:
                self.pending = True
                _LOG.warning("%s", error)
                threading.Thread(target=self._scrub_again, daemon=True).start()

    def _scrub_again(self) -> None:
        pause = _SCRUB_EVERY
        while self.pending:
            sleep(pause)
            with self._lock:
                start = monotonic()
                if self.pending:  # and the store is not closed
                    self.scrub(0.0)
                pause = max(_SCRUB_EVERY, 10 * (monotonic() - start))  # as on a full disk
