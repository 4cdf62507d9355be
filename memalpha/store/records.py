"""The records of the log, their hash chain, and related types.

A record has a permanent header (no user text) and an erasable body. The hash covers the header,
which holds the previous record's
hash and a commitment: SHA-256 over 32 random bytes (the salt) and the body. After body and salt are
erased the chain still holds, and nobody can confirm a guess of the content. Without a key
(HMAC-SHA256) the chain detects accidents, but not an attacker.
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from memalpha.errors import InputError, JournalDamagedError
from memalpha.types import Entry, Operation

_Model = TypeVar("_Model", bound=BaseModel)

REGISTRY = ""  # id of the registry chain


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """Owner of a memory: user, agent and session. Use one session name if a memory outlives
    conversations.
    """

    user: str
    agent: str = "default"
    session: str = "default"

    def __post_init__(self) -> None:
        for part in ("user", "agent", "session"):
            name = getattr(self, part)
            if (
                not isinstance(name, str)
                or not 0 < len(name) <= 200
                or not name.isprintable()
                or name != name.strip()
            ):
                raise InputError(
                    f"{part} of a namespace is {name!r}",
                    expected="1 to 200 printable characters, no spaces around",
                )

    def __str__(self) -> str:
        return f"{self.user}/{self.agent}/{self.session}"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operation came from: writer, chunk id or hash, ``hash_prompt`` of the prompt.

    Digests are stored keyed (``DurableMemory.keyed``), since a plain one would confirm a guess of
    forgotten content.
    """

    agent: str
    source: str = ""
    prompt_hash: str = ""


class Kind(StrEnum):
    """What a record says."""

    BEGIN = "begin"  # in the registry alone
    APPLY = "apply"
    UNDO = "undo"
    FORGET = "forget"  # receipt of an erasure (of an entry; in the registry, of a namespace)


def stamp(moment: datetime) -> str:
    """Return a moment as fixed-width UTC text that sorts by time; InputError without a time zone or
    outside UTC years.
    """
    if moment.tzinfo is None:
        raise InputError(
            f"the time {moment} has no time zone", expected=f"such as {moment.isoformat()}Z"
        )
    try:
        return (
            moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        )  # %Y would not pad the year
    except OverflowError as error:
        raise InputError(f"the time {moment} cannot be told in UTC") from error


def moment_of(text: str) -> datetime:
    """Read what ``stamp`` wrote; ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if stamp(moment) != text:
        raise ValueError(f"{text!r} is not a time such as 2024-05-01T12:00:00.000000Z")
    return moment


def _text(pattern: str) -> Any:
    return Field(strict=True, pattern=f"^{pattern}$")


# Forms of values, checked where they come from outside: in notes and in imports.
Number = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Stamp = Annotated[str, AfterValidator(lambda text: stamp(moment_of(text)))]
Chain = Annotated[str, _text("[0-9a-f]{32}")]
Hash = Annotated[str, _text("[0-9a-f]{64}")]
Ascii = Annotated[str, _text(r"[\x20-\x7e]*")]


def _bounded(entry: Entry) -> Entry:
    if not all(
        0 <= number < 1 << 63 for number in (entry.created, entry.updated, entry.source_chunk or 0)
    ):
        raise ValueError(f"the numbers of entry {entry.id!r} are not all from 0 to 2**63 - 1")
    return entry


class Body(BaseModel):
    """Erasable part: the resulting entry (None if deleted), who wrote it, and what was applied to
    which chunk or undone.
    """

    model_config = ConfigDict(strict=True)

    after: Annotated[Entry, AfterValidator(_bounded)] | None = None
    origin: tuple[str, str, str] | None = None
    operation: Operation | None = None
    chunk: Number | None = None
    said: str | None = None
    of: Number | None = None
    call: Number | None = (
        None  # of several operations of one call, or their undo: the number of the first
    )

    @property
    def texts(self) -> set[str]:
        """The requested and the resulting content."""
        return {
            part.content.strip() for part in (self.operation, self.after) if part and part.content
        }


class Registered(BaseModel):
    """The body of a registry record: names and schema shape (``store.memory.shape``) of a
    namespace.
    """

    user: str
    agent: str
    session: str
    shape: Any = Field(alias="schema")

    @property
    def namespace(self) -> Namespace:
        """The names as one; InputError if they cannot be."""
        return Namespace(self.user, self.agent, self.session)


class Note(BaseModel):
    """Permanent data of a receipt: the numbers of the erased records."""

    erased: tuple[Number, ...] = ()


class Head(NamedTuple):
    """Number and hash of the last record of a chain."""

    seq: int
    hash: str


class Record(NamedTuple):
    """One line of the log, with the columns of the table.

    ``seq`` counts from 1 without gaps; ``gone``: the entry does not exist afterwards; ``time``
    never goes back; ``note`` is JSON of a ``Note``; ``body`` (JSON of a ``Body``, registry:
    ``Registered``) and ``salt`` are None if there is none or it was erased.
    """

    ns: Chain
    seq: Annotated[int, Field(strict=True, ge=1, lt=1 << 63)]
    kind: Annotated[str, _text("(apply|undo|forget)")]
    entry: Annotated[str, _text("[0-9a-z_-]{0,1000}")]
    gone: Annotated[int, Field(strict=True, ge=0, le=1)]
    time: Stamp
    note: Ascii
    commitment: Hash | Annotated[str, _text("")]
    previous: Hash
    hash: Hash
    salt: Hash | None
    body: Ascii | None

    @property
    def erased(self) -> bool:
        """Whether its body was erased."""
        return bool(self.commitment) and self.body is None

    @property
    def head(self) -> Head:
        """Its number and hash."""
        return Head(self.seq, self.hash)

    def header(self) -> bytes:
        """Return the bytes that are hashed: all fields before ``hash``."""
        return json.dumps(self[:9]).encode("ascii")

    def read(self, model: type[_Model]) -> _Model:
        """Return its note as a ``Note``, or its body as another model; both may be empty.
        JournalDamagedError if unreadable.
        """
        text = self.note if model is Note else self.body
        try:
            return model.model_validate_json(text or "{}")
        except ValidationError as error:
            wrong = error.errors()[0]
            why = f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            what = f"operation {self.seq} holds {str(text)[:80]!r}, which is no {model.__name__.lower()}: {why}"
            raise JournalDamagedError(what) from error


@dataclass(frozen=True, slots=True)
class Event:
    """One event in an entry's history; ``seq`` is the number for ``undo`` and ``as_of``; what was
    erased is None.

    ``entry`` is the entry's id, ``undoes`` the number of the operation that an undo took back,
    ``chunk`` that of what was read.
    """

    seq: int
    entry: str
    kind: Kind
    time: datetime
    origin: Origin | None
    operation: Operation | None
    before: Entry | None
    after: Entry | None
    forgotten: bool
    undoes: int | None = None
    chunk: int | None = None


@dataclass(frozen=True, slots=True)
class Receipt:
    """Proof of an erasure of an entry or a namespace's chain: how many records lost their content.

    ``said_by``: other entries and lines, of now or of the past, that still hold words of it, those
        with most first; the log does not keep this list. ``scrubbed``: False if its bytes are still
        in the files; the store then tries again by itself.
    """

    entry: str
    time: datetime
    operations: int
    said_by: tuple[Entry, ...] = ()
    scrubbed: bool = True


def hash_prompt(ids: Sequence[int]) -> str:
    """Return the SHA-256 of a prompt's token ids, in hex."""
    return hashlib.sha256(json.dumps(list(ids)).encode("ascii")).hexdigest()


