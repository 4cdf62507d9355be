"""The hash chain: how a record is sealed and how a chain of records is checked. Pure.

A record's hash covers its header, the header covers a commitment to the body and the hash of the record before. The commitment
is SHA-256 over 32 random bytes and the body: with the body *and* those bytes erased, the chain still holds and nobody can
confirm a guess of what was there. Each namespace has a chain of its own, rooted in its random id: a namespace can be exported,
imported elsewhere and verified alone, bit for bit, and forgetting one leaves the others untouched. That a whole namespace is
missing is seen in the registry, which is a chain as well.

Without a key the chain finds every accident and every edit by somebody who does not recompute all later hashes. With a key
(HMAC-SHA256) nobody without it can recompute them.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence

from memalpha.store.records import Head, Kind, Record


def root(ns: str) -> str:
    """Return what the first record of a chain has as its previous hash."""
    return hashlib.sha256(f"memalpha journal {ns}".encode()).hexdigest()


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
    return sealed_again(draft, key)


def sealed_again(record: Record, key: bytes | None) -> Record:
    """Return a record with the hash its header asks for."""
    values = [getattr(record, name) for name in Record.__slots__]
    values[9] = digest(record.header(), key)
    return Record(*values)


def fault(record: Record, before: Head | None, key: bytes | None) -> str:
    """Return what is wrong with one record, or an empty text.

    Args:
        record: As read.
        before: The record before it; None if that was dropped by a compaction, which only a base may stand at.
        key: The journal's key.
    """
    try:
        expected = digest(record.header(), key)
        right = not record.commitment or record.body is None or commit(record.body, record.salt or "") == record.commitment
    except (TypeError, ValueError) as error:
        return f"is unreadable ({error})"
    if not hmac.compare_digest(expected, str(record.hash)):
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


def start(ns: str, first: Record) -> Head | None:
    """Return what the first record there is should follow on: the root, or nothing known if a compaction dropped the rest."""
    return Head(0, root(ns)) if first.seq == 1 else None


def check(ns: str, records: Sequence[Record], before: Head | None, head: Head, key: bytes | None) -> list[str]:
    """Return everything wrong with a stretch of a chain up to its head, one line each; empty if nothing is.

    Args:
        ns: Whose chain.
        records: In order.
        before: The record before the first; None for a stretch from the beginning.
        head: What the store says is the last one.
        key: The journal's key.
    """
    found = []
    last = before if before is not None else (start(ns, records[0]) if records else Head(0, root(ns)))
    for record in records:
        if problem := fault(record, last, key):
            found.append(f"operation {record.seq} {problem}")
        last = Head(record.seq, record.hash)
    if last != head:
        found.append(f"the last operation is number {last.seq if last else 0}, it should be number {head.seq}")
    covered = {seq for record in records if record.kind == Kind.FORGET for seq in erased_by(record)}
    if bare := [r.seq for r in records if r.erased and r.seq not in covered]:
        found.append(f"operations {bare} have lost their content and no receipt says that they were forgotten")
    return found


def erased_by(receipt: Record) -> list[int]:
    """Return the numbers of the records that a receipt says were erased; none if its note cannot be read."""
    try:
        return [int(seq) for seq in receipt.facts().get("erased", ())]
    except (ValueError, TypeError, AttributeError):
        return []


def mix(heads: Iterable[tuple[str, Head]]) -> str:
    """Return one number (hex, 64 digits) for a set of heads: the sum of their hashes; order does not matter."""
    return f"{sum(_term(ns, head) for ns, head in heads) % (1 << 256):064x}"


def remix(old: str, out: tuple[str, Head] | None, into: tuple[str, Head] | None) -> str:
    """Return ``mix`` after one head left and another came."""
    total = int(old, 16) - (_term(*out) if out else 0) + (_term(*into) if into else 0)
    return f"{total % (1 << 256):064x}"


def _term(ns: str, head: Head) -> int:
    return int(hashlib.sha256(f"{ns} {head.seq} {head.hash}".encode()).hexdigest(), 16)
