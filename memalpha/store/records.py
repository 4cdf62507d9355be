"""The records of the log, the hash chain they form, and the nouns around them.

A record has a header that is never erased (numbers, a kind, a time, hashes: no text from anybody) and a body that can be: the
operation, the entry it led to, and where both came from. The body is stored as one ASCII JSON text and is hashed as stored.

A record's hash covers its header. The header holds the hash of the record before and a commitment: SHA-256 over 32 random bytes
(the salt) and the body. When body and salt are erased, the chain still holds and nobody can confirm a guess of what was there.
Each namespace has a chain of its own, rooted in its random id, so it can be exported and verified alone. The registry of
namespaces is a chain as well: it shows a namespace that is missing.

Without a key the chain finds every accident, and every edit by somebody who does not compute all later hashes anew. With a key
(HMAC-SHA256) nobody can compute them without it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from memalpha.errors import InputError, JournalDamagedError
from memalpha.types import Entry, Operation

_Model = TypeVar("_Model", bound=BaseModel)

REGISTRY = ""
"""Id of the chain that says which namespaces there are."""
MAX_NAME = 200
_SHOWN = 80  # characters of a damaged value in a message


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

    SHA-256 digests in ``source`` and ``prompt_hash`` are stored keyed with a secret of the namespace that ``forget`` destroys
    (``DurableMemory.keyed``): otherwise the digest of a short text would confirm a guess of what was forgotten.

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


class Body(BaseModel):
    """What a record of a namespace holds and an erasure takes.

    Attributes:
        after: The entry it led to; None if that is gone.
        origin: Agent, source and prompt hash (``Origin``).
        operation: What was applied, to which chunk, with the chunk's time (``said``).
        clock: What the clock showed, where that was before the time of the record before.
    """

    after: Entry | None = None
    origin: tuple[str, str, str] | None = None
    operation: Operation | None = None
    chunk: int | None = None
    said: str | None = None
    clock: str = ""

    @property
    def texts(self) -> set[str]:
        """The contents it holds: what was asked for and what came of it."""
        return {part.content.strip() for part in (self.operation, self.after) if part and part.content}


class Registered(BaseModel):
    """The body of a registry record: the names of a namespace and the shape of its schema (``store.memory.shape``)."""

    user: str
    agent: str
    session: str
    shape: Any = Field(alias="schema")


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
    """Read what ``stamp`` wrote; ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if stamp(moment) != text:
        raise ValueError(f"{text!r} is not a time such as 2024-05-01T12:00:00.000000Z")
    return moment


Stamp = Annotated[str, AfterValidator(lambda text: stamp(moment_of(text)))]
Number = Annotated[int, Field(ge=0, lt=1 << 63)]


class Note(BaseModel):
    """What an erasure must not take: of a receipt, and of a base.

    Attributes:
        erased: Numbers of the records that lost their content.
        said_by: Live entries that hold the very same content and were left alone.
        operations: Of a namespace's receipt: how many records it had.
        next_id: Of a base: the next id to give out.
        entries: Of a base: how many ``keep`` records follow.
        receipts: Of a base: entry, time, count and ``said_by`` of each earlier receipt.
    """

    erased: tuple[Number, ...] = ()
    said_by: tuple[str, ...] = ()
    operations: Number | None = None
    next_id: Number = 1
    entries: Number = 0
    receipts: tuple[tuple[str, Stamp, Number, tuple[str, ...]], ...] = ()


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
        note: JSON of a ``Note``, or empty.
        commitment: Hash of salt and body; empty for a record without a body.
        previous: Hash of the record before.
        hash: Hash of all of the above.
        salt: 32 random bytes in hex, erased with the body.
        body: JSON of a ``Body`` (in the registry ``Registered``), or None where there never was one or it was erased.
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

    @property
    def head(self) -> Head:
        """Its number and hash: what the next record follows on."""
        return Head(self.seq, self.hash)

    def header(self) -> bytes:
        """Return what its hash is made of."""
        parts = [self.ns, self.seq, self.kind, self.entry, self.gone, self.time, self.note, self.commitment, self.previous]
        return json.dumps(parts).encode("ascii")

    def data(self) -> Body:
        """Return its body, empty if it has none; JournalDamagedError if it is no body."""
        return self._parsed(Body, self.body)

    def registered(self) -> Registered:
        """Return the body of a registry record that begins a namespace."""
        return self._parsed(Registered, self.body)

    def facts(self) -> Note:
        """Return its note, empty if it has none; JournalDamagedError if it is no note."""
        return self._parsed(Note, self.note)

    def _parsed(self, model: type[_Model], text: str | None) -> _Model:
        try:
            return model.model_validate(json.loads(text) if text else {})
        except (ValueError, RecursionError) as error:
            why = str(error).splitlines()
            raise JournalDamagedError(
                f"operation {self.seq} holds {str(text)[:_SHOWN]!r}, which is no {model.__name__.lower()}: {'; '.join(why[1:3])}"
            ) from error


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