def root(ns: str) -> Head:
    """Return the head before the first record."""
    return Head(0, hashlib.sha256(f"memalpha journal {ns}".encode()).hexdigest())


def commit(body: str, salt: str) -> str:
    """Return the commitment to a body under a salt (hex)."""
    return hashlib.sha256(bytes.fromhex(salt) + body.encode("ascii")).hexdigest()


def digest(header: bytes, key: bytes | None) -> str:
    """Return the hash of a header, keyed if there is a key."""
    return hmac.digest(key, header, "sha256").hex() if key else hashlib.sha256(header).hexdigest()


def seal(
    head: Head,
    key: bytes | None,
    *,
    ns: str,
    kind: Kind,
    time: str,
    entry: str = "",
    gone: bool = False,
    note: str = "",
    body: Mapping[str, Any] | None = None,
) -> Record:
    """Return the record that follows ``head``, with a new salt; ``body`` is stored and hashed as
    JSON.
    """
    text = None if body is None else json.dumps(body, separators=(",", ":"))
    salt = None if body is None else secrets.token_hex(32)
    commitment = "" if text is None or salt is None else commit(text, salt)
    draft = Record(
        ns,
        head.seq + 1,
        kind.value,
        entry,
        int(gone),
        time,
        note,
        commitment,
        head.hash,
        "",
        salt,
        text,
    )
    return draft._replace(hash=digest(draft.header(), key))


def fault(record: Record, before: Head, key: bytes | None) -> str:
    """Return what is wrong with one record that should follow ``before``, or an empty text."""
    body, salt = record.body, record.salt
    try:
        Kind(record.kind), moment_of(record.time)
        sealed = (
            salt is None
            if body is None
            else salt is not None and commit(body, salt) == record.commitment
        )
    except (TypeError, ValueError) as error:
        return f"is unreadable ({error})"
    if digest(record.header(), key) != record.hash:
        return "was edited: its hash is not that of its header (or the journal has another key)"
    if record.seq != before.seq + 1:
        return f"follows number {before.seq}: those between are missing"
    if record.previous != before.hash:
        return "was moved, or the one before it was edited: it does not follow on that one's hash"
    return "" if sealed else "was edited: its body is not the one it was sealed with"


def check(records: Sequence[Record], before: Head, head: Head, key: bytes | None) -> list[str]:
    """Return all faults of consecutive records of a chain after ``before`` up to ``head``, one line
    each.
    """
    found, covered, last = [], set[int](), before
    for record in records:
        if problem := fault(record, last, key):
            found.append(f"operation {record.seq} {problem}")
        last = record.head
        if record.kind == Kind.FORGET:
            try:
                covered.update(record.read(Note).erased)
            except JournalDamagedError as error:
                found.append(str(error))
    if last != head:
        found.append(f"the last operation is number {last.seq}, it should be number {head.seq}")
    if bare := [r.seq for r in records if r.erased and r.seq not in covered]:
        found.append(
            f"operations {bare} have lost their content and no receipt says that they were forgotten"
        )
    return found


def mix(heads: Iterable[tuple[str, Head]]) -> str:
    """Return the order-independent sum of the hashes of all heads (64 hex digits)."""
    texts = (f"{ns} {head.seq} {head.hash}" for ns, head in heads)
    return f"{sum(int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts) % (1 << 256):064x}"
