"""How one entry reads: the same line for the policy's view of its memory and for a reader's passages."""

from __future__ import annotations

from memalpha.types import Entry


def render_entry(entry: Entry) -> str:
    """Return ``[timestamp] content`` for an entry with a timestamp, else its content alone."""
    return f"[{entry.timestamp}] {entry.content}" if entry.timestamp else entry.content