# ------------------------------------------------------------------------------------------------ the chain
def root(ns: str) -> Head:
    """Return what the first record of a chain follows on."""
    return Head(0, hashlib.sha256(f"memalpha journal {ns}".encode()).hexdigest())


def commit(body: str, salt: str) -> str:
    """Return the commitment to a body under a salt (hex)."""
    return hashlib.sha256(bytes.fromhex(salt) + body.encode("ascii")).hexdigest()


def digest(header: bytes, key: bytes | None) -> str:
    """Return the hash of a header, keyed if there is a key."""
    return hmac.digest(key, header, "sha256").hex() if key else hashlib.sha256(header).hexdigest()


def seal(
    head: Head, key: bytes | None, *, ns: str, kind: Kind, time: str, entry: str = "", gone: bool = False, note: str = "",
    body: str | None = None,
) -> Record:  # fmt: skip
    """Return the record that follows ``head``, with a fresh salt."""
    salt = None if body is None else secrets.token_hex(32)
    commitment = "" if body is None or salt is None else commit(body, salt)
    draft = Record(ns, head.seq + 1, kind.value, entry, int(gone), time, note, commitment, head.hash, "", salt, body)
    return replace(draft, hash=digest(draft.header(), key))


def fault(record: Record, before: Head | None, key: bytes | None) -> str:
    """Return what is wrong with one record, or an empty text.

    Args:
        record: As read.
        before: The record before it; None if that was dropped by a compaction, which only a base may stand at.
        key: The journal's key.
    """
    try:
        Kind(record.kind), moment_of(record.time)
        expected = digest(record.header(), key)
        right = not record.commitment or record.body is None or commit(record.body, record.salt or "") == record.commitment
    except (TypeError, ValueError) as error:
        return f"is unreadable ({error})"
    if expected != record.hash:
        return "was edited: its hash is not that of its header (or the journal has another key)"
    if before is None and not (record.seq == 1 or record.kind == Kind.BASE):
        return f"is the first that is left; those before it are missing and no {Kind.BASE} stands in for them"
    if before is not None and record.seq != before.seq + 1:
        return f"follows number {before.seq}: those between are missing"
    if before is not None and record.previous != before.hash:
        return "was moved, or the one before it was edited: it does not follow on that one's hash"
    if not right:
        return "was edited: its body is not the one it was sealed with"
    if (record.body is None) != (record.salt is None) or (record.body is not None and not record.commitment):
        return "has a body without its salt, a salt without its body, or a body nobody sealed"
    return ""


def check(ns: str, records: Sequence[Record], before: Head | None, head: Head, key: bytes | None) -> list[str]:
    """Return everything wrong with a stretch of a chain up to its head, one line each; empty if nothing is.

    Args:
        ns: Whose chain.
        records: In order.
        before: The record before the first; None for a stretch from the beginning.
        head: What the store says is the last one.
        key: The journal's key.
    """
    found, covered = [], set[int]()
    last = root(ns) if before is None and not (records and records[0].seq != 1) else before
    for record in records:
        if problem := fault(record, last, key):
            found.append(f"operation {record.seq} {problem}")
        last = record.head
        if record.kind == Kind.FORGET:
            try:
                covered.update(record.facts().erased)
            except JournalDamagedError as error:
                found.append(str(error))
    if last != head:
        found.append(f"the last operation is number {last.seq if last else 0}, it should be number {head.seq}")
    if bare := [r.seq for r in records if r.erased and r.seq not in covered]:
        found.append(f"operations {bare} have lost their content and no receipt says that they were forgotten")
    return found


def mix(heads: Iterable[tuple[str, Head]]) -> str:
    """Return one number (hex, 64 digits) for a set of heads: the sum of their hashes; order does not matter."""
    texts = (f"{ns} {head.seq} {head.hash}" for ns, head in heads)
    return f"{sum(int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts) % (1 << 256):064x}"
