"""A small file beside the database that remembers how far the log had got: it finds a tail that went missing.

A hash chain cannot see that its own end was cut off, and SQLite takes a damaged write-ahead file for one that ends early. So
after each commit, and before the write is acknowledged, the number of commits and one hash over all heads go here too, to disk.
Two slots are written in turn: a write cut short spoils one, and the other says what was true one commit earlier, which a kill
between the commit and this file leaves as well. A database that is further behind, or differs at the same count, has lost
acknowledged writes.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import NamedTuple

from memalpha.files import flush

_SLOT = 192  # bytes; a line of text, padded


class State(NamedTuple):
    """How many commits there were, and ``chain.mix`` of the heads after the last."""

    commits: int
    mix: str


class Witness:
    """The file.

    Args:
        path: Where; two slots of fixed size, so that it never needs space once it is there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, state: State, both: bool = False) -> None:
        """Put a state to disk, in its slot or in both; it is there when this returns."""
        new = not self.path.exists()
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for slot in (0, 1) if new or both else (state.commits % 2,):
                os.pwrite(descriptor, _line(state), slot * _SLOT)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if new:
            flush(self.path.parent)

    def read(self) -> tuple[State | None, int]:
        """Return the latest state, None if no slot can be read, and how many slots cannot."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return None, 2
        slots = [_parse(data[start : start + _SLOT]) for start in (0, _SLOT)]
        return max((slot for slot in slots if slot is not None), default=None), slots.count(None)


def _line(state: State) -> bytes:
    text = f"{state.commits} {state.mix}"
    return f"{text} {_check(text)}".ljust(_SLOT - 1).encode("ascii") + b"\n"


def _parse(slot: bytes) -> State | None:
    try:
        commits, mix, _ = slot.decode("ascii").split()
        state = State(int(commits), mix)
    except ValueError:
        return None
    return state if slot == _line(state) else None


def _check(text: str) -> str:
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:32]
