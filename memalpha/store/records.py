"""The nouns of the journal: who owns a memory, who wrote to it, and one record of the log.

A record has a header that is never erased (it holds no text from anybody: numbers, a kind, a time, hashes) and a body that can be:
the operation, the entry it led to, and where both came from. The body is stored as one ASCII JSON text and is hashed as stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, NamedTuple

from memalpha.errors import InputError
from memalpha.types import Entry, Operation, OperationKind

REGISTRY = ""
"""Id of the chain that says which namespaces there are."""
MAX_NAME = 200


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """Whose memory it is. No call of the store works without one, and no two share anything.

    Attributes:
        user: For whom.
        agent: Which agent.
        session: Which conversation; one name for all where a memory outlives conversations.
    """

    user: str
    agent: str = "default"
    session: str = "default"

    def __post_init__(self) -> None:
        """Check the three names; InputError if one is empty, too long, not printable or padded with spaces."""
        for part in ("user", "agent", "session"):
            name = getattr(self, part)
            if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable() or name != name.strip():
                raise InputError(
                    f"{part} of a namespace is {name!r}",
                    expected=f"1 to {MAX_NAME} printable characters without spaces around them",
                )

    def __str__(self) -> str:
        """Return ``user/agent/session``, for messages."""
        return f"{self.user}/{self.agent}/{self.session}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operation came from.

    Attributes:
        agent: Who wrote: a model's name, an adapter's folder, a person.
        source: The chunk that was read: its id or its hash.
        prompt_hash: ``hash_prompt`` of the prompt the model saw.
    """

    agent: str
    source: str = ""
    prompt_hash: str = ""


class Kind(StrEnum):
    """What a record says."""

    BEGIN = "begin"
    """Registry: a namespace starts; ``entry`` is its id."""
    APPLY = "apply"
    """An operation was applied."""
    UNDO = "undo"
    """An operation was taken back."""
    BASE = "base"
    """Compaction: everything before was dropped; the ``keep`` records that follow hold what was there."""
    KEEP = "keep"
    FORGET = "forget"
    """The receipt of an erasure (of an entry; in the registry, of a namespace)."""


@dataclass(frozen=True, slots=True)
class Record:
    """One line of the log; fields in the order of the table's columns.

    Attributes:
        ns: Id of the namespace's chain; random, so it says nothing of the names.
        seq: Number in its chain, from 1 without gaps.
        kind: What it says.
        entry: Id of the one entry it is about, or empty.
        gone: Whether that entry is gone afterwards.
        time: When, in UTC; never earlier than the record before, whatever the clock said.
        note: JSON of what an erasure must not take: receipts, the next id of a base; else empty.
        commitment: Hash of salt and body; empty for a record without a body.
        previous: Hash of the record before.
        hash: Hash of all of the above.
        salt: 32 random bytes in hex, erased with the body, so that the commitment cannot be used to confirm a guess.
        body: JSON, or None where there never was one or it was erased.
    """

    ns: str
    seq: int
    kind: str
    entry: str
    gone: int
    time: str
    note: str
    commitment: str
    previous: str
    hash: str
    salt: str | None
    body: str | None

    @property
    def erased(self) -> bool:
        """Whether its body was taken away."""
        return bool(self.commitment) and self.body is None

    def header(self) -> bytes:
        """Return what its hash is made of."""
        parts = [self.ns, self.seq, self.kind, self.entry, self.gone, self.time, self.note, self.commitment, self.previous]
        return json.dumps(parts).encode("ascii")

    def data(self) -> dict[str, Any]:
        """Return its body as data, empty if it has none."""
        return json.loads(self.body) if self.body else {}

    def facts(self) -> dict[str, Any]:
        """Return its note as data, empty if it has none."""
        return json.loads(self.note) if self.note else {}

    def after(self) -> Entry | None:
        """Return the entry it led to; None if that is gone or erased."""
        row = self.data().get("after")
        return Entry(**row) if row else None


class Head(NamedTuple):
    """The last record of a chain."""

    seq: int
    hash: str


@dataclass(frozen=True, slots=True)
class Event:
    """One record of an entry's history, as people want to see it.

    Attributes:
        seq: Number of the operation: what ``undo`` and ``as_of`` take.
        kind: What happened.
        time: When, in UTC.
        origin: Who and from what; None where it was erased or nobody's (compaction, receipts).
        operation: What was asked, for an applied operation that was not erased.
        before: The entry before; None if there was none, or it was forgotten.
        after: The entry after; None if it was gone, or it was forgotten.
        forgotten: Whether the content of this record was erased.
    """

    seq: int
    kind: Kind
    time: datetime
    origin: Origin | None
    operation: Operation | None
    before: Entry | None
    after: Entry | None
    forgotten: bool


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of an erasure, without a word of what was erased.

    Attributes:
        entry: Id of the entry, or of the namespace's chain.
        time: When, in UTC.
        operations: How many records lost their content.
        said_by: Live entries of other ids that hold the very same content and were left alone.
        backups: Backups that held it too and were erased as well.
        missing: Backups made from this store that are no longer where they were written.
    """

    entry: str
    time: datetime
    operations: int
    said_by: tuple[str, ...] = ()
    backups: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def hash_prompt(ids: Sequence[int]) -> str:
    """Return the SHA-256 of a prompt's token ids, in hex."""
    return hashlib.sha256(json.dumps(list(ids)).encode("ascii")).hexdigest()


def to_body(data: Mapping[str, Any]) -> str:
    """Return data as the one JSON text that is stored and hashed; InputError for a number JSON does not know."""
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise InputError(f"an operation holds {error}", expected="finite numbers") from error


def entry_data(entry: Entry | None) -> dict[str, Any] | None:
    """Return an entry as JSON-ready data."""
    return None if entry is None else asdict(entry)


def operation_data(operation: Operation) -> dict[str, Any]:
    """Return an operation as JSON-ready data without the fields that are not set."""
    return {name: value for name, value in asdict(operation).items() if value is not None}


def operation_of(data: Mapping[str, Any]) -> Operation:
    """Read what ``operation_data`` wrote."""
    return Operation(**{**data, "kind": OperationKind(data["kind"])})


def stamp(moment: datetime) -> str:
    """Return a moment as UTC text of fixed width, so that texts sort as moments do.

    Raises:
        InputError: If it has no time zone, or is in no year of UTC.
    """
    if moment.tzinfo is None:
        raise InputError(f"the time {moment} has no time zone", expected="an aware datetime", fix="datetime.now(UTC)")
    try:
        return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"  # %Y would not pad the year
    except OverflowError as error:
        raise InputError(f"the time {moment} cannot be told in UTC", expected="a time in the years 1 to 9999 of UTC") from error


def moment_of(text: str) -> datetime:
    """Read what ``stamp`` wrote."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
