"""A body of several parts, each of which can be erased alone: what is shared, then the lines.

The parts are JSON, joined by newlines. The salt of a part is the SHA-256 of the record's salt and
of the part's place; the commitment of the record is the SHA-256 over the hashes of all parts with
their salts. When a line is erased, its part is empty, the record's salt goes, and the salts of all
parts stand in its place, with the hash of each erased part instead of a salt. So the commitment
still holds, and nothing that is left can confirm a guess of the line.
"""

import hashlib
from collections.abc import Collection, Sequence

_JOINT = "\n"  # no JSON text of ``json.dumps`` holds one
_DIGITS = 64  # hex digits of a salt


def join(parts: Sequence[str]) -> str:
    """Return the body of some parts."""
    return _JOINT.join(parts)


def split(body: str) -> list[str]:
    """Return the parts of a body; those that were erased are empty."""
    return body.split(_JOINT)


def commit_parts(body: str, salt: str) -> str:
    """Return the commitment to a body under its salt, or the salts of its parts (hex).

    ValueError if these do not fit the body.
    """
    parts = split(body)
    hashes = bytearray()
    for part, own in zip(parts, _salts(salt, len(parts)), strict=True):
        hashes += _hash(part, own)
    return hashlib.sha256(hashes).hexdigest()


def erase_parts(body: str, salt: str, gone: Collection[int]) -> tuple[str, str]:
    """Return body and salts after the parts of some places (0: what is shared) were erased."""
    parts = split(body)
    salts = _salts(salt, len(parts))
    for place in gone:
        salts[place] = _hash(parts[place], salts[place])
        parts[place] = ""
    return join(parts), b"".join(salts).hex()


def _hash(part: str, salt: bytes) -> bytes:
    """The hash of a part with its salt; of an erased one it stands in the salt's place."""
    return hashlib.sha256(salt + part.encode("ascii")).digest() if part else salt


def _salts(salt: str, parts: int) -> list[bytes]:
    data = bytes.fromhex(salt)
    size = _DIGITS // 2
    if len(data) == size:
        return [hashlib.sha256(data + place.to_bytes(8)).digest() for place in range(parts)]
    if len(data) != parts * size:
        raise ValueError(f"{len(data)} bytes of salts for {parts} parts")
    return [data[start : start + size] for start in range(0, len(data), size)]
