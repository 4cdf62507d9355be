"""The records of a store's log, the hash chain that seals them, and the events they tell of.

A record has a permanent header without a user's text, and a body that can be erased. The hash
covers the header, which holds the hash of the record before and a commitment to the body: SHA-256
over 32 random bytes (the salt) and the body. So the chain still holds after body and salt are
erased, and nobody can confirm a guess of the content. With a key the hashes are HMAC-SHA256;
without one the chain shows accidents, but not an attacker.

The lines of a text that was read are one record with as many numbers of operations, since they are
most of what a large memory holds. Each of them can be erased alone (``store.parts``).
"""

import hashlib
import hmac
import json
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import from_json

from memalpha.errors import InputError, JournalDamagedError
from memalpha.memory.memory import LINE_ID
from memalpha.memory.schema import ARCHIVE
from memalpha.store import parts
from memalpha.types import Entry, JsonMapping, Operation

_Model = TypeVar("_Model", bound=BaseModel)

_COMPACT = json.JSONEncoder(separators=(",", ":"))
MOST_LINES = 1000  # of one record
REGISTRY = ""  # id of the chain that lists the namespaces
DIGEST = 16  # hex digits that name a source that was read


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """The owner of a memory: user, agent and session.

    Use one name of a session if a memory outlives conversations. InputError is raised for names
    that are not 1 to 200 printable characters.

    Attributes:
        user: The name of the user.
        agent: The name of the user's agent.
        session: The name of the session.
    """

    user: str
    agent: str = "default"
    session: str = "default"

    def __post_init__(self) -> None:
        for part in ("user", "agent", "session"):
            name = getattr(self, part)
            fits = isinstance(name, str) and 0 < len(name) <= 200 and name.isprintable()
            if not fits or name != name.strip():
                raise InputError(
                    f"the {part} of a namespace is {name!r}",
                    expected="1 to 200 printable characters, without spaces at the ends",
                )

    def __str__(self) -> str:
        return f"{self.user}/{self.agent}/{self.session}"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of an operation: its writer, text and prompt.

    Digests are stored keyed (``DurableMemory.keyed``), since a plain one would confirm a guess of
    forgotten content.

    Attributes:
        agent: The name of the writer.
        source: The id or hash of the chunk.
        prompt_hash: The hash of the prompt, as ``hash_prompt`` returns it.
    """

    agent: str
    source: str = ""
    prompt_hash: str = ""


class RecordKind(StrEnum):
    """The kinds of records."""

    BEGIN = "begin"  # of a namespace; in the registry alone
    APPLY = "apply"
    LINES = "lines"  # the lines of a text that came into the archive
    UNDO = "undo"
    FORGET = "forget"  # receipt of an erasure (of an entry; in the registry, of a namespace)
    READ = "read"  # what an import has read: a note without an entry and without a body


def stamp(moment: datetime) -> str:
    """Return a moment as UTC text of fixed width, which sorts by time."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def moment_of(text: str) -> datetime:
    """Read what ``stamp`` wrote; ValueError for anything else."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo != UTC or stamp(moment) != text:
        raise ValueError(f"{text!r} is not a time such as 2024-05-01T12:00:00.000000+00:00")
    return moment


def _text(pattern: str) -> Any:
    return Field(strict=True, pattern=f"^{pattern}$")


# Forms of values, checked where they come from outside: in bodies, notes and imports.
Natural = Annotated[int, Field(strict=True, ge=0, lt=1 << 63)]
Stamp = Annotated[str, AfterValidator(lambda text: stamp(moment_of(text)))]
Chain = Annotated[str, _text("[0-9a-f]{32}")]
Hash = Annotated[str, _text("[0-9a-f]{64}")]
Ascii = Annotated[str, _text(r"[\x20-\x7e]*")]
_AsciiLines = Annotated[str, _text(r"[\x20-\x7e\n]*")]
_Salts = Annotated[str, _text("(?:[0-9a-f]{64})+")]


class Body(BaseModel):
    """The part of a record that can be erased: the resulting entry (None for a deletion), its
    writer, and the operation with its chunk or undo.

    ``call``: of several operations of one call, or of their undo, the number of the first.
    ``secret``: ``fingerprint`` of the secret of the digests, of the first record that uses it.
    """

    model_config = ConfigDict(strict=True)

    after: Entry | None = None
    origin: tuple[str, str, str] | None = None
    operation: Operation | None = None
    chunk: Natural | None = None
    of: Natural | None = None
    call: Natural | None = None
    secret: Hash | None = None


class LinesHeader(BaseModel):
    """The common data of the lines of one record: writer, chunk, time and metadata. ``secret``: see
    ``Body``.
    """

    model_config = ConfigDict(strict=True)

    origin: tuple[str, str, str]
    chunk: Natural | None = None
    timestamp: str | None = None
    metadata: str | None = None
    secret: Hash | None = None


class Registration(BaseModel):
    """The body of a registry record: names and schema shape (``history.shape``) of a namespace, and
    the number of its last operation that was imported.
    """

    user: str
    agent: str
    session: str
    shape: Any = Field(alias="schema")
    imported: Natural = 0

    @property
    def namespace(self) -> Namespace:
        """The names as one; InputError if they cannot be."""
        return Namespace(self.user, self.agent, self.session)


class Note(BaseModel):
    """Permanent data of a receipt: the numbers of the erased records; or of what was read: the
    digests of its sources (``digest_of``), joined, and the agent that read them. ``secret``: of an
    erasure, the ``fingerprint`` of the secret that the digests have from then on. ``lines``: how
    many lines a record has.

    ``by`` is empty where lines went into the archive and no agent read them.
    """

    erased: tuple[Natural, ...] = ()
    lines: Annotated[int, Field(strict=True, ge=0, le=MOST_LINES)] = 0
    read: Annotated[str, _text(f"(?:[0-9a-f]{{{DIGEST}}})*")] = ""
    by: str = ""
    secret: Annotated[str, _text("(?:[0-9a-f]{64})?")] = ""

    @property
    def sources(self) -> tuple[str, ...]:
        """The digests of what was read."""
        return tuple(self.read[at : at + DIGEST] for at in range(0, len(self.read), DIGEST))


class Head(NamedTuple):
    """Number and hash of the last record of a chain."""

    seq: int
    hash: str


def _bytes_of(header: Sequence[Any]) -> bytes:
    return json.dumps(header).encode("ascii")


class Record(NamedTuple):
    """One line of the log, with the columns of the table.

    ``seq`` is the number of its operation, of lines that of the last one; operations count from 1
    without gaps. ``time`` is that of the writer's clock, which may have been set back; ``note`` is
    JSON of a ``Note``. ``body`` and ``salt`` are None if there is none or it was erased; a body is
    JSON of a ``Body``, of lines the ``parts`` after a ``LinesHeader``, in the registry a
    ``Registration``.
    """

    ns: Chain
    seq: Annotated[int, Field(strict=True, ge=1, lt=1 << 63)]
    kind: Annotated[str, _text("(apply|lines|undo|forget|read)")]
    entry: Annotated[str, _text("[0-9a-z_-]{0,1000}")]
    time: Stamp
    note: Ascii
    commitment: Hash | Annotated[str, _text("")]
    previous: Hash
    hash: Hash
    salt: _Salts | None
    body: _AsciiLines | None

    @property
    def first(self) -> int:
        """The number of its first operation; JournalDamagedError if its note does not tell."""
        if self.kind != RecordKind.LINES:
            return self.seq
        count = self.read(Note).lines
        if not 0 < count <= self.seq:
            raise JournalDamagedError(f"operation {self.seq} is the last of {count} lines")
        return self.seq - count + 1

    @property
    def erased(self) -> tuple[int, ...]:
        """The numbers of its operations whose content was erased."""
        if self.body is None:
            return tuple(range(self.first, self.seq + 1)) if self.commitment else ()
        if self.kind != RecordKind.LINES:
            return ()
        lines = enumerate(parts.split(self.body)[1:], self.first)
        return tuple(number for number, line in lines if not line)

    @property
    def lines(self) -> dict[str, Entry | None]:
        """The lines of the archive that it brought, by id, in order; None for each that was erased.

        JournalDamagedError if they cannot be read.
        """
        ids = {f"{LINE_ID}{number}": number for number in range(self.first, self.seq + 1)}
        entries: dict[str, Entry | None] = dict.fromkeys(ids)
        if self.body is None:
            return entries
        shared = self.read(LinesHeader)
        for (key, number), part in zip(ids.items(), parts.split(self.body)[1:], strict=False):
            if part:
                more = shared.timestamp, shared.chunk, number, number, shared.metadata
                entries[key] = Entry(key, ARCHIVE.name, _text_of(number, part), *more)
        return entries

    @property
    def secret(self) -> str:
        """The fingerprint of a secret of digests that it seals; empty if it seals none."""
        if self.kind == RecordKind.FORGET:
            return self.read(Note).secret
        if '"secret":' not in (self.body or ""):
            return ""
        if self.kind == RecordKind.LINES:
            return self.read(LinesHeader).secret or ""
        return self.read(Body).secret or ""

    @property
    def head(self) -> Head:
        """Its number and hash."""
        return Head(self.seq, self.hash)

    def header(self) -> bytes:
        """Return the bytes that are hashed: all fields before ``hash``."""
        return _bytes_of(self[: self._fields.index("hash")])

    def read(self, model: type[_Model]) -> _Model:
        """Return its note as a ``Note``, or its body as another model; both may be empty.
        JournalDamagedError if it cannot be read.
        """
        text = self.note if model is Note else self.body
        if model is LinesHeader and text:
            text = parts.split(text)[0]
        try:
            return model.model_validate_json(text or "{}")
        except ValidationError as error:
            wrong = error.errors()[0]
            raise JournalDamagedError(
                f"operation {self.seq} holds {str(text)[:80]!r}, which is no "
                f"{model.__name__.lower()}: {'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"
            ) from error


def _text_of(number: int, part: str) -> str:
    try:
        text = from_json(part)
    except ValueError:
        text = None
    if not isinstance(text, str):
        raise JournalDamagedError(f"operation {number} holds {part[:80]!r}, which is no text")
    return text


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


def entries_of(record: Record) -> dict[str, Entry | None]:
    """Return the entries that a record wrote, by id; None for one that it removed, or that was
    erased.
    """
    if record.kind == RecordKind.READ:
        return {}
    if record.kind == RecordKind.LINES:
        return record.lines
    return {record.entry: record.read(Body).after}


def digest_of(source: str) -> str:
    """Return what names a source, such as a message of an export, in the permanent record of what
    was read. It can confirm a guess, so a source is named by ids and places, and by content only
    where there is neither (paragraphs of Claude's memories).
    """
    return hashlib.sha256(source.encode("utf-8", "backslashreplace")).hexdigest()[:DIGEST]


def fingerprint(secret: str) -> str:
    """Return what seals the secret of a namespace's digests, which stands outside of the chain."""
    return hashlib.sha256(f"memalpha secret {secret}".encode()).hexdigest()


def hash_prompt(ids: Sequence[int]) -> str:
    """Return the SHA-256 of a prompt's token ids, in hexadecimal.

    Args:
        ids: The token ids.
    """
    return hashlib.sha256(json.dumps(list(ids)).encode("ascii")).hexdigest()


# ------------------------------------------------------------------------------------------------
# the chain
def root(ns: str) -> Head:
    """Return the head before the first record."""
    return Head(0, hashlib.sha256(f"memalpha journal {ns}".encode()).hexdigest())


def commit(body: str, salt: str, kind: str = RecordKind.APPLY) -> str:
    """Return the commitment to a body under a salt (hex); ValueError if it cannot be its salt."""
    if kind == RecordKind.LINES:
        return parts.commit_parts(body, salt)
    return hashlib.sha256(bytes.fromhex(salt) + body.encode("ascii")).hexdigest()


def hash_header(header: bytes, key: bytes | None) -> str:
    """Return the hash of a header, keyed if there is a key."""
    return hmac.digest(key, header, "sha256").hex() if key else hashlib.sha256(header).hexdigest()


def seal(
    head: Head,
    key: bytes | None,
    *,
    ns: str,
    kind: RecordKind,
    time: str,
    entry: str = "",
    note: str = "",
    body: JsonMapping | None = None,
    lines: Sequence[str] = (),
) -> Record:
    """Return the record that follows ``head``, with a new salt; ``body`` and ``lines`` are stored
    and hashed as JSON.
    """
    text = None if body is None else parts.join([*map(_COMPACT.encode, (body, *lines))])
    salt = None if text is None else secrets.token_hex(32)
    commitment = commit(text, salt, kind) if text and salt else ""
    if lines:
        note = _COMPACT.encode({"lines": len(lines)})
    seq = head.seq + max(1, len(lines))
    header = (ns, seq, kind.value, entry, time, note, commitment, head.hash)
    return Record(*header, hash_header(_bytes_of(header), key), salt, text)


def fault(record: Record, before: Head, key: bytes | None) -> str:
    """Return the fault of a record that should follow ``before``, or an empty text."""
    body = record.body
    salt = record.salt
    try:
        moment_of(record.time)
        first = record.first
        if body is None or salt is None:
            sealed = body is salt
        elif record.kind == RecordKind.LINES and len(parts.split(body)) != record.seq - first + 2:
            sealed = False
        else:
            sealed = commit(body, salt, record.kind) == record.commitment
    except (TypeError, ValueError, JournalDamagedError) as error:
        return f"is unreadable ({error})"
    if hash_header(record.header(), key) != record.hash:
        return "was edited: its hash is not that of its header (or the journal has another key)"
    if record.kind not in list(RecordKind):
        return f"is of the kind {record.kind!r}, which only a later version of memalpha knows"
    if first != before.seq + 1:
        return f"follows number {before.seq}: those between are missing"
    if record.previous != before.hash:
        return "was moved, or its predecessor was edited: it does not follow the predecessor's hash"
    return "" if sealed else "was edited: its body is not the one with which it was sealed"


def check_record(record: Record, before: Head, key: bytes | None, name: str) -> None:
    """Raise JournalDamagedError if a record of the store ``name`` should not follow ``before``."""
    problem = fault(record, before, key)
    if problem:
        raise JournalDamagedError(
            f"{name}: operation {record.seq} {problem}", fix="restore a backup"
        )


def check_seals(records: Iterable[Record], key: bytes | None, name: str) -> None:
    """Raise JournalDamagedError if one of some records of the store ``name`` was edited; whether
    each follows on the one before it is not asked.
    """
    for record in records:
        check_record(record, Head(record.first - 1, record.previous), key, name)


def check(records: Sequence[Record], before: Head, head: Head, key: bytes | None) -> list[str]:
    """Return all faults of consecutive records of a chain after ``before`` up to ``head``, one line
    each.
    """
    faults = list[str]()
    forgotten = set[int]()
    erased = set[int]()
    last = before
    for record in records:
        problem = fault(record, last, key)
        if problem:
            faults.append(f"operation {record.seq} {problem}")
        else:
            erased.update(record.erased)
        last = record.head
        if record.kind == RecordKind.FORGET:
            try:
                forgotten.update(record.read(Note).erased)
            except JournalDamagedError as error:
                faults.append(str(error))
    if last != head:
        faults.append(f"the last operation is number {last.seq}, but should be number {head.seq}")
    bare = sorted(erased - forgotten)
    if bare:
        faults.append(
            f"operations {bare} have lost their content, but no receipt says that "
            "they were forgotten"
        )
    return faults


def mix(heads: Iterable[tuple[str, Head]]) -> str:
    """Return the sum of the hashes of all heads, in any order (64 hex digits)."""
    texts = [f"{ns} {head.seq} {head.hash}" for ns, head in heads]
    total = sum(int(hashlib.sha256(text.encode()).hexdigest(), 16) for text in texts)
    return f"{total % (1 << 256):064x}"
